package main

import (
	"fmt"

	"github.com/weft-hpc/weft/collective"
)

// network is a LogGP model of the machine, in seconds and seconds a byte.
// (Alexandrov et al.: LogGP, 1995)
type network struct {
	Latency  float64 `json:"latency_s"`         // L: from one network card to another
	Overhead float64 `json:"overhead_s"`        // o: processor time for a message, on each side
	Gap      float64 `json:"gap_s"`             // g: between two messages of one card
	PerByte  float64 `json:"per_byte_s"`        // G
	Reduce   float64 `json:"reduce_per_byte_s"` // one byte of an operand combined
	Copy     float64 `json:"copy_per_byte_s"`   // one byte copied inside a rank
}

// prediction is what one algorithm does in one case.
type prediction struct {
	Collective string  `json:"collective"`
	Algorithm  string  `json:"algorithm"`
	Ranks      int     `json:"ranks"`
	Size       int     `json:"size_bytes"` // of the vector, or of a block
	Steps      int     `json:"steps"`
	Messages   int     `json:"messages"`
	Bytes      int     `json:"bytes"` // of all ranks
	Seconds    float64 `json:"seconds"`
	How        string  `json:"how"`    // the time was found: see how
	Chosen     bool    `json:"chosen"` // by default, for this case
}

// How the time was found.
const (
	byRun     = "run"     // of the schedules of all ranks
	byMirror  = "mirror"  // of one rank's schedule, as all ranks do the same
	byFormula = "formula" // steps and bytes: too many messages to run
)

// Limits of a run: beyond them memory and patience end.
const (
	maxMessages = 2 << 20
	maxSteps    = 12 << 20
	maxVaried   = 4096 // ranks, where each rank looks at the lengths of all blocks
)

// event is a step of a schedule in little room: the bytes, and in the upper bits
// what they are for.
type event struct {
	kind collective.StepKind
	peer int32
	n    int
}

// modelArgs are the arguments of a rank, over memory that nobody touches.
func modelArgs(k collective.Kind, ranks, size int, memory []byte) collective.Args {
	// Send and Recv are apart, or the call would be in place.
	block, whole := memory[len(memory)-size:], memory[:0]
	if blocked(k) {
		whole = memory[:ranks*size]
	}
	a := collective.Args{Send: block, Recv: memory[:size]}
	equal := func() *collective.Blocks {
		b := &collective.Blocks{Counts: make([]int, ranks), Displs: make([]int, ranks), Unit: 1}
		for i := range ranks {
			b.Counts[i], b.Displs[i] = size, i*size
		}
		return b
	}
	switch k {
	case collective.KindGather, collective.KindAllgather:
		a.Recv = whole
	case collective.KindGatherv, collective.KindAllgatherv:
		a.Recv, a.RecvBlocks = whole, equal()
	case collective.KindScatter, collective.KindReduceScatterBlock:
		a.Send, a.Recv = whole, block
	case collective.KindScatterv, collective.KindReduceScatter:
		a.Send, a.Recv, a.SendBlocks = whole, block, equal()
	case collective.KindAlltoall, collective.KindAlltoallv:
		a.Send, a.Recv = whole, memory[len(memory)-ranks*size:]
		if k == collective.KindAlltoallv {
			a.SendBlocks = equal()
			a.RecvBlocks = a.SendBlocks
		}
	}
	if k.Reduces() {
		nothing := func(inout, in []byte) {}
		a.Op = collective.Op{Size: 1, Commutative: true, Left: nothing, Right: nothing}
		if size%8 == 0 {
			a.Op.Size = 8
		}
	}
	return a
}

// blocked says that a rank has a block of the size for each rank.
func blocked(k collective.Kind) bool {
	switch k {
	case collective.KindBarrier, collective.KindBcast, collective.KindReduce, collective.KindAllreduce, collective.KindScan, collective.KindExscan:
		return false
	}
	return true
}

