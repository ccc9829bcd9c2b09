// Package wire is the format of a frame: what one process tells another about
// a message. A frame is a header followed by a payload; the transport says how
// long the whole is. The format is the same over shared memory, TCP and verbs.
//
// A header is 24 bytes, followed by the extensions that its flags announce, in
// this order. All integers are little-endian.
//
//	 0  version (high 4 bits) and kind (low 4 bits)
//	 1  flags
//	 2  zero, two bytes
//	 4  context id of the communicator, u32
//	 8  sender's rank in the communicator, i32
//	12  tag, i32
//	16  hash of the element type's layout, u32
//	20  frame number from this process to that one, u32
//	24  HasID:     id u32, reply u32
//	    HasBytes:  bytes u64
//	    HasRegion: kind u32, key u32, address u64
//	    HasSig:    operation u8, zero u8, variant u16, root i32, type u32, sequence u32, count u64
//
// Nothing a peer sends is trusted: Decode checks version, kind, the flags that
// the kind needs, and every bound.
package wire

import (
	"encoding/binary"
	"fmt"
)

// Version is the version of the frame format. Both ends must agree.
const Version = 1

// Kind says what a frame is.
type Kind uint8

const (
	// Eager carries a whole message in its payload.
	Eager Kind = 1 + iota
	// RTS (ready to send) announces a message that stays with its sender.
	RTS
	// CTS (clear to send) asks the sender to stream the message to a matched receive.
	CTS
	// Data carries the payload that a CTS asked for.
	Data
	// FIN tells the sender that its message was received, or will be ignored.
	FIN
	// Cancel asks the receiver to forget an RTS that is not matched yet.
	Cancel
	// CancelAck answers Cancel: the message was withdrawn.
	CancelAck
	// Credit gives back room for eager messages: Bytes of it.
	Credit
	// Revoke ends a communicator: no operation on it can complete any more.
	Revoke
	// Goodbye says that the sender leaves in good order and sends nothing more.
	Goodbye
	// Waiting says in which collective its sender has waited long for its receiver, who
	// may be in another one. Nothing answers it.
	Waiting

	maxKind = Waiting
)

var kindNames = [...]string{"?", "EAGER", "RTS", "CTS", "DATA", "FIN", "CANCEL", "CANCELACK", "CREDIT", "REVOKE", "GOODBYE", "WAITING"}

