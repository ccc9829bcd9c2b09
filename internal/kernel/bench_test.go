package kernel

import (
	"fmt"
	"reflect"
	"testing"
	"time"
)

// footprints are bytes of all the memory that a benchmark goes through: within
// the first cache, the second, the third of a server, and beyond.
var footprints = []struct {
	name  string
	bytes int
}{{"L1", 24 << 10}, {"L2", 768 << 10}, {"L3", 12 << 20}, {"memory", 384 << 20}}

// throughput runs reduce, which goes through traffic bytes each time, by turns
// with the runtime's copy within as much memory, and reports the best of each:
// other programs on the machine slow both down, but not all the time.
func throughput(b *testing.B, footprint, traffic int, reduce func()) {
	x, y := make([]byte, footprint/2), make([]byte, footprint/2)
	rounds := max(1, 128<<10/footprint)
	best := func(rate float64, bytes int, f func()) float64 {
		start := time.Now()
		for range rounds {
			f()
		}
		return max(rate, float64(bytes*rounds)/float64(time.Since(start).Nanoseconds()))
	}
	var ours, floor float64
	copy(x, y)
	reduce()
	for b.Loop() {
		ours = best(ours, traffic, reduce)
		floor = best(floor, footprint, func() { copy(x, y) })
	}
	b.ReportMetric(0, "ns/op") // of both together: says nothing
	b.ReportMetric(ours, "GB/s")
	b.ReportMetric(floor, "copy-GB/s")
	b.ReportMetric(ours/floor, "ratio")
}

// each runs f with every instruction set of this processor.
func each(b *testing.B, f func(b *testing.B)) {
	defer func() { active = vectors }()
	for s := isaGo; s <= vectors; s++ {
		active = s
		b.Run(s.String(), f)
	}
}

// arrays makes k arrays of n elements, touched, and not all at one place in a
// page, as large ones otherwise are.
func arrays[T Integer | Float](k, n int) [][]T {
	all := make([][]T, k)
	for i := range all {
		all[i] = make([]T, n+72*i)[72*i:]
		for j := range all[i] {
			all[i][j] = T(j%5 + 1)
		}
	}
	return all
}

func benchTwo[T Integer | Float](b *testing.B, op Operator) {
	size := int(reflect.TypeFor[T]().Size())
	b.Run(fmt.Sprintf("%v/%v", op, reflect.TypeFor[T]()), func(b *testing.B) {
		for _, f := range footprints {
			if f.bytes > 100<<20 && (op != OpSum || size != 8) {
				continue
			}
			x := arrays[T](3, f.bytes/3/size)
			b.Run(f.name, func(b *testing.B) {
				each(b, func(b *testing.B) {
					throughput(b, f.bytes, f.bytes, func() { Into(op, x[2], x[0], x[1]) })
				})
			})
		}
	})
}

// BenchmarkTwo is dst = a op b.
func BenchmarkTwo(b *testing.B) {
	for op := range Operator(operators) {
		benchTwo[float64](b, op)
		benchTwo[float32](b, op)
		benchTwo[int64](b, op)
		benchTwo[int32](b, op)
	}
}

// BenchmarkInPlace is a op= b.
func BenchmarkInPlace(b *testing.B) {
	for _, f := range footprints {
		x := arrays[float64](2, f.bytes/2/8)
		b.Run(f.name, func(b *testing.B) {
			each(b, func(b *testing.B) {
				throughput(b, f.bytes, f.bytes/2*3, func() { Sum(x[0], x[1]) })
			})
		})
	}
}

// BenchmarkMany is a sum of several sources.
func BenchmarkMany(b *testing.B) {
	for _, k := range []int{3, 4, 8, 16, 33} {
		for _, f := range footprints {
			x := arrays[float64](k+1, f.bytes/(k+1)/8)
			b.Run(fmt.Sprintf("k=%d/%s", k, f.name), func(b *testing.B) {
				each(b, func(b *testing.B) {
					throughput(b, f.bytes, f.bytes, func() { Many(OpSum, x[k], x[:k]) })
				})
			})
		}
	}
}

// BenchmarkShort is what a call costs.
func BenchmarkShort(b *testing.B) {
	for _, n := range []int{1, 2, 7, 8, 31, 64} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			each(b, func(b *testing.B) {
				x := arrays[float64](2, n)
				best := time.Hour
				for b.Loop() {
					start := time.Now()
					for range 1000 {
						Sum(x[0], x[1])
					}
					best = min(best, time.Since(start))
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(best.Nanoseconds())/1000, "ns/call")
			})
		})
	}
}
