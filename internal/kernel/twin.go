package kernel

import "math"

// The plain Go twins of the assembly, which say what it computes: same bits for
// the same input. They are the kernels where there is no assembly. dst, a and b
// are of equal length; dst may be a or b.

// The one NaN that comes out of float kernels.
const (
	nanBits64 = 0x7FF8000000000000
	nanBits32 = 0x7FC00000
)

func twinInteger[T Integer](op Operator, dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	switch op {
	case OpSum:
		for i := range dst {
			dst[i] = a[i] + b[i]
		}
	case OpProd:
		for i := range dst {
			dst[i] = a[i] * b[i]
		}
	case OpMin:
		for i := range dst {
			dst[i] = min(a[i], b[i])
		}
	case OpMax:
		for i := range dst {
			dst[i] = max(a[i], b[i])
		}
	}
}

// twinFloat needs the NaN as a value of T. x != x holds for a NaN only.
func twinFloat[T Float](op Operator, nan T, dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	switch op {
	case OpSum:
		for i := range dst {
			x := a[i] + b[i]
			if x != x {
				x = nan
			}
			dst[i] = x
		}
	case OpProd:
		for i := range dst {
			x := a[i] * b[i]
			if x != x {
				x = nan
			}
			dst[i] = x
		}
	case OpMin:
		for i := range dst {
			x := min(a[i], b[i])
			if x != x {
				x = nan
			}
			dst[i] = x
		}
	case OpMax:
		for i := range dst {
			x := max(a[i], b[i])
			if x != x {
				x = nan
			}
			dst[i] = x
		}
	}
}

func twinProdComplex64(dst, a, b []complex64) {
	a, b = a[:len(dst)], b[:len(dst)]
	nan := math.Float32frombits(nanBits32)
	for i := range dst {
		x := a[i] * b[i]
		re, im := real(x), imag(x)
		if re != re {
			re = nan
		}
		if im != im {
			im = nan
		}
		dst[i] = complex(re, im)
	}
}

func twinProdComplex128(dst, a, b []complex128) {
	a, b = a[:len(dst)], b[:len(dst)]
	nan := math.Float64frombits(nanBits64)
	for i := range dst {
		x := a[i] * b[i]
		re, im := real(x), imag(x)
		if re != re {
			re = nan
		}
		if im != im {
			im = nan
		}
		dst[i] = complex(re, im)
	}
}
