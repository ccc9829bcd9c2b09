package weft_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-hpc/weft"
	"github.com/weft-hpc/weft/wefttest"
)

// Many collectives in progress at once do not meet each other, nor a blocking one
// beside them, whatever order they end in.
func TestManyInProgress(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 8} {
		wefttest.Run(t, n, func(ctx context.Context, c *weft.Comm) error {
			const at = 40
			s := c.Scope(ctx)
			for round := range 3 {
				type pair struct{ send, recv []int64 }
				var all []pair
				for i := range at {
					length := 1 + i%7*(1+i%3*300)
					p := pair{make([]int64, length), make([]int64, length)}
					for j := range p.send {
						p.send[j] = int64(i*1000 + j + c.Rank() + round)
					}
					all = append(all, p)
					switch i % 3 {
					case 0:
						weft.Iallreduce(s, c, p.send, p.recv, weft.Sum[int64]())
					case 1:
						copy(p.recv, p.send)
						weft.Ibcast(s, c, p.recv, i%n)
					case 2:
						weft.Iscan(s, c, p.send, p.recv, weft.Max[int64]())
					}
					if i%10 == 5 {
						v, err := weft.AllreduceValue(ctx, c, int64(i), weft.Sum[int64]())
						if err != nil || v != int64(i*n) {
							return fmt.Errorf("blocking beside %d others: %d, %w", i+1, v, err)
						}
					}
				}
				if err := s.Wait(); err != nil {
					return err
				}
				for i, p := range all {
					for j, got := range p.recv {
						base := int64(i*1000 + j + round)
						want := [3]int64{base*int64(n) + int64(n*(n-1)/2), base + int64(i%n), base + int64(c.Rank())}[i%3]
						if got != want {
							return fmt.Errorf("round %d, collective %d, element %d: %d, want %d", round, i, j, got, want)
						}
					}
				}
			}
			return nil
		})
	}
}

// Requests of collectives have the methods of others.
func TestCollectiveRequest(t *testing.T) {
	wefttest.Run(t, 3, func(ctx context.Context, c *weft.Comm) error {
		s := c.Scope(ctx)
		r := weft.Ibarrier(s, c)
		if c.Rank() == 0 {
			for {
				if _, done, err := r.Test(); done {
					if err != nil {
						return err
					}
					break
				}
			}
		} else {
			select {
			case <-r.Done():
			case <-time.After(10 * time.Second):
				return errors.New("Done is not closed")
			}
		}
		st, err := r.Wait(ctx)
		if err != nil || st.Source != weft.NoRank || !r.Cancel() {
			return fmt.Errorf("done: %+v, %v", st, err)
		}
		if err := s.Wait(); err != nil {
			return err
		}
		// A request that was a collective is a message the next time.
		in := make([]int, 1)
		weft.Irecv(s, c, in, (c.Rank()+2)%3, 0)
		weft.Isend(s, c, []int{c.Rank() + 1}, (c.Rank()+1)%3, 0)
		if err := s.Wait(); err != nil || in[0] != (c.Rank()+2)%3+1 {
			return fmt.Errorf("after a collective: %v, %v", in, err)
		}
		return nil
	})
}

// To wait for a plan's earlier start leaves the one in progress alone, and several goroutines may wait for one.
func TestWaitForEarlierStart(t *testing.T) {
	wefttest.Run(t, 2, func(ctx context.Context, c *weft.Comm) error {
		v, w := []int64{1}, []int64{0}
		p, err := weft.PlanAllreduce(c, v, w, weft.Sum[int64]())
		if err != nil {
			return err
		}
		for i := range 500 {
			s, s2 := c.Scope(ctx), c.Scope(ctx)
			r := p.Start(s)
			if err := s.Wait(); err != nil {
				return err
			}
			v[0] = int64(i)
			r2 := p.Start(s2)
			var waiting sync.WaitGroup
			errs := make([]error, 3)
			for g, q := range []*weft.Request{r, r2, r2} {
				waiting.Go(func() { _, errs[g] = q.Wait(ctx) })
			}
			waiting.Wait()
			if err := errors.Join(append(errs, s2.Wait())...); err != nil || w[0] != 2*int64(i) {
				return fmt.Errorf("start %d: sum %d, %v", i, w[0], err)
			}
		}
		return nil
	})
}

