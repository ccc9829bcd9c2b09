package sim

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

const (
	// perLane bounds the frames that one Poll takes from one lane.
	perLane = 16
	// copyPiece bounds one uninterrupted copy, so that the collector can stop the
	// goroutine in between.
	copyPiece = 256 << 10
)

// Transport is one rank's end of a fabric.
type Transport struct {
	f     *Fabric
	rank  int
	out   []*lane                // by destination; made here on first use
	in    []atomic.Pointer[lane] // by source; made there
	links []link                 // by peer

	ready   bitset   // peers that put something in their lane to us
	room    bitset   // peers that took something from our lane to them
	changed bitset   // peers whose link went down
	pending []uint64 // peers whose lane we did not empty, same layout
	leaving []uint64 // peers whose link went down and is not reported, same layout

	h      wire.Header // of the frame that Poll delivers
	armed  atomic.Uint32
	parked parking
	closed bool
}

var _ transport.Transport = (*Transport)(nil)

func newTransport(f *Fabric, rank, n int) *Transport {
	words := (n + 63) / 64
	return &Transport{
		f: f, rank: rank,
		out: make([]*lane, n), in: make([]atomic.Pointer[lane], n), links: make([]link, n),
		ready: newBitset(n), room: newBitset(n), changed: newBitset(n),
		pending: make([]uint64, words), leaving: make([]uint64, words),
	}
}

// Name implements transport.Transport.
func (t *Transport) Name() string { return "sim" }

// MaxEager implements transport.Transport.
func (t *Transport) MaxEager() int { return t.f.eager }

// announce adds peer to one of t's sets and wakes t if it waits. It is called
// by other ranks.
func (t *Transport) announce(s bitset, peer int) {
	s.add(peer)
	if t.armed.Load() != 0 {
		t.parked.wake()
	}
}

// Send implements transport.Transport.
func (t *Transport) Send(peer int, h *wire.Header, payload []byte) error {
	if len(payload) > t.f.eager {
		return errTooLong(h, len(payload), t.f.eager)
	}
	return t.send(peer, h, payload, nil, 0)
}

// SendBulk implements transport.Transport.
func (t *Transport) SendBulk(peer int, h *wire.Header, payload []byte, token uint32) error {
	if h.Kind != wire.Data {
		return fmt.Errorf("sim: SendBulk of %v frame, it takes Data only", h.Kind)
	}
	if payload == nil {
		payload = []byte{}
	}
	return t.send(peer, h, nil, payload, token)
}

// send puts one frame in the lane to peer: with its payload, or with a reference
// to the payload large, which is then not nil.
func (t *Transport) send(peer int, h *wire.Header, payload, large []byte, token uint32) error {
	if k := &t.links[peer]; k.state.Load() != linkUp {
		return k.err
	}
	l := t.out[peer]
	if l == nil {
		l = newLane(t.f, t.rank, peer)
		t.out[peer] = l
		t.f.ranks[peer].in[t.rank].Store(l)
	}
	if l.refuse != nil && l.refuse.Float64() < t.f.cfg.Again {
		t.room.add(peer) // there is room, so nothing else would end a Wait
		return transport.ErrAgain
	}
	var marks uint32
	if large != nil {
		if l.bulk == nil {
			l.bulk = make([]bulk, bulkSlots)
		}
		if l.posted-l.reaped == bulkSlots {
			return transport.ErrAgain // until Poll has reported one as sent
		}
		marks = markBulk
		l.bulk[l.posted%bulkSlots] = bulk{large, token}
	}
	marks |= l.fate(&t.f.cfg, h.Kind)
	if !l.put(h, payload, marks) {
		l.starved.Store(true)
		if !l.put(h, payload, marks) {
			return transport.ErrAgain
		}
		l.starved.Store(false)
	}
	l.drawn = false
	if large != nil {
		l.posted++
	}
	p := t.f.ranks[peer]
	p.announce(p.ready, t.rank)
	return nil
}

// Poll implements transport.Transport. Room after ErrAgain counts as a report,
// so that a caller who sleeps on zero tries again first.
func (t *Transport) Poll(s transport.Sink) int {
	n := 0
	for w := range t.ready {
		t.pending[w] |= t.ready.take(w)
		for set := t.pending[w]; set != 0; {
			var peer int
			peer, set = next(set, w)
			k, done := t.receive(peer, s)
			if n += k; done {
				t.pending[w] &^= 1 << (peer & 63)
			}
		}
		for set := t.room.take(w); set != 0; {
			var peer int
			peer, set = next(set, w)
			n += 1 + t.reap(peer, s)
		}
		t.leaving[w] |= t.changed.take(w)
		for set := t.leaving[w]; set != 0; {
			var peer int
			peer, set = next(set, w)
			report, done := t.leave(peer, s)
			if report {
				n++
			}
			if done {
				t.leaving[w] &^= 1 << (peer & 63)
			}
		}
	}
	return n
}

