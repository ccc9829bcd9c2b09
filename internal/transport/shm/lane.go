package shm

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

// The high half of a slot's word: the length of the frame and what it is.
const (
	frameLen  = 1<<30 - 1
	framePad  = 1 << 30 // no frame: go on at the start of the ring
	frameBulk = 1 << 31 // announces a payload in the chunks: its length follows the header, u64
)

// burst bounds the frames that one Poll takes from a lane.
const burst = 64

func slotWord(pos uint64, frame uint32) uint64 { return uint64(uint32(pos)) | uint64(frame)<<32 }

func slotsFor(frame int) uint64 { return uint64(wordSize+frame+slotSize-1) / slotSize }

// outLane is the producer's end of a lane. Positions count slots since the
// beginning and start at one lap, so that the zeros of new memory are no word.
type outLane struct {
	ring  []byte
	slots uint64
	head  uint64 // the next slot to write
	free  uint64 // the tail as last read
	inner uint64 // end of the last run of several slots: their words may be data

	peerArmed *atomic.Uint32
	tail      *atomic.Uint64
	want      *atomic.Uint32

	seg    *segment
	from   int
	to     int
	active bool
	waits  bool // in Transport.blocked
	bulk   *bulkOut
}

func (o *outLane) init(seg *segment, from, to int) {
	at := seg.lane(from, to)
	slots := uint64(seg.ring / slotSize)
	*o = outLane{
		ring: seg.mem[at+offRing : at+offRing+seg.ring : at+offRing+seg.ring], slots: slots, head: slots, free: slots,
		peerArmed: at32(seg.mem, seg.block(to)+offArmed), tail: at64(seg.mem, at+offTail), want: at32(seg.mem, at+offWant),
		seg: seg, from: from, to: to,
	}
}

// activate makes the lane's memory real and tells the consumer to look at it.
// The first publication, which follows, wakes the consumer if need be.
func (o *outLane) activate() error {
	if err := o.seg.commit(o.seg.lane(o.from, o.to), o.seg.laneBytes()); err != nil {
		return fmt.Errorf("lane: %w", err)
	}
	// Nobody consumes yet, so the tail is the producer's to start.
	o.tail.Store(o.slots)
	block := o.seg.block(o.to)
	at32(o.seg.mem, block+offActive+o.from/32*4).Or(1 << (o.from % 32))
	at32(o.seg.mem, block+offAttention).Add(1)
	o.active = true
	return nil
}

// take returns the room for a frame of n bytes at the head, which is
// then published; false when there is none.
func (o *outLane) take(n int) ([]byte, bool) {
	k := slotsFor(n)
	at := o.head & (o.slots - 1)
	need := k + 1
	if at+k > o.slots {
		need += o.slots - at
	}
	if o.head+need > o.free+o.slots && !o.refresh(need) {
		return nil, false
	}
	if need > k+1 {
		o.cleanWord(o.head + o.slots - at)
		at64(o.ring, int(at)*slotSize).Store(slotWord(o.head, framePad))
		o.head += o.slots - at
		at = 0
	}
	if next := o.head + k; next < o.inner+o.slots {
		o.cleanWord(next)
	}
	base := int(at)*slotSize + wordSize
	return o.ring[base : base+n : base+n], true
}

// cleanWord makes sure that the slot at pos, where the consumer looks next, does
// not look published. It is ordered before the publication that follows.
func (o *outLane) cleanWord(pos uint64) {
	binary.LittleEndian.PutUint64(o.ring[int(pos&(o.slots-1))*slotSize:], slotWord(pos-1, 0))
}

// publish hands the frame of n bytes that was written after take to the consumer.
func (o *outLane) publish(n int, flags uint32) {
	k := slotsFor(n)
	at64(o.ring, int(o.head&(o.slots-1))*slotSize).Store(slotWord(o.head, uint32(n)|flags))
	o.head += k
	// In a stream of messages the next slots still belong to the consumer's cache.
	// Fetching one while this message goes out doubles the rate; it is the slot
	// after the next, since the consumer may be looking at the next one.
	prefetchWrite(&o.ring[int((o.head+1)&(o.slots-1))*slotSize])
	if k > 1 {
		o.inner = o.head
	}
}

// refresh reads the tail, and asks to be told of room if there is not enough.
func (o *outLane) refresh(need uint64) bool {
	for range 2 {
		// A tail that is out of bounds never makes room; the consumer harms itself.
		if tail := o.tail.Load(); tail-o.free <= o.head-o.free {
			o.free = tail
		}
		if o.head+need <= o.free+o.slots {
			return true
		}
		o.want.Store(1) // and look again: the consumer may not have seen it
	}
	return false
}

