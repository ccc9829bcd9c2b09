package proto

import (
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/internal/match"
	"github.com/weft-hpc/weft/internal/wire"
)

// Message is a message that arrived before its receive.
type Message struct {
	node   match.Node[*Message]
	ctx    uint32
	peer   int32 // world rank of the sender
	typ    uint32
	bytes  int64
	sid    uint32 // the sender's id, when it waits for an answer
	offer  bool   // an RTS: the data are still with the sender
	region wire.Region
	pull   bool // region is set
	signed bool
	sig    wire.Signature
	data   []byte // of an eager message
	local  *Op    // the sender, when it is this process and waits
}

// Status returns what a receive of m would report.
func (m *Message) Status() Status {
	return Status{Source: m.node.Src, Tag: m.node.Tag, Bytes: m.bytes, Type: m.typ}
}

// messagePool reuses messages and their buffers, so that a burst of unexpected
// messages allocates once.
type messagePool struct{ list []*Message }

const (
	pooledMessages = 1024
	pooledBuffer   = 64 << 10 // larger ones go back to the garbage collector
)

func (p *messagePool) get() *Message {
	n := len(p.list)
	if n == 0 {
		m := new(Message)
		m.node.Owner = m
		return m
	}
	m := p.list[n-1]
	p.list = p.list[:n-1]
	return m
}

func (p *messagePool) put(m *Message) {
	data := m.data[:0]
	if cap(data) > pooledBuffer {
		data = nil
	}
	*m = Message{data: data}
	m.node.Owner = m
	if len(p.list) < pooledMessages {
		p.list = append(p.list, m)
	}
}

// stash keeps a copy of an unexpected message's data.
func (c *Core) stash(m *Message, data []byte) {
	m.data = append(m.data[:0], data...)
	c.Stats.UnexpectedBytes += int64(len(data))
	c.Stats.UnexpectedBytesMax = max(c.Stats.UnexpectedBytesMax, c.Stats.UnexpectedBytes)
}

// PostRecv starts a Recv.
func (c *Core) PostRecv(op *Op) {
	x := op.Ctx
	op.world = -1
	op.node = match.Node[*Op]{Src: op.Peer, Tag: op.Tag, Owner: op}
	if n := x.queue.Post(&op.node); n != nil {
		c.consume(op, n.Owner)
		return
	}
	op.state = posted
	if err := c.hopeless(op); err != nil {
		x.queue.RemoveReceive(&op.node)
		c.finish(op, err)
	}
}

// PostProbe starts a Probe or an Mprobe.
func (c *Core) PostProbe(op *Op) {
	x := op.Ctx
	op.world = -1
	if n := x.queue.Find(op.Peer, op.Tag); n != nil {
		c.probed(op, n.Owner)
		return
	}
	if err := c.hopeless(op); err != nil {
		c.finish(op, err)
		return
	}
	op.state = posted
	x.probes = append(x.probes, op)
}

// PostMrecv receives the message that an Mprobe took.
func (c *Core) PostMrecv(op *Op, m *Message) {
	op.world = -1
	c.consume(op, m)
}

func (c *Core) probed(op *Op, m *Message) {
	op.Status, op.world = m.Status(), m.peer
	if op.Kind == Mprobe {
		op.Ctx.queue.RemoveMessage(&m.node)
		op.Message = m
	}
	c.finish(op, nil)
}

// Peek returns the status of the message that a receive would match now.
func (c *Core) Peek(x *Context, src, tag int32) (Status, bool) {
	n := x.queue.Find(src, tag)
	if n == nil {
		return Status{}, false
	}
	return n.Owner.Status(), true
}

// Hopeless returns why no message from src can come any more, or nil.
func (c *Core) Hopeless(x *Context, src int32) error {
	return c.hopeless(&Op{Ctx: x, Peer: src})
}

