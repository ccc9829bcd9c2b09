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

// Collectives of ranks on several hosts, where those of each host map each other's memory.

// onHosts are options for a world of such ranks.
func onHosts(nodes ...int) []weft.Option {
	return []weft.Option{weft.WithNodes(nodes...), weft.WithFaults(weft.Faults{})}
}

func expectExplained(e weft.Explanation, messages int) error {
	if e.Messages != messages || !strings.Contains(e.Why, "shared memory inside each host") || e.Predicted <= 0 {
		return fmt.Errorf("%d messages, want %d: %+v", e.Messages, messages, e)
	}
	return nil
}

// What a plan says that it sends is what goes between hosts, and short data go by leaders by themselves.
func TestPlanExplainsHosts(t *testing.T) {
	wefttest.Run(t, 6, func(ctx context.Context, c *weft.Comm) error {
		v := make([]float64, 5)
		all := make([]float64, 30)
		barrier, err1 := weft.PlanBarrier(c)
		allreduce, err2 := weft.PlanAllreduce(c, v, v, weft.Sum[float64]())
		allgather, err3 := weft.PlanAllgather(c, v, all)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		sent := 0
		for _, p := range []struct {
			e        weft.Explanation
			messages int
		}{{barrier.Explain(), 2}, {allreduce.Explain(), 2}, {allgather.Explain(), 2}} {
			if err := expectExplained(p.e, p.messages); err != nil {
				return err
			}
			if !strings.HasPrefix(p.e.Algorithm, "leaders") {
				return fmt.Errorf("%v", p.e)
			}
			sent += p.e.SentMessages
		}
		total, err := weft.AllreduceValue(ctx, c, sent, weft.Sum[int]())
		if err != nil || total != 2+2+2 {
			return fmt.Errorf("all ranks say that they send %d messages: %w", total, err)
		}
		return nil
	}, onHosts(0, 0, 0, 1, 1, 1)...)
}

// Ranks that disagree are told, all of them, whether they share a host or not.
func TestMismatchOnHosts(t *testing.T) {
	nodes := []int{0, 0, 0, 1, 1}
	b := func(n int) []float64 { return make([]float64, n) }
	sum, biggest := weft.Sum[float64](), weft.Max[float64]()
	for name, call := range map[string]func(ctx context.Context, c *weft.Comm, odd bool) error{
		"barrier and allreduce": func(ctx context.Context, c *weft.Comm, odd bool) error {
			if odd {
				return weft.Barrier(ctx, c)
			}
			return weft.Allreduce(ctx, c, b(3), b(3), sum)
		},
		"allgather and barrier": func(ctx context.Context, c *weft.Comm, odd bool) error {
			if odd {
				return weft.Allgather(ctx, c, b(1), b(5))
			}
			return weft.Barrier(ctx, c)
		},
		"counts": func(ctx context.Context, c *weft.Comm, odd bool) error {
			n := 3
			if odd {
				n = 4
			}
			return weft.Allreduce(ctx, c, b(n), b(n), sum)
		},
		"counts, one of which goes by messages": func(ctx context.Context, c *weft.Comm, odd bool) error {
			n := 3
			if odd {
				n = 300_000
			}
			return weft.Allreduce(ctx, c, b(n), b(n), sum)
		},
		"operators": func(ctx context.Context, c *weft.Comm, odd bool) error {
			if odd {
				return weft.Allreduce(ctx, c, b(3), b(3), biggest)
			}
			return weft.Allreduce(ctx, c, b(3), b(3), sum)
		},
		"reduce and allreduce": func(ctx context.Context, c *weft.Comm, odd bool) error {
			if odd {
				return weft.Reduce(ctx, c, b(3), b(3), sum, 3)
			}
			return weft.Allreduce(ctx, c, b(3), b(3), sum)
		},
		"an operation that goes by messages": func(ctx context.Context, c *weft.Comm, odd bool) error {
			if odd {
				return weft.Alltoall(ctx, c, b(5), b(5))
			}
			return weft.Allgather(ctx, c, b(1), b(5))
		},
	} {
		for odd := range nodes {
			t.Run(fmt.Sprintf("%s/%d", name, odd), func(t *testing.T) {
				t.Parallel()
				results := make([]error, len(nodes))
				if err := wefttest.Try(t, len(nodes), func(ctx context.Context, c *weft.Comm) error {
					short, stop := context.WithTimeout(ctx, 10*time.Second)
					defer stop()
					results[c.Rank()] = call(short, c, c.Rank() == odd)
					// A rank may be done before the others disagree; the next one tells.
					if results[c.Rank()] == nil {
						results[c.Rank()] = weft.Barrier(short, c)
					}
					return nil
				}, onHosts(nodes...)...); err != nil {
					t.Fatal(err)
				}
				for r, err := range results {
					if !errors.Is(err, weft.ErrMismatch) {
						t.Errorf("rank %d: %v, want ErrMismatch", r, err)
					}
				}
			})
		}
	}
}

