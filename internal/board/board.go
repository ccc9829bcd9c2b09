package board

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/wire"
)

const (
	// SlotSize is the length of a slot in bytes.
	SlotSize = 16 << 10

	// MaxRanks is the largest group that shares a board: a rank looks at the posts of all others.
	MaxRanks = 64

	// Short is the longest payload that is posted.
	Short = areaSize

	// bounceMax is the longest vector that goes through a buffer.
	bounceMax = 256 << 10

	// helpFrom is from where on a half is worth another's copying.
	helpFrom = 32 << 10
)

// Offsets in a slot, and in the payload of a post that opens memory.
const (
	offIncarnation = 0
	offEnded       = 64 // both counters in a line that peers seldom read
	offFreed       = offEnded + 8
	offPosts       = 128
	postSize       = 128
	offAreas       = offPosts + depth*postSize
	areaSize       = (SlotSize - offAreas) / areas &^ 63

	offSource = 0
	offTarget = 16
)

const (
	depth  = 64        // posts in a slot: a rank may be almost so many collectives ahead
	areas  = 2         // for payloads that do not fit into a post
	small  = 80        // bytes that do
	period = depth / 2 // numbers from one check of all hashes to the next
)

// post is what a rank says in one collective.
type post struct {
	word      atomic.Uint64
	hash      uint64
	signature [3]uint64
	flags     uint64
	payload   [small]byte
}

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
	secondArea             // holds the payload
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
	// Asleep returns a word that is not zero while a rank sleeps, or is about to.
	Asleep(rank int) *atomic.Uint32
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
	cache       int64  // what the host's caches hold; 0: not known
	slots       []slot // by rank
	peers       []peer

	started uint64        // runs of this rank so far; who starts one has it
	ended   atomic.Uint64 // those that are over, in order

	// The run's whose turn it is.
	hash     uint64 // of the signatures of all runs up to it
	allEnded uint64 // counters that all ranks have come to, as far as this one knows
	allFreed uint64
	nextArea int
	usedBy   [areas]uint64 // numbers
	bounce   [2][]byte     // what peers read, and what they write
	sources  [][]byte      // of all ranks
	targets  [][]byte
	pieces   [][]byte // of the sources
	scratch  [2][]byte
}

// slot is a rank's slot.
type slot struct {
	incarnation *atomic.Uint32
	met         bool           // it was of this communicator when it was looked at last
	ended       *atomic.Uint64 // posts up to this number may be written over
	freed       *atomic.Uint64 // areas up to this number, too
	posts       [depth]*post
	areas       [areas][]byte
}

// peer is another rank.
type peer struct {
	rank   int
	asleep *atomic.Uint32
}

