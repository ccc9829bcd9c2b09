package exact

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// A reference is the sum of terms, or of products of pairs of them, by math/big.
type reference struct {
	sum                             big.Float
	nan, plus, minus, zero, nonZero bool // seen; zero: -0
}

func (r *reference) add(x float64) {
	switch {
	case math.IsNaN(x):
		r.nan = true
	case math.IsInf(x, 1):
		r.plus = true
	case math.IsInf(x, -1):
		r.minus = true
	case x == 0 && math.Signbit(x):
		r.zero = true
		return
	default:
		r.sum.SetPrec(5000).Add(&r.sum, big.NewFloat(x))
	}
	r.nonZero = true
}

func (r *reference) addProduct(x, y float64) {
	if p := x * y; x == 0 || y == 0 || math.IsInf(x, 0) || math.IsInf(y, 0) || p != p {
		r.add(p)
		return
	}
	var p big.Float
	p.SetPrec(200).Mul(big.NewFloat(x), big.NewFloat(y))
	r.sum.SetPrec(5000).Add(&r.sum, &p)
	r.nonZero = true
}

func (r *reference) special() (float64, bool) {
	switch {
	case r.nan || r.plus && r.minus:
		return nan, true
	case r.plus:
		return math.Inf(1), true
	case r.minus:
		return math.Inf(-1), true
	case r.zero && !r.nonZero:
		return math.Copysign(0, -1), true
	}
	return 0, r.sum.Sign() == 0
}

func (r *reference) float64() float64 {
	if v, ok := r.special(); ok {
		return v
	}
	v, _ := r.sum.Float64()
	return v
}

func (r *reference) float32() float32 {
	if v, ok := r.special(); ok {
		return float32(v)
	}
	v, _ := r.sum.Float32()
	return v
}

func expect(t *testing.T, what string, s *Sum, r *reference) {
	t.Helper()
	if got, want := Round[float64](s), r.float64(); math.Float64bits(got) != math.Float64bits(want) {
		t.Fatalf("%s: %v (%x), want %v (%x)", what, got, math.Float64bits(got), want, math.Float64bits(want))
	}
	if got, want := Round[float32](s), r.float32(); math.Float32bits(got) != math.Float32bits(want) {
		t.Fatalf("%s, as float32: %v (%x), want %v (%x)", what, got, math.Float32bits(got), want, math.Float32bits(want))
	}
}

const (
	largest  = math.MaxFloat64
	smallest = math.SmallestNonzeroFloat64
	normal   = 0x1p-1022
)

var negativeZero = math.Copysign(0, -1)

// magnitudes are kinds of terms that sums by floats get wrong.
var magnitudes = map[string]func(r *rand.Rand) float64{
	"near each other": func(r *rand.Rand) float64 { return r.Float64() },
	"both signs":      func(r *rand.Rand) float64 { return r.NormFloat64() },
	"all exponents":   func(r *rand.Rand) float64 { return any64(r) },
	"huge": func(r *rand.Rand) float64 {
		return []float64{1e308, -1e308, largest, -largest, 1.5e308, 1}[r.IntN(6)]
	},
	"tiny": func(r *rand.Rand) float64 {
		return []float64{1e-320, -1e-320, smallest, -smallest, normal, -normal, 3e-308}[r.IntN(7)]
	},
	"huge and tiny": func(r *rand.Rand) float64 {
		return []float64{1e308, -1e308, 1e-320, -1e-320, 1, -1, 1e16, -1e16}[r.IntN(8)]
	},
	"halves of the last place": func(r *rand.Rand) float64 {
		return []float64{1, 0x1p-53, -0x1p-53, 0x1p-54, 0x1p-24, 0x1p-25, -0x1p-25, 0x1p-106, 0x1p-1074}[r.IntN(9)]
	},
	"zeros": func(r *rand.Rand) float64 { return []float64{negativeZero, negativeZero, negativeZero, 0}[r.IntN(4)] },
	"with infinities": func(r *rand.Rand) float64 {
		return []float64{1, -1, 1, math.Inf(1), 2, 1e300}[r.IntN(6)]
	},
	"with infinities of both signs": func(r *rand.Rand) float64 {
		return []float64{1, math.Inf(-1), math.Inf(1), 2}[r.IntN(4)]
	},
	"with NaNs": func(r *rand.Rand) float64 {
		return []float64{1, 2, math.Float64frombits(0xfff8 << 48), 1e300}[r.IntN(4)]
	},
}

