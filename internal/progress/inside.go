package progress

import "github.com/weft-hpc/weft/internal/proto"

// Handler does something when an operation is over, in the call of whichever goroutine
// polls: nobody has to wait for it, and no other goroutine has to be woken. It runs with the
// engine's lock held, so it is brief, does not wait, and uses the engine only as Inside.
type Handler interface {
	Handle(in Inside)
}

// Inside is the engine for those who hold its lock.
type Inside struct{ e *Engine }

// Inside runs f with the lock held, and then carries out what came of it.
func (e *Engine) Inside(f func(in Inside)) {
	e.mu.Lock()
	f(Inside{e})
	e.act()
	e.mu.Unlock()
	e.needIO()
}

// Post begins an operation of the caller's whose end h is told of. Then op may be recycled, and posted
// again. Nobody else may wait for it.
func (in Inside) Post(op *Op, c *Call, h Handler) {
	op.handler = h
	in.e.begin(op, c)
}

// Cancel withdraws an operation that has not matched. Its Handler is told all the same.
func (in Inside) Cancel(op *Op) { in.e.core.Cancel(&op.Op) }

// Complete finishes an operation that was never posted: one that others wait for like any other.
func (in Inside) Complete(op *Op, err error) {
	op.Owner, op.Err = op, err
	in.e.finish(&op.Op)
}

// Revoke ends a communicator with an error, here and on its other ranks.
func (in Inside) Revoke(m *proto.Comm, err error) { in.e.core.Revoke(m, err, err.Error()) }

// handle tells the Handlers of operations that are over.
func (e *Engine) handle() {
	for i := 0; i < len(e.handled); i++ { // it may grow on the way
		e.handled[i].handler.Handle(Inside{e})
	}
	clear(e.handled)
	e.handled = e.handled[:0]
}
