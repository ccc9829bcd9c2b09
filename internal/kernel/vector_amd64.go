//go:build !purego

package kernel

import "github.com/klauspost/cpuid/v2"

// vectors is the widest set that this processor has and whose registers the
// operating system keeps, which cpuid checks for both.
var vectors = func() isa {
	switch {
	case cpuid.CPU.Supports(cpuid.AVX512F, cpuid.AVX512DQ):
		return isaAVX512
	case cpuid.CPU.Supports(cpuid.AVX2):
		return isaAVX2
	}
	return isaGo
}()
