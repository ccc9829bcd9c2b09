package shm

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/pause"
	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

// regionArena is the kind of a region in an arena: Key is the index of its owner
// on the host, Addr the offset.
const regionArena = 1

// Sizes of pieces. Two that copy share best when each takes a half: a claim costs
// a cache line's way to the other core and back, some 1% of copying 1 MiB. Go's
// copy is not preemptible, so it is never given more than a piece. From 1 MiB on it
// writes past the caches, which is twice as fast for what does not fit them.
const (
	pieceSmall = 64 << 10
	pieceHalf  = 512 << 10
	pieceLarge = 1 << 20

	helpFrom  = 128 << 10 // below, the help comes too late
	wakeFrom  = 4 << 20   // from here on it is worth waking a helper that sleeps
	largeFrom = 8 << 20

	helpBurst = 2 << 20 // bytes that one Poll copies for one peer
)

// claimClosed is the piece number of a descriptor that is not open.
const claimClosed = 1<<32 - 1

// Fields of a descriptor.
const (
	pullSource = offPull + 8*iota
	pullSize   // of a piece
	pullFrom
	pullTo
	pullLength
	pullKind   // of the source: offsets in arenas, or addresses in processes
	pullFailed // the helper could not copy what it claimed
)

// Describe describes memory of the own arena, and other memory where the system
// lets ranks read each other.
func (t *Transport) Describe(buf []byte) (wire.Region, bool) {
	off, ok := t.arena.Contains(buf)
	switch {
	case !ok && len(buf) <= t.MaxEager():
		return wire.Region{}, false // two copies through the ring cost less than a system call
	case !ok:
		return t.describeProcess(buf)
	}
	return wire.Region{Kind: regionArena, Key: uint32(t.self), Addr: uint64(off)}, true
}

// Pull copies from the peer's arena, or from its other memory.
func (t *Transport) Pull(peer int, r wire.Region, dst []byte) error {
	i, err := t.peer(peer)
	if err != nil {
		return err
	}
	if r.Key != uint32(i) || r.Kind != regionArena && r.Kind != regionProcess {
		return fmt.Errorf("shm: pull %d bytes from rank %d (index %d): region %+v is not one of its regions", len(dst), peer, i, r)
	}
	if r.Kind == regionProcess {
		read := func(off, n int) error { return readProcess(t.pid(i), r.Addr+uint64(off), dst[off:off+n]) }
		if len(dst) < helpFrom {
			err = read(0, len(dst))
		} else {
			err = t.pullShared(i, pullJob{kind: regionProcess, from: r.Addr, to: address(dst), n: len(dst), copy: read})
		}
		if err != nil {
			return fmt.Errorf("shm: pull from rank %d: %w", peer, err)
		}
		return nil
	}
	if size := uint64(t.seg.arena); r.Addr > size || uint64(len(dst)) > size-r.Addr {
		return fmt.Errorf("shm: pull %d bytes from rank %d: offset %d is beyond its arena of %d", len(dst), peer, r.Addr, size)
	}
	start := t.seg.arenaAt(i) + int(r.Addr)
	src := t.seg.mem[start : start+len(dst) : start+len(dst)]
	if len(dst) >= helpFrom {
		if off, ok := t.arena.Contains(dst); ok {
			return t.pullShared(i, pullJob{kind: regionArena, from: r.Addr, to: uint64(off), n: len(dst), copy: func(at, n int) error {
				copyPieces(dst[at:at+n], src[at:])
				return nil
			}})
		}
	}
	copyPieces(dst, src)
	return nil
}

// Reach implements transport.Mapper: all arenas are mapped by all.
func (t *Transport) Reach(mem []byte) (wire.Region, bool) {
	off, ok := t.arena.Contains(mem)
	return wire.Region{Kind: regionArena, Key: uint32(t.self), Addr: uint64(off)}, ok
}

