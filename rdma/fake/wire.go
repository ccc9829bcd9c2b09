package fake

import (
	"encoding/binary"

	"github.com/weft-hpc/weft/rdma"
)

// step makes one move of the queue pair, drawn from those that are possible.
func (q *qp) step() {
	if q.state == rdma.StateError {
		q.flush()
		return
	}
	var moves [3]func(*qp)
	n := 0
	for _, m := range [...]struct {
		can bool
		do  func(*qp)
	}{{q.canTransmit(), (*qp).transmit}, {q.canAck(), (*qp).acknowledge}, {q.canReturn(), (*qp).giveBack}} {
		if m.can {
			moves[n] = m.do
			n++
		}
	}
	if n > 0 {
		moves[q.f.draw(n)](q)
	}
}

// runnable says whether there is a move to make.
func (q *qp) runnable() bool {
	switch q.state {
	case rdma.StateError:
		return q.ack < q.head || q.filling != nil || q.srq == nil && q.rq.n > 0
	case rdma.StateRTS:
		return q.canTransmit() || q.canAck() || q.canReturn()
	}
	return false
}

func (q *qp) canTransmit() bool {
	if q.waiting || q.tx == q.head {
		return false
	}
	s := q.slot(q.tx)
	switch s.state {
	case slotPosted:
		return (s.wr.Flags&rdma.Fence == 0 || q.reads == 0) && (!s.wr.Op.Result() || q.reads < q.rts.MaxReads || q.rts.MaxReads == 0)
	case slotReady, slotMoving:
		return true
	}
	return false
}

func (q *qp) canAck() bool {
	if q.ack == q.head {
		return false
	}
	s := q.slot(q.ack)
	return s.state == slotPlaced || s.state == slotFailed
}

func (q *qp) canReturn() bool { return !q.waiting && q.reads > 0 }

// reach returns the peer's queue pair, or nil when no packet gets there and back.
func (q *qp) reach() *qp {
	if q.peer == nil || q.card.dark() || q.peer.dark() {
		return nil
	}
	p := q.peer.qps[q.rtr.DestQPN]
	if p == nil || p.state != rdma.StateRTR && p.state != rdma.StateRTS || p.rtr.DestQPN != q.num || p.peer != q.card ||
		p.rtr.RecvPSN != q.rts.SendPSN || !samePartition(q.card.pkeys[q.init.PKeyIndex], p.card.pkeys[p.init.PKeyIndex]) {
		return nil
	}
	if q.rtr.Path.Global && !(q.card.has(q.sgid) && p.card.has(p.sgid) && q.rtr.Path.DGID == p.sgid.GID && q.sgid.Type == p.sgid.Type) {
		return nil
	}
	return p
}

// has says whether an address is still in the table.
func (c *Card) has(gid rdma.GIDEntry) bool {
	for i := range c.gids {
		if c.gids[i].Index == gid.Index && c.gids[i].GID == gid.GID {
			return true
		}
	}
	return false
}

// samePartition: same number, and at least one is a full member.
func samePartition(a, b uint16) bool { return a&0x7fff == b&0x7fff && (a|b)&0x8000 != 0 }

// retry waits for an answer that does not come, and fails the slot when it has
// waited often enough.
func (q *qp) retry(s *sendSlot) {
	switch {
	case q.ack1 == rdma.Forever:
		q.f.sleep(q, 1<<62)
	case q.tries >= q.rts.Retries:
		q.failSlot(s, rdma.StatusRetryExceeded)
	default:
		q.tries++
		q.f.sleep(q, q.ack1)
	}
}

// notReady waits for a receive of the peer.
func (q *qp) notReady(s *sendSlot, p *qp) {
	if q.rts.RNRRetries != rdma.RetryForever && q.rnrTries >= q.rts.RNRRetries {
		q.failSlot(s, rdma.StatusRNRRetryExceeded)
		return
	}
	q.rnrTries++
	q.f.sleep(q, p.rnr)
}

// failSlot lets the slot end with status when all before it are done.
func (q *qp) failSlot(s *sendSlot, status rdma.Status) {
	if s.state == slotResult {
		q.reads--
	}
	s.state, s.status = slotFailed, status
}

// transmit starts the next slot, or moves some more of its payload.
func (q *qp) transmit() {
	s := q.slot(q.tx)
	if s.state == slotPosted && !q.prepare(s) {
		return
	}
	p := q.reach()
	if p == nil {
		q.retry(s)
		return
	}
	q.tries = 0
	if s.state == slotReady && !q.request(s, p) {
		return
	}
	if s.state == slotMoving {
		q.payload(s, p)
	}
}

