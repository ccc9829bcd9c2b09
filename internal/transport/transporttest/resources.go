package transporttest

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

// testRegions pulls what Describe describes, in the state of use: the owner
// polls, and the owner does not.
func testRegions(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, w := open(t, newWorld, 3)
	alloc := w.Alloc
	if alloc == nil {
		alloc = func(_, n int) ([]byte, error) { return make([]byte, n), nil }
	}
	probe, err := alloc(0, 64)
	must(t, err)
	if _, ok := nodes[0].Describe(probe); !ok {
		if _, exposes := nodes[0].Transport.(transport.Exposer); w.Alloc != nil && !exposes {
			t.Fatal("memory of World.Alloc has no description")
		}
		if err := nodes[1].Pull(0, wire.Region{Kind: 1}, make([]byte, 1)); err == nil {
			t.Error("a transport without regions pulled one")
		}
		return
	}
	introduce(t, nodes[0], nodes[1]) // a region comes in a frame
	for _, n := range []int{0, 1, 4095, 64<<10 + 1, 256<<10 - 1, 256 << 10, 1 << 20, 9<<20 + 3} {
		src, err := alloc(0, n+2)
		must(t, err)
		src = src[1 : 1+n] // regions start and end anywhere
		r, ok := nodes[0].Describe(src)
		if !ok {
			t.Fatalf("%d bytes at an odd address have no description", n)
		}
		inside, err := alloc(1, n)
		must(t, err)
		for i, dst := range [][]byte{make([]byte, n), inside[:n:n]} {
			fill(src, uint32(n+i))
			must(t, nodes[1].Pull(0, r, dst))
			if err := same(dst, src); err != nil {
				t.Fatalf("pulled %d bytes: %v", n, err)
			}
			// Again, while the owner polls and may help.
			fill(src, uint32(n+i+9))
			parallel(t, nodes, func(d *node) error {
				if d.rank != 1 {
					return nil
				}
				for range 4 {
					clear(dst)
					if err := d.Pull(0, r, dst); err != nil {
						return err
					}
					if err := same(dst, src); err != nil {
						return fmt.Errorf("pulled %d bytes: %w", n, err)
					}
				}
				return nil
			})
		}
	}
	r, _ := nodes[0].Describe(probe)
	for _, bad := range []wire.Region{
		{Kind: r.Kind, Key: r.Key, Addr: 1 << 62},
		{Kind: r.Kind, Key: r.Key, Addr: 1<<64 - 8},
		{Kind: r.Kind + 77, Key: r.Key, Addr: r.Addr},
		{Kind: r.Kind, Key: r.Key + 99, Addr: r.Addr},
	} {
		if err := nodes[1].Pull(0, bad, make([]byte, 64)); err == nil {
			t.Errorf("Pull of the bad region %+v succeeded", bad)
		}
	}
}

// testNoLeaks: a closed world leaves no goroutine and no file descriptor.
func testNoLeaks(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	use := func() {
		nodes, w := open(t, newWorld, 3)
		p := pattern(300_000, 1)
		for _, a := range nodes {
			for _, b := range nodes {
				if a != b {
					h := data(1, len(p))
					must(t, a.bulk(b.rank, &h, p, 1, nodes...))
				}
			}
		}
		must(t, until("payloads are missing", func() bool {
			return !slices.ContainsFunc(nodes, func(d *node) bool { return d.seen < 4 })
		}, nodes...))
		h := eager(1) // left unread
		must(t, nodes[0].send(1, &h, nil, nodes...))
		nodes[1].Arm() // left armed
		shut(t, w, nodes)
	}
	use() // opens what the process keeps for good, such as the poller of package net
	before, ignore := openFiles(t), goleak.IgnoreCurrent()
	for range 3 {
		use()
	}
	if err := goleak.Find(ignore); err != nil {
		t.Error(err)
	}
	if after := openFiles(t); len(after) > len(before) {
		t.Errorf("file descriptors leaked:\nbefore %q\n after %q", before, after)
	}
}

func openFiles(t *testing.T) []string {
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	var files []string
	for _, e := range entries {
		// The directory's own descriptor is gone by now.
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			files = append(files, e.Name()+" "+target)
		}
	}
	return files
}

// counter is a sink that keeps nothing.
type counter struct{ frames, landed, sent int }

func (c *counter) Frame(int, *wire.Header, []byte)    { c.frames++ }
func (c *counter) Dest(int, *wire.Header, int) []byte { return nil }
func (c *counter) Landed(int, *wire.Header)           { c.landed++ }
func (c *counter) Sent(int, uint32)                   { c.sent++ }
func (c *counter) PeerDown(int, error)                {}

// testNoAllocations: small messages allocate nothing on either side.
func testNoAllocations(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, _ := open(t, newWorld, 2)
	introduce(t, nodes[0], nodes[1])
	a, b := nodes[0].Transport, nodes[1].Transport
	for _, n := range []int{0, 8, 1000} {
		c := &counter{}
		var sink transport.Sink = c
		p := make([]byte, n)
		h := eager(0)
		step := func() {
			for err := a.Send(1, &h, p); err != nil; err = a.Send(1, &h, p) {
				if err != transport.ErrAgain {
					t.Fatal(err)
				}
				a.Poll(sink)
				b.Poll(sink)
			}
			for want := c.frames + 1; c.frames < want; {
				a.Poll(sink)
				b.Poll(sink)
			}
			if b.Arm() {
				b.Disarm()
			}
		}
		for range 100 {
			step()
		}
		if allocs := testing.AllocsPerRun(500, step); allocs != 0 {
			t.Errorf("a message of %d bytes allocates %v times", n, allocs)
		}
	}
}
