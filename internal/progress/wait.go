package progress

import (
	"context"
	"runtime"
	"slices"
	"time"

	"github.com/weft-hpc/weft/internal/pause"
)

// Wait waits until op is done. When ctx ends first, op is withdrawn if it can
// be, and Wait returns when op is done either way. The result is in op.Err.
func (e *Engine) Wait(ctx context.Context, op *Op) {
	if e.Await(ctx, op) {
		return
	}
	e.Cancel(op)
	// A matched transfer ends by itself.
	e.Await(context.Background(), op)
}

// Await waits until op is done or ctx ends, and reports whether op is done.
func (e *Engine) Await(ctx context.Context, op *Op) bool {
	for !op.Finished() {
		if ctx.Err() != nil {
			return false
		}
		if e.role.CompareAndSwap(roleFree, roleUser) || e.steal() {
			e.drive(ctx, op)
			e.release()
		} else {
			e.park(ctx, op)
			e.passOn()
		}
	}
	return true
}

// release gives the poller's role up.
func (e *Engine) release() {
	e.role.Store(roleFree)
	e.passOn()
}

// passOn gives the poller's role to a parked goroutine, if nobody has it.
func (e *Engine) passOn() {
	if e.parked.Load() == 0 || e.role.Load() != roleFree {
		return
	}
	e.mu.Lock()
	if len(e.parking) > 0 {
		select {
		case e.parking[0].notify <- struct{}{}:
		default:
		}
	}
	e.mu.Unlock()
}

// park waits until op is done, the poller's role is passed on, or ctx ends.
func (e *Engine) park(ctx context.Context, op *Op) {
	e.mu.Lock()
	if op.Finished() {
		e.mu.Unlock()
		return
	}
	if op.notify == nil {
		op.notify = make(chan struct{}, 1)
	}
	op.parked++
	e.parking = append(e.parking, op)
	e.parked.Add(1)
	e.mu.Unlock()

	if e.role.Load() != roleFree { // else it was given up before this goroutine was seen
		select {
		case <-op.notify:
		case <-ctx.Done():
		}
	}

	e.mu.Lock()
	op.parked--
	i := slices.Index(e.parking, op)
	e.parking = slices.Delete(e.parking, i, i+1)
	e.parked.Add(-1)
	select {
	case <-op.notify:
	default:
	}
	if op.parked > 0 && op.Finished() { // one note wakes one of them
		op.notify <- struct{}{}
	}
	e.mu.Unlock()
}

// drive polls until op is done or ctx ends.
func (e *Engine) drive(ctx context.Context, op *Op) {
	for !e.spin(ctx.Done(), op) {
		for range e.policy.Yields {
			e.policy.Yield()
			e.Poll()
			if op.Finished() {
				return
			}
		}
		if e.sleep(ctx, op); op.Finished() || ctx.Err() != nil {
			return
		}
	}
}

// burst is how many polls share one hold of the lock: the lock costs as much as
// a poll, and its other users can wait for half a microsecond.
const burst = 8

// pollBurst polls until something happens, n times at most, with mu held.
func (e *Engine) pollBurst(op *Op, n int) (busy bool) {
	e.polled++
	for ; n > 0; n-- {
		if e.poll() > 0 || op.Finished() {
			return true
		}
		if !e.policy.NoPause {
			pause.Spin(1)
		}
	}
	return false
}

// spin polls for the policy's time. It returns true when the wait is over.
func (e *Engine) spin(ctxDone <-chan struct{}, op *Op) bool {
	var end time.Time
	for polls := e.policy.Polls; ; polls -= burst {
		e.mu.Lock()
		busy := e.pollBurst(op, min(burst, polls))
		turn := e.turns(1)
		e.mu.Unlock()
		if op.Finished() {
			return true
		}
		if turn {
			runtime.Gosched()
		}
		if polls > burst {
			continue
		}
		polls = e.policy.Polls + burst
		if ctxDone != nil {
			select {
			case <-ctxDone:
				return true
			default:
			}
		}
		if e.policy.Spin == 0 {
			return false
		}
		switch now := time.Now(); {
		case busy || end.IsZero():
			end = now.Add(e.policy.Spin)
		case now.After(end):
			return false
		}
	}
}

// turns tells, with mu held, whether it is time to go through the Go scheduler. effort is
// roughly what was done since the last call: a burst of polls or a frame counts 1, and so does a KiB.
func (e *Engine) turns(effort int) bool {
	if e.policy.Turn == 0 {
		return false
	}
	if e.effort += effort; e.effort < turnEvery {
		return false
	}
	e.effort = 0
	now := time.Now()
	if now.Sub(e.turned) < e.policy.Turn {
		return false
	}
	e.turned = now
	return true
}

// turnEvery is how much effort shares one look at the clock for Policy.Turn.
const turnEvery = 64

// maxSleep bounds a sleep, in case a wake-up is lost to a peer's death.
const maxSleep = 200 * time.Millisecond

// sleep sleeps until a peer wakes this rank, ctx ends, or maxSleep has passed.
func (e *Engine) sleep(ctx context.Context, op *Op) {
	e.wakeAtEndOf(ctx)
	if !e.arm(roleUser) {
		return
	}
	if !op.Finished() && ctx.Err() == nil {
		e.snooze(maxSleep)
	}
	e.mu.Lock()
	e.disarm()
	e.poll()
	e.mu.Unlock()
}

// wakeAtEndOf has the end of ctx end the poller's sleep. Waits mostly come with
// the same context as the one before, so what was set up for that stays; a
// wake-up too many does no harm. Only the poller calls it.
func (e *Engine) wakeAtEndOf(ctx context.Context) {
	if ctx.Done() == nil || e.watched == ctx.Done() {
		return
	}
	if e.unwatch != nil {
		e.unwatch()
	}
	e.watched, e.unwatch = ctx.Done(), context.AfterFunc(ctx, e.wake)
}

// arm prepares a sleep of the goroutine with the given role, unless there is
// something to do first, or the role is another's by now.
func (e *Engine) arm(role int32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed.Load() {
		return false
	}
	e.asleep.Store(true)
	if e.role.Load() != role {
		e.asleep.Store(false)
		return false
	}
	for i, t := range e.transports {
		if !t.Arm() {
			for _, armed := range e.transports[:i] {
				armed.Disarm()
			}
			e.asleep.Store(false)
			return false
		}
	}
	if e.met() || e.offered.Load() != nil { // it came before the transports were armed
		e.disarm()
		return false
	}
	return true
}

// disarm takes arm back, with mu held.
func (e *Engine) disarm() {
	e.asleep.Store(false)
	if e.closed.Load() {
		return
	}
	for _, t := range e.transports {
		t.Disarm()
	}
}

// snooze sleeps in all transports at once: in the first itself, and in each
// other by its sleeper, which wakes the first.
func (e *Engine) snooze(d time.Duration) {
	for _, start := range e.sleepers {
		select {
		case start <- struct{}{}:
		default: // it still sleeps from the last time
		}
	}
	e.transports[0].Wait(d)
}

func (e *Engine) startSleepers() {
	for _, t := range e.transports[1:] {
		start := make(chan struct{}, 1)
		e.sleepers = append(e.sleepers, start)
		e.background.Go(func() {
			for {
				select {
				case <-start:
				case <-e.io.stop:
					return
				}
				t.Wait(maxSleep)
				e.transports[0].Wake()
			}
		})
	}
}