// prepare checks what this end can check by itself.
func (q *qp) prepare(s *sendSlot) bool {
	need := rdma.Access(0)
	if s.wr.Op.Result() {
		need = rdma.LocalWrite
	}
	status := q.card.sendFault()
	switch {
	case status != rdma.StatusSuccess:
	case int64(s.length) > q.card.port.MaxMessage:
		status = rdma.StatusLocalLength
	case s.wr.Op.Result() && q.rts.MaxReads == 0:
		status = rdma.StatusLocalOperation
	case !allowed(s.spans, q.pd, need):
		status = rdma.StatusLocalProtection
	default:
		s.state = slotReady
		return true
	}
	q.failSlot(s, status)
	return false
}

// request is the first packet of a slot as the peer sees it.
func (q *qp) request(s *sendSlot, p *qp) bool {
	wr := &s.wr
	switch {
	case s.length > int(min(q.rtr.MTU, p.rtr.MTU)) && q.rtr.MTU != p.rtr.MTU,
		wr.Op.Result() && (p.rtr.MaxReads == 0 || q.reads >= p.rtr.MaxReads),
		wr.Op.Atomic() && (!p.card.limits.Atomics || wr.RemoteAddr%8 != 0):
		q.refused(s, p, rdma.StatusRemoteInvalidRequest, rdma.QPRequestError)
		return false
	}
	if wr.Op.Remote() {
		s.target = span{p.card.rkeys[wr.RKey], wr.RemoteAddr, s.length}
		if s.length > 0 && (p.init.Access&accessOf(wr.Op) == 0 || !s.target.mr.allows(p.pd, wr.RemoteAddr, s.length, accessOf(wr.Op))) {
			q.refused(s, p, rdma.StatusRemoteAccess, rdma.QPAccessError)
			return false
		}
	}
	switch {
	case wr.Op.Atomic():
		s.atomic()
	case wr.Op.TakesReceive() && !wr.Op.Remote() && !q.receive(s, p):
		return false
	}
	s.move.start(q.f, s.length, int(q.rtr.MTU))
	s.state = slotMoving
	if wr.Op.Result() {
		s.state = slotResult
		q.reads++
		q.tx++
	}
	return true
}

func accessOf(op rdma.Opcode) rdma.Access {
	switch {
	case op == rdma.Read:
		return rdma.RemoteRead
	case op.Atomic():
		return rdma.RemoteAtomic
	}
	return rdma.RemoteWrite
}

// refused ends a slot by a refusal of the peer, which fails both ends.
func (q *qp) refused(s *sendSlot, p *qp, status rdma.Status, event rdma.EventType) {
	q.failSlot(s, status)
	if event != 0 {
		p.dev.event(rdma.Event{Type: event, QP: p})
	}
	p.enterError()
}

// atomic does the operation. All of a fabric are serialised by its lock.
func (s *sendSlot) atomic() {
	b := s.target.bytes()
	s.old = binary.NativeEndian.Uint64(b)
	switch {
	case s.wr.Op == rdma.FetchAdd:
		binary.NativeEndian.PutUint64(b, s.old+s.wr.Add)
	case s.old == s.wr.Compare:
		binary.NativeEndian.PutUint64(b, s.wr.Swap)
	}
}

// receive takes a receive of the peer for the slot's message.
func (q *qp) receive(s *sendSlot, p *qp) bool {
	r := p.filling // of a message that was cut off, or none
	if r == nil {
		if r = p.rq.take(); r == nil {
			q.notReady(s, p)
			return false
		}
		if p.srq != nil {
			p.srq.checkLimit()
		}
	}
	q.rnrTries = 0
	p.filling = r
	if s.wr.Op.Remote() {
		return true // the data is elsewhere
	}
	switch {
	case s.length > total(r.spans):
		mine := rdma.StatusLocalLength
		if p.card.opts.Soft {
			mine = rdma.StatusRemoteInvalidRequest
		}
		p.complete(mine, nil)
		q.refused(s, p, rdma.StatusRemoteInvalidRequest, 0)
	case s.length > 0 && !allowed(r.spans, p.pd, rdma.LocalWrite):
		p.complete(rdma.StatusLocalProtection, nil)
		q.refused(s, p, rdma.StatusRemoteOperation, 0)
	default:
		return true
	}
	return false
}

