//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import (
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/rdma"
)

// ioThread is the thread of a device.
type ioThread struct {
	c    *C.struct_weft_thread
	bell int
}

// thread starts the thread of the device if it does not run.
func (d *device) thread() (*ioThread, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.io != nil {
		return d.io, nil
	}
	spin := d.p.opts.Spin
	if spin == 0 {
		spin = DefaultSpin
	}
	var bell C.int
	c, err := C.weft_start_thread(d.lib, d.ctx, C.int64_t(max(0, spin)/time.Nanosecond), &bell)
	if c == nil {
		return nil, err
	}
	d.io = &ioThread{c: c, bell: int(bell)}
	return d.io, nil
}

// stopThread is the end of the thread, when no CQ is left.
func (d *device) stopThread() error {
	d.mu.Lock()
	t := d.io
	d.io = nil
	d.mu.Unlock()
	if t == nil {
		return nil
	}
	if errno := C.weft_stop_thread(t.c); errno != 0 {
		return d.fail(rdma.OpCloseDevice, 0, syscall.Errno(errno), rdma.Facts{})
	}
	return nil
}

// ring is a weft_ring without its completions. It is in C memory; the thread and Poll are its ends.
type ring struct {
	head     atomic.Uint64
	pollErr  atomic.Int32
	armErr   atomic.Uint32
	_        [48]byte
	tail     atomic.Uint64
	_        [56]byte
	armed    atomic.Uint64
	notified atomic.Uint32
	stalled  atomic.Uint32
	_        [48]byte
	size     uint64
	_        [56]byte
}

// arm asks for a notification of what comes from now on.
func (r *ring) arm() { r.armed.Store(r.head.Load()<<1 | 1) }

func (q *cq) createOwned(size int) error {
	t, err := q.dev.thread()
	if err != nil {
		return err
	}
	fd := -1
	if q.channel != nil {
		fd = q.channel.fd
	}
	var c *C.struct_ibv_cq
	var r *C.struct_weft_ring
	var granted C.int
	owned, err := C.weft_own_cq(t.c, C.int(size), C.uint64_t(q.id), C.int(fd), &c, &r, &granted)
	if owned == nil {
		return err
	}
	q.c, q.owned, q.cap = c, owned, int(granted)
	q.ring, q.wcs = ringOf(r)
	return nil
}

// disown destroys the queue, and takes its notification from the channel, whose mu the caller holds.
func (q *cq) disown() error {
	d := q.dev
	d.mu.Lock()
	t := d.io
	d.mu.Unlock()
	lost := C.int(0)
	if d.fatal.Load() {
		lost = 1
	}
	errno := C.weft_release_cq(t.c, q.owned, lost)
	if errno != 0 && lost == 0 && syscall.Errno(errno) != syscall.EIO { // the thread still has it
		return d.failedClosing(rdma.OpCloseCQ, 0, &q.closed, errno)
	}
	if q.ring.notified.Load() != 0 { // and nobody took it
		q.channel.takeBell()
	}
	C.weft_free_owned(q.owned)
	return nil
}

// pollRing takes completions from the ring. It makes no call.
func (q *cq) pollRing(wc []rdma.WC) (int, error) {
	r := q.ring
	head := r.head.Load()
	n := int(min(uint64(len(wc)), head-q.tail))
	if n == 0 {
		return 0, q.ringEmpty()
	}
	mask := r.size - 1
	for i := range n {
		q.take(&wc[i], &q.wcs[(q.tail+uint64(i))&mask])
	}
	q.tail += uint64(n)
	r.tail.Store(q.tail)
	if r.stalled.Load() != 0 && r.stalled.Swap(0) != 0 {
		ringBell(q.dev.io.bell)
	}
	return n, nil
}

func (q *cq) ringEmpty() error {
	if n := q.ring.pollErr.Load(); n != 0 {
		return q.unreadable(int(n))
	}
	if errno := q.ring.armErr.Load(); errno != 0 {
		return q.dev.fail(rdma.OpArm, 0, syscall.Errno(errno), rdma.Facts{})
	}
	if q.overrun.Load() {
		return q.overran()
	}
	return nil
}

// bellRing is what is written to an event descriptor: 1 in the order of little-endian machines; any other number
// rings as well.
var bellRing = [8]byte{1}

// ringBell adds one to an event descriptor.
func ringBell(fd int) {
	for {
		if _, err := syscall.Write(fd, bellRing[:]); err != syscall.EINTR {
			return
		}
	}
}

func (ch *channel) openBell() error {
	fd, err := C.weft_new_bell(1)
	if fd < 0 {
		return err
	}
	ch.fd = int(fd)
	return nil
}

// takeBell takes one notification from the event descriptor. The caller holds mu.
func (ch *channel) takeBell() (bool, error) {
	for {
		switch _, err := syscall.Read(ch.fd, ch.bell[:]); err {
		case nil:
			return true, nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false, nil
		default:
			return false, err
		}
	}
}

// nextBell is Next with a thread. The caller holds mu.
func (ch *channel) nextBell() (rdma.CQ, bool, error) {
	for {
		ok, err := ch.takeBell()
		if err != nil {
			return nil, false, ch.dev.fail(rdma.OpReadChannel, 0, errnoOf(err), rdma.Facts{})
		}
		if !ok {
			return nil, false, ch.dev.lost(rdma.OpReadChannel, 0)
		}
		for i, q := range ch.queues {
			if q.ring.notified.Swap(0) != 0 {
				// To the end, so that one busy queue does not hide the others.
				copy(ch.queues[i:], ch.queues[i+1:])
				ch.queues[len(ch.queues)-1] = q
				return q, true, nil
			}
		}
	}
}
