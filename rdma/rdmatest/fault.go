package rdmatest

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/weft-hpc/weft/rdma"
)

var faultTests = []test{
	{"Calls", testFailedCalls},
	{"RegisterNth", testRegisterNth},
	{"Sends", testFailedSends},
	{"PostMidBatch", testPostMidBatch},
	{"PortDownAndUp", testPortDownAndUp},
	{"PortStaysDown", testPortStaysDown},
	{"CutAndHealed", testCutAndHealed},
	{"CutPeer", testCutPeer},
	{"MistakeLostNotification", testLostNotification},
	{"MistakeDeviceFatal", testDeviceFatal},
}

// faults returns what makes a kind of fault. Where there is nothing, the log says
// what was not tested.
func faults[F any](n *node) (f F, ok bool) {
	f, ok = n.Faults.(F)
	if !ok {
		n.t.Logf("NOT TESTED: %T cannot make this fault on %s", n.Faults, n.Device.Info().Name)
	}
	return f, ok
}

// Every call may fail, says so, and leaves nothing behind.
func testFailedCalls(t *testing.T, open Open) {
	a, b := unconnected(t, open, config{srq: 4})
	f, ok := faults[CallFailer](a)
	if !ok {
		return
	}
	m := a.alloc(64, 0)
	before := a.Device.Resources()
	try := func(op rdma.Op, errno syscall.Errno, kind error, call func() error) {
		t.Helper()
		f.FailCall(op, 1, errno)
		err := call()
		a.wantErr(err, kind)
		if e, _ := errors.AsType[*rdma.Error](err); e.Op != op || !errors.Is(err, errno) {
			t.Errorf("%v does not name %v and %v", err, op, errno)
		}
		if got := a.Device.Resources(); got != before {
			t.Errorf("a failed %v left something behind: %v, before %v", op, got, before)
		}
	}
	try(rdma.OpQueryPort, syscall.EIO, rdma.ErrDeviceFatal, func() error { _, err := a.Device.QueryPort(a.Port); return err })
	try(rdma.OpQueryGIDs, syscall.EIO, rdma.ErrDeviceFatal, func() error { _, err := a.Device.GIDTable(a.Port); return err })
	try(rdma.OpAllocPD, syscall.ENOMEM, rdma.ErrResources, func() error { _, err := a.Device.AllocPD(); return err })
	try(rdma.OpRegisterMemory, syscall.ENOMEM, rdma.ErrResources, func() error { _, err := a.pd.RegisterMemory(m.b, 0); return err })
	try(rdma.OpRegisterMemory, syscall.EPERM, rdma.ErrMemlock, func() error { _, err := a.pd.RegisterMemory(m.b, 0); return err })
	try(rdma.OpCreateChannel, syscall.ENOMEM, rdma.ErrResources, func() error { _, err := a.Device.CreateCompChannel(); return err })
	try(rdma.OpCreateCQ, syscall.ENOMEM, rdma.ErrResources, func() error { _, err := a.Device.CreateCQ(16, nil); return err })
	try(rdma.OpCreateSRQ, syscall.ENOMEM, rdma.ErrResources, func() error { _, err := a.pd.CreateSRQ(rdma.SRQOptions{MaxWRs: 1}); return err })
	try(rdma.OpCreateQP, syscall.ENOMEM, rdma.ErrResources, func() error { _, err := a.pd.CreateQP(a.qpOptions()); return err })
	try(rdma.OpModifyInit, syscall.EINVAL, rdma.ErrInvalid, func() error { return a.qp.Init(a.initAttr()) })
	a.ok(a.qp.Init(a.initAttr()))
	rtr := func() error { return a.qp.ReadyToReceive(a.rtrAttr(b, b.qp.Num(), 1)) }
	for _, errno := range []syscall.Errno{syscall.ETIMEDOUT, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ENODEV} {
		try(rdma.OpModifyRTR, errno, rdma.ErrUnreachable, rtr)
		a.wantState(a.qp, rdma.StateInit)
	}
	a.ok(rtr()) // it works after all
	a.ok(a.qp.ReadyToSend(a.rtsAttr(b, 1)))
	try(rdma.OpPostSend, syscall.ENOMEM, rdma.ErrQueueFull, func() error { _, err := a.qp.PostSend(make([]rdma.SendWR, 1)); return err })
	try(rdma.OpPostRecv, syscall.ENOMEM, rdma.ErrQueueFull, func() error { _, err := a.srq.PostRecv(make([]rdma.RecvWR, 1)); return err })
	try(rdma.OpModifySRQ, syscall.EIO, rdma.ErrDeviceFatal, func() error { return a.srq.SetLimit(1) })
}

