package proto

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/internal/match"
	"github.com/weft-hpc/weft/internal/wire"
)

// Cancel withdraws an operation if nothing can touch its buffer yet. It
// reports whether the operation is now done, with ErrCanceled. A message that
// was offered is withdrawn by asking the peer: then Cancel returns false, and
// the operation is done later, either way.
func (c *Core) Cancel(op *Op) bool {
	switch op.state {
	case queued:
		c.peers[op.world].queue.remove(op)
		c.finish(op, ErrCanceled)
		c.resume(&c.peers[op.world])
		return true
	case posted:
		c.unpost(op)
		c.finish(op, ErrCanceled)
		return true
	case offered:
		if op.world == c.rank {
			return c.cancelSelf(op)
		}
		c.askBack(op)
	}
	return false
}

// askBack asks a peer to forget a message that was offered.
func (c *Core) askBack(op *Op) {
	if op.asked {
		return
	}
	op.asked = true
	h := c.control(op.world, wire.Cancel, wire.HasID)
	h.ID, h.Ctx, h.Src, h.Tag = op.id, op.Ctx.id, op.Ctx.rank, op.Tag
}

// unpost takes a posted receive or probe back.
func (c *Core) unpost(op *Op) {
	x := op.Ctx
	if op.Kind == Recv {
		x.queue.RemoveReceive(&op.node)
		return
	}
	i := slices.Index(x.probes, op)
	x.probes = slices.Delete(x.probes, i, i+1)
}

func (c *Core) cancelSelf(op *Op) bool {
	withdrawn := false
	op.Ctx.queue.EachMessage(func(n *match.Node[*Message]) {
		if n.Owner.local == op {
			op.Ctx.queue.RemoveMessage(n)
			c.finish(op, ErrCanceled)
			c.release(n.Owner)
			withdrawn = true
		}
	})
	return withdrawn // else an Mprobe holds it
}

// cancelRequest is a Cancel frame. If the message is matched already, the
// answer is the FIN or CTS that comes of that.
func (c *Core) cancelRequest(peer int32, h *wire.Header) error {
	if h.ID == 0 {
		return violation(peer, h, "it names no message")
	}
	for i, m := range c.early {
		if m.peer == peer && m.sid == h.ID {
			c.early = slices.Delete(c.early, i, i+1)
			c.drop(m)
			return nil
		}
	}
	x := c.context(h.Ctx)
	if x == nil {
		return nil // closed, which dropped the message
	}
	if !x.speaks(h.Src, peer) {
		return violation(peer, h, fmt.Sprintf("it is not rank %d of the communicator", h.Src))
	}
	x.queue.EachMessage(func(n *match.Node[*Message]) {
		if m := n.Owner; m.peer == peer && m.sid == h.ID {
			x.queue.RemoveMessage(n)
			c.drop(m)
		}
	})
	return nil
}

// Lost reports that a peer is lost, as the launcher or a broken frame tells.
// Everything that needs the peer fails, but for the transfers that its transport
// is busy with: their buffers are free only at PeerDown.
func (c *Core) Lost(peer int, err error) {
	c.gone(int32(peer), &lostError{peer, err})
}

// PeerDown reports that a peer's transport is done with it: no frame comes or
// goes, and no buffer is touched any more.
func (c *Core) PeerDown(peer int, err error) {
	c.Lost(peer, err)
	for _, op := range c.ops.live() {
		if op.world == int32(peer) {
			c.finish(op, c.peers[peer].gone)
		}
	}
}

// lostError is the end of a peer.
type lostError struct {
	rank int // in the world
	err  error
}

func (e *lostError) Error() string   { return fmt.Sprintf("rank %d failed: %v", e.rank, e.err) }
func (e *lostError) Unwrap() []error { return []error{ErrPeerLost, e.err} }

// LostRank returns the world rank whose loss is the cause of an error, or -1.
func LostRank(err error) int {
	if lost, ok := errors.AsType[*lostError](err); ok {
		return lost.rank
	}
	if revoked, ok := errors.AsType[*RevokedError](err); ok {
		return revoked.Lost - 1
	}
	return -1
}

