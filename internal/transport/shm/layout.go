package shm

import (
	"encoding/binary"
	"fmt"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

const (
	magic = 0x316d687374666577 // "weftshm1"
	abi   = 3

	// A rank has slotsMax slots, or less where many ranks would have more than slotsTotal together.
	slotsMax   = 4096
	slotsTotal = 64 * slotsMax

	// MaxRanks is how many ranks of one host share a segment.
	MaxRanks = 1024

	pageSize  = 4 << 10
	hugePage  = 2 << 20
	slotSize  = 64
	wordSize  = 8
	chunks    = 16
	flagSize  = 128 // a chunk's flag has two lines for itself: the next one is prefetched
	headerLen = 40
)

// Offsets in a rank's block. Each group is written by few and has its own lines.
const (
	blockSize = 1024

	offAttached  = 0   // u32: the process that is this rank; the owner
	offToken     = 8   // u64: see cma_unsafe.go; the owner
	offTokenAt   = 16  // u64: its address in the owner's process, stored last
	offArmed     = 128 // u32: the owner sleeps or is about to; the owner, taken back by who wakes it
	offBell      = 132 // u32: the futex word; anybody
	offAttention = 256 // u32: count of news; anybody
	offClaim     = 384 // u64: the pull descriptor, see pull.go
	offDone      = 448 // u32
	offPull      = 512 // source u32, pieces u32, size u64, from u64, to u64, length u64
	offActive    = 640 // bits: who has an active lane to the owner; they
	offHelp      = 768 // bits: who wants help with a pull from the owner; they
)

// offDirect is in the header: u32, whether ranks can read each other's memory;
// whoever finds out first.
const offDirect = 128

// Offsets in a lane.
const (
	offTail = 0   // u64; the consumer
	offWant = 128 // u32: the producer waits for room; the producer, taken back by the consumer
	offRing = 256
)

// layout says where everything is. It follows from the number of ranks and
// the size of an arena alone.
type layout struct {
	ranks int
	arena int // bytes of each

	ring       int // bytes of each
	chunk      int // bytes of each
	laneStride int
	bulkStride int

	slots int // of each rank

	lanes, bulks, boards, arenas int // offsets
	size                         int
}

// newLayout makes rings and chunks smaller where there are many pairs.
func newLayout(ranks int, arenaBytes int64) (layout, error) {
	if ranks < 1 || ranks > MaxRanks {
		return layout{}, fmt.Errorf("shm: %d ranks on this host; a segment holds 1 to %d", ranks, MaxRanks)
	}
	if arenaBytes < 0 || arenaBytes > 1<<46/int64(ranks) {
		return layout{}, fmt.Errorf("shm: an arena of %d bytes for each of %d ranks; all together may have %d", arenaBytes, ranks, int64(1)<<46)
	}
	l := layout{ranks: ranks, arena: max(roundUp(int(arenaBytes), hugePage), hugePage)}
	switch {
	case ranks <= 8:
		l.ring, l.chunk = 64<<10, 32<<10
	case ranks <= 32:
		l.ring, l.chunk = 32<<10, 32<<10
	case ranks <= 128:
		l.ring, l.chunk = 16<<10, 16<<10
	default:
		l.ring, l.chunk = 8<<10, 16<<10
	}
	pairs := ranks * ranks
	l.laneStride = roundUp(offRing+l.ring, pageSize)
	l.bulkStride = roundUp(chunks*(flagSize+l.chunk), pageSize)
	l.lanes = roundUp(pageSize+ranks*blockSize, pageSize)
	l.bulks = l.lanes + pairs*l.laneStride
	l.slots = min(slotsMax, slotsTotal/ranks)
	l.boards = l.bulks + pairs*l.bulkStride
	l.arenas = roundUp(l.boards+ranks*l.slots*transport.SlotSize, hugePage)
	l.size = l.arenas + ranks*l.arena
	return l, nil
}

// maxEager is a quarter of the ring. With a pad of nearly the same length and
// the free slot it fits into what an idle consumer leaves, which is more than
// three quarters: see inLane.release.
func (l *layout) maxEager() int { return l.ring / 4 }

// maxFrame is the longest frame with its word.
func (l *layout) maxFrame() int { return wordSize + wire.MaxSize + l.maxEager() }

func (l *layout) block(rank int) int    { return pageSize + rank*blockSize }
func (l *layout) lane(from, to int) int { return l.lanes + (to*l.ranks+from)*l.laneStride }
func (l *layout) bulk(from, to int) int { return l.bulks + (to*l.ranks+from)*l.bulkStride }
func (l *layout) slot(rank, number int) int {
	return l.boards + (number*l.ranks+rank)*transport.SlotSize
}
func (l *layout) arenaAt(rank int) int { return l.arenas + rank*l.arena }
func (l *layout) laneBytes() int       { return offRing + l.ring }
func (l *layout) bulkBytes() int       { return chunks * (flagSize + l.chunk) }
func (l *layout) commonBytes() int     { return l.lanes }
func roundUp(n, unit int) int          { return (n + unit - 1) / unit * unit }
func chunkAt(l *layout, i uint64) int  { return chunks*flagSize + int(i%chunks)*l.chunk }
func chunkFlagAt(i uint64) int         { return int(i%chunks) * flagSize }

// encode writes the header of a segment.
func (l *layout) encode() []byte {
	b := make([]byte, headerLen)
	le := binary.LittleEndian
	le.PutUint64(b[0:], magic)
	le.PutUint32(b[8:], abi)
	le.PutUint32(b[12:], uint32(l.ranks))
	le.PutUint64(b[16:], uint64(l.arena))
	le.PutUint64(b[24:], uint64(l.size))
	le.PutUint64(b[32:], uint64(l.lanes))
	return b
}

// decodeLayout reads the header of a segment of size bytes.
func decodeLayout(b []byte, size int64) (layout, error) {
	le := binary.LittleEndian
	if len(b) < headerLen || le.Uint64(b) != magic {
		return layout{}, fmt.Errorf("shm: not a segment of this library (%d bytes): pass the file that shm.Create made", size)
	}
	if v := le.Uint32(b[8:]); v != abi {
		return layout{}, fmt.Errorf("shm: segment of version %d, this program speaks %d: build the launcher and all ranks from one version", v, abi)
	}
	l, err := newLayout(int(le.Uint32(b[12:])), int64(min(le.Uint64(b[16:]), 1<<62)))
	if err != nil {
		return layout{}, fmt.Errorf("%w (read from the segment's header: it is damaged)", err)
	}
	if le.Uint64(b[16:]) != uint64(l.arena) || le.Uint64(b[24:]) != uint64(l.size) || le.Uint64(b[32:]) != uint64(l.lanes) {
		return layout{}, fmt.Errorf("shm: segment for %d ranks with other sizes than this program's: build the launcher and all ranks from one version", l.ranks)
	}
	if size < int64(l.size) {
		return layout{}, fmt.Errorf("shm: segment of %d bytes, %d ranks with arenas of %d bytes need %d: it was truncated", size, l.ranks, l.arena, l.size)
	}
	return l, nil
}
