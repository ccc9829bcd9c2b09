package verbs

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/rdma"
	"github.com/weft-hpc/weft/rdma/fake"
)

const patience = 60 * time.Second

// rank is a transport and what it has reported.
type rank struct {
	*Transport
	frames  map[int]int
	last    map[int][]byte
	landed  map[int]int
	header  wire.Header // of the last that landed
	sent    map[int]int
	done    map[int]int
	down    map[int]error
	dest    []byte
	afterMe func(peer int) // called with every frame
}

func (r *rank) Frame(peer int, _ *wire.Header, payload []byte) {
	r.frames[peer]++
	r.last[peer] = append([]byte(nil), payload...)
	if r.afterMe != nil {
		r.afterMe(peer)
	}
}
func (r *rank) Dest(int, *wire.Header, int) []byte { return r.dest }
func (r *rank) Landed(peer int, h *wire.Header)    { r.landed[peer]++; r.header = *h }
func (r *rank) Sent(peer int, _ uint32)            { r.sent[peer]++ }
func (r *rank) Done(peer int, _ uint32, _ uint64)  { r.done[peer]++ }
func (r *rank) PeerDown(peer int, err error) {
	if r.down[peer] != nil {
		panic("down twice")
	}
	r.down[peer] = err
}

func newRank(tr *Transport) *rank {
	return &rank{Transport: tr, frames: map[int]int{}, last: map[int][]byte{}, landed: map[int]int{}, sent: map[int]int{}, done: map[int]int{},
		down: map[int]error{}}
}

func (w *world) sinks() (all []*rank) {
	for _, tr := range w.ranks {
		all = append(all, newRank(tr))
	}
	return all
}

// ranksOf opens a world that is closed at the end; its devices must then have nothing left.
func ranksOf(t *testing.T, n int, o options) (*world, []*rank) {
	t.Helper()
	w := newWorld(t, n, o)
	all := w.sinks()
	t.Cleanup(func() {
		for i, r := range w.ranks {
			if !w.dead[i] {
				if err := r.Close(); err != nil {
					t.Errorf("rank %d: Close: %v", i, err)
				}
			}
		}
		w.close()
	})
	return w, all
}

// poll polls until cond holds.
func poll(t *testing.T, what string, cond func() bool, ranks ...*rank) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); {
		n := 0
		for _, r := range ranks {
			n += r.Poll(r)
		}
		if n == 0 {
			runtime.Gosched()
			if time.Now().After(end) {
				t.Fatalf("gave up: %s", what)
			}
		}
	}
}

func eager(seq int) *wire.Header { return &wire.Header{Kind: wire.Eager, Seq: uint32(seq)} }

func dataHeader(id uint32, r wire.Region) *wire.Header {
	h := &wire.Header{Kind: wire.Data, Flags: wire.HasID | wire.HasBytes, ID: id}
	if r != (wire.Region{}) {
		h.Flags |= wire.HasRegion
		h.Region = r
	}
	return h
}

// try repeats op while there is no room.
func try(t *testing.T, op func() error, ranks ...*rank) error {
	t.Helper()
	var err error
	poll(t, "no room", func() bool { err = op(); return !errors.Is(err, transport.ErrAgain) }, ranks...)
	return err
}

// meet connects two ranks with a frame each way.
func meet(t *testing.T, a, b *rank) {
	t.Helper()
	for _, p := range [][2]*rank{{a, b}, {b, a}} {
		from, to := p[0], p[1]
		seen := to.frames[from.cfg.Rank]
		if err := try(t, func() error { return from.Send(to.cfg.Rank, eager(0), nil) }, a, b); err != nil {
			t.Fatal(err)
		}
		poll(t, "a frame", func() bool { return to.frames[from.cfg.Rank] > seen }, a, b)
	}
}

func contains(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error lacks %q: %v", p, err)
		}
	}
}

// quick makes timeouts short.
func quick(u *tuning) {
	u.timeout, u.retries, u.keepAlive, u.rnrRetries = 5*time.Millisecond, 3, 300*time.Millisecond, 0
}

