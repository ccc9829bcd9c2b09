package exact

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// beside runs ours and plain by turns and reports the best time of each for a term, and the
// ratio: other programs on the machine slow both down, but not all the time.
func beside(b *testing.B, terms int, ours, plain func()) {
	rounds := max(1, 64<<10/terms)
	best := func(least time.Duration, f func()) time.Duration {
		start := time.Now()
		for range rounds {
			f()
		}
		return min(least, time.Since(start))
	}
	a, p := time.Hour, time.Hour
	for b.Loop() {
		a, p = best(a, ours), best(p, plain)
	}
	each := float64(rounds * terms)
	b.ReportMetric(0, "ns/op") // of both together: says nothing
	b.ReportMetric(float64(a)/each, "ns/term")
	b.ReportMetric(float64(p)/each, "plain-ns/term")
	b.ReportMetric(float64(a)/float64(p), "ratio")
}

func random[T Float](n int) []T {
	x := make([]T, n)
	for i := range x {
		x[i] = T(rand.NormFloat64())
	}
	return x
}

var sink float64

//go:noinline
func plainSum[T Float](x []T) {
	var s T
	for _, v := range x {
		s += v
	}
	sink = float64(s)
}

//go:noinline
func plainDot[T Float](x, y []T) {
	var s T
	for i, v := range x {
		s += v * y[i]
	}
	sink = float64(s)
}

// BenchmarkSlice is the sum, and the dot product, of a slice, beside a loop in Go.
func BenchmarkSlice(b *testing.B) {
	for _, n := range []int{16, 1000, 100_000} {
		x, y, z := random[float64](n), random[float64](n), random[float32](n)
		b.Run(fmt.Sprintf("sum/float64/%d", n), func(b *testing.B) {
			beside(b, n, func() { var s Sum; Add(&s, x); sink = Round[float64](&s) }, func() { plainSum(x) })
		})
		b.Run(fmt.Sprintf("sum/float32/%d", n), func(b *testing.B) {
			beside(b, n, func() { var s Sum; Add(&s, z); sink = Round[float64](&s) }, func() { plainSum(z) })
		})
		b.Run(fmt.Sprintf("dot/float64/%d", n), func(b *testing.B) {
			beside(b, n, func() { var s Sum; AddProducts(&s, x, y); sink = Round[float64](&s) }, func() { plainDot(x, y) })
		})
	}
}

// BenchmarkElements is the sum of elements of several slices, beside a loop in Go: of values near each
// other, and of any, whose sums all need a Sum.
func BenchmarkElements(b *testing.B) {
	for _, sources := range []int{2, 3, 8, -8} {
		const n = 1000
		x, name := make([][]float64, max(sources, -sources)), fmt.Sprintf("near/%d", sources)
		for k := range x {
			x[k] = random[float64](n)
		}
		if sources < 0 {
			sources = -sources
			name = fmt.Sprintf("any/%d", sources)
			r := rand.New(rand.NewPCG(1, 2))
			for k := range x {
				for i := range x[k] {
					x[k][i] = any64(r)
				}
			}
		}
		dst := make([]float64, n)
		b.Run(name, func(b *testing.B) {
			beside(b, n*sources, func() { Elements(dst, sources, func(k int) []float64 { return x[k] }) }, func() {
				copy(dst, x[0])
				for _, src := range x[1:] {
					for i, v := range src {
						dst[i] += v
					}
				}
			})
		})
	}
}

// BenchmarkMerge is what a step of a reduction of Sums costs, and the rounding at its end.
func BenchmarkMerge(b *testing.B) {
	var s, o Sum
	o.addOne(1)
	for b.Loop() {
		s.Merge(&o)
	}
	sink = Round[float64](&s)
}
