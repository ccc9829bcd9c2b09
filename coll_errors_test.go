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

// Arguments that one rank can see are wrong are a typed error there, and ErrRevoked
// on the others.
func TestRefusedCollectives(t *testing.T) {
	b := func(n int) []int { return make([]int, n) }
	counts := func(n ...int) weft.Counts { return weft.Counts{N: n} }
	sum := weft.Sum[int]()
	for name, tc := range map[string]struct {
		want error
		text string
		call func(ctx context.Context, c *weft.Comm, bad bool) error
	}{
		"negative count": {weft.ErrCount, "rank 1, -1 elements", func(ctx context.Context, c *weft.Comm, bad bool) error {
			n := counts(1, 1, 1)
			if bad {
				n = counts(1, -1, 1)
			}
			return weft.Allgatherv(ctx, c, b(1), b(3), n)
		}},
		"too few counts": {weft.ErrCount, "2 counts for 3 ranks", func(ctx context.Context, c *weft.Comm, bad bool) error {
			n := counts(1, 1, 1)
			if bad {
				n = counts(1, 1)
			}
			return weft.Allgatherv(ctx, c, b(1), b(3), n)
		}},
		"no counts at the root": {weft.ErrCount, "0 counts for 3 ranks", func(ctx context.Context, c *weft.Comm, bad bool) error {
			n := counts(1, 1, 1)
			if bad {
				n = weft.Counts{}
			}
			return weft.Gatherv(ctx, c, b(1), b(3), n, 2)
		}},
		"displacement beyond the end": {weft.ErrCount, "1 elements from 3 on, is not within the 3 of recv", func(ctx context.Context, c *weft.Comm, bad bool) error {
			n := counts(1, 1, 1)
			if bad {
				n.Displs = []int{0, 1, 3}
			}
			return weft.Allgatherv(ctx, c, b(1), b(3), n)
		}},
		"displacement that overflows": {weft.ErrCount, "is not within", func(ctx context.Context, c *weft.Comm, bad bool) error {
			n := counts(1, 1, 1)
			if bad {
				n.Displs = []int{0, 1, math.MaxInt}
			}
			return weft.Allgatherv(ctx, c, b(1), b(3), n)
		}},
		"too few displacements": {weft.ErrCount, "2 displacements", func(ctx context.Context, c *weft.Comm, bad bool) error {
			n := counts(1, 1, 1)
			if bad {
				n.Displs = []int{0, 1}
			}
			return weft.Allgatherv(ctx, c, b(1), b(3), n)
		}},
		"parts that overlap": {weft.ErrOverlap, "the parts of ranks 2 and 0 in recv", func(ctx context.Context, c *weft.Comm, bad bool) error {
			n := weft.Counts{N: []int{2, 2, 2}, Displs: []int{4, 2, 0}}
			if bad {
				n.Displs = []int{1, 4, 0}
			}
			return weft.Allgatherv(ctx, c, b(2), b(6), n)
		}},
		"own count": {weft.ErrCount, "", func(ctx context.Context, c *weft.Comm, bad bool) error {
			send := b(1)
			if bad {
				send = b(2)
			}
			return weft.Allgatherv(ctx, c, send, b(3), counts(1, 1, 1))
		}},
		"send is part of recv, of another rank": {weft.ErrOverlap, "own part", func(ctx context.Context, c *weft.Comm, bad bool) error {
			recv, send := b(3), b(1)
			if bad {
				send = recv[:1]
			}
			return weft.Allgatherv(ctx, c, send, recv, counts(1, 1, 1))
		}},
		"parts that do not divide": {weft.ErrCount, "equal parts", func(ctx context.Context, c *weft.Comm, bad bool) error {
			if bad {
				return weft.Alltoall(ctx, c, b(4), b(4))
			}
			return weft.Alltoall(ctx, c, b(3), b(3))
		}},
		"alltoallv in place, other counts": {weft.ErrOverlap, "same counts", func(ctx context.Context, c *weft.Comm, bad bool) error {
			buf := b(3)
			if bad {
				return weft.Alltoallv(ctx, c, buf, buf, counts(1, 1, 1), counts(1, 0, 1))
			}
			return weft.Alltoallv(ctx, c, buf, buf, counts(1, 1, 1), counts(1, 1, 1))
		}},
		"alltoallv to itself": {weft.ErrCount, "itself", func(ctx context.Context, c *weft.Comm, bad bool) error {
			if bad {
				return weft.Alltoallv(ctx, c, b(3), b(3), counts(1, 1, 1), counts(1, 1, 0))
			}
			return weft.Alltoallv(ctx, c, b(3), b(3), counts(1, 1, 1), counts(1, 1, 1))
		}},
		"reduce-scatter, recv": {weft.ErrCount, "this rank's count", func(ctx context.Context, c *weft.Comm, bad bool) error {
			recv := b(1)
			if bad {
				recv = b(2)
			}
			return weft.ReduceScatter(ctx, c, b(3), recv, []int{1, 1, 1}, sum)
		}},
		"reduce-scatter, send": {weft.ErrCount, "together", func(ctx context.Context, c *weft.Comm, bad bool) error {
			send := b(3)
			if bad {
				send = b(4)
			}
			return weft.ReduceScatter(ctx, c, send, b(1), []int{1, 1, 1}, sum)
		}},
		"reduce-scatter in place, not the front": {weft.ErrOverlap, "first part", func(ctx context.Context, c *weft.Comm, bad bool) error {
			send, recv := b(3), b(1)
			if bad {
				recv = send[2:]
			}
			return weft.ReduceScatterBlock(ctx, c, send, recv, sum)
		}},
		"reduce-scatter-block": {weft.ErrCount, "each of the 3 ranks", func(ctx context.Context, c *weft.Comm, bad bool) error {
			send := b(3)
			if bad {
				send = b(4)
			}
			return weft.ReduceScatterBlock(ctx, c, send, b(1), sum)
		}},
		"scan without an operator": {weft.ErrArgument, "no operator", func(ctx context.Context, c *weft.Comm, bad bool) error {
			op := sum
			if bad {
				op = weft.Op[int]{}
			}
			return weft.Scan(ctx, c, b(3), b(3), op)
		}},
		"scan, partial overlap": {weft.ErrOverlap, "", func(ctx context.Context, c *weft.Comm, bad bool) error {
			buf := b(4)
			if bad {
				return weft.Exscan(ctx, c, buf[:3], buf[1:], sum)
			}
			return weft.Exscan(ctx, c, b(3), b(3), sum)
		}},
		"unknown algorithm": {weft.ErrArgument, "dissemination, central", func(ctx context.Context, c *weft.Comm, bad bool) error {
			if bad {
				return weft.Barrier(ctx, c, weft.WithAlgorithm("ring"))
			}
			return weft.Barrier(ctx, c)
		}},
		"algorithm that does not suit": {weft.ErrArgument, `"doubling" does not suit 3 ranks`, func(ctx context.Context, c *weft.Comm, bad bool) error {
			if bad {
				return weft.Allgather(ctx, c, b(1), b(3), weft.WithAlgorithm("doubling"))
			}
			return weft.Allgather(ctx, c, b(1), b(3))
		}},
		"exchange of too few": {weft.ErrCount, "2 slices for 3 ranks", func(ctx context.Context, c *weft.Comm, bad bool) error {
			to := make([][]int, 3)
			if bad {
				to = to[:2]
			}
			_, err := weft.Exchange(ctx, c, to)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			results := make([]error, 3)
			start := time.Now()
			if err := wefttest.Try(t, 3, func(ctx context.Context, c *weft.Comm) error {
				results[c.Rank()] = tc.call(ctx, c, c.Rank() == 2)
				if results[c.Rank()] == nil {
					results[c.Rank()] = weft.Barrier(ctx, c)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			for r, err := range results {
				want := weft.ErrRevoked
				if r == 2 {
					want = tc.want
				}
				if !errors.Is(err, want) || !strings.Contains(err.Error(), tc.text) {
					t.Errorf("rank %d: %v, want %v and %q", r, err, want, tc.text)
				}
			}
			if d := time.Since(start); d > 10*time.Second {
				t.Errorf("took %v", d)
			}
		})
	}
}

// Ranks that disagree are told, all of them, both sides named by the rank that
// sees it.
func TestMismatchOfMore(t *testing.T) {
	b := func(n int) []float64 { return make([]float64, n) }
	counts := func(n ...int) weft.Counts { return weft.Counts{N: n} }
	// The root expects n elements of each rank; one of them sends another number.
	gatherv := func(n, other int) func(context.Context, *weft.Comm, bool) error {
		return func(ctx context.Context, c *weft.Comm, odd bool) error {
			send := b(n)
			if odd {
				send = b(other)
			}
			return weft.Gatherv(ctx, c, send, b(3*n), counts(n, n, n), 0)
		}
	}
	for name, tc := range map[string]struct {
		text string // in one of the errors
		call func(ctx context.Context, c *weft.Comm, odd bool) error
	}{
		"gatherv, longer":  {"3 and 2 of float64", gatherv(2, 3)},
		"gatherv, shorter": {"1 and 2 of float64", gatherv(2, 1)},
		"gatherv, large":   {"20001 and 20000 of float64", gatherv(20000, 20001)},
		"scatterv": {"2 and 1 of float64", func(ctx context.Context, c *weft.Comm, odd bool) error {
			recv := b(2)
			if odd {
				recv = b(1)
			}
			return weft.Scatterv(ctx, c, b(6), recv, counts(2, 2, 2), 0)
		}},
		"allgatherv, counts in another order": {"in parts", func(ctx context.Context, c *weft.Comm, odd bool) error {
			n := counts(1, 2, 2)
			if odd {
				n = counts(2, 1, 2)
			}
			return weft.Allgatherv(ctx, c, b(n.N[c.Rank()]), b(5), n)
		}},
		"reduce-scatter": {"ReduceScatter of 5 float64 in parts", func(ctx context.Context, c *weft.Comm, odd bool) error {
			n := []int{1, 2, 2}
			if odd {
				n = []int{2, 1, 2}
			}
			return weft.ReduceScatter(ctx, c, b(5), b(n[c.Rank()]), n, weft.Sum[float64]())
		}},
		"alltoallv": {"2 and 1 of float64", func(ctx context.Context, c *weft.Comm, odd bool) error {
			n := counts(1, 1, 1)
			if odd {
				n = counts(2, 1, 1)
			}
			return weft.Alltoallv(ctx, c, b(4), b(3), n, counts(1, 1, 1))
		}},
		"alltoallv, one expects nothing": {"1 and 0 of float64", func(ctx context.Context, c *weft.Comm, odd bool) error {
			n := counts(1, 1, 1)
			if odd {
				n = counts(0, 1, 1)
			}
			return weft.Alltoallv(ctx, c, b(3), b(3), counts(1, 1, 1), n)
		}},
		"alltoallv, one sends nothing": {"0 and 1 of float64", func(ctx context.Context, c *weft.Comm, odd bool) error {
			n := counts(1, 1, 1)
			if odd {
				n = counts(0, 1, 1)
			}
			return weft.Alltoallv(ctx, c, b(3), b(3), n, counts(1, 1, 1))
		}},
		"algorithm": {"by ring", func(ctx context.Context, c *weft.Comm, odd bool) error {
			name := "bruck"
			if odd {
				name = "ring"
			}
			return weft.Allgather(ctx, c, b(1), b(3), weft.WithAlgorithm(name))
		}},
		"scan against exscan": {"Exscan of 2 float64", func(ctx context.Context, c *weft.Comm, odd bool) error {
			if odd {
				return weft.Exscan(ctx, c, b(2), b(2), weft.Sum[float64]())
			}
			return weft.Scan(ctx, c, b(2), b(2), weft.Sum[float64]())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			results := make([]error, 3)
			if err := wefttest.Try(t, 3, func(ctx context.Context, c *weft.Comm) error {
				results[c.Rank()] = tc.call(ctx, c, c.Rank() == 2)
				if results[c.Rank()] == nil {
					results[c.Rank()] = weft.Barrier(ctx, c)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			seen := false
			for r, err := range results {
				if !errors.Is(err, weft.ErrMismatch) {
					t.Errorf("rank %d: %v, want ErrMismatch", r, err)
				}
				if strings.Contains(fmt.Sprint(err), "Variant:") { // also where another rank reports it
					t.Errorf("rank %d does not say in words what was called: %v", r, err)
				}
				seen = seen || strings.Contains(fmt.Sprint(err), tc.text)
			}
			if !seen {
				t.Errorf("no error has %q: %v", tc.text, results)
			}
		})
	}
}

// After a failure all that is done with the communicator says that it is revoked, and why, also on the rank that failed.
func TestAfterAFailure(t *testing.T) {
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	for name, tc := range map[string]struct {
		text string
		call func(ctx context.Context, c *weft.Comm, bad bool) error
	}{
		"context ended": {"rank 2 reports: its context ended: context canceled", func(ctx context.Context, c *weft.Comm, bad bool) error {
			if !bad { // who came would let it end
				return nil
			}
			return weft.Barrier(canceled, c)
		}},
		"refused": {"rank 2 reports: weft: Bcast", func(ctx context.Context, c *weft.Comm, bad bool) error {
			root := 2
			if bad {
				root = 3
			}
			return weft.Bcast(ctx, c, []int{1}, root)
		}},
		"ranks disagree": {"reports: ranks disagree about the collective: rank ", func(ctx context.Context, c *weft.Comm, bad bool) error {
			if bad {
				return weft.Barrier(ctx, c)
			}
			return weft.Allreduce(ctx, c, []int{1}, []int{0}, weft.Sum[int]())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			wefttest.Run(t, 3, func(ctx context.Context, c *weft.Comm) error {
				bad := c.Rank() == 2
				if err := tc.call(ctx, c, bad); bad && err == nil {
					return errors.New("no error where it failed")
				}
				next := (c.Rank() + 1) % 3
				_, received := weft.Recv(ctx, c, []int{0}, next, 1) // where the others hear of it at the latest
				plan, err := weft.PlanBarrier(c)
				if err != nil {
					return err
				}
				s := c.Scope(ctx)
				weft.Ibarrier(s, c)
				for what, err := range map[string]error{"barrier": weft.Barrier(ctx, c), "nonblocking": s.Wait(), "plan": plan.Run(ctx), "recv": received,
					"send": weft.Send(ctx, c, []int{0}, next, 1)} {
					if !errors.Is(err, weft.ErrRevoked) || !strings.Contains(err.Error(), tc.text) {
						t.Errorf("rank %d, %s: %v, want ErrRevoked and %q", c.Rank(), what, err, tc.text)
					}
				}
				return nil
			})
		})
	}
}

// An operator that panics in a blocking collective is an error on every rank.
func TestOperatorPanics(t *testing.T) {
	for _, n := range []int{1, 2, 5} {
		results := make([]error, n)
		if err := wefttest.Try(t, n, func(ctx context.Context, c *weft.Comm) error {
			op := weft.OpSlice("fragile", true, func(inout, in []int) {
				_ = inout[len(in)] // out of range
			})
			results[c.Rank()] = weft.Allreduce(ctx, c, []int{1}, []int{0}, op)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		blamed := 0
		for r, err := range results {
			switch {
			case n == 1 && err == nil: // nothing to combine
			case errors.Is(err, weft.ErrOperator):
				blamed++
				if text := err.Error(); !strings.Contains(text, "fragile") || !strings.Contains(text, "coll_errors_test.go:") || !strings.Contains(text, "out of range") {
					t.Errorf("rank %d: %v", r, err)
				}
			case !errors.Is(err, weft.ErrRevoked):
				t.Errorf("%d ranks: rank %d: %v", n, r, err)
			}
		}
		if n > 1 && blamed == 0 {
			t.Errorf("%d ranks: nobody blames the operator: %v", n, results)
		}
	}
}

func TestMoreOperators(t *testing.T) {
	nan := math.NaN()
	wefttest.Run(t, 3, func(ctx context.Context, c *weft.Comm) error {
		r := c.Rank()
		var errs []error
		expect := func(name string, ok bool, err error) {
			if err != nil || !ok {
				errs = append(errs, fmt.Errorf("%s: %v %v", name, ok, err))
			}
		}
		loc := func(op weft.Op[weft.Loc[float64]], v ...float64) weft.Loc[float64] {
			l, err := weft.AllreduceValue(ctx, c, weft.Loc[float64]{Value: v[r], Index: int64(r)}, op)
			expect(op.Name(), err == nil, err)
			return l
		}
		lo, hi := weft.MinLoc[float64](), weft.MaxLoc[float64]()
		expect("minloc", loc(lo, 3, 1, 2) == weft.Loc[float64]{Value: 1, Index: 1}, nil)
		expect("minloc, equal", loc(lo, 3, 1, 1).Index == 1, nil)
		expect("minloc, zeros", loc(lo, 0, math.Copysign(0, -1), 0).Index == 1, nil)
		expect("minloc, NaN", loc(lo, -1, 5, nan).Index == 2, nil)
		expect("minloc, two NaN", loc(lo, 5, nan, nan).Index == 1, nil)
		expect("maxloc", loc(hi, 3, 1, 2) == weft.Loc[float64]{Value: 3, Index: 0}, nil)
		expect("maxloc, equal", loc(hi, 1, 3, 3).Index == 1, nil)
		expect("maxloc, zeros", loc(hi, math.Copysign(0, -1), 0, math.Copysign(0, -1)).Index == 1, nil)
		expect("maxloc, NaN", loc(hi, 1, nan, 5).Index == 1, nil)
		b, err := weft.AllreduceValue(ctx, c, r != 1, weft.And[bool]())
		expect("and", !b, err)
		b, err = weft.AllreduceValue(ctx, c, r == 1, weft.Or[bool]())
		expect("or", b, err)
		b, err = weft.AllreduceValue(ctx, c, r != 1, weft.Xor[bool]())
		expect("xor", !b, err)
		i, err := weft.AllreduceValue(ctx, c, r+2, weft.LogicalAnd[int]())
		expect("logical and", i == 1, err)
		i, err = weft.AllreduceValue(ctx, c, r, weft.LogicalAnd[int]())
		expect("logical and of a zero", i == 0, err)
		i, err = weft.AllreduceValue(ctx, c, 0, weft.LogicalOr[int]())
		expect("logical or", i == 0, err)
		i, err = weft.AllreduceValue(ctx, c, 7, weft.LogicalXor[int]())
		expect("logical xor", i == 1, err)
		s, err := weft.AllreduceValue(ctx, c, line{int64(r + 2), int64(r)}, weft.OpSlice("composeslice", false, func(f, g []line) {
			for i := range f {
				f[i] = compose(f[i], g[i])
			}
		}))
		expect("slices", s == compose(compose(line{2, 0}, line{3, 1}), line{4, 2}), err)
		return errors.Join(errs...)
	})
}

func TestValueAndAppendForms(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 8} {
		wefttest.Run(t, n, func(ctx context.Context, c *weft.Comm) error {
			r, root := c.Rank(), n-1
			var errs []error
			expect := func(name string, got, want any, err error) {
				if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
					errs = append(errs, fmt.Errorf("%s: got %v, want %v: %w", name, got, want, err))
				}
			}
			atRoot := func(v, other any) any {
				if r == root {
					return v
				}
				return other
			}
			ids := make([]int, n)
			sum := weft.Sum[int]()
			for i := range ids {
				ids[i] = i
			}
			total := n * (n - 1) / 2
			v, err := weft.ReduceValue(ctx, c, r, sum, root)
			expect("ReduceValue", v, atRoot(total, 0), err)
			v, err = weft.BcastValue(ctx, c, r, root)
			expect("BcastValue", v, root, err)
			all, err := weft.GatherValue(ctx, c, r, root)
			expect("GatherValue", all, atRoot(ids, []int{}), err)
			all, err = weft.AllgatherValue(ctx, c, r)
			expect("AllgatherValue", all, ids, err)
			v, err = weft.ScatterValue(ctx, c, ids, root)
			expect("ScatterValue", v, r, err)
			v, err = weft.ScanValue(ctx, c, r, sum)
			expect("ScanValue", v, r*(r+1)/2, err)
			v, err = weft.ExscanValue(ctx, c, r, sum)
			expect("ExscanValue", v, r*(r-1)/2, err)

			mine := ids[:r%3] // of different lengths, none on rank 0
			var joined, lengths []int
			for i := range n {
				joined = append(joined, ids[:i%3]...)
				lengths = append(lengths, i%3)
			}
			out, counts, err := weft.AllgatherAppend(ctx, c, []int{-1}, mine)
			expect("AllgatherAppend", out, append([]int{-1}, joined...), err)
			expect("AllgatherAppend counts", counts.N, lengths, nil)
			out, counts, err = weft.GatherAppend(ctx, c, []int{-1}, mine, root)
			expect("GatherAppend", out, atRoot(append([]int{-1}, joined...), []int{-1}), err)
			expect("GatherAppend counts", counts.N, atRoot(lengths, []int{}), nil)
			out, err = weft.ScatterAppend(ctx, c, []int{-1}, joined, weft.Counts{N: lengths}, root)
			expect("ScatterAppend", out, append([]int{-1}, mine...), err)

			to, want := make([][]int, n), make([][]int, n)
			for i := range n {
				for k := range (r + i) % 3 {
					to[i] = append(to[i], r*1000+i*10+k)
					want[i] = append(want[i], i*1000+r*10+k)
				}
			}
			from, err := weft.Exchange(ctx, c, to)
			expect("Exchange", from, want, err)
			return errors.Join(errs...)
		})
	}
}