// hopeless returns why no message can match a receive any more, or nil.
func (c *Core) hopeless(op *Op) error {
	m := op.Ctx.comm
	if m.revoked != nil {
		return m.revoked
	}
	if op.Peer != match.Any {
		return c.peers[m.members[op.Peer]].gone
	}
	if c.absent == 0 {
		return nil
	}
	// From any source: a failed member may be the one that would have sent.
	// Members that left in good order matter only when nobody else is there.
	alive := len(m.members) == 1
	var left error
	for _, w := range m.members {
		switch gone := c.peers[w].gone; {
		case gone == nil:
			alive = alive || w != c.rank
		case !isLeft(gone):
			return gone
		default:
			left = gone
		}
	}
	if alive {
		return nil
	}
	return left
}

// Frame is a frame of any kind but Data from a peer. An error means that the
// peer broke the protocol; the caller then reports PeerDown for it.
func (c *Core) Frame(from int, h *wire.Header, payload []byte) error {
	peer := int32(from)
	p := &c.peers[peer]
	if fresh, err := c.sequence(p, peer, h); !fresh {
		return err
	}
	switch h.Kind {
	case wire.Eager, wire.RTS:
		return c.message(peer, h, payload)
	case wire.CTS:
		return c.clearToSend(peer, h)
	case wire.FIN:
		return c.finished(peer, h)
	case wire.Credit:
		return c.credited(peer, h)
	case wire.Cancel:
		return c.cancelRequest(peer, h)
	case wire.CancelAck:
		return c.withdrawn(peer, h)
	case wire.Revoke:
		return c.revokeFrame(peer, h, payload)
	case wire.Goodbye:
		c.PeerLeft(from)
	case wire.Waiting:
		return c.waitedFor(peer, h)
	default:
		return violation(peer, h, "it cannot come alone")
	}
	return nil
}

// sequence checks a frame's number. Duplicates are dropped without a word.
func (c *Core) sequence(p *peer, peer int32, h *wire.Header) (fresh bool, err error) {
	if p.gone != nil {
		return false, nil
	}
	switch d := int32(h.Seq - p.recvSeq); {
	case d < 0:
		c.Stats.Duplicates++
		return false, nil
	case d > 0:
		return false, violation(peer, h, fmt.Sprintf("%d frames before it are missing", d))
	}
	p.recvSeq++
	return true, nil
}

func violation(peer int32, h *wire.Header, why string) error {
	return fmt.Errorf("rank %d sent a bad %v frame (number %d): %s", peer, h.Kind, h.Seq, why)
}

// message is an Eager or RTS frame.
func (c *Core) message(peer int32, h *wire.Header, payload []byte) error {
	if h.Tag < 0 {
		return violation(peer, h, fmt.Sprintf("tag %d is no tag", h.Tag))
	}
	if h.ID == 0 && h.Flags&wire.HasID != 0 {
		return violation(peer, h, "its sender waits for an answer and gives no id")
	}
	p, cost := &c.peers[peer], int64(messageCost)
	if h.Kind == wire.Eager {
		cost += int64(len(payload))
	}
	if p.room < cost {
		return violation(peer, h, fmt.Sprintf("it costs %d bytes of credit, and %d are left", cost, p.room))
	}
	p.room -= cost
	x := c.context(h.Ctx)
	if x == nil {
		m := c.keep(peer, h, payload)
		if c.closed(h.Ctx) {
			c.Stats.Stale++
			c.drop(m)
		} else {
			c.early = append(c.early, m)
		}
		return nil
	}
	if !x.speaks(h.Src, peer) {
		return violation(peer, h, fmt.Sprintf("it is not rank %d of the communicator", h.Src))
	}
	var sig *wire.Signature
	if h.Flags&wire.HasSig != 0 {
		sig = &h.Sig
	}
	if h.Kind == wire.Eager && (sig == nil || !x.disagrees(sig)) {
		// When its receive is posted, the payload is copied once.
		if r := x.queue.Arrive(h.Src, h.Tag); r != nil {
			c.deliver(r.Owner, h.Src, peer, h.Tag, h.Type, payload, sig)
			if h.Flags&wire.HasID != 0 {
				c.control(peer, wire.FIN, wire.HasID).ID = h.ID
			}
			c.giveBack(peer, cost)
			return nil
		}
	}
	c.arrived(x, c.keep(peer, h, payload))
	return nil
}