// To cancel a collective that was over when it started does nothing, neither to it nor to what its plan
// has in progress now.
func TestCancelAfterTheEnd(t *testing.T) {
	wefttest.Run(t, 2, func(ctx context.Context, c *weft.Comm) error {
		v := []int64{int64(c.Rank()) + 5}
		s := c.Scope(ctx)
		r := weft.Ibcast(s, c, v, 0)
		if err := s.Wait(); err != nil {
			return err
		}
		if !r.Cancel() || v[0] != 5 {
			return fmt.Errorf("canceled after its end: %d", v[0])
		}
		p, err := weft.PlanBcast(c, v, 1)
		if err != nil {
			return err
		}
		first := p.Start(s)
		if _, err := first.Wait(ctx); err != nil {
			return err
		}
		if c.Rank() == 0 { // where the second one waits for its root
			p.Start(s)
			if !first.Cancel() {
				return errors.New("the first start is not over")
			}
		}
		if err := weft.Send(ctx, c, v, 1-c.Rank(), 0); err != nil {
			return err
		}
		if _, err := weft.Recv(ctx, c, v, 1-c.Rank(), 0); err != nil {
			return err
		}
		if c.Rank() == 1 {
			p.Start(s)
		}
		return s.Wait()
	}, weft.WithFaults(weft.Faults{}))
}

// Nobody calls weft while a collective is in progress, and it ends.
func TestCollectiveProgressesAlone(t *testing.T) {
	wefttest.Run(t, 4, func(ctx context.Context, c *weft.Comm) error {
		send, recv := []float64{float64(c.Rank())}, make([]float64, 1)
		r := weft.Iallreduce(c.Scope(ctx), c, send, recv, weft.Sum[float64]())
		select {
		case <-r.Done():
		case <-time.After(20 * time.Second):
			return errors.New("no progress without calls")
		}
		if recv[0] != 6 {
			return fmt.Errorf("got %v", recv)
		}
		return nil
	})
}

