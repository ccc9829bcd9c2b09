package weft_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/weft-hpc/weft"
	"github.com/weft-hpc/weft/wefttest"
)

// The algorithms have a suite of their own; this is about the way from the
// typed call to them: roots, in place, types, lengths.
func TestCollectives(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5, 7, 8, 13} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			wefttest.Run(t, n, func(ctx context.Context, c *weft.Comm) error {
				for _, count := range []int{0, 1, 3, 1000, 20000} {
					for root := range min(n, 3) {
						if err := collectives(ctx, c, count, root); err != nil {
							return fmt.Errorf("count %d, root %d: %w", count, root, err)
						}
					}
				}
				return weft.Barrier(ctx, c)
			})
		})
	}
}

func collectives(ctx context.Context, c *weft.Comm, count, root int) error {
	n, me := c.Size(), c.Rank()
	ramp := func(rank int) []float64 {
		v := make([]float64, count)
		for i := range v {
			v[i] = float64(rank*100000 + i)
		}
		return v
	}
	total := make([]float64, count)
	all := []float64{}
	for r := range n {
		for i, x := range ramp(r) {
			total[i] += x
		}
		all = append(all, ramp(r)...)
	}
	same := func(what string, got, want []float64) error {
		for i := range want {
			if got[i] != want[i] {
				return fmt.Errorf("%s: element %d is %v, want %v", what, i, got[i], want[i])
			}
		}
		return nil
	}
	buf := ramp(me)
	if err := weft.Bcast(ctx, c, buf, root); err != nil {
		return err
	}
	if err := same("Bcast", buf, ramp(root)); err != nil {
		return err
	}
	recv := make([]float64, count)
	if err := weft.Allreduce(ctx, c, ramp(me), recv, weft.Sum[float64]()); err != nil {
		return err
	}
	if err := same("Allreduce", recv, total); err != nil {
		return err
	}
	buf = ramp(me)
	if err := weft.Allreduce(ctx, c, buf, buf, weft.Max[float64]()); err != nil {
		return err
	}
	if err := same("Allreduce in place", buf, ramp(n-1)); err != nil {
		return err
	}
	recv = nil
	if me == root {
		recv = make([]float64, count)
	}
	if err := weft.Reduce(ctx, c, ramp(me), recv, weft.Sum[float64](), root); err != nil {
		return err
	}
	if me == root {
		if err := same("Reduce", recv, total); err != nil {
			return err
		}
		recv = make([]float64, n*count)
	}
	if err := weft.Gather(ctx, c, ramp(me), recv, root); err != nil {
		return err
	}
	if me == root {
		if err := same("Gather", recv, all); err != nil {
			return err
		}
	}
	part := make([]float64, count)
	if err := weft.Scatter(ctx, c, recv, part, root); err != nil {
		return err
	}
	if err := same("Scatter", part, ramp(me)); err != nil {
		return err
	}
	whole := make([]float64, n*count)
	copy(whole[me*count:], ramp(me))
	if err := weft.Allgather(ctx, c, whole[me*count:(me+1)*count], whole); err != nil {
		return err
	}
	return same("Allgather in place", whole, all)
}

func TestOperators(t *testing.T) {
	type celsius float32
	wefttest.Run(t, 3, func(ctx context.Context, c *weft.Comm) error {
		r := c.Rank()
		var errs []error
		expect := func(name string, ok bool, err error) {
			if err != nil || !ok {
				errs = append(errs, fmt.Errorf("%s: %v %v", name, ok, err))
			}
		}
		i, err := weft.AllreduceValue(ctx, c, r+2, weft.Prod[int]())
		expect("prod", i == 24, err)
		u, err := weft.AllreduceValue(ctx, c, uint8(1)<<r, weft.BitOr[uint8]())
		expect("or", u == 7, err)
		u, err = weft.AllreduceValue(ctx, c, uint8(3)<<r, weft.BitXor[uint8]())
		expect("xor", u == 3^6^12, err)
		u, err = weft.AllreduceValue(ctx, c, uint8(15)>>r, weft.BitAnd[uint8]())
		expect("and", u == 3, err)
		f, err := weft.AllreduceValue(ctx, c, []float64{1, math.NaN(), 2}[r], weft.Min[float64]())
		expect("min with NaN", math.IsNaN(f), err)
		f, err = weft.AllreduceValue(ctx, c, []float64{0, math.Copysign(0, -1), 0}[r], weft.Min[float64]())
		expect("min of zeros", math.Signbit(f), err)
		d, err := weft.AllreduceValue(ctx, c, celsius(r), weft.Sum[celsius]())
		expect("named type", d == 3, err)
		z, err := weft.AllreduceValue(ctx, c, complex(1, float64(r)), weft.Prod[complex128]())
		expect("complex", z == complex(1, 0)*complex(1, 1)*complex(1, 2), err)
		type line struct{ A, B int64 } // x -> A*x+B: composition does not commute
		g, err := weft.AllreduceValue(ctx, c, line{int64(r + 2), int64(r)}, weft.OpFunc("compose", false,
			func(f, g line) line { return line{f.A * g.A, f.A*g.B + f.B} }))
		expect("compose", g == line{24, 0 + 2*1 + 2*3*2}, err)
		return errors.Join(errs...)
	})
}

