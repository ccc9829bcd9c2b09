package main

import (
	"math"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/mat"
)

// rate is the diffusion number: the part of the difference to its four
// neighbours that a cell takes over in one step. The explicit scheme is stable
// up to 0.25.
const rate = 0.2

// diffuse computes one time step for the cells [top, bottom) x [left, right) of
// now and puts the result into next. It reads one cell further to each side.
//
// Both solvers, the parallel and the serial one, call this one function, so
// that a cell's value comes from the same operations in the same order and the
// two agree to the last bit.
func diffuse(next, now *mat.Dense, top, bottom, left, right int) {
	for i := top; i < bottom; i++ {
		above, below := now.RawRowView(i-1), now.RawRowView(i+1)
		row, out := now.RawRowView(i), next.RawRowView(i)
		for j := left; j < right; j++ {
			out[j] = row[j] + rate*(above[j]+below[j]+row[j-1]+row[j+1]-4*row[j])
		}
	}
}

// largestChange returns the largest difference between next and now among the
// cells that diffuse computed.
func largestChange(next, now *mat.Dense, top, bottom, left, right int) float64 {
	change := 0.0
	for i := top; i < bottom; i++ {
		if left < right {
			change = max(change, floats.Distance(next.RawRowView(i)[left:right], now.RawRowView(i)[left:right], math.Inf(1)))
		}
	}
	return change
}

// solveSerial takes a plate through steps time steps on one processor, without
// any communication: the answer that -check compares with.
func solveSerial(plate *mat.Dense, steps int) *mat.Dense {
	height, width := plate.Dims()
	now, next := mat.DenseCopyOf(plate), mat.DenseCopyOf(plate)
	for range steps {
		diffuse(next, now, 1, height-1, 1, width-1)
		now, next = next, now
	}
	return now
}
