//go:build linux && cgo

package ibverbs

// #cgo noescape weft_arm
// #cgo nocallback weft_arm
// #cgo noescape weft_next_notification
// #cgo nocallback weft_next_notification
// #include "shim.h"
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/weft-hpc/weft/rdma"
)

// channel is a completion channel: of the device, or an event descriptor that the
// thread writes to.
type channel struct {
	dev    *device
	c      *C.struct_ibv_comp_channel // nil with a thread
	fd     int
	users  int // CQs; guarded by device.mu
	closed closed

	mu     sync.Mutex // held over Next, and over the end of its CQs
	queues []*cq
	bell   [8]byte // what was read from a thread's event descriptor
}

func (d *device) CreateCompChannel() (rdma.CompChannel, error) {
	if err := d.reserve(rdma.OpCreateChannel, &d.count.Channels); err != nil {
		return nil, err
	}
	ch := &channel{dev: d}
	var err error
	if d.mode == Thread {
		err = ch.openBell()
	} else {
		var fd C.int
		ch.c, err = C.weft_create_channel(d.lib, d.ctx, &fd)
		ch.fd = int(fd)
		if ch.c != nil {
			err = nil
		}
	}
	if err != nil {
		d.add(&d.count.Channels, -1)
		return nil, d.fail(rdma.OpCreateChannel, 0, errnoOf(err), rdma.Facts{})
	}
	return ch, nil
}

func (ch *channel) FD() int { return ch.fd }

func (ch *channel) Next() (rdma.CQ, bool, error) {
	d := ch.dev
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed.Load() {
		return nil, false, d.refuse(rdma.OpReadChannel, 0, rdma.ErrClosed, 0, "the channel was closed")
	}
	if ch.c == nil {
		return ch.nextBell()
	}
	for {
		var id C.uint64_t
		errno := syscall.Errno(C.weft_next_notification(d.lib, ch.c, &id))
		switch {
		case errno == syscall.EAGAIN:
			return nil, false, d.lost(rdma.OpReadChannel, 0)
		case errno != 0:
			return nil, false, d.fail(rdma.OpReadChannel, 0, errno, rdma.Facts{})
		}
		for _, q := range ch.queues {
			if q.id == uint64(id) {
				q.acknowledge()
				q.armed.Store(false)
				return q, true, nil
			}
		}
		// Its queue is gone: the kernel drops such notifications, so this does not happen.
	}
}

// acknowledge counts a notification that was taken. The device hears of many at once,
// as each time takes a lock. The caller holds the channel's mu.
func (q *cq) acknowledge() {
	if q.unacked++; q.unacked == 64 {
		C.weft_ack(q.dev.lib, q.c, C.uint(q.unacked))
		q.unacked = 0
	}
}

func (ch *channel) Close() error {
	d := ch.dev
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if err := d.closing(rdma.OpCloseChannel, &ch.closed, &ch.users, "CQs are"); err != nil {
		return err
	}
	if ch.c == nil {
		syscall.Close(ch.fd)
	} else if err := d.failedClosing(rdma.OpCloseChannel, 0, &ch.closed, C.weft_destroy_channel(d.lib, ch.c)); err != nil {
		return err
	}
	d.add(&d.count.Channels, -1)
	return nil
}

// cq is a completion queue. Exactly one of polled and ring is there.
type cq struct {
	dev     *device
	c       *C.struct_ibv_cq
	id      uint64
	cap     int
	channel *channel // nil without
	users   int      // queues of QPs; guarded by device.mu
	closed  closed
	overrun atomic.Bool
	armed   atomic.Bool // for all completions, and not notified since
	unacked int         // guarded by channel.mu

	polled *C.struct_weft_polled
	wcs    []C.struct_weft_wc // of polled

	owned *C.struct_weft_owned
	ring  *ring
	tail  uint64 // the ring's, which only Poll changes
}

