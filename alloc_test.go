package weft_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/weft-hpc/weft"
)

// allocations runs round on two ranks a number of times and returns the
// allocations for each round, of both ranks together.
func allocations(t *testing.T, round func(ctx context.Context, c *weft.Comm) error) (each float64) {
	t.Helper()
	const rounds = 2000
	err := weft.Local(t.Context(), 2, func(ctx context.Context, c *weft.Comm) error {
		for range 200 { // pools fill, lanes open
			if err := round(ctx, c); err != nil {
				return err
			}
		}
		if err := weft.Barrier(ctx, c); err != nil {
			return err
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range rounds {
			if err := round(ctx, c); err != nil {
				return err
			}
		}
		runtime.ReadMemStats(&after)
		if c.Rank() == 0 {
			each = float64(after.Mallocs-before.Mallocs) / rounds
		}
		return weft.Barrier(ctx, c)
	})
	if err != nil {
		t.Fatal(err)
	}
	return each
}

func TestSmallOperationsDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector allocates; the same test runs without it")
		return
	}
	// The buffers of each rank; a closure below may be called by both.
	type buffers struct{ a, b []float64 }
	var bufs [2]buffers
	for i := range bufs {
		bufs[i] = buffers{make([]float64, 4), make([]float64, 4)}
	}
	for name, round := range map[string]func(ctx context.Context, c *weft.Comm) error{
		"Send and Recv of 8 bytes": func(ctx context.Context, c *weft.Comm) error {
			b := &bufs[c.Rank()]
			if c.Rank() == 0 {
				if err := weft.Send(ctx, c, b.a[:1], 1, 0); err != nil {
					return err
				}
				_, err := weft.Recv(ctx, c, b.b[:1], 1, 0)
				return err
			}
			if _, err := weft.Recv(ctx, c, b.b[:1], 0, 0); err != nil {
				return err
			}
			return weft.Send(ctx, c, b.a[:1], 0, 0)
		},
		"Sendrecv": func(ctx context.Context, c *weft.Comm) error {
			b := &bufs[c.Rank()]
			_, err := weft.Sendrecv(ctx, c, b.a, 1-c.Rank(), 0, b.b, weft.AnySource, weft.AnyTag)
			return err
		},
		"Allreduce of 8 bytes": func(ctx context.Context, c *weft.Comm) error {
			b := &bufs[c.Rank()]
			return weft.Allreduce(ctx, c, b.a[:1], b.b[:1], weft.Sum[float64]())
		},
		"Allreduce by SumExact": func(ctx context.Context, c *weft.Comm) error {
			b := &bufs[c.Rank()]
			return weft.Allreduce(ctx, c, b.a[:1], b.b[:1], weft.SumExact[float64]())
		},
		"ExactTotal": func(ctx context.Context, c *weft.Comm) error {
			_, err := weft.ExactTotal(ctx, c, bufs[c.Rank()].a)
			return err
		},
		"ExactDot": func(ctx context.Context, c *weft.Comm) error {
			_, err := weft.ExactDot(ctx, c, bufs[c.Rank()].a, bufs[c.Rank()].b)
			return err
		},
		"Barrier": func(ctx context.Context, c *weft.Comm) error {
			return weft.Barrier(ctx, c)
		},
	} {
		// Timers and the runtime's own work allocate now and then.
		if n := allocations(t, round); n > 0.05 {
			t.Errorf("%s: %v allocations for each round", name, n)
		}
	}
}

func TestAlloc(t *testing.T) {
	err := weft.Local(t.Context(), 1, func(ctx context.Context, c *weft.Comm) error {
		b, err := weft.Alloc[float32](c.World(), 1000)
		if err != nil {
			return err
		}
		if len(b.Slice()) != 1000 {
			return fmt.Errorf("%d elements", len(b.Slice()))
		}
		if err := b.Free(); err != nil {
			return err
		}
		if err := b.Free(); !errors.Is(err, weft.ErrArgument) {
			return fmt.Errorf("second Free: %v", err)
		}
		if _, err := weft.Alloc[float32](c.World(), -1); !errors.Is(err, weft.ErrCount) {
			return fmt.Errorf("negative length: %v", err)
		}
		if _, err := weft.Alloc[float64](c.World(), 1<<61); !errors.Is(err, weft.ErrMemory) {
			return fmt.Errorf("2^61 elements: %v", err)
		}
		if _, err := weft.Alloc[string](c.World(), 1); !errors.Is(err, weft.ErrElemType) {
			return fmt.Errorf("strings: %v", err)
		}
		empty, err := weft.Alloc[float32](c.World(), 0)
		if err != nil || len(empty.Slice()) != 0 {
			return fmt.Errorf("no elements: %v", err)
		}
		return empty.Free()
	})
	if err != nil {
		t.Fatal(err)
	}
}
