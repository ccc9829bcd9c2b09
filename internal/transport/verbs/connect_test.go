package verbs

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/rdma"
	"github.com/weft-hpc/weft/rdma/fake"
)

// TestCrossedConnects: both ends begin at once, in many schedules.
func TestCrossedConnects(t *testing.T) {
	for seed := range uint64(30) {
		_, r := ranksOf(t, 2, options{seed: seed})
		for i := range 2 {
			if err := r[i].Send(1-i, eager(0), nil); !errors.Is(err, transport.ErrAgain) {
				t.Fatalf("Send before there is a connection: %v", err)
			}
		}
		for k := range int(seed % 7) { // out of step
			r[k%2].Poll(r[k%2])
		}
		meet(t, r[0], r[1])
		for i := range 2 {
			if s := r[i].Stats(); s.Connections != 1 || s.Retries != 0 || s.Peers != 1 {
				t.Fatalf("seed %d, rank %d: %+v", seed, i, s)
			}
			if qps := len(r[i].eps) - len(r[i].freeEps); qps != 1 {
				t.Fatalf("seed %d, rank %d has %d queue pairs", seed, i, qps)
			}
		}
	}
}

// TestConnectAgain: attempts fail on either side, by an address that does not resolve or by a
// probe that nobody answers. The next one works, and no queue pair is left of those before.
func TestConnectAgain(t *testing.T) {
	for _, c := range []struct {
		name string
		fail func(w *world)
	}{
		{"no answer to ARP at one end", func(w *world) { w.cards[0].FailCall(rdma.OpModifyRTR, 1, syscall.ETIMEDOUT) }},
		{"at both, twice", func(w *world) {
			for _, c := range w.cards {
				c.FailCall(rdma.OpModifyRTR, 1, syscall.ETIMEDOUT)
				c.FailCall(rdma.OpModifyRTR, 1, syscall.ETIMEDOUT)
			}
		}},
		{"no answer to the probe of one end", func(w *world) { w.cards[0].FailSend(rdma.StatusRetryExceeded, 1) }},
		{"of the other", func(w *world) { w.cards[1].FailSend(rdma.StatusRetryExceeded, 1) }},
		{"of both", func(w *world) {
			w.cards[0].FailSend(rdma.StatusRetryExceeded, 1)
			w.cards[1].FailSend(rdma.StatusRetryExceeded, 1)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(5) {
				w, r := ranksOf(t, 2, options{seed: seed, tune: quick})
				c.fail(w)
				if seed%2 == 0 {
					_ = r[1].Send(0, eager(0), nil) // crossed
				}
				meet(t, r[0], r[1])
				if r[0].Stats().Retries+r[1].Stats().Retries == 0 {
					t.Error("nothing was repeated")
				}
				poll(t, "queue pairs of failed attempts are gone", func() bool { return r[0].openEndpoints() == 1 && r[1].openEndpoints() == 1 }, r...)
			}
		})
	}
}

// TestNoWay: what never resolves is an error at both ends, with the address and what to do
// (NVIDIA/nccl-tests#185).
func TestNoWay(t *testing.T) {
	w, r := ranksOf(t, 2, options{tune: quick})
	for range 10 {
		w.cards[0].FailCall(rdma.OpModifyRTR, 1, syscall.ETIMEDOUT)
	}
	_ = r[0].Send(1, eager(0), nil)
	poll(t, "both are told", func() bool { return r[0].down[1] != nil && r[1].down[0] != nil }, r...)
	contains(t, r[0].down[1], "rank 1", "::ffff:10.77.0.2", "ARP", "ping the peer", "4 attempts", "ETIMEDOUT")
	contains(t, r[1].down[0], "rank 0 refuses", "ARP")
	if err := r[1].Send(0, eager(0), nil); err == nil || errors.Is(err, transport.ErrAgain) {
		t.Errorf("Send afterwards: %v", err)
	}
}

