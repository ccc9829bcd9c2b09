package progress

import (
	"fmt"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/proto"
	"github.com/weft-hpc/weft/internal/wire"
)

// Steps is what a Task carries out: a list of messages, and of local work in
// between.
type Steps interface {
	// Next goes on from where it last stopped, until messages that it has posted
	// with Task.Post have to be over first, or all is done. It is called with the
	// engine's lock held, by whoever polls, and must not call the engine.
	Next(t *Task) (done bool, err error)

	// Stop is called when the task has failed, the others have been told, and its messages are over: again
	// and again until it neither posts nor watches anything more. Then nothing may touch its buffers.
	Stop(t *Task)
}

// Task is a collective that the engine advances by itself, in the call of
// whichever goroutine polls: no goroutine of its own waits for its messages. Its
// messages come from the engine's pool, so a Task that is used again allocates
// nothing.
//
// A task that was offered to the engine is on the way from one owner to the other. It is in Engine.offered
// while it is offered or held.
type Task struct {
	engine    *Engine
	done      *Op // what its users wait for
	comm      *proto.Comm
	sig       wire.Signature
	steps     Steps
	owner     atomic.Int32
	pending   int // messages in progress
	err       error
	announced bool // the core knows of it
	queued    bool // is in Engine.ready
	revoked   bool // the others have been told of err
	over      bool
}

// Whose a task is.
const (
	taskOffered int32 = iota // anybody's who says so
	taskHeld                 // of the goroutine that took it back, which ends it or hands it over
	taskBegun                // the engine's, guarded by its lock, until it is over
)

// LengthError is a message of a collective that is not as long as its receiver
// expects.
type LengthError struct {
	Rank      int32 // its sender's
	Want, Got int64 // bytes
}

func (e *LengthError) Error() string {
	return fmt.Sprintf("message of %d bytes from rank %d where %d were due", e.Got, e.Rank, e.Want)
}

// Unwrap returns what else it is: always a disagreement, and for a message that is
// too long, one that was truncated.
func (e *LengthError) Unwrap() []error {
	if e.Got > e.Want {
		return []error{proto.ErrTruncated, proto.ErrMismatch}
	}
	return []error{proto.ErrMismatch}
}

// Filled checks that a message of a collective fills its buffer.
func Filled(want int, r Result) error {
	if (r.Err == nil || r.Err == proto.ErrTruncated) && r.Status.Bytes != int64(want) {
		return &LengthError{Rank: r.Status.Source, Want: int64(want), Got: r.Status.Bytes}
	}
	return r.Err
}

// StartTask begins a collective with a signature on m. done, which the caller owns,
// is finished when the task is, with its error; an error revokes m.
func (e *Engine) StartTask(t *Task, m *proto.Comm, sig wire.Signature, steps Steps, done *Op) {
	e.prepare(t, m, sig, steps, done)
	e.HandOver(t)
}

// OfferTask is StartTask of a task that can do without the engine: until somebody polls, who waits for
// it may take it back and go on with it, without a lock.
func (e *Engine) OfferTask(t *Task, m *proto.Comm, sig wire.Signature, steps Steps, done *Op) {
	e.prepare(t, m, sig, steps, done)
	if e.offered.CompareAndSwap(nil, t) {
		// Who falls asleep looks at it last: one of the two sees the other.
		if !e.asleep.Load() && !e.closed.Load() {
			e.needIO()
			return
		}
		if !e.TakeBack(t) {
			return
		}
	}
	e.HandOver(t)
}

func (e *Engine) prepare(t *Task, m *proto.Comm, sig wire.Signature, steps Steps, done *Op) {
	*t = Task{engine: e, done: done, comm: m, sig: sig, steps: steps}
	done.Owner = done
}

// TakeBack takes an offered task back, if the engine has not begun it.
func (e *Engine) TakeBack(t *Task) bool {
	return e.offered.Load() == t && t.owner.CompareAndSwap(taskOffered, taskHeld)
}

// EndTask ends a task that was taken back. It is done, so an Abort meanwhile came too late.
func (e *Engine) EndTask(t *Task) {
	e.mu.Lock()
	e.offered.Store(nil)
	if t.announced {
		e.core.EndCollective(t.comm.Coll, t.sig.Seq)
	}
	t.err = nil
	e.end(t)
	e.act()
	e.mu.Unlock()
}