// A nonblocking collective that fails says so in its request, with both sides
// named, and everywhere.
func TestNonblockingErrors(t *testing.T) {
	for name, call := range map[string]func(s *weft.Scope, c *weft.Comm, odd bool) *weft.Request{
		"count": func(s *weft.Scope, c *weft.Comm, odd bool) *weft.Request {
			n := 100
			if odd {
				n = 99
			}
			return weft.Iallreduce(s, c, make([]int, n), make([]int, n), weft.Sum[int]())
		},
		"operation": func(s *weft.Scope, c *weft.Comm, odd bool) *weft.Request {
			if odd {
				return weft.Ibarrier(s, c)
			}
			return weft.Ibcast(s, c, make([]int, 4), 0)
		},
		"bad root on one rank": func(s *weft.Scope, c *weft.Comm, odd bool) *weft.Request {
			root := 0
			if odd {
				root = -1
			}
			return weft.Ibcast(s, c, make([]int, 4), root)
		},
		"panic on one rank": func(s *weft.Scope, c *weft.Comm, odd bool) *weft.Request {
			op := weft.OpFunc("fragile", false, func(a, b int) int {
				if odd {
					panic("no such entry")
				}
				return a + b
			})
			return weft.Iallreduce(s, c, make([]int, 4), make([]int, 4), op)
		},
	} {
		for _, n := range []int{2, 3, 5} {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				results := make([]error, n)
				if err := wefttest.Try(t, n, func(ctx context.Context, c *weft.Comm) error {
					s := c.Scope(ctx)
					call(s, c, c.Rank() == n-1)
					if results[c.Rank()] = s.Wait(); results[c.Rank()] == nil {
						weft.Ibarrier(s, c)
						results[c.Rank()] = s.Wait()
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				for r, err := range results {
					want := []error{weft.ErrMismatch}
					text := ""
					switch {
					case name == "bad root on one rank" && r == n-1:
						want = []error{weft.ErrRank}
					case name == "bad root on one rank":
						want, text = []error{weft.ErrRevoked}, "root -1"
					case name == "panic on one rank" && r == n-1:
						want, text = []error{weft.ErrOperator}, "no such entry"
					case name == "panic on one rank":
						want, text = []error{weft.ErrRevoked}, "fragile"
					}
					if !slices.ContainsFunc(want, func(w error) bool { return errors.Is(err, w) }) || !strings.Contains(fmt.Sprint(err), text) {
						t.Errorf("rank %d: %v, want %v and %q", r, err, want, text)
					}
				}
			})
		}
	}
}

// A scope whose context ends, and Cancel, end a collective that not all join.
func TestNonblockingCanceled(t *testing.T) {
	wefttest.Run(t, 3, func(ctx context.Context, c *weft.Comm) error {
		for _, byScope := range []bool{true, false} {
			d, err := c.Dup(ctx, "d")
			if err != nil {
				return err
			}
			if c.Rank() == 0 { // never joins, and is told
				_, err := weft.Recv(ctx, d, make([]int, 1), 1, 0)
				if !errors.Is(err, weft.ErrRevoked) {
					return fmt.Errorf("rank 0: %v", err)
				}
				continue
			}
			short, stop := context.WithCancel(ctx)
			s := d.Scope(short)
			r := weft.Iallreduce(s, d, make([]int, 1000), make([]int, 1000), weft.Sum[int]())
			if byScope {
				stop()
				err = s.Wait()
			} else {
				r.Cancel()
				_, err = r.Wait(ctx)
			}
			stop()
			if !errors.Is(err, context.Canceled) && !errors.Is(err, weft.ErrRevoked) {
				return fmt.Errorf("rank %d: %v", c.Rank(), err)
			}
		}
		return nil
	})
}

func TestNonblockingKilledRank(t *testing.T) {
	kill := make(chan func(int), 1)
	results := make([]error, 4)
	err := wefttest.Try(t, 4, func(ctx context.Context, c *weft.Comm) error {
		if c.Rank() == 2 {
			(<-kill)(2)
			return nil
		}
		s := c.Scope(ctx)
		weft.Iallreduce(s, c, make([]int, 5000), make([]int, 5000), weft.Sum[int]())
		results[c.Rank()] = s.Wait()
		return nil
	}, weft.WithKill(func(k func(int)) { kill <- k }))
	if err != nil && !errors.Is(err, weft.ErrRankFailed) {
		t.Fatal(err)
	}
	for r, err := range results {
		if r != 2 && !errors.Is(err, weft.ErrRankFailed) && !errors.Is(err, weft.ErrRevoked) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// Reused requests and plans allocate nothing.
func TestPlansDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector allocates; the same test runs without it")
		return
	}
	type state struct {
		send, recv []float64
		s          *weft.Scope
		plans      []planned
	}
	states := make([]state, 2)
	fours := weft.Counts{N: []int{4, 4}}
	setUp := func(ctx context.Context, c *weft.Comm) (*state, error) {
		st := &states[c.Rank()]
		if st.s != nil {
			return st, nil
		}
		st.send, st.recv, st.s = make([]float64, 8), make([]float64, 8), c.Scope(ctx)
		counts := weft.Counts{N: []int{5, 3}}
		var errs []error
		add := func(p planned, err error) {
			st.plans = append(st.plans, p)
			errs = append(errs, err)
		}
		half := st.recv[:4]
		sum := weft.Sum[float64]()
		add(weft.PlanBarrier(c))
		add(weft.PlanBcast(c, st.recv, 0))
		add(weft.PlanReduce(c, st.send, st.recv, sum, 1))
		add(weft.PlanAllreduce(c, st.send, st.recv, sum))
		add(weft.PlanReduceScatterBlock(c, st.send, half, sum))
		add(weft.PlanReduceScatter(c, st.send, st.recv[:counts.N[c.Rank()]], counts.N, sum))
		add(weft.PlanScan(c, st.send, st.recv, sum))
		add(weft.PlanExscan(c, st.send, st.recv, sum))
		add(weft.PlanGather(c, st.send[:4], st.recv, 0))
		add(weft.PlanGatherv(c, st.send[:counts.N[c.Rank()]], st.recv, counts, 0))
		add(weft.PlanScatter(c, st.send, half, 0))
		add(weft.PlanScatterv(c, st.send, st.recv[:counts.N[c.Rank()]], counts, 0))
		add(weft.PlanAllgather(c, st.send[:4], st.recv))
		add(weft.PlanAllgatherv(c, st.send[:counts.N[c.Rank()]], st.recv, counts))
		add(weft.PlanAlltoall(c, st.send, st.recv))
		add(weft.PlanAlltoallv(c, st.send, st.recv, fours, fours))
		return st, errors.Join(errs...)
	}
	for form, round := range map[string]func(ctx context.Context, c *weft.Comm) error{
		"Run": func(ctx context.Context, c *weft.Comm) error {
			st, err := setUp(ctx, c)
			for i := range st.plans {
				if err == nil {
					err = st.plans[i].Run(ctx)
				}
			}
			return err
		},
		"Start": func(ctx context.Context, c *weft.Comm) error {
			st, err := setUp(ctx, c)
			for i := range st.plans {
				if err == nil {
					st.plans[i].Start(st.s)
					err = st.s.Wait()
				}
			}
			return err
		},
		"I": func(ctx context.Context, c *weft.Comm) error {
			st, err := setUp(ctx, c)
			if err != nil {
				return err
			}
			weft.Iallreduce(st.s, c, st.send, st.recv, weft.Sum[float64]())
			weft.Ibarrier(st.s, c)
			weft.Ialltoallv(st.s, c, st.send, st.recv, fours, fours)
			return st.s.Wait()
		},
	} {
		states = make([]state, 2)
		if each := allocations(t, round); each > 1 {
			t.Errorf("%s: %.2f allocations for all plans", form, each)
		}
	}
}

func TestPlanExplains(t *testing.T) {
	wefttest.Run(t, 4, func(ctx context.Context, c *weft.Comm) error {
		send, recv := make([]float64, 4), make([]float64, 4)
		p, err := weft.PlanAllreduce(c, send, recv, weft.Sum[float64]())
		if err != nil {
			return err
		}
		e := p.Explain()
		if e.Algorithm != "doubling" || e.Steps != 2 || e.Messages != 8 || e.Bytes != 8*32 || e.SentBytes != 64 || e.ReceivedMessages != 2 {
			return fmt.Errorf("allreduce: %+v", e)
		}
		if s := e.String(); !strings.Contains(s, "Allreduce on 4 ranks by doubling (predicted to take ") || !strings.Contains(s, "): 2 steps, 8 messages with 256 bytes") {
			return errors.New(s)
		}
		q, err := weft.PlanBcast(c, send, 0, weft.WithAlgorithm("scatter-ring"))
		if err != nil {
			return err
		}
		if e := q.Explain(); e.Algorithm != "scatter-ring" || e.Why != "as asked" {
			return fmt.Errorf("bcast: %+v", e)
		}
		if _, err := weft.PlanBcast(c, send, 0, weft.WithAlgorithm("pigeons")); !errors.Is(err, weft.ErrArgument) || !strings.Contains(err.Error(), "scatter-ring") {
			return fmt.Errorf("unknown algorithm: %v", err)
		}
		if _, err := weft.PlanBcast(c, send, 4); !errors.Is(err, weft.ErrRank) {
			return fmt.Errorf("root 4: %v", err)
		}
		if _, err := weft.PlanAllreduce(c, send, recv[:3], weft.Sum[float64]()); !errors.Is(err, weft.ErrCount) {
			return fmt.Errorf("short recv: %v", err)
		}
		// A second start while the first is in progress.
		d, err := c.Dup(ctx, "d")
		if err != nil {
			return err
		}
		b, err := weft.PlanBarrier(d)
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			s := d.Scope(ctx)
			b.Start(s)
			r := b.Start(s)
			if _, err := r.Wait(ctx); !errors.Is(err, weft.ErrPending) {
				return fmt.Errorf("started twice: %v", err)
			}
			if err := s.Wait(); err == nil {
				return errors.New("the first barrier ended, and no other rank had called it")
			}
		}
		return weft.Barrier(ctx, c)
	}, weft.WithMessages())
}

