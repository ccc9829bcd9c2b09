package progress

import (
	"context"
	"errors"

	"github.com/weft-hpc/weft/internal/proto"
	"github.com/weft-hpc/weft/internal/wire"
)

// ErrClosed ends operations of an engine that is closed.
var ErrClosed = errors.New("this rank has left the job")

// Call describes a blocking operation.
type Call struct {
	Kind    proto.Kind
	Ctx     *proto.Context
	Peer    int32
	Tag     int32
	Type    uint32
	Buf     []byte
	Sig     *wire.Signature
	Message *proto.Message // to be received, when an Mprobe took it
}

// Result is how a blocking operation ended.
type Result struct {
	Status  proto.Status
	Err     error
	Message *proto.Message
}

// Call carries out one operation and returns when it is done. It allocates
// nothing: its operation comes from a pool of the engine.
func (e *Engine) Call(ctx context.Context, c Call) Result {
	e.mu.Lock()
	op := e.take()
	e.begin(op, &c)
	e.act()
	if op.Finished() {
		r := e.give(op)
		e.mu.Unlock()
		return r
	}
	e.mu.Unlock()
	e.Wait(ctx, op)
	e.mu.Lock()
	r := e.give(op)
	e.mu.Unlock()
	return r
}

// Pair carries out two operations at once: the second is posted first, so that
// a receive is there before its message.
func (e *Engine) Pair(ctx context.Context, first, second Call) (Result, Result) {
	e.mu.Lock()
	b := e.take()
	e.begin(b, &second)
	a := e.take()
	e.begin(a, &first)
	e.act()
	e.mu.Unlock()
	e.Wait(ctx, a)
	if a.Err != nil && !b.Finished() {
		e.Cancel(b)
	}
	e.Wait(ctx, b)
	e.mu.Lock()
	ra, rb := e.give(a), e.give(b)
	e.mu.Unlock()
	if ra.Err != nil && rb.Err == proto.ErrCanceled {
		rb.Err = ra.Err // that is why it was withdrawn
	}
	return ra, rb
}

// Start begins an operation that the caller owns and waits for.
func (e *Engine) Start(op *Op, c *Call) {
	e.mu.Lock()
	e.begin(op, c)
	e.act()
	e.mu.Unlock()
	if !op.Finished() {
		e.needIO()
	}
}

// begin posts op, with mu held.
func (e *Engine) begin(op *Op, c *Call) {
	op.Owner = op
	op.Kind, op.Ctx, op.Peer, op.Tag, op.Type, op.Buf = c.Kind, c.Ctx, c.Peer, c.Tag, c.Type, c.Buf
	if c.Sig != nil {
		op.Sig, op.Signed = *c.Sig, true
	}
	if e.closed.Load() {
		op.Err = ErrClosed
		e.finish(&op.Op)
		return
	}
	switch c.Kind {
	case proto.Send, proto.Ssend:
		if len(op.Buf) >= describeMin {
			e.describe(op)
		}
		e.core.PostSend(&op.Op)
	case proto.Recv:
		if c.Message != nil {
			e.core.PostMrecv(&op.Op, c.Message)
		} else {
			e.core.PostRecv(&op.Op)
		}
	default:
		e.core.PostProbe(&op.Op)
	}
}

// take returns an operation from the pool, with mu held.
func (e *Engine) take() *Op {
	n := len(e.pool)
	if n == 0 {
		return new(Op)
	}
	op := e.pool[n-1]
	e.pool = e.pool[:n-1]
	return op
}

// give returns an operation to the pool, with mu held, and its result.
func (e *Engine) give(op *Op) Result {
	r := Result{op.Status, op.Err, op.Message}
	op.Recycle()
	e.pool = append(e.pool, op)
	return r
}

// BeginCollective announces the collective that this rank enters on m.
func (e *Engine) BeginCollective(m *proto.Comm, sig wire.Signature) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.accept()
	if err := m.Err(); err != nil {
		return err
	}
	return e.core.BeginCollective(m.Coll, sig)
}

// EndCollective notes the end of the collective with a number. An error revokes m,
// so that no member waits for this rank.
func (e *Engine) EndCollective(m *proto.Comm, seq uint32, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.core.EndCollective(m.Coll, seq)
	if err != nil {
		e.core.Revoke(m, err, err.Error())
		e.act()
	}
}
