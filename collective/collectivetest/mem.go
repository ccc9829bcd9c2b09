package collectivetest

import (
	"errors"
	"fmt"
	"slices"
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

	// Under Mem.mu: what was started and is not over.
	sends   []int // destinations
	recvs   []receive
	waiting bool
}

type receive struct {
	buf []byte
	src int
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
		for _, dst := range p.sends {
			fmt.Fprintf(&who, "; rank %d sends to %d", p.rank, dst)
		}
		for _, r := range p.recvs {
			fmt.Fprintf(&who, "; rank %d receives %d bytes from %d", p.rank, len(r.buf), r.src)
		}
	}
	m.fail(fmt.Errorf("%w%s", ErrDeadlock, who.String()))
}

func (p *memPeer) Rank() int { return p.rank }
func (p *memPeer) Size() int { return len(p.m.peers) }

func (p *memPeer) Send(buf []byte, dst int) error {
	p.PostSend(buf, dst)
	return p.Finish()
}

func (p *memPeer) Recv(buf []byte, src int) error {
	p.PostRecv(buf, src)
	return p.Finish()
}

func (p *memPeer) Sendrecv(send []byte, dst int, recv []byte, src int) error {
	p.PostRecv(recv, src)
	p.PostSend(send, dst)
	return p.Finish()
}

func (p *memPeer) Scratch(slot, n int) []byte {
	if cap(p.scratch[slot]) < n {
		p.scratch[slot] = make([]byte, n)
	}
	return p.scratch[slot][:n]
}

func (p *memPeer) PostSend(buf []byte, dst int) {
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return
	}
	to := m.peers[dst]
	q := &m.queues[p.rank*len(m.peers)+dst]
	if i := slices.IndexFunc(to.recvs, func(r receive) bool { return r.src == p.rank }); i >= 0 {
		m.deliver(buf, to.recvs[i].buf, p.rank, dst)
		to.recvs = slices.Delete(to.recvs, i, i+1)
		to.settle()
		return
	}
	if len(buf) <= m.eager {
		*q = append(*q, message{data: append(m.buffer(), buf...)})
		return
	}
	*q = append(*q, message{data: buf, from: p})
	p.sends = append(p.sends, dst)
}

func (p *memPeer) PostRecv(buf []byte, src int) {
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return
	}
	q := &m.queues[src*len(m.peers)+p.rank]
	if len(*q) == 0 {
		p.recvs = append(p.recvs, receive{buf, src})
		return
	}
	msg := (*q)[0]
	*q = append((*q)[:0], (*q)[1:]...)
	m.deliver(msg.data, buf, src, p.rank)
	if msg.from == nil {
		m.free = append(m.free, msg.data[:0])
		return
	}
	i := slices.Index(msg.from.sends, p.rank)
	msg.from.sends = slices.Delete(msg.from.sends, i, i+1)
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

// settle takes a rank off the waiting ones when all it waits for is over.
func (p *memPeer) settle() {
	if p.waiting && len(p.sends)+len(p.recvs) == 0 {
		p.waiting = false
		p.m.waiting--
		p.wake.Signal()
	}
}

func (p *memPeer) Finish() error {
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(p.sends)+len(p.recvs) > 0 && m.err == nil {
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
