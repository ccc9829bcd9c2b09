package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The rules for values, each stated once more without the kernels' code and
// checked with every set of instructions.

func nan64(bits uint64) float64 { return math.Float64frombits(0x7FF0_0000_0000_0000 | bits) }

func TestFloat64Rules(t *testing.T) {
	inf, zero, minus := math.Inf(1), 0.0, math.Copysign(0, -1)
	quiet, payload, signalling, negative := nan64(1<<51), nan64(1<<51|0xBEEF), nan64(1), math.Copysign(nan64(1<<51), -1)
	the := math.Float64frombits(nanBits64)
	for _, c := range []struct {
		op         Operator
		a, b, want float64
	}{
		{OpSum, payload, 1, the}, {OpSum, 1, signalling, the}, {OpSum, payload, negative, the}, {OpSum, negative, payload, the},
		{OpSum, inf, -inf, the}, {OpSum, -inf, inf, the}, {OpSum, inf, 1, inf}, {OpSum, minus, minus, minus}, {OpSum, zero, minus, zero},
		{OpSum, math.MaxFloat64, math.MaxFloat64, inf}, {OpSum, 5e-324, 5e-324, 1e-323}, {OpSum, 1, -1, zero},
		{OpProd, zero, inf, the}, {OpProd, -inf, zero, the}, {OpProd, payload, 0, the}, {OpProd, 1, negative, the}, {OpProd, minus, 1, minus},
		{OpProd, -1, zero, minus}, {OpProd, 5e-324, 0.5, zero}, {OpProd, 5e-324, 3, 1.5e-323}, {OpProd, -inf, -inf, inf},
		{OpMin, zero, minus, minus}, {OpMin, minus, zero, minus}, {OpMin, minus, minus, minus}, {OpMin, zero, zero, zero},
		{OpMax, zero, minus, zero}, {OpMax, minus, zero, zero}, {OpMax, minus, minus, minus}, {OpMax, zero, zero, zero},
		{OpMin, quiet, 1, the}, {OpMin, 1, payload, the}, {OpMin, signalling, -inf, the}, {OpMin, -inf, negative, the}, {OpMin, payload, negative, the},
		{OpMax, quiet, 1, the}, {OpMax, 1, payload, the}, {OpMax, signalling, inf, the}, {OpMax, inf, negative, the}, {OpMax, negative, payload, the},
		{OpMin, inf, -inf, -inf}, {OpMax, -inf, inf, inf}, {OpMin, 5e-324, zero, zero}, {OpMax, -5e-324, minus, minus}, {OpMin, -5e-324, minus, -5e-324},
	} {
		eachSet(t, func(t *testing.T) {
			for _, n := range []int{1, 3, 9, 100} { // the value at every place
				for i := range n {
					a, b := slices.Repeat([]float64{2}, n), slices.Repeat([]float64{2}, n)
					a[i], b[i] = c.a, c.b
					Into(c.op, a, a, b)
					if got := math.Float64bits(a[i]); got != math.Float64bits(c.want) {
						t.Fatalf("%v of %v (%x) and %v (%x) at %d of %d is %x, want %v (%x)", c.op,
							c.a, math.Float64bits(c.a), c.b, math.Float64bits(c.b), i, n, got, c.want, math.Float64bits(c.want))
					}
					for j := range a {
						if j != i && a[j] != [...]float64{4, 4, 2, 2}[c.op] {
							t.Fatalf("%v of 2 and 2 at %d beside %d of %d is %v", c.op, j, i, n, a[j])
						}
					}
				}
			}
		})
	}
}

func TestFloat32Rules(t *testing.T) {
	bits := math.Float32frombits
	for _, c := range []struct {
		op         Operator
		a, b, want uint32
	}{
		{OpSum, 0x7FC00001, 0x3F800000, nanBits32}, {OpSum, 0x3F800000, 0xFF800001, nanBits32}, {OpSum, 0x7F800000, 0xFF800000, nanBits32},
		{OpSum, 1, 1, 2}, {OpSum, 0x80000000, 0x80000000, 0x80000000}, {OpSum, 0x7F7FFFFF, 0x7F7FFFFF, 0x7F800000},
		{OpProd, 0, 0xFF800000, nanBits32}, {OpProd, 0xFFC12345, 0, nanBits32}, {OpProd, 0x80000000, 0x3F800000, 0x80000000}, {OpProd, 3, 0x40000000, 6},
		{OpMin, 0, 0x80000000, 0x80000000}, {OpMin, 0x80000000, 0, 0x80000000}, {OpMax, 0, 0x80000000, 0}, {OpMax, 0x80000000, 0, 0},
		{OpMin, 0xFFFFFFFF, 0xFF800000, nanBits32}, {OpMin, 0xFF800000, 0x7F800001, nanBits32},
		{OpMax, 0xFFFFFFFF, 0x7F800000, nanBits32}, {OpMax, 0x7F800000, 0x7F800001, nanBits32}, {OpMax, 1, 0, 1}, {OpMin, 1, 0, 0},
	} {
		eachSet(t, func(t *testing.T) {
			for _, n := range []int{1, 7, 17, 150} {
				for i := range n {
					a, b := make([]float32, n), make([]float32, n)
					a[i], b[i] = bits(c.a), bits(c.b)
					Into(c.op, b, a, b)
					if got := math.Float32bits(b[i]); got != c.want {
						t.Fatalf("%v of %08x and %08x at %d of %d is %08x, want %08x", c.op, c.a, c.b, i, n, got, c.want)
					}
				}
			}
		})
	}
}

