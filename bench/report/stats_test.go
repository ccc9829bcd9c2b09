package report

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestMedian(t *testing.T) {
	nan := math.NaN()
	for _, tc := range []struct {
		xs   []float64
		want float64
	}{
		{nil, nan}, {[]float64{nan}, nan}, {[]float64{3}, 3}, {[]float64{3, 1}, 2}, {[]float64{9, 1, 2}, 2},
		{[]float64{nan, 4, nan, 2}, 3},
	} {
		if got := Median(tc.xs); got != tc.want && !(math.IsNaN(got) && math.IsNaN(tc.want)) {
			t.Errorf("Median(%v) = %v, want %v", tc.xs, got, tc.want)
		}
	}
	xs := []float64{3, 1, 2}
	if Median(xs); xs[0] != 3 || xs[1] != 1 {
		t.Errorf("Median changed its argument: %v", xs)
	}
}

func TestRatios(t *testing.T) {
	nan := math.NaN()
	got := Ratios([]float64{1, nan, 3, 4, 5, 0}, []float64{2, 1, nan, 0, 10})
	if len(got) != 2 || got[0] != 0.5 || got[1] != 0.5 {
		t.Errorf("Ratios = %v, want [0.5 0.5]: rounds without a value or with a zero do not count", got)
	}
}

func TestInterval(t *testing.T) {
	if low, high := Interval(nil); !math.IsNaN(low) || !math.IsNaN(high) {
		t.Errorf("the interval of nothing is %v..%v", low, high)
	}
	if low, high := Interval([]float64{2, 2, 2}); low != 2 || high != 2 {
		t.Errorf("the interval of a constant is %v..%v", low, high)
	}
	rapid.Check(t, func(t *rapid.T) {
		xs := rapid.SliceOfN(rapid.Float64Range(-10, 10), 1, 30).Draw(t, "xs")
		low, high := Interval(xs)
		if m := Median(xs); low > m || m > high {
			t.Errorf("median %v outside %v..%v", m, low, high)
		}
		if l2, h2 := Interval(xs); l2 != low || h2 != high {
			t.Error("the interval of the same values differs")
		}
	})
}
