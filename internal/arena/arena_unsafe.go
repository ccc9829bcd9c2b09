package arena

import "unsafe"

// Contains says whether b lies in the arena as a whole, and where. It takes no
// lock and costs two compares. A slice without memory (nil, or capacity 0) is
// in no arena.
func (a *Arena) Contains(b []byte) (off int, ok bool) {
	// Unsigned: an address below the range becomes a huge offset.
	p := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(a.mem)))
	if size := uintptr(len(a.mem)); p >= size || size-p < uintptr(len(b)) {
		return 0, false
	}
	return int(p), true
}
