//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/weft-hpc/weft/rdma"
)

// qp is a queue pair.
type qp struct {
	dev            *device
	pd             *pd
	c              *C.struct_ibv_qp
	id             uint64
	num            uint32
	caps           rdma.QPCaps
	sendCQ, recvCQ *cq
	srq            *srq
	closed         closed

	// state is what this process made of it, or learned from a completion. The device
	// may have put it into ERROR already.
	state atomic.Uint32

	sends *batch
	recvs *batch // nil with an SRQ

	mu   sync.Mutex // held over changes of state, which may take seconds, and the end
	init rdma.InitAttr
}

func (p *pd) CreateQP(opts rdma.QPOptions) (rdma.QP, error) {
	d := p.dev
	q := &qp{dev: d, pd: p}
	if err := q.reserve(opts); err != nil {
		return nil, err
	}
	caps, err := q.create(opts.Caps)
	if err != nil {
		q.release()
		return nil, err
	}
	q.caps = rdma.QPCaps{MaxSendWRs: int(caps.sends), MaxRecvWRs: int(caps.recvs), MaxSendSGEs: min(int(caps.send_sges), maxSGEs),
		MaxRecvSGEs: min(int(caps.recv_sges), maxSGEs), MaxInline: int(caps.inline_bytes)}
	if q.srq != nil {
		q.caps.MaxRecvWRs, q.caps.MaxRecvSGEs = 0, 0
	}
	q.sends = newBatch(q.c, nil, false, q.caps.MaxSendSGEs, q.caps.MaxInline)
	if q.srq == nil {
		q.recvs = newBatch(q.c, nil, true, q.caps.MaxRecvSGEs, 0)
	}
	if q.sends == nil || q.srq == nil && q.recvs == nil {
		C.weft_destroy_qp(d.lib, q.c)
		q.free()
		return nil, d.fail(rdma.OpCreateQP, 0, syscall.ENOMEM, rdma.Facts{})
	}
	d.mu.Lock()
	d.qps[q.id], d.numbers[q.num] = q, q
	d.mu.Unlock()
	return q, nil
}

// reserve checks the options, except for sizes, and counts the QP and what it uses.
func (q *qp) reserve(opts rdma.QPOptions) error {
	d, p := q.dev, q.pd
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.closed.Load() {
		return d.refuse(rdma.OpCreateQP, 0, rdma.ErrClosed, 0, "the protection domain was closed")
	}
	if err := d.start(rdma.OpCreateQP); err != nil {
		return err
	}
	sendCQ, ok1 := opts.SendCQ.(*cq)
	recvCQ, ok2 := opts.RecvCQ.(*cq)
	if !ok1 || !ok2 || sendCQ.dev != d || recvCQ.dev != d || sendCQ.closed.Load() || recvCQ.closed.Load() {
		return d.refuse(rdma.OpCreateQP, 0, rdma.ErrInvalid, syscall.EINVAL, "it needs a send CQ and a receive CQ of the same device, not closed")
	}
	if opts.SRQ != nil {
		s, ok := opts.SRQ.(*srq)
		if !ok || s.pd != p || s.closed.Load() {
			return d.refuse(rdma.OpCreateQP, 0, rdma.ErrInvalid, syscall.EINVAL, "the SRQ is of another protection domain, or closed")
		}
		q.srq = s
		s.users++
	}
	q.sendCQ, q.recvCQ = sendCQ, recvCQ
	sendCQ.users++
	recvCQ.users++
	d.count.QPs++
	p.children.QPs++
	d.lastID++
	q.id = d.lastID
	return nil
}

func (q *qp) release() {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	q.sendCQ.users--
	q.recvCQ.users--
	if q.srq != nil {
		q.srq.users--
	}
	d.count.QPs--
	q.pd.children.QPs--
}

// free gives back what a QP has besides the device's part, and uncounts it.
func (q *qp) free() {
	if q.sends != nil {
		C.weft_free_batch(q.sends.c)
	}
	if q.recvs != nil {
		C.weft_free_batch(q.recvs.c)
	}
	q.release()
}

// maxInline is more than any device grants.
const maxInline = 4096

