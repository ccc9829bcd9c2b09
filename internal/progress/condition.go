package progress

import (
	"context"
	"slices"

	"github.com/weft-hpc/weft/internal/pause"
	"github.com/weft-hpc/weft/internal/proto"
	"github.com/weft-hpc/weft/internal/wire"
)

// Condition is what a rank waits for that is not a message: something that peers write to memory.
// They Nudge the rank when they have. Whoever polls looks, with the engine's lock held.
type Condition interface {
	// Met says that there is nothing left to wait for.
	Met() bool
	// Missing is a rank of the communicator that has not done its part.
	Missing() int
}

// watch is a Condition with the operation that ends when it is met.
type watch struct {
	op   *Op
	comm *proto.Comm
	cond Condition
	last bool // it outlives the communicator's revocation

	sig   wire.Signature // of the collective; not if last
	waits proto.Patience
}

// Usable returns why nothing new may start on m, or nil.
func (e *Engine) Usable(m *proto.Comm) error {
	if !m.Revoked() && !e.closed.Load() {
		return nil // without a lock
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed.Load() {
		return ErrClosed
	}
	return m.Err()
}

// quickYields is how often Soon gives the core away, before messages are looked at, too. Linux takes each yield for
// a whole time slice that the rank has had: one that yields often waits long until it runs again, while
// others yield for it. At 8 yields a tenth of the barriers of 8 ranks on 2 cores took ten times as long.
const quickYields = 2

// Soon waits for a condition for as long as it mostly takes, less than a microsecond, without a lock, and
// tells whether it is met.
func (e *Engine) Soon(c Condition) bool {
	for range e.policy.Polls {
		if c.Met() {
			return true
		}
		if !e.policy.NoPause {
			pause.Spin(1)
		}
	}
	if e.policy.Spin == 0 { // who is waited for may need this core
		for range quickYields {
			e.policy.Yield()
			if c.Met() {
				return true
			}
		}
	}
	return false
}

// Until waits for a condition of a collective on m, and returns early with an error when ctx ends, m is
// revoked, or the rank that is Missing is gone. begun says that it waited so long that the collective was
// announced, and EndCollective is due.
func (e *Engine) Until(ctx context.Context, m *proto.Comm, sig *wire.Signature, c Condition) (begun bool, err error) {
	if e.Soon(c) {
		return false, nil
	}
	e.mu.Lock()
	e.accept()
	if err := e.core.BeginCollective(m.Coll, *sig); err != nil {
		e.mu.Unlock()
		return true, err
	}
	op := e.take()
	e.watch(watch{op: op, comm: m, cond: c, sig: *sig})
	e.act()
	e.mu.Unlock()
	e.Wait(ctx, op)
	e.mu.Lock()
	err = e.give(op).Err
	e.mu.Unlock()
	return true, err
}

// UntilLast waits for a condition whatever happens to the communicator: nothing but the end of the rank
// that is Missing, or of this one, ends it early.
func (e *Engine) UntilLast(m *proto.Comm, c Condition) error {
	e.mu.Lock()
	op := e.take()
	e.watch(watch{op: op, comm: m, cond: c, last: true})
	e.act()
	e.mu.Unlock()
	e.Await(context.Background(), op)
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.give(op).Err
}

// Watch makes the task wait for a condition. Only Next and Stop call it, the latter for what outlives the
// communicator.
func (t *Task) Watch(c Condition) {
	op := t.engine.take()
	op.task = t
	t.pending++
	t.engine.watch(watch{op: op, comm: t.comm, cond: c, last: t.err != nil, sig: t.sig})
}

// watch begins to look at a condition, with mu held.
func (e *Engine) watch(w watch) {
	w.op.Owner = w.op
	e.watches = append(e.watches, w)
	if e.closed.Load() {
		e.endWatches(ErrClosed)
	}
}

// look ends the operations of conditions that are met, or never will be.
func (e *Engine) look() (ended int) {
	for i := 0; i < len(e.watches); {
		w := &e.watches[i]
		over, err := w.cond.Met(), error(nil)
		if !over {
			if err = w.hopeless(e.core); err != nil {
				over = true
				if w.cond.Met() { // its part came before its end
					err = nil
				}
			}
		}
		if !over {
			i++
			continue
		}
		op := w.op
		e.watches = slices.Delete(e.watches, i, i+1)
		op.Err = err
		e.finish(&op.Op)
		ended++
	}
	return ended
}

// remind tells the ranks that collectives have been waiting for, in case they are in others. mu is held.
func (e *Engine) remind() {
	if e.closed.Load() {
		return
	}
	e.core.Remind()
	for i := range e.watches {
		if w := &e.watches[i]; !w.last && w.waits.Over() && !w.cond.Met() {
			e.core.TellAwaited(w.comm, int32(w.cond.Missing()), &w.sig)
		}
	}
	e.act()
}

// hopeless returns why a condition will not be met, if that is known.
func (w *watch) hopeless(core *proto.Core) error {
	if !w.last {
		if err := w.comm.Err(); err != nil {
			return err
		}
	}
	return core.Gone(int(w.comm.Members()[w.cond.Missing()]))
}

// met tells whether some condition is.
func (e *Engine) met() bool {
	for i := range e.watches {
		if e.watches[i].cond.Met() {
			return true
		}
	}
	return false
}

// unwatchOp withdraws a watch, and reports whether op is one.
func (e *Engine) unwatchOp(op *Op) bool {
	for i := range e.watches {
		if e.watches[i].op == op {
			e.watches = slices.Delete(e.watches, i, i+1)
			op.Err = proto.ErrCanceled
			e.finish(&op.Op)
			return true
		}
	}
	return false
}

// endWatches ends all with an error.
func (e *Engine) endWatches(err error) {
	for _, w := range e.watches {
		w.op.Err = err
		e.finish(&w.op.Op)
	}
	clear(e.watches)
	e.watches = e.watches[:0]
}