// receive delivers frames from peer. It returns the number of reports and
// whether the lane needs no look before its writer announces more.
func (t *Transport) receive(peer int, s transport.Sink) (reports int, done bool) {
	l := t.in[peer].Load()
	state := &t.links[peer].state
	for range perLane {
		if l == nil || state.Load() >= linkCut {
			return reports, true
		}
		frame, marks := l.first()
		if frame == nil {
			return reports, true
		}
		if !l.seen {
			l.seen, l.hold = true, int(marks&markHold)
		}
		if l.hold > 0 {
			l.hold--
			return reports, false
		}
		l.seen = false
		if marks&markBulk != 0 && state.Load() != linkUp {
			return reports, true // its payload is out of reach, so this is the end
		}
		reports += t.deliver(peer, l, frame, marks, s)
		if marks&markTwin != 0 {
			reports += t.deliver(peer, l, frame, marks, s)
		}
		l.drop(frame)
		if marks&markBulk != 0 || l.starved.Load() && l.starved.Swap(false) {
			p := t.f.ranks[peer]
			p.announce(p.room, t.rank)
		}
	}
	return reports, false
}

// deliver reports one frame.
func (t *Transport) deliver(peer int, l *lane, frame []byte, marks uint32, s transport.Sink) int {
	n, err := wire.Decode(frame, &t.h)
	if err != nil {
		// The frame never left this process: only a bug brings us here.
		panic(fmt.Sprintf("sim: rank %d sent rank %d a bad frame: %v", peer, t.rank, err))
	}
	payload := frame[n:]
	switch {
	case t.h.Kind != wire.Data:
		s.Frame(peer, &t.h, payload)
		return 1
	case marks&markBulk != 0:
		return t.deliverBulk(peer, l, s)
	}
	dst := s.Dest(peer, &t.h, len(payload))
	if dst == nil {
		return 0
	}
	copy(dst, payload)
	s.Landed(peer, &t.h)
	return 1
}

// deliverBulk reports the Data frame in t.h, whose payload is in the sender's
// memory. When the link went down meanwhile it does nothing: receive stops there.
func (t *Transport) deliverBulk(peer int, l *lane, s transport.Sink) int {
	memory := t.memoryOf(peer)
	memory.Lock()
	defer memory.Unlock()
	if t.links[peer].state.Load() != linkUp {
		return 0
	}
	at := l.taken.Load()
	src := l.bulk[at%bulkSlots].payload
	dst := s.Dest(peer, &t.h, len(src))
	if dst != nil {
		copyPieces(dst, src)
	}
	l.taken.Store(at + 1)
	if dst == nil {
		return 0
	}
	s.Landed(peer, &t.h)
	return 1
}

// pull copies memory of peer to dst, unless the link is no longer up.
func (t *Transport) pull(peer int, dst, src []byte) error {
	memory := t.memoryOf(peer)
	memory.Lock()
	defer memory.Unlock()
	if k := &t.links[peer]; k.state.Load() != linkUp {
		return k.err
	}
	copyPieces(dst, src)
	return nil
}

// memoryOf returns the lock to hold while t reads memory of peer.
func (t *Transport) memoryOf(peer int) *sync.Mutex { return &t.f.ranks[peer].links[t.rank].memory }

// seal is for a link that is down: when peer is still copying our memory it
// ends first, and it never begins again.
func (t *Transport) seal(peer int) {
	t.links[peer].memory.Lock()
	defer t.links[peer].memory.Unlock()
	if l := t.out[peer]; l != nil {
		clear(l.bulk)
	}
}

func copyPieces(dst, src []byte) {
	for len(src) > 0 {
		n := copy(dst, src[:min(len(src), copyPiece)])
		dst, src = dst[n:], src[n:]
	}
}

// reap reports the bulk payloads that peer has taken.
func (t *Transport) reap(peer int, s transport.Sink) (n int) {
	l := t.out[peer]
	if l == nil || t.links[peer].state.Load() >= linkDown {
		return 0
	}
	for taken := l.taken.Load(); l.reaped < taken; l.reaped++ {
		b := &l.bulk[l.reaped%bulkSlots]
		token := b.token
		*b = bulk{}
		s.Sent(peer, token)
		n++
	}
	return n
}

// leave reports that peer is down, once nothing of its is left to read and
// nothing of ours can be read by it. It returns whether the matter is closed.
func (t *Transport) leave(peer int, s transport.Sink) (report, done bool) {
	k, w, bit := &t.links[peer], peer>>6, uint64(1)<<(peer&63)
	if k.state.Load() == linkClosing && (t.pending[w]|t.ready[w].Load())&bit != 0 {
		return false, false // frames are left
	}
	t.f.mu.Lock()
	reported := k.state.Load() == linkDown
	k.state.Store(linkDown)
	t.f.mu.Unlock()
	if reported {
		return false, true // a Cut and a Close of the same link
	}
	t.seal(peer)
	s.PeerDown(peer, k.err)
	return true, true
}

// Arm implements transport.Transport.
func (t *Transport) Arm() bool {
	t.armed.Store(1)
	idle := t.ready.empty() && t.room.empty() && t.changed.empty()
	for w := range t.pending {
		idle = idle && t.pending[w]|t.leaving[w] == 0
	}
	if !idle {
		t.armed.Store(0)
	}
	return idle
}

// Disarm implements transport.Transport.
func (t *Transport) Disarm() { t.armed.Store(0) }

// Wake implements transport.Transport.
func (t *Transport) Wake() { t.parked.wake() }

// Close implements transport.Transport. Peers may still read the frames that
// are in their lanes, and then see PeerDown.
func (t *Transport) Close() error {
	if t.closed {
		return errors.New("sim: Close of a closed transport")
	}
	t.closed = true
	t.f.hangUp(t.rank)
	for peer := range t.out {
		t.seal(peer)
	}
	t.parked.close()
	return nil
}