// TestErrorOfOnePeer: a queue pair fails; its peers are told with cause, rank, GID and remedy, and
// all others go on at once (openucx/ucx#5027, openucx/ucx#5174, rapidsai/ucxx#249).
func TestErrorOfOnePeer(t *testing.T) {
	for _, status := range []rdma.Status{rdma.StatusRetryExceeded, rdma.StatusRNRRetryExceeded, rdma.StatusRemoteAccess, rdma.StatusLocalProtection,
		rdma.StatusRemoteInvalidRequest, rdma.StatusGeneral} {
		t.Run(status.String(), func(t *testing.T) {
			w, r := ranksOf(t, 3, options{tune: quick, cfg: func(_ int, cfg *Config) { cfg.Host = func(rank int) string { return fmt.Sprintf("node%d", rank) } }})
			meet(t, r[0], r[1])
			meet(t, r[0], r[2])
			meet(t, r[1], r[2])
			buf := make([]byte, 2<<20)
			region, err := r[1].Expose(0, 7, buf)
			if err != nil {
				t.Fatal(err)
			}
			w.cards[0].FailSend(status, 2)
			if err := r[0].SendBulk(1, dataHeader(7, region), make([]byte, 2<<20), 1); err != nil {
				t.Fatal(err)
			}
			poll(t, "both report it", func() bool { return r[0].down[1] != nil && r[1].down[0] != nil }, r...)
			contains(t, r[0].down[1], "rank 1 on node1", "fake0:1", "::ffff:10.77.0.2", status.String(), "its process still answers")
			if r[0].sent[1]+r[1].landed[0] != 0 {
				t.Error("the payload was reported")
			}
			meet(t, r[0], r[2])
			meet(t, r[1], r[2])
			if err := r[0].Send(1, eager(0), nil); err == nil || errors.Is(err, transport.ErrAgain) {
				t.Errorf("Send to the peer that failed: %v", err)
			}
			for i := range 2 {
				if l := len(w.ranks[i].memory.blocks); l != 0 {
					t.Errorf("rank %d has %d blocks", i, l)
				}
				if left := w.opens[i].devices[len(w.opens[i].devices)-1].Resources(); left.QPs != 1 || left.MRs != 2 {
					t.Errorf("rank %d still has %v", i, left)
				}
			}
		})
	}
}

