package rdmatest

import (
	"testing"
	"time"

	"github.com/weft-hpc/weft/rdma"
)

var statusTests = []test{
	{"LocalSend", testLocalSend},
	{"LocalReceive", testLocalReceive},
	{"MistakeShortReceive", testMistakeShortReceive},
	{"Remote", testRemote},
	{"MistakeFreedTarget", testMistakeFreedTarget},
	{"NotReadyForEver", testNotReady},
	{"ReadyInTime", testReadyInTime},
	{"MistakePeerIsGone", testMistakePeerIsGone},
	{"PeerFailed", testPeerFailed},
	{"FirstErrorIsTheCause", testFirstError},
	{"MistakeMTUDiffers", testMistakeMTUDiffers},
}

// A case posts one work request that must end with one of the statuses.
type statusCase struct {
	name string
	wr   func(a, b *node) rdma.SendWR
	want []rdma.Status
}

// Segments that are not registered, not in the domain, or a byte too long. Soft-RoCE calls some
// of it an operation error.
func testLocalSend(t *testing.T, open Open) {
	protection := []rdma.Status{rdma.StatusLocalProtection, rdma.StatusLocalOperation, rdma.StatusLocalAccess}
	for _, tc := range []statusCase{
		{"unknown key", func(a, b *node) rdma.SendWR {
			m := a.alloc(64, rdma.LocalWrite)
			return rdma.SendWR{SGL: []rdma.SGE{{Addr: m.Addr(), Length: 64, LKey: m.LKey() ^ 0xffff00}}}
		}, protection},
		{"a byte too long", func(a, b *node) rdma.SendWR {
			m := a.alloc(5000, rdma.LocalWrite)
			return rdma.SendWR{SGL: m.seg(1, 5000)}
		}, protection},
		{"a byte too early", func(a, b *node) rdma.SendWR {
			m := a.alloc(5000, rdma.LocalWrite)
			return rdma.SendWR{SGL: m.seg(-1, 10)}
		}, protection},
		{"closed region", func(a, b *node) rdma.SendWR {
			m := a.alloc(64, rdma.LocalWrite)
			sgl := m.seg(0, 64)
			a.closeMR(m)
			return rdma.SendWR{SGL: sgl}
		}, protection},
		{"READ to memory for reading", func(a, b *node) rdma.SendWR {
			m, from := a.alloc(64, 0), b.alloc(64, allAccess)
			return rdma.SendWR{Op: rdma.Read, SGL: m.seg(0, 64), RemoteAddr: from.Addr(), RKey: from.RKey()}
		}, protection},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := pair(t, open, config{})
			// Room for what leaves before the device finds the mistake.
			b.recv(rdma.RecvWR{ID: 1, SGL: b.alloc(8192, rdma.LocalWrite).seg(0, 8192)})
			wr := tc.wr(a, b)
			wr.ID = 7 // not signaled: an error completes all the same
			a.send(wr)
			a.failure(7, tc.want...)
			a.wantStateSoon(a.qp, rdma.StateError)
		})
	}
	t.Run("other domain", func(t *testing.T) {
		a, _ := pair(t, open, config{})
		pd, err := a.Device.AllocPD()
		a.ok(err)
		m := a.allocIn(pd, 64, rdma.LocalWrite)
		a.send(rdma.SendWR{ID: 7, SGL: m.seg(0, 64)})
		a.failure(7, protection...)
		a.closeMR(m)
		a.ok(pd.Close())
	})
}

// Receives whose memory is wrong fail both ends.
func testLocalReceive(t *testing.T, open Open) {
	for name, sgl := range map[string]func(b *node) []rdma.SGE{
		"a byte too long":    func(b *node) []rdma.SGE { return b.alloc(64, rdma.LocalWrite).seg(1, 64) },
		"memory for reading": func(b *node) []rdma.SGE { return b.alloc(64, 0).seg(0, 64) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, open, config{})
			src := a.alloc(64, rdma.LocalWrite)
			b.recv(rdma.RecvWR{ID: 1, SGL: sgl(b)})
			a.send(rdma.SendWR{ID: 2, SGL: src.seg(0, 64)})
			a.failure(2, rdma.StatusRemoteOperation, rdma.StatusRemoteInvalidRequest)
			b.failure(1, rdma.StatusLocalProtection, rdma.StatusLocalOperation, rdma.StatusLocalAccess, rdma.StatusFlushed)
		})
	}
}