func modelShape(k collective.Kind, ranks, size int) collective.Shape {
	s := collective.Shape{Ranks: ranks, Bytes: size}
	if k.Reduces() {
		s.Elem = 1
		if size%8 == 0 {
			s.Elem = 8
		}
	}
	if k == collective.KindBarrier {
		s.Bytes = 0
	}
	if blocked(k) {
		s.Bytes, s.Own = ranks*size, size
		if k == collective.KindAlltoallv {
			s.Bytes, s.Own = ranks*ranks*size, ranks*size
		}
		if k == collective.KindReduceScatter || k == collective.KindAllgatherv {
			s.Counts = make([]int, ranks)
			for i := range s.Counts {
				s.Counts[i] = size
			}
		}
	}
	return s
}

// predict runs an algorithm on the model.
func (net network) predict(alg *collective.Algorithm, ranks, size int) (prediction, error) {
	s := modelShape(alg.Kind, ranks, size)
	cost := alg.Cost(s)
	p := prediction{Collective: alg.Kind.String(), Algorithm: alg.Name, Ranks: ranks, Size: size,
		Steps: cost.Steps, Messages: cost.Messages, Bytes: cost.Bytes}
	choice := s
	switch alg.Kind { // where nobody knows the bytes, they are no part of the choice
	case collective.KindGatherv, collective.KindScatterv, collective.KindAlltoallv:
		choice.Bytes = 0
	}
	chosen, _ := collective.Explain(alg.Kind, choice, true)
	p.Chosen = chosen == alg
	p.How = byFormula
	if cost.Messages > 0 {
		perMessage := float64(cost.Bytes) / float64(cost.Messages)
		p.Seconds = float64(cost.Steps) * (net.Latency + 2*net.Overhead + perMessage*net.PerByte)
	}
	// Blocks are all treated alike, so short ones do, and their bytes are multiplied.
	unit, scale := size, 1
	if least := 1 + 7*(1-min(1, size%8)); blocked(alg.Kind) && size > least {
		unit, scale = least, size/least
	}
	vector := unit
	if blocked(alg.Kind) {
		vector *= ranks
	}
	memory := make([]byte, vector+unit+1)
	args := modelArgs(alg.Kind, ranks, unit, memory)
	var sched collective.Schedule
	record := func(rank int) ([]event, int, error) {
		if err := sched.Record(alg, rank, ranks, args); err != nil {
			return nil, 0, err
		}
		return compact(sched.Steps(), scale), len(sched.Steps()), nil
	}
	sample, steps, err := record(ranks / 2)
	if err != nil {
		return p, err
	}
	varied := ranks > maxVaried && (alg.Kind == collective.KindAllgatherv || alg.Kind == collective.KindReduceScatter || alg.Kind == collective.KindAlltoallv)
	if cost.Messages > maxMessages || steps > maxSteps/ranks || varied {
		if t, ok := net.mirror(sample); ok {
			p.Seconds, p.How = t, byMirror
		}
		return p, nil
	}
	all := make([][]event, ranks)
	for rank := range all {
		if all[rank], _, err = record(rank); err != nil {
			return p, err
		}
	}
	p.Seconds, err = net.run(all)
	p.How = byRun
	return p, err
}

// compact turns steps into events, local work between two messages into one, and
// multiplies their bytes.
func compact(steps []collective.Step, scale int) []event {
	var out []event
	for i := range steps {
		step := &steps[i]
		kind := step.Kind
		if kind == collective.StepRight {
			kind = collective.StepLeft
		}
		if local := kind == collective.StepCopy || kind == collective.StepLeft; local && len(out) > 0 && out[len(out)-1].kind == kind {
			out[len(out)-1].n += len(step.A) * scale
			continue
		}
		out = append(out, event{kind, step.Peer, len(step.A) * scale})
	}
	return out
}

// clock is one rank's time.
type clock struct {
	now      float64 // of its processor
	sendFree float64 // when its card can send the next message
	recvFree float64 // when its card has received the last one
	sent     float64 // when the buffers of the sends in progress are free
}

