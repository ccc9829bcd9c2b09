package verbs

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/rdma"
)

// Send implements transport.Transport. A frame is posted at once: inline if the device
// takes that much, else from a send buffer that it is copied to.
func (t *Transport) Send(peer int, h *wire.Header, payload []byte) error {
	if len(payload) > t.maxEager {
		return fmt.Errorf("verbs: %v frame of %d bytes, Send takes up to %d", h.Kind, len(payload), t.maxEager)
	}
	c := t.conns[peer]
	if c == nil || c.state != connUp {
		return t.notUp(peer)
	}
	if c.posting != nil || c.credit() == 0 {
		return transport.ErrAgain
	}
	n := h.Size()
	b, w, err := t.message(c, prefix{kind: prefixFrame, length: uint32(n + len(payload))})
	if err != nil {
		return err
	}
	h.Encode(b)
	copy(b[n:], payload)
	c.framesOut = h.Seq + 1
	return t.send(c, w)
}

// message starts a message to c, which has credit for it: it returns the memory behind its prefix,
// which send then posts.
func (t *Transport) message(c *conn, p prefix) ([]byte, work, error) {
	e := c.eps[0]
	if e.room() < 1 {
		t.nudge()
		return nil, work{}, transport.ErrAgain
	}
	total := prefixSize + int(p.length)
	w := work{kind: workPlain, slot: noSlot, n: total}
	b := t.scratch
	if total > e.inline {
		if w.slot = t.takeSend(); w.slot == noSlot {
			t.nudge()
			return nil, work{}, transport.ErrAgain
		}
		w.kind = workSlot
		b = t.sendBuffer(w.slot)
	}
	p.credits, p.seq, p.conn = c.returned, c.sendSeq, c.remote
	p.encode(b)
	return b[prefixSize:total], w, nil
}

// send posts a message.
func (t *Transport) send(c *conn, w work) error {
	c.sent++
	t.stageMessage(c, w)
	return t.flush(c.eps[0])
}

// stageMessage stages a message, whose credit is the caller's concern.
func (t *Transport) stageMessage(c *conn, w work) {
	c.sendSeq++
	c.owed = c.returned
	c.used = true
	e := c.eps[0]
	var flags rdma.Flags
	if w.kind == workSlot && len(t.freeSends) < t.tune.sends/2 {
		flags = rdma.Signaled // others will want it back
	}
	wr := t.stage(e, w, flags)
	wr.Op = rdma.Send
	if w.slot == noSlot {
		wr.Inline = t.scratch[:w.n]
	} else {
		b := t.sendBuffer(w.slot)
		t.data(e, wr, addressOf(b), w.n, e.rail.pool.LKey())
	}
	t.stats.Messages++
}

// credit is how many receives of the peer are left for this rank.
func (c *conn) credit() int { return c.allowed - int(c.sent-c.acked) }

// credited notes what the peer says it has given back.
func (c *conn) credited(total uint16) error {
	if total-c.acked > c.sent-c.acked {
		return fmt.Errorf("it gives back %d receives, of %d that were used", total-c.acked, c.sent-c.acked)
	}
	c.acked = total
	return nil
}

// owe notes that a receive that c has paid for is posted again.
func (t *Transport) owe(c *conn) {
	c.returned++
	if !c.owing && c.debt() >= (c.window+1)/2 {
		c.owing = true
		t.owing = append(t.owing, c)
	}
}

// debt is how many receives the peer does not know of.
func (c *conn) debt() int { return int(c.returned - c.owed) }

// payDebts tells peers of their receives where no message has told them meanwhile. Such a message
// costs no credit: there are at most two of them under way, for which receives are reserved.
func (t *Transport) payDebts() {
	rest := t.owing[:0]
	for _, c := range t.owing {
		if c.state != connUp || c.debt() < (c.window+1)/2 {
			c.owing = false
			continue
		}
		_, w, err := t.message(c, prefix{kind: prefixCredit})
		if err != nil {
			rest = append(rest, c)
			continue
		}
		c.owing = false
		t.stageMessage(c, w)
		_ = t.flush(c.eps[0]) // an error has failed the connection
	}
	t.owing = rest
}