// any64 is any float that is finite.
func any64(r *rand.Rand) float64 {
	for {
		if x := math.Float64frombits(r.Uint64()); x-x == 0 {
			return x
		}
	}
}

// cancelling appends the opposites of all terms but the last, somewhere.
func cancelling(r *rand.Rand, terms []float64) []float64 {
	for _, x := range terms[:max(len(terms)-1, 0)] {
		terms = append(terms, -x)
	}
	r.Shuffle(len(terms), func(i, j int) { terms[i], terms[j] = terms[j], terms[i] })
	return terms
}

var lengths = []int{0, 1, 2, 3, manyTerms - 1, manyTerms, manyTerms + 1, 200, 1001}

// forTerms runs check on terms of all kinds and lengths.
func forTerms(t *testing.T, check func(t *testing.T, r *rand.Rand, terms []float64)) {
	for name, magnitude := range magnitudes {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, uint64(len(name))))
			for _, n := range lengths {
				for round := range 6 {
					terms := make([]float64, n)
					for i := range terms {
						terms[i] = magnitude(r)
					}
					if round%2 == 1 {
						terms = cancelling(r, terms)
					}
					check(t, r, terms)
				}
			}
		})
	}
}

func narrow(terms []float64) []float32 {
	out := make([]float32, len(terms))
	for i, x := range terms {
		out[i] = float32(x)
	}
	return out
}

func TestSumIsRoundedOnce(t *testing.T) {
	forTerms(t, func(t *testing.T, r *rand.Rand, terms []float64) {
		var want reference
		for _, x := range terms {
			want.add(x)
		}
		var s Sum
		Add(&s, terms)
		expect(t, "a slice", &s, &want)

		s, want = Sum{}, reference{}
		Add(&s, narrow(terms))
		for _, x := range narrow(terms) {
			want.add(float64(x))
		}
		expect(t, "a slice of float32", &s, &want)
	})
}

// However terms are grouped and ordered, all of the Sum is the same, not only what it is rounded to.
func TestSumDoesNotDependOnOrderOrGroups(t *testing.T) {
	forTerms(t, func(t *testing.T, r *rand.Rand, terms []float64) {
		var want Sum
		Add(&want, terms)
		for _, parts := range []int{1, 2, 3, 5, 7, 8, 13} {
			sums := make([]Sum, parts)
			for i := range sums {
				Add(&sums[i], terms[len(terms)*i/parts:len(terms)*(i+1)/parts])
			}
			r.Shuffle(parts, func(i, j int) { sums[i], sums[j] = sums[j], sums[i] })
			for len(sums) > 1 { // brackets anywhere
				i := r.IntN(len(sums) - 1)
				sums[i].Merge(&sums[i+1])
				sums = append(sums[:i+1], sums[i+2:]...)
			}
			if sums[0] != want {
				t.Fatalf("%d terms in %d parts: another sum", len(terms), parts)
			}
			r.Shuffle(len(terms), func(i, j int) { terms[i], terms[j] = terms[j], terms[i] })
		}
	})
}

func TestProductsAreNotRounded(t *testing.T) {
	forTerms(t, func(t *testing.T, r *rand.Rand, x []float64) {
		y := make([]float64, len(x)+1) // may be longer
		for i := range x {
			y[i] = []float64{x[i], any64(r), 1, -0.1, 0}[r.IntN(5)]
		}
		var want reference
		for i := range x {
			want.addProduct(x[i], y[i])
		}
		var s Sum
		AddProducts(&s, x, y)
		expect(t, "products", &s, &want)

		a, b := narrow(x), narrow(y)
		s, want = Sum{}, reference{}
		for i := range a {
			want.addProduct(float64(a[i]), float64(b[i]))
		}
		AddProducts(&s, a, b)
		expect(t, "products of float32", &s, &want)
	})
}

