package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/rdma"
)

// Kinds of a wire.Region, in the upper 4 bits of its Kind. The lower 28 name an exposure
// or a window: its index, and above that its generation.
const (
	regionExposed = 1 + iota // a buffer of Expose; Key and Addr are those of rail 0
	regionPlain              // a buffer of Expose that is not registered: its payload comes through receives
	regionWindow             // of Grant
	regionBlock              // arena memory to READ

	kindShift    = 28
	nameMask     = 1<<kindShift - 1
	indexBits    = 12
	maxExposures = 1 << indexBits
	maxWindows   = 1 << indexBits
	genMask      = 1<<(kindShift-indexBits) - 1
)

// transfer is a payload, a Put or a Get on its way. While it is a connection's posting,
// parts of it wait for room; then it is known to the work requests only.
type transfer struct {
	c       *conn
	kind    transferKind
	token   uint32
	payload []byte
	lease   lease // of payload
	direct  bool  // the device reaches payload itself; else it goes through send buffers
	remote  uint64
	keys    [maxRails]uint32
	imm     uint32
	rails   int
	at, end [maxRails]int // of payload, by rail: what is still to be posted
	pending int           // work requests that are not done
	posted  bool          // all of them are posted
	failed  bool
	waited  bool // Pull waits for it: nothing is reported, and it is not given back
	over    bool
	next    *transfer // in Transport.spare
}

type transferKind uint8

const (
	transferPieces transferKind = iota // a payload through receives
	transferWrite                      // a payload by RDMA writes
	transferPut
	transferGet
)

func (t *Transport) newTransfer(c *conn, kind transferKind, payload []byte, token uint32) *transfer {
	x := t.spare
	if x == nil {
		x = new(transfer)
	} else {
		t.spare = x.next
	}
	*x = transfer{c: c, kind: kind, payload: payload, token: token, lease: lease{}, rails: 1}
	x.end[0] = len(payload)
	return x
}

// SendBulk implements transport.Transport.
func (t *Transport) SendBulk(peer int, h *wire.Header, payload []byte, token uint32) error {
	if h.Kind != wire.Data {
		return fmt.Errorf("verbs: SendBulk of %v frame, it takes Data only", h.Kind)
	}
	c := t.conns[peer]
	if c == nil || c.state != connUp {
		return t.notUp(peer)
	}
	if c.posting != nil || c.credit() == 0 {
		return transport.ErrAgain
	}
	head, kind := firstHead, transferPieces
	p := prefix{kind: prefixFirst}
	if h.Flags&wire.HasRegion != 0 && h.Region.Kind>>kindShift == regionExposed && len(payload) > 0 {
		head, kind = bulkHead, transferWrite
		p = prefix{kind: prefixBulk, rails: 1}
		if len(payload) >= t.tune.split && c.hasKeys(h.Region.Kind&nameMask) {
			p.rails = uint8(len(c.eps))
		}
	}
	n := head + h.Size()
	first := 0
	if kind == transferPieces {
		first = min(len(payload), t.tune.segment-prefixSize-n)
	}
	p.length = uint32(n + first)
	b, w, err := t.message(c, p)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	if kind == transferWrite {
		le.PutUint32(b, h.Region.Kind&nameMask)
		le.PutUint64(b[4:], uint64(len(payload)))
	} else {
		le.PutUint64(b, uint64(len(payload)))
	}
	h.Encode(b[head:])
	copy(b[n:], payload[:first])

	x := t.newTransfer(c, kind, payload, token)
	c.sent++
	t.stageMessage(c, w)
	t.stats.BulkBytes += uint64(len(payload))
	if kind == transferPieces {
		t.stats.CopiedOut += uint64(first)
		x.at[0] = first
	} else {
		x.aim(h.Region.Kind&nameMask, &h.Region, int(p.rails))
		if p.rails > 1 {
			c.takeKeys(x)
		}
		x.direct = t.borrow(&x.lease, payload, 0, x.rails)
	}
	c.posting = x
	t.push(c) // and with it the message
	if c.err != nil {
		return c.err
	}
	return nil
}

