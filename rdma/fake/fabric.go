package fake

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/weft-hpc/weft/rdma"
)

// Options of a fabric.
type Options struct {
	Seed uint64
}

// Fabric is a set of cards that reach each other. It is an rdma.Provider for
// them. Its methods may be called from any goroutine.
type Fabric struct {
	mu     sync.Mutex
	rng    rand.PCG
	cards  []*Card
	ready  []*qp // have something to do now
	timed  []*qp // have something to do later
	held   bool
	idle   bool // the wire sleeps and must be told of work
	closed bool

	kick chan struct{}
	done chan struct{}
}

// New makes a fabric and starts its wire.
func New(opts Options) *Fabric {
	f := &Fabric{kick: make(chan struct{}, 1), done: make(chan struct{})}
	f.rng.Seed(opts.Seed, 0x9e3779b97f4a7c15)
	go f.wire()
	return f
}

// Name makes Fabric an rdma.Provider.
func (f *Fabric) Name() string { return "fake" }

// Devices makes Fabric an rdma.Provider.
func (f *Fabric) Devices() ([]rdma.DeviceInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.cards) == 0 {
		return nil, rdma.Explain(&rdma.Error{Op: rdma.OpListDevices}, rdma.Facts{})
	}
	var all []rdma.DeviceInfo
	for _, c := range f.cards {
		all = append(all, c.info())
	}
	return all, nil
}

// Open makes Fabric an rdma.Provider.
func (f *Fabric) Open(name string) (rdma.Device, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for _, c := range f.cards {
		if c.name == name {
			return c.open()
		}
		names = append(names, c.name)
	}
	return nil, rdma.Explain(&rdma.Error{Op: rdma.OpOpenDevice, Kind: rdma.ErrNoDevice}, rdma.Facts{Wanted: name, Known: names})
}

// Close ends the wire. It reports devices that are still open, with what is
// open on them.
func (f *Fabric) Close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return fmt.Errorf("fake: the fabric was closed twice: %w", rdma.ErrClosed)
	}
	f.closed = true
	var leaks []error
	for _, c := range f.cards {
		for _, d := range c.devices {
			leaks = append(leaks, fmt.Errorf("fake: %s was not closed, and has %v", c.name, d.count))
		}
	}
	f.wake()
	f.mu.Unlock()
	<-f.done
	return errors.Join(leaks...)
}

// Hold stops the wire: from now on only Step moves anything.
func (f *Fabric) Hold() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = true
}

// Resume lets the wire move things again.
func (f *Fabric) Resume() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = false
	f.wake()
}

// Step makes up to n moves and returns how many there were: fewer means that
// nothing is left to move, but for what waits for a timer.
func (f *Fabric) Step(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dueTimers()
	return f.steps(n)
}

// wire is the goroutine that moves things when nobody polls.
func (f *Fabric) wire() {
	defer close(f.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		f.mu.Lock()
		if f.closed {
			f.mu.Unlock()
			return
		}
		wait := time.Hour
		if !f.held {
			f.dueTimers()
			f.steps(stepsOfWire)
			wait = f.dueTimers() // those that the steps set, too
			if len(f.ready) > 0 {
				f.mu.Unlock() // others get their turn
				continue
			}
		}
		f.idle = true
		f.mu.Unlock()
		timer.Reset(wait)
		select {
		case <-f.kick:
		case <-timer.C:
			f.mu.Lock()
			f.idle = false
			f.mu.Unlock()
		}
	}
}

const (
	stepsOfWire = 64
	stepsOfPoll = 16
)

// wake tells the wire of work. The caller holds mu.
func (f *Fabric) wake() {
	if !f.idle {
		return
	}
	f.idle = false
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// steps moves up to n things, each of a queue pair drawn by chance.
func (f *Fabric) steps(n int) int {
	for done := range n {
		if len(f.ready) == 0 {
			return done
		}
		i := f.draw(len(f.ready))
		q := f.ready[i]
		last := len(f.ready) - 1
		f.ready[i] = f.ready[last]
		f.ready = f.ready[:last]
		q.queued = false
		q.step()
		f.schedule(q)
	}
	return n
}

// schedule puts q where its next move is found, and tells the wire.
func (f *Fabric) schedule(q *qp) {
	if q.queued || q.closed || q.card.fatal {
		return
	}
	if q.runnable() {
		q.queued = true
		f.ready = append(f.ready, q)
		if !f.held {
			f.wake()
		}
	}
}

// sleep lets q wait for d.
func (f *Fabric) sleep(q *qp, d time.Duration) {
	q.waiting, q.until = true, time.Now().Add(d)
	if !slices.Contains(f.timed, q) {
		f.timed = append(f.timed, q)
	}
	f.wake() // it may sleep for longer
}

// dueTimers ends the waits that are over, and returns how long the next one is.
func (f *Fabric) dueTimers() time.Duration {
	next := time.Hour
	if len(f.timed) == 0 {
		return next
	}
	now := time.Now()
	rest := f.timed[:0]
	for _, q := range f.timed {
		left := q.until.Sub(now)
		switch {
		case q.closed || !q.waiting:
		case left <= 0:
			q.waiting = false
			f.schedule(q)
		default:
			rest = append(rest, q)
			next = min(next, left)
		}
	}
	clear(f.timed[len(rest):])
	f.timed = rest
	return next
}

// forget takes q out of everything.
func (f *Fabric) forget(q *qp) {
	is := func(x *qp) bool { return x == q }
	f.ready = slices.DeleteFunc(f.ready, is)
	f.timed = slices.DeleteFunc(f.timed, is)
	q.queued = false
}

// draw returns a number below n.
func (f *Fabric) draw(n int) int {
	if n == 1 {
		return 0
	}
	return int(f.rng.Uint64() % uint64(n))
}
