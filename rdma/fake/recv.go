package fake

import (
	"syscall"

	"github.com/weft-hpc/weft/rdma"
)

// recvSlot is one posted receive.
//
//	free -> posted -> taken by a message (qp.filling) -> completion in a CQ -> polled: free
type recvSlot struct {
	queue *recvQueue
	id    uint64
	spans []span
}

// recvQueue holds the receives of a QP or of an SRQ.
type recvQueue struct {
	card  *Card
	slots []recvSlot
	free  []*recvSlot
	fifo  []*recvSlot // ring of what is posted
	head  int
	n     int
	sges  int
}

func newRecvQueue(c *Card, wrs, sges int) *recvQueue {
	q := &recvQueue{card: c, slots: make([]recvSlot, wrs), fifo: make([]*recvSlot, wrs), sges: sges}
	room := make([]span, wrs*sges)
	for i := range q.slots {
		s := &q.slots[i]
		s.queue, s.spans = q, room[i*sges:i*sges:(i+1)*sges]
		q.free = append(q.free, s)
	}
	return q
}

func (q *recvQueue) post(wrs []rdma.RecvWR, qpn uint32) (int, error) {
	c := q.card
	for i := range wrs {
		if err := c.call(rdma.OpPostRecv, qpn, rdma.Facts{Max: int64(len(q.slots))}); err != nil {
			return i, err
		}
		if len(wrs[i].SGL) > q.sges {
			return i, c.refuse(rdma.OpPostRecv, qpn, rdma.ErrInvalid, syscall.EINVAL, "%d segments are more than the queue's %d", len(wrs[i].SGL), q.sges)
		}
		if len(q.free) == 0 {
			return i, c.fail(rdma.OpPostRecv, qpn, syscall.ENOMEM, rdma.Facts{Max: int64(len(q.slots))})
		}
		last := len(q.free) - 1
		s := q.free[last]
		q.free = q.free[:last]
		s.id = wrs[i].ID
		s.spans = c.pin(s.spans, wrs[i].SGL)
		q.fifo[(q.head+q.n)%len(q.fifo)] = s
		q.n++
	}
	return len(wrs), nil
}

// take removes the oldest posted receive; nil if there is none.
func (q *recvQueue) take() *recvSlot {
	if q.n == 0 {
		return nil
	}
	s := q.fifo[q.head]
	q.head = (q.head + 1) % len(q.fifo)
	q.n--
	return s
}

// release makes the slot free.
func (s *recvSlot) release() {
	unpin(s.spans)
	s.queue.free = append(s.queue.free, s)
}

type srq struct {
	pd     *pd
	f      *Fabric
	rq     *recvQueue
	limit  int
	users  int
	closed bool
}

func (p *pd) CreateSRQ(opts rdma.SRQOptions) (rdma.SRQ, error) {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	c := p.card
	facts := rdma.Facts{Memlock: -1, Wanted: sizes(opts.MaxWRs, "work requests", opts.MaxSGEs, "segments")}
	if err := p.start(rdma.OpCreateSRQ, facts); err != nil {
		return nil, err
	}
	if opts.MaxWRs < 1 || opts.MaxWRs > c.limits.MaxSRQWRs || opts.MaxSGEs < 0 || opts.MaxSGEs > c.limits.MaxSGEs {
		return nil, c.fail(rdma.OpCreateSRQ, 0, syscall.EINVAL, facts)
	}
	if p.dev.count.SRQs >= c.limits.MaxSRQs {
		return nil, c.fail(rdma.OpCreateSRQ, 0, syscall.ENOMEM, facts)
	}
	p.dev.count.SRQs++
	p.children.SRQs++
	return &srq{pd: p, f: p.f, rq: newRecvQueue(c, opts.MaxWRs, opts.MaxSGEs)}, nil
}

func (s *srq) MaxWRs() int { return len(s.rq.slots) }

func (s *srq) PostRecv(wrs []rdma.RecvWR) (int, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if s.closed || s.pd.dev.closed {
		return 0, s.pd.card.refuse(rdma.OpPostRecv, 0, rdma.ErrClosed, 0, "the SRQ was closed")
	}
	return s.rq.post(wrs, 0)
}

func (s *srq) SetLimit(n int) error {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	c := s.pd.card
	if s.closed || s.pd.dev.closed {
		return c.refuse(rdma.OpModifySRQ, 0, rdma.ErrClosed, 0, "the SRQ was closed")
	}
	if err := c.call(rdma.OpModifySRQ, 0, rdma.Facts{}); err != nil {
		return err
	}
	if n < 0 || n > len(s.rq.slots) {
		return c.refuse(rdma.OpModifySRQ, 0, rdma.ErrInvalid, syscall.EINVAL, "limit %d is not within the queue's %d receives", n, len(s.rq.slots))
	}
	s.limit = n
	s.checkLimit()
	return nil
}

func (s *srq) checkLimit() {
	if s.rq.n < s.limit {
		s.limit = 0
		s.pd.dev.event(rdma.Event{Type: rdma.SRQLimitReached, SRQ: s})
	}
}

func (s *srq) Close() error {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if err := s.pd.dev.closing(rdma.OpCloseSRQ, s.closed); err != nil {
		return err
	}
	if s.users > 0 {
		return s.pd.dev.busy(rdma.OpCloseSRQ, "QPs are", s.users)
	}
	s.closed = true
	for slot := s.rq.take(); slot != nil; slot = s.rq.take() {
		slot.release()
	}
	s.pd.dev.count.SRQs--
	s.pd.children.SRQs--
	return nil
}
