package weft

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/progress"
	"github.com/weft-hpc/weft/internal/proto"
	"github.com/weft-hpc/weft/internal/wire"
)

// The collectives. All ranks of the communicator call the same ones in the
// same order, with the same root, element type, count and operator. Messages carry
// what was called, so ranks that disagree get ErrMismatch, all of them, as soon as
// one message shows it; if no message flows between those who disagree, they wait
// until ctx ends. In place means to give the same slice as send and recv; slices
// that overlap in part are ErrOverlap. Lengths may be zero. When a collective fails
// on any rank, for whatever reason, the communicator is revoked: every operation on
// it fails on every rank.

// Barrier returns when all ranks have called it. (MPI 4.1, 6.3)
func Barrier(ctx context.Context, c *Comm) error {
	return c.collect(ctx, collCall{name: "Barrier", op: opBarrier}, func(p *member) error {
		if c.w.crowded {
			return collective.CrowdedBarrier(p)
		}
		return collective.Barrier(p)
	})
}

// Bcast copies the root's buf to all ranks. (MPI 4.1, 6.4)
func Bcast[T any](ctx context.Context, c *Comm, buf []T, root int) error {
	return c.bcast(ctx, elemOf[T](), bytesOf(buf), root)
}

// Reduce combines the ranks' send element by element into the root's recv. The
// other ranks' recv is not used and may be nil. (MPI 4.1, 6.9.1)
func Reduce[T any](ctx context.Context, c *Comm, send, recv []T, op Op[T], root int) error {
	return c.reduce(ctx, elemOf[T](), bytesOf(send), bytesOf(recv), op.raw, op.variant, root)
}

// Allreduce combines the ranks' send element by element into every rank's
// recv. All ranks get the same bits, and the same ones in every run with that
// number of ranks. (MPI 4.1, 6.9.6)
func Allreduce[T any](ctx context.Context, c *Comm, send, recv []T, op Op[T]) error {
	return c.allreduce(ctx, "Allreduce", elemOf[T](), bytesOf(send), bytesOf(recv), op.raw, op.variant)
}

// AllreduceValue is Allreduce of one value.
func AllreduceValue[T any](ctx context.Context, c *Comm, v T, op Op[T]) (T, error) {
	buf := []T{v}
	err := Allreduce(ctx, c, buf, buf, op)
	return buf[0], err
}

// Gather collects the ranks' send in the root's recv, in rank order; recv holds
// Size() times as many elements. The other ranks' recv is not used and may be
// nil. In place at the root: send is its own part of recv. (MPI 4.1, 6.5)
func Gather[T any](ctx context.Context, c *Comm, send, recv []T, root int) error {
	return c.gather(ctx, elemOf[T](), bytesOf(send), bytesOf(recv), root)
}

// Scatter hands out the root's send in rank order; send holds Size() times as
// many elements as each recv. The other ranks' send is not used and may be nil.
// In place at the root: recv is its own part of send. (MPI 4.1, 6.6)
func Scatter[T any](ctx context.Context, c *Comm, send, recv []T, root int) error {
	return c.scatter(ctx, elemOf[T](), bytesOf(send), bytesOf(recv), root)
}

// Allgather collects the ranks' send in every rank's recv, in rank order; recv
// holds Size() times as many elements. In place: send is the rank's own part of
// recv. (MPI 4.1, 6.7)
func Allgather[T any](ctx context.Context, c *Comm, send, recv []T) error {
	return c.allgather(ctx, "Allgather", elemOf[T](), bytesOf(send), bytesOf(recv))
}

func (c *Comm) bcast(ctx context.Context, el *elem, buf []byte, root int) error {
	return c.collect(ctx, collCall{name: "Bcast", op: opBcast, root: root, el: el, bytes: len(buf)},
		func(p *member) error { return collective.Bcast(p, buf, root) })
}

func (c *Comm) reduce(ctx context.Context, el *elem, send, recv []byte, op collective.Op, variant uint16, root int) error {
	call := collCall{name: "Reduce", op: opReduce, variant: variant, root: root, el: el, bytes: len(send), bad: c.checkOp("Reduce", op)}
	if root == c.rank && call.bad == nil {
		call.bad = c.checkBuffers("Reduce", send, recv, len(send))
	}
	return c.collect(ctx, call, func(p *member) error { return collective.Reduce(p, send, recv, op, root) })
}

func (c *Comm) allreduce(ctx context.Context, name string, el *elem, send, recv []byte, op collective.Op, variant uint16) error {
	call := collCall{name: name, op: opAllreduce, variant: variant, el: el, bytes: len(send), bad: c.checkOp(name, op)}
	if call.bad == nil {
		call.bad = c.checkBuffers(name, send, recv, len(send))
	}
	return c.collect(ctx, call, func(p *member) error { return collective.Allreduce(p, send, recv, op) })
}

