package weft

import (
	"math"

	"github.com/weft-hpc/weft/internal/kernel"
)

// Loc is a value and where it is: a rank, or any index that the program gives.
type Loc[T Real] struct {
	Value T
	Index int64
}

// MinLoc is the smaller value with its index, and the smaller index of equal
// values. A NaN is smaller than everything, as in Min, and -0 smaller than +0.
// (MPI 4.1, 6.9.4)
func MinLoc[T Real]() Op[Loc[T]] {
	return locOp("minloc", func(a, b T) bool { return a < b || a == b && signbit(a) && !signbit(b) })
}

// MaxLoc is the larger value with its index, and the smaller index of equal
// values. A NaN is larger than everything, as in Max, and +0 larger than -0. (MPI
// 4.1, 6.9.4)
func MaxLoc[T Real]() Op[Loc[T]] {
	return locOp("maxloc", func(a, b T) bool { return a > b || a == b && !signbit(a) && signbit(b) })
}

// locOp makes an operator that prefers a to b if better says so.
func locOp[T Real](name string, better func(a, b T) bool) Op[Loc[T]] {
	return newOp(name, func(inout, in []Loc[T]) {
		for i := range inout {
			a, b := inout[i], in[i]
			aNaN, bNaN := a.Value != a.Value, b.Value != b.Value
			take := bNaN && !aNaN
			switch {
			case aNaN && bNaN, !aNaN && !bNaN && !better(a.Value, b.Value) && !better(b.Value, a.Value):
				take = b.Index < a.Index
			case !aNaN && !bNaN:
				take = better(b.Value, a.Value)
			}
			if take {
				inout[i] = b
			}
		}
	})
}

// signbit tells -0 from +0.
func signbit[T Real](v T) bool { return v == 0 && math.Signbit(float64(v)) }

// And is the logical and. (MPI 4.1, 6.9.2: MPI_LAND)
func And[T ~bool]() Op[T] { return newOp("and", kernel.And[T]) }

// Or is the logical or. (MPI 4.1, 6.9.2: MPI_LOR)
func Or[T ~bool]() Op[T] { return newOp("or", kernel.Or[T]) }

// Xor is the logical exclusive or. (MPI 4.1, 6.9.2: MPI_LXOR)
func Xor[T ~bool]() Op[T] {
	return newOp("xor", func(inout, in []T) {
		for i := range inout {
			inout[i] = inout[i] != in[i]
		}
	})
}

// LogicalAnd is And for numbers: every one but zero is true, and the result 1 or 0.
func LogicalAnd[T Real]() Op[T] { return newOp("logicaland", kernel.LogicalAnd[T]) }

// LogicalOr is Or for numbers.
func LogicalOr[T Real]() Op[T] { return newOp("logicalor", kernel.LogicalOr[T]) }

// LogicalXor is Xor for numbers.
func LogicalXor[T Real]() Op[T] { return newOp("logicalxor", kernel.LogicalXor[T]) }
