// Package kernel holds the inner loops of reductions: inout[i] = inout[i] op
// in[i] for every i, and for sum, product, minimum and maximum also
// dst[i] = a[i] op b[i] (Into) and dst[i] = s0[i] op s1[i] op ... (Many).
//
// Each kernel is specified by the plain loop in its doc comment and by these rules.
// Slices have the same length, are the same or do not overlap,
// and may be empty or nil. Kernels keep no state and may run at the same time on other
// memory.
//
// Rules for values:
//   - Integers wrap around.
//   - Every NaN that comes out of a sum, product, minimum or maximum of floats is
//     one and the same: quiet, positive, without a payload (bits
//     7FF8000000000000 and 7FC00000). Payloads of NaNs that go in are lost.
//   - Minimum and maximum of floats: a NaN on any side gives the NaN, and -0 is less
//     than +0. Like those of integers they are commutative and
//     associative, bit for bit.
//   - Sum and product of floats round once an operation, in the format of the
//     type, denormals included. They are commutative, bit for bit, and depend on the
//     brackets; Many has them from the left.
//   - The parts of complex numbers follow the rules of floats. Their product may be
//     fused where Go fuses x*y + z (not on amd64 below GOAMD64=v3): same bits
//     in all processes of one program, not between builds.
//   - Logical kernels take every value but zero for true, a NaN too, and
//     give 1 or 0.
//
// So all ranks that reduce the same values in the same order get the same bits, whichever
// of two values is on the left, and on processors of any kind. MPI asks for
// less: it leaves open what minimum and maximum do with NaNs and zeros of
// both signs, and which NaN a sum gives, and only recommends that the result not depend
// on where the ranks are.
//
// On amd64 the integers and floats of 4 and 8 bytes, named types included, have
// versions in AVX2 and AVX-512, of which the widest is used that the processor and
// the operating system have. gen writes them. Without them, on other processors and with the
// build tag purego, their twins in Go do the same, bit for bit. From L2
// on they are as fast as memory is (BenchmarkTwo and others print the part of
// the speed of a copy).
//
// The package does not know operators of users, or MINLOC pairs.
package kernel

//go:generate go run ./gen

import "fmt"

// Integer is every integer type.
type Integer interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

// Float is every floating-point type.
type Float interface{ ~float32 | ~float64 }

// Complex is every complex type.
type Complex interface{ ~complex64 | ~complex128 }

// An Operator is a reduction that has vector forms.
type Operator uint8

// The operators. Complex numbers have no OpMin and OpMax.
const (
	OpSum Operator = iota
	OpProd
	OpMin
	OpMax
	operators = iota
)

func (op Operator) String() string {
	if op < operators {
		return [...]string{"sum", "prod", "min", "max"}[op]
	}
	return fmt.Sprintf("operator %d", uint8(op))
}

// Sum sets inout[i] += in[i].
func Sum[T Integer | Float | Complex](inout, in []T) { Into(OpSum, inout, inout, in) }

// Prod sets inout[i] *= in[i].
func Prod[T Integer | Float | Complex](inout, in []T) { Into(OpProd, inout, inout, in) }

// Min sets inout[i] = min(inout[i], in[i]).
func Min[T Integer | Float](inout, in []T) { Into(OpMin, inout, inout, in) }

// Max sets inout[i] = max(inout[i], in[i]).
func Max[T Integer | Float](inout, in []T) { Into(OpMax, inout, inout, in) }

// refuse panics for source i of op, which is of another length than dst.
func refuse(op Operator, dst, i, src int) {
	panic(fmt.Sprintf("kernel: %v into %d elements or bytes: source %d has %d", op, dst, i, src))
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