func testRegisterNth(t *testing.T, open Open) {
	a, _ := unconnected(t, open, config{})
	f, ok := faults[CallFailer](a)
	if !ok {
		return
	}
	m := a.alloc(64, 0)
	f.FailCall(rdma.OpRegisterMemory, 3, syscall.ENOMEM)
	for i := 1; i <= 5; i++ {
		mr, err := a.pd.RegisterMemory(m.b, 0)
		if i == 3 {
			a.wantErr(err, rdma.ErrResources)
			continue
		}
		a.ok(err)
		a.ok(mr.Close())
	}
}

func testFailedSends(t *testing.T, open Open) {
	for _, status := range []rdma.Status{rdma.StatusRetryExceeded, rdma.StatusRNRRetryExceeded, rdma.StatusRemoteAccess, rdma.StatusGeneral} {
		a, b := pair(t, open, config{})
		f, ok := faults[SendFailer](a)
		if !ok {
			return
		}
		b.recv(make([]rdma.RecvWR, 4)...)
		f.FailSend(status, 3)
		for i := range uint64(4) {
			a.send(rdma.SendWR{ID: i, Flags: rdma.Signaled})
		}
		a.success(0)
		a.success(1)
		a.failure(2, status)
		a.failure(3, rdma.StatusFlushed)
	}
}

// A post that fails in the middle of a batch says how many are under way (libfabric#824).
func testPostMidBatch(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	f, ok := faults[CallFailer](a)
	if !ok {
		return
	}
	b.recv(make([]rdma.RecvWR, 5)...)
	f.FailCall(rdma.OpPostSend, 3, syscall.ENOMEM)
	var wrs []rdma.SendWR
	for i := range uint64(5) {
		wrs = append(wrs, rdma.SendWR{ID: i, Flags: rdma.Signaled})
	}
	n, err := a.qp.PostSend(wrs)
	if n != 2 {
		t.Fatalf("%d posted, and the third failed", n)
	}
	a.wantErr(err, rdma.ErrQueueFull)
	a.send(wrs[n:]...)
	for i := range uint64(5) {
		a.success(i)
	}
}

// A port that comes back in time costs nothing but time.
func testPortDownAndUp(t *testing.T, open Open) {
	a, b := pair(t, open, config{rts: func(r *rdma.RTSAttr) { r.Timeout = 67 * time.Millisecond }})
	f, ok := faults[PortSetter](a)
	if !ok {
		return
	}
	src, dst := a.alloc(100_000, rdma.LocalWrite), b.alloc(100_000, allAccess)
	fill(src.b, 1)
	f.SetPort(false)
	if e := a.event(rdma.PortError); e.Port != a.Port {
		t.Errorf("%v", e)
	}
	port, err := a.Device.QueryPort(a.Port)
	a.ok(err)
	if err := port.CheckActive("x", ""); !errors.Is(err, rdma.ErrPortDown) {
		t.Errorf("a port that is down: %+v", port)
	}
	a.send(rdma.SendWR{ID: 1, Op: rdma.Write, Flags: rdma.Signaled, SGL: src.seg(0, 100_000), RemoteAddr: dst.Addr(), RKey: dst.RKey()})
	a.none("the port is down")
	f.SetPort(true)
	a.event(rdma.PortActivated)
	a.success(1)
	b.want(dst.b, 1, "written over a port that was down")
}

