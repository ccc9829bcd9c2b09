package rdma_test

import (
	"errors"
	"io"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-hpc/weft/rdma"
)

func gid(t *testing.T, s string) rdma.GID {
	t.Helper()
	g, err := rdma.ParseGID(s)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func entry(t *testing.T, index int, addr string, kind rdma.GIDType, netdev string) rdma.GIDEntry {
	return rdma.GIDEntry{Index: index, GID: gid(t, addr), Type: kind, NetDev: netdev}
}

var ethernet = rdma.Port{Num: 1, State: rdma.PortActive, LinkLayer: rdma.LinkEthernet, GIDs: 16, ActiveMTU: 4096, MaxMTU: 4096}

// Programs that took index 0, or the first entry that was not empty, hung at
// their first message (nccl#426, nccl#2013, ucx#2434); others ended at an entry that
// containers cannot read (uccl#301).
func TestMistakeGIDIndexZero(t *testing.T) {
	v1, v2 := rdma.GIDRoCEv1, rdma.GIDRoCEv2
	table := []rdma.GIDEntry{
		entry(t, 0, "fe80::1", v1, "eth0"),
		entry(t, 1, "fe80::1", v2, "eth0"),
		entry(t, 2, "2001:db8::1", v1, "eth0"),
		entry(t, 3, "2001:db8::1", v2, "eth0"),
		entry(t, 4, "10.0.0.1", v1, "eth0"),
		entry(t, 5, "10.0.0.1", v2, "eth0"),
		entry(t, 6, "192.168.7.1", v2, "eth0.7"),
		{Index: 7, Type: v2},
		{Index: 8, Err: syscall.EINVAL}, // as in containers
	}
	index := func(i int) *int { return &i }
	for _, tc := range []struct {
		name   string
		table  []rdma.GIDEntry
		wish   rdma.GIDWish
		want   int
		reason string
	}{
		{"IPv4 over v2 first", table, rdma.GIDWish{}, 5, "RoCE v2 with IPv4 address"},
		{"then global IPv6", table[:4], rdma.GIDWish{}, 3, "RoCE v2 with global IPv6 address"},
		{"then link-local", table[:2], rdma.GIDWish{}, 1, "RoCE v2 with link-local IPv6 address"},
		{"v1 if there is no v2", []rdma.GIDEntry{table[0], table[4]}, rdma.GIDWish{}, 4, "RoCE v1 with IPv4 address"},
		{"unreadable and empty entries are passed over", []rdma.GIDEntry{table[8], table[7], table[1]}, rdma.GIDWish{}, 1, "link-local"},
		{"the interface asked for", table, rdma.GIDWish{NetDev: "eth0.7"}, 6, "on the interface asked for"},
		{"the peers' network", table, rdma.GIDWish{Subnet: netip.MustParsePrefix("192.168.0.0/16")}, 6, "in the peers' network 192.168.0.0/16"},
		{"the network before the interface", table, rdma.GIDWish{NetDev: "eth0", Subnet: netip.MustParsePrefix("192.168.7.0/24")}, 6, "network"},
		{"an interface without addresses is only a wish", table, rdma.GIDWish{NetDev: "ib9"}, 5, "RoCE v2 with IPv4"},
		{"index 0 if asked for", table, rdma.GIDWish{Index: index(0)}, 0, "asked for as index 0; RoCE v1 with link-local"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := rdma.ChooseGID("mlx5_0", ethernet, tc.table, tc.wish)
			if err != nil {
				t.Fatal(err)
			}
			if c.Index != tc.want || !strings.Contains(c.Reason, tc.reason) {
				t.Errorf("chose index %d, %q; want %d, %q", c.Index, c.Reason, tc.want, tc.reason)
			}
			if len(c.Rejected) != len(tc.table)-1 {
				t.Errorf("reasons for %d of %d entries not chosen: %q", len(c.Rejected), len(tc.table)-1, c.Rejected)
			}
		})
	}
	for name, tc := range map[string]struct {
		table []rdma.GIDEntry
		wish  rdma.GIDWish
		want  string
	}{
		"nothing":         {nil, rdma.GIDWish{}, "no address that peers can route to; the table has: no entry; give the network interface"},
		"IPv6 is off":     {table[:4], rdma.GIDWish{NoIPv6: true}, "ip addr add ADDRESS/PREFIX dev eth0"},
		"an empty index":  {table, rdma.GIDWish{Index: index(7)}, "GID index 7 is empty or unusable; the table has: 0: fe80::1 RoCE v1 on eth0"},
		"not an index":    {table, rdma.GIDWish{Index: index(99)}, "GID index 99"},
		"an unread index": {table, rdma.GIDWish{Index: index(8)}, "8: unusable (invalid argument)"},
		"a refused index": {[]rdma.GIDEntry{{Index: 2, GID: table[4].GID, Type: rdma.GIDRoCEv2, NetDev: "eth0", Err: syscall.EINVAL}}, rdma.GIDWish{Index: index(2)},
			"2: ::ffff:10.0.0.1 RoCE v2 on eth0 unusable (invalid argument)"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rdma.ChooseGID("mlx5_0", ethernet, tc.table, tc.wish)
			if !errors.Is(err, rdma.ErrNoGID) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v; want ErrNoGID with %q", err, tc.want)
			}
		})
	}
}

