package fake

import (
	"slices"
	"syscall"

	"github.com/weft-hpc/weft/rdma"
)

// channel collects notifications.
type channel struct {
	dev    *device
	f      *Fabric
	queue  []*cq
	signal signal
	cqs    int
	closed bool
}

func (d *device) CreateCompChannel() (rdma.CompChannel, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if err := d.start(rdma.OpCreateChannel, rdma.Facts{}); err != nil {
		return nil, err
	}
	ch := &channel{dev: d, f: d.f}
	if err := ch.signal.open(); err != nil {
		return nil, d.card.fail(rdma.OpCreateChannel, 0, err.(syscall.Errno), rdma.Facts{})
	}
	d.count.Channels++
	d.channels = append(d.channels, ch)
	return ch, nil
}

func (ch *channel) FD() int { return ch.signal.fd }

func (ch *channel) Next() (rdma.CQ, bool, error) {
	ch.f.mu.Lock()
	defer ch.f.mu.Unlock()
	if ch.closed {
		return nil, false, ch.dev.card.refuse(rdma.OpReadChannel, 0, rdma.ErrClosed, 0, "the channel was closed")
	}
	if len(ch.queue) == 0 {
		if ch.dev.card.fatal {
			return nil, false, ch.dev.card.call(rdma.OpReadChannel, 0, rdma.Facts{})
		}
		return nil, false, nil
	}
	q := ch.queue[0]
	ch.queue = slices.Delete(ch.queue, 0, 1)
	if len(ch.queue) == 0 {
		ch.signal.lower()
	}
	return q, true, nil
}

func (ch *channel) Close() error {
	ch.f.mu.Lock()
	defer ch.f.mu.Unlock()
	if err := ch.dev.closing(rdma.OpCloseChannel, ch.closed); err != nil {
		return err
	}
	if ch.cqs > 0 {
		return ch.dev.busy(rdma.OpCloseChannel, "CQs are", ch.cqs)
	}
	ch.closed = true
	ch.dev.count.Channels--
	ch.dev.channels = slices.DeleteFunc(ch.dev.channels, func(x *channel) bool { return x == ch })
	check(ch.signal.close())
	return nil
}

// notify says when a CQ notifies.
type notify uint8

const (
	notifyNever notify = iota
	notifySolicited
	notifyAny
)

// entry is a completion and what becomes free when it is polled.
type entry struct {
	wc   rdma.WC
	qp   *qp
	send bool
	seq  uint64    // of a send: this slot and all before become free
	recv *recvSlot // of a receive
}

type cq struct {
	dev     *device
	f       *Fabric
	channel *channel
	ring    []entry
	head    int
	n       int
	armed   notify
	users   int // queue pairs, counted for each direction
	overrun bool
	closed  bool
}

func (d *device) CreateCQ(size int, ch rdma.CompChannel) (rdma.CQ, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	c := d.card
	facts := rdma.Facts{Asked: int64(size), Max: int64(c.limits.MaxCQEs), Memlock: -1}
	if err := d.start(rdma.OpCreateCQ, facts); err != nil {
		return nil, err
	}
	if size < 1 {
		return nil, c.refuse(rdma.OpCreateCQ, 0, rdma.ErrInvalid, syscall.EINVAL, "a CQ of %d completions is none", size)
	}
	if size > c.limits.MaxCQEs {
		return nil, c.fail(rdma.OpCreateCQ, 0, syscall.EINVAL, facts)
	}
	if d.count.CQs >= c.limits.MaxCQs {
		return nil, c.fail(rdma.OpCreateCQ, 0, syscall.ENOMEM, facts)
	}
	q := &cq{dev: d, f: d.f, ring: make([]entry, size)}
	if ch != nil {
		mine, ok := ch.(*channel)
		if !ok || mine.dev != d || mine.closed {
			return nil, c.refuse(rdma.OpCreateCQ, 0, rdma.ErrInvalid, syscall.EINVAL, "the completion channel is of another device, or closed")
		}
		q.channel = mine
		mine.cqs++
	}
	d.count.CQs++
	return q, nil
}

func (q *cq) Cap() int { return len(q.ring) }