// Slots implements transport.Mapper.
func (t *Transport) Slots() int { return t.seg.slots }

// Slot implements transport.Mapper.
func (t *Transport) Slot(rank, number int) ([]byte, error) {
	i := t.indexOf(rank)
	if i < 0 || number < 0 || number >= t.seg.slots {
		return nil, fmt.Errorf("shm: slot %d of rank %d: there are %d for each rank of this host, %v", number, rank, t.seg.slots, t.world)
	}
	at := t.seg.slot(i, number)
	if err := t.seg.commit(at, transport.SlotSize); err != nil {
		return nil, err
	}
	return t.seg.mem[at : at+transport.SlotSize : at+transport.SlotSize], nil
}

// Asleep implements transport.Mapper.
func (t *Transport) Asleep(peer int) *atomic.Uint32 {
	return at32(t.seg.mem, t.seg.block(t.indexOf(peer))+offArmed)
}

// Nudge implements transport.Mapper.
func (t *Transport) Nudge(peer int) {
	if armed := t.Asleep(peer); armed.Load() != 0 && t.users.enter() {
		t.nudge(t.indexOf(peer), armed)
		t.users.leave()
	}
}

// indexOf returns the index on the host of a rank of the world, -1 if it has none.
func (t *Transport) indexOf(rank int) int {
	if uint(rank) < uint(len(t.index)) {
		return int(t.index[rank])
	}
	return -1
}

// Map implements transport.Mapper: all arenas are mapped here already.
func (t *Transport) Map(peer int, r wire.Region, n int) ([]byte, error) {
	i := t.indexOf(peer)
	if i < 0 {
		return nil, fmt.Errorf("shm: map %d bytes of rank %d, which is not on this host", n, peer)
	}
	if r.Key != uint32(i) || r.Kind != regionArena {
		return nil, fmt.Errorf("shm: map %d bytes of rank %d (index %d): region %+v is not in its arena", n, peer, i, r)
	}
	if size := uint64(t.seg.arena); n < 0 || r.Addr > size || uint64(n) > size-r.Addr {
		return nil, fmt.Errorf("shm: map %d bytes of rank %d: offset %d is beyond its arena of %d", n, peer, r.Addr, size)
	}
	start := t.seg.arenaAt(i) + int(r.Addr)
	return t.seg.mem[start : start+n : start+n], nil
}

// pid returns the process of a rank.
func (t *Transport) pid(i int) int { return int(at32(t.seg.mem, t.seg.block(i)+offAttached).Load()) }

// copyPieces copies alone.
func copyPieces(dst, src []byte) {
	piece := pieceSize(len(dst))
	for len(dst) > piece {
		copy(dst[:piece], src)
		dst, src = dst[piece:], src[piece:]
	}
	copy(dst, src)
}

func pieceSize(n int) int {
	if n >= largeFrom {
		return pieceLarge
	}
	return min(max((n/2+63)&^63, pieceSmall), pieceHalf)
}

// closeClaims makes the descriptor of a rank's first pull.
func closeClaims(seg *segment, rank int) {
	at64(seg.mem, seg.block(rank)+offClaim).Store(claimClosed)
}

// pullJob is a pull that two copiers share.
type pullJob struct {
	kind     uint32
	from, to uint64 // where the helper finds source and destination
	n        int
	copy     func(off, n int) error // the puller's own way to copy a part
}

