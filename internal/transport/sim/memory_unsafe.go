package sim

import (
	"fmt"
	"unsafe"

	"github.com/weft-hpc/weft/internal/wire"
)

// A Region of this transport is an address range of the process. The address is an
// integer, so it keeps nothing alive and the collector does not follow it. It is sound to use
// because of three things:
//
//   - the memory does not move: Describe makes its argument escape, so it is
//     on the heap or outside of it, never on a stack;
//   - the memory stays: whoever described it keeps it until its peer is done
//     (the protocol's FIN) or PeerDown, which waits for a Pull under way;
//   - the address is genuine: regions come from this process, not from a wire.
//
// Addr is the start, and may be moved forward by whoever pulls in pieces. The
// end is in Key and the low half of Kind, and bounds every Pull; the high half
// of Kind is a check of the end and the owner, against mistakes.
const addrLimit = 1 << 48 // no user memory of Linux is above, unless asked for

func regionOf(owner int, start, end uint64) wire.Region {
	check := (end + uint64(owner)<<48 + 1) * 0x9e3779b97f4a7c15 >> 48
	return wire.Region{Kind: uint32(check<<16 | end>>32), Key: uint32(end), Addr: start}
}

// escape makes the compiler place b outside of stacks.
func escape(b []byte) {
	if forced.always {
		forced.sink = b
	}
}

var forced struct {
	always bool
	sink   []byte
}

// Describe implements transport.Transport.
func (t *Transport) Describe(buf []byte) (wire.Region, bool) {
	if t.f.cfg.NoPull {
		return wire.Region{}, false
	}
	escape(buf)
	start := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf))))
	end := start + uint64(len(buf))
	if end >= addrLimit {
		return wire.Region{}, false
	}
	return regionOf(t.rank, start, end), true
}

// Pull implements transport.Transport.
func (t *Transport) Pull(peer int, r wire.Region, dst []byte) error {
	if t.f.cfg.NoPull {
		return fmt.Errorf("sim: pull from rank %d: this fabric has no pull", peer)
	}
	src, err := memory(peer, r, len(dst))
	if err != nil || len(dst) == 0 {
		return err
	}
	return t.pull(peer, dst, src)
}

// memory returns the first n bytes of a region of a rank.
func memory(rank int, r wire.Region, n int) ([]byte, error) {
	end := uint64(r.Kind&0xffff)<<32 | uint64(r.Key)
	switch {
	case r != regionOf(rank, r.Addr, end):
		return nil, fmt.Errorf("sim: %+v is not a region of rank %d", r, rank)
	case n < 0 || r.Addr > end || uint64(n) > end-r.Addr:
		return nil, fmt.Errorf("sim: %d bytes of rank %d: the region %#x-%#x is shorter", n, rank, r.Addr, end)
	case n == 0:
		return nil, nil
	}
	// Read as a pointer rather than converted to one: see the comment above
	// for why the address is one.
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&r.Addr)), n), nil
}

// word returns the 8 aligned bytes at the start of b as a number.
func word(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b[:8]))) }