// Send writes one frame into the peer's lane.
func (t *Transport) Send(peer int, h *wire.Header, payload []byte) error {
	i, err := t.peer(peer)
	if err != nil {
		return err
	}
	if len(payload) > t.seg.maxEager() {
		return fmt.Errorf("shm: frame of %d bytes to rank %d: MaxEager is %d", len(payload), peer, t.seg.maxEager())
	}
	o := &t.out[i]
	size := h.Size()
	n := size + len(payload)
	f, ok := o.take(n)
	if !ok || !o.active {
		if f, err = t.takeSlow(o, n); err != nil {
			return err
		}
	}
	h.Encode(f)
	copy(f[size:], payload)
	o.publish(n, 0)
	t.nudge(i, o.peerArmed)
	return nil
}

// takeSlow is take for a lane that is new or full.
func (t *Transport) takeSlow(o *outLane, n int) ([]byte, error) {
	if !o.active {
		if err := o.activate(); err != nil {
			t.cut(o.to, err)
			t.errs = append(t.errs, downReport{o.to, err})
			t.busy = true
			return nil, err
		}
	}
	if f, ok := o.take(n); ok {
		return f, nil
	}
	if !o.waits {
		o.waits = true
		t.blocked = append(t.blocked, o)
	}
	return nil, transport.ErrAgain
}

// inLane is the consumer's end of a lane.
type inLane struct {
	ring     []byte
	slots    uint64
	pos      uint64 // the next slot to read
	released uint64 // the tail as the producer knows it
	maxFrame int
	active   bool // in Transport.active
	stalled  bool // a bulk payload is on its way: see bulkIn
	limit    int  // frames for one drain

	tail      *atomic.Uint64
	want      *atomic.Uint32
	peerArmed *atomic.Uint32
	from      int
	bulk      bulkIn
}

func (l *inLane) init(seg *segment, from, to int) {
	at := seg.lane(from, to)
	slots := uint64(seg.ring / slotSize)
	*l = inLane{
		ring: seg.mem[at+offRing : at+offRing+seg.ring : at+offRing+seg.ring], slots: slots, pos: slots, released: slots,
		maxFrame: seg.maxFrame() - wordSize, tail: at64(seg.mem, at+offTail), want: at32(seg.mem, at+offWant),
		peerArmed: at32(seg.mem, seg.block(from)+offArmed), from: from,
	}
	l.bulk.init(seg, from, to)
}

// close makes the lane find nothing any more.
func (l *inLane) close() {
	l.stalled = true
	l.bulk.drop()
}

func (l *inLane) ready() bool {
	if l.stalled {
		return l.bulk.ready()
	}
	return uint32(at64(l.ring, int(l.pos&(l.slots-1))*slotSize).Load()) == uint32(l.pos)
}

// drain delivers what is in a lane, up to a burst. It returns how many frames and
// chunks that was.
//
// To look at a slot that is not written yet costs a cache line's way from the
// producer's core and back, which would delay an answer to the frame before it. So
// a drain ends with the first frame unless the ones before it came in a stream.
func (t *Transport) drain(l *inLane, s transport.Sink) int {
	n := 0
	if l.stalled {
		if n = t.absorb(l, s); l.stalled {
			return n
		}
	}
	end := n + max(l.limit, 1)
	for n < end {
		at := l.pos & (l.slots - 1)
		base := int(at) * slotSize
		w := at64(l.ring, base).Load()
		if uint32(w) != uint32(l.pos) {
			l.limit = 1
			return n
		}
		frame := uint32(w >> 32)
		if frame == framePad {
			t.release(l, l.slots-at)
			continue
		}
		size := int(frame & frameLen)
		k := slotsFor(size)
		if size > l.maxFrame || at+k > l.slots || frame&framePad != 0 {
			t.violation(l.from, "a frame of %d bytes (%#x) at slot %d of %d", size, frame, at, l.slots)
			break
		}
		f := l.ring[base+wordSize : base+wordSize+size : base+wordSize+size]
		h := &t.hdr
		hn, err := wire.Decode(f, h)
		if err != nil {
			t.violation(l.from, "%w", err)
			break
		}
		n++
		if h.Kind != wire.Data {
			s.Frame(t.world[l.from], h, f[hn:])
		} else if frame&frameBulk == 0 {
			t.deliver(l.from, h, f[hn:], s)
		} else if !t.begin(l, h, f[hn:], s) {
			break
		}
		t.release(l, k)
		if l.stalled {
			break
		}
	}
	l.limit = min(2*max(l.limit, 1), burst)
	return n
}

// release gives k slots back. The producer is told every quarter of the ring: then
// one that found no room, which takes less than three quarters, will be told.
func (t *Transport) release(l *inLane, k uint64) {
	l.pos += k
	if l.pos-l.released >= l.slots/4 {
		l.released = l.pos
		l.tail.Store(l.pos)
		if l.want.Load() != 0 {
			l.want.Store(0)
			t.nudge(l.from, l.peerArmed)
		}
	}
}

// deliver hands over the payload of a Data frame that came in one piece.
func (t *Transport) deliver(from int, h *wire.Header, payload []byte, s transport.Sink) {
	if dst := s.Dest(t.world[from], h, len(payload)); dst != nil {
		copy(dst, payload)
		s.Landed(t.world[from], h)
	}
}
