package weft_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weft-hpc/weft"
	"github.com/weft-hpc/weft/wefttest"
)

func TestSplitAndDup(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 7, 13} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			wefttest.Run(t, n, func(ctx context.Context, c *weft.Comm) error {
				dup, err := c.Dup(ctx, "dup")
				if err != nil {
					return err
				}
				// By parity, in reverse order.
				half, err := dup.Split(ctx, c.Rank()%2, -c.Rank())
				if err != nil {
					return err
				}
				sum, err := weft.AllreduceValue(ctx, half, c.Rank(), weft.Sum[int]())
				if err != nil {
					return err
				}
				want, size := 0, 0
				for r := c.Rank() % 2; r < n; r += 2 {
					want += r
					size++
				}
				if sum != want || half.Size() != size || half.Rank() != (n-1-c.Rank())/2 {
					return fmt.Errorf("rank %d: sum %d want %d, rank %d of %d", c.Rank(), sum, want, half.Rank(), half.Size())
				}
				none, err := dup.Split(ctx, weft.Undefined, 0)
				if err != nil || none != nil {
					return fmt.Errorf("undefined color: %v, %v", none, err)
				}
				node, err := dup.SplitNode(ctx)
				if err != nil || node.Size() != n {
					return fmt.Errorf("node: %v, %v", node, err)
				}
				return errors.Join(node.Close(ctx), half.Close(ctx), dup.Close(ctx))
			})
		})
	}
}

func TestGroup(t *testing.T) {
	wefttest.Run(t, 4, func(ctx context.Context, c *weft.Comm) error {
		g, err := c.Group(ctx, []int{3, 1})
		if err != nil {
			return err
		}
		if c.Rank()%2 == 0 {
			if g != nil {
				return errors.New("a rank outside the group got a communicator")
			}
			g, err = c.Group(ctx, []int{1, 3})
			if g != nil {
				return errors.New("a rank outside the group got a communicator")
			}
			return err
		}
		if want := map[int]int{3: 0, 1: 1}[c.Rank()]; g.Rank() != want || g.Size() != 2 {
			return fmt.Errorf("rank %d of %d", g.Rank(), g.Size())
		}
		buf := []int{c.Rank()}
		if err := weft.Bcast(ctx, g, buf, 0); err != nil || buf[0] != 3 {
			return fmt.Errorf("bcast: %v, %v", buf, err)
		}
		if err := g.Close(ctx); err != nil {
			return err
		}
		pair, err := c.Group(ctx, []int{1, 3})
		if err != nil {
			return err
		}
		if _, err := pair.Group(ctx, []int{0, 0}); !errors.Is(err, weft.ErrRank) && !errors.Is(err, weft.ErrRevoked) {
			return fmt.Errorf("a rank twice: %v", err)
		}
		return nil
	})
}

// Messages of one communicator are never received on another, also when the
// context id was used before.
func TestCommsAreSeparate(t *testing.T) {
	wefttest.Run(t, 2, func(ctx context.Context, c *weft.Comm) error {
		other := 1 - c.Rank()
		for i := range 20 {
			a, err := c.Dup(ctx, "a")
			if err != nil {
				return err
			}
			b, err := c.Dup(ctx, "b")
			if err != nil {
				return err
			}
			if err := weft.Send(ctx, a, []int{-i}, other, 0); err != nil { // received by nobody
				return err
			}
			s := c.Scope(ctx)
			weft.Isend(s, b, []int{i}, other, 0)
			got := make([]int, 1)
			if _, err := weft.Recv(ctx, b, got, weft.AnySource, weft.AnyTag); err != nil || got[0] != i {
				return fmt.Errorf("round %d: %v, %v", i, got, err)
			}
			if err := errors.Join(s.Wait(), b.Close(ctx), a.Close(ctx)); err != nil {
				return err
			}
		}
		return nil
	})
}

// So often that generations of ids wrap.
func TestContextIDsAreRecycled(t *testing.T) {
	cycles := 100_000
	if raceEnabled {
		cycles = 3000 // 100,000 without it
	}
	err := weft.Local(t.Context(), 2, func(ctx context.Context, c *weft.Comm) error {
		for i := range cycles {
			d, err := c.Dup(ctx, "d")
			if err != nil {
				return fmt.Errorf("cycle %d: %w", i, err)
			}
			if err := d.Close(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDupFromSeveralGoroutines(t *testing.T) {
	wefttest.Run(t, 3, func(ctx context.Context, c *weft.Comm) error {
		const parents = 4
		var comms [parents]*weft.Comm
		for i := range comms {
			var err error
			if comms[i], err = c.Dup(ctx, fmt.Sprint("parent ", i)); err != nil {
				return err
			}
		}
		errs := make(chan error, parents)
		for i := range comms {
			go func() {
				errs <- func() error {
					for range 5 {
						d, err := comms[i].Dup(ctx, "child")
						if err != nil {
							return err
						}
						sum, err := weft.AllreduceValue(ctx, d, i, weft.Sum[int]())
						if err != nil || sum != 3*i {
							return fmt.Errorf("sum %d, %v", sum, err)
						}
						if err := d.Close(ctx); err != nil {
							return err
						}
					}
					return nil
				}()
			}()
		}
		for range comms {
			if err := <-errs; err != nil {
				return err
			}
		}
		return nil
	})
}

func TestCloseWithPendingReceive(t *testing.T) {
	wefttest.Run(t, 1, func(ctx context.Context, c *weft.Comm) error {
		d, err := c.Dup(ctx, "d")
		if err != nil {
			return err
		}
		s := c.Scope(ctx)
		r := weft.Irecv(s, d, make([]int, 1), 0, 0)
		if err := d.Close(ctx); !errors.Is(err, weft.ErrPending) {
			return fmt.Errorf("close: %v", err)
		}
		r.Cancel()
		if err := d.Close(ctx); err != nil {
			return err
		}
		if err := c.Close(ctx); !errors.Is(err, weft.ErrArgument) {
			return fmt.Errorf("close of the world: %v", err)
		}
		defer func() {
			if p := fmt.Sprint(recover()); !strings.Contains(p, "closed") {
				panic("use of a closed communicator: " + p)
			}
		}()
		_ = weft.Send(ctx, d, []int{1}, 0, 0)
		return errors.New("a closed communicator could be used")
	})
}

// With all context ids in use, every rank gets an error that says so, and a
// closed communicator makes room for another.
func TestContextIDLimit(t *testing.T) {
	if raceEnabled {
		t.Log("too slow under the race detector; the same test runs without it")
		return
	}
	const limit = 1 << 15 // one of them is the world's
	err := weft.Local(t.Context(), 2, func(ctx context.Context, c *weft.Comm) error {
		comms := make([]*weft.Comm, 0, limit)
		for {
			d, err := c.Dup(ctx, "d")
			if err != nil {
				if !errors.Is(err, weft.ErrTooManyComms) || len(comms) != limit-1 {
					return fmt.Errorf("with %d open: %w", len(comms), err)
				}
				break
			}
			comms = append(comms, d)
		}
		last := comms[len(comms)/2]
		if err := last.Close(ctx); err != nil {
			return err
		}
		d, err := c.Dup(ctx, "again")
		if err != nil {
			return err
		}
		sum, err := weft.AllreduceValue(ctx, d, 1, weft.Sum[int]())
		if err != nil || sum != 2 {
			return fmt.Errorf("sum %d, %v", sum, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