// send returns when the message is at the card of its receiver.
func (c *clock) send(net *network, n int) float64 {
	c.now += net.Overhead
	start := max(c.now, c.sendFree)
	wire := float64(n) * net.PerByte
	c.sendFree = start + max(net.Gap, wire)
	c.sent = max(c.sent, start+wire)
	return start + wire + net.Latency
}

// receive takes a message that is there at a time.
func (c *clock) receive(net *network, at float64, n int) {
	c.recvFree = max(at, c.recvFree+max(net.Gap, float64(n)*net.PerByte))
	c.now = max(c.now, c.recvFree) + net.Overhead
}

func (c *clock) local(net *network, e *event) {
	perByte := net.Copy
	if e.kind == collective.StepLeft {
		perByte = net.Reduce
	}
	c.now += perByte * float64(e.n)
}

// mirror runs one rank's schedule as if all ranks did the same at the same time: the
// k-th message that it receives comes when the k-th that it sends arrives. It
// reports false if that cannot be so.
func (net *network) mirror(events []event) (float64, bool) {
	type message struct {
		at float64
		n  int
	}
	var c clock
	var sent []message
	var due []int
	for i := range events {
		switch e := &events[i]; e.kind {
		case collective.StepSend:
			sent = append(sent, message{c.send(net, e.n), e.n})
		case collective.StepRecv:
			due = append(due, e.n)
		case collective.StepWait:
			if len(due) != len(sent) {
				return 0, false
			}
			for k, n := range due {
				if sent[k].n != n {
					return 0, false
				}
				c.receive(net, sent[k].at, n)
			}
			c.now = max(c.now, c.sent)
			sent, due = sent[:0], due[:0]
		default:
			c.local(net, e)
		}
	}
	return c.now, true
}

// run runs the schedules of all ranks and returns when the last one is done. As
// messages do not hold up each other but in the cards of their own sender and receiver,
// ranks can be run in any order, each as far as what it has received lets it.
func (net *network) run(all [][]event) (float64, error) {
	type message struct {
		src int32
		at  float64
	}
	type rank struct {
		clock
		next  int // event
		due   []event
		inbox []message
		head  int // of inbox
		waits int32
	}
	ranks := make([]rank, len(all))
	ready := make([]int, len(all))
	for i := range ready {
		ready[i] = len(all) - 1 - i
		ranks[i].waits = -1
	}
	take := func(r *rank, src int32) (float64, bool) {
		for i := r.head; i < len(r.inbox); i++ {
			if m := r.inbox[i]; m.src == src {
				copy(r.inbox[r.head+1:i+1], r.inbox[r.head:i])
				if r.head++; r.head == len(r.inbox) {
					r.inbox, r.head = r.inbox[:0], 0
				}
				return m.at, true
			}
		}
		return 0, false
	}
	left := len(all)
	last := 0.0
	for len(ready) > 0 {
		me := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		r := &ranks[me]
		r.waits = -1
	events:
		for r.next < len(all[me]) {
			switch e := &all[me][r.next]; e.kind {
			case collective.StepSend:
				to := &ranks[e.peer]
				to.inbox = append(to.inbox, message{int32(me), r.send(net, e.n)})
				if to.waits == int32(me) {
					to.waits = -1
					ready = append(ready, int(e.peer))
				}
			case collective.StepRecv:
				r.due = append(r.due, *e)
			case collective.StepWait:
				for len(r.due) > 0 {
					at, ok := take(r, r.due[0].peer)
					if !ok {
						r.waits = r.due[0].peer
						break events
					}
					r.receive(net, at, r.due[0].n)
					r.due = r.due[1:]
				}
				r.now = max(r.now, r.sent)
			default:
				r.local(net, e)
			}
			r.next++
		}
		if r.next == len(all[me]) {
			left--
			last = max(last, r.now)
		}
	}
	if left > 0 {
		return 0, fmt.Errorf("%d of %d ranks wait for messages that nobody sends", left, len(all))
	}
	return last, nil
}