func TestChooseGIDInfiniBand(t *testing.T) {
	ib := rdma.Port{Num: 1, LinkLayer: rdma.LinkInfiniBand}
	c, err := rdma.ChooseGID("mlx5_0", ib, []rdma.GIDEntry{entry(t, 0, "fe80::2", rdma.GIDInfiniBand, "")}, rdma.GIDWish{})
	if err != nil || c.Index != 0 {
		t.Errorf("%v, %v", c, err)
	}
}

// NVSHMEM and NCCL took partition key index 0 on InfiniBand (nvshmem#82, nccl#1323), UCX searched on
// Ethernet (ucx#7724).
func TestMistakePKeyIndexZero(t *testing.T) {
	ib := rdma.Port{Num: 1, LinkLayer: rdma.LinkInfiniBand}
	for _, tc := range []struct {
		port  rdma.Port
		table []uint16
		want  uint16
		index int
		err   string
	}{
		{ib, []uint16{0x7fff, 0x8001}, 0, 1, ""},
		{ib, []uint16{0xffff}, 0, 0, ""},
		{ib, []uint16{0x7fff, 0, 0x8001, 0x0002}, 0x8001, 2, ""},
		{ib, []uint16{0x7fff, 0x8001}, 0x0001, 1, ""},
		{ib, []uint16{0xffff, 0x0002}, 0x0002, 1, ""},
		{ib, []uint16{0xffff, 0x0002}, 0x8002, 0, "partition key 0x8002 is not in the port's table (0xffff, 0x0002)"},
		{ib, []uint16{0x7fff}, 0, 0, "partition key of a full member is not in the port's table (0x7fff)"},
		{ethernet, []uint16{0x7fff, 0x8001}, 0, 0, ""},
	} {
		i, err := rdma.ChoosePKey("mlx5_0", tc.port, tc.table, tc.want)
		if tc.err == "" && (err != nil || i != tc.index) || tc.err != "" && (!errors.Is(err, rdma.ErrNoPKey) || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%x wants 0x%x: index %d, %v; want %d, %q", tc.table, tc.want, i, err, tc.index, tc.err)
		}
	}
}

