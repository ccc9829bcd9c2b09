package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// lengths reach every tail of the assembly; pieces, around and above the most
// that one call of it takes, are for the sum of float64.
var (
	lengths = []int{0, 1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 47, 255}
	pieces  = []int{32<<10 - 1, 32 << 10, 32<<10 + 1, 64<<10 + 19}
)

// against compares a kernel with the loop that specifies it, bit for bit, at
// odd alignments, and checks that it writes nothing else.
func against[T any](t *testing.T, name string, draw func() T, bits func(T) uint64, kernel func(inout, in []T), spec func(a, b T) T) {
	t.Run(fmt.Sprintf("%s/%v", name, reflect.TypeFor[T]()), func(t *testing.T) {
		ns := lengths
		if _, ok := any(*new(T)).(float64); ok && name == "Sum" {
			ns = slices.Concat(lengths, pieces)
		}
		for _, n := range ns {
			for _, off := range []int{0, 1, 3} {
				a, b := make([]T, n+off+2), make([]T, n+off+2)
				want := make([]T, len(a))
				for i := range a {
					a[i], b[i] = draw(), draw()
					want[i] = a[i]
					if i >= off && i < off+n {
						want[i] = spec(a[i], b[i])
					}
				}
				keep := slices.Clone(b)
				kernel(a[off:off+n:off+n], b[off:off+n:off+n])
				for i := range a {
					if bits(a[i]) != bits(want[i]) {
						t.Fatalf("n=%d offset=%d: element %d of %d is %v, want %v", n, off, i, len(a), a[i], want[i])
					}
					if bits(b[i]) != bits(keep[i]) {
						t.Fatalf("n=%d offset=%d: in[%d] was written", n, off, i)
					}
				}
			}
		}
		kernel(nil, nil)
		defer func() {
			if recover() == nil {
				t.Error("a shorter in was not refused")
			}
		}()
		kernel(make([]T, 33), make([]T, 32))
	})
}

// floatBits tells -0 from +0 and takes all NaNs for one.
func floatBits[T Float](x T) uint64 {
	if x != x {
		return 1<<64 - 1
	}
	return math.Float64bits(float64(x))
}

func boolToInt[T Integer | Float](b bool) T {
	if b {
		return 1
	}
	return 0
}

func testIntegers[T Integer](t *testing.T) {
	draw := func() T { return T(rand.Uint64() & -(rand.Uint64() & 1)) } // half are 0
	bits := func(x T) uint64 { return uint64(x) }
	against(t, "Sum", draw, bits, Sum[T], func(a, b T) T { return a + b })
	against(t, "Prod", draw, bits, Prod[T], func(a, b T) T { return a * b })
	against(t, "BitAnd", draw, bits, BitAnd[T], func(a, b T) T { return a & b })
	against(t, "BitOr", draw, bits, BitOr[T], func(a, b T) T { return a | b })
	against(t, "BitXor", draw, bits, BitXor[T], func(a, b T) T { return a ^ b })
	testOrdered(t, draw, bits)
}

func testOrdered[T Integer | Float](t *testing.T, draw func() T, bits func(T) uint64) {
	against(t, "LogicalAnd", draw, bits, LogicalAnd[T], func(a, b T) T { return boolToInt[T](a != 0 && b != 0) })
	against(t, "LogicalOr", draw, bits, LogicalOr[T], func(a, b T) T { return boolToInt[T](a != 0 || b != 0) })
	against(t, "LogicalXor", draw, bits, LogicalXor[T], func(a, b T) T { return boolToInt[T]((a != 0) != (b != 0)) })
	less := func(a, b T) bool { // with -0 before +0
		return a < b || a == b && math.Signbit(float64(a)) && !math.Signbit(float64(b))
	}
	against(t, "Min", draw, bits, Min[T], func(a, b T) T {
		if a != a || !(b != b) && less(a, b) {
			return a
		}
		return b
	})
	against(t, "Max", draw, bits, Max[T], func(a, b T) T {
		if a != a || !(b != b) && less(b, a) {
			return a
		}
		return b
	})
}

var specials = []float64{0, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1), 1, -1, math.MaxFloat64, 5e-324}

func drawFloat[T Float]() T {
	if rand.IntN(2) == 0 {
		return T(specials[rand.IntN(len(specials))])
	}
	return T(rand.NormFloat64() * math.Pow(10, float64(rand.IntN(30)-15)))
}

func testFloats[T Float](t *testing.T) {
	against(t, "Sum", drawFloat[T], floatBits[T], Sum[T], func(a, b T) T { return a + b })
	against(t, "Prod", drawFloat[T], floatBits[T], Prod[T], func(a, b T) T { return a * b })
	testOrdered(t, drawFloat[T], floatBits[T])
}

