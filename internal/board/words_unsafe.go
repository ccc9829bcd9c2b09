package board

import (
	"sync/atomic"
	"unsafe"
)

// word32 and word64 are the words of a slot, which starts on a page.

func word32(mem []byte, off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(unsafe.SliceData(mem[off : off+4])))
}

func word64(mem []byte, off int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(mem[off : off+8])))
}

// postIn is a post of a slot.
func postIn(slot []byte, off int) *post {
	return (*post)(unsafe.Pointer(unsafe.SliceData(slot[off : off+postSize])))
}

var _ [postSize]byte = [unsafe.Sizeof(post{})]byte{}

// overlap tells whether two slices have memory in common.
func overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	a0, b0 := uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return a0 < b0+uintptr(len(b)) && b0 < a0+uintptr(len(a))
}