// PeerLeft reports that a peer has left in good order.
func (c *Core) PeerLeft(peer int) {
	c.gone(int32(peer), fmt.Errorf("rank %d: %w", peer, ErrPeerLeft))
}

// Shutdown ends everything that is in progress: this rank's part is over.
func (c *Core) Shutdown(err error) {
	for i := range c.comms {
		if m := c.comms[i].comm; m != nil && m.revoked == nil {
			c.revoke(m, err)
		}
	}
	for peer := range c.peers {
		c.peers[peer].gone = err
	}
	for _, op := range c.ops.live() {
		c.finish(op, err)
	}
}

// Goodbye tells a peer that no message will come from here any more.
func (c *Core) Goodbye(peer int) {
	if c.peers[peer].gone == nil {
		c.control(int32(peer), wire.Goodbye, 0)
	}
}

// Pending returns the number of operations in progress.
func (c *Core) Pending() int {
	n := len(c.ops.live())
	for i := range c.peers {
		for op := c.peers[i].queue.head; op != nil; op = op.next {
			n++
		}
	}
	for i := range c.comms {
		if m := c.comms[i].comm; m != nil {
			n += m.P2P.queue.Receives() + len(m.P2P.probes) + m.Coll.queue.Receives()
		}
	}
	return n
}

// Refusal returns why a send cannot be handed over: its communicator is
// revoked, or its peer gone.
func (c *Core) Refusal(op *Op) error {
	return either(op.Ctx.comm.revoked, c.peers[op.world].gone)
}

func isLeft(err error) bool { return errors.Is(err, ErrPeerLeft) }

func (c *Core) gone(peer int32, err error) {
	p := &c.peers[peer]
	if p.gone != nil {
		return // if it said goodbye first, the end of its connection is no loss
	}
	p.gone = err
	c.absent++
	for p.queue.head != nil {
		c.finish(p.queue.pop(), err)
	}
	for _, op := range c.ops.live() {
		if op.world == peer && (op.state == offered || op.state == awaiting) {
			c.finish(op, either(op.Ctx.comm.revoked, err))
		}
	}
	for i := range c.comms {
		if m := c.comms[i].comm; m != nil {
			c.goneFrom(m, peer)
		}
	}
	c.early = slices.DeleteFunc(c.early, func(m *Message) bool {
		if m.peer != peer || !m.offer {
			return false
		}
		c.release(m)
		return true
	})
}

func (c *Core) goneFrom(m *Comm, peer int32) {
	rank := slices.Index(m.members, peer)
	if rank < 0 {
		return
	}
	for _, x := range []*Context{m.P2P, m.Coll} {
		x.queue.EachMessage(func(n *match.Node[*Message]) {
			if n.Owner.peer == peer && n.Owner.offer {
				x.queue.RemoveMessage(n)
				c.release(n.Owner)
			}
		})
		fail := func(n *match.Node[*Op]) {
			if err := c.hopeless(n.Owner); err != nil {
				x.queue.RemoveReceive(n)
				c.finish(n.Owner, err)
			}
		}
		x.queue.EachReceive(int32(rank), fail)
		x.queue.EachReceive(match.Any, fail)
		x.probes = slices.DeleteFunc(x.probes, func(op *Op) bool {
			err := c.hopeless(op)
			if err != nil {
				c.finish(op, err)
			}
			return err != nil
		})
	}
}

// Revoke ends a communicator with an error, here and at all its members.
// Matched transfers are finished; everything else on it fails with a RevokedError, or if ranks disagree, with
// the error itself if it is in progress: nobody else returns that.
func (c *Core) Revoke(m *Comm, err error, reason string) {
	if m.revoked != nil {
		return
	}
	payload := append([]byte{causeCode(err)}, reason...)
	if len(payload) > maxReason {
		payload = payload[:maxReason]
	}
	lost := LostRank(err) + 1
	c.notify(m, m.P2P.rank, lost, payload)
	// What else is in progress, and what comes later, did not fail by itself.
	later := error(&RevokedError{By: m.P2P.rank, Reason: reason, Cause: causes[causeCode(err)], Lost: lost})
	if errors.Is(err, ErrRevoked) {
		later = err
	}
	if _, own := errors.AsType[*MismatchError](err); !own {
		err = later
	}
	c.revoke(m, err)
	m.revoked = later
}