func testIntegerRules[T Integer](t *testing.T) {
	size := reflect.TypeFor[T]().Size()
	lowest, highest := T(0), ^T(0)
	if highest < 0 {
		lowest = 1 << (8*size - 1)
		highest = ^lowest
	}
	values := []T{0, 1, 2, lowest, lowest + 1, highest, highest - 1, ^T(0), 1 << (4*size - 1), 1<<(4*size) - 1, 1 << (4 * size), 3 << (8*size - 3)}
	plain := [...]func(a, b T) T{
		func(a, b T) T { return a + b },
		func(a, b T) T {
			var x T // shift and add
			for i := range 8 * size {
				if b>>i&1 != 0 {
					x += a << i
				}
			}
			return x
		},
		func(a, b T) T {
			if a < b {
				return a
			}
			return b
		},
		func(a, b T) T {
			if a > b {
				return a
			}
			return b
		},
	}
	for op, f := range plain {
		for _, n := range []int{1, 5, 70} {
			for _, x := range values {
				for i, y := range values {
					a, b, c := slices.Repeat([]T{x}, n), slices.Repeat([]T{7}, n), make([]T, n)
					b[i%n] = y
					Into(Operator(op), c, a, b)
					for j := range c {
						if want := f(a[j], b[j]); c[j] != want {
							t.Fatalf("%v of %d and %d at %d of %d %T is %d, want %d", Operator(op), a[j], b[j], j, n, x, c[j], want)
						}
					}
				}
			}
		}
	}
}

func TestIntegerRules(t *testing.T) {
	eachSet(t, func(t *testing.T) {
		testIntegerRules[int64](t)
		testIntegerRules[int32](t)
		testIntegerRules[uint64](t)
		testIntegerRules[uint32](t)
		testIntegerRules[int](t)
		testIntegerRules[uint](t)
		testIntegerRules[uintptr](t)
		testIntegerRules[int16](t)
		testIntegerRules[uint8](t)
		testIntegerRules[level](t)
	})
}

// Parts of complex numbers follow the rules of floats.
func TestComplexNaN(t *testing.T) {
	eachSet(t, func(t *testing.T) {
		for _, op := range []Operator{OpSum, OpProd} {
			a := []complex128{complex(nan64(7), 1), complex(1, nan64(7)), complex(2, 3)}
			Into(op, a, a, []complex128{complex(1, 1), complex(1, 1), complex(1, 1)})
			b := []complex64{complex(math.Float32frombits(0xFF800001), 1)}
			Into(op, b, b, []complex64{1})
			parts := []float64{real(a[0]), imag(a[1])}
			if op == OpProd {
				parts = append(parts, imag(a[0]), real(a[1]))
			} else if imag(a[0]) != 2 || real(a[1]) != 2 {
				t.Errorf("sum touched the other part: %v", a)
			}
			for _, x := range parts {
				if math.Float64bits(x) != nanBits64 {
					t.Errorf("%v: a NaN is %x", op, math.Float64bits(x))
				}
			}
			if math.Float32bits(real(b[0])) != nanBits32 {
				t.Errorf("%v: a NaN is %x", op, math.Float32bits(real(b[0])))
			}
		}
	})
}

