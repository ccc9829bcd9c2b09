package shm

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/pause"
	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

// A second process, the test binary again, plays the other rank. Rank 0 tells it
// by a frame which game comes next: the tag is the game, Sig.Count the number of
// rounds, Bytes the size. All games are ping-pong but for rate.
const (
	childEnv   = "WEFT_SHM_TEST_CHILD"
	benchArena = 256 << 20

	gameEnd = iota
	gameFlag
	gameFrames
	gameRate
	gamePull
	gameBulk
	gameCMA
	gameDie
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := child(); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child() error {
	f := os.NewFile(3, "segment")
	tr, err := Open(f, Config{Index: 1, World: []int{0, 1}})
	if err != nil {
		return err
	}
	f.Close()
	runtime.LockOSThread()
	p, err := newPlayer(tr, 0)
	if err != nil {
		return err
	}
	for {
		if err := p.await(); err != nil {
			return err
		}
		h := p.game
		if h.Tag == gameEnd {
			return tr.Close()
		}
		if h.Tag == gameDie {
			return unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		if err := p.play(h.Tag, int(h.Sig.Count), int(h.Bytes), false); err != nil {
			return fmt.Errorf("game %d of %d bytes: %w", h.Tag, h.Bytes, err)
		}
	}
}

// player is one rank of a game, and its sink.
type player struct {
	*Transport
	peer int
	buf  []byte // in the arena
	heap []byte

	frames, landed int
	taken          int         // frames and payloads that await returned for
	h              wire.Header // of the last frame of a game
	game           wire.Header // of the last frame that starts a game
	down           error
	sink           transport.Sink
}

func newPlayer(tr *Transport, peer int) (*player, error) {
	p := &player{Transport: tr, peer: peer, heap: make([]byte, 40<<20)}
	p.sink = p
	var err error
	if p.buf, err = tr.Arena().Alloc(40 << 20); err == nil {
		clear(p.buf)
		for i := range p.heap {
			p.heap[i] = byte(i)
		}
	}
	return p, err
}

// Frame may come several times in one Poll: a game starts before its first ball.
func (p *player) Frame(_ int, h *wire.Header, _ []byte) {
	p.frames++
	if h.Kind == wire.Credit {
		p.game = *h
	} else {
		p.h = *h
	}
}
func (p *player) Dest(_ int, h *wire.Header, n int) []byte {
	return p.heap[len(p.heap)/2:][:n]
}
func (p *player) Landed(int, *wire.Header)  { p.landed++ }
func (p *player) Sent(int, uint32)          {}
func (p *player) PeerDown(_ int, err error) { p.down = err }

// await polls until the next frame or payload.
func (p *player) await() error { return p.awaitN(1) }

func (p *player) awaitN(n int) error {
	idle := 0
	for p.taken += n; p.frames+p.landed < p.taken; idle++ {
		if p.Poll(p.sink) > 0 {
			idle = 0
		} else if idle < 2000 {
			pause.Spin(1)
		} else if p.Arm() { // the other one may be waiting for a core
			p.Wait(100 * time.Millisecond)
			p.Disarm()
		}
		if p.down != nil {
			return p.down
		}
	}
	return nil
}

func (p *player) start(game, rounds, n int) error {
	return p.Send(p.peer, &wire.Header{Kind: wire.Credit, Flags: wire.HasBytes | wire.HasSig, Tag: int32(game), Bytes: uint64(n),
		Sig: wire.Signature{Count: uint64(rounds)}}, nil)
}

// play plays rounds of a game; the one who is first begins.
func (p *player) play(game int32, rounds, n int, first bool) error {
	if game == gameFlag {
		p.playFlag(rounds, first)
		return nil
	}
	h := wire.Header{Kind: wire.Eager}
	throw := func() error { return p.Send(p.peer, &h, p.heap[:n]) }
	caught := func() error { return nil }
	switch game {
	case gameRate:
		return p.playRate(rounds, n, first)
	case gamePull:
		h = wire.Header{Kind: wire.RTS, Flags: wire.HasID | wire.HasBytes | wire.HasRegion, Bytes: uint64(n)}
		half := len(p.buf) / 2
		h.Region, _ = p.Describe(p.buf[:n])
		throw = func() error { return p.Send(p.peer, &h, nil) }
		caught = func() error { return p.Pull(p.peer, p.h.Region, p.buf[half:half+n]) }
	case gameCMA:
		h = wire.Header{Kind: wire.RTS, Flags: wire.HasID | wire.HasBytes | wire.HasRegion, Bytes: uint64(n)}
		half := len(p.heap) / 2
		var ok bool
		if h.Region, ok = p.Describe(p.heap[:n]); !ok {
			return fmt.Errorf("ranks cannot read each other's memory here")
		}
		throw = func() error { return p.Send(p.peer, &h, nil) }
		caught = func() error {
			clear(p.heap[half:][:min(n, 100)])
			if err := p.Pull(p.peer, p.h.Region, p.heap[half:][:n]); err != nil {
				return err
			}
			if !bytes.Equal(p.heap[half:][:min(n, 100)], p.heap[:min(n, 100)]) {
				return fmt.Errorf("pulled other bytes")
			}
			return nil
		}
	case gameBulk:
		h = wire.Header{Kind: wire.Data, Flags: wire.HasID | wire.HasBytes, Bytes: uint64(n)}
		throw = func() error { return p.SendBulk(p.peer, &h, p.heap[:n], 1) }
	}
	for range rounds {
		for turn := range 2 {
			var err error
			if first == (turn == 0) {
				err = throw()
			} else if err = p.await(); err == nil {
				err = caught()
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// playFlag is the bare floor: a word in each direction, and nothing else.
func (p *player) playFlag(rounds int, first bool) {
	zero := p.seg.arenaAt(0) + benchArena/2
	ping, pong := at32(p.seg.mem, zero), at32(p.seg.mem, zero+256)
	if !first {
		ping, pong = pong, ping
	}
	base := ping.Load()
	for i := range uint32(rounds) {
		if first {
			ping.Store(base + i + 1)
		}
		for spins := 0; pong.Load() != base+i+1; spins++ {
			if spins < 2000 {
				pause.Spin(1)
			} else {
				yield()
			}
		}
		if !first {
			ping.Store(base + i + 1)
		}
	}
}

// playRate streams frames one way and returns one at the end.
func (p *player) playRate(rounds, n int, first bool) error {
	h := wire.Header{Kind: wire.Eager}
	if !first {
		if err := p.awaitN(rounds); err != nil {
			return err
		}
		return p.Send(p.peer, &h, nil)
	}
	for range rounds {
		for p.Send(p.peer, &h, p.heap[:n]) != nil {
			yield()
		}
	}
	return p.await()
}

// startChild starts the other process, on core 1 when there is one, and pins
// this thread to core 0.
func startChild(tb testing.TB) *player {
	tb.Helper()
	f, err := Create("processes", 2, benchArena)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	runtime.LockOSThread()
	var before, own, other unix.CPUSet
	must(tb, unix.SchedGetaffinity(0, &before))
	own.Set(0)
	other.Set(runtime.NumCPU() - 1)
	must(tb, unix.SchedSetaffinity(0, &other)) // inherited by the child
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.ExtraFiles = []*os.File{f}
	cmd.Stderr = os.Stderr
	must(tb, cmd.Start())
	must(tb, unix.SchedSetaffinity(0, &own))
	tr, err := Open(f, Config{Index: 0, World: []int{0, 1}, Oversubscribed: runtime.NumCPU() < 2})
	must(tb, err)
	p, err := newPlayer(tr, 1)
	must(tb, err)
	exited := make(chan struct{})
	go func() {
		err := cmd.Wait()
		tr.MarkDown(1, fmt.Errorf("process ended: %v", err))
		close(exited)
	}()
	tb.Cleanup(func() {
		if p.down == nil {
			must(tb, p.start(gameEnd, 0, 0))
		}
		<-exited
		must(tb, tr.Close())
		must(tb, unix.SchedSetaffinity(0, &before))
		runtime.UnlockOSThread()
	})
	return p
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// TestProcesses plays every game with a real second process, then kills it.
func TestProcesses(t *testing.T) {
	p := startChild(t)
	for _, g := range []int{gameFlag, gameFrames, gameRate, gamePull, gameBulk, gameCMA} {
		for _, n := range []int{0, 1, 8, 8000, 1 << 20, 9<<20 + 1} {
			if n > p.MaxEager() && g <= gameRate || n <= p.MaxEager() && g == gameCMA { // the ring is for those
				continue
			}
			must(t, p.start(g, 5, n))
			if err := p.play(int32(g), 5, n, true); err != nil {
				t.Fatalf("game %d of %d bytes: %v", g, n, err)
			}
		}
	}
	must(t, p.start(gameDie, 0, 0))
	if err := p.await(); err == nil {
		t.Error("the death of the other process was not reported")
	}
	if err := p.Pull(1, wire.Region{Kind: regionArena, Key: 1}, p.heap[:100]); err == nil {
		t.Error("pulled from a process that is dead")
	}
}

// BenchmarkProcesses measures between two processes on two cores. An iteration
// is a short block of the floor and a short block of the game, so that both see
// the same placement. Reported is the fastest tenth of the blocks: other work on
// the machine only ever adds time.
// The floor is a bare flag for frames and a bare copy of the same size for payloads.
// CMA is a pull of ordinary memory, by process_vm_readv.
func BenchmarkProcesses(b *testing.B) {
	for _, c := range []struct {
		name        string
		game, n     int
		rounds      int
		floorRounds int
	}{
		{"Latency/8", gameFrames, 8, 300, 300},
		{"Latency/1K", gameFrames, 1 << 10, 300, 300},
		{"Latency/8K", gameFrames, 8 << 10, 100, 300},
		{"Rate/8", gameRate, 8, 5000, 300},
		{"Pull/64K", gamePull, 64 << 10, 30, 30},
		{"Pull/1M", gamePull, 1 << 20, 4, 4},
		{"Pull/16M", gamePull, 16 << 20, 1, 1},
		{"Bulk/64K", gameBulk, 64 << 10, 30, 30},
		{"Bulk/1M", gameBulk, 1 << 20, 4, 4},
		{"Bulk/16M", gameBulk, 16 << 20, 1, 1},
		{"CMA/64K", gameCMA, 64 << 10, 30, 30},
		{"CMA/1M", gameCMA, 1 << 20, 4, 4},
		{"CMA/16M", gameCMA, 16 << 20, 1, 1},
	} {
		b.Run(c.name, func(b *testing.B) {
			p := startChild(b)
			block := func(game, rounds int) float64 {
				must(b, p.start(game, rounds, c.n))
				start := time.Now()
				must(b, p.play(int32(game), rounds, c.n, true))
				ns := float64(time.Since(start)) / float64(rounds)
				if game == gameRate {
					return ns
				}
				return ns / 2 // one way
			}
			floor := func() float64 { return block(gameFlag, c.floorRounds) }
			if c.n >= 64<<10 {
				other := p.seg.mem[p.seg.arenaAt(1):]
				floor = func() float64 {
					start := time.Now()
					for range c.floorRounds {
						copyPieces(p.buf[len(p.buf)/2:][:c.n], other[:c.n])
					}
					return float64(time.Since(start)) / float64(c.floorRounds)
				}
			}
			block(c.game, c.rounds)
			var floors, games []float64
			for b.Loop() {
				floors, games = append(floors, floor()), append(games, block(c.game, c.rounds))
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(decile(floors), "floor-ns")
			b.ReportMetric(decile(games), "ns")
			b.ReportMetric(decile(games)/decile(floors), "x-floor")
			if c.n >= 64<<10 {
				b.ReportMetric(float64(c.n)/decile(games), "GB/s")
			}
		})
	}
}

func decile(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/10]
}