// notify tells all members that a communicator is revoked, and by whom, which
// travels as the tag, and whose loss is the cause, which travels as the bytes. Every member that
// learns of it does so, so that all do even if the first one dies half-way, and
// so that nobody hears a member's Goodbye before he hears why it left. Notices
// go before anything else: a CANCELACK after one needs no explanation.
func (c *Core) notify(m *Comm, by int32, lost int, payload []byte) {
	for _, w := range m.members {
		if w == c.rank || c.peers[w].gone != nil {
			continue
		}
		a := c.emit(SendFrame, w)
		a.Header = wire.Header{Kind: wire.Revoke, Ctx: m.P2P.id, Src: m.P2P.rank, Tag: by}
		if lost > 0 {
			a.Header.Flags, a.Header.Bytes = wire.HasBytes, uint64(lost)
		}
		a.Payload = payload
	}
}

// maxReason fits the eager limit of every transport.
const maxReason = 512

func causeCode(err error) byte {
	for code, cause := range causes {
		if errors.Is(err, cause) {
			return byte(code)
		}
	}
	return 0
}

// causes of a revocation that all members learn of, by code on the wire.
var causes = [...]error{ErrRevoked, ErrMismatch, ErrPeerLost, ErrPeerLeft}

func (c *Core) revokeFrame(peer int32, h *wire.Header, payload []byte) error {
	if len(payload) == 0 || len(payload) > maxReason {
		return violation(peer, h, fmt.Sprintf("it has a payload of %d bytes, not 1 to %d", len(payload), maxReason))
	}
	e := &RevokedError{By: h.Tag, Reason: string(payload[1:]), Cause: ErrRevoked}
	if code := int(payload[0]); code < len(causes) {
		e.Cause = causes[code]
	}
	if h.Flags&wire.HasBytes != 0 {
		if h.Bytes == 0 || h.Bytes > uint64(len(c.peers)) {
			return violation(peer, h, "it blames a rank that does not exist")
		}
		e.Lost = int(h.Bytes)
	}
	x := c.context(h.Ctx)
	if x == nil {
		if !c.closed(h.Ctx) {
			c.slot(h.Ctx).notice = &notice{id: h.Ctx, peer: peer, src: h.Src, err: e, payload: slices.Clone(payload)}
		}
		return nil
	}
	if !x.speaks(h.Src, peer) {
		return violation(peer, h, fmt.Sprintf("it is not rank %d of the communicator", h.Src))
	}
	if !x.has(e.By) {
		return violation(peer, h, fmt.Sprintf("the communicator has no rank %d", e.By))
	}
	if x.comm.revoked == nil {
		c.notify(x.comm, e.By, e.Lost, slices.Clone(payload))
		c.revoke(x.comm, e)
	}
	return nil
}

func (c *Core) revoke(m *Comm, err error) {
	m.revoked = err
	m.ended.Store(true)
	for _, x := range []*Context{m.P2P, m.Coll} {
		x.queue.EachMessage(func(n *match.Node[*Message]) {
			x.queue.RemoveMessage(n)
			c.drop(n.Owner)
		})
		fail := func(n *match.Node[*Op]) {
			x.queue.RemoveReceive(n)
			c.finish(n.Owner, err)
		}
		x.queue.EachReceive(match.Any, fail)
		for r := range m.members {
			x.queue.EachReceive(int32(r), fail)
		}
		for _, op := range x.probes {
			c.finish(op, err)
		}
		x.probes = nil
	}
	for i := range c.peers {
		c.failQueued(&c.peers[i], m, err)
	}
	// Offered messages are withdrawn: the peer acknowledges that, or finishes a
	// transfer that has begun. It has to be asked, since it may never open the
	// communicator.
	for _, op := range c.ops.live() {
		if op.state == offered && op.Ctx.comm == m && op.world != c.rank {
			c.askBack(op)
		}
	}
}

func (c *Core) failQueued(p *peer, m *Comm, err error) {
	for op := p.queue.head; op != nil; {
		next := op.next
		if op.Ctx.comm == m {
			p.queue.remove(op)
			c.finish(op, err)
		}
		op = next
	}
	c.resume(p)
}