func (d *device) CreateCQ(size int, ch rdma.CompChannel) (rdma.CQ, error) {
	q := &cq{dev: d}
	d.mu.Lock()
	if err := d.checkCQ(q, size, ch); err != nil {
		d.mu.Unlock()
		return nil, err
	}
	d.count.CQs++
	if q.channel != nil {
		q.channel.users++
	}
	d.lastID++
	q.id = d.lastID
	d.mu.Unlock()

	err := q.create(size)
	if err != nil {
		q.release()
		facts := memlockFacts(0)
		facts.Asked, facts.Max = int64(size), int64(d.limits.MaxCQEs)
		return nil, d.fail(rdma.OpCreateCQ, 0, errnoOf(err), facts)
	}
	d.mu.Lock()
	d.cqs[q.id] = q
	d.mu.Unlock()
	if ch := q.channel; ch != nil {
		ch.mu.Lock()
		ch.queues = append(ch.queues, q)
		ch.mu.Unlock()
	}
	return q, nil
}

// checkCQ checks the arguments of CreateCQ. The caller holds mu.
func (d *device) checkCQ(q *cq, size int, ch rdma.CompChannel) error {
	if err := d.start(rdma.OpCreateCQ); err != nil {
		return err
	}
	switch {
	case size < 1:
		return d.refuse(rdma.OpCreateCQ, 0, rdma.ErrInvalid, syscall.EINVAL, "a CQ of %d completions is none", size)
	case size > d.limits.MaxCQEs:
		return d.fail(rdma.OpCreateCQ, 0, syscall.EINVAL, rdma.Facts{Asked: int64(size), Max: int64(d.limits.MaxCQEs)})
	}
	if ch != nil {
		mine, ok := ch.(*channel)
		if !ok || mine.dev != d || mine.closed.Load() {
			return d.refuse(rdma.OpCreateCQ, 0, rdma.ErrInvalid, syscall.EINVAL, "the completion channel is of another device, or closed")
		}
		q.channel = mine
	}
	return nil
}

func (q *cq) create(size int) error {
	d := q.dev
	if d.mode == Thread {
		return q.createOwned(size)
	}
	var ch *C.struct_ibv_comp_channel
	if q.channel != nil {
		ch = q.channel.c
	}
	var granted C.int
	c, err := C.weft_create_cq(d.lib, d.ctx, C.int(size), C.uint64_t(q.id), ch, &granted)
	if c == nil {
		return err
	}
	q.c, q.cap = c, int(granted)
	if q.polled = C.weft_new_polled(c); q.polled == nil {
		C.weft_destroy_cq(d.lib, c, 0)
		return syscall.ENOMEM
	}
	q.wcs = q.polled.wc[:]
	return nil
}

func (q *cq) release() {
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	q.dev.count.CQs--
	if q.channel != nil {
		q.channel.users--
	}
	delete(q.dev.cqs, q.id)
}

func (q *cq) Cap() int { return q.cap }

func (q *cq) isClosed(op rdma.Op) error {
	return q.dev.refuse(op, 0, rdma.ErrClosed, 0, "the CQ was closed")
}

func (q *cq) Poll(wc []rdma.WC) (int, error) {
	if !q.closed.enter() {
		return 0, q.isClosed(rdma.OpPoll)
	}
	n, err := q.poll(wc)
	q.closed.leave()
	return n, err
}

func (q *cq) poll(wc []rdma.WC) (int, error) {
	if q.dev.fatal.Load() {
		return 0, q.dev.lost(rdma.OpPoll, 0)
	}
	if q.ring != nil {
		return q.pollRing(wc)
	}
	n := 0
	for n < len(wc) {
		want := min(len(wc)-n, C.WEFT_POLL)
		C.weft_poll(q.polled.self, C.int(want))
		got := int(q.polled.got)
		if got < 0 {
			if n > 0 {
				break
			}
			return 0, q.unreadable(got)
		}
		for i := range got {
			q.take(&wc[n+i], &q.wcs[i])
		}
		n += got
		if got < want {
			break
		}
	}
	if n == 0 && q.overrun.Load() {
		return 0, q.overran()
	}
	return n, nil
}

