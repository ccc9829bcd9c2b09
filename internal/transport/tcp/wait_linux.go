package tcp

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/transport"
)

// What an event of epoll is about: in Pad of its data. Fd is a rank for
// peerEvent, an index of pre for handshakeEvent.
const (
	peerEvent int32 = iota
	handshakeEvent
	listenerEvent
	timerEvent
	wakeEvent
)

func (t *Transport) watch(op, fd int, events uint32, about int32, which int) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(which), Pad: about}
	if err := unix.EpollCtl(t.epoll, op, fd, &ev); err != nil {
		return fmt.Errorf("tcp: epoll: %w", err)
	}
	return nil
}

// handleEvents does what epoll says is ready.
func (t *Transport) handleEvents(s transport.Sink) int {
	t.ahead = false
	n := 0
	for _, ev := range t.events[:ready(t.epoll, t.events[:])] {
		switch ev.Pad {
		case peerEvent:
			if p := t.peers[ev.Fd]; p.state == up {
				n += t.service(p, s)
			}
		case handshakeEvent:
			if c := t.pre[ev.Fd]; c != nil {
				n += t.advance(c)
			}
		case listenerEvent:
			t.accept()
		case timerEvent:
			t.tick()
		}
	}
	return n
}

// setTicking starts or stops the timer, as there is something to watch or not.
func (t *Transport) setTicking() {
	want := len(t.up)+t.inPre+t.expect > 0 || t.deaf
	if want == t.ticking {
		return
	}
	t.ticking = want
	var spec unix.ItimerSpec
	if want {
		spec.Interval = unix.NsecToTimespec(int64(t.cfg.tick))
		spec.Value = spec.Interval
	}
	if err := unix.TimerfdSettime(t.timer, 0, &spec, nil); err != nil {
		panic(fmt.Sprintf("tcp: timerfd_settime: %v", err)) // its arguments are constant
	}
}

// tick is called about once a second. It counts calls and reads no clock, so
// that a process that was stopped for an hour does not find everybody late.
func (t *Transport) tick() {
	var b [8]byte
	if n, err := unix.Read(t.timer, b[:]); n != 8 || err != nil {
		return
	}
	if t.deaf {
		t.deaf = false
		if err := t.watch(unix.EPOLL_CTL_MOD, t.listener, unix.EPOLLIN, listenerEvent, 0); err != nil {
			t.notice("tcp: rank %d accepts no more connections: %v", t.cfg.Rank, err)
		}
	}
	for _, c := range t.pre {
		if c != nil {
			t.late(c)
		}
	}
	for _, p := range t.peers {
		if p != nil && p.expected > 0 {
			if p.expected--; p.expected == 0 {
				t.expect--
				why := fmt.Errorf("tcp: rank %d: it promised to dial us, and did not", p.rank)
				if p.finding {
					why = fmt.Errorf("tcp: rank %d: its card, which says where it listens, did not come within %d s: a host between may be lost or busy", p.rank, findTicks)
				}
				t.fail(p, why)
			}
		}
	}
	for i := len(t.up) - 1; i >= 0; i-- {
		if p := t.up[i]; p.silent() {
			t.fail(p, fmt.Errorf("tcp: rank %d at %v acknowledges nothing any more: its host or the network is down", p.rank, p.remote))
		}
	}
	t.setTicking()
}

// silent reports whether data for p were without an acknowledgement at so many
// ticks in a row that its host must be gone. A process that merely does not read
// is not silent: its kernel answers.
func (p *peer) silent() bool {
	info, err := unix.GetsockoptTCPInfo(p.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return false // the next read tells
	}
	p.quiet = countQuiet(p.quiet, info)
	return p.quiet >= quietTicks
}

// countQuiet counts the ticks in a row at which something was under way and
// nothing had been acknowledged since the tick before.
func countQuiet(before int, info *unix.TCPInfo) int {
	if info.Unacked == 0 && info.Probes == 0 || info.Last_ack_recv < 900 {
		return 0
	}
	return before + 1
}

// Arm implements transport.Transport.
func (t *Transport) Arm() bool {
	if len(t.done)+len(t.broken)+len(t.lost) > 0 || t.marked.Load() {
		return false
	}
	for _, ev := range t.events[:ready(t.epoll, t.events[:])] {
		if ev.Pad != wakeEvent {
			t.ahead = true
			return false
		}
	}
	return true
}

// FD is readable when Poll may have something to do that Arm did not tell of, and after Wake. It is
// for epoll and poll: another transport's wait can include this one's. Whoever sleeps on it
// calls Wait with no time afterwards, which takes a Wake back.
func (t *Transport) FD() int { return t.epoll }

// Disarm implements transport.Transport. A socket wakes its owner at any time,
// so there is nothing to take back.
func (t *Transport) Disarm() {}

// wake ends Waits by way of an eventfd in the same epoll. It stays readable until
// the last of the Waits that it ended is gone, so that it ends them all.
type wake struct {
	mu      sync.Mutex
	empty   sync.Cond
	fd      int
	waiters int
	pending bool // fd is readable
	closed  bool
}

func (w *wake) init() { w.fd, w.empty.L = -1, &w.mu }

// Wait implements transport.Transport.
func (t *Transport) Wait(d time.Duration) {
	w := &t.wake
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return
	}
	w.waiters++
	w.mu.Unlock()
	if d > 0 {
		var ev [1]unix.EpollEvent
		ms := min((d+time.Millisecond-1)/time.Millisecond, 1<<30)
		_, _ = unix.EpollWait(t.epoll, ev[:], int(ms)) // an error is an early return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiters--
	if w.waiters > 0 {
		return
	}
	if w.pending {
		var b [8]byte
		_, _ = unix.Read(w.fd, b[:])
		w.pending = false
	}
	w.empty.Broadcast()
}

// Wake implements transport.Transport.
func (t *Transport) Wake() { t.wake.signal() }

func (w *wake) signal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed && !w.pending && w.fd >= 0 {
		w.pending = true
		var b [8]byte
		binary.NativeEndian.PutUint64(b[:], 1)
		_, _ = unix.Write(w.fd, b[:]) // cannot be full: it is written once between reads
	}
}

// shut ends all Waits, for good.
func (w *wake) shut() {
	w.signal()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for w.waiters > 0 {
		w.empty.Wait()
	}
}
