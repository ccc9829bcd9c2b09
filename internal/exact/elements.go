package exact

import "math"

// Elements sets dst[i] to the exact sum of element i of n sources, rounded once. The
// rules are those of Sum, but a NaN of a single source may keep its payload. source returns
// one of them, which has the length of dst; dst may be one of them, and overlaps none otherwise.
//
// Most elements need no Sum: the rounding errors of a plain sum are floats themselves, and if
// these add up without another error, which is what is checked, one rounding of
// both is the answer (Ogita, Rump, Oishi: Accurate sum and dot product, 2005).
func Elements[T Float](dst []T, n int, source func(k int) []T) {
	const block = 64 // elements, whose state stays in the first-level cache
	var (
		sum, lost [block]float64
		hard      [block]bool // the errors had errors
	)
	for lo := 0; lo < len(dst); lo += block {
		hi := min(lo+block, len(dst))
		sum, lost, hard := sum[:hi-lo], lost[:hi-lo], hard[:hi-lo]
		for i, x := range source(0)[lo:hi] {
			sum[i], lost[i], hard[i] = float64(x), 0, false
		}
		for k := 1; k < n; k++ {
			for i, x := range source(k)[lo:hi] {
				s, e := twoSum(sum[i], float64(x))
				l, e := twoSum(lost[i], e)
				sum[i], lost[i] = s, l
				if e != 0 { // so is a NaN, which infinities leave as well
					hard[i] = true
				}
			}
		}
		for i := range sum {
			switch {
			case hard[i]:
				dst[lo+i] = element(n, source, lo+i)
			case lost[i] == 0: // with the sign of a zero
				dst[lo+i] = T(sum[i])
			default:
				dst[lo+i] = roundPair[T](sum[i], lost[i])
			}
		}
	}
}

// twoSum returns a+b and the error of that, which is exact unless something overflows. (Knuth: The
// art of computer programming, volume 2, 4.2.2)
func twoSum(a, b float64) (sum, err float64) {
	sum = a + b
	bb := sum - a
	return sum, (a - (sum - bb)) + (b - bb)
}

// roundPair returns a+b, rounded once to T.
func roundPair[T Float](a, b float64) T {
	sum, err := twoSum(a, b)
	if err != 0 && T(1<<24+1) == 1<<24 {
		// The second rounding, to a float32, must not see a tie that is none: to odd first.
		if u := math.Float64bits(sum); u&1 == 0 {
			if (err > 0) == (sum > 0) {
				u++
			} else {
				u--
			}
			sum = math.Float64frombits(u)
		}
	}
	return T(sum)
}

// element is one of Elements, by way of a Sum.
func element[T Float](n int, source func(k int) []T, i int) T {
	var s Sum
	for k := range n {
		s.addOne(float64(source(k)[i]))
	}
	return Round[T](&s)
}
