package collectivetest

import (
	"errors"
	"fmt"
	"sync"

	"github.com/weft-hpc/weft/collective"
)

// probes watch the ranks of one operation over any Peer: they count steps,
// messages and bytes, inject one error, and check that the algorithm keeps the
// rules of Peer.
//
// Steps are counted by a clock on each rank: a message takes one step of its
// sender and one of its receiver, which are free to do one of each at a time, and
// arrives at the step that its sender gave it. Stamps travel beside the messages,
// in the same order.
type probes struct {
	n        int
	failRank int // injects fault at its failCall-th call, from 1; 0 never
	failCall int
	fault    error
	nodes    []int // of the ranks, if bytes between nodes are to be counted

	mu     sync.Mutex
	stamps [][]int // by src*n+dst
	cost   collective.Cost
}

func newProbes(n int) *probes { return &probes{n: n, stamps: make([][]int, n*n)} }

// probe is one rank's.
type probe struct {
	collective.Peer
	all     *probes
	calls   int
	clock   int
	sends   int   // posted since the last Finish
	srcs    []int // of the receives posted since then
	failed  error
	posted  bool
	broken  error // the first rule that was broken
	scratch [4]struct{ all, given []byte }
}

func (ps *probes) wrap(p collective.Peer) *probe { return &probe{Peer: p, all: ps} }

const scratchGuard = 32

// Scratch hands out memory full of garbage, with a guard behind it.
func (p *probe) Scratch(slot, n int) []byte {
	s := &p.scratch[slot]
	if s.all == nil {
		s.all = p.Peer.Scratch(slot, n+scratchGuard)
		if len(s.all) != n+scratchGuard {
			p.breaks("Peer.Scratch(%d, %d) returned %d bytes", slot, n+scratchGuard, len(s.all))
		}
		for i := range s.all {
			s.all[i] = canary
		}
		s.given = s.all[:n:n]
	}
	if n > len(s.given) {
		p.breaks("Scratch(%d, %d) after %d bytes of the same slot", slot, n, len(s.given))
		return make([]byte, n)
	}
	return s.given[:n:n]
}

func (p *probe) Send(buf []byte, dst int) error {
	if err := p.begin("Send", dst); err != nil {
		return err
	}
	p.stamp(dst, len(buf))
	return p.end(p.Peer.Send(buf, dst))
}

func (p *probe) Recv(buf []byte, src int) error {
	if err := p.begin("Recv", src); err != nil {
		return err
	}
	p.srcs = append(p.srcs, src)
	return p.end(p.Peer.Recv(buf, src))
}

func (p *probe) Sendrecv(send []byte, dst int, recv []byte, src int) error {
	if err := p.begin("Sendrecv", dst, src); err != nil {
		return err
	}
	p.stamp(dst, len(send))
	p.srcs = append(p.srcs, src)
	return p.end(p.Peer.Sendrecv(send, dst, recv, src))
}

func (p *probe) PostSend(buf []byte, dst int) {
	if p.check("PostSend", dst) == nil {
		p.posted = true
		p.stamp(dst, len(buf))
		p.Peer.PostSend(buf, dst)
	}
}

func (p *probe) PostRecv(buf []byte, src int) {
	if p.check("PostRecv", src) == nil {
		p.posted = true
		p.srcs = append(p.srcs, src)
		p.Peer.PostRecv(buf, src)
	}
}

func (p *probe) Finish() error {
	p.posted = false
	if err := p.begin("Finish"); err != nil {
		return err
	}
	return p.end(p.Peer.Finish())
}

// begin starts a call that waits.
func (p *probe) begin(call string, peers ...int) error {
	p.calls++
	if p.posted {
		p.breaks("%s before Finish", call)
	}
	if err := p.check(call, peers...); err != nil {
		return err
	}
	if p.Rank() == p.all.failRank && p.calls == p.all.failCall {
		p.failed = p.all.fault
	}
	return p.failed
}

// check refuses a call that breaks a rule.
func (p *probe) check(call string, peers ...int) error {
	if p.failed != nil {
		p.breaks("%s after the error %q", call, p.failed)
		return p.failed
	}
	for _, peer := range peers {
		if peer < 0 || peer >= p.all.n || peer == p.Rank() {
			p.breaks("%s with rank %d", call, peer)
			p.failed = p.broken
			return p.broken
		}
	}
	return nil
}

// stamp goes before the message, so that the receiver finds it.
func (p *probe) stamp(dst, bytes int) {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	p.sends++
	q := &p.all.stamps[p.Rank()*p.all.n+dst]
	*q = append(*q, p.clock+p.sends)
	p.all.cost.Messages++
	p.all.cost.Bytes += bytes
	if nodes := p.all.nodes; nodes != nil && nodes[p.Rank()] != nodes[dst] {
		p.all.cost.Between += bytes
	}
}

// end moves the clock on to the end of all that was started.
func (p *probe) end(err error) error {
	if err != nil {
		p.failed = err
		return err
	}
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	in := p.clock
	for _, src := range p.srcs {
		q := &p.all.stamps[src*p.all.n+p.Rank()]
		if len(*q) == 0 {
			p.breaks("a receive from rank %d was over before the message was sent", src)
			return nil
		}
		in = max(in+1, (*q)[0])
		*q = (*q)[1:]
	}
	p.clock = max(p.clock+p.sends, in)
	p.sends, p.srcs = 0, p.srcs[:0]
	p.all.cost.Steps = max(p.all.cost.Steps, p.clock)
	return nil
}

func (p *probe) breaks(format string, args ...any) {
	if p.broken == nil {
		p.broken = fmt.Errorf("rank %d: "+format, append([]any{p.Rank()}, args...)...)
	}
}

// verdict joins what the algorithm returned with the rules it broke.
func (p *probe) verdict(err error) error {
	for slot, s := range p.scratch {
		for _, b := range s.all[len(s.given):] {
			if b != canary {
				p.breaks("wrote behind the %d bytes of Scratch slot %d", len(s.given), slot)
			}
		}
	}
	if p.failed != nil && err != p.failed {
		p.breaks("returned %v after the error %q of the peer", err, p.failed)
	}
	if p.broken != nil && !errors.Is(err, p.broken) {
		return errors.Join(err, p.broken)
	}
	return err
}
