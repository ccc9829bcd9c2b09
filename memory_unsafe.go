package weft

import "unsafe"

// All of the root package's unsafe code is here: element slices seen as bytes
// and back, and addresses compared.

// bytesOf returns the memory of s.
func bytesOf[T any](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
}

// sliceOf sees b, which was made by bytesOf or is aligned for any T, as elements.
func sliceOf[T any](b []byte) []T {
	var zero T
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(zero)))
}

// overlap tells how two pieces of memory lie.
func overlap(a, b []byte) (same, partial bool) {
	if len(a) == 0 || len(b) == 0 {
		return false, false
	}
	a0, b0 := uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	if a0 == b0 && len(a) == len(b) {
		return true, false
	}
	return false, a0 < b0+uintptr(len(b)) && b0 < a0+uintptr(len(a))
}

// distance returns how far b lies behind a.
func distance(a, b []byte) uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(a)))
}

// typeAddress returns a number that differs between types of v.
func typeAddress(v any) uintptr {
	return uintptr((*[2]unsafe.Pointer)(unsafe.Pointer(&v))[0])
}

// wordAt returns the 8 aligned bytes at an offset of b as a number for sync/atomic.
func wordAt(b []byte, off uint64) *uint64 {
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(b[off : off+8])))
}