// A message that is one byte longer than the receive that takes it. Soft-RoCE
// calls that an operation error, at both ends.
func testMistakeShortReceive(t *testing.T, open Open) {
	for _, size := range []int{0, 1, 5000} {
		a, b := pair(t, open, config{})
		src, dst := a.alloc(size+1, rdma.LocalWrite), b.alloc(size+64, rdma.LocalWrite)
		set(src.b, 0xcc)
		b.recv(rdma.RecvWR{ID: 1, SGL: dst.seg(0, size)})
		a.send(rdma.SendWR{ID: 2, Flags: rdma.Signaled, SGL: src.seg(0, size+1)})
		a.failure(2, rdma.StatusRemoteInvalidRequest, rdma.StatusRemoteOperation)
		b.failure(1, rdma.StatusLocalLength, rdma.StatusRemoteInvalidRequest, rdma.StatusLocalOperation)
		b.wantAll(dst.b[size:], 0, "behind a receive that was too short")
	}
}

// What a peer must not do with memory ends with an error, and leaves the memory as it was.
func testRemote(t *testing.T, open Open) {
	access, request := rdma.StatusRemoteAccess, rdma.StatusRemoteInvalidRequest
	target := func(op rdma.Opcode, have rdma.Access, off int, key func(m mem) uint32) func(a, b *node) rdma.SendWR {
		return func(a, b *node) rdma.SendWR {
			n := 5000
			if op.Atomic() {
				n = 8
			}
			src, dst := a.alloc(n, rdma.LocalWrite), b.alloc(5000, have)
			set(src.b, 0xbb)
			return rdma.SendWR{Op: op, SGL: src.seg(0, n), RemoteAddr: dst.Addr() + uint64(off), RKey: key(dst), Add: 1}
		}
	}
	right := func(m mem) uint32 { return m.RKey() }
	wrong := func(m mem) uint32 { return m.RKey() ^ 0xffff00 }
	for _, tc := range []statusCase{
		{"write with a wrong key", target(rdma.Write, allAccess, 0, wrong), []rdma.Status{access}},
		{"write a byte too far", target(rdma.Write, allAccess, 1, right), []rdma.Status{access}},
		{"write a byte too early", target(rdma.Write, allAccess, -1, right), []rdma.Status{access}},
		{"write with immediate a byte too far", target(rdma.WriteImm, allAccess, 1, right), []rdma.Status{access}},
		{"write to memory for READ", target(rdma.Write, rdma.LocalWrite|rdma.RemoteRead, 0, right), []rdma.Status{access}},
		{"write to local memory", target(rdma.Write, rdma.LocalWrite, 0, right), []rdma.Status{access}},
		{"READ with a wrong key", target(rdma.Read, allAccess, 0, wrong), []rdma.Status{access}},
		{"READ a byte too far", target(rdma.Read, allAccess, 1, right), []rdma.Status{access}},
		{"READ of memory for write", target(rdma.Read, rdma.LocalWrite|rdma.RemoteWrite, 0, right), []rdma.Status{access}},
		{"atomic on memory for write", target(rdma.FetchAdd, rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead, 0, right), []rdma.Status{access}},
		{"atomic that is not aligned", target(rdma.FetchAdd, allAccess, 4, right), []rdma.Status{request, access, rdma.StatusRemoteOperation}},
		{"atomic too far", target(rdma.CompareSwap, allAccess, 5000, right), []rdma.Status{access}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := pair(t, open, config{})
			wr := tc.wr(a, b)
			if wr.Op.Atomic() && !a.limits.Atomics {
				t.Log("the device has no atomics")
				return
			}
			b.recv(rdma.RecvWR{ID: 1})
			wr.ID, wr.Flags = 7, rdma.Signaled
			if wr.Op.Atomic() && wr.RemoteAddr%8 != 0 { // the one mistake that may be found at once
				if n, err := a.qp.PostSend([]rdma.SendWR{wr}); n == 0 {
					a.wantErr(err, rdma.ErrInvalid)
					return
				}
			} else {
				a.send(wr)
			}
			a.failure(7, tc.want...)
			a.wantStateSoon(a.qp, rdma.StateError)
		})
	}
	t.Run("QP without access", func(t *testing.T) {
		a, b := pair(t, open, config{noAccess: true})
		src, dst := a.alloc(64, rdma.LocalWrite), b.alloc(64, allAccess)
		a.send(rdma.SendWR{ID: 7, Op: rdma.Write, SGL: src.seg(0, 64), RemoteAddr: dst.Addr(), RKey: dst.RKey()})
		a.failure(7, access, request)
	})
	t.Run("LKey for RKey", func(t *testing.T) {
		a, b := pair(t, open, config{})
		src, dst := a.alloc(64, rdma.LocalWrite), b.alloc(64, allAccess)
		if dst.LKey() == dst.RKey() {
			t.Log("on this device both keys are one number")
			return
		}
		a.send(rdma.SendWR{ID: 7, Op: rdma.Write, SGL: src.seg(0, 64), RemoteAddr: dst.Addr(), RKey: dst.LKey()})
		a.failure(7, access)
	})
	t.Run("other domain", func(t *testing.T) {
		a, b := pair(t, open, config{})
		pd, err := b.Device.AllocPD()
		b.ok(err)
		src, dst := a.alloc(64, rdma.LocalWrite), b.allocIn(pd, 64, allAccess)
		set(src.b, 1)
		a.send(rdma.SendWR{ID: 7, Op: rdma.Write, SGL: src.seg(0, 64), RemoteAddr: dst.Addr(), RKey: dst.RKey()})
		a.failure(7, access)
		b.wantAll(dst.b, 0, "memory of another domain")
		b.closeMR(dst)
		b.ok(pd.Close())
	})
}

