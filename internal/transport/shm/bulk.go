package shm

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

// bulkQueue bounds the payloads that wait for one peer.
const bulkQueue = 32

// lengthSize is the length of a bulk payload, after the header that announces it.
const lengthSize = 8

// A chunk's flag.
const (
	chunkFree = 0 // the sender's
	chunkFull = 1 // the receiver's
)

// bulkOut is the sender's end of the chunks of a pair. Payloads are announced
// in the lane in the order of the queue.
type bulkOut struct {
	layout    *layout
	mem       []byte
	peer      int // rank in the world
	to        int
	peerArmed *atomic.Uint32

	queue [bulkQueue]outgoing
	first int
	n     int
	next  uint64 // chunk to fill, counted since the beginning
	moves bool   // in Transport.bulks
}

type outgoing struct {
	payload []byte // what is left of it
	token   uint32
}

// SendBulk sends short payloads like frames, and queues long ones for the chunks.
func (t *Transport) SendBulk(peer int, h *wire.Header, payload []byte, token uint32) error {
	i, err := t.peer(peer)
	if err != nil {
		return err
	}
	if len(payload) <= t.seg.maxEager() {
		if err := t.Send(peer, h, payload); err != nil {
			return err
		}
		t.sent = append(t.sent, report{peer, token})
		t.busy = true
		return nil
	}
	o := &t.out[i]
	if o.bulk == nil {
		if o.bulk, err = t.newBulk(i); err != nil {
			t.cut(i, err)
			t.errs = append(t.errs, downReport{i, err})
			t.busy = true
			return err
		}
	}
	b := o.bulk
	if b.n == bulkQueue {
		return transport.ErrAgain // ends at a Poll that finishes a payload
	}
	size := h.Size()
	f, ok := o.take(size + lengthSize)
	if !ok || !o.active {
		if f, err = t.takeSlow(o, size+lengthSize); err != nil {
			return err
		}
	}
	h.Encode(f)
	binary.LittleEndian.PutUint64(f[size:], uint64(len(payload)))
	b.queue[(b.first+b.n)%bulkQueue] = outgoing{payload, token}
	b.n++
	if !b.moves {
		b.moves = true
		t.bulks = append(t.bulks, b)
	}
	t.busy = true
	// Announced first, so that the receiver empties the first chunk while this
	// rank fills the second. Filling one wakes it.
	o.publish(size+lengthSize, frameBulk)
	if b.n == 1 {
		t.push(b)
	}
	t.nudge(i, o.peerArmed)
	return nil
}

func (t *Transport) newBulk(to int) (*bulkOut, error) {
	at, n := t.seg.bulk(t.self, to), t.seg.bulkBytes()
	if err := t.seg.commit(at, n); err != nil {
		return nil, fmt.Errorf("bulk path to rank %d: %w", t.world[to], err)
	}
	return &bulkOut{layout: &t.seg.layout, mem: t.seg.mem[at : at+n : at+n], peer: t.world[to], to: to,
		peerArmed: at32(t.seg.mem, t.seg.block(to)+offArmed)}, nil
}

func (b *bulkOut) flag() *atomic.Uint32 { return at32(b.mem, chunkFlagAt(b.next)) }

func (b *bulkOut) ready() bool { return b.n > 0 && b.flag().Load() == chunkFree }

// drop forgets what is queued.
func (b *bulkOut) drop() { b.queue, b.n = [bulkQueue]outgoing{}, 0 }

// push fills free chunks, as many as there are at most, and notes the payloads
// that are through. It returns how many it filled.
func (t *Transport) push(b *bulkOut) int {
	for n := range chunks {
		if !b.ready() {
			return n
		}
		q := &b.queue[b.first]
		at := chunkAt(b.layout, b.next)
		m := copy(b.mem[at:at+b.layout.chunk], q.payload)
		b.flag().Store(chunkFull)
		t.nudge(b.to, b.peerArmed)
		b.next++
		if q.payload = q.payload[m:]; len(q.payload) == 0 {
			t.sent = append(t.sent, report{b.peer, q.token})
			*q = outgoing{}
			b.first = (b.first + 1) % bulkQueue
			b.n--
		}
	}
	return chunks
}

// bulkIn is the receiver's end of the chunks of a pair. While a payload is on
// its way the lane is stalled.
type bulkIn struct {
	layout *layout
	mem    []byte
	next   uint64 // chunk to empty, counted since the beginning

	h    wire.Header
	dst  []byte // nil: thrown away
	left int    // bytes to come
}

func (b *bulkIn) init(seg *segment, from, to int) {
	at, n := seg.bulk(from, to), seg.bulkBytes()
	b.layout, b.mem = &seg.layout, seg.mem[at:at+n:at+n]
}

func (b *bulkIn) flag() *atomic.Uint32 { return at32(b.mem, chunkFlagAt(b.next)) }

func (b *bulkIn) ready() bool { return b.left > 0 && b.flag().Load() == chunkFull }

// drop ends the transfer: nothing is written any more.
func (b *bulkIn) drop() { b.dst, b.left = nil, 0 }

// begin starts the transfer that a frame announced, and moves what is there.
func (t *Transport) begin(l *inLane, h *wire.Header, ext []byte, s transport.Sink) bool {
	if len(ext) != lengthSize {
		t.violation(l.from, "a bulk announcement of %d bytes", len(ext))
		return false
	}
	n := binary.LittleEndian.Uint64(ext)
	if n <= uint64(t.seg.maxEager()) || n > wire.MaxBytes {
		t.violation(l.from, "a bulk payload of %d bytes", n)
		return false
	}
	dst := s.Dest(t.world[l.from], h, int(n))
	if dst != nil {
		dst = dst[:n]
	}
	b := &l.bulk
	b.h, b.dst, b.left = *h, dst, int(n)
	l.stalled = true
	t.absorb(l, s)
	return true
}

// absorb empties full chunks, as many as there are at most, and reports the
// payload when it is complete. It returns how many it emptied.
func (t *Transport) absorb(l *inLane, s transport.Sink) int {
	b := &l.bulk
	for n := range chunks {
		if !b.ready() {
			return n
		}
		m := min(b.layout.chunk, b.left)
		if b.dst != nil {
			at := chunkAt(b.layout, b.next)
			copy(b.dst[len(b.dst)-b.left:], b.mem[at:at+m])
		}
		b.flag().Store(chunkFree)
		t.nudge(l.from, l.peerArmed)
		b.next++
		b.left -= m
		if b.left > 0 {
			continue
		}
		l.stalled = false
		if b.dst != nil {
			b.dst = nil
			s.Landed(t.world[l.from], &b.h)
		}
		return n + 1
	}
	return chunks
}