// aim says where a transfer goes, and divides it among rails.
func (x *transfer) aim(imm uint32, r *wire.Region, rails int) {
	x.imm, x.remote, x.rails = imm, r.Addr, rails
	x.keys[0] = r.Key
	n := len(x.payload)
	for i := range rails {
		x.at[i] = n / rails * i &^ (railAlign - 1)
		x.end[i] = n / rails * (i + 1) &^ (railAlign - 1)
	}
	x.end[rails-1] = n
}

const railAlign = 4096

// push posts what there is room for of the connection's transfer, and what is staged. It
// returns how many work requests went.
func (t *Transport) push(c *conn) int {
	x := c.posting
	n := 0
	switch {
	case x.kind == transferPieces:
		n = t.pushPieces(c, x)
	default:
		for i := range x.rails {
			n += t.pushRail(c.eps[i], x, i)
			if c.posting != x || c.state != connUp {
				return n
			}
		}
	}
	if c.state != connUp {
		return n
	}
	for i := range x.rails {
		if x.at[i] < x.end[i] {
			if !c.pushing {
				c.pushing = true
				t.pushing = append(t.pushing, c)
			}
			return n
		}
	}
	c.posting = nil
	x.posted = true
	if x.pending == 0 {
		t.finish(x)
	}
	return n
}

// pushAll goes on with all transfers that wait for room.
func (t *Transport) pushAll() int {
	n, kept := 0, 0
	for _, c := range t.pushing {
		if c.posting != nil && c.state == connUp {
			n += t.push(c)
		}
		if c.posting != nil && c.state == connUp {
			t.pushing[kept] = c
			kept++
		} else {
			c.pushing = false
		}
	}
	clear(t.pushing[kept:])
	t.pushing = t.pushing[:kept]
	return n
}

// pushPieces copies a payload to send buffers and posts them.
func (t *Transport) pushPieces(c *conn, x *transfer) int {
	e := c.eps[0]
	n := int(e.staged)
	if n > 0 && t.flush(e) != nil {
		return n
	}
	for x.at[0] < x.end[0] && c.credit() > 0 {
		k := min(x.end[0]-x.at[0], t.tune.segment-prefixSize)
		b, w, err := t.message(c, prefix{kind: prefixNext, length: uint32(k)})
		if err != nil {
			break
		}
		copy(b, x.payload[x.at[0]:x.at[0]+k])
		t.stats.CopiedOut += uint64(k)
		x.at[0] += k
		n++
		if t.send(c, w) != nil {
			break
		}
	}
	return n
}

// pushRail posts RDMA writes or reads of one rail's part.
func (t *Transport) pushRail(e *endpoint, x *transfer, rail int) int {
	n := 0
	for {
		for x.at[rail] < x.end[rail] && e.staged < sendBatch && e.room() > 0 {
			if !t.stagePiece(e, x, rail) {
				break
			}
		}
		k := int(e.staged)
		if k == 0 {
			return n
		}
		n += k
		if t.flush(e) != nil || k < sendBatch {
			break
		}
	}
	if x.at[rail] < x.end[rail] && e.state == epReady {
		t.nudge()
	}
	return n
}

// stagePiece stages the next piece, unless it needs a send buffer and none is free.
func (t *Transport) stagePiece(e *endpoint, x *transfer, rail int) bool {
	at := x.at[rail]
	n := x.end[rail] - at
	w := work{kind: workPiece, slot: noSlot, x: x}
	var addr uint64
	var lkey uint32
	if x.direct {
		n = min(n, e.conn.chunk)
		addr, lkey = addressOf(x.payload)+uint64(at), x.lease.lkey(rail)
	} else {
		n = min(n, t.tune.segment)
		if w.slot = t.takeSend(); w.slot == noSlot {
			return false
		}
		b := t.sendBuffer(w.slot)
		addr, lkey = addressOf(b), e.rail.pool.LKey()
		if x.kind == transferGet {
			w.kind, w.off, w.n = workFetch, at, n
		} else {
			w.kind = workBounce
			copy(b, x.payload[at:at+n])
			t.stats.CopiedOut += uint64(n)
		}
	}
	x.at[rail] += n
	x.pending++
	last := x.at[rail] == x.end[rail]
	var flags rdma.Flags
	if last || w.slot != noSlot && len(t.freeSends) < t.tune.sends/2 {
		flags = rdma.Signaled
	}
	wr := t.stage(e, w, flags)
	t.data(e, wr, addr, n, lkey)
	wr.RemoteAddr, wr.RKey = x.remote+uint64(at), x.keys[rail]
	switch {
	case x.kind == transferGet:
		wr.Op = rdma.Read
		t.stats.Reads++
		return true
	case x.kind == transferWrite && last:
		wr.Op, wr.Imm = rdma.WriteImm, x.imm
	default:
		wr.Op = rdma.Write
	}
	t.stats.Writes++
	t.stats.WrittenBytes += uint64(n)
	return true
}

