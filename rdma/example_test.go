package rdma_test

import (
	"fmt"
	"log"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/rdma"
	"github.com/weft-hpc/weft/rdma/fake"
)

// peer is one end of the example's connection.
type peer struct {
	dev  rdma.Device
	port rdma.Port
	gid  rdma.GIDChoice
	pd   rdma.PD
	ch   rdma.CompChannel
	cq   rdma.CQ
	mem  []byte
	mr   rdma.MR
	qp   rdma.QP
}

// setUp makes everything that one end needs, parents before children.
func setUp(p rdma.Provider, device string) (*peer, error) {
	e := &peer{}
	var err error
	if e.dev, err = p.Open(device); err != nil {
		return nil, err
	}
	if e.port, err = e.dev.QueryPort(1); err != nil {
		return nil, err
	}
	if err = e.port.CheckActive(device, ""); err != nil {
		return nil, err
	}
	table, err := e.dev.GIDTable(1)
	if err != nil {
		return nil, err
	}
	if e.gid, err = rdma.ChooseGID(device, e.port, table, rdma.GIDWish{}); err != nil {
		return nil, err
	}
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return nil, err
	}
	// Outside the Go heap, and mapped until the region is closed.
	if e.mem, err = unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return nil, err
	}
	if e.mr, err = e.pd.RegisterMemory(e.mem, rdma.LocalWrite|rdma.RemoteWrite); err != nil {
		return nil, err
	}
	if e.ch, err = e.dev.CreateCompChannel(); err != nil {
		return nil, err
	}
	if e.cq, err = e.dev.CreateCQ(64, e.ch); err != nil {
		return nil, err
	}
	e.qp, err = e.pd.CreateQP(rdma.QPOptions{SendCQ: e.cq, RecvCQ: e.cq,
		Caps: rdma.QPCaps{MaxSendWRs: 15, MaxRecvWRs: 15, MaxSendSGEs: 1, MaxRecvSGEs: 1}})
	if err != nil {
		return nil, err
	}
	return e, e.qp.Init(rdma.InitAttr{Port: 1, Access: rdma.RemoteWrite})
}

// connect brings the QP from INIT to RTS. What it needs to know of the other end, its
// GID, MTU, QP number and PSN, went over some other connection.
func (e *peer) connect(gid rdma.GID, mtu rdma.MTU, qpn, myPSN, psn uint32) error {
	err := e.qp.ReadyToReceive(rdma.RTRAttr{
		Path:        rdma.Path{Global: true, DGID: gid, SGIDIndex: e.gid.Index, HopLimit: 64},
		MTU:         rdma.PathMTU(e.port.ActiveMTU, mtu),
		DestQPN:     qpn,
		RecvPSN:     psn,
		MinRNRTimer: 640 * time.Microsecond,
	})
	if err != nil {
		return err
	}
	return e.qp.ReadyToSend(rdma.RTSAttr{SendPSN: myPSN, Timeout: 67 * time.Millisecond, Retries: 6, RNRRetries: 6})
}

