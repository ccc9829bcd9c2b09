package weft

import (
	"context"
	"sync"

	"github.com/weft-hpc/weft/internal/progress"
	"github.com/weft-hpc/weft/internal/proto"
)

// Scope is to requests what an errgroup is to goroutines: Isend and Irecv add
// requests to it, and Wait completes them all. A function that defers Wait
// cannot leave a request behind. A Scope is used by one goroutine.
//
// A scope may be used again after Wait, and then reuses the memory of its
// requests, so that a loop allocates nothing: the requests that it returned
// before tell their results until then.
type Scope struct {
	ctx    context.Context
	all    []*Request // in the order of their making
	n      int        // those in use
	waited bool       // Wait has returned since the last one was made
	slab   []Request  // the next ones: one allocation for many
}

// Scope returns an empty scope. When ctx ends, requests that have not matched
// are withdrawn by Wait.
func (c *Comm) Scope(ctx context.Context) *Scope {
	c.mustBeOpen()
	return &Scope{ctx: ctx}
}

const slabSize = 32

func (s *Scope) add(c *Comm, call string, el *elem, peer, tag int) *Request {
	if s.waited {
		s.waited, s.n = false, 0
	}
	var r *Request
	if s.n < len(s.all) {
		r = s.all[s.n]
		r.op.Recycle()
		r.failed, r.run = nil, nil
	} else {
		if len(s.slab) == 0 {
			s.slab = make([]Request, slabSize)
		}
		r, s.slab = &s.slab[0], s.slab[1:]
		s.all = append(s.all, r)
	}
	s.n++
	r.c, r.ctx, r.call, r.el, r.peer, r.tag = c, s.ctx, call, el, peer, tag
	return r
}

// Wait waits until all requests of the scope are done and returns the first
// error in the order in which they were made.
func (s *Scope) Wait() error {
	if s.waited {
		return nil
	}
	var first error
	for _, r := range s.all[:s.n] {
		if r.failed == nil {
			r.wait(s.ctx)
			if r.op.Err == nil {
				continue
			}
		}
		if first == nil {
			_, first = r.result()
		}
	}
	s.waited = true
	return first
}

// Request is an operation or a collective in progress. It owns its buffer until it is done.
// Its methods may be called by any goroutine.
type Request struct {
	op     progress.Op
	c      *Comm
	ctx    context.Context
	call   string
	el     *elem
	peer   int
	tag    int
	failed error // it was never started
	st     Status

	run *collRun // of a collective
	own *collRun // kept for the next one
}

// wait waits until the request is done; when ctx ends it is withdrawn, if it can be.
func (r *Request) wait(ctx context.Context) {
	e := r.c.w.engine
	if r.run == nil {
		e.Wait(ctx, &r.op)
		return
	}
	r.hasten()
	if !e.Await(ctx, &r.op) {
		e.Abort(&r.run.task, context.Cause(ctx))
		e.Await(context.Background(), &r.op)
	}
}

// hasten goes on with a collective that the engine has not begun.
func (r *Request) hasten() {
	if r.run != nil && !r.op.Finished() { // else the run, if it is a plan's, may be another request's by now
		r.run.hasten()
	}
}

// Isend starts a Send and returns at once. buf must not be changed until the
// request is done. (MPI 4.1, 3.7.2)
func Isend[T any](s *Scope, c *Comm, buf []T, dst, tag int) *Request {
	return c.istart(s, "Isend", proto.Send, elemOf[T](), bytesOf(buf), dst, tag)
}

// Issend starts an Ssend.
func Issend[T any](s *Scope, c *Comm, buf []T, dst, tag int) *Request {
	return c.istart(s, "Issend", proto.Ssend, elemOf[T](), bytesOf(buf), dst, tag)
}

// Irecv starts a Recv and returns at once. buf must not be touched until the
// request is done.
func Irecv[T any](s *Scope, c *Comm, buf []T, src, tag int) *Request {
	return c.istart(s, "Irecv", proto.Recv, elemOf[T](), bytesOf(buf), src, tag)
}

func (c *Comm) istart(s *Scope, call string, kind proto.Kind, el *elem, buf []byte, peer, tag int) *Request {
	c.mustBeOpen()
	r := s.add(c, call, el, peer, tag)
	if peer == NoRank {
		r.failed, r.st = errNoRank, noStatus
		return r
	}
	if kind == proto.Recv {
		r.failed = c.checkSrc(call, el, peer, tag)
	} else {
		r.failed = c.checkDst(call, el, peer, tag)
	}
	if r.failed == nil {
		c.w.engine.Start(&r.op, &progress.Call{Kind: kind, Ctx: c.comm.P2P, Peer: int32(peer), Tag: int32(tag), Type: el.hash, Buf: buf})
	}
	return r
}

// Wait waits until the request is done and returns its result. When ctx ends
// first, Wait returns its error, and the request goes on; see Cancel.
func (r *Request) Wait(ctx context.Context) (Status, error) {
	if r.failed == nil {
		r.hasten()
		if !r.c.w.engine.Await(ctx, &r.op) {
			return Status{}, context.Cause(ctx)
		}
	}
	return r.result()
}

// Test makes progress and reports whether the request is done, and if so its
// result.
func (r *Request) Test() (st Status, done bool, err error) {
	if r.failed == nil && !r.op.Finished() {
		r.c.w.engine.Poll()
		if !r.op.Finished() {
			return Status{}, false, nil
		}
	}
	st, err = r.result()
	return st, true, err
}

// Done returns a channel that is closed when the request is done, for select.
func (r *Request) Done() <-chan struct{} {
	if r.failed != nil {
		return closedChan()
	}
	return r.c.w.engine.Closed(&r.op)
}

var closedChan = sync.OnceValue(func() chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
})

// Cancel asks for the request to be withdrawn, which is possible until it has
// matched. It returns true if the request is done now; otherwise it is done
// later, withdrawn or not, and Wait tells. A withdrawn request's error is
// context.Canceled. A collective that is not done yet is ended, and its
// communicator revoked.
func (r *Request) Cancel() bool {
	if r.failed == nil && r.run != nil {
		if !r.op.Finished() { // else the task, if there was one, may be another request's by now
			r.c.w.engine.Abort(&r.run.task, context.Canceled)
		}
		return r.op.Finished()
	}
	return r.failed != nil || r.c.w.engine.Cancel(&r.op)
}

// result returns the result of a request that is done.
func (r *Request) result() (Status, error) {
	if r.failed != nil {
		if r.failed == errNoRank {
			return r.st, nil
		}
		return Status{}, r.failed
	}
	if r.run != nil {
		if r.op.Err != nil {
			return Status{}, r.c.collectiveFailure(r.ctx, r.call, r.el, r.op.Err)
		}
		return noStatus, nil
	}
	st := r.c.statusOf(r.op.Status, r.el, len(r.op.Buf), r.op.Err)
	if r.op.Err != nil {
		return st, r.c.failure(r.ctx, r.call, r.el, r.peer, r.tag, len(r.op.Buf), r.op.Status, r.op.Err)
	}
	return st, nil
}

// errNoRank marks a request that had nothing to do.
var errNoRank = &Error{Op: "NoRank"}
