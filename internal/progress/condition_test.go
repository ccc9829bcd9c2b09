package progress

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/proto"
	"github.com/weft-hpc/weft/internal/transport/sim"
	"github.com/weft-hpc/weft/internal/wire"
)

// flag is a condition that a peer meets.
type flag struct {
	set     atomic.Bool
	missing int
	late    bool // it is set when somebody asks who is missing
}

func (f *flag) Met() bool { return f.set.Load() }

func (f *flag) Missing() int {
	if f.late {
		f.set.Store(true)
	}
	return f.missing
}

// A wait for a condition ends when it is met, and with the reason when it cannot be any more.
func TestUntil(t *testing.T) {
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			ranks, fabric := world(t, 3, policy, sim.Config{})
			r := ranks[0]
			seq := uint32(0)
			until := func(ctx context.Context, f *flag) (begun bool, err error) {
				seq++
				begun, err = r.Until(ctx, r.comm, &wire.Signature{Op: 1, Seq: seq}, f)
				if begun {
					r.EndCollective(r.comm, seq, nil)
				}
				return begun, err
			}
			met := new(flag)
			met.set.Store(true)
			if begun, err := until(t.Context(), met); begun || err != nil {
				t.Errorf("met before: announced %t, %v", begun, err)
			}
			soon := new(flag)
			time.AfterFunc(time.Millisecond, func() { soon.set.Store(true) })
			if _, err := until(t.Context(), soon); err != nil {
				t.Errorf("met soon: %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if begun, err := until(ctx, &flag{missing: 1}); !begun || !errors.Is(err, proto.ErrCanceled) {
				t.Errorf("a context that ends: announced %t, %v", begun, err)
			}
			fabric.Kill(2)
			if _, err := until(t.Context(), &flag{missing: 2}); !errors.Is(err, proto.ErrPeerLost) {
				t.Errorf("the rank that is missing is gone: %v", err)
			}
			if _, err := until(t.Context(), &flag{missing: 2, late: true}); err != nil {
				t.Errorf("its part came before its end: %v", err)
			}
			if err := r.Usable(r.comm); err != nil {
				t.Errorf("usable: %v", err)
			}
			ranks[1].Do(func(c *proto.Core) { c.Revoke(ranks[1].comm, errors.New("no more"), "no more") })
			if _, err := until(t.Context(), &flag{missing: 1}); !errors.Is(err, proto.ErrRevoked) {
				t.Errorf("revoked by rank 1: %v", err)
			}
			if err := r.Usable(r.comm); !errors.Is(err, proto.ErrRevoked) {
				t.Errorf("usable after that: %v", err)
			}
			last := &flag{missing: 1}
			time.AfterFunc(time.Millisecond, func() { last.set.Store(true) })
			if err := r.UntilLast(r.comm, last); err != nil || !last.Met() {
				t.Errorf("the last wait on a revoked communicator: met %t, %v", last.Met(), err)
			}
			if err := r.UntilLast(r.comm, &flag{missing: 2}); !errors.Is(err, proto.ErrPeerLost) {
				t.Errorf("the last wait for a dead rank: %v", err)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if err := r.UntilLast(r.comm, &flag{missing: 1}); !errors.Is(err, ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
			if err := r.Usable(r.comm); !errors.Is(err, ErrClosed) {
				t.Errorf("usable after Close: %v", err)
			}
		})
	}
}
