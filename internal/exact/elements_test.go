package exact

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
)

// elements checks Elements of n sources against the reference, also into one of them.
func elements[T Float](t *testing.T, sources [][]T) {
	t.Helper()
	want := make([]T, len(sources[0]))
	for i := range want {
		var r reference
		for _, src := range sources {
			r.add(float64(src[i]))
		}
		if len(sources) == 1 && sources[0][i] != sources[0][i] {
			want[i] = sources[0][i]
			continue
		}
		if want[i] = T(r.float64()); T(1<<24+1) == 1<<24 {
			want[i] = T(r.float32())
		}
	}
	dsts := append([][]T{make([]T, len(want))}, sources[len(sources)/2])
	for k, dst := range dsts {
		Elements(dst, len(sources), func(k int) []T { return sources[k] })
		for i := range dst {
			if math.Float64bits(float64(dst[i])) != math.Float64bits(float64(want[i])) {
				t.Fatalf("element %d of %d sources, destination %d: %v, want %v", i, len(sources), k, dst[i], want[i])
			}
		}
	}
}

func TestElements(t *testing.T) {
	forTerms(t, func(t *testing.T, r *rand.Rand, terms []float64) {
		for _, n := range []int{1, 2, 3, 5, 7, 8, 13} {
			for _, length := range []int{0, 1, 63, 64, 65, 131} {
				if len(terms) == 0 {
					continue
				}
				sources, narrows := make([][]float64, n), make([][]float32, n)
				for k := range sources {
					sources[k] = make([]float64, length)
					for i := range sources[k] {
						sources[k][i] = terms[r.IntN(len(terms))]
					}
					narrows[k] = narrow(sources[k])
				}
				elements(t, sources)
				elements(t, narrows)
				if len(terms) > manyTerms {
					return // no new kind
				}
			}
		}
	})
}

func TestElementsAllocateNothing(t *testing.T) {
	sources := [][]float64{make([]float64, 100), make([]float64, 100), make([]float64, 100)}
	sources[1][50], sources[2][50] = 1e308, 1e-308
	dst := make([]float64, 100)
	if n := testing.AllocsPerRun(100, func() {
		Elements(dst, len(sources), func(k int) []float64 { return sources[k] })
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzElements compares the sums of single elements of any bits with those of math/big.
func FuzzElements(f *testing.F) {
	for _, terms := range [][]float64{{1e308, 1e308, -1e308, 1e-320}, {negativeZero, negativeZero}, {1, 0x1p-53, smallest}, {math.Inf(1), math.Inf(-1), 1}, {1, 0x1p-24, 0x1p-60}} {
		var b []byte
		for _, x := range terms {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var wide [][]float64
		var narrows [][]float32
		for ; len(b) >= 8; b = b[8:] {
			x := binary.LittleEndian.Uint64(b)
			wide = append(wide, []float64{math.Float64frombits(x)})
			narrows = append(narrows, []float32{math.Float32frombits(uint32(x))})
		}
		if len(wide) > 1 {
			elements(t, wide)
			elements(t, narrows)
		}
	})
}
