package sim_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/transport/sim"
	"github.com/weft-hpc/weft/internal/transport/transporttest"
	"github.com/weft-hpc/weft/internal/wire"
)

func world(cfg sim.Config) func(t *testing.T, n int) *transporttest.World {
	return func(t *testing.T, n int) *transporttest.World {
		f := sim.New(n, cfg)
		w := &transporttest.World{Kill: f.Kill}
		for r := range n {
			w.Ranks = append(w.Ranks, f.Endpoint(r))
		}
		if !cfg.NoPull {
			w.Alloc = func(_, n int) ([]byte, error) { return make([]byte, n), nil }
		}
		return w
	}
}

func TestConformance(t *testing.T) {
	for _, cfg := range []sim.Config{
		{},
		{NoPull: true, SmallEager: 3000},
		{Seed: 1, Delay: 3},
		{Seed: 3, Delay: 20, NoPull: true},
		{NoMap: true},
		{Remote: true},
		{Remote: true, Seed: 4, Delay: 3},
	} {
		t.Run(fmt.Sprintf("%+v", cfg), func(t *testing.T) { transporttest.Run(t, world(cfg)) })
	}
}

// sink records what a rank sees.
type sink struct {
	log  []string
	seqs [][]uint32 // by peer
	dest func(n int) []byte
	sent []uint32
	down []int
}

func newSink(n int) *sink { return &sink{seqs: make([][]uint32, n)} }

func (s *sink) Frame(peer int, h *wire.Header, p []byte) {
	s.log = append(s.log, fmt.Sprintf("%d:%d", peer, h.Seq))
	s.seqs[peer] = append(s.seqs[peer], h.Seq)
}
func (s *sink) Dest(_ int, _ *wire.Header, n int) []byte {
	if s.dest == nil {
		return nil
	}
	return s.dest(n)
}
func (s *sink) Landed(peer int, h *wire.Header) { s.Frame(peer, h, nil) }
func (s *sink) Sent(_ int, token uint32)        { s.sent = append(s.sent, token) }
func (s *sink) PeerDown(peer int, err error)    { s.down = append(s.down, peer) }
func eager(seq int) *wire.Header                { return &wire.Header{Kind: wire.Eager, Seq: uint32(seq)} }
func data(seq int) *wire.Header {
	return &wire.Header{Kind: wire.Data, Flags: wire.HasID | wire.HasBytes, Seq: uint32(seq)}
}

// play sends frames from ranks 1.. to rank 0 under faults, in one goroutine, and
// returns what rank 0 saw.
func play(t *testing.T, ranks, frames int, cfg sim.Config) *sink {
	f := sim.New(ranks, cfg)
	s := newSink(ranks)
	sentBy := make([]int, ranks)
	sleepless := 0
	for total, rounds := 0, 0; total < frames*(ranks-1) || f.Transport(0).Poll(s) > 0 || !f.Transport(0).Arm(); rounds++ {
		if rounds > 1000*frames {
			t.Fatalf("%+v: no end after %d rounds: %d frames sent, %v received", cfg, rounds, total, s.seqs)
		}
		for r := 1; r < ranks; r++ {
			if sentBy[r] == frames {
				continue
			}
			var err error
			if i := sentBy[r]; i%7 == 3 {
				err = f.Transport(r).SendBulk(0, data(i), []byte("abc"), 1)
			} else {
				err = f.Transport(r).Send(0, eager(i), []byte("abc"))
			}
			switch {
			case err == nil:
				sentBy[r]++
				total++
			case errors.Is(err, transport.ErrAgain):
				sleepless++
				if f.Transport(r).Arm() && cfg.Again > 0 {
					t.Fatalf("rank %d may sleep after an ErrAgain that nothing ends", r)
				}
				f.Transport(r).Poll(newSink(ranks))
			default:
				t.Fatal(err)
			}
		}
		f.Transport(0).Poll(s)
	}
	if cfg.Again > 0 && sleepless == 0 {
		t.Errorf("%+v: Send was never refused", cfg)
	}
	return s
}

// TestFaults: each lane keeps its order under every fault, nothing is lost, only
// eager frames come twice, and the same seed makes the same run.
func TestFaults(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := sim.Config{
			Seed:      rapid.Uint64().Draw(rt, "seed"),
			Delay:     rapid.IntRange(0, 9).Draw(rt, "delay"),
			Duplicate: rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(rt, "duplicate"),
			Again:     rapid.SampledFrom([]float64{0, 0.4}).Draw(rt, "again"),
		}
		ranks := rapid.SampledFrom([]int{2, 3, 5, 66}).Draw(rt, "ranks")
		const frames = 40
		s := play(t, ranks, frames, cfg)
		s.check(rt, ranks, frames, cfg)
		if again := play(t, ranks, frames, cfg); !slices.Equal(s.log, again.log) {
			rt.Fatalf("%+v: two runs differ:\n%v\n%v", cfg, s.log, again.log)
		}
	})
}

