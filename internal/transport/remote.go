package transport

import (
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/wire"
)

// A Remote is a Transport that works on windows: memory that its owner has
// granted to peers, which read and write it without the owner's help.
//
// All methods are for the holder of the engine's lock. Put, Get and the atomics only start:
// on nil the operation is under way, its buffer belongs to the transport, and its end is
// reported by RemoteSink.Done, or by PeerDown. ErrAgain: nothing was started, there is no room now; any
// other error is final for the peer, as with Send.
//
// What is put to one peer, and frames that are sent to it, arrive in the order of
// their calls: a frame after a Put finds it done. Gets and atomics may be
// overtaken, so wait for their Done.
type Remote interface {
	Transport

	// Grant opens mem, which the transport's Alloc'd memory holds, to the peers. What
	// they may do is as little as access says.
	Grant(mem []byte, access Access) (wire.Region, error)

	// Withdraw ends that. No peer may use the region any more.
	Withdraw(r wire.Region) error

	// Put writes src to the peer's window, at an offset in bytes. Done: it is there.
	Put(peer int, to wire.Region, off uint64, src []byte, token uint32) error

	// Get reads len(dst) bytes of the peer's window.
	Get(peer int, from wire.Region, off uint64, dst []byte, token uint32) error

	// FetchAdd adds to the 8 aligned bytes at an offset and CompareSwap replaces them if they
	// are as expected, both at once for all who use these methods. Done brings what was there.
	FetchAdd(peer int, at wire.Region, off, add uint64, token uint32) error
	CompareSwap(peer int, at wire.Region, off, expect, swap uint64, token uint32) error
}

// RemoteSink is a Sink that hears of operations on windows.
type RemoteSink interface {
	Sink

	// Done reports that the operation of that token is complete. old is the result of an atomic.
	Done(peer int, token uint32, old uint64)
}

// Access is what peers may do with a window.
type Access uint8

// Kinds of access.
const (
	Readable Access = 1 << iota
	Writable
	Atomic
)

// A Mapper is a Transport whose peers' memory can be mapped into this process: ranks of
// one host. Any goroutine may call the methods below, until Close.
type Mapper interface {
	Transport

	// Reach is Describe of memory that a peer can Map, of any length.
	Reach(mem []byte) (wire.Region, bool)

	// Map returns n bytes of the peer's memory that r describes. It checks r against
	// the peer's bounds. They stay mapped until Close.
	Map(peer int, r wire.Region, n int) ([]byte, error)

	// Slots returns how many slots each rank has, the same on all.
	Slots() int

	// Slot returns the slot with a number, from 0 to Slots()-1, of a peer or of this rank itself: SlotSize bytes
	// that all ranks map, from the start of a page, zeros at first. Slots are there without any
	// message, and who uses them for what is for the caller to know.
	Slot(rank, number int) ([]byte, error)

	// Asleep returns a word that is not zero while a peer has Armed.
	Asleep(peer int) *atomic.Uint32

	// Nudge ends the Wait of a peer that has Armed, so that it sees what was written to memory.
	Nudge(peer int)
}

// SlotSize is the length of a Mapper's slot.
const SlotSize = 16 << 10
