package weft_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/weft-hpc/weft"
	"github.com/weft-hpc/weft/wefttest"
)

// A call like one that was right is not checked again; what differs from it is.
func TestCallsAfterTheirLike(t *testing.T) {
	sum := weft.Sum[int64]()
	memory := make([][]int64, 2) // of each rank
	for i := range memory {
		memory[i] = make([]int64, 16)
	}
	for name, test := range map[string]struct {
		right, wrong func(ctx context.Context, c *weft.Comm, s *weft.Scope, m []int64) error
		want         error
	}{
		"overlap": {
			func(ctx context.Context, c *weft.Comm, _ *weft.Scope, m []int64) error {
				return weft.Allreduce(ctx, c, m[:2], m[8:10], sum)
			},
			func(ctx context.Context, c *weft.Comm, _ *weft.Scope, m []int64) error {
				return weft.Allreduce(ctx, c, m[:2], m[1:3], sum)
			}, weft.ErrOverlap},
		"overlap after in place": {
			func(ctx context.Context, c *weft.Comm, _ *weft.Scope, m []int64) error {
				return weft.Allgather(ctx, c, m[2*c.Rank():2*c.Rank()+2], m[:4])
			},
			func(ctx context.Context, c *weft.Comm, _ *weft.Scope, m []int64) error {
				return weft.Allgather(ctx, c, m[2-2*c.Rank():4-2*c.Rank()], m[:4])
			}, weft.ErrOverlap},
		"nonblocking overlap": {
			func(_ context.Context, c *weft.Comm, s *weft.Scope, m []int64) error {
				weft.Iscan(s, c, m[:2], m[2:4], sum)
				return s.Wait()
			},
			func(_ context.Context, c *weft.Comm, s *weft.Scope, m []int64) error {
				weft.Iscan(s, c, m[1:3], m[2:4], sum)
				return s.Wait()
			}, weft.ErrOverlap},
		"length": {
			func(ctx context.Context, c *weft.Comm, _ *weft.Scope, m []int64) error {
				return weft.Alltoall(ctx, c, m[:2], m[2:4])
			},
			func(ctx context.Context, c *weft.Comm, _ *weft.Scope, m []int64) error {
				return weft.Alltoall(ctx, c, m[:2], m[2:6])
			}, weft.ErrCount},
		"root": {
			func(ctx context.Context, c *weft.Comm, _ *weft.Scope, m []int64) error {
				return weft.Bcast(ctx, c, m[:1], 1)
			},
			func(ctx context.Context, c *weft.Comm, _ *weft.Scope, m []int64) error {
				return weft.Bcast(ctx, c, m[:1], 1+1<<32)
			}, weft.ErrRank},
		"no operator": {
			func(ctx context.Context, c *weft.Comm, _ *weft.Scope, m []int64) error {
				return weft.Reduce(ctx, c, m[:1], m[1:2], sum, 0)
			},
			func(ctx context.Context, c *weft.Comm, _ *weft.Scope, m []int64) error {
				return weft.Reduce(ctx, c, m[:1], m[1:2], weft.Op[int64]{}, 0)
			}, weft.ErrArgument},
		"type": {
			func(ctx context.Context, c *weft.Comm, _ *weft.Scope, m []int64) error {
				return weft.Allgather(ctx, c, m[:1], m[2:4])
			},
			func(ctx context.Context, c *weft.Comm, _ *weft.Scope, m []int64) error {
				if c.Rank() == 0 {
					return weft.Allgather(ctx, c, m[:1], m[2:4])
				}
				return weft.Allgather(ctx, c, make([]float64, 1), make([]float64, 2))
			}, weft.ErrMismatch},
		"operation": {
			func(ctx context.Context, c *weft.Comm, _ *weft.Scope, m []int64) error {
				return errors.Join(weft.Allreduce(ctx, c, m[:1], m[1:2], sum), weft.Barrier(ctx, c))
			},
			func(ctx context.Context, c *weft.Comm, _ *weft.Scope, m []int64) error {
				if c.Rank() == 0 {
					return weft.Barrier(ctx, c)
				}
				return weft.Allreduce(ctx, c, m[:1], m[1:2], sum)
			}, weft.ErrMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			wefttest.Run(t, 2, func(ctx context.Context, world *weft.Comm) error {
				c, err := world.Dup(ctx, name)
				if err != nil {
					return err
				}
				s, m := c.Scope(ctx), memory[c.Rank()]
				for range 3 {
					if err := test.right(ctx, c, s, m); err != nil {
						return fmt.Errorf("the right one: %w", err)
					}
				}
				if err := weft.Barrier(ctx, c); err != nil { // so that no rank hears of the other's error too early
					return err
				}
				// One rank may hear of the other's error before it finds its own.
				if err := test.wrong(ctx, c, s, m); !errors.Is(err, test.want) && !errors.Is(err, weft.ErrRevoked) {
					return fmt.Errorf("%v instead of %v", err, test.want)
				}
				if err := test.right(ctx, c, s, m); !errors.Is(err, weft.ErrRevoked) && !errors.Is(err, test.want) {
					return fmt.Errorf("after that: %w", err)
				}
				return nil
			})
		})
	}
}

// Buffers and operators of calls that are alike may be others each time.
func TestLikeCallsOfOtherBuffers(t *testing.T) {
	wefttest.Run(t, 2, func(ctx context.Context, c *weft.Comm) error {
		s := c.Scope(ctx)
		for i := range 100 {
			factor := i + 1
			op := weft.OpFunc("scaled sum", true, func(a, b int) int { return (a + b) * factor })
			send, recv := []int{c.Rank(), i}, make([]int, 2)
			if err := weft.Allreduce(ctx, c, send, recv, op); err != nil {
				return err
			}
			if want := []int{factor, 2 * i * factor}; !slices.Equal(recv, want) {
				return fmt.Errorf("call %d: %v instead of %v", i, recv, want)
			}
			all := make([]int, 2*c.Size())
			if i%2 == 0 {
				copy(all[2*c.Rank():], send)
				send = all[2*c.Rank():][:2]
			}
			weft.Iallgather(s, c, send, all)
			weft.Ibarrier(s, c)
			if err := s.Wait(); err != nil {
				return err
			}
			if want := []int{0, i, 1, i}; !slices.Equal(all, want) {
				return fmt.Errorf("call %d: %v instead of %v", i, all, want)
			}
		}
		return nil
	})
}