// A key whose region was closed lets nobody at the memory, which may be
// somebody else's by now: late writes of peers corrupted it (libfabric-cray#1000, monarch#3804,
// nbs#5708, aws-ofi-nccl#921).
func testMistakeFreedTarget(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	src, whole := a.alloc(8192, rdma.LocalWrite), b.alloc(8192, rdma.LocalWrite)
	set(src.b, 0xbb)
	old, err := b.pd.RegisterMemory(whole.b, allAccess)
	b.ok(err)
	key, addr := old.RKey(), old.Addr()
	a.send(rdma.SendWR{ID: 1, Op: rdma.Write, Flags: rdma.Signaled, SGL: src.seg(0, 8192), RemoteAddr: addr, RKey: key})
	a.success(1)
	b.ok(old.Close())
	set(whole.b, 0x11) // the new owner
	again, err := b.pd.RegisterMemory(whole.b, allAccess)
	b.ok(err)
	if again.RKey() == key {
		t.Errorf("key 0x%x was given out again at once", key)
	}
	a.send(rdma.SendWR{ID: 2, Op: rdma.Write, SGL: src.seg(0, 8192), RemoteAddr: addr, RKey: key})
	a.failure(2, rdma.StatusRemoteAccess)
	b.wantAll(whole.b, 0x11, "memory of a new owner")
	b.ok(again.Close())
}

// A peer that posts no receive ends the connection after the retries, and not later: a
// device that retries for ever hid a stopped peer (Nugine/rdma#2).
func testNotReady(t *testing.T, open Open) {
	for _, op := range []rdma.Opcode{rdma.Send, rdma.WriteImm} {
		a, b := pair(t, open, config{quick: true})
		a.send(rdma.SendWR{ID: 1, Op: op}, rdma.SendWR{ID: 2})
		a.failure(1, rdma.StatusRNRRetryExceeded)
		a.failure(2, rdma.StatusFlushed)
		b.none("it had no receive")
		b.wantState(b.qp, rdma.StateRTS)
	}
}