// The largest and smallest products there are, and as many as end the sum's lower limbs.
func TestProductsReachBothEnds(t *testing.T) {
	var s Sum
	var want reference
	for range 1000 {
		for _, p := range [][2]float64{{largest, largest}, {smallest, smallest}, {-smallest, smallest}, {largest, -smallest}, {smallest, -smallest}} {
			AddProducts(&s, p[:1], p[1:])
			want.addProduct(p[0], p[1])
		}
	}
	expect(t, "both ends", &s, &want)
	for range 1000 {
		AddProducts(&s, []float64{-largest}, []float64{largest})
		want.addProduct(-largest, largest)
	}
	expect(t, "both ends, without the upper one", &s, &want)
}

func TestRules(t *testing.T) {
	inf := math.Inf(1)
	for name, tc := range map[string]struct {
		terms []float64
		want  float64
	}{
		"no terms":                          {nil, 0},
		"only -0":                           {[]float64{negativeZero, negativeZero}, negativeZero},
		"-0 and +0":                         {[]float64{negativeZero, 0}, 0},
		"a term and its opposite":           {[]float64{-1, 1, negativeZero}, 0},
		"+Inf and -Inf":                     {[]float64{inf, -inf}, nan},
		"NaN and Inf":                       {[]float64{math.NaN(), inf}, nan},
		"-Inf":                              {[]float64{largest, -inf}, -inf},
		"overflow on the way":               {[]float64{largest, largest, -largest}, largest},
		"overflow":                          {[]float64{largest, largest, -smallest}, inf},
		"half a place beyond the largest":   {[]float64{largest, 0x1p970}, inf},
		"not half a place beyond":           {[]float64{largest, 0x1p970, -smallest}, largest},
		"a tie goes to the even one":        {[]float64{1, 0x1p-53}, 1},
		"a tie goes to the even one, up":    {[]float64{1 + 0x1p-52, 0x1p-53}, 1 + 0x1p-51},
		"just above a tie":                  {[]float64{1, 0x1p-53, smallest}, 1 + 0x1p-52},
		"subnormal":                         {[]float64{normal, -smallest}, normal - smallest},
		"rounded up to the next power of 2": {[]float64{2 - 0x1p-52, 0x1p-53}, 2},
		"Kahan's":                           {[]float64{1, 1e100, 1, -1e100}, 2},
	} {
		var s Sum
		Add(&s, tc.terms)
		if got := Round[float64](&s); math.Float64bits(got) != math.Float64bits(tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	var s Sum
	AddProducts(&s, []float64{0}, []float64{inf})
	if got := Round[float64](&s); math.Float64bits(got) != math.Float64bits(nan) {
		t.Errorf("0*Inf: %v (%x)", got, math.Float64bits(got))
	}
	s = Sum{}
	AddProducts(&s, []float64{0}, []float64{-1})
	if got := Round[float64](&s); !math.Signbit(got) || got != 0 {
		t.Errorf("0*-1: %v, want -0", got)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	x := make([]float64, 1000)
	var s, o Sum
	if n := testing.AllocsPerRun(100, func() {
		Add(&s, x)
		s.addOne(1)
		AddProducts(&s, x, x)
		s.Merge(&o)
		x[0] = Round[float64](&s)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzSum compares sums of any bits, in two parts, with those of math/big.
func FuzzSum(f *testing.F) {
	for _, terms := range [][]float64{{1e308, 1e308, -1e308, 1e-320}, {negativeZero}, {1, 0x1p-53, smallest}, {math.Inf(1), math.Inf(-1)}} {
		var b []byte
		for _, x := range terms {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
		}
		f.Add(b, uint8(1))
	}
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		var terms []float64
		for ; len(b) >= 8; b = b[8:] {
			terms = append(terms, math.Float64frombits(binary.LittleEndian.Uint64(b)))
		}
		at := min(int(cut), len(terms))
		var s, rest Sum
		Add(&s, terms[at:])
		Add(&rest, terms[:at])
		s.Merge(&rest)
		var want reference
		for _, x := range terms {
			want.add(x)
		}
		expect(t, "sum", &s, &want)
		s, want = Sum{}, reference{}
		x, y := terms[:len(terms)/2], terms[len(terms)/2:]
		AddProducts(&s, x, y)
		for i := range x {
			want.addProduct(x[i], y[i])
		}
		expect(t, "products", &s, &want)
	})
}
