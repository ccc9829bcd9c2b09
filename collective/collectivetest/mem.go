package collectivetest

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/weft-hpc/weft/collective"
)

// ErrDeadlock is returned on all ranks when every rank that has not returned
// waits for another.
var ErrDeadlock = errors.New("collectivetest: deadlock")

// Mem is a group of ranks in memory. It finds a deadlock at the moment it
// happens, without a clock: when every live rank waits, nothing can change.
//
// A send of more than Eager bytes waits for its receiver; shorter ones are
// buffered. Eager -1 makes every send wait, so that an algorithm that counts on
// buffering fails.
//
// All state is under one lock, and whoever completes a match copies the data: the
// other side waits, so the copy is safe. The one who completes a match also takes
// the other off the count of waiting ranks at once, so the count is never stale.
type Mem struct {
	eager int

	mu      sync.Mutex
	live    int // ranks that have not called Done
	waiting int // of those, ranks that can only go on by what another one does
	err     error
	peers   []*memPeer
	queues  [][]message // by src*n+dst; sent and not received
	free    [][]byte    // buffers of received eager messages
}

type message struct {
	data []byte
	from *memPeer // waits for the message to be taken; nil when buffered
}

type memPeer struct {
	m       *Mem
	rank    int
	wake    sync.Cond
	scratch [4][]byte

	// Under Mem.mu. A call waits while sending or receiving.
	sending, receiving bool
	waiting            bool
	dst, src           int
	buf                []byte
}

// NewMem returns a group of n ranks.
func NewMem(n, eager int) *Mem {
	m := &Mem{eager: eager, live: n, queues: make([][]message, n*n)}
	for rank := range n {
		p := &memPeer{m: m, rank: rank}
		p.wake.L = &m.mu
		m.peers = append(m.peers, p)
	}
	return m
}

// Peer returns the peer of a rank.
func (m *Mem) Peer(rank int) collective.Peer { return m.peers[rank] }

// Done says that a rank will make no more calls. An error ends the operation on
// all other ranks.
func (m *Mem) Done(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live--
	if err != nil {
		m.fail(err)
	}
	m.checkDeadlock()
}

// Close reports messages that nobody received. All ranks are done.
func (m *Mem) Close() error {
	for i, q := range m.queues {
		if len(q) > 0 && m.err == nil {
			n := len(m.peers)
			return fmt.Errorf("collectivetest: %d messages of rank %d to rank %d were never received", len(q), i/n, i%n)
		}
	}
	return nil
}

func (m *Mem) fail(err error) {
	if m.err != nil {
		return
	}
	m.err = err
	for _, p := range m.peers {
		p.wake.Signal()
	}
}

func (m *Mem) checkDeadlock() {
	if m.err != nil || m.live == 0 || m.waiting < m.live {
		return
	}
	var who strings.Builder
	for _, p := range m.peers {
		if p.sending {
			fmt.Fprintf(&who, "; rank %d sends to %d", p.rank, p.dst)
		}
		if p.receiving {
			fmt.Fprintf(&who, "; rank %d receives %d bytes from %d", p.rank, len(p.buf), p.src)
		}
	}
	m.fail(fmt.Errorf("%w%s", ErrDeadlock, who.String()))
}

func (p *memPeer) Rank() int { return p.rank }
func (p *memPeer) Size() int { return len(p.m.peers) }

func (p *memPeer) Send(buf []byte, dst int) error {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	p.postSend(buf, dst)
	return p.wait()
}

func (p *memPeer) Recv(buf []byte, src int) error {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	p.postRecv(buf, src)
	return p.wait()
}

func (p *memPeer) Sendrecv(send []byte, dst int, recv []byte, src int) error {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	p.postRecv(recv, src)
	p.postSend(send, dst)
	return p.wait()
}

func (p *memPeer) Scratch(slot, n int) []byte {
	if cap(p.scratch[slot]) < n {
		p.scratch[slot] = make([]byte, n)
	}
	return p.scratch[slot][:n]
}

func (p *memPeer) postSend(buf []byte, dst int) {
	m := p.m
	if m.err != nil {
		return
	}
	to := m.peers[dst]
	q := &m.queues[p.rank*len(m.peers)+dst]
	switch {
	case to.receiving && to.src == p.rank:
		m.deliver(buf, to.buf, p.rank, dst)
		to.receiving = false
		to.settle()
	case len(buf) <= m.eager:
		*q = append(*q, message{data: append(m.buffer(), buf...)})
	default:
		*q = append(*q, message{data: buf, from: p})
		p.sending, p.dst = true, dst
	}
}

func (p *memPeer) postRecv(buf []byte, src int) {
	m := p.m
	if m.err != nil {
		return
	}
	q := &m.queues[src*len(m.peers)+p.rank]
	if len(*q) == 0 {
		p.receiving, p.src, p.buf = true, src, buf
		return
	}
	msg := (*q)[0]
	*q = append((*q)[:0], (*q)[1:]...)
	m.deliver(msg.data, buf, src, p.rank)
	if msg.from == nil {
		m.free = append(m.free, msg.data[:0])
		return
	}
	msg.from.sending = false
	msg.from.settle()
}

func (m *Mem) buffer() []byte {
	if len(m.free) == 0 {
		return nil
	}
	last := len(m.free) - 1
	buf := m.free[last]
	m.free = m.free[:last]
	return buf
}

func (m *Mem) deliver(data, buf []byte, src, dst int) {
	if len(data) != len(buf) {
		m.fail(fmt.Errorf("collectivetest: rank %d sent %d bytes to rank %d, which receives %d", src, len(data), dst, len(buf)))
		return
	}
	copy(buf, data)
}

// settle takes a rank off the waiting ones when its call is complete.
func (p *memPeer) settle() {
	if p.waiting && !p.sending && !p.receiving {
		p.waiting = false
		p.m.waiting--
		p.wake.Signal()
	}
}

func (p *memPeer) wait() error {
	m := p.m
	if (p.sending || p.receiving) && m.err == nil {
		p.waiting = true
		m.waiting++
		m.checkDeadlock()
		for p.waiting && m.err == nil {
			p.wake.Wait()
		}
	}
	return m.err
}

// World runs fn once on each of n ranks, at the same time, and returns the
// ranks' errors when all have returned. An error on one rank ends the operation
// on the others, as a failed rank does. When the ranks wait for each other for
// ever, World ends the operation with an error.
type World func(n int, fn func(p collective.Peer) error) []error

// MemWorld returns a World over Mem.
func MemWorld(eager int) World {
	return func(n int, fn func(p collective.Peer) error) []error {
		m := NewMem(n, eager)
		errs := make([]error, n)
		var wg sync.WaitGroup
		for rank := range n {
			wg.Go(func() {
				errs[rank] = fn(m.Peer(rank))
				m.Done(errs[rank])
			})
		}
		wg.Wait()
		if err := m.Close(); err != nil {
			errs[0] = errors.Join(errs[0], err)
		}
		return errs
	}
}