// unreadable is a poll that failed with a number of the driver's own.
func (q *cq) unreadable(n int) error {
	if err := q.dev.lost(rdma.OpPoll, 0); err != nil {
		return err
	}
	return &rdma.Error{Op: rdma.OpPoll, Device: q.dev.info.Name, Kind: rdma.ErrDeviceFatal,
		What: fmt.Sprintf("the driver cannot read the CQ: it returned %d", n), Hint: "see dmesg, then start the job again"}
}

func (q *cq) overran() error {
	return &rdma.Error{Op: rdma.OpPoll, Device: q.dev.info.Name, Kind: rdma.ErrCQOverrun,
		What: "the CQ overran, and some completions are lost", Hint: "make it larger than everything that can complete at once"}
}

// take is a completion as Go has it.
func (q *cq) take(to *rdma.WC, c *C.struct_weft_wc) {
	*to = rdma.WC{ID: uint64(c.id), Status: rdma.Status(c.status), QPN: uint32(c.qpn), Vendor: uint32(c.vendor),
		Op: rdma.WCOp(c.op), Imm: uint32(c.imm), Bytes: uint32(c.bytes), Flags: rdma.WCFlags(c.flags)}
	if to.Status != rdma.StatusSuccess {
		q.dev.qpFailed(to.QPN)
	}
}

// qpFailed follows a QP that the device put into the error state.
func (d *device) qpFailed(qpn uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if q, ok := d.numbers[qpn]; ok {
		q.failed()
	}
}

func (q *cq) Arm(solicitedOnly bool) error {
	if !q.closed.enter() {
		return q.isClosed(rdma.OpArm)
	}
	defer q.closed.leave()
	if err := q.dev.lost(rdma.OpArm, 0); err != nil {
		return err
	}
	if q.channel == nil {
		return q.dev.refuse(rdma.OpArm, 0, rdma.ErrInvalid, syscall.EINVAL, "the CQ has no completion channel")
	}
	if q.ring != nil {
		q.ring.arm()
		return nil
	}
	flag := C.int(0)
	if solicitedOnly {
		if q.armed.Load() {
			return nil // it would take back what was asked for before
		}
		flag = 1
	} else {
		q.armed.Store(true) // before, as the notification may come at once
	}
	if errno := C.weft_arm(q.c, flag); errno != 0 {
		q.armed.Store(false)
		return q.dev.fail(rdma.OpArm, 0, syscall.Errno(errno), rdma.Facts{})
	}
	return nil
}

func (q *cq) Close() error {
	d := q.dev
	if err := d.closing(rdma.OpCloseCQ, &q.closed, &q.users, "queues of QPs are"); err != nil {
		return err
	}
	if err := q.destroy(); err != nil {
		return err
	}
	q.release()
	return nil
}

// destroy takes the queue from the device and its channel.
func (q *cq) destroy() error {
	d := q.dev
	q.closed.wait()
	if ch := q.channel; ch != nil {
		ch.mu.Lock()
		defer ch.mu.Unlock()
	}
	if q.ring != nil {
		if err := q.disown(); err != nil {
			return err
		}
	} else {
		unacked := q.unacked
		q.unacked = 0
		if err := d.failedClosing(rdma.OpCloseCQ, 0, &q.closed, C.weft_destroy_cq(d.lib, q.c, C.uint(unacked))); err != nil {
			return err
		}
		C.weft_free_polled(q.polled)
	}
	if ch := q.channel; ch != nil {
		for i, x := range ch.queues {
			if x == q {
				ch.queues = append(ch.queues[:i], ch.queues[i+1:]...)
				break
			}
		}
	}
	return nil
}
