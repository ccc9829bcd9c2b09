package weft

import (
	"context"
	"sync"

	"github.com/weft-hpc/weft/internal/progress"
)

// opQueue holds what this rank has under way to one target of a window: a bounded number of
// operations, in the order in which they started. They are waited for in that order.
type opQueue struct {
	turn chan struct{} // full while a goroutine waits for the oldest; only that one removes

	mu         sync.Mutex
	slots      []opSlot // a ring, made on first use
	head, tail uint64
	err        error // the first since the last Flush
	stray      []*atomicSlot
	free       []*atomicSlot

	puts, flushed uint64 // for windows over messages: puts started, and those known to be there
}

// opSlot is an operation and what it refers to.
type opSlot struct {
	op   progress.Op
	buf  []byte        // the user's, kept alive
	own  []byte        // the slot's own, for requests
	note progress.Call // behind a put
}

// atomicSlot is an atomic operation that its caller waits for.
type atomicSlot struct {
	op   progress.Op // brings the result
	sent progress.Op // the request, where one is sent
	own  []byte
}

// queueDepth is how many operations may be under way to one target.
const queueDepth = 64

func newOpQueues(n int) []opQueue {
	all := make([]opQueue, n)
	for i := range all {
		all[i].turn = make(chan struct{}, 1)
	}
	return all
}

// room returns with mu held when n more operations can start. On an error mu is not held.
func (q *opQueue) room(ctx context.Context, e *progress.Engine, n int) error {
	for {
		q.mu.Lock()
		if q.slots == nil {
			q.slots = make([]opSlot, queueDepth)
		}
		over := q.tail - q.head + uint64(n)
		if over <= queueDepth {
			return nil
		}
		end := q.head + over - queueDepth
		q.mu.Unlock()
		if err := q.wait(ctx, e, end); err != nil {
			return err
		}
	}
}

// push returns the next free slot, with mu held and room asked for.
func (q *opQueue) push() *opSlot {
	s := &q.slots[q.tail%queueDepth]
	q.tail++
	return s
}

// all returns the position after the last operation.
func (q *opQueue) all() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.tail
}

// wait returns when the operations before a position are over. If ctx ends first, it is errStillOn.
func (q *opQueue) wait(ctx context.Context, e *progress.Engine, end uint64) error {
	select {
	case q.turn <- struct{}{}:
	case <-ctx.Done():
		return errStillOn
	}
	defer func() { <-q.turn }()
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.reap(); q.head < end; q.reap() {
		op := &q.slots[q.head%queueDepth].op
		q.mu.Unlock()
		done := e.Await(ctx, op)
		q.mu.Lock()
		if !done {
			return errStillOn
		}
	}
	return nil
}

// reap removes the oldest operations that are over, with mu held and the turn taken.
func (q *opQueue) reap() {
	for q.head < q.tail {
		s := &q.slots[q.head%queueDepth]
		if !s.op.Finished() {
			return
		}
		if s.op.Err != nil && q.err == nil {
			q.err = s.op.Err
		}
		s.op.Recycle()
		s.buf = nil
		q.head++
	}
}

// drain waits for all operations that have started, and returns the first error.
func (q *opQueue) drain(ctx context.Context, e *progress.Engine) error {
	if err := q.wait(ctx, e, q.all()); err != nil {
		return err
	}
	for {
		q.mu.Lock()
		n := len(q.stray)
		if n == 0 {
			err := q.err
			q.err = nil
			q.mu.Unlock()
			return err
		}
		a := q.stray[n-1]
		q.stray = q.stray[:n-1]
		q.mu.Unlock()
		if !a.wait(ctx, e) {
			q.mu.Lock()
			q.stray = append(q.stray, a)
			q.mu.Unlock()
			return errStillOn
		}
		q.giveAtomic(a)
	}
}

// takeAtomic returns an atomicSlot to start.
func (q *opQueue) takeAtomic() *atomicSlot {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.free)
	if n == 0 {
		return new(atomicSlot)
	}
	a := q.free[n-1]
	q.free = q.free[:n-1]
	return a
}

func (q *opQueue) giveAtomic(a *atomicSlot) {
	a.op.Recycle()
	a.sent.Recycle()
	q.mu.Lock()
	q.free = append(q.free, a)
	q.mu.Unlock()
}

// finishAtomic waits for an atomicSlot; if ctx ends first, drain waits for it later.
func (q *opQueue) finishAtomic(ctx context.Context, e *progress.Engine, a *atomicSlot) error {
	if a.wait(ctx, e) {
		return a.op.Err
	}
	q.mu.Lock()
	q.stray = append(q.stray, a)
	q.mu.Unlock()
	return errStillOn
}

// wait waits for both operations of an atomic, and reports whether they are over.
func (a *atomicSlot) wait(ctx context.Context, e *progress.Engine) bool {
	return e.Await(ctx, &a.op) && (a.sent.Owner == nil || e.Await(ctx, &a.sent))
}