// Many collectives in progress, blocking ones among them, of all that have boards, in communicators that come and go.
func TestManyInProgressOnHosts(t *testing.T) {
	for _, nodes := range [][]int{{0, 0, 1, 1}, {0, 1, 0, 1, 1}, {0, 0, 0, 1, 2, 2}} {
		wefttest.Run(t, len(nodes), func(ctx context.Context, world *weft.Comm) error {
			for round := range 20 {
				c, err := world.Dup(ctx, "d")
				if err != nil {
					return err
				}
				if err := inProgress(ctx, c, round); err != nil {
					return err
				}
				if err := c.Close(ctx); err != nil {
					return err
				}
			}
			return nil
		}, onHosts(nodes...)...)
	}
}

func inProgress(ctx context.Context, c *weft.Comm, round int) error {
	const many = 150 // more than a board has posts
	n, me := int64(c.Size()), int64(c.Rank())
	s := c.Scope(ctx)
	var sums, copies, totals, blocks [many][]int64
	for i := range many {
		length := 1 + i%5*(1+i%3*200)
		one := func() []int64 {
			v := make([]int64, length)
			for j := range v {
				v[j] = int64(i*1000+j+round) + me
			}
			return v
		}
		sums[i], copies[i], totals[i], blocks[i] = one(), one(), one(), make([]int64, n)
		root := i % c.Size()
		weft.Iallreduce(s, c, sums[i], sums[i], weft.Sum[int64](), weft.WithAlgorithm("leaders"))
		weft.Ibcast(s, c, copies[i], root, weft.WithAlgorithm("leaders"))
		weft.Ireduce(s, c, totals[i], totals[i], weft.Sum[int64](), root, weft.WithAlgorithm("leaders"))
		weft.Iallgather(s, c, []int64{me + int64(i)}, blocks[i], weft.WithAlgorithm("leaders"))
		if i%10 == 5 {
			weft.Ibarrier(s, c, weft.WithAlgorithm("leaders"))
			v, err := weft.AllreduceValue(ctx, c, int64(i), weft.Max[int64]())
			if err != nil || v != int64(i) {
				return fmt.Errorf("blocking beside others: %d, %w", v, err)
			}
		}
	}
	if err := s.Wait(); err != nil {
		return err
	}
	for i := range many {
		root := int64(i % c.Size())
		for j, got := range sums[i] {
			base := int64(i*1000 + j + round)
			sum := n*base + n*(n-1)/2
			if got != sum || copies[i][j] != base+root || root == me && totals[i][j] != sum {
				return fmt.Errorf("round %d, %d, element %d: allreduce %d, bcast %d, reduce %d", round, i, j, got, copies[i][j], totals[i][j])
			}
		}
		for r, got := range blocks[i] {
			if got != int64(r+i) {
				return fmt.Errorf("round %d, allgather %d: block %d has %d", round, i, r, got)
			}
		}
	}
	return nil
}

// All ranks get the same bits, in each run and each form.
func TestSameBitsOnHosts(t *testing.T) {
	for _, nodes := range [][]int{{0, 0, 0, 1, 1}, {0, 1, 0, 1, 0}} {
		var first []float64
		for run := range 6 {
			opts := append(onHosts(nodes...), weft.WithFaults(weft.Faults{Seed: uint64(run), Delay: run}))
			wefttest.Run(t, len(nodes), func(ctx context.Context, c *weft.Comm) error {
				for _, name := range []string{"leaders", "leaders-halving"} {
					send, recv := make([]float64, 1500), make([]float64, 1500)
					for i := range send {
						send[i] = hard(c.Rank(), i)
					}
					s := c.Scope(ctx)
					weft.Iallreduce(s, c, send, recv, weft.Sum[float64](), weft.WithAlgorithm(name))
					again := make([]float64, len(recv))
					if err := errors.Join(s.Wait(), weft.Allreduce(ctx, c, send, again, weft.Sum[float64](), weft.WithAlgorithm(name))); err != nil {
						return err
					}
					if !sameBits(recv, again) {
						return fmt.Errorf("%s: the blocking form has other bits", name)
					}
					all := make([]float64, len(nodes)*len(recv))
					if err := weft.Allgather(ctx, c, recv, all); err != nil {
						return err
					}
					for r := range nodes {
						if !sameBits(all[r*len(recv):][:len(recv)], recv) {
							return fmt.Errorf("%s: rank %d has other bits", name, r)
						}
					}
					if c.Rank() == 0 && name == "leaders" {
						if first == nil {
							first = recv
						}
						if !sameBits(first, recv) {
							return fmt.Errorf("run %d has other bits than the first", run)
						}
					}
				}
				return nil
			}, opts...)
		}
	}
}

