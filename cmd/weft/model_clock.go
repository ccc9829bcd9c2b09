package main

import (
	"container/heap"
	"fmt"

	"github.com/weft-hpc/weft/collective"
)

// card is what messages go through: a rank's own for those inside its node, and one of
// each node for the others.
type card struct {
	sendFree float64 // when it can send the next message
	recvFree float64 // when it has received the last one
}

// send returns when a message that a processor hands over at a time is sent, and when it is
// at the card of its receiver.
func (c *card) send(k *collective.Link, now float64, n int) (sent, there float64) {
	start := max(now, c.sendFree)
	wire := float64(n) * k.PerByte
	c.sendFree = start + max(k.Gap, wire)
	sent = start + wire + k.Asks(n)
	return sent, sent + k.Latency
}

// receive returns when a message that is there at a time has been received.
func (c *card) receive(k *collective.Link, there float64, n int) float64 {
	c.recvFree = max(there, c.recvFree+max(k.Gap, float64(n)*k.PerByte))
	return c.recvFree
}

func (net *machine) local(e *event) float64 {
	if e.kind == collective.StepLeft {
		return net.Reduce * float64(e.n)
	}
	return net.Copy * float64(e.n)
}

// mirror runs one rank's schedule as if all ranks did the same at the same time, each on
// a node of its own: the k-th message that it receives comes when the k-th that it
// sends arrives. It reports false if that cannot be so.
func (net *machine) mirror(events []event) (float64, bool) {
	type message struct {
		at float64
		n  int
	}
	var c card
	var now, sent float64
	var sends []message
	var due []int
	k := &net.Between
	for i := range events {
		switch e := &events[i]; e.kind {
		case collective.StepSend:
			now += k.Overhead
			done, there := c.send(k, now, e.n)
			sent = max(sent, done)
			sends = append(sends, message{there, e.n})
		case collective.StepRecv:
			due = append(due, e.n)
		case collective.StepWait:
			if len(due) != len(sends) {
				return 0, false
			}
			for i, n := range due {
				if sends[i].n != n {
					return 0, false
				}
				now = max(now, c.receive(k, sends[i].at, n)) + k.Overhead
			}
			now = max(now, sent)
			sends, due = sends[:0], due[:0]
		default:
			now += net.local(e)
		}
	}
	return now, true
}

// An actor is a rank that runs its schedule.
type actor struct {
	now   float64 // of its processor
	sent  float64 // when the buffers of the sends in progress are free
	next  int     // event
	due   []event
	inbox []arrival
	waits int32 // for a message of that rank; -1: for none
}

// arrival is a message that has been received by its card at a time.
type arrival struct {
	src int32
	at  float64
}

// moment is when something happens: a message is there, or a rank goes on.
type moment struct {
	at   float64
	seq  int // those of one time are taken in order
	rank int32
	src  int32 // of the message; -1 if there is none
	n    int
}

type moments []moment

func (m moments) Len() int { return len(m) }
func (m moments) Less(i, j int) bool {
	return m[i].at < m[j].at || m[i].at == m[j].at && m[i].seq < m[j].seq
}
func (m moments) Swap(i, j int) { m[i], m[j] = m[j], m[i] }
func (m *moments) Push(x any)   { *m = append(*m, x.(moment)) }
func (m *moments) Pop() any {
	last := len(*m) - 1
	x := (*m)[last]
	*m = (*m)[:last]
	return x
}

// playing is a run of the schedules of all ranks. What ranks do is taken in order of
// time, as they share the cards of their nodes.
type playing struct {
	*machine
	all     [][]event
	ranks   []actor
	own     []card // of the ranks
	shared  []card // of the nodes
	pending moments
	seq     int
	left    int
	last    float64
}

// run runs the schedules of all ranks and returns when the last one is done.
func (net *machine) run(all [][]event) (float64, error) {
	p := &playing{machine: net, all: all, ranks: make([]actor, len(all)), own: make([]card, len(all)),
		shared: make([]card, len(all)/net.perNode+1), left: len(all)}
	for r := range p.ranks {
		p.ranks[r].waits = -1
		p.push(moment{rank: int32(r), src: -1})
	}
	for len(p.pending) > 0 {
		m := heap.Pop(&p.pending).(moment)
		if m.src < 0 {
			p.step(int(m.rank), m.at)
			continue
		}
		r := &p.ranks[m.rank]
		at := p.card(int(m.src), int(m.rank), int(m.rank)).receive(p.link(int(m.src), int(m.rank)), m.at, m.n)
		r.inbox = append(r.inbox, arrival{m.src, at})
		if r.waits == m.src {
			r.waits = -1
			p.push(moment{at: max(r.now, at), rank: m.rank, src: -1})
		}
	}
	if p.left > 0 {
		return 0, fmt.Errorf("%d of %d ranks wait for messages that nobody sends", p.left, len(all))
	}
	return p.last, nil
}

func (p *playing) push(m moment) {
	p.seq++
	m.seq = p.seq
	heap.Push(&p.pending, m)
}

// card returns the one that a rank uses for a message from src to dst.
func (p *playing) card(src, dst, rank int) *card {
	if src/p.perNode == dst/p.perNode {
		return &p.own[rank]
	}
	return &p.shared[rank/p.perNode]
}

// step runs a rank until it waits, or has sent a message: then others may have their turn.
func (p *playing) step(me int, at float64) {
	r, events := &p.ranks[me], p.all[me]
	r.now = max(r.now, at)
	for r.next < len(events) {
		switch e := &events[r.next]; e.kind {
		case collective.StepSend:
			k := p.link(me, int(e.peer))
			r.now += k.Overhead
			sent, there := p.card(me, int(e.peer), me).send(k, r.now, e.n)
			r.sent = max(r.sent, sent)
			p.push(moment{at: there, rank: e.peer, src: int32(me), n: e.n})
			r.next++
			p.push(moment{at: r.now, rank: int32(me), src: -1})
			return
		case collective.StepRecv:
			r.due = append(r.due, *e)
		case collective.StepWait:
			for len(r.due) > 0 {
				src := r.due[0].peer
				i := 0
				for i < len(r.inbox) && r.inbox[i].src != src {
					i++
				}
				if i == len(r.inbox) {
					r.waits = src
					return
				}
				r.now = max(r.now, r.inbox[i].at) + p.link(int(src), me).Overhead
				r.inbox = append(r.inbox[:i], r.inbox[i+1:]...)
				r.due = r.due[1:]
			}
			r.now = max(r.now, r.sent)
		default:
			r.now += p.local(e)
		}
		r.next++
	}
	p.left--
	p.last = max(p.last, r.now)
}
