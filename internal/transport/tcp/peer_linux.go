package tcp

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

type peerState uint8

const (
	idle    peerState = iota
	dialing           // a dial is under way, or expected from the other side, or its address is asked for
	up
	failed // PeerDown is due
	down   // PeerDown was reported
)

// peer is what a rank knows of another one. It is made on first use.
type peer struct {
	rank     int
	state    peerState
	fd       int
	addrs    []netip.AddrPort // to dial
	remote   netip.AddrPort
	err      error // why no more can be written: set before state leaves up
	dial     *conn // under way
	late     bool  // a dial of the other side that crossed ours may still come, once
	expected int   // ticks to wait for a dial of the other side after "crossed", or for its card; 0: for neither
	finding  bool  // it is the card
	quiet    int   // see countQuiet

	// Output: bytes of out[head:tail], in which bulk payloads are inserted. Positions
	// count bytes of out only, from the start of the connection.
	out     []byte // from freeOut while there is something in it
	head    int
	tail    int
	flushed uint64 // position of out[head]
	bulks   []bulk // oldest first
	blocked bool   // epoll tells when the socket takes more
	starved bool   // ErrAgain was returned

	// Input: unparsed bytes in[r:w], after the rest of a Data frame's payload.
	in   []byte // from freeIn while there is something in it
	r, w int
	need int // bytes from r that it takes to go on, when known
	h    wire.Header
	left uint64 // of the payload of the Data frame h
	dst  []byte // where it goes; nil: nowhere

	drained bool // the last read found less than it asked for
}

// bulk is a payload in the output.
type bulk struct {
	at      uint64 // position of the byte of out that follows it
	payload []byte // what is left
	token   uint32
}

func (t *Transport) peer(rank int) *peer {
	p := t.peers[rank]
	if p == nil {
		p = &peer{rank: rank, fd: -1}
		t.peers[rank] = p
	}
	return p
}

// Send implements transport.Transport. A frame is written at once, by one system call,
// unless the socket is full: then frames gather and leave together. They do not
// gather otherwise, although that would save calls: nobody promises that a
// Poll follows soon when the user's program computes.
func (t *Transport) Send(rank int, h *wire.Header, payload []byte) error {
	if len(payload) > maxEager {
		return fmt.Errorf("tcp: %v frame of %d bytes, Send takes up to %d", h.Kind, len(payload), maxEager)
	}
	p := t.peers[rank]
	if p == nil || p.state != up || p.tail > p.head || len(p.bulks) > 0 || p.err != nil {
		return t.sendLater(rank, h, payload)
	}
	n := encodeHead(t.scratch[:], h, len(payload))
	total := n + len(payload)
	var sent int
	var e syscall.Errno
	if len(payload) <= copyLimit {
		copy(t.scratch[n:], payload)
		sent, e = send(p.fd, t.scratch[:total])
	} else {
		t.vec.add(t.scratch[:n])
		t.vec.add(payload)
		sent, e = t.vec.send(p.fd)
	}
	switch {
	case sent == total:
		return nil
	case e != 0 && e != unix.EAGAIN:
		return t.unwritable(p, e)
	}
	if sent < n {
		t.put(p, t.scratch[sent:n])
		sent = n
	}
	t.put(p, payload[sent-n:])
	t.setBlocked(p, true)
	return nil
}

// sendLater is Send for a socket that is not there yet, or is full.
func (t *Transport) sendLater(rank int, h *wire.Header, payload []byte) error {
	p, err := t.reach(rank)
	if err != nil {
		return err
	}
	if !p.room(maxHead + len(payload)) {
		p.starved = true
		return transport.ErrAgain
	}
	n := encodeHead(t.scratch[:], h, len(payload))
	t.put(p, t.scratch[:n])
	t.put(p, payload)
	return nil
}

// SendBulk implements transport.Transport.
func (t *Transport) SendBulk(rank int, h *wire.Header, payload []byte, token uint32) error {
	if h.Kind != wire.Data {
		return fmt.Errorf("tcp: SendBulk of %v frame, it takes Data only", h.Kind)
	}
	p, err := t.reach(rank)
	if err != nil {
		return err
	}
	if len(p.bulks) >= bulkLimit || !p.room(maxHead) {
		p.starved = true
		return transport.ErrAgain
	}
	n := encodeHead(t.scratch[:], h, len(payload))
	t.put(p, t.scratch[:n])
	p.bulks = append(p.bulks, bulk{p.flushed + uint64(p.tail-p.head), payload, token})
	if p.state == up && !p.blocked {
		t.flush(p)
	}
	return nil
}

