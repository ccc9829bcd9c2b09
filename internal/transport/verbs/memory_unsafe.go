package verbs

import "unsafe"

// addressOf is where the memory of b starts.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