// pullShared copies together with the owner of the source, who may or may not
// come. See the package documentation for the states of the descriptor.
func (t *Transport) pullShared(i int, job pullJob) error {
	mem, block := t.seg.mem, t.seg.block(t.self)
	claim, done := at64(mem, block+offClaim), at32(mem, block+offDone)
	piece := pieceSize(job.n)
	pieces := (job.n + piece - 1) / piece

	// Closed: ours alone.
	epoch := claim.Load()>>32 + 1
	done.Store(0)
	at64(mem, block+pullSource).Store(uint64(i))
	at64(mem, block+pullSize).Store(uint64(piece))
	at64(mem, block+pullFrom).Store(job.from)
	at64(mem, block+pullTo).Store(job.to)
	at64(mem, block+pullLength).Store(uint64(job.n))
	at64(mem, block+pullKind).Store(uint64(job.kind))
	at64(mem, block+pullFailed).Store(0)
	claim.Store(epoch << 32)

	source := t.seg.block(i)
	at32(mem, source+offHelp+t.self/32*4).Or(1 << (t.self % 32))
	at32(mem, source+offAttention).Add(1)
	if job.n >= wakeFrom {
		t.nudge(i, at32(mem, source+offArmed))
	}

	// Open. Nobody but this rank changes the epoch.
	mine := 0
	var err error
	for {
		p := int(uint32(claim.Add(1)) - 1)
		if p >= pieces {
			break
		}
		if err == nil {
			err = job.copy(p*piece, min(piece, job.n-p*piece))
		}
		mine++
	}
	alone := t.awaitHelper(i, done, uint32(pieces-mine)) || at64(mem, block+pullFailed).Load() != 0
	claim.Store(epoch<<32 | claimClosed)
	if alone && err == nil {
		err = job.copy(0, job.n)
	}
	return err
}

// awaitHelper returns when the helper has finished the pieces it claimed, or
// has died over them.
func (t *Transport) awaitHelper(i int, done *atomic.Uint32, claimed uint32) (dead bool) {
	for spins := 0; done.Load() != claimed; spins++ {
		switch {
		case t.dead[i].Load():
			return true // it writes no more: it does not exist
		case spins < 1000 && !t.yields:
			pause.Spin(1)
		case spins < 2000:
			yield()
		default: // it was stopped, or lost its core for long
			time.Sleep(50 * time.Microsecond)
		}
	}
	return false
}

// help copies pieces of a pull that the rank at index p makes from here. It
// returns how many, and whether more may be left.
func (t *Transport) help(p int) (n int, more bool) {
	if t.dead[p].Load() || t.downs[p] != nil {
		return 0, false // its process id may be another's by now
	}
	mem, block := t.seg.mem, t.seg.block(p)
	claim, done := at64(mem, block+offClaim), at32(mem, block+offDone)
	for left := helpBurst; left > 0; {
		c := claim.Load()
		next := c & (1<<32 - 1)
		source, piece, from, to, length := at64(mem, block+pullSource).Load(), at64(mem, block+pullSize).Load(),
			at64(mem, block+pullFrom).Load(), at64(mem, block+pullTo).Load(), at64(mem, block+pullLength).Load()
		kind := at64(mem, block+pullKind).Load()
		if next == claimClosed || source != uint64(t.self) || piece < pieceSmall || length > 1<<62 || piece > length+pieceLarge ||
			next >= (length+piece-1)/piece || kind == regionArena && !t.inArenas(from, to, length) {
			// Nothing to claim, or written this moment: then another look is announced.
			return n, false
		}
		if !claim.CompareAndSwap(c, c+1) {
			continue // the puller took it: look again
		}
		off := next * piece
		size := min(piece, length-off)
		if kind == regionArena {
			src, dst := t.seg.arenaAt(t.self)+int(from+off), t.seg.arenaAt(p)+int(to+off)
			copy(mem[dst:dst+int(size)], mem[src:src+int(size)])
		} else if writeProcess(t.pid(p), to+off, from+off, int(size)) != nil {
			at64(mem, block+pullFailed).Store(1) // the puller copies it again, and meets the error itself
		}
		done.Add(1)
		n++
		left -= int(piece)
	}
	return n, true
}

// inArenas tells whether both ends of a copy lie in arenas.
func (t *Transport) inArenas(from, to, length uint64) bool {
	size := uint64(t.seg.arena)
	return length <= size && from <= size-length && to <= size-length
}
