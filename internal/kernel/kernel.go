// Package kernel holds the inner loops of reductions: inout[i] = inout[i] op
// in[i] for every i.
//
// Each kernel is specified by the plain loop in its doc comment; a faster version
// gives the same bits as that loop, except for which NaN comes out of two, which
// Go leaves to the compiler. inout and in have the same length (a kernel
// panics when in is shorter), do not overlap or are the same slice, and may be
// empty or nil. Kernels keep no state and may run at the same time on other
// memory.
//
// Rules for values:
//   - Integers wrap around.
//   - Min and Max of floats: a NaN on either side gives a NaN, and -0 is less
//     than +0. So the result does not depend on the order of operands, except for
//     which NaN it is.
//   - Sum and Prod of floats round once an operation, in the format of the type.
//     Prod of complex numbers may be fused where Go fuses x*y + z (not on amd64
//     below GOAMD64=v3): same bits in all processes of one program, not
//     between builds.
//   - Logical kernels take every value but zero for true, a NaN too, and
//     give 1 or 0.
//
// The kernels are generic functions with one operator in the loop. Go compiles
// one copy for each basic type, named types included, in which the operator is
// one instruction: for vectors they run like functions written for the type, and
// cost some nanoseconds more a call (BenchmarkKernels). Sum of float64, the one that programs wait for, has an AVX2 version on
// amd64.
//
// The package does not know bytes, operators of users, or MINLOC pairs.
package kernel

// Integer is every integer type.
type Integer interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

// Float is every floating-point type.
type Float interface{ ~float32 | ~float64 }

// Complex is every complex type.
type Complex interface{ ~complex64 | ~complex128 }

// Sum sets inout[i] += in[i].
func Sum[T Integer | Float | Complex](inout, in []T) {
	if x, ok := any(inout).([]float64); ok {
		sumFloat64(x, any(in).([]float64))
		return
	}
	sum(inout, in)
}

func sum[T Integer | Float | Complex](inout, in []T) {
	in = in[:len(inout)]
	for i := range inout {
		inout[i] += in[i]
	}
}

// Prod sets inout[i] *= in[i].
func Prod[T Integer | Float | Complex](inout, in []T) {
	in = in[:len(inout)]
	for i := range inout {
		inout[i] *= in[i]
	}
}

// Min sets inout[i] = min(inout[i], in[i]), the built-in function.
func Min[T Integer | Float](inout, in []T) {
	in = in[:len(inout)]
	for i := range inout {
		inout[i] = min(inout[i], in[i])
	}
}

// Max sets inout[i] = max(inout[i], in[i]), the built-in function.
func Max[T Integer | Float](inout, in []T) {
	in = in[:len(inout)]
	for i := range inout {
		inout[i] = max(inout[i], in[i])
	}
}

// BitAnd sets inout[i] &= in[i].
func BitAnd[T Integer](inout, in []T) {
	in = in[:len(inout)]
	for i := range inout {
		inout[i] &= in[i]
	}
}

// BitOr sets inout[i] |= in[i].
func BitOr[T Integer](inout, in []T) {
	in = in[:len(inout)]
	for i := range inout {
		inout[i] |= in[i]
	}
}

// BitXor sets inout[i] ^= in[i].
func BitXor[T Integer](inout, in []T) {
	in = in[:len(inout)]
	for i := range inout {
		inout[i] ^= in[i]
	}
}

// LogicalAnd sets inout[i] to 1 if inout[i] != 0 && in[i] != 0, else to 0.
func LogicalAnd[T Integer | Float](inout, in []T) {
	in = in[:len(inout)]
	for i := range inout {
		inout[i] = truth[T](inout[i] != 0 && in[i] != 0)
	}
}

// LogicalOr sets inout[i] to 1 if inout[i] != 0 || in[i] != 0, else to 0.
func LogicalOr[T Integer | Float](inout, in []T) {
	in = in[:len(inout)]
	for i := range inout {
		inout[i] = truth[T](inout[i] != 0 || in[i] != 0)
	}
}

// LogicalXor sets inout[i] to 1 if (inout[i] != 0) != (in[i] != 0), else to 0.
func LogicalXor[T Integer | Float](inout, in []T) {
	in = in[:len(inout)]
	for i := range inout {
		inout[i] = truth[T]((inout[i] != 0) != (in[i] != 0))
	}
}

func truth[T Integer | Float](b bool) T {
	if b {
		return 1
	}
	return 0
}

// And sets inout[i] = inout[i] && in[i].
func And[T ~bool](inout, in []T) {
	in = in[:len(inout)]
	for i := range inout {
		inout[i] = inout[i] && in[i]
	}
}

// Or sets inout[i] = inout[i] || in[i].
func Or[T ~bool](inout, in []T) {
	in = in[:len(inout)]
	for i := range inout {
		inout[i] = inout[i] || in[i]
	}
}

// Xor sets inout[i] = inout[i] != in[i].
func Xor[T ~bool](inout, in []T) {
	in = in[:len(inout)]
	for i := range inout {
		inout[i] = inout[i] != in[i]
	}
}
