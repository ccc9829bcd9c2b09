package proto

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/wire"
)

// PostSend starts a Send or an Ssend.
func (c *Core) PostSend(op *Op) {
	x := op.Ctx
	if err := x.comm.revoked; err != nil {
		c.finish(op, err)
		return
	}
	op.world = x.comm.members[op.Peer]
	if op.world == c.rank {
		c.sendSelf(op)
		return
	}
	p := &c.peers[op.world]
	if p.gone != nil {
		c.finish(op, p.gone)
		return
	}
	if p.queue.head != nil || !c.start(p, op) {
		c.Stats.CreditStalls++
		op.state = queued
		p.queue.push(op)
	}
}

// start sends the first frame of a message if there is credit for one.
func (c *Core) start(p *peer, op *Op) bool {
	n := int64(len(op.Buf))
	eager := n <= int64(p.eagerMax) && !(op.HasRegion && n >= int64(p.pullMin))
	switch {
	case eager && p.credit >= n+messageCost:
		p.credit -= n + messageCost
		c.Stats.Eager++
		c.sendEager(op)
	case p.credit >= messageCost:
		p.credit -= messageCost
		c.Stats.Rendezvous++
		c.sendRTS(op)
	default:
		return false
	}
	return true
}

func (c *Core) sendEager(op *Op) {
	a := c.emit(SendFrame, op.world)
	c.envelope(op, &a.Header, wire.Eager)
	a.Payload = op.Buf
	if op.Kind == Send {
		op.state = streaming // the transport copies; the caller completes it then
		a.Op = op
		return
	}
	op.state = offered
	c.ops.add(op)
	a.Header.Flags |= wire.HasID | wire.Sync
	a.Header.ID, a.Header.Reply = op.id, 0
}

func (c *Core) sendRTS(op *Op) {
	op.state = offered
	c.ops.add(op)
	a := c.emit(SendFrame, op.world)
	h := &a.Header
	c.envelope(op, h, wire.RTS)
	h.Flags |= wire.HasID | wire.HasBytes
	h.ID, h.Reply = op.id, 0
	h.Bytes = uint64(len(op.Buf))
	if op.HasRegion {
		h.Flags |= wire.HasRegion
		h.Region = op.Region
	}
}

// envelope fills in what a receive is matched with.
func (c *Core) envelope(op *Op, h *wire.Header, kind wire.Kind) {
	h.Kind, h.Flags = kind, 0
	h.Ctx, h.Src, h.Tag, h.Type = op.Ctx.id, op.Ctx.rank, op.Tag, op.Type
	if op.Signed {
		h.Flags = wire.HasSig
		h.Sig = op.Sig
	}
}

// sendSelf delivers a message to a receive of the same process, or keeps it: a
// copy when it is small, else the operation waits for its receive.
func (c *Core) sendSelf(op *Op) {
	c.Stats.LocalCopies++
	x, p := op.Ctx, &c.peers[c.rank]
	if r := x.queue.Arrive(x.rank, op.Tag); r != nil {
		c.deliver(r.Owner, x.rank, c.rank, op.Tag, op.Type, op.Buf, op.sig())
		c.finish(op, nil)
		return
	}
	m := c.free.get()
	m.ctx, m.peer, m.typ, m.bytes = x.id, c.rank, op.Type, int64(len(op.Buf))
	m.sig, m.signed = op.Sig, op.Signed
	m.node.Src, m.node.Tag = x.rank, op.Tag
	cost := int64(len(op.Buf)) + messageCost
	if op.Kind == Send && len(op.Buf) <= selfEagerMax && p.credit >= cost {
		p.credit -= cost
		c.stash(m, op.Buf)
		c.arrived(x, m)
		c.finish(op, nil)
		return
	}
	op.state = offered
	m.local = op
	c.ops.add(op)
	m.sid = op.id
	c.arrived(x, m)
}

// selfEagerMax is the longest message from a rank to itself that is copied
// before its receive is posted.
const selfEagerMax = 16 << 10

