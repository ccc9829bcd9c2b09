package fake

import "unsafe"

// address is where the memory of b starts.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
