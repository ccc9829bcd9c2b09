package verbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

const (
	// tendEvery is how often who polls looks at what would end a Wait, with a system call.
	tendEvery = time.Millisecond
	// tickEvery is how often the clock is acted upon.
	tickEvery = 100 * time.Millisecond
)

// openWaiting makes what Wait sleeps on.
func (t *Transport) openWaiting() (err error) {
	w := &t.wake
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("verbs: epoll: %w", err)
	}
	if w.fd, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return fmt.Errorf("verbs: eventfd: %w", err)
	}
	watch := func(fd int, due uint32) { // what is due then is in Fd of the event's data
		ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(due)}
		if e := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &ev); e != nil && err == nil {
			err = fmt.Errorf("verbs: epoll: %w", e)
		}
	}
	watch(w.fd, 0)
	watch(t.link.FD(), dueLink)
	for _, r := range t.rails {
		watch(r.channel.FD(), dueNotice)
		watch(r.dev.EventFD(), dueEvents)
	}
	return err
}

func (t *Transport) closeFiles() error {
	var errs []error
	for _, fd := range []*int{&t.wake.fd, &t.wake.epoll} {
		if *fd >= 0 {
			errs = append(errs, unix.Close(*fd))
			*fd = -1
		}
	}
	return errors.Join(errs...)
}

// Arm implements transport.Transport: poll, arm, poll again.
func (t *Transport) Arm() bool {
	if len(t.refill) > 0 {
		t.postRefill()
	}
	if len(t.kept)+len(t.reports)+len(t.doomed)+len(t.lost) > 0 || t.due.Load()&^dueClock != 0 {
		return false
	}
	if len(t.owing) > 0 {
		t.payDebts()
	}
	if !t.linkSettled() {
		t.due.Or(dueLink)
		return false
	}
	for _, r := range t.rails {
		if r.dead != nil {
			continue
		}
		if err := r.cq.Arm(false); err != nil {
			t.railDead(r, err)
			return false
		}
		if t.pollCQ(r, nil) > 0 {
			return false
		}
	}
	return true
}

// Disarm implements transport.Transport. A CQ that is armed stays so until its next completion: at
// worst it ends a Wait early.
func (t *Transport) Disarm() { t.link.Disarm() }

// wake ends Waits by way of an eventfd in their epoll, which is readable until the last of
// those that were asleep is on its way. Whoever comes meanwhile waits for that, so that it does not
// take the others' wake-up for its own.
type wake struct {
	mu      sync.Mutex
	change  sync.Cond
	epoll   int
	fd      int
	gen     uint64 // number of Wakes
	waiters int    // asleep
	leaving int    // of them, those that a Wake ends
	pending bool   // a Wake came when nobody was asleep
	closed  bool
}

func (w *wake) init() { w.epoll, w.fd, w.change.L = -1, -1, &w.mu }

// enter reports whether the caller may go to sleep; it calls leave then.
func (w *wake) enter() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for gen := w.gen; w.leaving > 0; w.change.Wait() {
		if w.gen != gen {
			return false
		}
	}
	if w.pending || w.closed {
		w.pending = false
		return false
	}
	w.waiters++
	return true
}

func (w *wake) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiters--
	if w.leaving == 0 {
		return
	}
	if w.leaving--; w.leaving == 0 {
		var b [8]byte
		_, _ = unix.Read(w.fd, b[:])
		w.change.Broadcast()
	}
}

func (w *wake) signal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gen++
	switch {
	case w.leaving > 0: // they end by the Wake before
		w.change.Broadcast()
	case w.waiters == 0:
		w.pending = true
	default:
		w.leaving = w.waiters
		var b [8]byte
		binary.NativeEndian.PutUint64(b[:], 1)
		_, _ = unix.Write(w.fd, b[:]) // cannot be full: it is read between writes
	}
}

// shut ends all Waits, for good.
func (w *wake) shut() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.signal()
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.waiters > 0 {
		w.change.Wait()
	}
}

// Wait implements transport.Transport.
func (t *Transport) Wait(d time.Duration) {
	if d <= 0 || !t.wake.enter() {
		return
	}
	defer t.wake.leave()
	d = min(d, t.tune.nap)
	t.due.Or(t.watched(int((d + time.Millisecond - 1) / time.Millisecond)))
}

// watched tells what is due by the files, for the first of which it waits for ms milliseconds at most.
func (t *Transport) watched(ms int) (due uint32) {
	var events [2*maxRails + 2]unix.EpollEvent
	n, err := unix.EpollWait(t.wake.epoll, events[:], ms) // an error is an early return
	if n == 0 && err == nil {
		return dueClock
	}
	for i := range max(n, 0) {
		due |= uint32(events[i].Fd)
	}
	return due
}

