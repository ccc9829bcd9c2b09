package weft

import (
	"context"

	"github.com/weft-hpc/weft/internal/progress"
	"github.com/weft-hpc/weft/internal/proto"
)

// Probe waits until a message from src with tag could be received, and tells
// about it without receiving it. Count is zero, since the element type is not
// known; Bytes is the length. With several goroutines receiving, use Mprobe.
// (MPI 4.1, 3.8.1)
func Probe(ctx context.Context, c *Comm, src, tag int) (Status, error) {
	c.mustBeOpen()
	if src == NoRank {
		return noStatus, nil
	}
	if err := c.checkSrc("Probe", byteElem, src, tag); err != nil {
		return Status{}, err
	}
	r := c.w.engine.Call(ctx, progress.Call{Kind: proto.Probe, Ctx: c.comm.P2P, Peer: int32(src), Tag: int32(tag)})
	if r.Err != nil {
		return Status{}, c.failure(ctx, "Probe", byteElem, src, tag, 0, r.Status, r.Err)
	}
	return Status{Source: int(r.Status.Source), Tag: int(r.Status.Tag), Bytes: r.Status.Bytes}, nil
}

// Iprobe is Probe without waiting. It makes progress, and tells whether there
// is such a message.
func Iprobe(c *Comm, src, tag int) (st Status, ok bool, err error) {
	c.mustBeOpen()
	if src == NoRank {
		return noStatus, true, nil
	}
	if err := c.checkSrc("Iprobe", byteElem, src, tag); err != nil {
		return Status{}, false, err
	}
	c.w.engine.Poll()
	c.w.engine.Do(func(core *proto.Core) {
		var found proto.Status
		if found, ok = core.Peek(c.comm.P2P, int32(src), int32(tag)); ok {
			st = Status{Source: int(found.Source), Tag: int(found.Tag), Bytes: found.Bytes}
		} else if gone := core.Hopeless(c.comm.P2P, int32(src)); gone != nil {
			err = c.failure(context.Background(), "Iprobe", byteElem, src, tag, 0, found, gone)
		}
	})
	return st, ok, err
}

var byteElem = elemOf[byte]()

// Message is a message that Mprobe took out of matching. It must be received
// with Mrecv, once.
type Message struct {
	c      *Comm
	m      *proto.Message
	status proto.Status
}

// Mprobe waits for a message like Probe and takes it out of matching, so that
// no other receive can get it. (MPI 4.1, 3.8.2)
func Mprobe(ctx context.Context, c *Comm, src, tag int) (*Message, error) {
	m, err := c.mprobe(ctx, "Mprobe", src, tag)
	if err != nil {
		return nil, err
	}
	return &m, nil
}

func (c *Comm) mprobe(ctx context.Context, call string, src, tag int) (Message, error) {
	c.mustBeOpen()
	if err := c.checkSrc(call, byteElem, src, tag); err != nil {
		return Message{}, err
	}
	r := c.w.engine.Call(ctx, progress.Call{Kind: proto.Mprobe, Ctx: c.comm.P2P, Peer: int32(src), Tag: int32(tag)})
	if r.Err != nil {
		return Message{}, c.failure(ctx, call, byteElem, src, tag, 0, r.Status, r.Err)
	}
	return Message{c: c, m: r.Message, status: r.Status}, nil
}

// Status tells about the message; Count is zero.
func (m *Message) Status() Status {
	return Status{Source: int(m.status.Source), Tag: int(m.status.Tag), Bytes: m.status.Bytes}
}

// Mrecv receives a message that Mprobe took. Lengths and types are checked as
// in Recv.
func Mrecv[T any](ctx context.Context, m *Message, buf []T) (Status, error) {
	return m.receive(ctx, "Mrecv", elemOf[T](), bytesOf(buf))
}

func (m *Message) receive(ctx context.Context, call string, el *elem, buf []byte) (Status, error) {
	if m.m == nil {
		panic("weft: " + call + " of a message that was received already")
	}
	if el.err != nil {
		return Status{}, m.c.errorf(call, el.err, "")
	}
	r := m.c.w.engine.Call(ctx, progress.Call{Kind: proto.Recv, Ctx: m.c.comm.P2P, Peer: m.status.Source, Tag: m.status.Tag,
		Type: el.hash, Buf: buf, Message: m.m})
	m.m = nil
	st := m.c.statusOf(r.Status, el, len(buf), r.Err)
	if r.Err != nil {
		return st, m.c.failure(ctx, call, el, int(m.status.Source), int(m.status.Tag), len(buf), r.Status, r.Err)
	}
	return st, nil
}
