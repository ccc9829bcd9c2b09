package weft

import (
	"reflect"

	"github.com/weft-hpc/weft/internal/kernel"
)

// Sum adds. Complex numbers and integers have it too; integers wrap. Floats are rounded at each
// addition; SumExact, ExactTotal and MergeExact are for sums that are not.
func Sum[T Number]() Op[T] {
	if op := builtin[T](&sums); op != nil {
		return *op
	}
	return newOp("sum", kernel.Sum[T]).manyBy(kernel.OpSum)
}

// Prod multiplies.
func Prod[T Number]() Op[T] {
	if op := builtin[T](&prods); op != nil {
		return *op
	}
	return newOp("prod", kernel.Prod[T]).manyBy(kernel.OpProd)
}

// Min is the smaller one. A NaN on any rank gives NaN, and -0 is less than +0.
func Min[T Real]() Op[T] {
	if op := builtin[T](&mins); op != nil {
		return *op
	}
	return newOp("min", kernel.Min[T]).manyBy(kernel.OpMin)
}

// Max is the larger one. A NaN on any rank gives NaN, and -0 is less than +0.
func Max[T Real]() Op[T] {
	if op := builtin[T](&maxs); op != nil {
		return *op
	}
	return newOp("max", kernel.Max[T]).manyBy(kernel.OpMax)
}

// BitAnd is the bitwise and.
func BitAnd[T Integer]() Op[T] {
	if op := builtin[T](&ands); op != nil {
		return *op
	}
	return newOp("bitand", kernel.BitAnd[T])
}

// BitOr is the bitwise or.
func BitOr[T Integer]() Op[T] {
	if op := builtin[T](&ors); op != nil {
		return *op
	}
	return newOp("bitor", kernel.BitOr[T])
}

// BitXor is the bitwise exclusive or.
func BitXor[T Integer]() Op[T] {
	if op := builtin[T](&xors); op != nil {
		return *op
	}
	return newOp("bitxor", kernel.BitXor[T])
}

// opSet holds an operator for each predeclared type, so that Sum[float64]() and
// the like allocate nothing.
type opSet struct {
	i   Op[int]
	i8  Op[int8]
	i16 Op[int16]
	i32 Op[int32]
	i64 Op[int64]
	u   Op[uint]
	u8  Op[uint8]
	u16 Op[uint16]
	u32 Op[uint32]
	u64 Op[uint64]
	f32 Op[float32]
	f64 Op[float64]
	c64 Op[complex64]
	c28 Op[complex128]
}

var (
	sums  = numberOps("sum", kernel.Sum[float32], kernel.Sum[float64], kernel.Sum[complex64], kernel.Sum[complex128], integerOps("sum", kernel.Sum, kernel.Sum, kernel.Sum, kernel.Sum, kernel.Sum, kernel.Sum, kernel.Sum, kernel.Sum, kernel.Sum, kernel.Sum)).manyBy(kernel.OpSum)
	prods = numberOps("prod", kernel.Prod[float32], kernel.Prod[float64], kernel.Prod[complex64], kernel.Prod[complex128], integerOps("prod", kernel.Prod, kernel.Prod, kernel.Prod, kernel.Prod, kernel.Prod, kernel.Prod, kernel.Prod, kernel.Prod, kernel.Prod, kernel.Prod)).manyBy(kernel.OpProd)
	mins  = numberOps("min", kernel.Min[float32], kernel.Min[float64], nil, nil, integerOps("min", kernel.Min, kernel.Min, kernel.Min, kernel.Min, kernel.Min, kernel.Min, kernel.Min, kernel.Min, kernel.Min, kernel.Min)).manyBy(kernel.OpMin)
	maxs  = numberOps("max", kernel.Max[float32], kernel.Max[float64], nil, nil, integerOps("max", kernel.Max, kernel.Max, kernel.Max, kernel.Max, kernel.Max, kernel.Max, kernel.Max, kernel.Max, kernel.Max, kernel.Max)).manyBy(kernel.OpMax)
	ands  = integerOps("bitand", kernel.BitAnd, kernel.BitAnd, kernel.BitAnd, kernel.BitAnd, kernel.BitAnd, kernel.BitAnd, kernel.BitAnd, kernel.BitAnd, kernel.BitAnd, kernel.BitAnd)
	ors   = integerOps("bitor", kernel.BitOr, kernel.BitOr, kernel.BitOr, kernel.BitOr, kernel.BitOr, kernel.BitOr, kernel.BitOr, kernel.BitOr, kernel.BitOr, kernel.BitOr)
	xors  = integerOps("bitxor", kernel.BitXor, kernel.BitXor, kernel.BitXor, kernel.BitXor, kernel.BitXor, kernel.BitXor, kernel.BitXor, kernel.BitXor, kernel.BitXor, kernel.BitXor)
)