// keep makes a Message of a frame, with a copy of its payload.
func (c *Core) keep(peer int32, h *wire.Header, payload []byte) *Message {
	m := c.free.get()
	m.node.Src, m.node.Tag = h.Src, h.Tag
	m.ctx, m.peer, m.typ = h.Ctx, peer, h.Type
	if h.Flags&wire.HasSig != 0 {
		m.sig, m.signed = h.Sig, true
	}
	if h.Flags&wire.HasID != 0 {
		m.sid = h.ID
	}
	if h.Kind == wire.RTS {
		m.offer, m.bytes = true, int64(h.Bytes)
		m.region, m.pull = h.Region, h.Flags&wire.HasRegion != 0
		return m
	}
	m.bytes = int64(len(payload))
	c.stash(m, payload)
	return m
}

// arrived matches a message, or leaves it among the unexpected ones.
func (c *Core) arrived(x *Context, m *Message) {
	if x.comm.revoked != nil {
		c.Stats.RefusedAfterRevoking++
		c.drop(m)
		return
	}
	if m.signed && x.disagrees(&m.sig) {
		err := c.mismatch(x, m)
		c.Revoke(x.comm, err, err.Error()) // before drop, so that the sender hears why
		c.drop(m)
		return
	}
	if r := x.queue.Arrive(m.node.Src, m.node.Tag); r != nil {
		c.consume(r.Owner, m)
		return
	}
	c.Stats.Unexpected++
	x.queue.Keep(&m.node)
	for i, op := range x.probes {
		if (op.Peer == match.Any || op.Peer == m.node.Src) && (op.Tag == match.Any || op.Tag == m.node.Tag) {
			x.probes = slices.Delete(x.probes, i, i+1)
			c.probed(op, m)
			if op.Kind == Mprobe {
				return
			}
			c.probeAgain(x)
			return
		}
	}
}

// probeAgain completes further probes that an unexpected message satisfies: a
// Probe leaves its message for others.
func (c *Core) probeAgain(x *Context) {
	for i := 0; i < len(x.probes); {
		op := x.probes[i]
		n := x.queue.Find(op.Peer, op.Tag)
		if n == nil {
			i++
			continue
		}
		x.probes = slices.Delete(x.probes, i, i+1)
		c.probed(op, n.Owner)
	}
}

// drop forgets a message, and tells a sender that waits for it.
func (c *Core) drop(m *Message) {
	if m.local != nil {
		c.finish(m.local, either(m.local.Ctx.comm.revoked, ErrCanceled))
	} else if m.sid != 0 && c.peers[m.peer].gone == nil {
		c.control(m.peer, wire.CancelAck, wire.HasID).ID = m.sid
	}
	c.release(m)
}

