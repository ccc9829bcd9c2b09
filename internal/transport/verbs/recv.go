package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/rdma"
)

// received handles the completion of a receive.
func (t *Transport) received(r *rail, wc *rdma.WC, s transport.Sink) {
	id := int32(wc.ID &^ recvBit)
	if wc.Status != rdma.StatusSuccess {
		t.giveBack(r, id, nil)
		if e := t.byQPN(r, wc.QPN); e != nil && wc.Status != rdma.StatusFlushed {
			t.broke(e, wc.Err(r.info.Name))
		}
		return
	}
	if wc.Op == rdma.WCRecvWriteImm {
		t.giveBack(r, id, nil)
		t.pieceLanded(r, wc, s)
		return
	}
	if r.index > 0 { // it had no memory: only nothing fits
		t.giveBack(r, id, nil)
		t.violation(t.byQPN(r, wc.QPN), errors.New("message on a rail that carries payloads only"))
		return
	}
	b := t.slots[id].mem[:wc.Bytes]
	var p prefix
	if err := decodePrefix(b, &p); err != nil {
		t.giveBack(r, id, nil)
		t.violation(t.byQPN(r, wc.QPN), err)
		return
	}
	e := t.byName(p.conn)
	if e == nil || e.rail != r || e.qp.Num() != wc.QPN {
		t.giveBack(r, id, nil)
		t.violation(t.byQPN(r, wc.QPN), fmt.Errorf("message for connection %#x, which is another", p.conn))
		return
	}
	c := e.conn
	if c.state == connDown || c.mute || len(c.eps) == 0 || c.eps[0] != e {
		t.giveBack(r, id, nil) // of an attempt that was given up
		return
	}
	err := c.credited(p.credits)
	if err == nil && p.seq != c.recvSeq {
		err = fmt.Errorf("message number %d, expected %d", p.seq, c.recvSeq)
	}
	if err != nil {
		t.giveBack(r, id, nil)
		t.violation(e, err)
		return
	}
	c.recvSeq++
	if c.state < connUp {
		t.up(c) // it would not send if it could not
	}
	c.used = true
	if p.kind == prefixCredit {
		t.giveBack(r, id, nil)
		return
	}
	if c.receiving != nil {
		c.held = append(c.held, heldMessage{id, int32(wc.Bytes)})
		return
	}
	t.deliver(c, id, b, &p, s)
}

// giveBack lets a receive be posted again. On rails without memory that is done at once.
func (t *Transport) giveBack(r *rail, id int32, from *conn) {
	if r.index == 0 {
		t.recycle(id, from)
		return
	}
	t.recvWRs[0] = rdma.RecvWR{ID: recvBit}
	if _, err := r.srq.PostRecv(t.recvWRs[:1]); err != nil {
		t.railDead(r, err)
	}
}

func (t *Transport) postRefill() {
	if err := t.post(t.refill); err != nil {
		t.refill = t.refill[:0]
		t.railDead(t.rails[0], err)
	}
}

// deliver hands a message that has its turn to the sink, and gives its receive back.
func (t *Transport) deliver(c *conn, id int32, b []byte, p *prefix, s transport.Sink) {
	err := t.interpret(c, b[prefixSize:], p, s)
	t.recycle(id, c)
	if err != nil {
		t.violation(c.eps[0], err)
	}
}

func (t *Transport) interpret(c *conn, b []byte, p *prefix, s transport.Sink) error {
	le := binary.LittleEndian
	switch p.kind {
	case prefixFrame:
		n, err := wire.Decode(b, &t.hdr)
		if err != nil {
			return err
		}
		if t.hdr.Kind == wire.Data {
			return errors.New("DATA frame without its length")
		}
		if c.frag.active {
			return errors.New("frame in the middle of a payload")
		}
		c.framesIn = t.hdr.Seq + 1
		s.Frame(c.peer, &t.hdr, b[n:])
		return nil
	case prefixFirst:
		if len(b) < firstHead {
			return fmt.Errorf("first piece of %d bytes", len(b))
		}
		return t.firstPiece(c, le.Uint64(b), b[firstHead:], s)
	case prefixNext:
		return t.nextPiece(c, b, s)
	case prefixBulk:
		if len(b) < bulkHead {
			return fmt.Errorf("announcement of %d bytes", len(b))
		}
		return t.announced(c, le.Uint32(b), le.Uint64(b[4:]), int(p.rails), b[bulkHead:], s)
	case prefixKeys:
		return c.learnKeys(b)
	}
	return fmt.Errorf("message of kind %d", p.kind)
}

// fragment is a payload that arrives in pieces through receives.
type fragment struct {
	h      wire.Header
	dst    []byte // what is left of where it goes; nil: nowhere
	left   uint64
	active bool
}

func decodeData(b []byte, h *wire.Header) (n int, err error) {
	if n, err = wire.Decode(b, h); err == nil && h.Kind != wire.Data {
		err = fmt.Errorf("%v frame in place of DATA", h.Kind)
	}
	return n, err
}

func (t *Transport) firstPiece(c *conn, total uint64, b []byte, s transport.Sink) error {
	f := &c.frag
	if f.active {
		return errors.New("payload in the middle of another")
	}
	n, err := decodeData(b, &f.h)
	if err != nil {
		return err
	}
	if total > wire.MaxBytes {
		return fmt.Errorf("payload of %d bytes", total)
	}
	c.framesIn = f.h.Seq + 1
	f.dst, f.left, f.active = s.Dest(c.peer, &f.h, int(total)), total, true
	if f.dst != nil && uint64(len(f.dst)) < total {
		return errors.New("no room for it") // Dest broke its promise: stop before memory does
	}
	if total == 0 {
		t.lastPiece(c, f.dst != nil, s)
		return nil
	}
	return t.nextPiece(c, b[n:], s)
}

func (t *Transport) nextPiece(c *conn, b []byte, s transport.Sink) error {
	f := &c.frag
	if !f.active || uint64(len(b)) > f.left {
		return fmt.Errorf("piece of %d bytes, of a payload with %d left", len(b), f.left)
	}
	wanted := f.dst != nil
	if wanted {
		f.dst = f.dst[copy(f.dst, b):]
		t.stats.CopiedIn += uint64(len(b))
	}
	if f.left -= uint64(len(b)); f.left == 0 {
		t.lastPiece(c, wanted, s)
	}
	return nil
}

func (t *Transport) lastPiece(c *conn, wanted bool, s transport.Sink) {
	c.frag.dst, c.frag.active = nil, false
	if wanted {
		s.Landed(c.peer, &c.frag.h)
	}
}

// heldMessage waits for a payload before it that is still arriving on another rail.
type heldMessage struct{ id, n int32 }

// unhold delivers what had to wait.
func (t *Transport) unhold(c *conn, s transport.Sink) {
	i := 0
	for ; i < len(c.held) && c.receiving == nil && !c.mute; i++ {
		m := c.held[i]
		b := t.slots[m.id].mem[:m.n]
		var p prefix
		if err := decodePrefix(b, &p); err != nil { // it was right before, and nobody may write there
			panic("verbs: " + err.Error())
		}
		t.deliver(c, m.id, b, &p, s)
	}
	c.held = c.held[:copy(c.held, c.held[i:])]
}

// violation ends the connection with a peer that breaks the rules.
func (t *Transport) violation(e *endpoint, err error) {
	if e != nil {
		e.conn.mute = true
		t.fail(e.conn, fmt.Errorf("verbs: %s on %s sent what is not a message: %w", t.who(e.conn.peer), e.rail.name, err))
	}
}