// A rank that calls another collective than the others, or the same one with
// other arguments, is named to every rank within bounded time.
func TestMismatch(t *testing.T) {
	buf := func(n int) []float64 { return make([]float64, n) }
	for name, call := range map[string]func(ctx context.Context, c *weft.Comm, odd bool) error{
		"operation": func(ctx context.Context, c *weft.Comm, odd bool) error {
			if odd {
				return weft.Barrier(ctx, c)
			}
			return weft.Bcast(ctx, c, buf(1), 0)
		},
		"root": func(ctx context.Context, c *weft.Comm, odd bool) error {
			root := 0
			if odd {
				root = 1
			}
			return weft.Bcast(ctx, c, buf(10), root)
		},
		"count": func(ctx context.Context, c *weft.Comm, odd bool) error {
			n := 1000
			if odd {
				n = 1001
			}
			return weft.Allreduce(ctx, c, buf(n), buf(n), weft.Sum[float64]())
		},
		"large count": func(ctx context.Context, c *weft.Comm, odd bool) error {
			n := 200000
			if odd {
				n++
			}
			return weft.Allreduce(ctx, c, buf(n), buf(n), weft.Sum[float64]())
		},
		"operator": func(ctx context.Context, c *weft.Comm, odd bool) error {
			op := weft.Sum[float64]()
			if odd {
				op = weft.Max[float64]()
			}
			return weft.Allreduce(ctx, c, buf(3), buf(3), op)
		},
		"type": func(ctx context.Context, c *weft.Comm, odd bool) error {
			if odd {
				return weft.Bcast(ctx, c, make([]int64, 5), 0)
			}
			return weft.Bcast(ctx, c, buf(5), 0)
		},
		// In the next ones those who disagree wait for each other, and send each other nothing.
		"root of a gather": func(ctx context.Context, c *weft.Comm, odd bool) error {
			root := 0
			if odd {
				root = c.Size() - 1
			}
			return weft.Gather(ctx, c, buf(10), buf(10*c.Size()), root)
		},
		"root that waits in a barrier": func(ctx context.Context, c *weft.Comm, odd bool) error {
			if odd {
				return weft.Bcast(ctx, c, buf(1), 0)
			}
			return weft.Barrier(ctx, c)
		},
		"nonblocking": func(ctx context.Context, c *weft.Comm, odd bool) error {
			s := c.Scope(ctx)
			if odd {
				weft.Iscatter(s, c, nil, buf(1), 0)
			} else {
				weft.Igather(s, c, buf(1), buf(c.Size()), 0)
			}
			return s.Wait()
		},
		"root that went on": func(ctx context.Context, c *weft.Comm, odd bool) error {
			if odd {
				return weft.Scatterv(ctx, c, nil, buf(1), weft.Counts{}, 0)
			}
			return weft.Bcast(ctx, c, buf(1), 0)
		},
		"messages and none": func(ctx context.Context, c *weft.Comm, odd bool) error {
			if odd {
				return weft.Scatterv(ctx, c, nil, buf(1), weft.Counts{}, 0)
			}
			return weft.Allreduce(ctx, c, buf(1), buf(1), weft.Sum[float64]())
		},
	} {
		for _, n := range []int{2, 3, 5, 8, -3, -5} {
			var via []weft.Option
			if n < 0 {
				n, via = -n, append(via, weft.WithMessages())
			}
			t.Run(fmt.Sprintf("%s/%d/messages=%t", name, n, via != nil), func(t *testing.T) {
				start := time.Now()
				results := make([]error, n)
				err := wefttest.Try(t, n, func(ctx context.Context, c *weft.Comm) error {
					results[c.Rank()] = call(ctx, c, c.Rank() == n-1)
					// A rank may be done before the others disagree; the next one tells.
					if results[c.Rank()] == nil {
						results[c.Rank()] = weft.Barrier(ctx, c)
					}
					return nil
				}, via...)
				if err != nil {
					t.Fatal(err)
				}
				for r, err := range results {
					if !errors.Is(err, weft.ErrMismatch) {
						t.Errorf("rank %d: %v, want ErrMismatch", r, err)
					}
				}
				if d := time.Since(start); d > 10*time.Second {
					t.Errorf("took %v", d)
				}
			})
		}
	}
}