// either returns the first error that is one.
func either(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// release gives back a message's room and memory.
func (c *Core) release(m *Message) {
	if m.local == nil {
		c.giveBack(m.peer, int64(len(m.data))+messageCost)
	}
	c.Stats.UnexpectedBytes -= int64(len(m.data))
	c.free.put(m)
}

// consume receives an unexpected message.
func (c *Core) consume(op *Op, m *Message) {
	var sig *wire.Signature
	if m.signed {
		sig = &m.sig
	}
	switch {
	case m.local != nil:
		c.deliver(op, m.node.Src, m.peer, m.node.Tag, m.typ, m.local.Buf, sig)
		c.finish(m.local, nil)
	case m.offer:
		c.accept(op, m, sig)
	default:
		c.deliver(op, m.node.Src, m.peer, m.node.Tag, m.typ, m.data, sig)
		if m.sid != 0 && c.peers[m.peer].gone == nil {
			c.control(m.peer, wire.FIN, wire.HasID).ID = m.sid
		}
	}
	c.release(m)
}

// deliver completes a receive with data that are here.
func (c *Core) deliver(op *Op, src, world, tag int32, typ uint32, data []byte, sig *wire.Signature) {
	op.world = world
	op.Status = Status{Source: src, Tag: tag, Bytes: int64(len(data)), Type: typ}
	err := c.check(op, sig)
	if err == nil || err == ErrTruncated {
		copy(op.Buf, data)
	}
	c.finish(op, err)
}

// check compares a matched message with its receive. A truncated message fills
// the buffer; any other error leaves it alone.
func (c *Core) check(o *Op, sig *wire.Signature) error {
	switch {
	case o.Signed && sig != nil && *sig != o.Sig:
		return &MismatchError{Mine: o.Sig, Theirs: *sig, Rank: o.Status.Source, CallText: c.callText}
	case o.Status.Type != o.Type:
		return ErrType
	case o.Status.Bytes > int64(len(o.Buf)):
		return ErrTruncated
	}
	return nil
}

// accept starts to receive a message whose data are still with the sender.
func (c *Core) accept(op *Op, m *Message, sig *wire.Signature) {
	op.world, op.sid = m.peer, m.sid
	op.Status = m.Status()
	err := c.check(op, sig)
	op.Err = err // kept until the transfer is over
	op.want = min(m.bytes, int64(len(op.Buf)))
	if c.peers[m.peer].gone != nil {
		c.finish(op, c.peers[m.peer].gone)
		return
	}
	if op.want == 0 || (err != nil && err != ErrTruncated) {
		c.control(m.peer, wire.FIN, wire.HasID).ID = m.sid
		c.finish(op, err)
		return
	}
	if m.pull {
		op.state = pulling
		a := c.emit(Pull, m.peer)
		a.Op, a.Region, a.Payload = op, m.region, op.Buf[:op.want]
		return
	}
	op.state = awaiting
	c.ops.add(op)
	a := c.emit(SendCTS, m.peer)
	a.Header = wire.Header{Kind: wire.CTS, Flags: wire.HasID | wire.HasBytes, ID: m.sid, Reply: op.id, Bytes: uint64(op.want)}
	a.Payload = op.Buf[:op.want]
}

// Exposed reports that the transport of a SendCTS action with that Reply has made
// the receive's buffer writable for the sender.
func (c *Core) Exposed(id uint32) {
	if op := c.ops.get(id); op != nil && op.state == awaiting {
		op.state = exposed
	}
}

// Pulled reports the end of a Pull action.
func (c *Core) Pulled(op *Op, err error) {
	if err != nil { // it has offered memory that is not there: it is gone, or broken
		c.Lost(int(op.world), err)
		c.finish(op, c.peers[op.world].gone)
	} else {
		c.Stats.Pulled++
		c.finish(op, op.Err)
	}
	if c.peers[op.world].gone == nil {
		c.control(op.world, wire.FIN, wire.HasID).ID = op.sid
	}
}

// Dest returns where the payload of a Data frame goes. An error means that the
// peer broke the protocol.
func (c *Core) Dest(from int, h *wire.Header, n int) ([]byte, error) {
	peer := int32(from)
	if fresh, err := c.sequence(&c.peers[peer], peer, h); !fresh {
		return nil, err
	}
	op := c.ops.get(h.ID)
	if h.Kind != wire.Data || op == nil || op.state != awaiting && op.state != exposed || op.world != peer || int64(n) != op.want {
		return nil, violation(peer, h, "no receive waits for it")
	}
	op.state = landing
	return op.Buf[:n], nil
}

// Landed reports that the payload of a Data frame is where Dest said. The
// receive is complete, even if its sender has been lost since.
func (c *Core) Landed(from int, h *wire.Header) {
	op := c.ops.get(h.ID)
	if op == nil || op.state != landing || op.world != int32(from) {
		panic("proto: Landed for no receive")
	}
	c.Stats.Streamed++
	c.finish(op, op.Err)
}