func (o *Op) sig() *wire.Signature {
	if !o.Signed {
		return nil
	}
	return &o.Sig
}

// clearToSend is the CTS for a message that this rank offered.
func (c *Core) clearToSend(peer int32, h *wire.Header) error {
	op := c.ops.get(h.ID)
	if op == nil || op.state != offered || op.world != peer || h.Bytes > uint64(len(op.Buf)) {
		return violation(peer, h, "it names no message that waits for it")
	}
	op.state = streaming
	a := c.emit(SendData, peer)
	a.Header = wire.Header{Kind: wire.Data, Flags: wire.HasID | wire.HasBytes | h.Flags&wire.HasRegion, ID: h.Reply, Reply: op.id,
		Bytes: h.Bytes, Region: h.Region}
	a.Payload = op.Buf[:h.Bytes]
	return nil
}

// Sent reports that the transport is done with the payload of a SendData
// action, whose header had that Reply.
func (c *Core) Sent(peer int, token uint32) {
	op := c.ops.get(token)
	if op == nil || op.state != streaming || op.world != int32(peer) {
		panic("proto: Sent for no SendData")
	}
	gone := c.peers[peer].gone
	if isLeft(gone) {
		gone = nil // it asked for the data, and left when it had them
	}
	c.finish(op, gone)
}

// NotSent reports that a SendData action was dropped, because its peer is gone.
func (c *Core) NotSent(peer int, token uint32) {
	if op := c.ops.get(token); op != nil { // else PeerDown has ended it
		c.finish(op, c.peers[peer].gone)
	}
}

// TakenBack reports that the frame of an eager send was withdrawn before its
// transport took it. The operation ends with ErrCanceled.
func (c *Core) TakenBack(op *Op) {
	if op.Kind != Send || op.state != streaming || op.id != 0 {
		panic("proto: TakenBack for no eager send")
	}
	p := &c.peers[op.world]
	p.credit += int64(len(op.Buf)) + messageCost
	c.finish(op, ErrCanceled)
	c.resume(p)
}

// finished is the FIN for a message that this rank offered.
func (c *Core) finished(peer int32, h *wire.Header) error {
	op := c.ops.get(h.ID)
	if op == nil || op.state != offered || op.world != peer {
		return violation(peer, h, "it names no message that waits for it")
	}
	c.finish(op, nil)
	return nil
}

// withdrawn is the CancelAck for a message that this rank offered: the peer
// has forgotten it, because this rank asked or because the communicator is
// revoked there.
func (c *Core) withdrawn(peer int32, h *wire.Header) error {
	op := c.ops.get(h.ID)
	if op == nil || op.state != offered || op.world != peer {
		return violation(peer, h, "it names no message that waits for it")
	}
	err := op.Ctx.comm.revoked
	switch {
	case err != nil:
	case op.asked:
		err = ErrCanceled
	default:
		err = fmt.Errorf("rank %d has closed or revoked the communicator: %w", op.Peer, ErrRevoked)
	}
	c.finish(op, err)
	return nil
}

// credited is a Credit frame.
func (c *Core) credited(peer int32, h *wire.Header) error {
	p := &c.peers[peer]
	if h.Bytes > uint64(c.window) || p.credit+int64(h.Bytes) > c.window {
		return violation(peer, h, "it gives back more than was taken")
	}
	p.credit += int64(h.Bytes)
	c.resume(p)
	return nil
}

// resume starts the sends that waited for credit.
func (c *Core) resume(p *peer) {
	for p.queue.head != nil && c.start(p, p.queue.head) {
		p.queue.pop()
	}
}

// giveBack notes that a message of the peer does not need its room any more.
func (c *Core) giveBack(peer int32, cost int64) {
	p := &c.peers[peer]
	if peer == c.rank {
		p.credit += cost
		return
	}
	p.owed += cost
	if p.owed >= p.room && p.gone == nil {
		h := c.control(peer, wire.Credit, wire.HasBytes)
		h.Bytes = uint64(p.owed)
		p.room += p.owed
		p.owed = 0
	}
}
