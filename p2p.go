package weft

import (
	"context"
	"fmt"
	"iter"
	"math"

	"github.com/weft-hpc/weft/internal/match"
	"github.com/weft-hpc/weft/internal/progress"
	"github.com/weft-hpc/weft/internal/proto"
)

const (
	// AnySource as a source receives from every rank.
	AnySource = match.Any
	// AnyTag as a tag receives a message with any tag.
	AnyTag = match.Any
	// NoRank as a source or destination makes a call return at once without
	// doing anything, like MPI_PROC_NULL: the neighbour beyond an edge.
	NoRank = -2
	// MaxTag is the largest tag.
	MaxTag = math.MaxInt32
)

// Status tells what was received.
type Status struct {
	Source int
	Tag    int
	Count  int   // elements, cut to the buffer's length if the message was longer
	Bytes  int64 // length of the message
}

// Send sends buf to rank dst. It returns when buf may be reused, which may be
// before the message is received: a small message is copied, a large one waits
// for its receive. (MPI 4.1, 3.2.1)
//
// If ctx ends before the message has matched a receive, it is withdrawn.
func Send[T any](ctx context.Context, c *Comm, buf []T, dst, tag int) error {
	return c.send(ctx, "Send", proto.Send, elemOf[T](), bytesOf(buf), dst, tag)
}

// Ssend is Send, but returns only when the message has matched a receive. (MPI
// 4.1, 3.4)
func Ssend[T any](ctx context.Context, c *Comm, buf []T, dst, tag int) error {
	return c.send(ctx, "Ssend", proto.Ssend, elemOf[T](), bytesOf(buf), dst, tag)
}

// Recv receives a message from rank src, or AnySource, with tag, or AnyTag,
// into buf. A shorter message leaves the rest of buf as it is; a longer one
// fills buf and is ErrTruncated; a message of another element type is ErrType
// and leaves buf as it is. (MPI 4.1, 3.2.4)
//
// If ctx ends before a message has matched, the receive is withdrawn; otherwise
// Recv returns when nothing writes to buf any more.
func Recv[T any](ctx context.Context, c *Comm, buf []T, src, tag int) (Status, error) {
	return c.recv(ctx, "Recv", elemOf[T](), bytesOf(buf), src, tag)
}

// RecvAppend receives a message of any length and appends it to dst.
func RecvAppend[T any](ctx context.Context, c *Comm, dst []T, src, tag int) ([]T, Status, error) {
	el := elemOf[T]()
	if src == NoRank {
		return dst, noStatus, nil
	}
	m, err := c.mprobe(ctx, "RecvAppend", src, tag)
	if err != nil {
		return dst, Status{}, err
	}
	if m.status.Bytes > maxBytes {
		return dst, Status{}, c.errorf("RecvAppend", fmt.Errorf("%w: rank %d announces %d bytes", ErrMemory, m.status.Source, m.status.Bytes), "that rank is broken")
	}
	if el.err == nil && m.status.Type == el.hash {
		n := int(m.status.Bytes) / el.size
		if cap(dst)-len(dst) < n {
			grown := make([]T, len(dst), max(len(dst)+n, 2*cap(dst)))
			copy(grown, dst)
			dst = grown
		}
		dst = dst[:len(dst)+n]
		st, err := m.receive(ctx, "RecvAppend", el, bytesOf(dst[len(dst)-n:]))
		return dst, st, err
	}
	st, err := m.receive(ctx, "RecvAppend", el, nil) // reports what is wrong with the type
	return dst, st, err
}

// Sendrecv sends and receives at once, so that ranks which exchange messages
// cannot wait for each other. send and recv must not overlap. (MPI 4.1, 3.10)
func Sendrecv[T any](ctx context.Context, c *Comm, send []T, dst, sendTag int, recv []T, src, recvTag int) (Status, error) {
	return c.sendrecv(ctx, elemOf[T](), bytesOf(send), dst, sendTag, bytesOf(recv), src, recvTag)
}

// Msg is a message with its data.
type Msg[T any] struct {
	Status
	Data []T
}

// Messages receives messages until the loop is left, ctx ends or an error
// occurs, which is the last thing it yields. Each message goes to one loop,
// however many goroutines have one. Data belongs to the loop's body.
func Messages[T any](ctx context.Context, c *Comm, src, tag int) iter.Seq2[Msg[T], error] {
	return func(yield func(Msg[T], error) bool) {
		if src == NoRank {
			return
		}
		for {
			data, st, err := RecvAppend[T](ctx, c, nil, src, tag)
			if !yield(Msg[T]{st, data}, err) || err != nil {
				return
			}
		}
	}
}

var noStatus = Status{Source: NoRank, Tag: AnyTag}

