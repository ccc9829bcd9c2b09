//go:build !purego

package kernel

import "github.com/klauspost/cpuid/v2"

var hasAVX2 = cpuid.CPU.Supports(cpuid.AVX2)

// pieceElems bounds one call of the assembly, in which the goroutine cannot be
// preempted and the garbage collector waits for it: 256 KiB, some 10 us.
const pieceElems = 32 << 10

// sumFloat64 is sum for float64. Every element is one addition, so the order of
// the loop changes no bit.
func sumFloat64(inout, in []float64) {
	in = in[:len(inout)]
	if !hasAVX2 {
		sum(inout, in)
		return
	}
	for len(inout) >= 16 {
		n := min(len(inout), pieceElems) &^ 15
		sumFloat64AVX2(inout[:n], in[:n])
		inout, in = inout[n:], in[n:]
	}
	sum(inout, in)
}

// sumFloat64AVX2 adds in to inout. The length is a multiple of 16, and in is as
// long as inout.
//
//go:noescape
func sumFloat64AVX2(inout, in []float64)