// TestNoRoute is an error at once (NVIDIA/nccl#925).
func TestNoRoute(t *testing.T) {
	w, r := ranksOf(t, 2, options{})
	w.cards[1].FailCall(rdma.OpModifyRTR, 1, syscall.ENETUNREACH)
	_ = r[0].Send(1, eager(0), nil)
	poll(t, "both are told", func() bool { return r[0].down[1] != nil && r[1].down[0] != nil }, r...)
	contains(t, r[1].down[0], "no route", "ip route")
	contains(t, r[0].down[1], "rank 1 refuses", "no route")
}

// TestDisagreements are refused, and both ends report why.
func TestDisagreements(t *testing.T) {
	for _, c := range []struct {
		name string
		o    options
		want []string
	}{
		{"job", options{cfg: func(rank int, cfg *Config) { cfg.Job = []string{"test", "other"}[rank] }}, []string{"another job"}},
		{"segment", options{}, []string{"receives have", "same settings"}},
		{"rails", options{rails: 2, cfg: func(rank int, cfg *Config) {
			if rank == 1 {
				cfg.Device, _, _ = strings.Cut(cfg.Device, ",")
			}
		}}, []string{"rails", "--device"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := c.o
			if c.name == "segment" {
				o.cfg = func(rank int, cfg *Config) { cfg.tune = func(u *tuning) { u.segment -= rank * 1024 } }
			}
			_, r := ranksOf(t, 2, o)
			_ = r[0].Send(1, eager(0), nil)
			poll(t, "both are told", func() bool { return r[0].down[1] != nil && r[1].down[0] != nil }, r...)
			contains(t, r[0].down[1], append(c.want, "rank 1")...)
			contains(t, r[1].down[0], append(c.want, "rank 0")...)
		})
	}
}

// TestOtherNetworks: ends on InfiniBand and Ethernet, and with other types of address, are told apart
// before a queue pair tries.
func TestOtherNetworks(t *testing.T) {
	f := fake.New(fake.Options{})
	defer f.Close()
	f.AddCard("ib0", fake.CardOptions{LinkLayer: rdma.LinkInfiniBand})
	f.AddCard("roce0", fake.CardOptions{})
	f.AddCard("old0", fake.CardOptions{GIDs: []rdma.GIDEntry{{GID: rdma.GID{10: 0xff, 11: 0xff, 12: 10, 13: 1, 15: 9}, Type: rdma.GIDRoCEv1, NetDev: "eth9"}}})
	for _, c := range [][3]string{{"ib0", "roce0", "InfiniBand"}, {"old0", "roce0", "RoCE v1"}} {
		links := openLinks(t, 2)
		var r []*rank
		for i := range 2 {
			tr, err := Open(Config{Rank: i, Size: 2, Job: "test", Provider: f, Device: c[i], NUMA: -1, Control: links[i]})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			r = append(r, newRank(tr))
		}
		_ = r[0].Send(1, eager(0), nil)
		poll(t, "both are told", func() bool { return r[0].down[1] != nil && r[1].down[0] != nil }, r...)
		contains(t, r[0].down[1], c[2])
		contains(t, r[1].down[0], c[2])
	}
}

