//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import (
	"cmp"
	"syscall"

	"github.com/weft-hpc/weft/rdma"
)

func (q *qp) PostSend(wrs []rdma.SendWR) (int, error) {
	if !q.closed.enter() {
		return 0, q.isClosed(rdma.OpPostSend)
	}
	n, err := q.postSend(wrs)
	q.closed.leave()
	return n, err
}

func (q *qp) postSend(wrs []rdma.SendWR) (int, error) {
	if q.dev.fatal.Load() {
		return 0, q.dev.lost(rdma.OpPostSend, q.num)
	}
	if s := rdma.QPState(q.state.Load()); s != rdma.StateRTS && s != rdma.StateError && len(wrs) > 0 {
		return 0, q.dev.refuse(rdma.OpPostSend, q.num, rdma.ErrState, syscall.EINVAL, "nothing can be sent in %v: RTS comes first", s)
	}
	for done := 0; done < len(wrs); {
		n := min(len(wrs)-done, C.WEFT_BATCH)
		var refused error
		for i := range n {
			wr := &wrs[done+i]
			if refused = q.checkSend(wr); refused != nil {
				n = i
				break
			}
			q.sends.putSend(i, wr)
		}
		if n > 0 {
			C.weft_post_send(q.sends.c.self, C.int(n))
			count, errno := q.sends.posted()
			done += count
			if errno != 0 {
				return done, q.dev.fail(rdma.OpPostSend, q.num, errno, rdma.Facts{Max: int64(q.caps.MaxSendWRs)})
			}
		}
		if refused != nil {
			return done, refused
		}
	}
	return len(wrs), nil
}

// posted is the answer of weft_post_send and weft_post_recv.
func (b *batch) posted() (count int, errno syscall.Errno) {
	return int(b.c.posted), syscall.Errno(b.c.error)
}

// checkSend refuses what devices call EINVAL or ENOMEM, or do wrong. Keys and bounds the device checks.
func (q *qp) checkSend(wr *rdma.SendWR) error {
	switch {
	case wr.Op > rdma.CompareSwap:
		return q.badSend("%v does not exist", wr.Op)
	case len(wr.SGL) > q.caps.MaxSendSGEs:
		return q.badSend("%d segments are more than the queue's %d", len(wr.SGL), q.caps.MaxSendSGEs)
	case wr.Inline != nil && (len(wr.SGL) > 0 || wr.Op.Result()):
		return q.badSend("inline data is for sends and writes without segments")
	case len(wr.Inline) > q.caps.MaxInline:
		return q.badSend("%d inline bytes are more than the queue's %d", len(wr.Inline), q.caps.MaxInline)
	case wr.Op.Atomic():
		return q.checkAtomic(wr)
	}
	return nil
}

func (q *qp) checkAtomic(wr *rdma.SendWR) error {
	switch {
	case !q.dev.limits.Atomics:
		return q.dev.refuse(rdma.OpPostSend, q.num, rdma.ErrUnsupported, syscall.EOPNOTSUPP, "the device has no atomics")
	case rdma.TotalLength(wr.SGL) != 8:
		return q.badSend("an atomic needs room for 8 bytes of result, not %d", rdma.TotalLength(wr.SGL))
	case wr.RemoteAddr%8 != 0:
		return q.badSend("an atomic works on 8 aligned bytes, and 0x%x is not a multiple of 8", wr.RemoteAddr)
	}
	return nil
}

func (q *qp) badSend(format string, args ...any) error {
	return q.dev.refuse(rdma.OpPostSend, q.num, rdma.ErrInvalid, syscall.EINVAL, format, args...)
}

