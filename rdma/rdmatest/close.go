package rdmatest

import (
	"errors"
	"sync"
	"testing"

	"github.com/weft-hpc/weft/rdma"
)

var closeTests = []test{
	{"ParentsBeforeChildren", testParentsBeforeChildren},
	{"Counts", testCounts},
	{"RegionInUse", testRegionInUse},
	{"MistakeCloseWithoutDrain", testCloseWithoutDrain},
	{"Cycles", testCycles},
	{"Concurrent", testConcurrent},
}

// A parent with children is refused, and works on.
func testParentsBeforeChildren(t *testing.T, open Open) {
	a, b := pair(t, open, config{srq: 4})
	src := a.alloc(64, rdma.LocalWrite)
	refuse := func(c interface{ Close() error }) {
		t.Helper()
		err := c.Close()
		a.wantErr(err, rdma.ErrBusy)
	}
	for _, c := range []interface{ Close() error }{a.Device, a.pd, a.cq, a.channel, a.srq} {
		refuse(c)
	}
	b.recv(rdma.RecvWR{ID: 1})
	a.send(rdma.SendWR{ID: 2, Flags: rdma.Signaled})
	a.success(2)
	b.success(1)
	a.closeQP(a.qp)
	for _, c := range []interface{ Close() error }{a.Device, a.pd, a.channel} {
		refuse(c)
	}
	a.closeMR(src)
	refuse(a.pd) // the SRQ
}

func testCounts(t *testing.T, open Open) {
	a, b := unconnected(t, open, config{srq: 4})
	m1, _ := a.alloc(64, 0), a.alloc(64, 0)
	want := rdma.Resources{PDs: 1, MRs: 2, Channels: 1, CQs: 1, SRQs: 1, QPs: 1}
	check := func() {
		t.Helper()
		if got := a.Device.Resources(); got != want {
			t.Errorf("the device counts %v; it has %v", got, want)
		}
	}
	check()
	a.closeMR(m1)
	want.MRs--
	check()
	a.newQP()
	want.QPs++
	check()
	// What is refused is not counted.
	_, err := a.pd.RegisterMemory(nil, 0)
	a.wantErr(err, rdma.ErrInvalid)
	_, err = a.Device.CreateCQ(a.limits.MaxCQEs+1, nil)
	a.wantErr(err, rdma.ErrInvalid)
	_, err = a.pd.CreateQP(rdma.QPOptions{})
	a.wantErr(err, rdma.ErrInvalid)
	check()
	if got := b.Device.Resources(); got.MRs != 0 {
		t.Errorf("the other device counts %v", got)
	}
}

// A region that posted work names: either it stays, or the work fails. It never
// succeeds.
func testRegionInUse(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	src, dst := a.alloc(64, rdma.LocalWrite), b.alloc(64, rdma.LocalWrite)
	b.recv(rdma.RecvWR{ID: 1, SGL: dst.seg(0, 64)})
	err := dst.Close()
	if b.limits.Inspects && err == nil {
		t.Fatal("the device says that it inspects, and let a region go that a receive names")
	}
	a.send(rdma.SendWR{ID: 2, Flags: rdma.Signaled, SGL: src.seg(0, 64)})
	if err != nil {
		b.wantErr(err, rdma.ErrBusy)
		a.success(2)
		b.success(1)
		b.closeMR(dst)
		return
	}
	b.failure(1, rdma.StatusLocalProtection, rdma.StatusLocalOperation, rdma.StatusLocalAccess, rdma.StatusFlushed)
	a.failure(2, rdma.StatusRemoteOperation, rdma.StatusRemoteInvalidRequest)
	for i := range b.regions {
		if b.regions[i].mr == dst.MR {
			b.regions = append(b.regions[:i], b.regions[i+1:]...)
			break
		}
	}
}

