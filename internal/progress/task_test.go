package progress

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/proto"
	"github.com/weft-hpc/weft/internal/transport/sim"
	"github.com/weft-hpc/weft/internal/wire"
)

// waitFor is a task that ends when a flag is set.
type waitFor struct {
	*flag
	next, stopped int
}

func (w *waitFor) Next(t *Task) (bool, error) {
	w.next++
	if !w.Met() {
		t.Watch(w.flag)
		return false, nil
	}
	return true, nil
}

func (w *waitFor) Stop(*Task) { w.stopped++ }

// offered is a task of rank 0 that the engine has been offered.
type offered struct {
	rank *rank
	task Task
	op   Op
	waitFor
}

func offer(t *testing.T, r *rank, seq uint32) *offered {
	t.Helper()
	o := &offered{rank: r, waitFor: waitFor{flag: &flag{missing: 1}}}
	r.OfferTask(&o.task, r.comm, wire.Signature{Op: 1, Seq: seq}, &o.waitFor, &o.op)
	return o
}

// mine takes the task back, which nobody has begun.
func (o *offered) mine(t *testing.T) {
	t.Helper()
	if !o.rank.TakeBack(&o.task) {
		t.Fatal("the engine has begun a task though nobody polled")
	}
	if o.rank.TakeBack(&o.task) {
		t.Fatal("a task is taken back twice")
	}
}

func (o *offered) ends(t *testing.T, want error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if !o.rank.Await(ctx, &o.op) {
		t.Fatal("the task does not end")
	}
	if !errors.Is(o.op.Err, want) {
		t.Errorf("the task ended with %v, not %v", o.op.Err, want)
	}
	if o.rank.Active(&o.task) {
		t.Error("a task that is over is active")
	}
}

// idle is a policy whose I/O goroutine leaves a test alone.
var idle = Policy{Polls: 10, Yields: 1, Yield: func() {}, Tick: time.Hour}

// A task that was offered belongs to one owner at a time, and ends once.
func TestOfferTask(t *testing.T) {
	for name, fn := range map[string]func(*testing.T, *rank){
		"taken back": func(t *testing.T, r *rank) {
			o := offer(t, r, 1)
			o.mine(t)
			if !r.Active(&o.task) {
				t.Error("a task that is held is not active")
			}
			r.EndTask(&o.task)
			o.ends(t, nil)
			if o.next != 0 {
				t.Errorf("the engine advanced it %d times", o.next)
			}
		},
		"taken back and handed over": func(t *testing.T, r *rank) {
			o := offer(t, r, 1)
			o.mine(t)
			r.HandOver(&o.task)
			o.set.Store(true)
			o.ends(t, nil)
		},
		"begun by a poll": func(t *testing.T, r *rank) {
			o := offer(t, r, 1)
			r.Poll()
			if o.next != 1 || r.TakeBack(&o.task) {
				t.Errorf("after a poll: advanced %d times", o.next)
			}
			o.set.Store(true)
			o.ends(t, nil)
		},
		"a second one": func(t *testing.T, r *rank) {
			o, p := offer(t, r, 1), offer(t, r, 2)
			if r.TakeBack(&p.task) {
				t.Error("two tasks are offered at once")
			}
			p.set.Store(true)
			p.ends(t, nil) // and the wait for it begins the first
			o.set.Store(true)
			o.ends(t, nil)
		},
		"aborted while offered": func(t *testing.T, r *rank) {
			o := offer(t, r, 1)
			why := errors.New("no more")
			r.Abort(&o.task, why)
			o.ends(t, why)
			if o.stopped == 0 || r.Usable(r.comm) == nil {
				t.Errorf("stopped %d times, communicator usable: %v", o.stopped, r.Usable(r.comm))
			}
		},
		"aborted while held": func(t *testing.T, r *rank) {
			o := offer(t, r, 1)
			o.mine(t)
			why := errors.New("no more")
			r.Abort(&o.task, why)
			if o.op.Finished() {
				t.Fatal("a task that is held was ended")
			}
			r.HandOver(&o.task)
			o.ends(t, why)
		},
		"done before the abort": func(t *testing.T, r *rank) {
			o := offer(t, r, 1)
			o.mine(t)
			r.Abort(&o.task, errors.New("no more"))
			r.EndTask(&o.task)
			o.ends(t, nil)
			if err := r.Usable(r.comm); err != nil {
				t.Errorf("usable: %v", err)
			}
		},
		"engine closed": func(t *testing.T, r *rank) {
			o := offer(t, r, 1)
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			o.ends(t, ErrClosed)
			o = offer(t, r, 2)
			o.ends(t, ErrClosed)
		},
		"communicator revoked": func(t *testing.T, r *rank) {
			o := offer(t, r, 1)
			why := &proto.RevokedError{Reason: "no more"}
			r.Do(func(c *proto.Core) { c.Revoke(r.comm, why, "no more") })
			o.ends(t, why)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ranks, _ := world(t, 2, idle, sim.Config{})
			fn(t, ranks[0])
		})
	}
}

// A task that is offered while the poller sleeps, or falls asleep, does not wait for the end of its sleep: a few
// hundred of those would take a minute.
func TestOfferTaskToSleeper(t *testing.T) {
	ranks, _ := world(t, 2, idle, sim.Config{})
	r := ranks[0]
	var sleeper sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer sleeper.Wait()
	defer cancel()
	other := offer(t, r, 1)
	sleeper.Go(func() { r.Await(ctx, &other.op) })
	end := time.Now().Add(20 * time.Second)
	for seq := uint32(2); seq < 300; seq++ {
		o := offer(t, r, seq)
		for begun := false; !begun; {
			r.mu.Lock()
			begun = o.next > 0
			r.mu.Unlock()
			if time.Now().After(end) {
				t.Fatalf("nobody begins task %d", seq)
			}
		}
		o.set.Store(true)
		r.wake()
		for !o.op.Finished() {
			if time.Now().After(end) {
				t.Fatalf("task %d does not end", seq)
			}
		}
		time.Sleep(time.Duration(seq%7) * 10 * time.Microsecond)
	}
}