func (q *qp) create(caps rdma.QPCaps) (C.struct_weft_caps, error) {
	d, l := q.dev, &q.dev.limits
	facts := memlockFacts(0)
	facts.Wanted = fmt.Sprintf("%d sends, %d receives, %d send segments, %d receive segments, %d inline bytes",
		caps.MaxSendWRs, caps.MaxRecvWRs, caps.MaxSendSGEs, caps.MaxRecvSGEs, caps.MaxInline)
	bad := func(n, limit int) bool { return n < 0 || n > limit }
	if bad(caps.MaxSendWRs, l.MaxQPWRs) || bad(caps.MaxRecvWRs, l.MaxQPWRs) || bad(caps.MaxSendSGEs, l.MaxSGEs) ||
		bad(caps.MaxRecvSGEs, l.MaxSGEs) || bad(caps.MaxInline, maxInline) {
		return C.struct_weft_caps{}, d.fail(rdma.OpCreateQP, 0, syscall.EINVAL, facts)
	}
	var srq *C.struct_ibv_srq
	ask := C.struct_weft_caps{sends: C.int(max(1, caps.MaxSendWRs)), recvs: C.int(max(1, caps.MaxRecvWRs)), send_sges: C.int(max(1, caps.MaxSendSGEs)),
		recv_sges: C.int(max(1, caps.MaxRecvSGEs)), inline_bytes: C.int(caps.MaxInline)}
	if q.srq != nil {
		srq, ask.recvs, ask.recv_sges = q.srq.c, 0, 0
	}
	for {
		granted := ask
		var num C.uint32_t
		c, err := C.weft_create_qp(d.lib, q.pd.c, C.uint64_t(q.id), q.sendCQ.c, q.recvCQ.c, srq, &granted, &num)
		if c != nil {
			q.c, q.num = c, uint32(num)
			return granted, nil
		}
		errno := errnoOf(err)
		if ask.inline_bytes == 0 || errno != syscall.EINVAL && errno != syscall.ENOMEM {
			return granted, d.fail(rdma.OpCreateQP, 0, errno, facts)
		}
		ask.inline_bytes /= 2 // no device tells how much it can have
	}
}

func (q *qp) Num() uint32       { return q.num }
func (q *qp) Caps() rdma.QPCaps { return q.caps }

// failed follows the device, which has put the QP into the error state.
func (q *qp) failed() {
	for _, s := range [...]rdma.QPState{rdma.StateRTS, rdma.StateRTR, rdma.StateInit} {
		if q.state.CompareAndSwap(uint32(s), uint32(rdma.StateError)) {
			return
		}
	}
}

// usable is the start of a call.
func (q *qp) usable(op rdma.Op) error {
	if q.closed.Load() {
		return q.isClosed(op)
	}
	return q.dev.lost(op, q.num)
}

func (q *qp) isClosed(op rdma.Op) error {
	return q.dev.refuse(op, q.num, rdma.ErrClosed, 0, "the QP was closed")
}

// in says whether the QP is in the state that a transition starts from.
func (q *qp) in(op rdma.Op, want rdma.QPState) error {
	if err := q.usable(op); err != nil {
		return err
	}
	if s := rdma.QPState(q.state.Load()); s != want {
		return q.dev.refuse(op, q.num, rdma.ErrState, syscall.EINVAL, "the QP is in %v, not in %v", s, want)
	}
	return nil
}

// done is the end of a transition: the new state, or why not.
func (q *qp) done(op rdma.Op, errno C.int, to rdma.QPState, facts rdma.Facts) error {
	if errno != 0 {
		return q.dev.fail(op, q.num, syscall.Errno(errno), facts)
	}
	q.state.Store(uint32(to))
	return nil
}

func (q *qp) locate(err error) error { return rdma.Locate(err, q.dev.info.Name, 0, q.num) }

func (q *qp) Init(attr rdma.InitAttr) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.in(rdma.OpModifyInit, rdma.StateReset); err != nil {
		return err
	}
	if err := attr.Check(&q.dev.limits); err != nil {
		return q.locate(err)
	}
	q.init = attr
	facts := rdma.Facts{Wanted: fmt.Sprintf("port %d with partition key index %d", attr.Port, attr.PKeyIndex)}
	return q.done(rdma.OpModifyInit, C.weft_init_qp(q.dev.lib, q.c, C.int(attr.Port), C.int(attr.PKeyIndex), C.int(attr.Access)), rdma.StateInit, facts)
}

