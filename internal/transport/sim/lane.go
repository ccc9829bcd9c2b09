package sim

import (
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/wire"
)

// A record in a ring: a word of its size, a word of marks, then the encoded
// frame. Records are aligned to 8 bytes and never wrap: the room that is left at the end
// is skipped by a record that is marked as padding.
const (
	recHead = 8
	align   = 8

	markPad  = 1 << 31 // nothing in it
	markBulk = 1 << 30 // the payload is the next one in the lane's bulk slots
	markTwin = 1 << 29 // deliver it twice
	markHold = 1<<29 - 1
)

const (
	smallRing = 4 << 10 // a lane starts with this many bytes
	largeRing = 7       // and grows once, to room for so many of the longest frames
	bulkSlots = 32      // SendBulks under way in one lane
)

// ring is a queue of bytes with one writer and one reader.
type ring struct {
	buf []byte // length is a power of two
	_   [40]byte
	// tail is where the writer is. next is set, after the last store to tail,
	// when the writer has moved to a larger ring.
	tail atomic.Uint64
	next atomic.Pointer[ring]
	_    [48]byte
	// head is where the reader is.
	head atomic.Uint64
	_    [56]byte
}

func newRing(atLeast int) *ring {
	n := smallRing
	for n < atLeast {
		n *= 2
	}
	return &ring{buf: make([]byte, n)}
}

// reserve returns n contiguous bytes at the tail, padding to the end when that
// is needed, or nil when there is no room.
func (r *ring) reserve(n int) []byte {
	size, tail := uint64(len(r.buf)), r.tail.Load()
	free := size - (tail - r.head.Load())
	at := tail & (size - 1)
	if pad := size - at; uint64(n) > pad {
		if pad+uint64(n) > free {
			return nil
		}
		binary.LittleEndian.PutUint32(r.buf[at:], uint32(pad))
		binary.LittleEndian.PutUint32(r.buf[at+4:], markPad)
		r.tail.Store(tail + pad)
		at = 0
	} else if uint64(n) > free {
		return nil
	}
	return r.buf[at : at+uint64(n)]
}

// lane is the queue from one rank to another.
type lane struct {
	limit int // bytes of the large ring

	// The writer's.
	w       *ring
	faults  *rand.Rand // the fate of frames; nil without faults
	refuse  *rand.Rand // the fate of calls
	drawn   bool       // the next frame's fate is known, and is this:
	hidden  uint32
	twin    bool
	posted  uint64 // bulk payloads handed over
	reaped  uint64 // bulk payloads reported as sent
	starved atomic.Bool

	// The reader's.
	r    *ring
	hold int  // Polls that the first frame stays hidden; -1: not looked at yet
	seen bool // hold is that of the first frame

	// bulk holds the payloads between taken and posted; the writer publishes a
	// slot by the record that refers to it.
	bulk  []bulk
	taken atomic.Uint64
}

type bulk struct {
	payload []byte
	token   uint32
}

func newLane(f *Fabric, src, dst int) *lane {
	l := &lane{limit: largeRing * (recHead + wire.MaxSize + f.eager + align), w: newRing(0)}
	l.r = l.w
	if c := f.cfg; c.Delay > 0 || c.Duplicate > 0 || c.Again > 0 {
		id := uint64(src)<<32 | uint64(dst)
		l.faults = rand.New(rand.NewPCG(c.Seed, id<<1))
		l.refuse = rand.New(rand.NewPCG(c.Seed, id<<1|1))
	}
	return l
}

// put appends a record, and reports whether there was room.
func (l *lane) put(h *wire.Header, payload []byte, marks uint32) bool {
	n := recHead + h.Size() + len(payload)
	rounded := (n + align - 1) &^ (align - 1)
	b := l.w.reserve(rounded)
	if b == nil {
		// A lane that fills its first ring moves to the large one, for good.
		if len(l.w.buf) >= l.limit {
			return false
		}
		r := newRing(l.limit)
		l.w.next.Store(r)
		l.w = r
		b = r.reserve(rounded)
	}
	binary.LittleEndian.PutUint32(b, uint32(n))
	binary.LittleEndian.PutUint32(b[4:], marks)
	hn := h.Encode(b[recHead:])
	copy(b[recHead+hn:], payload)
	l.w.tail.Add(uint64(rounded))
	return true
}

// first returns the first record, nil when there is none.
func (l *lane) first() (frame []byte, marks uint32) {
	for {
		r := l.r
		head := r.head.Load()
		if head == r.tail.Load() {
			n := r.next.Load()
			if n == nil {
				return nil, 0
			}
			if head == r.tail.Load() { // nothing was added before the move
				l.r = n
			}
			continue
		}
		b := r.buf[head&uint64(len(r.buf)-1):]
		n := binary.LittleEndian.Uint32(b)
		marks = binary.LittleEndian.Uint32(b[4:])
		if marks&markPad == 0 {
			return b[recHead:n:n], marks
		}
		r.head.Store(head + uint64(n))
	}
}

// drop removes the record that first returned.
func (l *lane) drop(frame []byte) {
	n := (recHead + len(frame) + align - 1) &^ (align - 1)
	l.r.head.Add(uint64(n))
}

// fate returns the marks of the next frame. It is drawn once for each frame,
// however often Send tries.
func (l *lane) fate(c *Config, kind wire.Kind) (marks uint32) {
	if l.faults == nil {
		return 0
	}
	if !l.drawn {
		l.drawn = true
		l.hidden = uint32(l.faults.IntN(min(c.Delay, markHold-1) + 1))
		l.twin = l.faults.Float64() < c.Duplicate
	}
	if l.twin && kind != wire.Data {
		return l.hidden | markTwin
	}
	return l.hidden
}
