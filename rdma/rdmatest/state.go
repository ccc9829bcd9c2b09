package rdmatest

import (
	"testing"
	"time"

	"github.com/weft-hpc/weft/rdma"
)

var stateTests = []test{
	{"Posting", testPostingByState},
	{"Transitions", testTransitions},
	{"Attributes", testAttributes},
	{"ReceiveBeforeReadyToSend", testReceiveBeforeReadyToSend},
	{"Flush", testFlush},
	{"MistakeWaitForLastWQE", testMistakeWaitForLastWQE},
	{"SRQIsNotFlushed", testSRQIsNotFlushed},
	{"ResetAndReconnect", testResetAndReconnect},
	{"ResetForgets", testResetForgets},
}

func testPostingByState(t *testing.T, open Open) {
	a, b := unconnected(t, open, config{})
	wrs, recvs := []rdma.SendWR{{ID: 1, Flags: rdma.Signaled}}, []rdma.RecvWR{{ID: 2}}
	noSend := func() {
		t.Helper()
		n, err := a.qp.PostSend(wrs)
		if n != 0 {
			t.Fatalf("%d sends posted", n)
		}
		a.wantErr(err, rdma.ErrState)
	}
	a.wantState(a.qp, rdma.StateReset)
	noSend()
	_, err := a.qp.PostRecv(recvs)
	a.wantErr(err, rdma.ErrState)
	a.wantErr(a.qp.Fail(), rdma.ErrState)

	a.ok(a.qp.Init(a.initAttr()))
	a.wantState(a.qp, rdma.StateInit)
	noSend()
	a.recv(recvs...)

	a.ok(a.qp.ReadyToReceive(a.rtrAttr(b, b.qp.Num(), 1)))
	a.wantState(a.qp, rdma.StateRTR)
	noSend()
	a.recv(recvs...)

	a.ok(a.qp.ReadyToSend(a.rtsAttr(b, 1)))
	a.wantState(a.qp, rdma.StateRTS)
	a.none("nothing happened yet")
	a.ok(a.qp.Fail())
	a.wantState(a.qp, rdma.StateError)
	a.failure(2, rdma.StatusFlushed)
	a.failure(2, rdma.StatusFlushed)
	a.send(wrs...)
	a.failure(1, rdma.StatusFlushed)
	a.recv(recvs...)
	a.failure(2, rdma.StatusFlushed)
	a.ok(a.qp.Fail()) // again changes nothing
	a.wantState(a.qp, rdma.StateError)
}

// What a state does not allow is refused, and changes nothing.
func testTransitions(t *testing.T, open Open) {
	a, b := unconnected(t, open, config{})
	steps := []struct {
		from, to rdma.QPState
		do       func() error
	}{
		{rdma.StateReset, rdma.StateInit, func() error { return a.qp.Init(a.initAttr()) }},
		{rdma.StateInit, rdma.StateRTR, func() error { return a.qp.ReadyToReceive(a.rtrAttr(b, b.qp.Num(), 1)) }},
		{rdma.StateRTR, rdma.StateRTS, func() error { return a.qp.ReadyToSend(a.rtsAttr(b, 1)) }},
	}
	for i, state := range []rdma.QPState{rdma.StateReset, rdma.StateInit, rdma.StateRTR, rdma.StateRTS, rdma.StateError} {
		for _, s := range steps {
			if s.from != state {
				a.wantErr(s.do(), rdma.ErrState)
				a.wantState(a.qp, state)
			}
		}
		switch {
		case i < len(steps):
			a.ok(steps[i].do())
		case state == rdma.StateRTS:
			a.ok(a.qp.Fail())
		}
	}
	a.ok(a.qp.Reset())
	a.wantState(a.qp, rdma.StateReset)
	a.ok(a.qp.Reset())
}