func testPortStaysDown(t *testing.T, open Open) {
	a, b := pair(t, open, config{quick: true})
	f, ok := faults[PortSetter](b) // the peer's: this end hears nothing of it
	if !ok {
		return
	}
	b.recv(rdma.RecvWR{ID: 1})
	f.SetPort(false)
	a.send(rdma.SendWR{ID: 2})
	a.failure(2, rdma.StatusRetryExceeded)
	a.noEvent(rdma.PortError, "only the peer's port is down")
	f.SetPort(true)
}

func testCutAndHealed(t *testing.T, open Open) {
	a, b := pair(t, open, config{rts: func(r *rdma.RTSAttr) { r.Timeout = 67 * time.Millisecond }})
	f, ok := faults[Cutter](a)
	if !ok {
		return
	}
	src, dst := a.alloc(50_000, rdma.LocalWrite), b.alloc(50_000, allAccess)
	fill(src.b, 1)
	for _, op := range []rdma.Opcode{rdma.Write, rdma.Read} {
		f.Cut(true)
		a.send(rdma.SendWR{ID: 1, Op: op, Flags: rdma.Signaled, SGL: src.seg(0, 50_000), RemoteAddr: dst.Addr(), RKey: dst.RKey()})
		a.none("the link is cut")
		f.Cut(false)
		a.success(1)
		b.want(dst.b, 1, "over a link that was cut")
	}
}

// A peer that was cut off is an error at the sender only. A receiver hears
// nothing, which is why it needs a sign of life.
func testCutPeer(t *testing.T, open Open) {
	a, b := pair(t, open, config{quick: true})
	f, ok := faults[Cutter](b)
	if !ok {
		return
	}
	b.recv(rdma.RecvWR{ID: 1})
	f.Cut(true)
	a.send(rdma.SendWR{ID: 2})
	a.failure(2, rdma.StatusRetryExceeded)
	b.none("a receiver hears nothing")
	b.wantState(b.qp, rdma.StateRTS)
	f.Cut(false)
}

// A notification that is lost leaves the completion in the queue: who polls once
// in a while finds it, who only waits does not.
func testLostNotification(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	f, ok := faults[NotificationLoser](b)
	if !ok {
		return
	}
	f.LoseNotifications(1)
	b.ok(b.cq.Arm(false))
	one(a, b, 0)
	if ready, err := readable(b.channel.FD(), 20*time.Millisecond); ready || err != nil {
		t.Fatalf("the notification was not lost: %v", err)
	}
	b.waitIn(1)
	b.ok(b.cq.Arm(false))
	one(a, b, 0)
	b.wantReadable(true, "only one was lost")
	b.wantNotified(b.cq)
	b.waitIn(1)
}

// A device that is lost says so once, completes nothing, refuses everything
// and can be closed. Programs hung while they closed, or kept asking for events (libvma#828).
func testDeviceFatal(t *testing.T, open Open) {
	a, b := pair(t, open, config{quick: true, srq: 4})
	f, ok := faults[Killer](a)
	if !ok {
		return
	}
	src := a.alloc(64, rdma.LocalWrite)
	a.recv(rdma.RecvWR{ID: 1, SGL: src.seg(0, 64)})
	b.recv(rdma.RecvWR{ID: 1})
	a.dead = true
	f.Fatal()
	a.event(rdma.DeviceFatal)
	if ready, err := readable(a.Device.EventFD(), 0); ready || err != nil {
		t.Errorf("events after the last one: %v", err)
	}
	if _, more, err := a.Device.NextEvent(); more || err != nil {
		t.Errorf("an event after the last one: %v", err)
	}
	_, err := a.qp.PostSend(make([]rdma.SendWR, 1))
	a.wantErr(err, rdma.ErrDeviceFatal)
	_, err = a.cq.Poll(make([]rdma.WC, 1))
	a.wantErr(err, rdma.ErrDeviceFatal)
	_, err = a.Device.AllocPD()
	a.wantErr(err, rdma.ErrDeviceFatal)
	_, err = a.pd.RegisterMemory(src.b, 0)
	a.wantErr(err, rdma.ErrDeviceFatal)
	// The peer finds out by itself.
	b.send(rdma.SendWR{ID: 2})
	b.failure(2, rdma.StatusRetryExceeded)
}
