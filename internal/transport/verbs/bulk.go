package verbs

import (
	"encoding/binary"
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

	// immWhole in the immediate value says that this write is the whole payload, and that no message
	// has announced it.
	immWhole = 1 << kindShift
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
	if c.posting != nil {
		return transport.ErrAgain
	}
	var x *transfer
	var err error
	if h.Flags&wire.HasRegion != 0 && h.Region.Kind>>kindShift == regionExposed && len(payload) > 0 {
		x, err = t.startWrites(c, h, payload, token)
	} else {
		x, err = t.startPieces(c, h, payload, token)
	}
	if err != nil {
		return err
	}
	c.framesOut = h.Seq + 1
	t.stats.BulkBytes += uint64(len(payload))
	c.posting = x
	t.push(c) // and with it the message that was staged
	if c.err != nil {
		return c.err
	}
	return nil
}

// startPieces begins a payload that goes through receives, with the first piece.
func (t *Transport) startPieces(c *conn, h *wire.Header, payload []byte, token uint32) (*transfer, error) {
	if c.credit() == 0 {
		return nil, transport.ErrAgain
	}
	n := firstHead + h.Size()
	first := min(len(payload), t.tune.segment-prefixSize-n)
	b, w, err := t.message(c, prefix{kind: prefixFirst, length: uint32(n + first)})
	if err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint64(b, uint64(len(payload)))
	h.Encode(b[firstHead:])
	copy(b[n:], payload[:first])
	c.sent++
	t.stageMessage(c, w)
	t.stats.CopiedOut += uint64(first)
	x := t.newTransfer(c, transferPieces, payload, token)
	x.at[0] = first
	return x, nil
}

// startWrites begins a payload that is written to an exposure. If one write does it, that is all
// that the peer gets; else the header goes ahead.
func (t *Transport) startWrites(c *conn, h *wire.Header, payload []byte, token uint32) (*transfer, error) {
	name := h.Region.Kind & nameMask
	rails := 1
	if len(payload) >= t.tune.split && c.hasKeys(name) {
		rails = len(c.eps)
	}
	// The message goes before the registration, which would be for nothing each time that there is no room for it.
	whole := len(c.eps) == 1 && len(payload) <= c.chunk && h.Seq == c.framesOut
	if !whole {
		if err := t.announce(c, h, len(payload), rails); err != nil {
			return nil, err
		}
	}
	var l lease
	direct := t.borrow(&l, payload, 0, rails)
	if whole && !direct && len(payload) > t.tune.segment { // it is copied, in more than one write
		whole = false
		if err := t.announce(c, h, len(payload), rails); err != nil {
			return nil, err
		}
	}
	imm := name
	if whole {
		imm |= immWhole
		c.used = true
	}
	x := t.newTransfer(c, transferWrite, payload, token)
	x.lease, x.direct = l, direct
	x.aim(imm, &h.Region, rails)
	if rails > 1 {
		c.takeKeys(x, name)
	}
	return x, nil
}

// announce stages the message that says which frame the coming RDMA writes are.
func (t *Transport) announce(c *conn, h *wire.Header, n, rails int) error {
	if c.credit() == 0 {
		return transport.ErrAgain
	}
	b, w, err := t.message(c, prefix{kind: prefixBulk, rails: uint8(rails), length: uint32(bulkHead + h.Size())})
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	le.PutUint32(b, h.Region.Kind&nameMask)
	le.PutUint64(b[4:], uint64(n))
	h.Encode(b[bulkHead:])
	c.sent++
	t.stageMessage(c, w)
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
