package shm

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"
)

// bellUsers keeps the mapping alive for those who call at any time, Wait, Wake
// and MarkDown, while Close runs.
type bellUsers struct {
	n      atomic.Int32
	closed atomic.Bool
	seen   atomic.Uint32 // the bell's value at the end of the last Wait
}

func (u *bellUsers) enter() bool {
	u.n.Add(1)
	if u.closed.Load() {
		u.n.Add(-1)
		return false
	}
	return true
}

func (u *bellUsers) leave() { u.n.Add(-1) }

// close keeps new users out and wakes the others until they have left. Whoever
// comes in after a wake sees closed, so one round is normally enough.
func (u *bellUsers) close(wake func()) {
	u.closed.Store(true)
	for i := 0; u.n.Load() > 0; i++ {
		wake()
		if i < 100 {
			runtime.Gosched()
		} else {
			time.Sleep(time.Millisecond)
		}
	}
}

// ring wakes the rank at index i, whether it is armed or not.
func (t *Transport) ring(i int) {
	bell := at32(t.seg.mem, t.seg.block(i)+offBell)
	bell.Add(1)
	wakeAll(bell)
}

// nudge wakes the rank at index i if it sleeps. It is called after a store that
// the rank should see.
func (t *Transport) nudge(i int, armed *atomic.Uint32) {
	if armed.Load() != 0 && armed.Swap(0) != 0 {
		t.ring(i)
	}
}

// wake is Wake for one who has entered.
func (t *Transport) wake() { t.ring(t.self) }

// Wake ends the current Waits, or the next one.
func (t *Transport) Wake() {
	if t.users.enter() {
		t.wake()
		t.users.leave()
	}
}

// Wait sleeps on the doorbell, unless it has rung since the last Wait ended.
func (t *Transport) Wait(d time.Duration) {
	if d <= 0 || !t.users.enter() {
		return
	}
	if seen := t.users.seen.Load(); t.bell.Load() == seen {
		sleepOn(t.bell, seen, d)
	}
	t.users.seen.Store(t.bell.Load())
	t.users.leave()
}

// Arm makes peers ring the doorbell from now on, unless there is something to
// do already.
func (t *Transport) Arm() bool {
	if t.ready() {
		return false
	}
	t.armed.Store(1)
	if t.ready() {
		t.armed.Store(0)
		return false
	}
	return true
}

// Disarm takes Arm back.
func (t *Transport) Disarm() {
	if t.armed.Load() != 0 {
		t.armed.Store(0)
	}
}

// ready says whether a Poll would find something or a Send would find room.
func (t *Transport) ready() bool {
	if t.attention.Load() != t.attended || len(t.sent)+len(t.errs)+len(t.helping) > 0 {
		return true
	}
	for _, l := range t.active {
		if l.ready() {
			return true
		}
	}
	for _, b := range t.bulks {
		if b.ready() {
			return true
		}
	}
	for i, o := range t.blocked {
		if o.tail.Load() != o.free {
			o.waits = false // said once; the next ErrAgain says it again
			t.blocked = remove(t.blocked, i)
			return true
		}
	}
	return false
}

func lowest(set uint32) int { return bits.TrailingZeros32(set) }