// TestMTU: ends with different MTUs use the smaller one, for payloads of any size, both
// ways (NVIDIA/nccl#2135, kvcache-ai/Mooncake#3868). An old soft-RoCE took none above the MTU (SoftRoCE/rxe-dev#69, #76).
func TestMTU(t *testing.T) {
	f := fake.New(fake.Options{})
	links := openLinks(t, 2)
	var r []*rank
	for i, mtu := range []rdma.MTU{1024, 4096} {
		name := []string{"fake0", "fake1"}[i]
		f.AddCard(name, fake.CardOptions{MTU: mtu})
		tr, err := Open(Config{Rank: i, Size: 2, Job: "test", Provider: f, Device: name, NUMA: -1, Control: links[i]})
		if err != nil {
			t.Fatal(err)
		}
		r = append(r, newRank(tr))
	}
	meet(t, r[0], r[1])
	for _, n := range []int{1023, 1024, 1025, 4095, 4096, 4097, 8<<20 + 1} {
		for i := range 2 {
			src, dst := make([]byte, n), make([]byte, n)
			for k := range src {
				src[k] = byte(k * 13)
			}
			region, err := r[i].Expose(1-i, 5, dst)
			if err != nil {
				t.Fatal(err)
			}
			r[i].dest = dst
			want := r[i].landed[1-i] + 1
			if err := try(t, func() error { return r[1-i].SendBulk(i, dataHeader(5, region), src, 1) }, r...); err != nil {
				t.Fatal(err)
			}
			poll(t, "a payload", func() bool { return r[i].landed[1-i] == want }, r...)
			if string(src) != string(dst) {
				t.Fatalf("%d bytes to rank %d are wrong", n, i)
			}
		}
	}
	for _, x := range r {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestStaleEpoch: greetings of attempts that are over change nothing; one of a later attempt, when
// messages may have been lost, ends the connection (ydb-platform/nbs#6938).
func TestStaleEpoch(t *testing.T) {
	w, r := ranksOf(t, 2, options{tune: quick})
	w.cards[0].FailSend(rdma.StatusRetryExceeded, 1)
	meet(t, r[0], r[1])
	c := r[1].conns[0]
	if c.epoch < 2 {
		t.Fatalf("connected in epoch %d", c.epoch)
	}
	stale := r[1].Stats().Stale
	old := *c.hello
	old.epoch = 1
	for _, kind := range []helloKind{sayHello, sayReady, sayUp, sayReject} {
		old.kind = kind
		h := old
		if kind != sayHello {
			h.rails = nil
		}
		r[1].heard(0, h.encode())
	}
	again := *c.hello
	r[1].heard(0, again.encode())
	if c.state != connUp || r[1].Stats().Stale != stale+3 {
		t.Fatalf("state %d, %d stale greetings, were %d", c.state, r[1].Stats().Stale, stale)
	}
	meet(t, r[0], r[1])
	next := *c.hello
	next.epoch++
	r[1].heard(0, next.encode())
	poll(t, "both are told", func() bool { return r[0].down[1] != nil && r[1].down[0] != nil }, r...)
	contains(t, r[1].down[0], "given the connection up")
}

// TestBadGreetings: nothing a peer says disturbs more than the connection with it.
func TestBadGreetings(t *testing.T) {
	for name, b := range map[string][]byte{"empty": nil, "text": []byte("GET / HTTP/1.1"), "version": []byte("WVRB\x02\x00\x01\x01" + strings.Repeat("\x01", 100)),
		"another rank": (&hello{kind: sayReady, job: jobHash("test"), rank: 5, epoch: 1}).encode(),
		"late epoch":   (&hello{kind: sayReady, job: jobHash("test"), rank: 1, epoch: 1000}).encode()} {
		t.Run(name, func(t *testing.T) {
			_, r := ranksOf(t, 3, options{})
			meet(t, r[0], r[2])
			r[0].heard(1, b)
			poll(t, "both are told", func() bool { return r[0].down[1] != nil && r[1].down[0] != nil }, r...)
			contains(t, r[0].down[1], "rank 1", "cannot be connected")
			meet(t, r[0], r[2])
		})
	}
}

// TestBadConfig: what cannot work says so, and how it would.
func TestBadConfig(t *testing.T) {
	f := fake.New(fake.Options{})
	defer f.Close()
	f.AddCard("mlx5_0", fake.CardOptions{})
	f.AddCard("mlx5_1", fake.CardOptions{GIDs: []rdma.GIDEntry{{GID: rdma.GID{0: 0xfe, 1: 0x80, 15: 1}, Type: rdma.GIDUnknown, NetDev: "eth1"}}})
	f.AddCard("mlx5_2", fake.CardOptions{}).SetPort(false)
	link := openLinks(t, 1)[0]
	defer link.Close()
	good := Config{Size: 1, Job: "test", Provider: f, NUMA: -1, Control: link}
	for _, c := range []struct {
		name   string
		change func(c *Config)
		want   []string
	}{
		{"rank", func(c *Config) { c.Rank = 1 }, []string{"rank 1 of 1"}},
		{"no provider", func(c *Config) { c.Provider = nil }, []string{"no RDMA provider"}},
		{"no link", func(c *Config) { c.Control = nil }, []string{"no channel"}},
		{"device", func(c *Config) { c.Device = "mlx5_9" }, []string{"no device mlx5_9", "did you mean", "weft info"}},
		{"port", func(c *Config) { c.Device = "mlx5_0:2" }, []string{"no port 2"}},
		{"syntax", func(c *Config) { c.Device = "mlx5_0:x" }, []string{"not the number of a port"}},
		{"twice", func(c *Config) { c.Device = "mlx5_0,mlx5_0:1" }, []string{"twice"}},
		{"empty rail", func(c *Config) { c.Device = "mlx5_0," }, []string{"without a device"}},
		{"five rails", func(c *Config) { c.Device = "a,b,c,d,e" }, []string{"5 rails"}},
		{"port down", func(c *Config) { c.Device = "mlx5_2" }, []string{"port state is down"}},
		{"no GID", func(c *Config) { c.Device = "mlx5_1" }, []string{"no address that peers can route to", "ip addr add"}},
		{"GID index", func(c *Config) { i := 9; c.GID.Index = &i }, []string{"GID index 9", "the table has"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := good
			c.change(&cfg)
			tr, err := Open(cfg)
			if err == nil {
				_ = tr.Close()
			}
			contains(t, err, c.want...)
		})
	}
}

// TestAbout names device, address and reason.
func TestAbout(t *testing.T) {
	_, r := ranksOf(t, 1, options{rails: 2})
	for _, part := range []string{"fake0:1", "fake0_1:1", "::ffff:10.77.0.1", "RoCE v2", "MTU 4096", "asked for"} {
		if !strings.Contains(r[0].About(), part) {
			t.Errorf("%q lacks %q", r[0].About(), part)
		}
	}
}

// TestCloseWhileConnecting ends a rank in every stage of connecting.
func TestCloseWhileConnecting(t *testing.T) {
	for polls := range 25 {
		_, r := ranksOf(t, 2, options{seed: uint64(polls), tune: quick})
		_ = r[0].Send(1, eager(0), nil)
		for range polls {
			r[0].Poll(r[0])
			r[1].Poll(r[1])
			time.Sleep(50 * time.Microsecond)
		}
		if polls%2 == 0 {
			r[1].MarkDown(0, errors.New("killed"))
			r[1].Poll(r[1])
		}
	}
}

// TestDefaultPrefix: InfiniBand ports of fabrics that may be separate are told of, unless the user has chosen one (Open MPI
// connected those that cannot reach each other).
func TestDefaultPrefix(t *testing.T) {
	f := fake.New(fake.Options{})
	defer f.Close()
	for _, name := range []string{"ib0", "ib1"} {
		f.AddCard(name, fake.CardOptions{LinkLayer: rdma.LinkInfiniBand})
	}
	for device, want := range map[string]int{"": 1, "ib1": 0} {
		var notices []string
		tr, err := Open(Config{Size: 1, Job: "test", Provider: f, Device: device, NUMA: -1, Control: openLinks(t, 1)[0],
			Notice: func(line string) { notices = append(notices, line) }})
		if err != nil {
			t.Fatal(err)
		}
		if len(notices) != want || want > 0 && !strings.Contains(notices[0], "ports ib0:1, ib1:1 all have") {
			t.Errorf("device %q: notices %q, want %d", device, notices, want)
		}
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	}
}