// failsOnHosts runs a collective of short or long data that cannot end well, blocking or not, and returns what each rank got.
func failsOnHosts(t *testing.T, long, nonblocking bool, before func(ctx context.Context, c *weft.Comm) (context.Context, error), op weft.Op[float64], opts ...weft.Option) []error {
	nodes := []int{0, 0, 0, 1, 1}
	results := make([]error, len(nodes))
	if err := wefttest.Try(t, len(nodes), func(ctx context.Context, c *weft.Comm) error {
		ctx, err := before(ctx, c)
		if err != nil {
			results[c.Rank()] = err
			return nil
		}
		n, name := 3, "leaders"
		if long {
			n, name = 20_000, "leaders-halving"
		}
		send, recv := make([]float64, n), make([]float64, n)
		if s := c.Scope(ctx); nonblocking {
			weft.Iallreduce(s, c, send, recv, op, weft.WithAlgorithm(name))
			err = s.Wait()
		} else {
			err = weft.Allreduce(ctx, c, send, recv, op, weft.WithAlgorithm(name))
		}
		results[c.Rank()] = err
		recv[0] = math.Pi // nobody writes here any more: the race detector would see it
		return nil
	}, append(onHosts(nodes...), opts...)...); err != nil && !errors.Is(err, weft.ErrRankFailed) {
		t.Fatal(err)
	}
	return results
}

// A rank that dies, one that does not come, and an operator that panics end a collective on all ranks.
func TestFailuresOnHosts(t *testing.T) {
	gone := errors.New("this rank is the one")
	for odd := range 5 {
		for form := range 4 {
			long, nonblocking := form&1 > 0, form&2 > 0
			t.Run(fmt.Sprintf("rank %d/long %t, nonblocking %t", odd, long, nonblocking), func(t *testing.T) {
				kill := make(chan func(int), 1)
				check := func(name string, results []error, odds error, want ...error) {
					t.Helper()
					for r, err := range results {
						if r == odd && errors.Is(err, odds) {
							continue
						}
						right := false
						for _, w := range want {
							right = right || errors.Is(err, w)
						}
						if !right {
							t.Errorf("%s: rank %d: %v", name, r, err)
						}
					}
				}
				check("dead", failsOnHosts(t, long, nonblocking, func(ctx context.Context, c *weft.Comm) (context.Context, error) {
					if c.Rank() == odd {
						(<-kill)(odd)
						return ctx, gone
					}
					return ctx, nil
				}, weft.Sum[float64](), weft.WithKill(func(k func(int)) { kill <- k })), gone, weft.ErrRankFailed, weft.ErrRevoked)

				check("late", failsOnHosts(t, long, nonblocking, func(ctx context.Context, c *weft.Comm) (context.Context, error) {
					if c.Rank() == odd { // hears that the others have given up
						_, err := weft.Recv(ctx, c, make([]int, 1), weft.AnySource, 0)
						return ctx, err
					}
					short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
					context.AfterFunc(ctx, stop)
					return short, nil
				}, weft.Sum[float64]()), weft.ErrRevoked, context.DeadlineExceeded, weft.ErrRevoked)

				fragile := weft.OpFunc("fragile", false, func(a, b float64) float64 { panic("no such entry") })
				check("panic", failsOnHosts(t, long, nonblocking, func(ctx context.Context, c *weft.Comm) (context.Context, error) { return ctx, nil }, fragile),
					weft.ErrOperator, weft.ErrOperator, weft.ErrRevoked)
			})
		}
	}
}

// Blocking calls, plans and requests that are used again allocate nothing.
func TestHostsDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector allocates; the same test runs without it")
		return
	}
	const n = 4
	type state struct {
		s    *weft.Scope
		v    []float64
		plan *weft.Plan[float64]
	}
	start, done := make(chan int), make(chan error)
	defer close(start)
	go func() {
		_ = weft.Local(context.Background(), n, func(ctx context.Context, c *weft.Comm) error {
			st := &state{s: c.Scope(ctx), v: make([]float64, 4)}
			var err error
			if st.plan, err = weft.PlanAllreduce(c, st.v, st.v, weft.Max[float64]()); err != nil {
				return err
			}
			sum := weft.Max[float64]()
			for range start {
				weft.Iallreduce(st.s, c, st.v, st.v, sum)
				err := errors.Join(st.s.Wait(), weft.Barrier(ctx, c), weft.Allreduce(ctx, c, st.v, st.v, sum), weft.Bcast(ctx, c, st.v, 3), st.plan.Run(ctx))
				st.plan.Start(st.s)
				done <- errors.Join(err, st.s.Wait())
			}
			return nil
		}, onHosts(0, 0, 1, 1)...)
	}()
	once := func() {
		for range n {
			start <- 0
		}
		for range n {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	for range 200 {
		once()
	}
	if got := testing.AllocsPerRun(200, once); got > 0 {
		t.Errorf("%v allocations in six collectives of %d ranks", got, n)
	}
}