func testReadyInTime(t *testing.T, open Open) {
	a, b := pair(t, open, config{rtr: func(r *rdma.RTRAttr) { r.MinRNRTimer = 80 * time.Millisecond }})
	src, dst := a.alloc(5000, rdma.LocalWrite), b.alloc(5000, allAccess)
	fill(src.b, 1)
	a.send(rdma.SendWR{ID: 1, Flags: rdma.Signaled, SGL: src.seg(0, 5000)},
		rdma.SendWR{ID: 2, Op: rdma.WriteImm, Flags: rdma.Signaled, SGL: src.seg(0, 5000), RemoteAddr: dst.Addr(), RKey: dst.RKey()})
	a.none("the peer has no receive")
	b.recv(rdma.RecvWR{ID: 3, SGL: dst.seg(0, 5000)})
	a.success(1)
	b.success(3)
	b.recv(rdma.RecvWR{ID: 4})
	a.success(2)
	b.success(4)
	b.want(dst.b, 1, "after the receive was posted")
}

// A peer that is gone is an error within the time that was asked for, and not the
// end of this process (ucx#5027). With 7 retries soft-RoCE would wait for ever.
func testMistakePeerIsGone(t *testing.T, open Open) {
	a, b := pair(t, open, config{quick: true})
	src, dst := a.alloc(64, rdma.LocalWrite), b.alloc(64, allAccess)
	wr := rdma.SendWR{ID: 1, Op: rdma.Write, Flags: rdma.Signaled, SGL: src.seg(0, 64), RemoteAddr: dst.Addr(), RKey: dst.RKey()}
	a.send(wr)
	a.success(1)
	b.closeQP(b.qp)
	a.send(wr, rdma.SendWR{ID: 2})
	a.failure(1, rdma.StatusRetryExceeded)
	a.failure(2, rdma.StatusFlushed)
	// The device is well: another connection works.
	qa, qb := a.newQP(), b.newQP()
	connect(a, qa, b, qb)
	a.sendOn(qa, wr)
	a.success(1)
}

func testPeerFailed(t *testing.T, open Open) {
	a, b := pair(t, open, config{quick: true})
	b.ok(b.qp.Fail())
	a.send(rdma.SendWR{ID: 1, Flags: rdma.Signaled})
	a.failure(1, rdma.StatusRetryExceeded, rdma.StatusRemoteOperation, rdma.StatusRemoteInvalidRequest)
}

// One completion tells the cause, all later ones are flushed, earlier ones are as they
// were. In those with an error only ID, status and QP number count (spdk#3214,
// nccl#902).
func testFirstError(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	src, dst := a.alloc(5000, rdma.LocalWrite), b.alloc(5000, allAccess)
	good := rdma.SendWR{Op: rdma.Write, Flags: rdma.Signaled, SGL: src.seg(0, 5000), RemoteAddr: dst.Addr(), RKey: dst.RKey()}
	var wrs []rdma.SendWR
	for i := range 12 {
		wr := good
		wr.ID = uint64(i)
		if i == 5 {
			wr.RemoteAddr++
		}
		wrs = append(wrs, wr)
	}
	a.send(wrs...)
	for i := range uint64(12) {
		switch {
		case i < 5:
			a.success(i)
		case i == 5:
			a.failure(i, rdma.StatusRemoteAccess)
		default:
			a.failure(i, rdma.StatusFlushed)
		}
	}
	a.none("everything has completed")
}

// Ends with different MTUs work, until the first message that is longer than the
// smaller one. Five projects shipped that (nccl#2135, tensorflow#9432, Mooncake#3868,
// nccl-mesh-plugin#12, rocSHMEM#214).
func testMistakeMTUDiffers(t *testing.T, open Open) {
	a, b := unconnected(t, open, config{quick: true})
	large := rdma.PathMTU(a.port.ActiveMTU, b.port.ActiveMTU)
	if large <= 256 {
		t.Fatalf("the path has an MTU of %d", large)
	}
	a.cfg.mtu, b.cfg.mtu = large, 256
	connect(a, a.qp, b, b.qp)
	src, dst := a.alloc(int(2*large), rdma.LocalWrite), b.alloc(int(2*large), allAccess)
	wr := rdma.SendWR{ID: 1, Op: rdma.Write, Flags: rdma.Signaled, SGL: src.seg(0, 64), RemoteAddr: dst.Addr(), RKey: dst.RKey()}
	a.send(wr)
	a.success(1)
	wr.SGL = src.seg(0, int(2*large))
	a.send(wr)
	a.failure(1, rdma.StatusRemoteInvalidRequest, rdma.StatusRetryExceeded)
}
