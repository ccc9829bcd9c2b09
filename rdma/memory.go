package rdma

import (
	"fmt"
	"strings"
)

// PD is a protection domain.
type PD interface {
	// RegisterMemory pins mem and makes it known to the device. mem is not
	// empty and lives outside the Go heap until MR.Close has returned. Give the
	// least access that does: LocalWrite for the target of a receive or of an RDMA
	// READ, RemoteWrite (which needs LocalWrite) for that of a peer's WRITE.
	RegisterMemory(mem []byte, access Access) (MR, error)

	CreateSRQ(opts SRQOptions) (SRQ, error)
	CreateQP(opts QPOptions) (QP, error)

	// Close is refused with ErrBusy while anything of the domain is open.
	Close() error
}

// MR is registered memory.
type MR interface {
	LKey() uint32
	RKey() uint32
	Addr() uint64 // of the first byte, as peers and SGEs name it
	Len() int
	Access() Access

	// Close takes the registration back. When it has returned, no peer can
	// touch the memory any more: one that tries gets StatusRemoteAccess.
	// Work requests that name the region must have completed; a device that
	// Inspects refuses with ErrBusy if not, others fail them some time later.
	Close() error
}

// Access says who may do what with registered memory. This process may always read.
type Access uint8

// Kinds of access; the bits are those of verbs.
const (
	LocalWrite Access = 1 << iota
	RemoteWrite
	RemoteRead
	RemoteAtomic

	accessAll = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic
)

func (a Access) String() string {
	var parts []string
	for i, s := range [...]string{"local write", "remote write", "remote read", "remote atomic"} {
		if a&(1<<i) != 0 {
			parts = append(parts, s)
		}
	}
	if parts == nil {
		return "local read"
	}
	return strings.Join(parts, ", ")
}

// Check says what is wrong with a: a peer may write only where this process may.
func (a Access) Check() error {
	switch {
	case a&^accessAll != 0:
		return invalid(OpRegisterMemory, fmt.Sprintf("access 0x%x has unknown bits", uint8(a)), "")
	case a&(RemoteWrite|RemoteAtomic) != 0 && a&LocalWrite == 0:
		return invalid(OpRegisterMemory, "remote write and remote atomic access need local write", "add rdma.LocalWrite")
	}
	return nil
}

// SGE names a piece of registered memory in a work request. One of length 0 names nothing, and its
// key is not looked at.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// Segment is the piece of n bytes of mr from off. It does not check the bounds; the
// device does.
func Segment(mr MR, off, n int) SGE {
	return SGE{Addr: mr.Addr() + uint64(off), Length: uint32(n), LKey: mr.LKey()}
}

// TotalLength is the sum of the lengths of segments.
func TotalLength(sgl []SGE) int64 {
	var n int64
	for i := range sgl {
		n += int64(sgl[i].Length)
	}
	return n
}