// Operands in any order give the same bits, and minimum, maximum and integers
// under any brackets.
func TestCommutativeAndAssociative(t *testing.T) {
	eachSet(t, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			op := Operator(rapid.IntRange(0, operators-1).Draw(t, "op"))
			kind := rapid.SampledFrom(kinds).Draw(t, "kind")
			if isComplex(kind) {
				kind = reflect.Float64
			}
			n := rapid.IntRange(1, 100).Draw(t, "elements")
			r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 2))
			abc := make([][]byte, 3)
			for i := range abc {
				abc[i] = make([]byte, n*shapes[kind].size)
				fill(r, kind, abc[i])
			}
			reduce := func(srcs ...[]byte) []byte {
				dst := make([]byte, len(srcs[0]))
				ManyBytes(op, kind, dst, srcs)
				return dst
			}
			a, b, c := abc[0], abc[1], abc[2]
			if x, y := reduce(a, b), reduce(b, a); !slices.Equal(x, y) {
				t.Fatalf("%v of %v: % x and % x give % x, the other way round % x", op, kind, a, b, x, y)
			}
			if x, y := reduce(a, b, c), reduce(reduce(a, b), c); !slices.Equal(x, y) {
				t.Fatalf("%v of %v: not from the left", op, kind)
			}
			float := kind == reflect.Float64 || kind == reflect.Float32
			if float && (op == OpSum || op == OpProd) {
				return // rounding depends on the brackets
			}
			if x, y := reduce(a, b, c), reduce(a, reduce(b, c)); !slices.Equal(x, y) {
				t.Fatalf("%v of %v: % x, % x, % x give % x and % x under other brackets", op, kind, a, b, c, x, y)
			}
		})
	})
}

// The order of a sum shows in its rounding.
func TestManyIsFromTheLeft(t *testing.T) {
	eachSet(t, func(t *testing.T) {
		for k := 2; k <= 40; k++ {
			srcs := make([][]float64, k)
			for i := range srcs {
				srcs[i] = []float64{math.Pow(-3, float64(i*5%17)), 1e16 * float64(i%3-1), 1}
			}
			want := slices.Clone(srcs[0])
			for _, s := range srcs[1:] {
				for i := range want {
					want[i] += s[i]
				}
			}
			dst := make([]float64, 3)
			Many(OpSum, dst, srcs)
			if !slices.Equal(dst, want) {
				t.Errorf("%d sources: %v, want %v", k, dst, want)
			}
		}
	})
}

// One source is copied as it is, and none is refused, as is what does not fit.
func TestManyAtTheEdges(t *testing.T) {
	dst := make([]float64, 1)
	Many(OpSum, dst, [][]float64{{nan64(7)}})
	if math.Float64bits(dst[0]) != math.Float64bits(nan64(7)) {
		t.Errorf("a single NaN became %x", math.Float64bits(dst[0]))
	}
	Many(OpMax, nil, [][]int32{nil, {}, nil})
	for want, f := range map[string]func(){
		"kernel: max of no sources":                                      func() { Many(OpMax, dst, nil) },
		"kernel: sum into 1 elements or bytes: source 1 has 2":           func() { Many(OpSum, dst, [][]float64{{1}, {1, 2}}) },
		"kernel: sum into 2 elements or bytes: source 0 has 1":           func() { Into(OpSum, make([]int, 2), make([]int, 1), make([]int, 2)) },
		"kernel: prod into 2 elements or bytes: source 1 has 3":          func() { Prod(make([]int, 2), make([]int, 3)) },
		"kernel: there is no min of complex128":                          func() { Into(OpMin, nil, nil, []complex128{}) },
		"kernel: there is no operator 4 of float64":                      func() { Into(operators, dst, dst, dst) },
		"kernel: there is no sum of string":                              func() { ManyBytes(OpSum, reflect.String, nil, nil) },
		"kernel: there is no sum of bool":                                func() { ManyBytes(OpSum, reflect.Bool, nil, nil) },
		"kernel: sum of complex64: 12 bytes are not elements of 8 bytes": func() { ManyBytes(OpSum, reflect.Complex64, make([]byte, 12), nil) },
		"kernel: sum into 16 elements or bytes: source 0 has 8":          func() { ManyBytes(OpSum, reflect.Float64, make([]byte, 16), [][]byte{make([]byte, 8)}) },
		"kernel: there is no max of complex64":                           func() { ManyBytes(OpMax, reflect.Complex64, nil, nil) },
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("panic %q, want %q", got, want)
				}
			}()
			f()
		}()
	}
}

func TestManyDoesNotAllocate(t *testing.T) {
	eachSet(t, func(t *testing.T) {
		defer func(n int) { streamBytes = n }(streamBytes)
		for _, streamBytes = range []int{1, math.MaxInt} {
			srcs := make([][]float64, 20)
			raw := make([][]byte, 20)
			for i := range srcs {
				srcs[i], raw[i] = make([]float64, 20<<10), make([]byte, 1<<10)
			}
			dst, bytes := make([]float64, 20<<10), make([]byte, 1<<10)
			if n := testing.AllocsPerRun(10, func() {
				Into(OpSum, dst, srcs[0], srcs[1])
				Many(OpMin, dst, srcs[:3])
				Many(OpMin, dst, srcs)
				ManyBytes(OpSum, reflect.Complex128, bytes, raw)
			}); n != 0 {
				t.Errorf("%v allocations", n)
			}
		}
	})
}
