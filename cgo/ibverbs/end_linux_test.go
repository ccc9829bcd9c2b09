//go:build cgo

package ibverbs

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/rdma"
)

// end is one end of a connection, for tests and benchmarks.
type end struct {
	t    testing.TB
	dev  rdma.Device
	port rdma.Port
	gid  rdma.GIDEntry
	pd   rdma.PD
	ch   rdma.CompChannel
	cq   rdma.CQ
	qp   rdma.QP
	mem  []byte
	mr   rdma.MR
	wcs  [32]rdma.WC
	n, i int
}

const memorySize = 4 << 20

// mapped is memory outside the Go heap.
func mapped(t testing.TB, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return b
}

func newEnd(t testing.TB, d rdma.Device, port, inline int) *end {
	t.Helper()
	e := &end{t: t, dev: d}
	var err error
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	e.port, err = d.QueryPort(port)
	ok(err)
	table, err := d.GIDTable(port)
	ok(err)
	choice, err := rdma.ChooseGID(d.Info().Name, e.port, table, rdma.GIDWish{})
	ok(err)
	e.gid = choice.GIDEntry
	e.pd, err = d.AllocPD()
	ok(err)
	e.ch, err = d.CreateCompChannel()
	ok(err)
	e.cq, err = d.CreateCQ(1023, e.ch)
	ok(err)
	e.qp, err = e.pd.CreateQP(rdma.QPOptions{SendCQ: e.cq, RecvCQ: e.cq,
		Caps: rdma.QPCaps{MaxSendWRs: 255, MaxRecvWRs: 511, MaxSendSGEs: 2, MaxRecvSGEs: 2, MaxInline: inline}})
	ok(err)
	e.mem = mapped(t, memorySize)
	e.mr, err = e.pd.RegisterMemory(e.mem, rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead)
	ok(err)
	return e
}

// connected are two ends on two handles of the real device.
func connected(t testing.TB, io IO, inline int) (a, b *end) {
	t.Helper()
	da, port := realDevice(t, io)
	db, _ := realDevice(t, io)
	a, b = newEnd(t, da, port, inline), newEnd(t, db, port, inline)
	t.Cleanup(func() { a.close(); b.close() })
	for _, e := range []*end{a, b} {
		e.init()
	}
	a.connect(b)
	b.connect(a)
	return a, b
}

func (e *end) init() {
	e.t.Helper()
	if err := e.qp.Init(rdma.InitAttr{Port: e.port.Num, Access: rdma.RemoteWrite | rdma.RemoteRead}); err != nil {
		e.t.Fatal(err)
	}
}

func (e *end) connect(peer *end) {
	e.t.Helper()
	if err := e.qp.ReadyToReceive(e.rtr(peer)); err != nil {
		e.t.Fatal(err)
	}
	if err := e.qp.ReadyToSend(rdma.RTSAttr{SendPSN: e.qp.Num(), MaxReads: 16, Timeout: 67 * time.Millisecond, Retries: 6, RNRRetries: 6}); err != nil {
		e.t.Fatal(err)
	}
}

func (e *end) rtr(peer *end) rdma.RTRAttr {
	return rdma.RTRAttr{Path: rdma.Path{DLID: peer.port.LID, Global: e.port.LinkLayer == rdma.LinkEthernet, DGID: peer.gid.GID, SGIDIndex: e.gid.Index, HopLimit: 64},
		MTU: rdma.PathMTU(e.port.ActiveMTU, peer.port.ActiveMTU), DestQPN: peer.qp.Num(), RecvPSN: peer.qp.Num(), MaxReads: 16, MinRNRTimer: 640 * time.Microsecond}
}

func (e *end) close() {
	for _, c := range []interface{ Close() error }{e.qp, e.mr, e.cq, e.ch, e.pd} {
		if err := c.Close(); err != nil && !e.t.Failed() {
			e.t.Error(err)
		}
	}
}

func (e *end) post(wrs ...rdma.SendWR) {
	if n, err := e.qp.PostSend(wrs); err != nil {
		e.t.Fatalf("%d of %d posted: %v", n, len(wrs), err)
	}
}

func (e *end) recv(wrs ...rdma.RecvWR) {
	if n, err := e.qp.PostRecv(wrs); err != nil {
		e.t.Fatalf("%d of %d posted: %v", n, len(wrs), err)
	}
}

// next polls until a completion comes.
func (e *end) next() *rdma.WC {
	var deadline time.Time
	for polls := 1; e.i == e.n; polls++ {
		n, err := e.cq.Poll(e.wcs[:])
		if err != nil {
			e.t.Fatal(err)
		}
		e.n, e.i = n, 0
		if n > 0 {
			break
		}
		switch {
		case polls%1024 != 0: // the clock is slow in some machines
		case deadline.IsZero():
			deadline = time.Now().Add(30 * time.Second)
		case time.Now().After(deadline):
			e.t.Fatal("no completion came")
		}
	}
	e.i++
	return &e.wcs[e.i-1]
}

// success is the next completion, which must be one.
func (e *end) success() *rdma.WC {
	wc := e.next()
	if err := wc.Err(e.dev.Info().Name); err != nil {
		e.t.Fatal(err)
	}
	return wc
}

// write writes from the start of e's memory to that of the peer's.
func (e *end) write(peer *end, n int) {
	e.post(rdma.SendWR{Op: rdma.Write, Flags: rdma.Signaled, SGL: []rdma.SGE{rdma.Segment(e.mr, 0, n)}, RemoteAddr: peer.mr.Addr(), RKey: peer.mr.RKey()})
	e.success()
}
