//go:build !amd64 || purego

package kernel

func sumFloat64(inout, in []float64) { sum(inout, in) }
