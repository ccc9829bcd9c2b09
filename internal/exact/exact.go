// Package exact sums floats, and products of floats, without rounding. A Sum is a
// number in fixed point that is long enough for every float64 and every product
// of two, so terms may come in any order and in any groups: the bits of the Sum,
// and the float that it is rounded to once at the end, depend on nothing but which
// terms there are.
//
// The idea is Kulisch's long accumulator (Kulisch, Miranker: The arithmetic of the
// digital computer, 1986); that the terms of a slice go to two of them, by sign, so that
// carries seldom go far, is this package's.
//
// Rules for values:
//   - The result is the float next to the exact sum, the even one of two that are
//     equally near: what one rounding by IEEE 754 gives. Subnormal floats are as good as others.
//   - It is infinite if the exact sum is beyond the largest float by half a unit in its last
//     place, or if an infinite term was added. Nothing overflows on the way.
//   - A NaN, infinite terms of both signs, and zero times infinity give the NaN of
//     package kernel: quiet, positive, without a payload.
//   - A sum that is zero is +0, but -0 if there were terms and all were -0.
//
// Methods neither allocate nor lock. A Sum is used by one goroutine at a time.
package exact

import (
	"math"
	"math/bits"
)

// Float is every floating-point type.
type Float interface{ ~float32 | ~float64 }

const (
	// limbs is the length of a number: 4211 bits for what a sum of products can
	// have in it, the sign, and 2^76 terms.
	limbs = 67

	// lowest is the weight of the last bit, as a power of two: no more than -2148, that
	// of the smallest product, and so that the place of a float's last bit is its
	// exponent, as it is stored, from limb floats on.
	lowest = -1075 - 64*floats

	floats = 17

	// manyTerms is the number of terms from which on a slice is worth numbers of
	// its own.
	manyTerms = 48
)

// What was seen among the terms.
const (
	seenPositiveInf = 1 << iota
	seenNegativeInf
	seenNaN
	seenNegativeZero
	seenOther // than -0
)

// Sum is a sum that was not rounded. The zero Sum is that of no terms. It holds no
// pointers, and any bytes are a Sum.
type Sum struct {
	limb [limbs]uint64 // two's complement, the lowest first
	seen uint64
}

// Add adds terms.
func Add[T Float](s *Sum, terms []T) {
	if len(terms) >= manyTerms {
		addMany(s, terms)
		return
	}
	for _, x := range terms {
		s.addOne(float64(x))
	}
}

// addOne adds one term.
func (s *Sum) addOne(x float64) {
	b := math.Float64bits(x)
	mantissa, exponent, ok := split(b)
	if !ok {
		s.see(x)
		return
	}
	s.seen |= seenOther
	s.shifted(mantissa, exponent+64*floats, b>>63)
}

// split returns what a float is made of: mantissa*2^(exponent-1075). ok is false for
// zeros, infinities and NaNs.
func split(b uint64) (mantissa uint64, exponent uint, ok bool) {
	mantissa, exponent = b&(1<<52-1), uint(b>>52&0x7ff)
	switch exponent {
	case 0:
		return mantissa, 1, mantissa != 0
	case 0x7ff:
		return 0, 0, false
	}
	return mantissa | 1<<52, exponent, true
}

// see notes a term that is a zero, infinite or not a number.
func (s *Sum) see(x float64) {
	switch {
	case x != x:
		s.seen |= seenNaN
	case x > 0:
		s.seen |= seenPositiveInf
	case x < 0:
		s.seen |= seenNegativeInf
	case math.Signbit(x):
		s.seen |= seenNegativeZero
		return
	}
	s.seen |= seenOther
}

// shifted adds mantissa << at, or subtracts it if negative is 1.
func (s *Sum) shifted(mantissa uint64, at uint, negative uint64) {
	i, shift := at>>6, at&63
	low, high := mantissa<<shift, mantissa>>1>>(63-shift)
	var carry uint64
	if negative != 0 {
		s.limb[i], carry = bits.Sub64(s.limb[i], low, 0)
		s.limb[i+1], carry = bits.Sub64(s.limb[i+1], high, carry)
		for i += 2; carry != 0 && i < limbs; i++ {
			s.limb[i], carry = bits.Sub64(s.limb[i], 0, carry)
		}
		return
	}
	s.limb[i], carry = bits.Add64(s.limb[i], low, 0)
	s.limb[i+1], carry = bits.Add64(s.limb[i+1], high, carry)
	for i += 2; carry != 0 && i < limbs; i++ {
		s.limb[i], carry = bits.Add64(s.limb[i], 0, carry)
	}
}

// bySign has a number for the terms of each sign. They only grow, so a carry beyond the limbs
// of a term is rare, where one number around zero would be carried through to its
// end at each change of sign.
type bySign [2][limbs]uint64

