package rdmatest

import (
	"strings"
	"testing"

	"github.com/weft-hpc/weft/rdma"
)

var deviceTests = []test{
	{"Limits", testLimits},
	{"Port", testPort},
	{"Tables", testTables},
	{"ClosedTwice", testClosedTwice},
	{"EventFDIsQuiet", testEventFDIsQuiet},
}

func testLimits(t *testing.T, open Open) {
	a, _ := unconnected(t, open, config{})
	l := a.limits
	for name, v := range map[string]int{"Ports": l.Ports, "MaxQPs": l.MaxQPs, "MaxQPWRs": l.MaxQPWRs, "MaxSGEs": l.MaxSGEs, "MaxCQs": l.MaxCQs,
		"MaxCQEs": l.MaxCQEs, "MaxSRQs": l.MaxSRQs, "MaxSRQWRs": l.MaxSRQWRs, "MaxMRs": l.MaxMRs, "MaxReads": l.MaxReads, "MaxRetries": l.MaxRetries} {
		if v < 1 {
			t.Errorf("%s is %d", name, v)
		}
	}
	if l.MaxRetries > 7 || l.MaxMRBytes < 1 {
		t.Errorf("MaxRetries %d, MaxMRBytes %d", l.MaxRetries, l.MaxMRBytes)
	}
	// Soft-RoCE takes 7 retries for ever, and RNR retries for ever keep the kernel busy.
	if strings.Contains(a.Device.Info().Driver, "rxe") && (l.MaxRetries > 6 || l.RNRForever) {
		t.Errorf("on soft-RoCE: MaxRetries %d, RNRForever %v", l.MaxRetries, l.RNRForever)
	}
	if a.Device.Info().Name == "" || a.Device.Info().Provider == "" {
		t.Errorf("a device without a name: %+v", a.Device.Info())
	}
}

func testPort(t *testing.T, open Open) {
	a, _ := unconnected(t, open, config{})
	p := a.port
	if p.Num != a.Port || p.State != rdma.PortActive || p.ActiveMTU.Code() == 0 || p.MaxMTU < p.ActiveMTU || p.MaxMessage < 1 || p.GIDs < 1 || p.PKeys < 1 {
		t.Errorf("port: %+v", p)
	}
	if err := p.CheckActive(a.Device.Info().Name, ""); err != nil {
		t.Error(err)
	}
	for _, num := range []int{0, -1, a.limits.Ports + 1, 256 + a.Port} {
		_, err := a.Device.QueryPort(num)
		a.wantErr(err, rdma.ErrInvalid)
		_, err = a.Device.GIDTable(num)
		a.wantErr(err, rdma.ErrInvalid)
		_, err = a.Device.PKeyTable(num)
		a.wantErr(err, rdma.ErrInvalid)
	}
}

func testTables(t *testing.T, open Open) {
	a, _ := unconnected(t, open, config{})
	gids, err := a.Device.GIDTable(a.Port)
	a.ok(err)
	last := -1
	for _, e := range gids {
		if e.Index <= last || e.Index >= a.port.GIDs || e.Err == nil && (e.GID.IsZero() || e.Type == rdma.GIDUnknown) {
			t.Errorf("GID entry %v after index %d, table of %d", e, last, a.port.GIDs)
		}
		last = e.Index
	}
	pkeys, err := a.Device.PKeyTable(a.Port)
	a.ok(err)
	if len(pkeys) != a.port.PKeys {
		t.Errorf("%d partition keys, the port says %d", len(pkeys), a.port.PKeys)
	}
	if _, err := rdma.ChoosePKey(a.Device.Info().Name, a.port, pkeys, 0); err != nil {
		t.Error(err)
	}
}

func testClosedTwice(t *testing.T, open Open) {
	ea, eb := open(t)
	if err := eb.Device.Close(); err != nil {
		t.Error(err)
	}
	a := newNode(t, ea, config{})
	qp := a.newQP()
	m := a.alloc(64, rdma.LocalWrite)
	srq, err := a.pd.CreateSRQ(rdma.SRQOptions{MaxWRs: 4, MaxSGEs: 1})
	a.ok(err)
	for _, c := range []interface{ Close() error }{qp, srq, m, a.cq, a.channel, a.pd, a.Device} {
		a.ok(c.Close())
		a.wantErr(c.Close(), rdma.ErrClosed)
	}
	_, err = a.Device.AllocPD()
	a.wantErr(err, rdma.ErrClosed)
	_, _, err = a.Device.NextEvent()
	a.wantErr(err, rdma.ErrClosed)
	_, err = a.pd.CreateQP(rdma.QPOptions{SendCQ: a.cq, RecvCQ: a.cq})
	a.wantErr(err, rdma.ErrClosed)
	_, err = qp.PostSend(make([]rdma.SendWR, 1))
	a.wantErr(err, rdma.ErrClosed)
	_, err = qp.PostRecv(make([]rdma.RecvWR, 1))
	a.wantErr(err, rdma.ErrClosed)
	_, err = srq.PostRecv(make([]rdma.RecvWR, 1))
	a.wantErr(err, rdma.ErrClosed)
	a.wantErr(srq.SetLimit(1), rdma.ErrClosed)
	a.wantErr(qp.Fail(), rdma.ErrClosed)
	_, err = a.cq.Poll(make([]rdma.WC, 1))
	a.wantErr(err, rdma.ErrClosed)
	a.wantErr(a.cq.Arm(false), rdma.ErrClosed)
	_, _, err = a.channel.Next()
	a.wantErr(err, rdma.ErrClosed)
}

func testEventFDIsQuiet(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	for _, n := range []*node{a, b} {
		for { // some devices tell that a connection is there
			_, more, err := n.Device.NextEvent()
			n.ok(err)
			if !more {
				break
			}
		}
		for _, fd := range []int{n.Device.EventFD(), n.channel.FD()} {
			if ready, err := readable(fd, 0); ready || err != nil {
				t.Errorf("fd %d is readable without a reason: %v, %v", fd, ready, err)
			}
		}
	}
}