// pieceDone notes that a work request of a transfer is done.
func (t *Transport) pieceDone(x *transfer, ok bool) {
	x.pending--
	x.failed = x.failed || !ok
	if x.pending == 0 && x.posted {
		t.finish(x)
	}
}

// finish lets go of a transfer's memory and reports it, if it went well. Of one that failed
// PeerDown tells.
func (t *Transport) finish(x *transfer) {
	t.giveUp(&x.lease)
	x.over = true
	if x.waited {
		return
	}
	if !x.failed {
		kind := reportSent
		if x.kind == transferPut || x.kind == transferGet {
			kind = reportDone
		}
		t.reports = append(t.reports, report{x.c.peer, x.token, 0, kind})
	}
	t.recycleTransfer(x)
}

func (t *Transport) recycleTransfer(x *transfer) {
	x.c, x.payload = nil, nil
	x.next, t.spare = t.spare, x
}

// exposure is a buffer that a peer may write one payload to. A receive of each rail is
// reserved for the message that says so.
//
//	free -> Expose -> (announced, pieces of all rails landed, in any order) -> reported -> free
type exposure struct {
	c     *conn // nil: free
	index int32
	gen   uint32
	id    uint32 // of the frame
	buf   []byte
	lease lease
	h     wire.Header
	told  bool // announced: h, n and rails are set
	n     int
	rails int
	got   int // rails whose part has landed
}

// Expose implements transport.Exposer.
func (t *Transport) Expose(peer int, id uint32, buf []byte) (wire.Region, error) {
	c := t.conns[peer]
	if c == nil || c.state != connUp {
		return wire.Region{}, t.notUp(peer)
	}
	if len(buf) == 0 {
		return wire.Region{Kind: regionPlain << kindShift}, nil
	}
	rails := 1
	if len(buf) >= t.tune.split {
		rails = len(c.eps)
	}
	if len(t.freeExp) == 0 || rails > 1 && (c.posting != nil || c.credit() == 0) {
		return wire.Region{}, transport.ErrAgain
	}
	var l lease
	if !t.borrow(&l, buf, rdma.LocalWrite|rdma.RemoteWrite, rails) {
		return wire.Region{Kind: regionPlain << kindShift}, nil
	}
	i := take(&t.freeExp)
	x := &t.exposures[i]
	name := uint32(i) | x.gen<<indexBits
	if rails > 1 {
		if err := t.sendKeys(c, name, &l, rails); err != nil {
			t.giveUp(&l)
			t.freeExp = append(t.freeExp, i)
			return wire.Region{}, err
		}
	}
	*x = exposure{c: c, index: i, gen: x.gen, id: id, buf: buf, lease: l}
	return wire.Region{Kind: regionExposed<<kindShift | name, Key: l.rkey(0), Addr: addressOf(buf)}, nil
}

// sendKeys tells the peer the keys of the rails after the first.
func (t *Transport) sendKeys(c *conn, name uint32, l *lease, rails int) error {
	b, w, err := t.message(c, prefix{kind: prefixKeys, length: uint32(8 + 4*(rails-1))})
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	le.PutUint32(b, name)
	le.PutUint32(b[4:], uint32(rails-1))
	for i := 1; i < rails; i++ {
		le.PutUint32(b[4+4*i:], l.rkey(i))
	}
	return t.send(c, w)
}

