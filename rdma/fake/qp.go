package fake

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/rdma"
)

// qp is a queue pair. Its send queue is a ring of slots, named by sequence
// numbers that only grow:
//
//	tail <= ack <= tx <= head
//	[tail, ack)  completed; not free, as no completion was polled since
//	[ack, tx)    transmitted, in flight
//	[tx, head)   waiting; the first may be half transmitted
type qp struct {
	f    *Fabric
	card *Card
	dev  *device
	pd   *pd
	num  uint32
	caps rdma.QPCaps

	sendCQ, recvCQ *cq
	srq            *srq
	rq             *recvQueue // its own, or the SRQ's

	state rdma.QPState
	init  rdma.InitAttr
	rtr   rdma.RTRAttr
	rts   rdma.RTSAttr
	rnr   time.Duration // what the peer waits when there is no receive
	ack1  time.Duration // until a packet is sent again
	peer  *Card
	sgid  rdma.GIDEntry

	sq                  []sendSlot
	tail, ack, tx, head uint64
	reads               int // in flight
	tries, rnrTries     int
	waiting             bool // for until, before the next transmission
	until               time.Time
	filling             *recvSlot // taken by the message that arrives now

	queued bool // in f.ready
	closed bool
}

func (p *pd) CreateQP(opts rdma.QPOptions) (rdma.QP, error) {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	c, l, caps := p.card, &p.card.limits, opts.Caps
	facts := rdma.Facts{Memlock: -1, Wanted: sizes(caps.MaxSendWRs, "sends", caps.MaxRecvWRs, "receives", caps.MaxSendSGEs, "send segments",
		caps.MaxRecvSGEs, "receive segments", caps.MaxInline, "inline bytes")}
	if err := p.start(rdma.OpCreateQP, facts); err != nil {
		return nil, err
	}
	sendCQ, ok1 := opts.SendCQ.(*cq)
	recvCQ, ok2 := opts.RecvCQ.(*cq)
	if !ok1 || !ok2 || sendCQ.dev != p.dev || recvCQ.dev != p.dev || sendCQ.closed || recvCQ.closed {
		return nil, c.refuse(rdma.OpCreateQP, 0, rdma.ErrInvalid, syscall.EINVAL, "it needs a send CQ and a receive CQ of the same device, not closed")
	}
	bad := func(n, limit int) bool { return n < 0 || n > limit }
	if bad(caps.MaxSendWRs, l.MaxQPWRs) || bad(caps.MaxRecvWRs, l.MaxQPWRs) || bad(caps.MaxSendSGEs, l.MaxSGEs) ||
		bad(caps.MaxRecvSGEs, l.MaxSGEs) || bad(caps.MaxInline, l.MaxInline) {
		return nil, c.fail(rdma.OpCreateQP, 0, syscall.EINVAL, facts)
	}
	if p.dev.count.QPs >= l.MaxQPs {
		return nil, c.fail(rdma.OpCreateQP, 0, syscall.ENOMEM, facts)
	}
	q := &qp{f: p.f, card: c, dev: p.dev, pd: p, sendCQ: sendCQ, recvCQ: recvCQ}
	if opts.SRQ != nil {
		s, ok := opts.SRQ.(*srq)
		if !ok || s.pd != p || s.closed {
			return nil, c.refuse(rdma.OpCreateQP, 0, rdma.ErrInvalid, syscall.EINVAL, "the SRQ is of another protection domain, or closed")
		}
		caps.MaxRecvWRs, caps.MaxRecvSGEs = 0, 0
		q.srq, q.rq = s, s.rq
		s.users++
	} else {
		q.rq = newRecvQueue(c, caps.MaxRecvWRs, caps.MaxRecvSGEs)
	}
	if c.opts.MaxInline > 0 {
		caps.MaxInline = min(caps.MaxInline, c.opts.MaxInline)
	}
	q.caps = caps
	q.sq = newSendQueue(&caps)
	c.nextQPN = (c.nextQPN + 1 + uint32(p.f.draw(8))) & (1<<24 - 1)
	q.num = c.nextQPN
	c.qps[q.num] = q
	sendCQ.users++
	recvCQ.users++
	p.dev.count.QPs++
	p.children.QPs++
	return q, nil
}

// sizes writes "7 sends, 8 receives" from numbers and names.
func sizes(pairs ...any) string {
	s := ""
	for i := 0; i < len(pairs); i += 2 {
		if i > 0 {
			s += ", "
		}
		s += fmt.Sprint(pairs[i], " ", pairs[i+1])
	}
	return s
}

func (q *qp) Num() uint32       { return q.num }
func (q *qp) Caps() rdma.QPCaps { return q.caps }

func (q *qp) State() (rdma.QPState, error) {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	return q.state, q.start(rdma.OpQueryQP)
}

func (q *qp) start(op rdma.Op) error {
	if q.closed {
		return q.card.refuse(op, q.num, rdma.ErrClosed, 0, "the QP was closed")
	}
	return q.card.call(op, q.num, rdma.Facts{NetDev: q.sgid.NetDev, Max: int64(len(q.sq))})
}

// in says whether the QP is in the state that a transition starts from.
func (q *qp) in(op rdma.Op, want rdma.QPState) error {
	if err := q.start(op); err != nil {
		return err
	}
	if q.state != want {
		return q.card.refuse(op, q.num, rdma.ErrState, syscall.EINVAL, "the QP is in %v, not in %v", q.state, want)
	}
	return nil
}

