package weft_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/weft-hpc/weft"
	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/wefttest"
)

// The third level of reproducibility: the bits do not depend on the number of ranks either.

// hardVector is a vector of n elements, the same on every rank.
func hardVector[T weft.Float](n int) []T {
	x := make([]T, n)
	for i := range x {
		for k := i; ; k++ { // what is finite as a float64 may not be as a float32
			if x[i] = T(finite(i%7, k)); x[i]-x[i] == 0 {
				break
			}
		}
	}
	return x
}

// ownPart is a rank's part of a vector: of very different lengths, some of them 0.
func ownPart[T any](x []T, rank, ranks int) []T {
	at := func(r int) int { return len(x) * r * r / (ranks * ranks) }
	if ranks > 2 { // the first rank has nothing
		at = func(r int) int { return len(x) * max(r-1, 0) * max(r-1, 0) / ((ranks - 1) * (ranks - 1)) }
	}
	return x[at(rank):at(rank+1)]
}

// bigTotal is the sum of x[i]*y[i] by math/big.
func bigTotal(x, y []float64) *big.Float {
	total := new(big.Float).SetPrec(5000)
	for i := range x {
		total.Add(total, new(big.Float).SetPrec(200).Mul(big.NewFloat(x[i]), big.NewFloat(y[i])))
	}
	return total
}

// roundedOnce is the sum of the operands as an exact operator must have it.
func roundedOnce[T weft.Float](operands []T) T {
	plus, minus, nan, negativeZeros := false, false, false, 0
	var finite []float64
	for _, operand := range operands {
		switch x := float64(operand); {
		case x != x:
			nan = true
		case math.IsInf(x, 0):
			plus, minus = plus || x > 0, minus || x < 0
		case x == 0 && math.Signbit(x):
			negativeZeros++
		default:
			finite = append(finite, x)
		}
	}
	switch {
	case nan || plus && minus:
		return T(math.Float64frombits(0x7ff8 << 48))
	case plus:
		return T(math.Inf(1))
	case minus:
		return T(math.Inf(-1))
	case negativeZeros == len(operands):
		return T(math.Copysign(0, -1))
	}
	total := bigTotal(finite, ones(len(finite)))
	if _, narrow := any(T(0)).(float32); narrow {
		v, _ := total.Float32()
		return T(v)
	}
	v, _ := total.Float64()
	return T(v)
}

// finite is hard without infinities and NaNs.
func finite(rank, i int) float64 {
	for ; ; i += 101 {
		if x := hard(rank, i); x-x == 0 {
			return x
		}
	}
}

func ones(n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = 1
	}
	return x
}

// exactSums checks that all forms of exact sums have the right bits on this number of ranks, by every algorithm.
func exactSums(ctx context.Context, c *weft.Comm) error {
	n, me := c.Size(), c.Rank()
	x, y := hardVector[float64](400), hardVector[float64](533)[133:]
	total, _ := bigTotal(x, ones(len(x))).Float64()
	dot, _ := bigTotal(x, y).Float64()
	z := hardVector[float32](400)
	wide := make([]float64, len(z))
	for i, v := range z {
		wide[i] = float64(v)
	}
	narrow, _ := bigTotal(wide, ones(len(z))).Float32()

	check := func(what string, got, want float64, err error) error {
		if err == nil && math.Float64bits(got) != math.Float64bits(want) {
			err = fmt.Errorf("%v (%x), want %v (%x)", got, math.Float64bits(got), want, math.Float64bits(want))
		}
		if err != nil {
			return fmt.Errorf("rank %d of %d: %s: %w", me, n, what, err)
		}
		return nil
	}
	myX, myY := ownPart(x, me, n), ownPart(y, me, n)
	for _, name := range append(collective.Algorithms(collective.KindAllreduce), "") {
		var opts []weft.CollOption
		if name != "" {
			alg, err := collective.Lookup(collective.KindAllreduce, name)
			if err != nil {
				return err
			}
			if !alg.Suits(n, nil, true) {
				continue
			}
			opts = append(opts, weft.WithAlgorithm(name))
		}
		v, err := weft.ExactTotal(ctx, c, myX, opts...)
		if err := check(fmt.Sprintf("total by %q", name), v, total, err); err != nil {
			return err
		}
		v, err = weft.ExactDot(ctx, c, myX, myY, opts...)
		if err := check(fmt.Sprintf("dot by %q", name), v, dot, err); err != nil {
			return err
		}
		w, err := weft.ExactTotal(ctx, c, ownPart(z, me, n), opts...)
		if err := check(fmt.Sprintf("total of float32 by %q", name), float64(w), float64(narrow), err); err != nil {
			return err
		}
	}

	// Exact as an element: several sums in one vector, in other collectives and forms.
	const sums = 11
	merge := weft.MergeExact[float64]()
	mine, all := make([]weft.Exact[float64], sums), make([]weft.Exact[float64], sums)
	for i := range mine {
		mine[i].Add(myX...)
		mine[i].Add(float64(i))
		if err := mine[i].AddDot(myX, myY); err != nil {
			return err
		}
	}
	wants := func(ranks int) (want [sums]float64) { // of the first ranks
		var allX, allY []float64
		for r := range ranks {
			allX, allY = append(allX, ownPart(x, r, n)...), append(allY, ownPart(y, r, n)...)
		}
		base := bigTotal(allX, ones(len(allX)))
		base.Add(base, bigTotal(allX, allY))
		for i := range want {
			want[i], _ = new(big.Float).Add(base, big.NewFloat(float64(i*ranks))).Float64()
		}
		return want
	}
	ofAll, ofScan := wants(n), wants(me+1)
	for form, call := range []func() error{
		func() error { return weft.Allreduce(ctx, c, mine, all, merge) },
		func() error {
			s := c.Scope(ctx)
			weft.Iallreduce(s, c, mine, all, merge)
			return s.Wait()
		},
		func() error {
			p, err := weft.PlanAllreduce(c, mine, all, merge)
			if err != nil {
				return err
			}
			return p.Run(ctx)
		},
		func() error { return weft.Scan(ctx, c, mine, all, merge) },
	} {
		err := call()
		want := ofAll
		if form == 3 {
			want = ofScan
		}
		for i := range all {
			if err := check(fmt.Sprintf("form %d, sum %d", form, i), all[i].Value(), want[i], err); err != nil {
				return err
			}
		}
	}
	many := make([]weft.Exact[float64], sums*n)
	for i := range many {
		many[i] = mine[i%sums]
	}
	err := weft.ReduceScatterBlock(ctx, c, many, all, merge)
	return check("reduce-scatter", all[sums-1].Value(), ofAll[sums-1], err)
}