// reach returns a peer that output can be queued for, and dials it if need be.
func (t *Transport) reach(rank int) (*peer, error) {
	p := t.peer(rank)
	if p.err != nil {
		return nil, p.err
	}
	if p.state == idle {
		if rank == t.cfg.Rank {
			return nil, fmt.Errorf("tcp: rank %d sends to itself", rank)
		}
		if t.find == nil {
			return nil, fmt.Errorf("tcp: rank %d has no card of rank %d", t.cfg.Rank, rank)
		}
		p.state = dialing
		p.finding, p.expected = true, findTicks
		t.expect++
		if err := t.find(rank); err != nil {
			t.fail(p, fmt.Errorf("tcp: rank %d cannot ask for the card of rank %d: %w", t.cfg.Rank, rank, err))
		}
		t.setTicking()
		if p.err != nil {
			return nil, p.err
		}
	}
	return p, nil
}

// room reports whether the output takes n more bytes.
func (p *peer) room(n int) bool { return outSize-(p.tail-p.head) >= n }

// put appends to the output. The caller has checked that there is room.
func (t *Transport) put(p *peer, b []byte) {
	if len(b) == 0 {
		return
	}
	if p.out == nil {
		p.out = take(&t.freeOut, outSize)
	}
	if p.tail+len(b) > len(p.out) {
		p.tail = copy(p.out, p.out[p.head:p.tail])
		p.head = 0
	}
	p.tail += copy(p.out[p.tail:], b)
}

// flush writes output to the socket until it is full. It returns 1 when that makes
// room for somebody who was refused.
func (t *Transport) flush(p *peer) int {
	if p.err != nil {
		return 0
	}
	progress := false
	for {
		at, head := p.flushed, p.head
		for i := 0; !t.vec.full(); i++ {
			end := p.flushed + uint64(p.tail-p.head)
			if i < len(p.bulks) {
				end = p.bulks[i].at
			}
			t.vec.add(p.out[head : head+int(end-at)])
			head, at = head+int(end-at), end
			if i >= len(p.bulks) || t.vec.full() {
				break
			}
			t.vec.add(p.bulks[i].payload)
		}
		want := t.vec.bytes
		sent := 0
		if want > 0 {
			var e syscall.Errno
			if sent, e = t.vec.send(p.fd); e != 0 && e != unix.EAGAIN {
				_ = t.unwritable(p, e)
				return 0
			}
		}
		t.consume(p, sent)
		progress = progress || sent > 0
		if sent < want || p.tail == p.head && len(p.bulks) == 0 {
			t.setBlocked(p, sent < want)
			break
		}
	}
	if p.tail == p.head && p.out != nil {
		give(&t.freeOut, &p.out)
		p.head, p.tail = 0, 0
	}
	if progress && p.starved {
		p.starved = false
		return 1
	}
	return 0
}

// consume takes n written bytes from the output.
func (t *Transport) consume(p *peer, n int) {
	finished := 0
	for {
		if finished == len(p.bulks) {
			p.head += n
			p.flushed += uint64(n)
			break
		}
		b := &p.bulks[finished]
		k := int(min(uint64(n), b.at-p.flushed))
		p.head += k
		p.flushed += uint64(k)
		n -= k
		if b.at > p.flushed {
			break
		}
		k = min(n, len(b.payload))
		b.payload = b.payload[k:]
		n -= k
		if len(b.payload) > 0 {
			break
		}
		t.done = append(t.done, done{p.rank, b.token})
		finished++
	}
	if finished > 0 {
		rest := copy(p.bulks, p.bulks[finished:])
		clear(p.bulks[rest:])
		p.bulks = p.bulks[:rest]
	}
}

func (t *Transport) setBlocked(p *peer, blocked bool) {
	if p.blocked == blocked {
		return
	}
	p.blocked = blocked
	events := uint32(unix.EPOLLIN)
	if blocked {
		events |= unix.EPOLLOUT
	}
	if err := t.watch(unix.EPOLL_CTL_MOD, p.fd, events, peerEvent, p.rank); err != nil && p.err == nil {
		p.err = err
		t.broken = append(t.broken, p)
	}
}

// unwritable is called when a write failed. Frames that came before the end are
// still in the socket: the next Poll reads them before it reports PeerDown.
func (t *Transport) unwritable(p *peer, e syscall.Errno) error {
	p.err = t.lostBy(p, e)
	t.broken = append(t.broken, p)
	t.dropOutput(p)
	return p.err
}

func (t *Transport) lostBy(p *peer, e syscall.Errno) error {
	hint := "its process or host has gone"
	if e == unix.ETIMEDOUT {
		hint = "its host or the network is down"
	}
	return fmt.Errorf("tcp: connection with rank %d at %v: %w: %s", p.rank, p.remote, e, hint)
}

// expectNone ends the wait for a dial of the other side, or for its card.
func (t *Transport) expectNone(p *peer) {
	if p.expected > 0 {
		t.expect--
	}
	p.expected, p.finding = 0, false
}

func (t *Transport) dropOutput(p *peer) {
	clear(p.bulks)
	p.bulks = p.bulks[:0]
	p.head, p.tail = 0, 0
	give(&t.freeOut, &p.out)
}