// Attributes that mean something else than they say are refused by every provider.
func testAttributes(t *testing.T, open Open) {
	a, b := unconnected(t, open, config{})
	init := a.initAttr()
	init.Port = a.limits.Ports + 1
	a.wantErr(a.qp.Init(init), rdma.ErrInvalid)
	init = a.initAttr()
	init.PKeyIndex = 0x10000
	a.wantErr(a.qp.Init(init), rdma.ErrInvalid)
	a.ok(a.qp.Init(a.initAttr()))
	for name, change := range map[string]func(*rdma.RTRAttr){
		"MTU above the port's":       func(r *rdma.RTRAttr) { r.MTU = 2 * a.port.ActiveMTU },
		"MTU that does not exist":    func(r *rdma.RTRAttr) { r.MTU = 1500 },
		"RNR timer 0 means 655 ms":   func(r *rdma.RTRAttr) { r.MinRNRTimer = 0 },
		"QP number of 25 bits":       func(r *rdma.RTRAttr) { r.DestQPN = 1 << 24 },
		"more READs than the device": func(r *rdma.RTRAttr) { r.MaxReads = a.limits.MaxReads + 1 },
		"no address":                 func(r *rdma.RTRAttr) { r.Path.DGID, r.Path.DLID = rdma.GID{}, 0 },
	} {
		attr := a.rtrAttr(b, b.qp.Num(), 1)
		change(&attr)
		if err := a.qp.ReadyToReceive(attr); err == nil {
			t.Errorf("%s was taken", name)
			return
		} else {
			a.wantErr(err, rdma.ErrInvalid)
		}
		a.wantState(a.qp, rdma.StateInit)
	}
	a.ok(a.qp.ReadyToReceive(a.rtrAttr(b, b.qp.Num(), 1)))
	for name, change := range map[string]func(*rdma.RTSAttr){
		"timeout 0 means for ever":             func(r *rdma.RTSAttr) { r.Timeout = 0 },
		"more retries than end":                func(r *rdma.RTSAttr) { r.Retries = a.limits.MaxRetries + 1 },
		"more READs than the device":           func(r *rdma.RTSAttr) { r.MaxReads = a.limits.MaxReads + 1 },
		"more RNR retries than there are":      func(r *rdma.RTSAttr) { r.RNRRetries = 8 },
		"RNR for ever where that must not be ": func(r *rdma.RTSAttr) { r.RNRRetries = rdma.RetryForever + b2i(a.limits.RNRForever) },
	} {
		attr := a.rtsAttr(b, 1)
		change(&attr)
		if err := a.qp.ReadyToSend(attr); err == nil {
			t.Errorf("%s was taken", name)
			return
		} else {
			a.wantErr(err, rdma.ErrInvalid)
		}
		a.wantState(a.qp, rdma.StateRTR)
	}
	a.ok(a.qp.ReadyToSend(a.rtsAttr(b, 1)))
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A QP in RTR receives; it need not be able to send yet.
func testReceiveBeforeReadyToSend(t *testing.T, open Open) {
	a, b := unconnected(t, open, config{})
	for _, n := range []*node{a, b} {
		n.ok(n.qp.Init(n.initAttr()))
	}
	b.recv(rdma.RecvWR{ID: 1})
	b.ok(b.qp.ReadyToReceive(b.rtrAttr(a, a.qp.Num(), 5)))
	a.ok(a.qp.ReadyToReceive(a.rtrAttr(b, b.qp.Num(), 6)))
	a.ok(a.qp.ReadyToSend(a.rtsAttr(b, 5)))
	a.send(rdma.SendWR{ID: 2, Flags: rdma.Signaled})
	a.success(2)
	b.success(1)
	b.ok(b.qp.ReadyToSend(b.rtsAttr(a, 6)))
	a.recv(rdma.RecvWR{ID: 3})
	b.send(rdma.SendWR{ID: 4, Flags: rdma.Signaled})
	b.success(4)
	a.success(3)
}

// Fail completes everything posted, in order: what is done may succeed, all
// that follows the first flush is flushed. Unsignaled requests that are flushed complete too.
func testFlush(t *testing.T, open Open) {
	a, b := pair(t, open, config{rts: func(r *rdma.RTSAttr) { r.RNRRetries, r.Retries = 6, 3 }})
	const n = 40
	var recvs []rdma.RecvWR
	for i := range n {
		recvs = append(recvs, rdma.RecvWR{ID: uint64(100 + i)})
	}
	a.recv(recvs...)
	// The peer posted no receive, so these are under way for some time.
	for i := range n {
		a.send(rdma.SendWR{ID: uint64(i), Flags: rdma.Flags(i%2) * rdma.Signaled})
	}
	rest := a.drain(a.qp)
	send, recv := uint64(0), uint64(100)
	for _, wc := range rest {
		switch {
		case wc.ID == send:
			send++
		case wc.ID == recv:
			recv++
		default:
			t.Fatalf("completion of id %d; wanted send %d or receive %d", wc.ID, send, recv)
		}
		if wc.Status != rdma.StatusFlushed || wc.QPN != a.qp.Num() {
			t.Fatalf("id %d completed with %v on qp 0x%06x", wc.ID, wc.Status, wc.QPN)
		}
	}
	if send != n || recv != 100+n {
		t.Errorf("%d sends and %d receives were flushed, of %d each", send, recv-100, n)
	}
	a.none("drained")
	b.none("it posted nothing")
	a.wantState(a.qp, rdma.StateError)
}

// The last request posted to each queue is the sign that a QP with an SRQ is
// drained. Some devices never send LastWQEReached: who waited for it hung,
// and who waited for nothing used freed memory (ceph#25447, spdk#1075).
func testMistakeWaitForLastWQE(t *testing.T, open Open) {
	a, b := pair(t, open, config{srq: 8})
	b.recv(rdma.RecvWR{ID: 1}, rdma.RecvWR{ID: 2})
	a.send(rdma.SendWR{ID: 3, Flags: rdma.Signaled})
	a.success(3)
	rest := b.drain(b.qp)
	if len(rest) != 1 || rest[0].ID != 1 || rest[0].Status != rdma.StatusSuccess {
		t.Fatalf("before the last request completed: %+v", rest)
	}
}

// The receives of an SRQ outlive a QP that fails.
func testSRQIsNotFlushed(t *testing.T, open Open) {
	a, b := pair(t, open, config{srq: 8})
	qa, qb := a.newQP(), b.newQP()
	connect(a, qa, b, qb)
	b.recv(rdma.RecvWR{ID: 1}, rdma.RecvWR{ID: 2})
	b.closeQP(b.qp)
	b.none("receives of an SRQ are not flushed")
	for i := range uint64(2) {
		a.sendOn(qa, rdma.SendWR{ID: 9, Flags: rdma.Signaled})
		a.success(9)
		b.success(1 + i)
	}
}

// After Reset a QP can be connected anew, to the same or another QP.
func testResetAndReconnect(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	src, dst := a.alloc(9000, rdma.LocalWrite), b.alloc(9000, rdma.LocalWrite)
	for round := range 3 {
		fill(src.b, round)
		b.recv(rdma.RecvWR{ID: 1, SGL: dst.seg(0, 9000)})
		a.send(rdma.SendWR{ID: 2, Flags: rdma.Signaled, SGL: src.seg(0, 9000)})
		a.success(2)
		b.success(1)
		b.want(dst.b, round, "sent after a reset")
		for _, n := range []*node{a, b} {
			n.recv(rdma.RecvWR{ID: 77})
			rest := n.drain(n.qp)
			if len(rest) != 1 || rest[0].ID != 77 {
				t.Fatalf("drained %+v", rest)
			}
			n.ok(n.qp.Reset())
		}
		connect(a, a.qp, b, b.qp)
		a.none("a new connection knows nothing of the old")
		b.none("a new connection knows nothing of the old")
	}
}

// Reset without a drain completes nothing, and what was posted is gone.
func testResetForgets(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	a.recv(rdma.RecvWR{ID: 1}, rdma.RecvWR{ID: 2})
	a.send(rdma.SendWR{ID: 3}, rdma.SendWR{ID: 4, Flags: rdma.Signaled}) // the peer has no receive
	a.ok(a.qp.Reset())
	b.ok(b.qp.Reset())
	if wc, err := a.tryNext(time.Now().Add(20 * time.Millisecond)); err == nil {
		t.Fatalf("completion after a reset: %+v", wc)
	}
	connect(a, a.qp, b, b.qp)
	a.recv(rdma.RecvWR{ID: 5})
	b.send(rdma.SendWR{ID: 6, Flags: rdma.Signaled})
	b.success(6)
	a.success(5)
}