func (q *cq) Poll(wc []rdma.WC) (int, error) {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	if q.closed || q.dev.closed {
		return 0, q.dev.card.refuse(rdma.OpPoll, 0, rdma.ErrClosed, 0, "the CQ was closed")
	}
	if q.dev.card.fatal {
		return 0, q.dev.card.call(rdma.OpPoll, 0, rdma.Facts{})
	}
	if q.n == 0 && !q.f.held {
		q.f.dueTimers()
		for range stepsOfPoll {
			if q.f.steps(1) == 0 || q.n > 0 {
				break
			}
		}
	}
	n := min(len(wc), q.n)
	for i := range n {
		e := &q.ring[q.head]
		wc[i] = e.wc
		e.free()
		*e = entry{}
		q.head = (q.head + 1) % len(q.ring)
	}
	q.n -= n
	if n == 0 && q.overrun {
		return 0, &rdma.Error{Op: rdma.OpPoll, Device: q.dev.card.name, Kind: rdma.ErrCQOverrun,
			What: "the CQ overran, and some completions are lost", Hint: "make it larger than everything that can complete at once"}
	}
	return n, nil
}

// free gives back what a completion held.
func (e *entry) free() {
	switch {
	case e.send:
		e.qp.freeSends(e.seq + 1)
	case e.recv != nil:
		e.recv.release()
	}
}

// push puts a completion into the queue.
func (q *cq) push(e entry, solicited bool) {
	if q.closed || q.overrun || q.dev.closed {
		return
	}
	if q.n == len(q.ring) {
		q.overrun = true
		q.dev.event(rdma.Event{Type: rdma.CQError, CQ: q})
		for _, p := range q.dev.card.qps {
			if (p.sendCQ == q || p.recvCQ == q) && !q.dev.card.opts.Soft {
				p.enterError()
			}
		}
		q.announce(true)
		return
	}
	if e.wc.Status != rdma.StatusSuccess {
		solicited = solicited || !(e.send && q.dev.card.opts.Soft)
		// Nothing else means anything now, so nobody may read it.
		e.wc.Op, e.wc.Flags = rdma.WCOp(q.f.draw(7)), rdma.WCFlags(q.f.draw(2))
		e.wc.Imm, e.wc.Bytes = uint32(q.f.rng.Uint64()), uint32(q.f.rng.Uint64())
	}
	q.ring[(q.head+q.n)%len(q.ring)] = e
	q.n++
	q.announce(solicited)
}

func (q *cq) announce(solicited bool) {
	if q.armed == notifyNever || q.armed == notifySolicited && !solicited {
		return
	}
	q.armed = notifyNever
	if c := q.dev.card; c.lose > 0 {
		c.lose--
		return
	}
	q.channel.queue = append(q.channel.queue, q)
	q.channel.signal.raise()
}

func (q *cq) Arm(solicitedOnly bool) error {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	c := q.dev.card
	switch {
	case q.closed || q.dev.closed:
		return c.refuse(rdma.OpArm, 0, rdma.ErrClosed, 0, "the CQ was closed")
	case q.channel == nil:
		return c.refuse(rdma.OpArm, 0, rdma.ErrInvalid, syscall.EINVAL, "the CQ has no completion channel")
	}
	if err := c.call(rdma.OpArm, 0, rdma.Facts{}); err != nil {
		return err
	}
	if !solicitedOnly {
		q.armed = notifyAny
	} else if q.armed == notifyNever {
		q.armed = notifySolicited
	}
	return nil
}

// disown cuts the completions of a queue pair off from it. Devices either
// remove them or let them come; here it is a matter of chance.
func (q *cq) disown(p *qp) {
	kept := 0
	keep := q.f.draw(2) == 0
	for i := range q.n {
		e := &q.ring[(q.head+i)%len(q.ring)]
		if e.qp == p {
			if e.recv != nil {
				e.recv.release()
			}
			if !keep {
				continue
			}
			*e = entry{wc: e.wc}
		}
		q.ring[(q.head+kept)%len(q.ring)] = *e
		kept++
	}
	for i := kept; i < q.n; i++ {
		q.ring[(q.head+i)%len(q.ring)] = entry{}
	}
	q.n = kept
}

func (q *cq) Close() error {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	if err := q.dev.closing(rdma.OpCloseCQ, q.closed); err != nil {
		return err
	}
	if q.users > 0 {
		return q.dev.busy(rdma.OpCloseCQ, "queues of QPs are", q.users)
	}
	q.closed = true
	if ch := q.channel; ch != nil {
		ch.cqs--
		ch.queue = slices.DeleteFunc(ch.queue, func(x *cq) bool { return x == q })
		if len(ch.queue) == 0 {
			ch.signal.lower()
		}
	}
	q.dev.count.CQs--
	return nil
}