// into adds both to s.
func (n *bySign) into(s *Sum) {
	var plus, minus uint64
	for i := range s.limb {
		s.limb[i], plus = bits.Add64(s.limb[i], n[0][i], plus)
		s.limb[i], minus = bits.Sub64(s.limb[i], n[1][i], minus)
	}
}

// addMany adds the terms of a slice.
func addMany[T Float](s *Sum, terms []T) {
	var parts bySign
	negativeZeros := 0
	for _, x := range terms {
		b := math.Float64bits(float64(x))
		mantissa, exponent, ok := split(b)
		if !ok {
			s.see(float64(x))
			if b == 1<<63 {
				negativeZeros++
			}
			continue
		}
		part := &parts[b>>63]
		i, shift := floats+exponent>>6&31, exponent&63
		var carry uint64
		part[i], carry = bits.Add64(part[i], mantissa<<shift, 0)
		part[i+1], carry = bits.Add64(part[i+1], mantissa>>1>>(63-shift), carry)
		for i += 2; carry != 0; i++ {
			part[i], carry = bits.Add64(part[i], 0, carry)
		}
	}
	if negativeZeros < len(terms) {
		s.seen |= seenOther
	}
	parts.into(s)
}

// AddProducts adds x[i]*y[i] for every i of x, each product as it is without a rounding. y is
// no shorter than x.
func AddProducts[T Float](s *Sum, x, y []T) {
	y = y[:len(x)]
	var parts bySign
	for i := range x {
		a, b := float64(x[i]), float64(y[i])
		p, q := math.Float64bits(a), math.Float64bits(b)
		pm, pe, ok := split(p)
		qm, qe, also := split(q)
		if !ok || !also {
			s.see(a * b)
			continue
		}
		s.seen |= seenOther
		part := &parts[(p^q)>>63]
		high, low := bits.Mul64(pm, qm)
		at := pe + qe + uint(-2*1075-lowest)
		i, shift := at>>6, at&63
		var carry uint64
		part[i], carry = bits.Add64(part[i], low<<shift, 0)
		part[i+1], carry = bits.Add64(part[i+1], high<<shift|low>>1>>(63-shift), carry)
		part[i+2], carry = bits.Add64(part[i+2], high>>1>>(63-shift), carry)
		for i += 3; carry != 0; i++ {
			part[i], carry = bits.Add64(part[i], 0, carry)
		}
	}
	parts.into(s)
}

// Merge adds the terms of other.
func (s *Sum) Merge(other *Sum) {
	var carry uint64
	for i := range s.limb {
		s.limb[i], carry = bits.Add64(s.limb[i], other.limb[i], carry)
	}
	s.seen |= other.seen
}

// Round returns the sum as a T, rounded once.
func Round[T Float](s *Sum) T {
	if T(1<<24+1) == 1<<24 {
		return T(s.round(24, -149))
	}
	return T(s.round(53, -1074))
}

// nan is the one that all sums have.
var nan = math.Float64frombits(0x7ff8 << 48)

// round returns the sum in the format of a float: so many bits, the last of which is no
// less than 2^smallest.
func (s *Sum) round(precision, smallest int) float64 {
	const infinities = seenPositiveInf | seenNegativeInf
	switch {
	case s.seen&seenNaN != 0, s.seen&infinities == infinities:
		return nan
	case s.seen&seenPositiveInf != 0:
		return math.Inf(1)
	case s.seen&seenNegativeInf != 0:
		return math.Inf(-1)
	}
	number := s.limb
	negative := number[limbs-1]>>63 != 0
	if negative {
		carry := uint64(1)
		for i := range number {
			number[i], carry = bits.Add64(^number[i], 0, carry)
		}
	}
	top := limbs - 1
	for top >= 0 && number[top] == 0 {
		top--
	}
	if top < 0 {
		if s.seen&(seenNegativeZero|seenOther) == seenNegativeZero {
			return math.Copysign(0, -1)
		}
		return 0
	}
	// last is the place of the last bit that the float has.
	last := max(64*top+bits.Len64(number[top])-precision, smallest-lowest)
	at := func(i int) uint64 { // the 64 bits from place i on
		v := number[i>>6] >> (i & 63)
		if next := i>>6 + 1; next < limbs {
			v |= number[next] << 1 << (63 - i&63)
		}
		return v
	}
	mantissa := at(last)
	if half := last - 1; at(half)&1 != 0 {
		below := number[half>>6] & (1<<(half&63) - 1)
		for i := half>>6 - 1; below == 0 && i >= 0; i-- {
			below = number[i]
		}
		if below != 0 || mantissa&1 != 0 {
			mantissa++
		}
	}
	v := math.Ldexp(float64(mantissa), last+lowest)
	if precision == 24 && v > math.MaxFloat32 {
		v = math.Inf(1)
	}
	if negative {
		v = -v
	}
	return v
}
