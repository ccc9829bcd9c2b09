package fake

import (
	"syscall"

	"github.com/weft-hpc/weft/rdma"
)

// slotState is how far a send slot is.
type slotState uint8

const (
	slotPosted slotState = iota
	slotReady            // checked by this end, the peer has seen nothing
	slotMoving           // payload is on its way to the peer, or a receive of the peer is awaited
	slotResult           // the result of a READ or an atomic is on its way back
	slotPlaced           // done at the peer, not acknowledged yet
	slotFailed           // ends with status as soon as it is its turn
)

// sendSlot is one posted send work request.
type sendSlot struct {
	wr     rdma.SendWR // its SGL and Inline are the caller's, and not used
	spans  []span      // its segments
	inline []byte      // its inline data
	length int
	state  slotState
	status rdma.Status
	move   movement
	target span   // of operations on memory of the peer
	old    uint64 // of atomics
}

func newSendQueue(caps *rdma.QPCaps) []sendSlot {
	slots := make([]sendSlot, caps.MaxSendWRs)
	spans := make([]span, caps.MaxSendWRs*caps.MaxSendSGEs)
	inline := make([]byte, caps.MaxSendWRs*caps.MaxInline)
	for i := range slots {
		n, m := caps.MaxSendSGEs, caps.MaxInline
		slots[i].spans = spans[i*n : i*n : (i+1)*n]
		slots[i].inline = inline[i*m : i*m : (i+1)*m]
	}
	return slots
}

func (q *qp) slot(seq uint64) *sendSlot { return &q.sq[seq%uint64(len(q.sq))] }

func (q *qp) PostSend(wrs []rdma.SendWR) (int, error) {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	for i := range wrs {
		if err := q.checkSend(&wrs[i]); err != nil {
			q.f.schedule(q)
			return i, err
		}
		wr := &wrs[i]
		s := q.slot(q.head)
		s.spans = q.card.pin(s.spans, wr.SGL)
		s.inline = append(s.inline[:0], wr.Inline...)
		s.length = total(s.spans) + len(s.inline)
		s.state, s.status = slotPosted, rdma.StatusSuccess
		inline := wr.Inline != nil
		s.wr = *wr
		s.wr.SGL, s.wr.Inline = nil, nil
		if inline {
			s.wr.Inline = s.inline
		}
		q.head++
	}
	q.f.schedule(q)
	return len(wrs), nil
}

// checkSend says what a device finds when a work request is posted. Keys and bounds
// it finds later.
func (q *qp) checkSend(wr *rdma.SendWR) error {
	if err := q.start(rdma.OpPostSend); err != nil {
		return err
	}
	bad := func(format string, args ...any) error {
		return q.card.refuse(rdma.OpPostSend, q.num, rdma.ErrInvalid, syscall.EINVAL, format, args...)
	}
	switch {
	case q.state != rdma.StateRTS && q.state != rdma.StateError:
		return q.card.refuse(rdma.OpPostSend, q.num, rdma.ErrState, syscall.EINVAL, "nothing can be sent in %v: RTS comes first", q.state)
	case wr.Op > rdma.CompareSwap:
		return bad("%v does not exist", wr.Op)
	case wr.Op.Atomic() && !q.card.limits.Atomics:
		return q.card.refuse(rdma.OpPostSend, q.num, rdma.ErrUnsupported, syscall.EOPNOTSUPP, "the device has no atomics")
	case len(wr.SGL) > q.caps.MaxSendSGEs:
		return bad("%d segments are more than the queue's %d", len(wr.SGL), q.caps.MaxSendSGEs)
	case wr.Inline != nil && (len(wr.SGL) > 0 || wr.Op.Result()):
		return bad("inline data is for sends and writes without segments")
	case len(wr.Inline) > q.caps.MaxInline:
		return bad("%d inline bytes are more than the queue's %d", len(wr.Inline), q.caps.MaxInline)
	case wr.Op.Atomic() && rdma.TotalLength(wr.SGL) != 8:
		return bad("an atomic needs room for 8 bytes of result, not %d", rdma.TotalLength(wr.SGL))
	case q.head-q.tail == uint64(len(q.sq)):
		return q.card.fail(rdma.OpPostSend, q.num, syscall.ENOMEM, rdma.Facts{Max: int64(len(q.sq))})
	}
	return nil
}

func (q *qp) PostRecv(wrs []rdma.RecvWR) (int, error) {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	if err := q.start(rdma.OpPostRecv); err != nil {
		return 0, err
	}
	if q.srq != nil {
		return 0, q.card.refuse(rdma.OpPostRecv, q.num, rdma.ErrInvalid, syscall.EINVAL, "the QP takes its receives from an SRQ: post there")
	}
	if q.state == rdma.StateReset {
		return 0, q.card.refuse(rdma.OpPostRecv, q.num, rdma.ErrState, syscall.EINVAL, "nothing can be posted in RESET: INIT comes first")
	}
	n, err := q.rq.post(wrs, q.num)
	q.f.schedule(q)
	return n, err
}

// freeSends makes the slots before seq free.
func (q *qp) freeSends(seq uint64) {
	for ; q.tail < seq; q.tail++ {
		unpin(q.slot(q.tail).spans)
	}
}