// New returns a rank's view of a group's slots, and prepares its own. incarnation is not zero, the same
// on all ranks, and another than that of the communicator that had the slots before. cache is how many bytes the
// host's caches hold, 0 where that is not known.
func New(mem Memory, rank, size int, incarnation uint32, cache int64) (*Board, error) {
	b := &Board{mem: mem, rank: rank, size: size, incarnation: incarnation, cache: cache, slots: make([]slot, size),
		hash:    uint64(incarnation), // so that no post of another communicator passes for one of this
		sources: make([][]byte, size), targets: make([][]byte, size), pieces: make([][]byte, size)}
	for r := range b.slots {
		raw, err := mem.Slot(r)
		if err != nil {
			return nil, fmt.Errorf("board: slot of rank %d: %w", r, err)
		}
		if r != rank {
			b.peers = append(b.peers, peer{r, mem.Asleep(r)})
		}
		s := &b.slots[r]
		s.incarnation = word32(raw, offIncarnation)
		s.ended, s.freed = word64(raw, offEnded), word64(raw, offFreed)
		for i := range s.posts {
			// Not in order: a processor that finds a pattern fetches what is next, from under the rank
			// that writes it.
			at := offPosts + int(bits.Reverse8(uint8(i))/(256/depth))*postSize
			s.posts[i] = postIn(raw, at)
		}
		for i := range s.areas {
			at := offAreas + i*areaSize
			s.areas[i] = raw[at : at+areaSize : at+areaSize]
		}
	}
	own := &b.slots[rank]
	own.ended.Store(0)
	own.freed.Store(0)
	for _, p := range own.posts {
		p.word.Store(0)
	}
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
func (b *Board) Idle() bool { return b.started == b.ended.Load() }

// Disagreement compares the calls of this rank with those of others that have made as many.
func (b *Board) Disagreement() error {
	n := b.ended.Load()
	if n == 0 || !b.Idle() {
		return nil
	}
	return b.compareAll(n)
}

// compareAll compares this rank's calls up to n with those of the ranks that have posted n.
func (b *Board) compareAll(n uint64) error {
	for r := range b.slots {
		s := &b.slots[r]
		if s.incarnation.Load() == b.incarnation && s.posts[n%depth].word.Load()>>phaseBits == n {
			if err := b.compare(r, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// Called returns what this rank called under a sequence number in a run that is over, for a peer that has not come to
// it: until then the post is kept. Any goroutine may ask.
func (b *Board) Called(peer int, number uint32) (sig wire.Signature, known bool) {
	for n := b.letGo(peer) + 1; n <= b.ended.Load(); n++ {
		if sig = b.slots[b.rank].posts[n%depth].call(); sig.Seq == number {
			return sig, b.letGo(peer) < n // else it may have been written over meanwhile
		}
	}
	return sig, false
}

// letGo returns up to which number a peer has let posts go.
func (b *Board) letGo(peer int) uint64 {
	if s := &b.slots[peer]; s.incarnation.Load() == b.incarnation {
		return s.ended.Load()
	}
	return 0 // it has not made its board yet
}

// here tells whether a rank's slot is of this communicator: the rank has made its board, and has not given it up
// and made the next one in the same place.
func (b *Board) here(rank int) bool {
	s := &b.slots[rank]
	s.met = s.incarnation.Load() == b.incarnation
	return s.met
}

// compare compares this rank's calls up to n with those of a rank. Both have posted n. A rank that is not here
// any more did not disagree: who waits for it hears why it went.
func (b *Board) compare(rank int, n uint64) error {
	if b.slots[rank].posts[n%depth].hash == b.hash {
		return nil
	}
	// The first that differs is one of those that no rank has let go of: at the last multiple of period they
	// were compared.
	for k := (n-1)/period*period + 1; ; k++ {
		mine, theirs := b.slots[b.rank].posts[k%depth].call(), b.slots[rank].posts[k%depth].call()
		if mine != theirs || k == n {
			if !b.here(rank) {
				return nil
			}
			return &MismatchError{Rank: rank, Mine: mine, Theirs: theirs}
		}
	}
}

// MismatchError tells how the calls of two ranks differ.
type MismatchError struct {
	Rank         int
	Mine, Theirs wire.Signature
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("rank %d called %+v, this rank %+v", e.Rank, e.Theirs, e.Mine)
}

// sign writes a signature, and the hash of it and those before, which it returns.
func (p *post) sign(s *wire.Signature, hash uint64) uint64 {
	x := uint64(s.Op) | uint64(s.Variant)<<16 | uint64(uint32(s.Root))<<32
	y := uint64(s.Type) | uint64(s.Seq)<<32
	p.signature[0], p.signature[1], p.signature[2] = x, y, s.Count
	p.hash = mix(mix(mix(hash, x), y), s.Count)
	return p.hash
}

// call returns the signature.
func (p *post) call() wire.Signature {
	a, b := p.signature[0], p.signature[1]
	return wire.Signature{Op: uint8(a), Variant: uint16(a >> 16), Root: int32(a >> 32), Type: uint32(b), Seq: uint32(b >> 32),
		Count: p.signature[2]}
}

// mix adds a word to a hash.
func mix(hash, x uint64) uint64 {
	hi, lo := bits.Mul64(hash^x^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	return hi ^ lo
}

func (p *post) putRegion(at int, r wire.Region) {
	le := binary.LittleEndian
	le.PutUint32(p.payload[at:], r.Kind)
	le.PutUint32(p.payload[at+4:], r.Key)
	le.PutUint64(p.payload[at+8:], r.Addr)
}

func (p *post) region(at int) wire.Region {
	le := binary.LittleEndian
	return wire.Region{Kind: le.Uint32(p.payload[at:]), Key: le.Uint32(p.payload[at+4:]), Addr: le.Uint64(p.payload[at+8:])}
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