func (q *qp) ReadyToReceive(attr rdma.RTRAttr) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	d := q.dev
	if err := q.in(rdma.OpModifyRTR, rdma.StateInit); err != nil {
		return err
	}
	port, err := d.QueryPort(q.init.Port)
	if err != nil {
		return q.locate(err)
	}
	if err := attr.Check(&d.limits, &port); err != nil {
		return q.locate(err)
	}
	timer, _ := rdma.RNRTimerCode(attr.MinRNRTimer)
	path := &attr.Path
	a := C.struct_weft_rtr{
		dest_qpn: C.uint32_t(attr.DestQPN), psn: C.uint32_t(attr.RecvPSN), flow_label: C.uint32_t(path.FlowLabel), port: C.int(q.init.Port),
		sgid_index: C.int(path.SGIDIndex), mtu: C.int(attr.MTU.Code()), reads: C.int(attr.MaxReads), rnr_timer: C.int(timer),
		hop_limit: C.int(path.HopLimit), traffic_class: C.int(path.TrafficClass), service_level: C.int(path.ServiceLevel), dlid: C.int(path.DLID),
	}
	if path.Global {
		a.global = 1
	}
	for i, b := range path.DGID {
		a.dgid[i] = C.uint8_t(b)
	}
	errno := C.weft_rtr_qp(d.lib, q.c, &a)
	if err := q.done(rdma.OpModifyRTR, errno, rdma.StateRTR, rdma.Facts{}); err != nil {
		e := &rdma.Error{Op: rdma.OpModifyRTR, Device: d.info.Name, Port: q.init.Port, QPN: q.num, Errno: syscall.Errno(errno)}
		if path.Global {
			e.Peer = path.DGID.String()
		} else {
			e.Peer = fmt.Sprintf("LID %d", path.DLID)
		}
		return rdma.Explain(e, rdma.Facts{NetDev: d.p.sysfs.netdev(d.info.Name, q.init.Port, path.SGIDIndex)})
	}
	return nil
}

func (q *qp) ReadyToSend(attr rdma.RTSAttr) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.in(rdma.OpModifyRTS, rdma.StateRTR); err != nil {
		return err
	}
	if err := attr.Check(&q.dev.limits); err != nil {
		return q.locate(err)
	}
	timeout, _ := rdma.AckTimeoutCode(attr.Timeout)
	errno := C.weft_rts_qp(q.dev.lib, q.c, C.uint32_t(attr.SendPSN), C.int(attr.MaxReads), C.int(timeout), C.int(attr.Retries), C.int(attr.RNRRetries))
	return q.done(rdma.OpModifyRTS, errno, rdma.StateRTS, rdma.Facts{})
}

func (q *qp) Fail() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.usable(rdma.OpModifyError); err != nil {
		return err
	}
	if rdma.QPState(q.state.Load()) == rdma.StateReset {
		return q.dev.refuse(rdma.OpModifyError, q.num, rdma.ErrState, syscall.EINVAL, "the QP is in RESET: it has nothing to cancel")
	}
	return q.done(rdma.OpModifyError, C.weft_fail_qp(q.dev.lib, q.c), rdma.StateError, rdma.Facts{})
}

func (q *qp) Reset() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.usable(rdma.OpModifyReset); err != nil {
		return err
	}
	return q.done(rdma.OpModifyReset, C.weft_reset_qp(q.dev.lib, q.c), rdma.StateReset, rdma.Facts{})
}

func (q *qp) State() (rdma.QPState, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.usable(rdma.OpQueryQP); err != nil {
		return 0, err
	}
	var s C.int
	if errno := C.weft_query_qp(q.dev.lib, q.c, &s); errno != 0 {
		return 0, q.dev.fail(rdma.OpQueryQP, q.num, syscall.Errno(errno), rdma.Facts{})
	}
	state := rdma.QPState(s)
	if state == rdma.StateError {
		q.failed()
	}
	return state, nil
}

func (q *qp) Close() error {
	d := q.dev
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := d.closing(rdma.OpCloseQP, &q.closed, nil, ""); err != nil {
		return rdma.Locate(err, "", 0, q.num)
	}
	q.closed.wait()
	// Its number may be another's as soon as it is destroyed.
	d.mu.Lock()
	delete(d.numbers, q.num)
	d.mu.Unlock()
	if err := d.failedClosing(rdma.OpCloseQP, q.num, &q.closed, C.weft_destroy_qp(d.lib, q.c)); err != nil {
		d.mu.Lock()
		d.numbers[q.num] = q
		d.mu.Unlock()
		return err
	}
	d.mu.Lock()
	delete(d.qps, q.id)
	d.mu.Unlock()
	q.free()
	return nil
}