// linkSettled tells whether all that the link has to do makes its FD readable.
func (t *Transport) linkSettled() bool {
	if t.linkUsed && t.link.Arm() {
		t.linkUsed = false
	}
	return !t.linkUsed
}

// Wake implements transport.Transport.
func (t *Transport) Wake() { t.wake.signal() }

// MarkDown implements transport.Transport.
func (t *Transport) MarkDown(peer int, err error) {
	t.mu.Lock()
	t.marks = append(t.marks, mark{peer, fmt.Errorf("verbs: %s has ended: %w", t.who(peer), err)})
	t.mu.Unlock()
	t.due.Or(dueJobs)
	t.Wake()
}

// result is a job that has ended.
type result struct {
	then func(error)
	err  error
}

// background runs what may take long, and then has Poll call then.
func (t *Transport) background(work func() error, then func(error)) {
	t.jobs.Go(func() {
		err := work()
		t.mu.Lock()
		t.results = append(t.results, result{then, err})
		t.mu.Unlock()
		t.due.Or(dueJobs)
		t.Wake()
	})
}

func (t *Transport) takeResults() int {
	t.mu.Lock()
	results, marks := t.results, t.marks
	t.results, t.marks = nil, nil
	t.mu.Unlock()
	for _, r := range results {
		r.then(r.err)
	}
	for _, m := range marks {
		t.condemn(m.rank, m.err)
	}
	return len(results) + len(marks)
}

// tend looks after everything but completions: what is due, and every tendEvery also what the files tell.
func (t *Transport) tend() int {
	due := t.due.Swap(0)
	now := time.Now()
	if now.Sub(t.tended) >= tendEvery {
		t.tended = now
		due |= dueClock | t.watched(0)
		if !t.linkSettled() {
			due |= dueLink
		}
	}
	n := 0
	if due&dueJobs != 0 {
		n += t.takeResults()
	}
	if due&dueLink != 0 {
		n += t.pollLink()
	}
	for _, r := range t.rails {
		if due&dueNotice != 0 && r.dead == nil {
			// There is one for each time that the CQ was armed.
			if _, _, err := r.channel.Next(); err != nil {
				t.railDead(r, err)
			}
		}
		if due&dueEvents != 0 {
			n += t.events(r)
		}
	}
	if due&dueClock != 0 && now.Sub(t.ticked) >= tickEvery {
		t.ticked = now
		t.tick(now)
	}
	return n
}

// events takes the events of a device.
func (t *Transport) events(r *rail) int {
	n := 0
	for r.dead == nil {
		e, more, err := r.dev.NextEvent()
		if err != nil {
			t.railDead(r, err)
			return n + 1
		}
		if !more {
			break
		}
		t.event(r, e)
		n++
	}
	return n
}

// tick does what time asks for.
func (t *Transport) tick(now time.Time) {
	if t.draining > 0 {
		for _, e := range t.eps {
			if e != nil && e.state == epDraining {
				if e.patience--; e.patience < 0 {
					t.notice("verbs: rank %d: the connection with %s did not drain in %v", t.cfg.Rank, t.who(e.conn.peer), t.tune.drain)
					t.drained(e)
				}
			}
		}
	}
	if now.Sub(t.beat) < t.tune.keepAlive {
		return
	}
	t.beat = now
	for _, e := range t.eps {
		if e == nil || e.state != epReady || e.conn.state != connUp {
			continue
		}
		if e.lastHead == e.head && e.unsignaled == e.used() && e.room() > 0 {
			t.ping(e, workPlain)
			t.stats.KeepAlives++
		}
		e.lastHead = e.head
	}
}

// pollLink moves the messages of the link and handles those that came.
func (t *Transport) pollLink() int {
	n := t.readLink()
	if len(t.letters) > 0 {
		n += t.postLetters()
	}
	for len(t.inbox) > 0 {
		l := t.inbox[0]
		t.inbox = t.inbox[1:]
		t.heard(l.peer, l.b)
	}
	return n
}

// readLink takes what the link has. Nothing is done about it yet, but that peers whose
// processes are gone are condemned.
func (t *Transport) readLink() int {
	t.linkUsed = true
	n := t.link.Poll(linkSink{t})
	t.link.Wait(0) // takes a Wake back, which would keep its FD readable
	return n
}

// linkSink is what the link reports to.
type linkSink struct{ t *Transport }

var _ transport.Sink = linkSink{}

func (s linkSink) Frame(peer int, _ *wire.Header, payload []byte) {
	s.t.inbox = append(s.t.inbox, letter{peer, bytes.Clone(payload)})
}
func (s linkSink) Dest(int, *wire.Header, int) []byte { return nil }
func (s linkSink) Landed(int, *wire.Header)           {}
func (s linkSink) Sent(int, uint32)                   {}
func (s linkSink) PeerDown(peer int, err error) {
	s.t.condemn(peer, fmt.Errorf("verbs: %s: %w", s.t.who(peer), err))
}