func TestConcurrentCollectives(t *testing.T) {
	wefttest.Run(t, 2, func(ctx context.Context, c *weft.Comm) error {
		if c.Rank() == 1 {
			if _, err := weft.Recv(ctx, c, make([]int, 1), 0, 0); err != nil {
				return err
			}
			return weft.Barrier(ctx, c)
		}
		// One of the two is first and waits for rank 1, which waits to be told to
		// join; so the other one meets it.
		results := make(chan error)
		for range 2 {
			go func() { results <- weft.Barrier(ctx, c) }()
		}
		second := <-results
		err := weft.Send(ctx, c, []int{1}, 1, 0)
		return errors.Join(err, <-results, expectConcurrent(second))
	})
}

// A nonblocking one does not start in the middle of a blocking one either.
func TestNonblockingInsideBlocking(t *testing.T) {
	wefttest.Run(t, 2, func(ctx context.Context, c *weft.Comm) error {
		s := c.Scope(ctx)
		var inside error
		op := weft.OpFunc("nested", true, func(a, b int) int {
			if inside == nil {
				weft.Ibarrier(s, c)
				inside = s.Wait()
			}
			return a + b
		})
		sum, err := weft.AllreduceValue(ctx, c, 1, op)
		if err != nil || sum != 2 {
			return fmt.Errorf("the blocking one: %d, %w", sum, err)
		}
		if err := weft.Barrier(ctx, c); err != nil {
			return err
		}
		return expectConcurrent(inside)
	})
}

func expectConcurrent(err error) error {
	if !errors.Is(err, weft.ErrConcurrent) || !strings.Contains(err.Error(), "Dup") {
		return fmt.Errorf("second collective: %v, want ErrConcurrent", err)
	}
	return nil
}

func TestCancelledCollectiveRevokes(t *testing.T) {
	wefttest.Run(t, 3, func(ctx context.Context, c *weft.Comm) error {
		d, err := c.Dup(ctx, "d")
		if err != nil {
			return err
		}
		if c.Rank() == 0 { // never joins the barrier, but finds the communicator revoked
			_, err := weft.Recv(ctx, d, make([]int, 1), 1, 0)
			if !errors.Is(err, weft.ErrRevoked) {
				return fmt.Errorf("rank 0: %v", err)
			}
			return nil
		}
		short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
		defer stop()
		err = weft.Barrier(short, d)
		if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, weft.ErrRevoked) {
			return fmt.Errorf("rank %d: %v", c.Rank(), err)
		}
		return nil
	})
}

func TestKilledRank(t *testing.T) {
	for _, n := range []int{2, 3, 8} {
		kill := make(chan func(int), 1)
		results := make([]error, n)
		err := wefttest.Try(t, n, func(ctx context.Context, c *weft.Comm) error {
			if c.Rank() == 1 {
				k := <-kill
				if err := weft.Send(ctx, c, make([]byte, 1), 0, 0); err != nil {
					return err
				}
				k(1)
				return nil
			}
			if c.Rank() == 0 {
				if _, err := weft.Recv(ctx, c, make([]byte, 1), weft.AnySource, 0); err != nil && !errors.Is(err, weft.ErrRankFailed) {
					return err
				}
			}
			results[c.Rank()] = weft.Barrier(ctx, c)
			return nil
		}, weft.WithKill(func(k func(int)) { kill <- k }))
		if err != nil && !errors.Is(err, weft.ErrRankFailed) {
			t.Fatal(err)
		}
		for r, err := range results {
			if r != 1 && !errors.Is(err, weft.ErrRankFailed) && !errors.Is(err, weft.ErrRevoked) {
				t.Errorf("%d ranks: rank %d: %v", n, r, err)
			}
		}
	}
}