func (s *sink) check(t *rapid.T, ranks, frames int, cfg sim.Config) {
	twice := 0
	for r := 1; r < ranks; r++ {
		next := 0
		for i, seq := range s.seqs[r] {
			if i > 0 && seq == s.seqs[r][i-1] {
				twice++
				if seq%7 == 3 {
					t.Fatalf("Data frame %d of rank %d came twice", seq, r)
				}
				continue
			}
			for next%7 == 3 && seq != uint32(next) { // refused by Dest
				next++
			}
			if int(seq) != next {
				t.Fatalf("rank %d: frame %d where %d should be", r, seq, next)
			}
			next++
		}
		if next < frames-1 {
			t.Fatalf("rank %d: %d frames came, of %d", r, next, frames)
		}
	}
	if (twice > 0) != (cfg.Duplicate > 0) {
		t.Errorf("%+v: %d duplicates", cfg, twice)
	}
}

// TestDelayReorders: delays change the order between lanes.
func TestDelayReorders(t *testing.T) {
	plain := play(t, 4, 30, sim.Config{})
	delayed := play(t, 4, 30, sim.Config{Seed: 5, Delay: 4})
	other := play(t, 4, 30, sim.Config{Seed: 6, Delay: 4})
	if slices.Equal(plain.log, delayed.log) || slices.Equal(delayed.log, other.log) {
		t.Error("delays do not change the order between lanes, or not with the seed")
	}
}

// TestCloseDrains: frames sent before Close arrive, then PeerDown, once, even when
// the link is cut as well. A payload that stayed with the closed rank does not.
func TestCloseDrains(t *testing.T) {
	for _, bulk := range []bool{false, true} {
		f := sim.New(2, sim.Config{Delay: 3})
		a, b, s := f.Transport(0), f.Transport(1), newSink(2)
		s.dest = func(n int) []byte { return make([]byte, n) }
		must(t, a.Send(1, eager(0), nil))
		if bulk {
			must(t, a.SendBulk(1, data(1), make([]byte, 100), 1))
		}
		must(t, a.Send(1, eager(2), nil))
		must(t, a.Close())
		for !b.Arm() {
			b.Poll(s)
		}
		want := []string{"0:0", "0:2"}
		if bulk {
			want = want[:1]
		}
		if !slices.Equal(s.log, want) || !slices.Equal(s.down, []int{0}) {
			t.Errorf("bulk %v: saw %v, down %v; want %v, then down once", bulk, s.log, s.down, want)
		}
		f.Cut(0, 1)
		f.Kill(0)
		b.Poll(s)
		if len(s.down) != 1 {
			t.Errorf("down was reported %d times", len(s.down))
		}
		if err := b.Send(0, eager(0), nil); err == nil || errors.Is(err, transport.ErrAgain) {
			t.Errorf("Send to a closed rank: %v", err)
		}
		must(t, b.Close())
	}
}

// TestCutIsMutual: both ends of a cut link are told, others are not concerned.
func TestCutIsMutual(t *testing.T) {
	f := sim.New(3, sim.Config{})
	f.Cut(0, 2)
	for r, want := range [][]int{{2}, nil, {0}} {
		s := newSink(3)
		f.Transport(r).Poll(s)
		f.Transport(r).Poll(s)
		if !slices.Equal(s.down, want) {
			t.Errorf("rank %d saw %v go down, want %v", r, s.down, want)
		}
	}
	must(t, f.Transport(0).Send(1, eager(0), nil))
}

// TestCutProtectsMemory: after PeerDown nobody reads the sender's memory any more.
// The race detector is the judge.
func TestCutProtectsMemory(t *testing.T) {
	for round := range 50 {
		f := sim.New(2, sim.Config{})
		a, b := f.Transport(0), f.Transport(1)
		src := make([]byte, 1<<20)
		r, ok := a.Describe(src)
		if !ok {
			t.Fatal("no region")
		}
		must(t, a.SendBulk(1, data(0), src, 1))
		var wg sync.WaitGroup
		wg.Go(func() {
			dst, s := make([]byte, len(src)), newSink(2)
			s.dest = func(int) []byte { return dst }
			for b.Pull(0, r, dst) == nil {
				b.Poll(s)
			}
		})
		wg.Go(func() {
			s := newSink(2)
			for len(s.down) == 0 {
				a.Poll(s)
			}
			for i := range src {
				src[i] = byte(i)
			}
		})
		if round%2 == 0 {
			f.Cut(0, 1)
		} else {
			f.Kill(1)
		}
		wg.Wait()
	}
}