type (
	celsius float64
	level   int32
	flag    bool
)

func TestIntegers(t *testing.T) {
	testIntegers[int](t)
	testIntegers[int8](t)
	testIntegers[int16](t)
	testIntegers[int32](t)
	testIntegers[int64](t)
	testIntegers[uint](t)
	testIntegers[uint8](t)
	testIntegers[uint16](t)
	testIntegers[uint32](t)
	testIntegers[uint64](t)
	testIntegers[uintptr](t)
	testIntegers[level](t)
}

func TestFloats(t *testing.T) {
	testFloats[float32](t)
	testFloats[float64](t)
	testFloats[celsius](t)
}

func TestComplex(t *testing.T) {
	// Small whole numbers: exact, also where products are fused.
	draw := func() complex128 { return complex(float64(rand.IntN(200)-100), float64(rand.IntN(200)-100)) }
	bits := func(x complex128) uint64 {
		return math.Float64bits(real(x)+0) ^ math.Float64bits(imag(x)+0)*3
	}
	against(t, "Sum", draw, bits, Sum[complex128], func(a, b complex128) complex128 { return a + b })
	against(t, "Prod", draw, bits, Prod[complex128], func(a, b complex128) complex128 {
		return complex(real(a)*real(b)-imag(a)*imag(b), real(a)*imag(b)+imag(a)*real(b))
	})
	draw64 := func() complex64 { return complex64(draw()) }
	bits64 := func(x complex64) uint64 { return bits(complex128(x)) }
	against(t, "Sum", draw64, bits64, Sum[complex64], func(a, b complex64) complex64 { return a + b })
	against(t, "Prod", draw64, bits64, Prod[complex64], func(a, b complex64) complex64 {
		return complex(real(a)*real(b)-imag(a)*imag(b), real(a)*imag(b)+imag(a)*real(b))
	})
}

func TestBools(t *testing.T) {
	draw := func() flag { return rand.IntN(2) == 0 }
	bits := func(x flag) uint64 {
		if x {
			return 1
		}
		return 0
	}
	against(t, "And", draw, bits, And[flag], func(a, b flag) flag { return a && b })
	against(t, "Or", draw, bits, Or[flag], func(a, b flag) flag { return a || b })
	against(t, "Xor", draw, bits, Xor[flag], func(a, b flag) flag { return a != b })
}

// The documented rules, without a second implementation.
func TestMinMaxRules(t *testing.T) {
	nan, minus := math.NaN(), math.Copysign(0, -1)
	for _, tc := range []struct{ a, b, min, max float64 }{
		{nan, 1, nan, nan}, {1, nan, nan, nan}, {nan, math.Inf(-1), nan, nan}, {math.Inf(1), nan, nan, nan},
		{0, minus, minus, 0}, {minus, 0, minus, 0}, {minus, minus, minus, minus},
		{math.Inf(-1), 1, math.Inf(-1), 1}, {math.Inf(1), 1, 1, math.Inf(1)},
	} {
		lo, hi := []float64{tc.a}, []float64{tc.a}
		Min(lo, []float64{tc.b})
		Max(hi, []float64{tc.b})
		if floatBits(lo[0]) != floatBits(tc.min) || floatBits(hi[0]) != floatBits(tc.max) {
			t.Errorf("%v, %v: min %v max %v, want %v %v", tc.a, tc.b, lo[0], hi[0], tc.min, tc.max)
		}
	}
}

// A sum never depends on where in the slice an element is, nor a NaN on which
// side it is, for all lengths of the fast loop and its tail.
func TestSumFloat64AtEveryPosition(t *testing.T) {
	for n := range 100 {
		for i := range n {
			a, b := make([]float64, n), make([]float64, n)
			a[i], b[i] = 1e16, 1
			b[n-1-i] += math.Inf(1)
			a[n/2] = math.NaN()
			want := slices.Clone(a)
			for j := range want {
				want[j] += b[j]
			}
			Sum(a, b)
			for j := range a {
				if floatBits(a[j]) != floatBits(want[j]) {
					t.Fatalf("n=%d: element %d is %v, want %v", n, j, a[j], want[j])
				}
			}
		}
	}
}

func TestSameSlice(t *testing.T) {
	a := make([]float64, 101)
	for i := range a {
		a[i] = float64(i)
	}
	Sum(a, a)
	for i := range a {
		if a[i] != float64(2*i) {
			t.Fatalf("element %d is %v", i, a[i])
		}
	}
}

func TestNoAllocation(t *testing.T) {
	a, b := make([]float64, 64), make([]float64, 64)
	c, d := make([]celsius, 64), make([]celsius, 64)
	if n := testing.AllocsPerRun(100, func() { Sum(a, b); Sum(c, d); Max(a, b) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