func integerOps(name string, i func(a, b []int), i8 func(a, b []int8), i16 func(a, b []int16), i32 func(a, b []int32), i64 func(a, b []int64),
	u func(a, b []uint), u8 func(a, b []uint8), u16 func(a, b []uint16), u32 func(a, b []uint32), u64 func(a, b []uint64)) opSet {
	return opSet{i: newOp(name, i), i8: newOp(name, i8), i16: newOp(name, i16), i32: newOp(name, i32), i64: newOp(name, i64),
		u: newOp(name, u), u8: newOp(name, u8), u16: newOp(name, u16), u32: newOp(name, u32), u64: newOp(name, u64)}
}

func numberOps(name string, f32 func(a, b []float32), f64 func(a, b []float64), c64 func(a, b []complex64), c28 func(a, b []complex128), s opSet) opSet {
	s.f32, s.f64 = newOp(name, f32), newOp(name, f64)
	if c64 != nil {
		s.c64, s.c28 = newOp(name, c64), newOp(name, c28)
	}
	return s
}

// manyBy adds to operators the form that has many sources.
func (s opSet) manyBy(op kernel.Operator) opSet {
	s.i, s.i8, s.i16, s.i32, s.i64 = s.i.manyBy(op), s.i8.manyBy(op), s.i16.manyBy(op), s.i32.manyBy(op), s.i64.manyBy(op)
	s.u, s.u8, s.u16, s.u32, s.u64 = s.u.manyBy(op), s.u8.manyBy(op), s.u16.manyBy(op), s.u32.manyBy(op), s.u64.manyBy(op)
	s.f32, s.f64 = s.f32.manyBy(op), s.f64.manyBy(op)
	if s.c64.raw != nil {
		s.c64, s.c28 = s.c64.manyBy(op), s.c28.manyBy(op)
	}
	return s
}

func (o Op[T]) manyBy(op kernel.Operator) Op[T] {
	kind := reflect.TypeFor[T]().Kind()
	o.raw.Many = func(dst []byte, sources [][]byte) { kernel.ManyBytes(op, kind, dst, sources) }
	return o
}

func newOp[T any](name string, kernel func(inout, in []T)) Op[T] {
	return Op[T]{name, opVariant(name, true), rawOp(true, kernel)}
}

// builtin returns the operator for T from a set, or nil for a type that is not
// predeclared.
func builtin[T any](s *opSet) *Op[T] {
	var p any
	switch any((*T)(nil)).(type) {
	case *int:
		p = &s.i
	case *int8:
		p = &s.i8
	case *int16:
		p = &s.i16
	case *int32:
		p = &s.i32
	case *int64:
		p = &s.i64
	case *uint:
		p = &s.u
	case *uint8:
		p = &s.u8
	case *uint16:
		p = &s.u16
	case *uint32:
		p = &s.u32
	case *uint64:
		p = &s.u64
	case *float32:
		p = &s.f32
	case *float64:
		p = &s.f64
	case *complex64:
		p = &s.c64
	case *complex128:
		p = &s.c28
	}
	op, _ := p.(*Op[T])
	return op
}