// Completions of a QP that was closed without a drain are lost, or come under its old
// number; never under that of another. Programs that trusted ids alone used freed
// memory (ceph#25447, spdk#1075, spdk#3859).
func testCloseWithoutDrain(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	src, dst := a.alloc(64*1000, rdma.LocalWrite), b.alloc(64*1000, allAccess)
	for i := range 30 {
		a.recv(rdma.RecvWR{ID: uint64(i)})
		a.send(rdma.SendWR{ID: uint64(i), Op: rdma.Write, Flags: rdma.Signaled, SGL: src.seg(0, 1000*i), RemoteAddr: dst.Addr(), RKey: dst.RKey()})
	}
	old := a.qp
	a.ok(old.Close())
	a.qps = nil
	b.closeQP(b.qp)
	for range 10 {
		a.qp, b.qp = a.newQP(), b.newQP()
		connect(a, a.qp, b, b.qp)
		b.recv(rdma.RecvWR{ID: 1})
		a.send(rdma.SendWR{ID: 500, Flags: rdma.Signaled})
		wc := a.next()
		for wc.QPN == old.Num() && wc.ID < 30 {
			wc = a.next()
		}
		if wc.ID != 500 || wc.QPN != a.qp.Num() || wc.Status != rdma.StatusSuccess {
			t.Fatalf("completion %+v; wanted id 500 of qp 0x%06x, the closed one was 0x%06x", wc, a.qp.Num(), old.Num())
		}
		b.success(1)
		a.closeQP(a.qp)
		b.closeQP(b.qp)
	}
	a.closeMR(src) // nothing uses it any more
}

// Everything but one queue may be used by any goroutine, also while messages fly.
func testConcurrent(t *testing.T, open Open) {
	const rounds = 200
	a, b := pair(t, open, config{recvs: 8})
	for _, n := range []*node{a, b} {
		n.recv(rdma.RecvWR{}, rdma.RecvWR{})
	}
	a.send(rdma.SendWR{Flags: rdma.Signaled})
	var all sync.WaitGroup
	for n, answers := range map[*node]int{a: rounds - 1, b: rounds} {
		all.Go(func() {
			if err := n.pingPong([]rdma.QP{n.qp}, rounds, answers); err != nil {
				t.Error(err)
			}
		})
		for range 2 {
			m := n.alloc(4096, 0)
			all.Go(func() {
				for range 50 {
					if err := n.churn(m); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	all.Wait()
}

// churn makes and closes one of each.
func (n *node) churn(m mem) error {
	mr, err := n.pd.RegisterMemory(m.b, 0)
	if err != nil {
		return err
	}
	cq, err := n.Device.CreateCQ(4, nil)
	if err != nil {
		return err
	}
	qp, err := n.pd.CreateQP(rdma.QPOptions{SendCQ: cq, RecvCQ: cq, Caps: rdma.QPCaps{MaxSendWRs: 1, MaxRecvWRs: 1}})
	if err != nil {
		return err
	}
	if _, err := n.qp.State(); err != nil {
		return err
	}
	if _, err := n.Device.QueryPort(n.Port); err != nil {
		return err
	}
	if _, _, err := n.Device.NextEvent(); err != nil {
		return err
	}
	return errors.Join(qp.Init(n.initAttr()), qp.Close(), cq.Close(), mr.Close())
}

// Nothing is used up by setting up and taking down.
func testCycles(t *testing.T, open Open) {
	a, b := unconnected(t, open, config{})
	for range 40 {
		qa, qb := a.newQP(), b.newQP()
		m := a.alloc(4096, allAccess)
		connect(a, qa, b, qb)
		if _, err := qb.PostRecv([]rdma.RecvWR{{ID: 1}}); err != nil {
			t.Fatal(err)
		}
		a.sendOn(qa, rdma.SendWR{ID: 2, Flags: rdma.Signaled, Inline: nil})
		a.success(2)
		if wc := b.next(); wc.ID != 1 || wc.Status != rdma.StatusSuccess {
			t.Fatalf("completion %+v", wc)
		}
		a.closeQP(qa)
		b.closeQP(qb)
		a.closeMR(m)
	}
	if err := a.pd.Close(); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("a PD with a QP: %v", err)
	}
}