func (c *Comm) gather(ctx context.Context, el *elem, send, recv []byte, root int) error {
	call := collCall{name: "Gather", op: opGather, root: root, el: el, bytes: len(send)}
	if root == c.rank {
		call.bad = c.checkBlocks("Gather", send, recv)
	}
	return c.collect(ctx, call, func(p *member) error { return collective.Gather(p, send, recv, root) })
}

func (c *Comm) scatter(ctx context.Context, el *elem, send, recv []byte, root int) error {
	call := collCall{name: "Scatter", op: opScatter, root: root, el: el, bytes: len(recv)}
	if root == c.rank {
		call.bad = c.checkBlocks("Scatter", recv, send)
	}
	return c.collect(ctx, call, func(p *member) error { return collective.Scatter(p, send, recv, root) })
}

func (c *Comm) allgather(ctx context.Context, name string, el *elem, send, recv []byte) error {
	return c.collect(ctx, collCall{name: name, op: opAllgather, el: el, bytes: len(send), bad: c.checkBlocks(name, send, recv)},
		func(p *member) error { return collective.Allgather(p, send, recv) })
}

// checkOp refuses the zero Op.
func (c *Comm) checkOp(call string, op collective.Op) error {
	if op.Left == nil {
		return c.errorf(call, fmt.Errorf("%w: no operator", ErrArgument), "make the operator with Sum, OpFunc or another constructor")
	}
	return nil
}

// checkBuffers checks a pair of buffers of which recv holds want bytes.
func (c *Comm) checkBuffers(call string, send, recv []byte, want int) error {
	if len(recv) != want {
		e := c.errorf(call, ErrCount, "make recv as long as send")
		e.Want, e.Got = int64(want), int64(len(recv))
		return e
	}
	if _, partial := overlap(send, recv); partial {
		return c.errorf(call, ErrOverlap, "give it the same slice twice for in place, or two separate ones")
	}
	return nil
}

// checkBlocks checks a rank's block and the whole of all blocks.
func (c *Comm) checkBlocks(call string, block, whole []byte) error {
	if len(whole) != len(block)*c.size {
		e := c.errorf(call, ErrCount, "the longer buffer holds %d times the shorter one, a part for each rank", c.size)
		e.Want, e.Got = int64(len(block)*c.size), int64(len(whole))
		return e
	}
	own := whole[c.rank*len(block):][:len(block)]
	if same, _ := overlap(block, own); same {
		return nil
	}
	if _, partial := overlap(block, whole); partial {
		return c.errorf(call, ErrOverlap, "in place means the rank's own part of the longer buffer")
	}
	return nil
}

// The operations in signatures. The numbers are part of the protocol.
const (
	opBarrier uint8 = 1 + iota
	opBcast
	opReduce
	opAllreduce
	opGather
	opScatter
	opAllgather
	opClose
	opFence
)

var opNames = [...]string{"?", "Barrier", "Bcast", "Reduce", "Allreduce", "Gather", "Scatter", "Allgather", "Close", "Fence"}

// member is one rank's collective.Peer. A communicator has one, for one
// collective at a time.
type member struct {
	c       *Comm
	busy    atomic.Bool
	failed  atomic.Bool // a collective has told the program so
	ctx     context.Context
	seq     uint32
	sig     wire.Signature
	scratch [4][]byte
	ops     []*progress.Op // for posted messages
	posted  int            // of ops, those in use
}

var _ collective.Peer = (*member)(nil)

// collCall is one rank's call of a collective.
type collCall struct {
	name    string
	op      uint8
	variant uint16 // hash of the operator
	root    int
	el      *elem // nil where no data move
	bytes   int
	bad     error // what is wrong with the arguments, as far as this rank can tell
}

// refuse is a collective call that this rank cannot take part in.
func (c *Comm) refuse(ctx context.Context, name string, why error) error {
	return c.collect(ctx, collCall{name: name, bad: why}, nil)
}

// collect runs one collective: it announces the signature, runs the algorithm, and
// revokes the communicator if anything fails, bad arguments on this rank
// included, since the others wait for it.
func (c *Comm) collect(ctx context.Context, call collCall, run func(*member) error) error {
	c.mustBeOpen()
	m := &c.coll
	sig := wire.Signature{Op: call.op, Variant: call.variant, Root: int32(call.root)}
	if el := call.el; el != nil {
		if el.err != nil {
			call.bad = c.errorf(call.name, el.err, "")
		} else {
			sig.Type, sig.Count = el.hash, uint64(call.bytes/el.size)
		}
	}
	if call.root < 0 || call.root >= c.size {
		call.bad = c.errorf(call.name, fmt.Errorf("%w: root %d", ErrRank, call.root), "ranks here go from 0 to %d", c.size-1)
	}
	if !m.busy.CompareAndSwap(false, true) {
		return c.errorf(call.name, ErrConcurrent, "another goroutine is in a collective on it; give each goroutine a Dup of its own")
	}
	m.seq++
	sig.Seq = m.seq
	m.ctx, m.sig = ctx, sig
	err := call.bad
	if err == nil {
		err = c.w.engine.BeginCollective(c.comm, sig)
	}
	if err == nil {
		err = run(m)
	}
	c.w.engine.EndCollective(c.comm, err)
	m.ctx = nil
	m.busy.Store(false)
	switch {
	case err == nil:
		return nil
	case err == call.bad:
		return err
	}
	m.failed.Store(true)
	return c.collectiveError(ctx, call.name, err)
}