func TestChoosePort(t *testing.T) {
	port := func(dev string, num, numa int, rate float64, state rdma.PortState) rdma.Candidate {
		return rdma.Candidate{Device: rdma.DeviceInfo{Name: dev, NUMANode: numa},
			Port: rdma.Port{Num: num, State: state, Rate: rate, LinkLayer: rdma.LinkEthernet}}
	}
	iwarp := port("cxgb4_0", 1, 0, 40, rdma.PortActive)
	iwarp.Device.IWARP = true
	all := []rdma.Candidate{
		port("mlx5_2", 1, 1, 100, rdma.PortActive), port("mlx5_1", 1, 0, 200, rdma.PortActive), port("mlx5_0", 1, 0, 200, rdma.PortDown),
		port("mlx5_0", 2, 0, 100, rdma.PortActive), port("mlx5_3", 1, 1, 200, rdma.PortActive), iwarp,
	}
	for _, tc := range []struct {
		spec   string
		numa   int
		want   string
		reason string
		kind   error
		text   string
	}{
		{"", -1, "mlx5_1:1", "the first by name of equally good ones of 4 active ports", nil, ""},
		{"", 0, "mlx5_1:1", "the fastest (200 Gbit/s)", nil, ""},
		{"", 1, "mlx5_3:1", "the fastest (200 Gbit/s)", nil, ""},
		{"mlx5_0", 1, "mlx5_0:2", "asked for as mlx5_0", nil, ""},
		{"mlx5_2:1", 0, "mlx5_2:1", "asked for", nil, ""},
		{"mlx5_0:1", 0, "", "", rdma.ErrPortDown, "choose port on mlx5_0:1: port state is down"},
		{"mlx5_1:2", 0, "", "", rdma.ErrInvalid, "it has no port 2"},
		{"mlx5-1", 0, "", "", rdma.ErrNoDevice, "there is no device mlx5-1 (did you mean mlx5_1?); there is: mlx5_2, mlx5_1, mlx5_0, mlx5_3, cxgb4_0"},
		{"cxgb4_0", 0, "", "", rdma.ErrUnsupported, "iWARP"},
		{"mlx5_0:x", 0, "", "", rdma.ErrInvalid, `"x" is not the number of a port`},
		{":1", 0, "", "", rdma.ErrInvalid, "names no device"},
	} {
		c, reason, err := rdma.ChoosePort(all, tc.spec, tc.numa)
		if tc.kind != nil {
			if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("%q: %v; want %v with %q", tc.spec, err, tc.kind, tc.text)
			}
			continue
		}
		if err != nil || c.String() != tc.want || !strings.Contains(reason, tc.reason) {
			t.Errorf("%q on node %d: %v, %q, %v; want %s, %q", tc.spec, tc.numa, c, reason, err, tc.want, tc.reason)
		}
	}
	if _, _, err := rdma.ChoosePort(all[5:], "", -1); !errors.Is(err, rdma.ErrPortDown) || !strings.Contains(err.Error(), "cxgb4_0:1 is iWARP") {
		t.Errorf("only an iWARP port: %v", err)
	}
	if _, _, err := rdma.ChoosePort(nil, "", -1); !errors.Is(err, rdma.ErrNoDevice) {
		t.Errorf("no port at all: %v", err)
	}
}

// Open MPI warns of it: separate fabrics that have one prefix make ranks connect
// ports that cannot reach each other.
func TestMistakeDefaultSubnetPrefix(t *testing.T) {
	port := func(dev string, link rdma.LinkLayer, state rdma.PortState, subnet uint64) rdma.Candidate {
		return rdma.Candidate{Device: rdma.DeviceInfo{Name: dev}, Port: rdma.Port{Num: 1, State: state, LinkLayer: link}, Subnet: subnet}
	}
	const def = rdma.DefaultSubnetPrefix
	one := port("mlx5_0", rdma.LinkInfiniBand, rdma.PortActive, def)
	for _, tc := range []struct {
		second rdma.Candidate
		clash  bool
	}{
		{port("mlx5_1", rdma.LinkInfiniBand, rdma.PortActive, def), true},
		{port("mlx5_1", rdma.LinkInfiniBand, rdma.PortActive, def+1), false},
		{port("mlx5_1", rdma.LinkInfiniBand, rdma.PortDown, def), false},
		{port("mlx5_1", rdma.LinkEthernet, rdma.PortActive, def), false},
	} {
		got := rdma.SubnetClash([]rdma.Candidate{one, tc.second})
		if (got != "") != tc.clash || tc.clash && !strings.Contains(got, "ports mlx5_0:1, mlx5_1:1 all have") {
			t.Errorf("%+v: %q", tc.second, got)
		}
	}
}

func TestMTU(t *testing.T) {
	for code := 1; code <= 5; code++ {
		if m := rdma.MTUFromCode(code); m.Code() != code {
			t.Errorf("code %d: MTU %d: code %d", code, m, m.Code())
		}
	}
	if rdma.MTUFromCode(5) != 4096 || rdma.MTUFromCode(0) != 0 || rdma.MTUFromCode(6) != 0 || rdma.MTU(1500).Code() != 0 || rdma.MTU(0).Code() != 0 {
		t.Error("limits of MTU codes")
	}
	if rdma.PathMTU(1024, 4096) != 1024 {
		t.Error("the path MTU is the smaller one")
	}
}

