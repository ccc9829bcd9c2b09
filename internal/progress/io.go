package progress

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/pause"
)

// The I/O goroutine looks at the poller's role once a tick. The tick starts at
// Policy.Tick and grows while user goroutines hold the role, or nothing happens.
const (
	maxTick = 20 * time.Millisecond

	// ioPolls is how often the I/O goroutine polls in vain before it sleeps:
	// it shares a core with the computation.
	ioPolls = 200

	// remindEvery is how often a rank looks whether a collective waits for long.
	remindEvery = 200 * time.Millisecond
)

type ioState struct {
	kick chan struct{}
	stop chan struct{}
	slow atomic.Bool // it sleeps for longer than Policy.Tick

	polled uint64 // what the program had polled at the last tick; the I/O goroutine's

	reminded time.Time // when it last looked; the I/O goroutine's
}

func (e *Engine) startIO() {
	e.io.kick = make(chan struct{}, 1)
	e.background.Go(e.runIO)
}

// needIO tells the I/O goroutine that there is work for it, so that it does
// not sleep out a long tick.
func (e *Engine) needIO() {
	if e.io.slow.Load() && e.role.Load() == roleFree {
		select {
		case e.io.kick <- struct{}{}:
		default:
		}
	}
}

func (e *Engine) runIO() {
	minTick := e.policy.Tick
	tick := minTick
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for {
		select {
		case <-e.io.stop:
			return
		case <-e.io.kick:
			tick = minTick
		case <-timer.C:
		}
		e.io.slow.Store(false)
		e.remindInTime()
		switch {
		case e.communicates():
			tick = minTick // the program polls when it waits
		case e.role.CompareAndSwap(roleFree, roleIO):
			e.driveIO()
			e.role.CompareAndSwap(roleIO, roleFree)
			e.passOn()
			tick = minTick
		default:
			tick = min(2*tick, maxTick)
		}
		timer.Reset(tick)
		e.io.slow.Store(tick > minTick)
	}
}

// remindInTime reminds every remindEvery, and later if the I/O goroutine sleeps. It does not wait for the lock, as
// communicates.
func (e *Engine) remindInTime() {
	if now := time.Now(); now.Sub(e.io.reminded) >= remindEvery && e.mu.TryLock() {
		e.io.reminded = now
		e.remind()
		e.mu.Unlock()
	}
}

// communicates tells whether the program has polled since it was last asked; what
// it only posts waits for somebody else to poll. It does not wait for the lock, which a large copy may hold for long: a
// waiter would be served next, and the program have to wait for its turn.
func (e *Engine) communicates() bool {
	if !e.mu.TryLock() {
		return true
	}
	polled := e.polled
	e.mu.Unlock()
	if polled == e.io.polled {
		return false
	}
	e.io.polled = polled
	return true
}

// driveIO polls, and sleeps in between, until the role is taken from it or the
// program goes back to communicating.
func (e *Engine) driveIO() {
	for idle := 0; e.role.Load() == roleIO && !e.stopped(); {
		switch {
		case e.communicates() && e.parked.Load() == 0:
			return
		case e.pollForAll():
			idle = 0
		case idle < ioPolls:
			idle++
			if !e.policy.NoPause {
				pause.Spin(1)
			}
		default:
			idle = 0
			if !e.arm(roleIO) {
				continue
			}
			if e.role.Load() == roleIO && !e.stopped() {
				e.snooze(maxSleep)
			}
			e.remindInTime()
			// A goroutine that took the role may have armed for itself.
			e.mu.Lock()
			if e.role.Load() == roleIO {
				e.disarm()
			}
			e.mu.Unlock()
		}
	}
}

func (e *Engine) pollForAll() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.poll() > 0
}

func (e *Engine) stopped() bool {
	select {
	case <-e.io.stop:
		return true
	default:
		return false
	}
}

// steal takes the poller's role from the I/O goroutine.
func (e *Engine) steal() bool {
	if !e.role.CompareAndSwap(roleIO, roleUser) {
		return false
	}
	if e.asleep.Load() {
		e.mu.Lock()
		e.disarm()
		e.mu.Unlock()
		e.wake()
	}
	return true
}

// Close stops the engine and closes its transports. What is still in progress, or
// comes later, ends with ErrClosed. Closing again does nothing.
func (e *Engine) Close() error {
	e.mu.Lock()
	if e.closed.Load() {
		e.mu.Unlock()
		return nil
	}
	e.closed.Store(true)
	e.accept()
	e.core.Shutdown(ErrClosed)
	e.endWatches(ErrClosed)
	e.endRemote(-1, ErrClosed)
	e.retryRemote()
	e.act()
	e.mu.Unlock()
	close(e.io.stop)
	e.wake()
	e.background.Wait()
	if e.unwatch != nil {
		e.unwatch()
	}
	var errs []error
	for _, t := range e.transports {
		errs = append(errs, t.Close())
	}
	return errors.Join(errs...)
}