// fail ends the connection with p; PeerDown is due at the next Poll.
func (t *Transport) fail(p *peer, err error) {
	if p.state >= failed {
		return
	}
	if p.state == up {
		for i, q := range t.up {
			if p == q {
				last := len(t.up) - 1
				t.up[i] = t.up[last]
				t.up[last] = nil
				t.up = t.up[:last]
				break
			}
		}
	}
	if p.dial != nil {
		t.drop(p.dial)
		p.dial = nil
	}
	t.expectNone(p)
	if p.fd >= 0 {
		_ = unix.Close(p.fd) // leaves epoll as well
		p.fd = -1
	}
	if p.err == nil {
		p.err = err
	}
	p.state = failed
	t.dropOutput(p)
	give(&t.freeIn, &p.in)
	p.dst, p.left, p.r, p.w = nil, 0, 0, 0
	t.lost = append(t.lost, p)
	t.setTicking()
}

// readsPerPoll bounds what one Poll takes from one connection.
const readsPerPoll = 8

// receive reads and delivers what has come from p.
func (t *Transport) receive(p *peer, s transport.Sink) (reports int) {
	p.drained = false
	for range readsPerPoll {
		var into []byte
		direct := p.left > 0 && p.dst != nil && p.w == p.r
		if direct {
			into = p.dst[:min(uint64(len(p.dst)), p.left)]
		} else {
			if p.in == nil {
				p.in = take(&t.freeIn, inSize)
			}
			if p.w == p.r {
				p.r, p.w = 0, 0
			}
			if p.r+max(p.need, 0)+readAhead > len(p.in) {
				p.w = copy(p.in, p.in[p.r:p.w])
				p.r = 0
			}
			into = p.in[p.w:max(p.w+readAhead, p.r+p.need)]
		}
		n, e := recv(p.fd, into)
		switch {
		case e == unix.EAGAIN:
			p.drained = true
			t.restInput(p)
			return reports
		case e != 0:
			t.fail(p, t.lostBy(p, e))
			return reports
		case n == 0:
			t.fail(p, p.endOfStream())
			return reports
		}
		if direct {
			p.dst = p.dst[n:]
			if p.left -= uint64(n); p.left == 0 {
				p.dst = nil
				s.Landed(p.rank, &p.h)
				reports++
			}
		} else {
			p.w += n
			k, err := t.deliver(p, s)
			reports += k
			if err != nil {
				t.fail(p, fmt.Errorf("tcp: rank %d at %v sent what is not a frame: %w", p.rank, p.remote, err))
				return reports
			}
		}
		if n < len(into) {
			p.drained = true
			break
		}
	}
	t.restInput(p)
	return reports
}

// restInput gives the input buffer back when it is empty.
func (t *Transport) restInput(p *peer) {
	if p.w == p.r && p.in != nil {
		give(&t.freeIn, &p.in)
		p.r, p.w = 0, 0
	}
}

// endOfStream is why p is down when its stream ends.
func (p *peer) endOfStream() error {
	if p.left > 0 || p.w > p.r {
		return fmt.Errorf("tcp: rank %d at %v closed the connection in the middle of a frame: its process has ended", p.rank, p.remote)
	}
	return fmt.Errorf("tcp: rank %d at %v closed the connection: its process has ended", p.rank, p.remote)
}

// deliver reports the frames in the input buffer.
func (t *Transport) deliver(p *peer, s transport.Sink) (reports int, err error) {
	for {
		b := p.in[p.r:p.w]
		if p.left > 0 {
			n := int(min(uint64(len(b)), p.left))
			if p.dst != nil {
				p.dst = p.dst[copy(p.dst, b[:n]):]
			}
			p.r += n
			if p.left -= uint64(n); p.left > 0 {
				return reports, nil
			}
			if p.dst != nil {
				p.dst = nil
				s.Landed(p.rank, &p.h)
				reports++
			}
			continue
		}
		head, n, need, err := parseFrame(b, maxEager, &p.h)
		if p.need = need; need > 0 || err != nil {
			return reports, err
		}
		if p.h.Kind != wire.Data {
			s.Frame(p.rank, &p.h, b[head:head+int(n)])
			p.r += head + int(n)
			reports++
			continue
		}
		p.r += head
		p.left, p.dst = n, s.Dest(p.rank, &p.h, int(n))
		switch {
		case p.dst == nil:
		case uint64(len(p.dst)) < n:
			return reports, errors.New("no room for it") // Dest broke its promise: stop before memory does
		case n == 0:
			p.dst = nil
			s.Landed(p.rank, &p.h)
			reports++
		}
	}
}

// take and give are a free list of buffers of one size.
func take(free *[][]byte, size int) []byte {
	if n := len(*free); n > 0 {
		b := (*free)[n-1]
		*free = (*free)[:n-1]
		return b
	}
	return make([]byte, size)
}

func give(free *[][]byte, b *[]byte) {
	if *b != nil {
		*free = append(*free, *b)
		*b = nil
	}
}