// A timer of 0 means 655 ms: a storage system did 721 operations in the time of 203 thousand (nbs#5790).
func TestMistakeRNRTimerZero(t *testing.T) {
	a := validRTR()
	a.MinRNRTimer = 0
	if err := a.Check(limits(), &ethernet); !errors.Is(err, rdma.ErrInvalid) || !strings.Contains(err.Error(), "655.36 ms") {
		t.Errorf("MinRNRTimer 0: %v", err)
	}
	for _, tc := range []struct {
		d      time.Duration
		code   uint8
		actual time.Duration
	}{
		{1, 1, 10 * time.Microsecond}, {10 * time.Microsecond, 1, 10 * time.Microsecond}, {10*time.Microsecond + 1, 2, 20 * time.Microsecond},
		{640 * time.Microsecond, 12, 640 * time.Microsecond}, {491520 * time.Microsecond, 31, 491520 * time.Microsecond},
		{491520*time.Microsecond + 1, 0, 655360 * time.Microsecond},
	} {
		if code, actual := rdma.RNRTimerCode(tc.d); code != tc.code || actual != tc.actual {
			t.Errorf("%v: code %d, %v; want %d, %v", tc.d, code, actual, tc.code, tc.actual)
		}
	}
}

func TestAckTimeoutCode(t *testing.T) {
	for _, tc := range []struct {
		d      time.Duration
		code   uint8
		actual time.Duration
	}{
		{1, 1, 8192}, {8192, 1, 8192}, {8193, 2, 16384}, {67 * time.Millisecond, 14, 4096 << 14}, {time.Second, 18, 4096 << 18},
		{4096 << 31, 31, 4096 << 31}, {1 << 62, 31, 4096 << 31}, {rdma.Forever, 0, rdma.Forever},
	} {
		if code, actual := rdma.AckTimeoutCode(tc.d); code != tc.code || actual != tc.actual {
			t.Errorf("%v: code %d, %v; want %d, %v", tc.d, code, actual, tc.code, tc.actual)
		}
	}
}

func limits() *rdma.Limits {
	return &rdma.Limits{Ports: 1, MaxReads: 16, MaxRetries: 6}
}

func validRTR() rdma.RTRAttr {
	return rdma.RTRAttr{Path: rdma.Path{Global: true, DGID: rdma.GID{15: 1}, SGIDIndex: 1, HopLimit: 64}, MTU: 4096, DestQPN: 17,
		MaxReads: 16, MinRNRTimer: 640 * time.Microsecond}
}