// putSend writes a work request into place i.
func (b *batch) putSend(i int, wr *rdma.SendWR) {
	s := &b.sends[i]
	s.id, s.remote_addr, s.rkey, s.imm = C.uint64_t(wr.ID), C.uint64_t(wr.RemoteAddr), C.uint32_t(wr.RKey), C.uint32_t(wr.Imm)
	s.op, s.flags = C.uint8_t(wr.Op), C.uint8_t(wr.Flags)
	s.sges, s.inline_bytes = 0, 0
	switch wr.Op {
	case rdma.FetchAdd:
		s.operand[0], s.operand[1] = C.uint64_t(wr.Add), 0
	case rdma.CompareSwap:
		s.operand[0], s.operand[1] = C.uint64_t(wr.Compare), C.uint64_t(wr.Swap)
	}
	if len(wr.Inline) > 0 {
		s.inline_bytes = C.uint32_t(copy(b.inlines[i*b.maxInline:], wr.Inline))
		return
	}
	s.sges = C.uint16_t(b.putSGL(i, wr.SGL))
}

// putSGL writes the segments of place i, and returns their number. Those of
// length 0 are left out: to some devices that means 2 GiB.
func (b *batch) putSGL(i int, sgl []rdma.SGE) int {
	n := 0
	to := b.sges[i*b.maxSGEs : (i+1)*b.maxSGEs]
	for j := range sgl {
		if sgl[j].Length > 0 {
			to[n] = C.struct_weft_sge{addr: C.uint64_t(sgl[j].Addr), length: C.uint32_t(sgl[j].Length), lkey: C.uint32_t(sgl[j].LKey)}
			n++
		}
	}
	return n
}

func (q *qp) PostRecv(wrs []rdma.RecvWR) (int, error) {
	if !q.closed.enter() {
		return 0, q.isClosed(rdma.OpPostRecv)
	}
	n, again, err := q.postRecv(wrs)
	q.closed.leave()
	if again { // not while Close may wait for this call
		if again := q.Fail(); again != nil {
			err = cmp.Or(err, again)
		}
	}
	return n, err
}

// postRecv says in again that the receives are not flushed before the QP is put into the error state again.
func (q *qp) postRecv(wrs []rdma.RecvWR) (n int, again bool, err error) {
	if q.dev.fatal.Load() {
		return 0, false, q.dev.lost(rdma.OpPostRecv, q.num)
	}
	if q.srq != nil {
		return 0, false, q.dev.refuse(rdma.OpPostRecv, q.num, rdma.ErrInvalid, syscall.EINVAL, "the QP takes its receives from an SRQ: post there")
	}
	state := rdma.QPState(q.state.Load())
	if state == rdma.StateReset {
		return 0, false, q.dev.refuse(rdma.OpPostRecv, q.num, rdma.ErrState, syscall.EINVAL, "nothing can be posted in RESET: INIT comes first")
	}
	n, err = q.recvs.postRecv(q.dev, q.num, q.caps.MaxRecvWRs, wrs)
	return n, n > 0 && state == rdma.StateError && q.dev.flushAgain, err
}

func (b *batch) postRecv(d *device, qpn uint32, room int, wrs []rdma.RecvWR) (int, error) {
	for done := 0; done < len(wrs); {
		n := min(len(wrs)-done, C.WEFT_BATCH)
		var refused error
		for i := range n {
			wr := &wrs[done+i]
			if len(wr.SGL) > b.maxSGEs {
				refused = d.refuse(rdma.OpPostRecv, qpn, rdma.ErrInvalid, syscall.EINVAL, "%d segments are more than the queue's %d", len(wr.SGL), b.maxSGEs)
				n = i
				break
			}
			b.recvs[i].id = C.uint64_t(wr.ID)
			b.recvs[i].sges = C.uint64_t(b.putSGL(i, wr.SGL))
		}
		if n > 0 {
			C.weft_post_recv(b.c.self, C.int(n))
			count, errno := b.posted()
			done += count
			if errno != 0 {
				return done, d.fail(rdma.OpPostRecv, qpn, errno, rdma.Facts{Max: int64(room)})
			}
		}
		if refused != nil {
			return done, refused
		}
	}
	return len(wrs), nil
}