func init() { programs["exact sums"] = exactSums }

func TestExactSumsDoNotDependOnTheRanks(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 7, 8, 13} {
		for way, opts := range map[string][]weft.Option{"board": {weft.WithFaults(weft.Faults{})}, "faults": nil} {
			t.Run(fmt.Sprintf("%d ranks/%s", n, way), func(t *testing.T) {
				t.Parallel()
				wefttest.Run(t, n, exactSums, opts...)
			})
		}
	}
}

// SumExact has the rules for values too, in each element, and by every algorithm.
func TestSumExactOfSpecialValues(t *testing.T) {
	for _, n := range []int{2, 3, 5, 7, 8, 13} {
		for way, opts := range map[string][]weft.Option{"board": {weft.WithFaults(weft.Faults{})}, "faults": nil} {
			t.Run(fmt.Sprintf("%d ranks/%s", n, way), func(t *testing.T) {
				t.Parallel()
				wefttest.Run(t, n, specialSums, opts...)
			})
		}
	}
}

func specialSums(ctx context.Context, c *weft.Comm) error {
	if err := specialSumsOf[float64](ctx, c); err != nil {
		return err
	}
	return specialSumsOf[float32](ctx, c)
}

func specialSumsOf[T weft.Float](ctx context.Context, c *weft.Comm) error {
	n := c.Size()
	value := func(rank, i int) T {
		if i%5 == 4 {
			return T(math.Copysign(0, float64(i%2*(n-1)-rank)-0.5)) // all -0, or not
		}
		return T(hard(rank, i))
	}
	for _, count := range []int{1, 5, 100, 1500} {
		send, recv, want := make([]T, count), make([]T, count), make([]T, count)
		for i := range send {
			send[i] = value(c.Rank(), i)
			operands := make([]T, n)
			for r := range operands {
				operands[r] = value(r, i)
			}
			want[i] = roundedOnce(operands)
		}
		for _, name := range []string{"gather", "exchange", ""} {
			var opts []weft.CollOption
			if name != "" {
				opts = append(opts, weft.WithAlgorithm(name))
			}
			if err := weft.Allreduce(ctx, c, send, recv, weft.SumExact[T](), opts...); err != nil {
				return err
			}
			for i := range recv {
				if !sameBits(recv[i:i+1], want[i:i+1]) {
					return fmt.Errorf("by %q, element %d of %d: %v, want %v", name, i, count, recv[i], want[i])
				}
			}
		}
	}
	return nil
}

// The rules for values hold however the terms are spread.
func TestExactTotalOfSpecialTerms(t *testing.T) {
	inf, negativeZero := math.Inf(1), math.Copysign(0, -1)
	nan := math.Float64frombits(0x7ff8 << 48)
	for _, n := range []int{1, 2, 3, 5} {
		wefttest.Run(t, n, func(ctx context.Context, c *weft.Comm) error {
			for _, tc := range []struct {
				terms []float64
				want  float64
			}{
				{nil, 0},
				{[]float64{negativeZero}, negativeZero},
				{[]float64{negativeZero, negativeZero, negativeZero}, negativeZero},
				{[]float64{negativeZero, 0}, 0},
				{[]float64{1, negativeZero, -1}, 0},
				{[]float64{inf, 1, -inf}, nan},
				{[]float64{1, math.Float64frombits(0xfff8dead << 32)}, nan},
				{[]float64{-inf, math.MaxFloat64}, -inf},
				{[]float64{math.MaxFloat64, math.MaxFloat64, -math.MaxFloat64}, math.MaxFloat64},
				{[]float64{math.MaxFloat64, math.MaxFloat64}, inf},
				{[]float64{1e308, 5e-324, -1e308}, 5e-324},
			} {
				var part []float64
				for i, x := range tc.terms {
					if i%n == c.Rank() {
						part = append(part, x)
					}
				}
				v, err := weft.ExactTotal(ctx, c, part)
				if err != nil {
					return err
				}
				if !sameBits([]float64{v}, []float64{tc.want}) {
					return fmt.Errorf("%v on %d ranks: %v (%x), want %v", tc.terms, n, v, math.Float64bits(v), tc.want)
				}
			}
			return nil
		})
	}
}