func TestCheckAttributes(t *testing.T) {
	a := validRTR()
	if err := a.Check(limits(), &ethernet); err != nil {
		t.Fatal(err)
	}
	ib := rdma.Port{Num: 1, LinkLayer: rdma.LinkInfiniBand, ActiveMTU: 4096, GIDs: 1}
	for want, change := range map[string]func(a *rdma.RTRAttr, p *rdma.Port){
		"MTU 1500 does not exist":           func(a *rdma.RTRAttr, p *rdma.Port) { a.MTU = 1500 },
		"more than the port's active MTU":   func(a *rdma.RTRAttr, p *rdma.Port) { p.ActiveMTU = 1024 },
		"QP number 0x1000000":               func(a *rdma.RTRAttr, p *rdma.Port) { a.DestQPN = 1 << 24 },
		"PSN 0x1000000":                     func(a *rdma.RTRAttr, p *rdma.Port) { a.RecvPSN = 1 << 24 },
		"17 READs":                          func(a *rdma.RTRAttr, p *rdma.Port) { a.MaxReads = 17 },
		"MinRNRTimer 1s":                    func(a *rdma.RTRAttr, p *rdma.Port) { a.MinRNRTimer = time.Second },
		"on Ethernet the peer":              func(a *rdma.RTRAttr, p *rdma.Port) { a.Path.Global = false },
		"GID is zero":                       func(a *rdma.RTRAttr, p *rdma.Port) { a.Path.DGID = rdma.GID{} },
		"hop limit is 0":                    func(a *rdma.RTRAttr, p *rdma.Port) { a.Path.HopLimit = 0 },
		"GID index 16":                      func(a *rdma.RTRAttr, p *rdma.Port) { a.Path.SGIDIndex = 16 },
		"LID is 0 (EINVAL); is a subnet ma": func(a *rdma.RTRAttr, p *rdma.Port) { *p, a.Path.Global = ib, false },
		"this port needs the peer's GID":    func(a *rdma.RTRAttr, p *rdma.Port) { *p, a.Path = ib, rdma.Path{DLID: 1}; p.GRHRequired = true },
		"service level 16":                  func(a *rdma.RTRAttr, p *rdma.Port) { a.Path.ServiceLevel = 16 },
		"flow label 0x100000":               func(a *rdma.RTRAttr, p *rdma.Port) { a.Path.FlowLabel = 1 << 20 },
	} {
		a, p := validRTR(), ethernet
		change(&a, &p)
		if err := a.Check(limits(), &p); !errors.Is(err, rdma.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	good := rdma.RTSAttr{MaxReads: 16, Timeout: 67 * time.Millisecond, Retries: 6, RNRRetries: 6}
	if err := good.Check(limits()); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(a *rdma.RTSAttr){
		"Timeout is zero": func(a *rdma.RTSAttr) { a.Timeout = 0 },
		"Timeout -2ns":    func(a *rdma.RTSAttr) { a.Timeout = -2 },
		"17 READs":        func(a *rdma.RTSAttr) { a.MaxReads = 17 },
		"PSN":             func(a *rdma.RTSAttr) { a.SendPSN = 1 << 24 },
		// Soft-RoCE never gives up with 7 retries, and loops in the kernel with 7 RNR retries (Nugine/rdma#2).
		"7 retries are not between 0 and the device's 6": func(a *rdma.RTSAttr) { a.Retries = 7 },
		"this device must not retry for ever":            func(a *rdma.RTSAttr) { a.RNRRetries = rdma.RetryForever },
		"8 RNR retries are not between":                  func(a *rdma.RTSAttr) { a.RNRRetries = 8 },
		"-1 retries are not between 0 and the":           func(a *rdma.RTSAttr) { a.Retries = -1 },
		"-1 READs in flight are not between 0 and":       func(a *rdma.RTSAttr) { a.MaxReads = -1 },
	} {
		a := good
		change(&a)
		if err := a.Check(limits()); !errors.Is(err, rdma.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	for want, a := range map[string]rdma.InitAttr{"port 0": {}, "port 2": {Port: 2}, "index -1": {Port: 1, PKeyIndex: -1}, "unknown bits": {Port: 1, Access: 0x80}} {
		if err := a.Check(limits()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

func TestRegistry(t *testing.T) {
	if _, err := rdma.Lookup("ibverbs"); !errors.Is(err, rdma.ErrNoProvider) || !strings.Contains(err.Error(), "build with CGO_ENABLED=1") {
		t.Errorf("no such provider: %v", err)
	}
	rdma.Register(provider("test-a"))
	rdma.Register(provider("test-b"))
	if p, err := rdma.Lookup("test-b"); err != nil || p != provider("test-b") {
		t.Errorf("%v, %v", p, err)
	}
	if diff := cmp.Diff([]string{"test-a", "test-b"}, rdma.Providers()); diff != "" {
		t.Error(diff)
	}
	defer func() {
		if recover() == nil {
			t.Error("a second provider of one name is not noticed")
		}
	}()
	rdma.Register(provider("test-a"))
}

type provider string

func (p provider) Name() string                          { return string(p) }
func (p provider) Devices() ([]rdma.DeviceInfo, error)   { return nil, io.EOF }
func (p provider) Open(name string) (rdma.Device, error) { return nil, io.EOF }

func TestNames(t *testing.T) {
	for want, got := range map[string]interface{ String() string }{
		"WR_FLUSH_ERR": rdma.StatusFlushed, "RNR_RETRY_EXC_ERR": rdma.StatusRNRRetryExceeded, "GENERAL_ERR": rdma.StatusGeneral, "status 99": rdma.Status(99),
		"ERROR": rdma.StateError, "RTS": rdma.StateRTS, "active": rdma.PortActive, "InfiniBand": rdma.LinkInfiniBand, "RoCE v2": rdma.GIDRoCEv2,
		"last WQE reached": rdma.LastWQEReached, "other event": rdma.OtherEvent, "compare and swap": rdma.CompareSwap,
		"receive of RDMA write": rdma.WCRecvWriteImm, "local write, remote read": rdma.LocalWrite | rdma.RemoteRead, "local read": rdma.Access(0),
		"::ffff:10.0.0.1": gid(t, "10.0.0.1"), "signaled, fence": rdma.Signaled | rdma.Fence,
		"2 queue pairs, 1 memory regions": rdma.Resources{QPs: 2, MRs: 1}, "port error (port 1)": rdma.Event{Type: rdma.PortError, Port: 1},
	} {
		if got.String() != want {
			t.Errorf("%q; want %q", got, want)
		}
	}
	if gid(t, "fe80::7").SubnetPrefix() != rdma.DefaultSubnetPrefix {
		t.Error("fe80:: is the default prefix")
	}
	if _, err := rdma.ParseGID("fe80::1%eth0"); err == nil {
		t.Error("a GID has no zone")
	}
}
