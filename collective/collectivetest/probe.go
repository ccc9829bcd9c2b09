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
// Steps are counted by a clock on each rank: a call takes one step, and a message
// arrives at the step that its sender's call ends. Stamps travel beside the
// messages, in the same order.
type probes struct {
	n        int
	failRank int // injects fault at its failCall-th call, from 1; 0 never
	failCall int
	fault    error

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
	failed  error
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
	return p.end(p.Peer.Send(buf, dst), -1)
}

func (p *probe) Recv(buf []byte, src int) error {
	if err := p.begin("Recv", src); err != nil {
		return err
	}
	return p.end(p.Peer.Recv(buf, src), src)
}

func (p *probe) Sendrecv(send []byte, dst int, recv []byte, src int) error {
	if err := p.begin("Sendrecv", dst, src); err != nil {
		return err
	}
	p.stamp(dst, len(send))
	return p.end(p.Peer.Sendrecv(send, dst, recv, src), src)
}

func (p *probe) begin(call string, peers ...int) error {
	p.calls++
	p.clock++
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
	if p.Rank() == p.all.failRank && p.calls == p.all.failCall {
		p.failed = p.all.fault
	}
	return p.failed
}

// stamp goes before the message, so that the receiver finds it.
func (p *probe) stamp(dst, bytes int) {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	q := &p.all.stamps[p.Rank()*p.all.n+dst]
	*q = append(*q, p.clock)
	p.all.cost.Messages++
	p.all.cost.Bytes += bytes
}

func (p *probe) end(err error, src int) error {
	if err != nil {
		p.failed = err
		return err
	}
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	if src >= 0 {
		q := &p.all.stamps[src*p.all.n+p.Rank()]
		if len(*q) == 0 {
			p.breaks("Recv from rank %d returned before the message was sent", src)
			return nil
		}
		p.clock = max(p.clock, (*q)[0])
		*q = (*q)[1:]
	}
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