func TestPlanExplainsSharedMemory(t *testing.T) {
	wefttest.Run(t, 3, func(ctx context.Context, c *weft.Comm) error {
		for _, n := range []int{4, 5000} {
			v := make([]float64, n)
			p, err := weft.PlanAllreduce(c, v, v, weft.Sum[float64]())
			if err != nil {
				return err
			}
			if e := p.Explain(); e.Algorithm != "shared-memory" || e.Messages != 0 || e.Steps != 1+n/5000 || !strings.Contains(e.Why, "map each other's memory") {
				return fmt.Errorf("%d elements: %v", n, e)
			}
			q, err := weft.PlanAllreduce(c, v, v, weft.Sum[float64](), weft.WithAlgorithm("ring"))
			if err != nil {
				return err
			}
			if e := q.Explain(); e.Algorithm != "ring" || e.Messages == 0 {
				return fmt.Errorf("%d elements by ring: %v", n, e)
			}
		}
		return nil
	}, weft.WithFaults(weft.Faults{}))
	// Where messages are all there is, asking for it is an error that says so.
	wefttest.Run(t, 3, func(ctx context.Context, c *weft.Comm) error {
		if _, err := weft.PlanBarrier(c, weft.WithAlgorithm("shared-memory")); !errors.Is(err, weft.ErrArgument) || !strings.Contains(err.Error(), "do not map each other's memory") {
			return fmt.Errorf("asked for shared memory: %v", err)
		}
		return nil
	}, weft.WithMessages())
}