// HandOver leaves a task that was taken back to the engine.
func (e *Engine) HandOver(t *Task) {
	e.mu.Lock()
	if e.offered.Load() == t {
		e.offered.Store(nil)
	} else {
		e.accept()
	}
	e.beginTask(t)
	e.act()
	e.mu.Unlock()
	if !t.done.Finished() {
		e.needIO()
	}
}

// accept begins the task that is offered, if any. One that is held is only announced: the core hears of
// collectives in their order, and takes one that comes late for one that is over. So accept comes before whatever
// begins a collective.
func (e *Engine) accept() {
	t := e.offered.Load()
	switch {
	case t == nil:
	case t.owner.CompareAndSwap(taskOffered, taskBegun):
		e.offered.Store(nil)
		e.beginTask(t)
	default:
		e.announce(t)
	}
}

func (e *Engine) beginTask(t *Task) {
	t.owner.Store(taskBegun)
	e.announce(t)
	e.queue(t)
}

// announce tells the core of a task, once.
func (e *Engine) announce(t *Task) {
	switch {
	case t.announced || t.err != nil:
	case e.closed.Load():
		t.err = ErrClosed
	case t.comm.Err() != nil:
		t.err = t.comm.Err()
	default:
		t.announced = true
		t.err = e.core.BeginCollective(t.comm.Coll, t.sig)
	}
}

// Abort ends a task with an error, unless it is over. It is over once nothing can
// touch its buffers.
func (e *Engine) Abort(t *Task, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.accept()
	if t.over || t.err != nil {
		return
	}
	t.err = err
	if t.owner.Load() == taskBegun { // else it is held, and soon over or begun
		e.queue(t)
	}
	e.act()
}

// Active tells whether a task has been started and is not over.
func (e *Engine) Active(t *Task) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return t.engine != nil && !t.over
}

// Pending returns the number of the task's messages that are in progress.
func (t *Task) Pending() int { return t.pending }

// Post starts a message. Only Next calls it.
func (t *Task) Post(c *Call) {
	op := t.engine.take()
	op.task = t
	t.pending++
	t.engine.begin(op, c)
}

// taskMessage takes a finished message off its task.
func (e *Engine) taskMessage(op *Op) {
	t := op.task
	err := op.Err
	if op.Kind == proto.Recv {
		err = Filled(len(op.Buf), Result{Status: op.Status, Err: err})
	}
	e.give(op)
	t.pending--
	if err != nil && t.err == nil {
		t.err = err
	}
	if t.pending == 0 || t.err != nil {
		e.queue(t)
	}
}

func (e *Engine) queue(t *Task) {
	if !t.queued && !t.over {
		t.queued = true
		e.ready = append(e.ready, t)
	}
}

// runReady advances the tasks that can go on.
func (e *Engine) runReady() {
	for i := 0; i < len(e.ready); i++ { // it may grow on the way
		t := e.ready[i]
		t.queued = false
		e.advance(t)
	}
	clear(e.ready)
	e.ready = e.ready[:0]
}

func (e *Engine) advance(t *Task) {
	if t.err == nil && t.pending == 0 {
		done, err := t.steps.Next(t)
		switch {
		case err != nil && t.err == nil:
			t.err = err
		case done && t.err == nil:
			e.core.EndCollective(t.comm.Coll, t.sig.Seq)
			e.end(t)
			return
		case t.pending == 0:
			e.queue(t)
		}
	}
	if t.err == nil {
		return
	}
	if !t.revoked {
		t.revoked = true
		e.core.EndCollective(t.comm.Coll, t.sig.Seq)
		e.core.Revoke(t.comm, t.err, t.err.Error())
	}
	if t.pending == 0 {
		if t.steps.Stop(t); t.pending == 0 {
			e.end(t)
		}
	}
}

// end publishes the end of a task, which belongs to its user from here on.
func (e *Engine) end(t *Task) {
	t.over = true
	t.done.Err = t.err
	e.finish(&t.done.Op)
}