// railKeys are keys of an exposure of the peer.
type railKeys struct {
	name uint32
	keys [maxRails]uint32
}

func (c *conn) learnKeys(b []byte) error {
	le := binary.LittleEndian
	if len(b) < 8 || int(le.Uint32(b[4:])) != len(c.eps)-1 || len(b) != 8+4*(len(c.eps)-1) {
		return fmt.Errorf("keys of %d bytes", len(b))
	}
	if len(c.keys) >= maxExposures {
		return errors.New("more keys than exposures")
	}
	k := railKeys{name: le.Uint32(b)}
	for i := 1; i < len(c.eps); i++ {
		k.keys[i] = le.Uint32(b[4+4*i:])
	}
	c.keys = append(c.keys, k)
	return nil
}

func (c *conn) hasKeys(name uint32) bool {
	for i := range c.keys {
		if c.keys[i].name == name {
			return true
		}
	}
	return false
}

// takeKeys moves the keys of a transfer's target to it.
func (c *conn) takeKeys(x *transfer) {
	for i := range c.keys {
		if c.keys[i].name == x.imm {
			copy(x.keys[1:], c.keys[i].keys[1:])
			last := len(c.keys) - 1
			c.keys[i] = c.keys[last]
			c.keys = c.keys[:last]
			return
		}
	}
}

// byExposure is the exposure of that name, if c has it.
func (t *Transport) byExposure(name uint32, c *conn) *exposure {
	i := name & (maxExposures - 1)
	if i >= uint32(len(t.exposures)) {
		return nil
	}
	x := &t.exposures[i]
	if x.c != c || x.gen != name>>indexBits {
		return nil
	}
	return x
}

// announced handles the message that says which frame the coming RDMA writes are.
func (t *Transport) announced(c *conn, name uint32, n uint64, rails int, b []byte, s transport.Sink) error {
	x := t.byExposure(name, c)
	if x == nil || x.told || c.frag.active {
		return fmt.Errorf("payload for exposure %#x, which it was not given", name)
	}
	if _, err := decodeData(b, &x.h); err != nil {
		return err
	}
	if n == 0 || n > uint64(len(x.buf)) || x.h.ID != x.id || rails > len(c.eps) {
		return fmt.Errorf("payload %d of %d bytes over %d rails for exposure %#x, which is for %d with %d bytes", x.h.ID, n, rails, name, x.id, len(x.buf))
	}
	x.told, x.n, x.rails = true, int(n), rails
	c.receiving = x
	t.landed(x, s)
	return nil
}

// pieceLanded handles the end of the RDMA writes of one rail.
func (t *Transport) pieceLanded(r *rail, wc *rdma.WC, s transport.Sink) {
	i := wc.Imm & (maxExposures - 1)
	var c *conn
	if i < uint32(len(t.exposures)) {
		c = t.exposures[i].c
	}
	if c == nil || c.state == connDown || r.index >= len(c.eps) || c.eps[r.index].qp.Num() != wc.QPN || t.exposures[i].gen != wc.Imm>>indexBits {
		t.violation(t.byQPN(r, wc.QPN), fmt.Errorf("end of a payload for exposure %#x, which it was not given", wc.Imm))
		return
	}
	x := &t.exposures[i]
	x.got++
	t.landed(x, s)
}

// landed reports a payload whose parts have all landed.
func (t *Transport) landed(x *exposure, s transport.Sink) {
	if !x.told || x.got < x.rails {
		return
	}
	c := x.c
	if x.got > x.rails {
		t.violation(c.eps[0], errors.New("payload over more rails than announced"))
		return
	}
	h, n := x.h, x.n
	t.unexpose(x)
	c.receiving = nil
	if s.Dest(c.peer, &h, n) != nil {
		s.Landed(c.peer, &h)
	}
	t.unhold(c, s)
}

// unexpose makes an exposure free: the peer can reach the buffer no more.
func (t *Transport) unexpose(x *exposure) {
	t.giveUp(&x.lease)
	x.gen = (x.gen + 1) & genMask
	x.c, x.buf = nil, nil
	t.freeExp = append(t.freeExp, x.index)
}