// TestReceiverLearns: the network is cut and the other process lives. A rank that only
// receives learns of it by keep-alive.
func TestReceiverLearns(t *testing.T) {
	w, r := ranksOf(t, 2, options{tune: quick})
	meet(t, r[0], r[1])
	if _, err := r[1].Expose(0, 7, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	w.cards[0].Cut(true)
	start := time.Now()
	poll(t, "the receiver learns", func() bool { return r[1].down[0] != nil }, r[1])
	contains(t, r[1].down[0], "RETRY_EXC_ERR", "its process still answers", "ib_write_bw")
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestKilledPeer: a process dies. The link tells, long before the device would.
func TestKilledPeer(t *testing.T) {
	w, r := ranksOf(t, 2, options{}) // a second times seven
	meet(t, r[0], r[1])
	start := time.Now()
	w.kill(1)
	poll(t, "the other learns", func() bool { return r[0].down[1] != nil }, r[0])
	contains(t, r[0].down[1], "rank 1", "its process has ended")
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestLastWords: what a rank sent before its death is delivered before its PeerDown.
func TestLastWords(t *testing.T) {
	w, r := ranksOf(t, 2, options{})
	meet(t, r[0], r[1])
	for i := range 20 {
		if err := r[0].Send(1, eager(i), []byte("last words")); err != nil {
			t.Fatal(err)
		}
	}
	poll(t, "they are under way", func() bool { return r[0].conns[1].eps[0].used() < 16 }, r[0])
	for range 1000 {
		r[0].Poll(r[0])
	}
	r[1].MarkDown(0, errors.New("killed by signal 9"))
	w.kill(0)
	poll(t, "the death", func() bool { return r[1].down[0] != nil }, r[1])
	if r[1].frames[0] != 21 {
		t.Errorf("%d of 21 frames were delivered before PeerDown", r[1].frames[0])
	}
	contains(t, r[1].down[0], "rank 0", "killed by signal 9")
}

// TestPortDown: a port goes down for a while; nothing is lost and the user is told.
func TestPortDown(t *testing.T) {
	w, r := ranksOf(t, 2, options{loud: true})
	meet(t, r[0], r[1])
	w.cards[1].SetPort(false)
	if err := r[0].Send(1, eager(1), []byte("in the dark")); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
		r[0].Poll(r[0])
		r[1].Poll(r[1])
	}
	w.cards[1].SetPort(true)
	poll(t, "the frame", func() bool { return r[1].frames[0] == 2 }, r...)
	w.mu.Lock()
	defer w.mu.Unlock()
	all := strings.Join(w.notices, "\n")
	if !strings.Contains(all, "fake1:1 is down") || !strings.Contains(all, "fake1:1 is back") || len(w.notices) != 2 {
		t.Errorf("notices: %q", w.notices)
	}
}

// TestDeviceLost: everybody fails with the cause, buffers are free, and Close works (Mellanox/libvma#828).
func TestDeviceLost(t *testing.T) {
	w, r := ranksOf(t, 3, options{tune: quick})
	meet(t, r[0], r[1])
	meet(t, r[0], r[2])
	mem, err := w.alloc(0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, buf := range [][]byte{mem, make([]byte, 1<<20)} {
		if _, err := r[0].Expose(1, 7, buf); err != nil {
			t.Fatal(err)
		}
	}
	if err := r[0].SendBulk(2, dataHeader(7, wire.Region{}), make([]byte, 1<<20), 1); err != nil {
		t.Fatal(err)
	}
	w.cards[0].Fatal()
	poll(t, "all fail", func() bool {
		return r[0].down[1] != nil && r[0].down[2] != nil && r[1].down[0] != nil && r[2].down[0] != nil
	}, r...)
	contains(t, r[0].down[1], "rank 1", "the device was lost", "dmesg")
	if err := r[0].Arena().Free(mem); err != nil {
		t.Errorf("Free after PeerDown: %v", err)
	}
	if err := r[0].Send(1, eager(0), nil); err == nil || errors.Is(err, transport.ErrAgain) {
		t.Errorf("Send over a lost device: %v", err)
	}
	meet(t, r[1], r[2])
}

// TestLostNotification: the device forgets to wake us (apache/brpc#3415).
func TestLostNotification(t *testing.T) {
	w, r := ranksOf(t, 2, options{})
	meet(t, r[0], r[1])
	for i := range 3 {
		for !r[1].Arm() {
			r[1].Poll(r[1])
		}
		w.cards[1].LoseNotifications(1)
		if err := r[0].Send(1, eager(i), nil); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for want := i + 2; r[1].frames[0] < want; {
			r[0].Poll(r[0])
			r[1].Wait(patience)
			r[1].Disarm()
			r[1].Poll(r[1])
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("slept %v", took)
		}
	}
}

// TestNoMemoryToRegister: registrations of messages fail. They are copied instead, with one
// line that says so, and nobody waits for anybody: large sends both ways were a deadlock of Open MPI
// when the memory that may be locked ran out (att-4364 of its list devel).
func TestNoMemoryToRegister(t *testing.T) {
	w, r := ranksOf(t, 2, options{loud: true, card: fake.CardOptions{Memlock: 12 << 20}, cfg: func(_ int, cfg *Config) { cfg.ArenaBytes = 0 },
		tune: func(u *tuning) { u.receives, u.sends = 64, 64 }})
	meet(t, r[0], r[1])
	const n = 4 << 20
	src := make([]byte, n)
	for i := range src {
		src[i] = byte(i * 7)
	}
	var bufs [2][][]byte
	for i := range 2 {
		for k := range 8 {
			dst := make([]byte, n)
			bufs[i] = append(bufs[i], dst)
			region, err := r[i].Expose(1-i, uint32(k), dst)
			if err != nil {
				t.Fatal(err)
			}
			r[i].dest = dst
			if err := try(t, func() error { return r[1-i].SendBulk(i, dataHeader(uint32(k), region), src, uint32(k)) }, r...); err != nil {
				t.Fatal(err)
			}
			poll(t, "a payload", func() bool { return r[i].landed[1-i] == k+1 }, r...)
			if string(dst) != string(src) {
				t.Fatalf("payload %d of rank %d is wrong", k, i)
			}
		}
	}
	if r[0].Stats().Registrations == 0 {
		t.Error("nothing was registered: the limit is not where this test wants it")
	}
	// Both hold as much as they can, both ways.
	for i := range 2 {
		for k := range 6 {
			if _, err := r[i].Expose(1-i, uint32(100+k), bufs[i][k]); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.notices) != 2 || !strings.Contains(w.notices[0], "ulimit -l unlimited") || !strings.Contains(w.notices[0], "12 MiB") {
		t.Errorf("notices: %q", w.notices)
	}
}

// TestMemlock: what is needed at the start shrinks to what may be locked, or says how to raise it
// (openucx/ucx#8229).
func TestMemlock(t *testing.T) {
	w, r := ranksOf(t, 2, options{loud: true, card: fake.CardOptions{Memlock: 3 << 20}})
	meet(t, r[0], r[1])
	w.mu.Lock()
	for _, line := range w.notices {
		if !strings.Contains(line, "ulimit -l unlimited") {
			t.Errorf("notice: %s", line)
		}
	}
	if len(w.notices) == 0 {
		t.Error("no notice")
	}
	w.mu.Unlock()

	f := fake.New(fake.Options{})
	defer f.Close()
	f.AddCard("fake0", fake.CardOptions{Memlock: 100 << 10})
	link := openLinks(t, 1)[0]
	defer link.Close()
	_, err := Open(Config{Size: 1, Job: "test", Provider: f, NUMA: -1, Control: link})
	contains(t, err, "cannot lock", "100 KiB", "ulimit -l unlimited")
	if !errors.Is(err, rdma.ErrMemlock) {
		t.Errorf("%v is not ErrMemlock", err)
	}
}

// TestFailingCalls: the nth call of each kind fails. Open gives everything back, or
// works; later, the peers are told. A post that failed was overlooked (uiuc-hpc/lci#24).
func TestFailingCalls(t *testing.T) {
	for _, op := range []rdma.Op{rdma.OpOpenDevice, rdma.OpQueryPort, rdma.OpQueryGIDs, rdma.OpQueryPKeys, rdma.OpAllocPD, rdma.OpCreateChannel, rdma.OpCreateCQ,
		rdma.OpCreateSRQ, rdma.OpPostRecv, rdma.OpRegisterMemory, rdma.OpCreateQP, rdma.OpModifyInit, rdma.OpModifyRTR, rdma.OpModifyRTS,
		rdma.OpPostSend, rdma.OpArm} {
		for nth := 1; nth <= 3; nth++ {
			t.Run(fmt.Sprintf("%s %d", op, nth), func(t *testing.T) {
				f := fake.New(fake.Options{})
				defer func() {
					if err := f.Close(); err != nil {
						t.Error(err)
					}
				}()
				links := openLinks(t, 2)
				var all []*rank
				for i := range 2 {
					c := f.AddCard(fmt.Sprintf("fake%d", i), fake.CardOptions{})
					if i == 0 {
						c.FailCall(op, nth, syscall.ENOMEM)
					}
					tr, err := Open(Config{Rank: i, Size: 2, Job: "test", Provider: f, Device: fmt.Sprintf("fake%d", i), NUMA: -1, Control: links[i],
						ArenaBytes: 4 << 20, tune: quick})
					if err != nil {
						if i == 1 || !errors.Is(err, syscall.ENOMEM) {
							t.Error(err)
						}
						_ = links[0].Close()
						_ = links[1].Close()
						return
					}
					defer func() {
						if err := tr.Close(); err != nil {
							t.Error(err)
						}
					}()
					all = append(all, newRank(tr))
				}
				a, b := all[0], all[1]
				mem, err := a.Arena().Alloc(100 << 10)
				if err != nil {
					t.Fatal(err)
				}
				clear(mem)
				// Either all of it works, or both sides are told.
				both := func() bool { return a.down[1] != nil && b.down[0] != nil }
				for i := range 20 {
					if err := try(t, func() error { return a.Send(1, eager(i), mem[:100]) }, a, b); err != nil {
						poll(t, "both are told", both, a, b)
						return
					}
					if a.Arm() {
						a.Disarm()
					}
				}
				poll(t, "an end", func() bool { return both() || b.frames[0] == 20 }, a, b)
			})
		}
	}
}

// TestFreeInUse: arena memory that a peer may write to cannot be freed.
func TestFreeInUse(t *testing.T) {
	w, r := ranksOf(t, 2, options{tune: quick})
	meet(t, r[0], r[1])
	mem, err := w.alloc(0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r[0].Expose(1, 7, mem); err != nil {
		t.Fatal(err)
	}
	err = r[0].Arena().Free(mem)
	contains(t, err, "1 operations still use")
	w.kill(1)
	poll(t, "the death", func() bool { return r[0].down[1] != nil }, r[0])
	if err := r[0].Arena().Free(mem); err != nil {
		t.Error(err)
	}
}