func (c *Comm) collectiveError(ctx context.Context, call string, err error) error {
	e := c.errorf(call, err, "")
	e.lost = proto.LostRank(err)
	var mismatch *proto.MismatchError
	switch {
	case errors.As(err, &mismatch):
		e.Peer = int(mismatch.Rank)
		e.Err = fmt.Errorf("%w: rank %d called %s, this rank %s", ErrMismatch, mismatch.Rank, signature(&mismatch.Theirs), signature(&mismatch.Mine))
		e.Hint = "every rank must call the same collectives in the same order with the same arguments"
	case errors.Is(err, proto.ErrCanceled):
		e.Err = context.Cause(ctx)
		e.Hint = "the communicator is revoked"
	case errors.Is(err, ErrRankFailed), errors.Is(err, ErrRankLeft):
		e.Hint = "a collective needs every rank of the communicator"
	case errors.Is(err, ErrRevoked):
		e.Hint = "the communicator cannot be used any more; mend the call that failed first"
	}
	return e
}

func signature(s *wire.Signature) string {
	name := fmt.Sprint("operation ", s.Op)
	if int(s.Op) < len(opNames) {
		name = opNames[s.Op]
	}
	if s.Type != 0 {
		name += fmt.Sprintf(" of %d %s", s.Count, typeName(s.Type))
	}
	switch s.Op {
	case opBcast, opReduce, opGather, opScatter:
		name += fmt.Sprintf(" with root %d", s.Root)
	}
	if s.Variant != 0 {
		name += fmt.Sprintf(" with operator %s", opName(s.Variant))
	}
	return fmt.Sprintf("%s (number %d)", name, s.Seq)
}

func (m *member) Rank() int { return m.c.rank }
func (m *member) Size() int { return m.c.size }

func (m *member) call(kind proto.Kind, buf []byte, peer int) progress.Call {
	return progress.Call{Kind: kind, Ctx: m.c.comm.Coll, Peer: int32(peer), Tag: int32(m.seq & MaxTag), Buf: buf, Sig: &m.sig}
}

// Send implements collective.Peer.
func (m *member) Send(buf []byte, dst int) error {
	return m.c.w.engine.Call(m.ctx, m.call(proto.Send, buf, dst)).Err
}

// Recv implements collective.Peer.
func (m *member) Recv(buf []byte, src int) error {
	return received(buf, m.c.w.engine.Call(m.ctx, m.call(proto.Recv, buf, src)))
}

// Sendrecv implements collective.Peer.
func (m *member) Sendrecv(send []byte, dst int, recv []byte, src int) error {
	s, r := m.c.w.engine.Pair(m.ctx, m.call(proto.Send, send, dst), m.call(proto.Recv, recv, src))
	if s.Err != nil && r.Err == nil {
		return s.Err
	}
	return received(recv, r)
}

// PostSend implements collective.Peer.
func (m *member) PostSend(buf []byte, dst int) { m.post(m.call(proto.Send, buf, dst)) }

// PostRecv implements collective.Peer.
func (m *member) PostRecv(buf []byte, src int) { m.post(m.call(proto.Recv, buf, src)) }

func (m *member) post(call progress.Call) {
	if m.posted == len(m.ops) {
		m.ops = append(m.ops, new(progress.Op))
	}
	op := m.ops[m.posted]
	m.posted++
	m.c.w.engine.Start(op, &call)
}

// Finish implements collective.Peer.
func (m *member) Finish() (err error) {
	for _, op := range m.ops[:m.posted] {
		if err != nil {
			m.c.w.engine.Cancel(op)
		}
		m.c.w.engine.Wait(m.ctx, op)
		r := progress.Result{Status: op.Status, Err: op.Err}
		if op.Kind == proto.Recv {
			r.Err = received(op.Buf, r)
		}
		op.Recycle()
		if err == nil {
			err = r.Err
		}
	}
	m.posted = 0
	return err
}

// received checks that a message filled its buffer. Signatures are equal, so a
// shorter one is a fault of the algorithm.
func received(buf []byte, r progress.Result) error {
	if r.Err == nil && r.Status.Bytes != int64(len(buf)) {
		return fmt.Errorf("collective: message of %d bytes from rank %d where %d were due", r.Status.Bytes, r.Status.Source, len(buf))
	}
	return r.Err
}

// Scratch implements collective.Peer.
func (m *member) Scratch(slot, n int) []byte {
	if cap(m.scratch[slot]) < n {
		m.scratch[slot] = make([]byte, n)
	}
	return m.scratch[slot][:n]
}