func (c *Comm) checkDst(call string, el *elem, dst, tag int) error {
	switch {
	case c.rank >= 0 && dst >= 0 && dst < c.size && tag >= 0 && tag <= MaxTag && el.err == nil:
		return nil
	case el.err != nil:
		return c.errorf(call, el.err, "")
	case dst < 0 || dst >= c.size:
		return c.errorf(call, fmt.Errorf("%w: destination %d", ErrRank, dst), "ranks here go from 0 to %d", c.size-1)
	}
	return c.errorf(call, fmt.Errorf("%w: %d", ErrTag, tag), "tags go from 0 to %d", MaxTag)
}

func (c *Comm) checkSrc(call string, el *elem, src, tag int) error {
	switch {
	case src >= AnySource && src < c.size && tag >= AnyTag && tag <= MaxTag && el.err == nil:
		return nil
	case el.err != nil:
		return c.errorf(call, el.err, "")
	case src < AnySource || src >= c.size:
		return c.errorf(call, fmt.Errorf("%w: source %d", ErrRank, src), "ranks here go from 0 to %d; AnySource is %d", c.size-1, AnySource)
	}
	return c.errorf(call, fmt.Errorf("%w: %d", ErrTag, tag), "tags go from 0 to %d; AnyTag is %d", MaxTag, AnyTag)
}

func (c *Comm) send(ctx context.Context, call string, kind proto.Kind, el *elem, buf []byte, dst, tag int) error {
	c.mustBeOpen()
	if dst == NoRank {
		return nil
	}
	if err := c.checkDst(call, el, dst, tag); err != nil {
		return err
	}
	r := c.w.engine.Call(ctx, progress.Call{Kind: kind, Ctx: c.comm.P2P, Peer: int32(dst), Tag: int32(tag), Type: el.hash, Buf: buf})
	if r.Err != nil {
		return c.failure(ctx, call, el, dst, tag, len(buf), r.Status, r.Err)
	}
	return nil
}

func (c *Comm) recv(ctx context.Context, call string, el *elem, buf []byte, src, tag int) (Status, error) {
	c.mustBeOpen()
	if src == NoRank {
		return noStatus, nil
	}
	if err := c.checkSrc(call, el, src, tag); err != nil {
		return Status{}, err
	}
	r := c.w.engine.Call(ctx, progress.Call{Kind: proto.Recv, Ctx: c.comm.P2P, Peer: int32(src), Tag: int32(tag), Type: el.hash, Buf: buf})
	if r.Err != nil {
		return c.statusOf(r.Status, el, len(buf), r.Err), c.failure(ctx, call, el, src, tag, len(buf), r.Status, r.Err)
	}
	return c.statusOf(r.Status, el, len(buf), nil), nil
}

// statusOf converts a status. A receive that got no message has none.
func (c *Comm) statusOf(st proto.Status, el *elem, capacity int, err error) Status {
	if err != nil && err != ErrTruncated {
		return Status{Source: int(st.Source), Tag: int(st.Tag), Bytes: st.Bytes}
	}
	n := min(st.Bytes, int64(capacity))
	if el.size != 1 {
		n /= int64(el.size)
	}
	return Status{Source: int(st.Source), Tag: int(st.Tag), Bytes: st.Bytes, Count: int(n)}
}

func (c *Comm) sendrecv(ctx context.Context, el *elem, send []byte, dst, sendTag int, recv []byte, src, recvTag int) (Status, error) {
	c.mustBeOpen()
	const call = "Sendrecv"
	if same, partial := overlap(send, recv); same || partial {
		return Status{}, c.errorf(call, ErrOverlap, "give it two separate buffers")
	}
	if dst == NoRank {
		return c.recv(ctx, call, el, recv, src, recvTag)
	}
	if src == NoRank {
		return noStatus, c.send(ctx, call, proto.Send, el, send, dst, sendTag)
	}
	if err := c.checkDst(call, el, dst, sendTag); err != nil {
		return Status{}, err
	}
	if err := c.checkSrc(call, el, src, recvTag); err != nil {
		return Status{}, err
	}
	s, r := c.w.engine.Pair(ctx,
		progress.Call{Kind: proto.Send, Ctx: c.comm.P2P, Peer: int32(dst), Tag: int32(sendTag), Type: el.hash, Buf: send},
		progress.Call{Kind: proto.Recv, Ctx: c.comm.P2P, Peer: int32(src), Tag: int32(recvTag), Type: el.hash, Buf: recv})
	switch {
	case r.Err != nil:
		return c.statusOf(r.Status, el, len(recv), r.Err), c.failure(ctx, call, el, src, recvTag, len(recv), r.Status, r.Err)
	case s.Err != nil:
		return c.statusOf(r.Status, el, len(recv), nil), c.failure(ctx, call, el, dst, sendTag, len(send), s.Status, s.Err)
	}
	return c.statusOf(r.Status, el, len(recv), nil), nil
}