func TestExactDotOfDifferentLengths(t *testing.T) {
	var e weft.Exact[float32]
	if err := e.AddDot(make([]float32, 3), make([]float32, 2)); !errors.Is(err, weft.ErrCount) {
		t.Errorf("AddDot: %v, want ErrCount", err)
	}
	_ = wefttest.Try(t, 3, func(ctx context.Context, c *weft.Comm) error {
		_, err := weft.ExactDot(ctx, c, make([]float64, 3), make([]float64, 3+c.Rank()%2))
		want := weft.ErrRevoked
		if c.Rank() == 1 {
			want = weft.ErrCount
		}
		if !errors.Is(err, want) {
			t.Errorf("rank %d: %v, want %v", c.Rank(), err, want)
		}
		return nil
	})
}

// A sum is rounded to a float64 on one rank and to a float32 on another: they do not agree.
func TestExactTotalOfDifferentTypes(t *testing.T) {
	_ = wefttest.Try(t, 2, func(ctx context.Context, c *weft.Comm) error {
		var err error
		if c.Rank() == 0 {
			_, err = weft.ExactTotal(ctx, c, []float64{1})
		} else {
			_, err = weft.ExactTotal(ctx, c, []float32{1})
		}
		if !errors.Is(err, weft.ErrMismatch) {
			t.Errorf("rank %d: %v, want ErrMismatch", c.Rank(), err)
		}
		return nil
	})
}

// beside runs exact and plain on so many ranks by turns, and reports the least time of each for a call, and the
// ratio: other programs on the machine slow both down, but not all the time.
func beside(b *testing.B, ranks, calls int, start func(ctx context.Context, c *weft.Comm) (exact, plain func() error)) {
	err := weft.Local(b.Context(), ranks, func(ctx context.Context, c *weft.Comm) error {
		exact, plain := start(ctx, c)
		var least [2]time.Duration
		for round := range 50 {
			for i, f := range []func() error{exact, plain} {
				begin := time.Now()
				for range calls {
					if err := f(); err != nil {
						return err
					}
				}
				if each := time.Since(begin) / time.Duration(calls); round == 0 || each < least[i] {
					least[i] = each
				}
			}
		}
		if c.Rank() == 0 {
			b.ReportMetric(0, "ns/op") // of both together: says nothing
			b.ReportMetric(float64(least[0]), "exact-ns")
			b.ReportMetric(float64(least[1]), "plain-ns")
			b.ReportMetric(float64(least[0])/float64(least[1]), "ratio")
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkExactTotal is the total of a vector on two ranks, beside a plain sum and an AllreduceValue of it.
func BenchmarkExactTotal(b *testing.B) {
	for _, n := range []int{1, 1000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			beside(b, 2, max(10, 20_000/n), func(ctx context.Context, c *weft.Comm) (exact, plain func() error) {
				x := hardVector[float64](n)
				exact = func() error {
					_, err := weft.ExactTotal(ctx, c, x)
					return err
				}
				plain = func() error {
					sum := 0.0
					for _, v := range x {
						sum += v
					}
					_, err := weft.AllreduceValue(ctx, c, sum, weft.Sum[float64]())
					return err
				}
				return exact, plain
			})
		})
	}
}

// BenchmarkSumExact is an Allreduce of a vector with SumExact, beside one with Sum: over the board, and by messages.
func BenchmarkSumExact(b *testing.B) {
	for way, algorithms := range map[string][2]string{"board": {"shared-memory", "shared-memory"}, "messages": {"exchange", "halving"}} {
		for _, n := range []int{1, 1000, 100_000} {
			b.Run(fmt.Sprintf("4 ranks/%s/%d", way, n), func(b *testing.B) {
				beside(b, 4, max(10, 2000/n), func(ctx context.Context, c *weft.Comm) (exact, plain func() error) {
					send, recv := make([]float64, n), make([]float64, n)
					for i := range send {
						send[i] = finite(c.Rank(), 2*i+1)
					}
					exact = func() error {
						return weft.Allreduce(ctx, c, send, recv, weft.SumExact[float64](), weft.WithAlgorithm(algorithms[0]))
					}
					plain = func() error {
						return weft.Allreduce(ctx, c, send, recv, weft.Sum[float64](), weft.WithAlgorithm(algorithms[1]))
					}
					return exact, plain
				})
			})
		}
	}
}
