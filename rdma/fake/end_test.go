package fake_test

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/rdma"
	"github.com/weft-hpc/weft/rdma/fake"
)

// tb is what tests, benchmarks and properties have in common.
type tb interface {
	Helper()
	Cleanup(func())
	Failed() bool
	Error(args ...any)
	Fatal(args ...any)
}

// end is one side of a connection, for tests of what only this provider does.
type end struct {
	t    tb
	card *fake.Card
	dev  rdma.Device
	pd   rdma.PD
	ch   rdma.CompChannel
	cq   rdma.CQ
	qp   rdma.QP
	gids []rdma.GIDEntry
}

func newEnd(t tb, f *fake.Fabric, name string, opts fake.CardOptions) *end {
	t.Helper()
	e := &end{t: t, card: f.AddCard(name, opts), dev: open(t, f, name)}
	e.pd = must(e.dev.AllocPD())
	e.ch = must(e.dev.CreateCompChannel())
	e.cq = must(e.dev.CreateCQ(256, e.ch))
	e.qp = must(e.pd.CreateQP(rdma.QPOptions{SendCQ: e.cq, RecvCQ: e.cq,
		Caps: rdma.QPCaps{MaxSendWRs: 32, MaxRecvWRs: 32, MaxSendSGEs: 2, MaxRecvSGEs: 2, MaxInline: 32}}))
	e.gids = must(e.dev.GIDTable(1))
	return e
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func check(t tb, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// link is what the two ends of a connection may get wrong.
type link struct {
	gid, peerGID int // index
	pkey         int
	psn          uint32 // of b, as a knows it; the right one is 7
	timeout      time.Duration
	reads        int
}

var goodLink = link{gid: 3, peerGID: 3, psn: 7, timeout: 100 * time.Microsecond, reads: 16}

// connect brings both ends to RTS; the mistakes of l are made by a.
func (a *end) connect(b *end, l link) error {
	setup := func(x, y *end, l link, mine, theirs uint32) error {
		if err := x.qp.Init(rdma.InitAttr{Port: 1, PKeyIndex: l.pkey, Access: rdma.RemoteRead | rdma.RemoteWrite | rdma.RemoteAtomic}); err != nil {
			return err
		}
		if err := x.qp.ReadyToReceive(rdma.RTRAttr{Path: rdma.Path{Global: true, DGID: y.gids[l.peerGID].GID, SGIDIndex: l.gid, HopLimit: 64},
			MTU: 1024, DestQPN: y.qp.Num(), RecvPSN: theirs, MaxReads: l.reads, MinRNRTimer: time.Millisecond}); err != nil {
			return err
		}
		return x.qp.ReadyToSend(rdma.RTSAttr{SendPSN: mine, MaxReads: l.reads, Timeout: l.timeout, Retries: 2, RNRRetries: 2})
	}
	if err := setup(a, b, l, l.psn, 9); err != nil {
		return err
	}
	return setup(b, a, link{gid: 3, peerGID: 3, timeout: l.timeout, reads: l.reads}, 9, 7)
}

// two makes two connected ends. They are taken down at the end.
func two(t tb, seed uint64) (f *fake.Fabric, a, b *end) {
	t.Helper()
	f = newFabric(t, seed)
	a, b = newEnd(t, f, "fake0", fake.CardOptions{}), newEnd(t, f, "fake1", fake.CardOptions{})
	t.Cleanup(func() { a.close(); b.close() })
	check(t, a.connect(b, goodLink))
	return f, a, b
}

func (e *end) close() {
	e.t.Helper()
	for _, c := range []interface{ Close() error }{e.qp, e.cq, e.ch, e.pd, e.dev} {
		if err := c.Close(); err != nil && !e.t.Failed() {
			e.t.Error(err)
		}
	}
}

// region registers memory, which is given back when the queues are closed.
func (e *end) region(n int, access rdma.Access) ([]byte, rdma.MR) {
	b := make([]byte, n)
	mr := must(e.pd.RegisterMemory(b, access))
	e.t.Cleanup(func() {
		if err := e.qp.Reset(); err != nil {
			e.t.Error(err)
		}
		if err := mr.Close(); err != nil && !errors.Is(err, rdma.ErrClosed) {
			e.t.Error(err)
		}
	})
	return b, mr
}

func (e *end) post(wrs ...rdma.SendWR) {
	e.t.Helper()
	if _, err := e.qp.PostSend(wrs); err != nil {
		e.t.Fatal(err)
	}
}

func (e *end) recv(wrs ...rdma.RecvWR) {
	e.t.Helper()
	if _, err := e.qp.PostRecv(wrs); err != nil {
		e.t.Fatal(err)
	}
}

func (e *end) poll() []rdma.WC {
	e.t.Helper()
	wcs := make([]rdma.WC, 64)
	n, err := e.cq.Poll(wcs)
	check(e.t, err)
	return wcs[:n]
}

func (e *end) next() rdma.WC {
	e.t.Helper()
	var wc [1]rdma.WC
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		n, err := e.cq.Poll(wc[:])
		check(e.t, err)
		if n > 0 {
			return wc[0]
		}
	}
	e.t.Fatal("no completion")
	return wc[0]
}

func isReadable(t tb, fd int) bool {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		if err != unix.EINTR { // as it is when the runtime wants the processor
			check(t, err)
			return n > 0
		}
	}
}

const allAccess = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic
