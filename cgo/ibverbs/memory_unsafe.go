//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import "unsafe"

// addressOf is the address of memory that lives outside the Go heap.
func addressOf(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// batch is a weft_batch with its arrays, in C memory, as Go slices.
type batch struct {
	c         *C.struct_weft_batch
	maxSGEs   int
	maxInline int
	sends     []C.struct_weft_send // or recvs
	recvs     []C.struct_weft_recv
	sges      []C.struct_weft_sge
	inlines   []byte
}

func newBatch(qp *C.struct_ibv_qp, srq *C.struct_ibv_srq, receive bool, sges, inline int) *batch {
	flag := C.int(0)
	if receive {
		flag = 1
	}
	c := C.weft_new_batch(qp, srq, flag, C.int(sges), C.int(inline))
	if c == nil {
		return nil
	}
	b := &batch{c: c, maxSGEs: sges, maxInline: inline}
	if receive {
		b.recvs = unsafe.Slice(c.recvs, C.WEFT_BATCH)
	} else {
		b.sends = unsafe.Slice(c.sends, C.WEFT_BATCH)
	}
	b.sges = unsafe.Slice(c.sges, C.WEFT_BATCH*sges)
	b.inlines = unsafe.Slice((*byte)(unsafe.Pointer(c.inlines)), C.WEFT_BATCH*inline)
	return b
}

// The ring is laid out alike on both sides.
var _ = [1]struct{}{}[unsafe.Sizeof(ring{})-C.sizeof_struct_weft_ring]
var _ = [1]struct{}{}[unsafe.Offsetof(ring{}.tail)-unsafe.Offsetof(C.struct_weft_ring{}.tail)]
var _ = [1]struct{}{}[unsafe.Offsetof(ring{}.armed)-unsafe.Offsetof(C.struct_weft_ring{}.armed)]
var _ = [1]struct{}{}[unsafe.Offsetof(ring{}.stalled)-unsafe.Offsetof(C.struct_weft_ring{}.stalled)]
var _ = [1]struct{}{}[unsafe.Offsetof(ring{}.size)-unsafe.Offsetof(C.struct_weft_ring{}.size)]

// ringOf is a ring and its completions as Go sees them.
func ringOf(c *C.struct_weft_ring) (*ring, []C.struct_weft_wc) {
	wcs := (*C.struct_weft_wc)(unsafe.Add(unsafe.Pointer(c), C.sizeof_struct_weft_ring))
	return (*ring)(unsafe.Pointer(c)), unsafe.Slice(wcs, uint64(c.size))
}
