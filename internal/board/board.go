package board

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/wire"
)

const (
	// SlotSize is the length of a slot in bytes.
	SlotSize = 8 << 10

	// MaxRanks is the largest group that shares a board: a rank looks at the posts of all others.
	MaxRanks = 64

	// Short is the longest payload of a post.
	Short = postSize - offPayload

	// bounceMax is the longest vector that goes through a buffer.
	bounceMax = 256 << 10

	// helpFrom is from where on a half is worth another's copying.
	helpFrom = 32 << 10
)

// Offsets in a slot, and in a post.
const (
	offIncarnation = 0
	offPosts       = 128
	postSize       = (SlotSize - offPosts) / 2 &^ 63

	offWord      = 0
	offSignature = 8
	offFlags     = 32
	offPayload   = 40
	offSource    = offPayload
	offTarget    = offSource + 16
)

// The phases of a word.
const (
	posted = 1
	done   = 2
	quit   = 7

	phaseBits = 3
	phaseMask = 1<<phaseBits - 1
)

// Flags of a post.
const (
	outOfReach = 1 << iota // of peers is what they have to touch
	noTarget               // is open to a root that helps
)

// Memory is what a rank of the group maps of the others. Ranks are those of the group. Any
// goroutine may call its methods.
type Memory interface {
	// Slot returns a rank's slot, which all see alike; SlotSize bytes from the start of a page.
	Slot(rank int) ([]byte, error)
	// Reach describes memory of this rank's for Map, and returns false where peers cannot map it.
	Reach(mem []byte) (wire.Region, bool)
	// Map returns n bytes of what a peer's Reach has described.
	Map(rank int, r wire.Region, n int) ([]byte, error)
	// Nudge has a rank that sleeps look at the posts.
	Nudge(rank int)
	// Alloc and Free manage memory of this rank's that is in reach.
	Alloc(n int) ([]byte, error)
	Free(mem []byte) error
}

// Board is one rank's view of the slots of a group.
type Board struct {
	mem         Memory
	rank, size  int
	incarnation uint32
	slots       []slot // by rank

	started atomic.Uint64 // runs of this rank so far
	ended   atomic.Uint64 // those that are over, in order

	// The run's whose turn it is.
	last     wire.Signature // of the run before
	compared bool           // with those of all ranks
	bounce   [2][]byte      // what peers read, and what they write
	sources  [][]byte       // of all ranks
	targets  [][]byte
	pieces   [][]byte // of the sources
	scratch  [2][]byte
}

// slot is a rank's slot.
type slot struct {
	incarnation *atomic.Uint32
	met         bool // it is of this communicator
	words       [2]*atomic.Uint64
	posts       [2][]byte
}

// New returns a rank's view of a group's slots, and prepares its own. incarnation is not zero, the same
// on all ranks, and another than that of the communicator that had the slots before.
func New(mem Memory, rank, size int, incarnation uint32) (*Board, error) {
	b := &Board{mem: mem, rank: rank, size: size, incarnation: incarnation, slots: make([]slot, size),
		sources: make([][]byte, size), targets: make([][]byte, size), pieces: make([][]byte, size)}
	for r := range b.slots {
		raw, err := mem.Slot(r)
		if err != nil {
			return nil, fmt.Errorf("board: slot of rank %d: %w", r, err)
		}
		s := &b.slots[r]
		s.incarnation = word32(raw, offIncarnation)
		for i := range s.posts {
			at := offPosts + i*postSize
			s.posts[i] = raw[at : at+postSize : at+postSize]
			s.words[i] = word64(raw, at+offWord)
		}
	}
	own := &b.slots[rank]
	own.words[0].Store(0)
	own.words[1].Store(0)
	own.incarnation.Store(incarnation)
	return b, nil
}

// Close frees what runs used. All ranks have ended theirs.
func (b *Board) Close() error {
	for i, mem := range b.bounce {
		if b.bounce[i] = nil; mem != nil {
			if err := b.mem.Free(mem); err != nil {
				return fmt.Errorf("board: %w", err)
			}
		}
	}
	return nil
}

// Idle tells whether all runs that this rank started are over.
func (b *Board) Idle() bool { return b.started.Load() == b.ended.Load() }

// Disagreement compares the last call of this rank with those of others, as far as they are there.
func (b *Board) Disagreement() error {
	n := b.ended.Load()
	if n == 0 || !b.Idle() {
		return nil
	}
	for r := range b.slots {
		s := &b.slots[r]
		if s.incarnation.Load() == b.incarnation && s.words[n&1].Load()>>phaseBits == n {
			if theirs := signatureAt(s.posts[n&1]); theirs != b.last {
				return &MismatchError{Rank: r, Mine: b.last, Theirs: theirs}
			}
		}
	}
	return nil
}

// MismatchError tells how the calls of two ranks differ.
type MismatchError struct {
	Rank         int
	Mine, Theirs wire.Signature
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("rank %d called %+v, this rank %+v", e.Rank, e.Theirs, e.Mine)
}

func putSignature(post []byte, s *wire.Signature) {
	le := binary.LittleEndian
	le.PutUint64(post[offSignature:], uint64(s.Op)|uint64(s.Variant)<<16|uint64(uint32(s.Root))<<32)
	le.PutUint64(post[offSignature+8:], uint64(s.Type)|uint64(s.Seq)<<32)
	le.PutUint64(post[offSignature+16:], s.Count)
}

func signatureAt(post []byte) wire.Signature {
	le := binary.LittleEndian
	a, b := le.Uint64(post[offSignature:]), le.Uint64(post[offSignature+8:])
	return wire.Signature{Op: uint8(a), Variant: uint16(a >> 16), Root: int32(a >> 32), Type: uint32(b), Seq: uint32(b >> 32),
		Count: le.Uint64(post[offSignature+16:])}
}

func putRegion(post []byte, at int, r wire.Region) {
	le := binary.LittleEndian
	le.PutUint32(post[at:], r.Kind)
	le.PutUint32(post[at+4:], r.Key)
	le.PutUint64(post[at+8:], r.Addr)
}

func regionAt(post []byte, at int) wire.Region {
	le := binary.LittleEndian
	return wire.Region{Kind: le.Uint32(post[at:]), Key: le.Uint32(post[at+4:]), Addr: le.Uint64(post[at+8:])}
}

// Serves tells whether a board has the collective.
func Serves(k collective.Kind) bool {
	switch k {
	case collective.KindBarrier, collective.KindBcast, collective.KindGather, collective.KindScatter, collective.KindAllgather, collective.KindAlltoall,
		collective.KindReduce, collective.KindAllreduce, collective.KindReduceScatterBlock, collective.KindScan, collective.KindExscan:
		return true
	}
	return false
}
