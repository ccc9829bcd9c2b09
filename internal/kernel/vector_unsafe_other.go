//go:build !amd64 || purego

package kernel

import "unsafe"

// This build has no assembly.
const vectors = isaGo

func runAVX2(Operator, class, unsafe.Pointer, *unsafe.Pointer, int, int, int) {
	panic("kernel: built without AVX2")
}
func runAVX512(Operator, class, unsafe.Pointer, *unsafe.Pointer, int, int, int) {
	panic("kernel: built without AVX-512")
}
