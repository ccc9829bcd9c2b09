package report

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Median returns the median of xs, leaving out NaN, or NaN if nothing is left.
func Median(xs []float64) float64 {
	xs = slices.DeleteFunc(slices.Clone(xs), math.IsNaN)
	if len(xs) == 0 {
		return math.NaN()
	}
	return medianInPlace(xs)
}

func medianInPlace(xs []float64) float64 {
	slices.Sort(xs)
	mid := len(xs) / 2
	if len(xs)%2 == 1 {
		return xs[mid]
	}
	return (xs[mid-1] + xs[mid]) / 2
}

// Ratios divides ours by theirs round by round, leaving out rounds in which
// either is missing or theirs is zero.
func Ratios(ours, theirs []float64) []float64 {
	var rs []float64
	for i := range min(len(ours), len(theirs)) {
		if r := ours[i] / theirs[i]; !math.IsNaN(r) && !math.IsInf(r, 0) {
			rs = append(rs, r)
		}
	}
	return rs
}

const resamples = 2000

// Interval returns the 95 % interval of the median of xs by the percentile
// bootstrap. It uses the same random numbers at each call, so that a table can
// be made again from the same rounds.
func Interval(xs []float64) (low, high float64) {
	xs = slices.DeleteFunc(slices.Clone(xs), math.IsNaN)
	if len(xs) == 0 {
		return math.NaN(), math.NaN()
	}
	rng := rand.New(rand.NewPCG(1, 2))
	medians := make([]float64, resamples)
	draw := make([]float64, len(xs))
	for i := range medians {
		for k := range draw {
			draw[k] = xs[rng.IntN(len(xs))]
		}
		medians[i] = medianInPlace(draw)
	}
	slices.Sort(medians)
	return medians[resamples*25/1000], medians[resamples*975/1000]
}
