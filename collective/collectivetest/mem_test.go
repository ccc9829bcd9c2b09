package collectivetest

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/weft-hpc/weft/collective"
)

func ringOfSends(p collective.Peer) error {
	buf := make([]byte, 8)
	if err := p.Send(buf, (p.Rank()+1)%p.Size()); err != nil {
		return err
	}
	return p.Recv(buf, (p.Rank()-1+p.Size())%p.Size())
}

func TestMemFindsSendDeadlock(t *testing.T) {
	for _, n := range []int{2, 3, 7} {
		for rank, err := range MemWorld(7)(n, ringOfSends) {
			if !errors.Is(err, ErrDeadlock) {
				t.Errorf("%d ranks, 8 bytes with eager 7: rank %d: %v, want a deadlock", n, rank, err)
			}
		}
		for rank, err := range MemWorld(8)(n, ringOfSends) {
			if err != nil {
				t.Errorf("%d ranks, 8 bytes with eager 8: rank %d: %v", n, rank, err)
			}
		}
	}
}

func TestMemFindsWaitForFinishedRank(t *testing.T) {
	errs := MemWorld(0)(3, func(p collective.Peer) error {
		if p.Rank() == 1 {
			return p.Recv(make([]byte, 5), 2)
		}
		return nil
	})
	if !errors.Is(errs[1], ErrDeadlock) || !strings.Contains(errs[1].Error(), "rank 1 receives 5 bytes from 2") {
		t.Errorf("got %v", errs[1])
	}
}

func TestMemRefusesOtherLength(t *testing.T) {
	for _, eager := range []int{-1, 100} {
		errs := MemWorld(eager)(2, func(p collective.Peer) error {
			if p.Rank() == 0 {
				return p.Send(make([]byte, 4), 1)
			}
			return p.Recv(make([]byte, 5), 0)
		})
		if errs[1] == nil {
			t.Errorf("eager %d: 4 bytes were received as 5", eager)
		}
	}
}

func TestMemReportsUnreceivedMessage(t *testing.T) {
	errs := MemWorld(8)(2, func(p collective.Peer) error {
		if p.Rank() == 0 {
			return p.Send(nil, 1)
		}
		return nil
	})
	if errs[0] == nil || !strings.Contains(errs[0].Error(), "never received") {
		t.Errorf("got %v", errs[0])
	}
}

func TestMemErrorEndsOthers(t *testing.T) {
	boom := errors.New("boom")
	for rank, err := range MemWorld(-1)(4, func(p collective.Peer) error {
		if p.Rank() == 3 {
			return boom
		}
		return p.Recv(nil, 3)
	}) {
		if err != boom {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// The probe must find what the suite relies on it to find.
func TestProbeFindsBrokenRules(t *testing.T) {
	boom := errors.New("boom")
	for _, tc := range []struct {
		name, want string
		alg        func(p collective.Peer) error
	}{
		{"call after error", "after the error", func(p collective.Peer) error {
			if err := p.Send(nil, 1-p.Rank()); err != nil {
				return errors.Join(err, p.Send(nil, 1-p.Rank()))
			}
			return nil
		}},
		{"error swallowed", "returned <nil> after", func(p collective.Peer) error {
			_ = p.Send(nil, 1-p.Rank())
			return nil
		}},
		{"self send", "Send with rank 0", func(p collective.Peer) error { return p.Send(nil, p.Rank()) }},
		{"scratch grows", "after 1 bytes", func(p collective.Peer) error {
			p.Scratch(0, 1)
			p.Scratch(0, 2)
			return nil
		}},
		{"scratch overrun", "behind", func(p collective.Peer) error {
			s := p.(*probe)
			s.Scratch(0, 1)
			s.scratch[0].all[1] = 0
			return nil
		}},
	} {
		ps := newProbes(2)
		ps.failRank, ps.failCall, ps.fault = 0, 1, boom
		p := ps.wrap(NewMem(2, 0).Peer(0))
		if err := p.verdict(tc.alg(p)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.want)
		}
	}
}

func TestCheckFindsDamage(t *testing.T) {
	c := trial{kind: collective.KindGather, ranks: 2, count: 3, op: sumUint8}
	d := c.data()
	for name, damage := range map[string]func(r rankCall){
		"send changed":  func(r rankCall) { r.send.buf[1]++ },
		"wrong result":  func(r rankCall) { r.recv.buf[5]++ },
		"before recv":   func(r rankCall) { r.recv.all[guard-1] = 0 },
		"after recv":    func(r rankCall) { r.recv.all[guard+6] = 0 },
		"after send":    func(r rankCall) { r.send.all[guard+3] = 0 },
		"no damage (1)": nil,
	} {
		r := c.prepare(d, 0)
		copy(r.recv.buf, append(bytes.Clone(d.vectors[0]), d.vectors[1]...))
		if damage != nil {
			damage(r)
		}
		if err := c.check(r); (err != nil) != (damage != nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