// complete ends the receive that the queue pair is filling with the message of s.
func (q *qp) complete(status rdma.Status, s *sendSlot) {
	r := q.filling
	q.filling = nil
	e := entry{qp: q, recv: r, wc: rdma.WC{ID: r.id, Status: status, QPN: q.num, Op: rdma.WCRecv}}
	if status != rdma.StatusSuccess {
		e.wc.Vendor = 0xfa0e0000 + uint32(status)
		q.recvCQ.push(e, true)
		return
	}
	e.wc.Bytes = uint32(s.length)
	if s.wr.Op.HasImm() {
		e.wc.Imm, e.wc.Flags = s.wr.Imm, rdma.HasImm
	}
	if s.wr.Op == rdma.WriteImm {
		e.wc.Op = rdma.WCRecvWriteImm
	}
	q.recvCQ.push(e, s.wr.Flags&rdma.Solicited != 0)
}

// payload moves packets to the peer, and ends the message after the last.
func (q *qp) payload(s *sendSlot, p *qp) {
	var one [1]span
	dst := one[:]
	switch {
	case s.wr.Op.Remote():
		one[0] = s.target
		if !allowed(dst, p.pd, rdma.RemoteWrite) {
			q.refused(s, p, rdma.StatusRemoteAccess, rdma.QPAccessError)
			return
		}
	case p.filling == nil: // the peer was reset meanwhile
		q.retry(s)
		return
	default:
		dst = p.filling.spans
		if s.length > 0 && !allowed(dst, p.pd, rdma.LocalWrite) {
			p.complete(rdma.StatusLocalProtection, nil)
			q.refused(s, p, rdma.StatusRemoteOperation, 0)
			return
		}
	}
	if !allowed(s.spans, q.pd, 0) {
		q.failSlot(s, rdma.StatusLocalProtection)
		return
	}
	if !s.move.some(q.f, dst, s.spans, s.inline) {
		return
	}
	if s.wr.Op.TakesReceive() {
		if s.wr.Op.Remote() && !q.receive(s, p) {
			return // the data is there, its receive is not
		}
		p.complete(rdma.StatusSuccess, s)
	}
	s.state = slotPlaced
	q.tx++
}

// giveBack moves some of the result of the oldest READ or atomic that lacks it.
func (q *qp) giveBack() {
	seq := q.ack
	for q.slot(seq).state != slotResult {
		seq++
	}
	s := q.slot(seq)
	p := q.reach()
	if p == nil {
		q.retry(s)
		return
	}
	q.tries = 0
	if !allowed(s.spans, q.pd, rdma.LocalWrite) {
		q.failSlot(s, rdma.StatusLocalProtection)
		return
	}
	if s.wr.Op.Atomic() {
		var old [8]byte
		binary.NativeEndian.PutUint64(old[:], s.old)
		s.move.all(q.f, s.spans, nil, old[:])
	} else {
		src := [1]span{s.target}
		if !allowed(src[:], p.pd, rdma.RemoteRead) {
			q.refused(s, p, rdma.StatusRemoteAccess, rdma.QPAccessError)
			return
		}
		if !s.move.some(q.f, s.spans, src[:], nil) {
			return
		}
	}
	s.state = slotPlaced
	q.reads--
}

// acknowledge ends the oldest slot that has not ended.
func (q *qp) acknowledge() {
	s := q.slot(q.ack)
	q.end(s.status)
	if s.status != rdma.StatusSuccess {
		q.enterError()
	}
}

// end completes the slot at ack.
func (q *qp) end(status rdma.Status) {
	s := q.slot(q.ack)
	seq := q.ack
	q.ack++
	q.tx = max(q.tx, q.ack)
	if q.card.opts.Soft {
		q.freeSends(q.ack)
	}
	if status == rdma.StatusSuccess && s.wr.Flags&rdma.Signaled == 0 {
		return
	}
	e := entry{qp: q, send: true, seq: seq, wc: rdma.WC{ID: s.wr.ID, Status: status, QPN: q.num, Op: s.wr.Op.WC()}}
	if s.wr.Op.Result() {
		e.wc.Bytes = uint32(s.length)
	}
	if status != rdma.StatusSuccess {
		e.wc.Vendor = 0xfa0e0000 + uint32(status)
	}
	q.sendCQ.push(e, false)
}

// flush cancels one work request of a queue pair in the error state.
func (q *qp) flush() {
	switch {
	case q.filling != nil:
		q.complete(rdma.StatusFlushed, nil)
	case q.ack < q.head && (q.srq != nil || q.rq.n == 0 || q.f.draw(2) == 0):
		status := rdma.StatusFlushed
		// The first error is told. What is done may be told, or not.
		switch s := q.slot(q.ack); {
		case s.state == slotFailed:
			status = s.status
		case s.state == slotPlaced && q.f.draw(2) == 0:
			status = rdma.StatusSuccess
		}
		q.end(status)
	case q.srq == nil && q.rq.n > 0:
		q.filling = q.rq.take()
		q.complete(rdma.StatusFlushed, nil)
	}
}