// TestPullInPieces: a region may be read from the middle, and not past its end.
func TestPullInPieces(t *testing.T) {
	f := sim.New(2, sim.Config{})
	src := []byte("0123456789")
	r, _ := f.Transport(0).Describe(src)
	r.Addr += 4
	dst := make([]byte, 6)
	must(t, f.Transport(1).Pull(0, r, dst))
	if string(dst) != "456789" {
		t.Errorf("pulled %q", dst)
	}
	if err := f.Transport(1).Pull(0, r, make([]byte, 7)); err == nil {
		t.Error("Pull past the end of a region succeeded")
	}
	if _, ok := sim.New(1, sim.Config{NoPull: true}).Transport(0).Describe(src); ok {
		t.Error("NoPull fabric described memory")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// BenchmarkPingPong is two goroutines that poll, and two that sleep.
func BenchmarkPingPong(b *testing.B) {
	for _, asleep := range []bool{false, true} {
		b.Run(fmt.Sprintf("asleep=%v", asleep), func(b *testing.B) {
			f := sim.New(2, sim.Config{})
			var wg sync.WaitGroup
			for rank := range 2 {
				wg.Go(func() {
					tr, s, h, p := f.Transport(rank), &count{}, eager(0), make([]byte, 8)
					for i := range b.N {
						if rank == 0 {
							_ = tr.Send(1, h, p)
						}
						for s.n == i {
							if tr.Poll(s) == 0 && asleep && tr.Arm() {
								tr.Wait(time.Second)
								tr.Disarm()
							}
						}
						if rank == 1 {
							_ = tr.Send(0, h, p)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

type count struct{ n int }

func (c *count) Frame(int, *wire.Header, []byte)    { c.n++ }
func (c *count) Dest(int, *wire.Header, int) []byte { return nil }
func (c *count) Landed(int, *wire.Header)           {}
func (c *count) Sent(int, uint32)                   {}
func (c *count) PeerDown(int, error)                {}

// TestMap: what Endpoint returns can do what the Config says, and a mapping is the memory itself.
func TestMap(t *testing.T) {
	f := sim.New(2, sim.Config{})
	m, ok := f.Endpoint(0).(transport.Mapper)
	if !ok {
		t.Fatal("a perfect fabric maps no memory")
	}
	mem := make([]byte, 100)
	r, ok := f.Endpoint(1).Describe(mem)
	if !ok {
		t.Fatal("memory is not described")
	}
	got, err := m.Map(1, r, 100)
	if err != nil {
		t.Fatal(err)
	}
	got[99] = 7
	if mem[99] != 7 {
		t.Error("the mapping is a copy")
	}
	for name, region := range map[string]wire.Region{"kind": {Kind: r.Kind ^ 1<<20, Key: r.Key, Addr: r.Addr}, "start": {Kind: r.Kind, Key: r.Key, Addr: r.Addr + 1}} {
		if _, err := m.Map(1, region, 100); err == nil {
			t.Errorf("a region with another %s was mapped", name)
		}
	}
	for _, n := range []int{-1, 101} {
		if _, err := m.Map(1, r, n); err == nil {
			t.Errorf("%d of 100 bytes were mapped", n)
		}
	}
	for _, cfg := range []sim.Config{{NoMap: true}, {Remote: true}} {
		e := sim.New(2, cfg).Endpoint(0)
		if _, ok := e.(transport.Mapper); ok {
			t.Errorf("%+v maps memory", cfg)
		}
		if _, ok := e.(transport.Remote); ok != cfg.Remote {
			t.Errorf("%+v is a Remote: %v", cfg, ok)
		}
	}
}

// TestRemoteAccess: a window allows what it was granted for, and nothing beyond its end.
func TestRemoteAccess(t *testing.T) {
	f := sim.New(2, sim.Config{Remote: true})
	a, b := f.Endpoint(0).(transport.Remote), f.Endpoint(1).(transport.Remote)
	buf := make([]byte, 16)
	ops := map[transport.Access]func(r wire.Region, off uint64) error{
		transport.Readable: func(r wire.Region, off uint64) error { return a.Get(1, r, off, buf, 1) },
		transport.Writable: func(r wire.Region, off uint64) error { return a.Put(1, r, off, buf, 1) },
		transport.Atomic:   func(r wire.Region, off uint64) error { return a.FetchAdd(1, r, off+8, 1, 1) },
	}
	for granted := range ops {
		r, err := b.Grant(make([]byte, 64), granted)
		if err != nil {
			t.Fatal(err)
		}
		for used, op := range ops {
			if err := op(r, 0); (err == nil) != (used == granted) {
				t.Errorf("window for access %b, used for %b: %v", granted, used, err)
			}
			if err := op(r, 56); err == nil {
				t.Errorf("access %b beyond the end", used)
			}
		}
	}
}