func (q *qp) locate(err error) error { return rdma.Locate(err, q.card.name, 0, q.num) }

func (q *qp) Init(attr rdma.InitAttr) error {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	if err := q.in(rdma.OpModifyInit, rdma.StateReset); err != nil {
		return err
	}
	if err := attr.Check(&q.card.limits); err != nil {
		return q.locate(err)
	}
	if attr.PKeyIndex >= len(q.card.pkeys) || q.card.pkeys[attr.PKeyIndex]&0x7fff == 0 {
		return q.card.refuse(rdma.OpModifyInit, q.num, rdma.ErrInvalid, syscall.EINVAL, "partition key index %d is empty", attr.PKeyIndex)
	}
	q.init, q.state = attr, rdma.StateInit
	return nil
}

func (q *qp) ReadyToReceive(attr rdma.RTRAttr) error {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	if err := q.in(rdma.OpModifyRTR, rdma.StateInit); err != nil {
		return err
	}
	if err := attr.Check(&q.card.limits, &q.card.port); err != nil {
		return q.locate(err)
	}
	if err := q.resolve(&attr.Path); err != nil {
		return err
	}
	_, q.rnr = rdma.RNRTimerCode(attr.MinRNRTimer)
	q.rtr, q.state = attr, rdma.StateRTR
	return nil
}

// resolve finds the peer's card by its address.
func (q *qp) resolve(path *rdma.Path) error {
	q.peer, q.sgid = nil, rdma.GIDEntry{}
	if !path.Global {
		for _, c := range q.f.cards {
			if c.port.LinkLayer == rdma.LinkInfiniBand && c.port.LID == path.DLID {
				q.peer = c
			}
		}
		return nil // a subnet manager would know; packets to nobody are lost
	}
	for _, e := range q.card.gids {
		if e.Index == path.SGIDIndex && e.Err == nil {
			q.sgid = e
		}
	}
	fail := func(errno syscall.Errno) error {
		e := q.card.fail(rdma.OpModifyRTR, q.num, errno, rdma.Facts{NetDev: q.sgid.NetDev})
		if e, ok := errors.AsType[*rdma.Error](e); ok {
			e.Peer = path.DGID.String()
		}
		return e
	}
	switch {
	case q.sgid.GID.IsZero():
		return q.card.refuse(rdma.OpModifyRTR, q.num, rdma.ErrInvalid, syscall.EINVAL, "GID index %d is empty", path.SGIDIndex)
	case q.sgid.GID.Addr().Is4() != path.DGID.Addr().Is4():
		return fail(syscall.ENETUNREACH)
	}
	for _, c := range q.f.cards {
		for _, e := range c.gids {
			if e.GID == path.DGID && e.Type == q.sgid.Type {
				q.peer = c
				return nil
			}
		}
	}
	return fail(syscall.ETIMEDOUT)
}

func (q *qp) ReadyToSend(attr rdma.RTSAttr) error {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	if err := q.in(rdma.OpModifyRTS, rdma.StateRTR); err != nil {
		return err
	}
	if err := attr.Check(&q.card.limits); err != nil {
		return q.locate(err)
	}
	_, q.ack1 = rdma.AckTimeoutCode(attr.Timeout)
	q.rts, q.state = attr, rdma.StateRTS
	return nil
}

func (q *qp) Fail() error {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	if err := q.start(rdma.OpModifyError); err != nil {
		return err
	}
	if q.state == rdma.StateReset {
		return q.card.refuse(rdma.OpModifyError, q.num, rdma.ErrState, syscall.EINVAL, "the QP is in RESET: it has nothing to cancel")
	}
	q.enterError()
	return nil
}

// enterError stops transmission. What is posted is flushed by later steps.
func (q *qp) enterError() {
	if q.state == rdma.StateError || q.state == rdma.StateReset {
		return
	}
	q.state, q.waiting = rdma.StateError, false
	q.f.schedule(q)
}

func (q *qp) Reset() error {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	if err := q.start(rdma.OpModifyReset); err != nil {
		return err
	}
	q.forget()
	q.state = rdma.StateReset
	return nil
}

// forget drops everything posted.
func (q *qp) forget() {
	q.f.forget(q)
	q.sendCQ.disown(q)
	if q.recvCQ != q.sendCQ {
		q.recvCQ.disown(q)
	}
	q.freeSends(q.head)
	q.tail, q.ack, q.tx = q.head, q.head, q.head
	q.reads, q.tries, q.rnrTries, q.waiting = 0, 0, 0, false
	if q.filling != nil {
		q.filling.release()
		q.filling = nil
	}
	if q.srq == nil {
		for s := q.rq.take(); s != nil; s = q.rq.take() {
			s.release()
		}
	}
}

func (q *qp) Close() error {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	if err := q.dev.closing(rdma.OpCloseQP, q.closed); err != nil {
		return err
	}
	q.remove()
	return nil
}

// remove destroys the queue pair.
func (q *qp) remove() {
	q.forget()
	q.closed = true
	delete(q.card.qps, q.num)
	q.sendCQ.users--
	q.recvCQ.users--
	if q.srq != nil {
		q.srq.users--
	}
	q.dev.count.QPs--
	q.pd.children.QPs--
}