// wait returns the next completion. It sleeps without losing a wake-up.
func (e *peer) wait() (rdma.WC, error) {
	var wc [1]rdma.WC
	for {
		if n, err := e.cq.Poll(wc[:]); n > 0 || err != nil {
			return wc[0], err
		}
		if err := e.cq.Arm(false); err != nil {
			return wc[0], err
		}
		// What came before Arm notifies nobody: look again.
		if n, err := e.cq.Poll(wc[:]); n > 0 || err != nil {
			return wc[0], err
		}
		fds := []unix.PollFd{{Fd: int32(e.ch.FD()), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR {
			return wc[0], err
		}
		for more := true; more; {
			var err error
			if _, more, err = e.ch.Next(); err != nil {
				return wc[0], err
			}
		}
	}
}

// tearDown gives everything back, children before parents, when nothing
// can touch the memory any more.
func (e *peer) tearDown() error {
	if err := e.qp.Fail(); err != nil {
		return err
	}
	const last = 1 << 63 // an ID that nothing else has
	if _, err := e.qp.PostSend([]rdma.SendWR{{ID: last, Flags: rdma.Signaled}}); err != nil {
		return err
	}
	if _, err := e.qp.PostRecv([]rdma.RecvWR{{ID: last}}); err != nil {
		return err
	}
	for left := 2; left > 0; {
		wc, err := e.wait()
		if err != nil {
			return err
		}
		if wc.ID == last {
			left--
		}
	}
	for _, c := range []interface{ Close() error }{e.qp, e.mr, e.cq, e.ch, e.pd, e.dev} {
		if err := c.Close(); err != nil {
			return err
		}
	}
	return unix.Munmap(e.mem)
}

// One end writes into the memory of the other, which learns of it by a completion.
func Example() {
	fabric := fake.New(fake.Options{Seed: 1})
	fabric.AddCard("fake0", fake.CardOptions{})
	fabric.AddCard("fake1", fake.CardOptions{MTU: 1024})
	a, err := setUp(fabric, "fake0")
	if err != nil {
		log.Fatal(err)
	}
	b, err := setUp(fabric, "fake1")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(a.gid.Reason)

	// Receives before the peer can send; PSNs are best drawn by chance.
	if _, err := b.qp.PostRecv([]rdma.RecvWR{{ID: 1}}); err != nil {
		log.Fatal(err)
	}
	if err := a.connect(b.gid.GID, b.port.ActiveMTU, b.qp.Num(), 100, 200); err != nil {
		log.Fatal(err)
	}
	if err := b.connect(a.gid.GID, a.port.ActiveMTU, a.qp.Num(), 200, 100); err != nil {
		log.Fatal(err)
	}

	n := copy(a.mem, "over, under")
	if _, err := a.qp.PostSend([]rdma.SendWR{{
		ID: 2, Op: rdma.WriteImm, Flags: rdma.Signaled, Imm: 42,
		SGL: []rdma.SGE{rdma.Segment(a.mr, 0, n)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}}); err != nil {
		log.Fatal(err)
	}
	got, err := b.wait()
	if err != nil {
		log.Fatal(err)
	}
	if err := got.Err("fake1"); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%v: %q, number %d\n", got.Op, b.mem[:got.Bytes], got.Imm)
	sent, err := a.wait()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(sent.Op, sent.Status)

	for _, e := range []*peer{a, b} {
		if err := e.tearDown(); err != nil {
			log.Fatal(err)
		}
	}
	if err := fabric.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// RoCE v2 with IPv4 address
	// receive of RDMA write: "over, under", number 42
	// RDMA write SUCCESS
}

// The wrong index, and what to do about it.
func ExampleChooseGID() {
	port := rdma.Port{Num: 1, LinkLayer: rdma.LinkEthernet}
	local, _ := rdma.ParseGID("fe80::1")
	mapped, _ := rdma.ParseGID("10.77.0.1")
	table := []rdma.GIDEntry{
		{Index: 0, GID: local, Type: rdma.GIDRoCEv2, NetDev: "eth0"},
		{Index: 1, GID: mapped, Type: rdma.GIDRoCEv2, NetDev: "eth0"},
	}
	choice, err := rdma.ChooseGID("rxe0", port, table, rdma.GIDWish{})
	fmt.Println(choice.GIDEntry, "-", choice.Reason, err)
	_, err = rdma.ChooseGID("rxe0", port, table[:1], rdma.GIDWish{NoIPv6: true})
	fmt.Println(err)
	// Output:
	// 1: ::ffff:10.77.0.1 RoCE v2 on eth0 - RoCE v2 with IPv4 address <nil>
	// rdma: choose GID on rxe0:1: no address that peers can route to; the table has: 0: fe80::1 RoCE v2 on eth0; ip addr add ADDRESS/PREFIX dev eth0
}