func (k Kind) String() string {
	if k == 0 || k > maxKind {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// Flags announce extensions and modes.
type Flags uint8

const (
	HasID     Flags = 1 << iota // ID and Reply are present
	HasBytes                    // Bytes is present
	HasRegion                   // Region is present
	HasSig                      // Sig is present
	Sync                        // an Eager message whose sender waits for a FIN
	allFlags  = HasID | HasBytes | HasRegion | HasSig | Sync
)

// need lists the extensions without which a kind makes no sense.
var need = [maxKind + 1]Flags{
	RTS: HasID | HasBytes, CTS: HasID | HasBytes, Data: HasID | HasBytes, FIN: HasID,
	Cancel: HasID, CancelAck: HasID, Credit: HasBytes, Waiting: HasSig,
}

// Region describes memory that a peer may read or write without its owner's
// help. Its meaning belongs to the transport that made it.
type Region struct {
	Kind uint32
	Key  uint32
	Addr uint64
}

// Signature identifies one call of a collective operation, so that ranks which
// disagree find out.
type Signature struct {
	Op      uint8  // which collective
	Variant uint16 // hash of what else has to agree: the operator
	Root    int32
	Type    uint32
	Seq     uint32 // number of the call on its communicator
	Count   uint64 // elements
}

// Header is a decoded frame header.
type Header struct {
	Kind   Kind
	Flags  Flags
	Ctx    uint32
	Src    int32
	Tag    int32
	Type   uint32
	Seq    uint32
	ID     uint32 // the operation at the receiver of the frame, or at its sender for RTS and Sync
	Reply  uint32 // the operation at the sender of the frame, where a reply is expected
	Bytes  uint64
	Region Region
	Sig    Signature
}

const (
	// BaseSize is the size of a header without extensions.
	BaseSize = 24
	// MaxSize is the size of a header with all of them.
	MaxSize = BaseSize + idSize + bytesSize + regionSize + sigSize

	idSize     = 8
	bytesSize  = 8
	regionSize = 16
	sigSize    = 24
)

// Size returns the encoded size of h.
func (h *Header) Size() int {
	if h.Flags&(HasID|HasBytes|HasRegion|HasSig) == 0 {
		return BaseSize
	}
	return extSize(h.Flags)
}

func extSize(f Flags) int {
	n := BaseSize
	if f&HasID != 0 {
		n += idSize
	}
	if f&HasBytes != 0 {
		n += bytesSize
	}
	if f&HasRegion != 0 {
		n += regionSize
	}
	if f&HasSig != 0 {
		n += sigSize
	}
	return n
}

// Encode writes h to b, which holds at least h.Size() bytes, and returns the
// number of bytes written.
func (h *Header) Encode(b []byte) int {
	_ = b[BaseSize-1]
	le := binary.LittleEndian
	le.PutUint32(b[0:], uint32(Version<<4|uint8(h.Kind))|uint32(h.Flags)<<8)
	le.PutUint32(b[4:], h.Ctx)
	le.PutUint32(b[8:], uint32(h.Src))
	le.PutUint32(b[12:], uint32(h.Tag))
	le.PutUint32(b[16:], h.Type)
	le.PutUint32(b[20:], h.Seq)
	if h.Flags&(HasID|HasBytes|HasRegion|HasSig) == 0 {
		return BaseSize
	}
	return h.encodeExt(b)
}

func (h *Header) encodeExt(b []byte) int {
	le := binary.LittleEndian
	n := BaseSize
	if h.Flags&HasID != 0 {
		le.PutUint32(b[n:], h.ID)
		le.PutUint32(b[n+4:], h.Reply)
		n += idSize
	}
	if h.Flags&HasBytes != 0 {
		le.PutUint64(b[n:], h.Bytes)
		n += bytesSize
	}
	if h.Flags&HasRegion != 0 {
		le.PutUint32(b[n:], h.Region.Kind)
		le.PutUint32(b[n+4:], h.Region.Key)
		le.PutUint64(b[n+8:], h.Region.Addr)
		n += regionSize
	}
	if h.Flags&HasSig != 0 {
		le.PutUint32(b[n:], uint32(h.Sig.Op)|uint32(h.Sig.Variant)<<16)
		le.PutUint32(b[n+4:], uint32(h.Sig.Root))
		le.PutUint32(b[n+8:], h.Sig.Type)
		le.PutUint32(b[n+12:], h.Sig.Seq)
		le.PutUint64(b[n+16:], h.Sig.Count)
		n += sigSize
	}
	return n
}

// Decode reads a header from the front of b into h and returns its encoded
// size; the payload is b[n:]. Fields whose extension is absent are left as they
// are when only the base is present, so h is meaningful only through its flags.
func Decode(b []byte, h *Header) (n int, err error) {
	if len(b) < BaseSize {
		return 0, fmt.Errorf("wire: frame of %d bytes is shorter than a header (%d)", len(b), BaseSize)
	}
	le := binary.LittleEndian
	w := le.Uint32(b)
	h.Kind = Kind(w & 0xf)
	h.Flags = Flags(w >> 8)
	h.Ctx = le.Uint32(b[4:])
	h.Src = int32(le.Uint32(b[8:]))
	h.Tag = int32(le.Uint32(b[12:]))
	h.Type = le.Uint32(b[16:])
	h.Seq = le.Uint32(b[20:])
	if w == Version<<4|uint32(Eager) { // the common case has nothing more to check
		return BaseSize, nil
	}
	return decodeExt(b, h, w)
}

func decodeExt(b []byte, h *Header, w uint32) (int, error) {
	switch {
	case w>>4&0xf != Version:
		return 0, fmt.Errorf("wire: frame of version %d, this build speaks %d; start all ranks from one build", w>>4&0xf, Version)
	case h.Kind == 0 || h.Kind > maxKind:
		return 0, fmt.Errorf("wire: unknown frame %v", h.Kind)
	case h.Flags&^allFlags != 0 || w>>16 != 0:
		return 0, fmt.Errorf("wire: %v frame with unknown flags %#x", h.Kind, w>>8)
	case h.Flags&need[h.Kind] != need[h.Kind]:
		return 0, fmt.Errorf("wire: %v frame lacks an extension: flags %#x, needs %#x", h.Kind, uint8(h.Flags), uint8(need[h.Kind]))
	case h.Flags&Sync != 0 && (h.Kind != Eager || h.Flags&HasID == 0):
		return 0, fmt.Errorf("wire: %v frame with the sync flag and flags %#x", h.Kind, uint8(h.Flags))
	}
	size := extSize(h.Flags)
	if len(b) < size {
		return 0, fmt.Errorf("wire: %v frame of %d bytes, its header needs %d", h.Kind, len(b), size)
	}
	le := binary.LittleEndian
	n := BaseSize
	h.ID, h.Reply, h.Bytes, h.Region, h.Sig = 0, 0, 0, Region{}, Signature{}
	if h.Flags&HasID != 0 {
		h.ID, h.Reply = le.Uint32(b[n:]), le.Uint32(b[n+4:])
		n += idSize
	}
	if h.Flags&HasBytes != 0 {
		h.Bytes = le.Uint64(b[n:])
		n += bytesSize
		if h.Bytes > MaxBytes {
			return 0, fmt.Errorf("wire: %v frame of %d bytes, the limit is %d", h.Kind, h.Bytes, uint64(MaxBytes))
		}
	}
	if h.Flags&HasRegion != 0 {
		h.Region = Region{Kind: le.Uint32(b[n:]), Key: le.Uint32(b[n+4:]), Addr: le.Uint64(b[n+8:])}
		n += regionSize
	}
	if h.Flags&HasSig != 0 {
		op := le.Uint32(b[n:])
		if op&0xff00 != 0 {
			return 0, fmt.Errorf("wire: %v frame with a bad signature %#x", h.Kind, op)
		}
		h.Sig = Signature{Op: uint8(op), Variant: uint16(op >> 16), Root: int32(le.Uint32(b[n+4:])), Type: le.Uint32(b[n+8:]),
			Seq: le.Uint32(b[n+12:]), Count: le.Uint64(b[n+16:])}
		n += sigSize
	}
	return n, nil
}

// MaxBytes bounds the length of one message: what an int64 holds, less room for
// sums of two.
const MaxBytes = 1 << 62
