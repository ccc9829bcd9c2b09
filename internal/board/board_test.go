package board

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/collective/collectivetest"
	"github.com/weft-hpc/weft/internal/kernel"
	"github.com/weft-hpc/weft/internal/wire"
)

// host is the memory of ranks that are goroutines.
type host struct {
	slots [][]byte
	mu    sync.Mutex
	open  [][]byte // what was reached, by number

	far    func(rank int, mem []byte) bool // memory that nobody maps; nil: none
	full   bool                            // nothing can be allocated
	allocs atomic.Int32                    // less those freed
}

func newHost(n int) *host {
	h := &host{}
	for range n {
		h.slots = append(h.slots, make([]byte, SlotSize))
	}
	return h
}

type rankMemory struct {
	*host
	rank  int
	owned [][]byte // allocated
}

func (m *rankMemory) Slot(rank int) ([]byte, error) { return m.slots[rank], nil }

func (m *rankMemory) Reach(mem []byte) (wire.Region, bool) {
	mine := false
	for _, o := range m.owned {
		mine = mine || &o[0] == &mem[0]
	}
	if !mine && m.far != nil && m.far(m.rank, mem) {
		return wire.Region{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open = append(m.open, mem)
	return wire.Region{Kind: 1, Key: uint32(m.rank), Addr: uint64(len(m.open) - 1)}, true
}

func (m *rankMemory) Map(rank int, r wire.Region, n int) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Kind != 1 || r.Key != uint32(rank) || r.Addr >= uint64(len(m.open)) || len(m.open[r.Addr]) != n {
		return nil, fmt.Errorf("region %+v of rank %d is not %d bytes", r, rank, n)
	}
	return m.open[r.Addr], nil
}

func (m *rankMemory) Asleep(int) *atomic.Uint32 { return new(atomic.Uint32) }

func (m *rankMemory) Nudge(int) {}

func (m *rankMemory) Alloc(n int) ([]byte, error) {
	if m.full {
		return nil, errors.New("full")
	}
	m.allocs.Add(1)
	mem := make([]byte, n)
	m.owned = append(m.owned, mem)
	return mem, nil
}

func (m *rankMemory) Free([]byte) error {
	m.allocs.Add(-1)
	return nil
}

func boards(t *testing.T, h *host, n int) []*Board {
	all := make([]*Board, n)
	for r := range all {
		b, err := New(&rankMemory{host: h, rank: r}, r, n, 7, int64(r%2)) // every other rank copies past the caches
		if err != nil {
			t.Fatal(err)
		}
		all[r] = b
	}
	return all
}

var errMessages = errors.New("goes by messages")

// drive runs a run to its end.
func drive(r *Run) error {
	for deadline := time.Now().Add(20 * time.Second); ; {
		over, err := r.Next()
		switch {
		case err != nil:
			return err
		case over && r.Messages():
			return errMessages
		case over:
			return nil
		}
		for !r.Met() {
			if time.Now().After(deadline) {
				return fmt.Errorf("waits for rank %d for ever", r.Missing())
			}
			runtime.Gosched()
		}
	}
}

// world keeps boards for each number of ranks, so that their numbers grow.
type world struct {
	t    *testing.T
	far  func(rank int, mem []byte) bool
	made map[int][]*Board
	seq  uint32
	many bool // give sums their form with many sources
}

func (w *world) run(n int, kind collective.Kind, args func(rank int) collective.Args) []error {
	if w.made[n] == nil {
		h := newHost(n)
		h.far = w.far
		w.made[n] = boards(w.t, h, n)
	}
	w.seq++
	seq := w.seq
	errs := make([]error, n)
	var all sync.WaitGroup
	for rank, b := range w.made[n] {
		all.Go(func() {
			if (seq+uint32(rank))%5 == 0 {
				runtime.Gosched()
			}
			a := args(rank)
			if w.many && a.Op.Left != nil {
				left := a.Op.Left
				a.Op.Many = func(dst []byte, sources [][]byte) {
					acc := append([]byte(nil), sources[0]...)
					for _, src := range sources[1:] {
						left(acc, src)
					}
					copy(dst, acc)
				}
			}
			var r Run
			b.Start(&r, kind, &a, &wire.Signature{Op: uint8(kind), Root: int32(a.Root), Seq: seq})
			errs[rank] = drive(&r)
		})
	}
	all.Wait()
	h := w.made[n][0].mem.(*rankMemory).host
	clear(h.open)
	h.open = h.open[:0]
	return errs
}

func served() (kinds []collective.Kind) {
	for _, k := range collective.Kinds() {
		if Serves(k) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// The answers of all collectives, around the lengths where they change their way.
func TestAnswers(t *testing.T) {
	lengths := []int{Short, pieceBytes}
	for name, w := range map[string]*world{
		"mapped":      {},
		"many":        {many: true},
		"bounced":     {far: func(int, []byte) bool { return true }},
		"odd bounced": {far: func(rank int, _ []byte) bool { return rank%2 == 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w.t, w.made = t, map[int][]*Board{}
			collectivetest.RunDirect(t, served(), lengths, w.run)
			for _, bs := range w.made {
				h := bs[0].mem.(*rankMemory).host
				for _, b := range bs {
					if err := b.Close(); err != nil || !b.Idle() {
						t.Errorf("close: %v, idle %t", err, b.Idle())
					}
				}
				if left := h.allocs.Load(); left != 0 {
					t.Errorf("%d buffers left", left)
				}
			}
		})
	}
}

// One rank whose memory is out of reach sends all ranks to messages, and the board goes on.
func TestOutOfReach(t *testing.T) {
	const n = 5
	for _, kind := range served() {
		if kind == collective.KindBarrier {
			continue
		}
		t.Run(kind.String(), func(t *testing.T) {
			h := newHost(n)
			h.full = true
			h.far = func(rank int, _ []byte) bool { return rank == 3 }
			bs := boards(t, h, n)
			for round, bytes := range []int{Short + 2*n, 5 * n, Short * n * 2} {
				var all sync.WaitGroup
				for rank, b := range bs {
					all.Go(func() {
						a := shape(kind, n, rank, 3, bytes/n*n)
						var r Run
						b.Start(&r, kind, &a, &wire.Signature{Seq: uint32(round)})
						err := drive(&r)
						if want := round != 1; want != (err == errMessages) {
							t.Errorf("rank %d, %d bytes: %v", rank, bytes, err)
						}
					})
				}
				all.Wait()
			}
		})
	}
}

// shape returns arguments whose vectors have that many bytes.
func shape(kind collective.Kind, n, rank, root, bytes int) collective.Args {
	a := collective.Args{Root: root, Send: make([]byte, bytes), Recv: make([]byte, bytes)}
	sum := func(inout, in []byte) { kernel.Sum(inout, in) }
	a.Op = collective.Op{Size: 1, Commutative: true, Left: sum, Right: sum}
	switch kind {
	case collective.KindGather, collective.KindAllgather:
		a.Recv = make([]byte, bytes*n)
	case collective.KindScatter:
		a.Recv = make([]byte, bytes/n)
	case collective.KindReduceScatterBlock:
		a.Recv = make([]byte, bytes/n)
	}
	return a
}

// Ranks that call different things are all told, or wait for one that was told.
func TestMismatch(t *testing.T) {
	const n = 3
	bs := boards(t, newHost(n), n)
	kinds := []collective.Kind{collective.KindAllreduce, collective.KindAllreduce, collective.KindBarrier}
	var told atomic.Int32
	var all sync.WaitGroup
	for rank, b := range bs {
		all.Go(func() {
			a := shape(kinds[rank], n, rank, 0, 8)
			var r Run
			b.Start(&r, kinds[rank], &a, &wire.Signature{Op: uint8(kinds[rank]), Seq: 1, Count: 8})
			err := drive(&r)
			mismatch, ok := errors.AsType[*MismatchError](err)
			if !ok || mismatch.Mine.Op != uint8(kinds[rank]) || mismatch.Theirs.Op == mismatch.Mine.Op {
				t.Errorf("rank %d: %v", rank, err)
				return
			}
			told.Add(1)
		})
	}
	all.Wait()
	if told.Load() != n {
		t.Errorf("%d of %d ranks were told", told.Load(), n)
	}
}

// A disagreement that nobody waited for is found by whoever comes next, and by Disagreement.
func TestLateMismatch(t *testing.T) {
	bs := boards(t, newHost(2), 2)
	for rank, b := range bs { // each is the root
		a := shape(collective.KindBcast, 2, rank, rank, 8)
		var r Run
		b.Start(&r, collective.KindBcast, &a, &wire.Signature{Op: 1, Root: int32(rank), Seq: 1})
		if err := drive(&r); err != nil {
			t.Fatal(err)
		}
	}
	for rank, b := range bs {
		if err := b.Disagreement(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("rank %d called", 1-rank)) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	runs := make([]Run, 2)
	for rank, b := range bs { // the second one finds the first one's post
		b.Start(&runs[rank], collective.KindBarrier, &collective.Args{}, &wire.Signature{Op: 2, Seq: 2})
		_, err := runs[rank].Next()
		if mismatch, ok := errors.AsType[*MismatchError](err); ok != (rank == 1) || ok && (mismatch.Mine.Op != 1 || mismatch.Theirs.Root != 0) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// Ranks that never wait for each other are told before any of their calls is written over, by which is the
// first that differs.
func TestMismatchFarBehind(t *testing.T) {
	for first := uint32(1); first <= 3*depth; first++ {
		bs := boards(t, newHost(2), 2)
		var told *MismatchError
		for seq := uint32(1); told == nil; seq++ {
			if seq > first+period {
				t.Fatalf("difference at %d: nobody is told", first)
			}
			for _, rank := range []int{int(seq % 2), int(1 - seq%2)} {
				root := int(seq % 2)
				if seq >= first {
					root = rank
				}
				a := shape(collective.KindBcast, 2, rank, root, 8)
				var r Run
				bs[rank].Start(&r, collective.KindBcast, &a, &wire.Signature{Op: 1, Root: int32(root), Seq: seq})
				if err := drive(&r); err != nil && !errors.As(err, &told) {
					t.Fatal(err)
				}
			}
		}
		if told.Mine.Seq != first || told.Theirs.Seq != first {
			t.Errorf("difference at %d: %v", first, told)
		}
	}
}

// A root runs ahead of the others as far as there is room for its posts, and what it has posted stays.
func TestAhead(t *testing.T) {
	for bytes, room := range map[int]int{1: depth, small: depth, small + 1: areas, Short: areas} {
		bs := boards(t, newHost(2), 2)
		received, posted := 0, 0
		for received < 5*depth {
			var r Run // it stays in line until there is room
			for {
				a := shape(collective.KindBcast, 2, 0, 0, bytes)
				a.Recv[0], a.Recv[bytes-1] = byte(posted), byte(posted)
				r = Run{}
				bs[0].Start(&r, collective.KindBcast, &a, &wire.Signature{Seq: uint32(posted)})
				over, err := r.Next()
				if err != nil {
					t.Fatal(err)
				}
				if !over {
					break
				}
				posted++
			}
			if posted-received > room || posted < room || bytes > small && posted-received < room {
				t.Fatalf("%d bytes: %d posted, %d received", bytes, posted, received)
			}
			for over := false; !over; received++ {
				a := shape(collective.KindBcast, 2, 1, 0, bytes)
				var q Run
				bs[1].Start(&q, collective.KindBcast, &a, &wire.Signature{Seq: uint32(received)})
				if err := drive(&q); err != nil {
					t.Fatal(err)
				}
				if a.Recv[0] != byte(received) || a.Recv[bytes-1] != byte(received) {
					t.Fatalf("%d bytes: number %d brought %d", bytes, received, a.Recv[0])
				}
				var err error
				if over, err = r.Next(); err != nil {
					t.Fatal(err)
				}
			}
			posted++
		}
	}
}

// Slots keep what an earlier communicator left; the next one does not take it for its own.
func TestIncarnations(t *testing.T) {
	h := newHost(2)
	barrier := func(bs []*Board) {
		var all sync.WaitGroup
		for _, b := range bs {
			all.Go(func() {
				for i := range uint32(10) {
					var r Run
					b.Start(&r, collective.KindBarrier, &collective.Args{}, &wire.Signature{Seq: i})
					if err := drive(&r); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	}
	barrier(boards(t, h, 2))
	first, err := New(&rankMemory{host: h, rank: 0}, 0, 2, 8, 0)
	if err != nil {
		t.Fatal(err)
	}
	var r Run
	first.Start(&r, collective.KindBarrier, &collective.Args{}, &wire.Signature{})
	if over, err := r.Next(); over || err != nil {
		t.Fatalf("a barrier with a rank of another communicator: %t %v", over, err)
	}
	second, err := New(&rankMemory{host: h, rank: 1}, 1, 2, 8, 0)
	if err != nil {
		t.Fatal(err)
	}
	var q Run
	second.Start(&q, collective.KindBarrier, &collective.Args{}, &wire.Signature{})
	if err := errors.Join(drive(&q), drive(&r)); err != nil {
		t.Fatal(err)
	}
}

// A rank may give a communicator up and use its slot for the next one before the others have heard of it. They do
// not take what it posts there for a part of theirs, though it calls the same, nor a disagreement for it.
func TestSlotReused(t *testing.T) {
	for _, again := range []collective.Kind{collective.KindBcast, collective.KindBarrier} {
		h := newHost(2)
		bs := boards(t, h, 2)
		bcast := func(b *Board, kind collective.Kind, number int) *Run {
			a := shape(kind, 2, b.rank, 0, 8)
			r := new(Run)
			b.Start(r, kind, &a, &wire.Signature{Op: uint8(kind), Seq: uint32(number)})
			return r
		}
		for number := range 3 {
			for _, b := range bs {
				if err := drive(bcast(b, collective.KindBcast, number)); err != nil {
					t.Fatal(err)
				}
			}
		}
		next, err := New(&rankMemory{host: h, rank: 0}, 0, 2, 8, 0)
		if err != nil {
			t.Fatal(err)
		}
		for number := range 2 * depth {
			kind := collective.KindBcast
			if number >= 3 {
				kind = again
			}
			if _, err := bcast(next, kind, number).Next(); err != nil {
				t.Fatal(err)
			}
		}
		r := bcast(bs[1], collective.KindBcast, 3)
		if over, err := r.Next(); over || err != nil || r.Met() || r.Missing() != 0 {
			t.Errorf("then %v: a broadcast of a root that has gone: over %t, %v, waits for rank %d: %t", again, over, err, r.Missing(), !r.Met())
		}
	}
}

// The same while a rank is about to take a post that it has seen.
func TestSlotReusedMeanwhile(t *testing.T) {
	h := newHost(2)
	bs := boards(t, h, 2)
	allreduce := func(b *Board, left func(inout, in []byte)) *Run {
		a := collective.Args{Send: make([]byte, 8), Recv: make([]byte, 8), Op: collective.Op{Size: 8, Left: left}}
		r := new(Run)
		b.Start(r, collective.KindAllreduce, &a, &wire.Signature{})
		return r
	}
	keep := func(inout, in []byte) {}
	first := allreduce(bs[1], keep)
	if over, err := first.Next(); over || err != nil {
		t.Fatalf("before the other rank has called it: over %t, %v", over, err)
	}
	r := allreduce(bs[0], func(inout, in []byte) {
		next, err := New(&rankMemory{host: h, rank: 1}, 1, 2, 8, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := allreduce(next, keep).Next(); err != nil {
			t.Fatal(err)
		}
	})
	for range 2 {
		if over, err := r.Next(); over || err != nil || r.Met() || r.Missing() != 1 {
			t.Errorf("a rank left while its post was taken: over %t, %v, waits for rank %d: %t", over, err, r.Missing(), !r.Met())
		}
	}
}

// Several runs of a rank are taken in turn, whoever advances them.
func TestTurns(t *testing.T) {
	const n, runs = 3, 20
	bs := boards(t, newHost(n), n)
	var all sync.WaitGroup
	for rank, b := range bs {
		all.Go(func() {
			rs := make([]Run, runs)
			outs := make([][]byte, runs)
			for i := range rs {
				a := shape(collective.KindAllreduce, n, rank, 0, Short-runs/2+i)
				a.Send[0] = byte(i)
				outs[i] = a.Recv
				b.Start(&rs[i], collective.KindAllreduce, &a, &wire.Signature{Seq: uint32(i)})
			}
			left := rand.New(rand.NewPCG(1, uint64(rank))).Perm(runs)
			for len(left) > 0 {
				i := left[0]
				left = left[1:]
				if over, err := rs[i].Next(); err != nil {
					t.Error(err)
				} else if !over {
					left = append(left, i)
					runtime.Gosched()
				}
			}
			for i, out := range outs {
				if out[0] != byte(n*i) {
					t.Errorf("rank %d, run %d: %d", rank, i, out[0])
				}
			}
		})
	}
	all.Wait()
}

// A rank that gives up gets its memory back before Quiet says so: what it does with it then is no race with
// what peers do (-race sees one if there is), and none of them goes on with the collective.
func TestQuit(t *testing.T) {
	const n = 3
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		kinds := served()
		kind := kinds[rng.IntN(len(kinds))]
		bytes := []int{9, 3 * Short}[rng.IntN(2)]
		quitter, steps := rng.IntN(n), rng.IntN(4)
		bs := boards(t, newHost(n), n)
		revoked := make(chan struct{})
		var all sync.WaitGroup
		for rank, b := range bs {
			all.Go(func() {
				a := shape(kind, n, rank, 1, bytes)
				var r Run
				b.Start(&r, kind, &a, &wire.Signature{})
				for i := 0; ; i++ {
					over, err := r.Next()
					if err != nil {
						t.Errorf("seed %d: %v", seed, err)
					}
					if over {
						break
					}
					gone := rank == quitter && i >= steps
					if !gone {
						select {
						case <-revoked:
							gone = true
						default:
						}
					}
					if gone {
						r.Quit()
						if rank == quitter {
							close(revoked)
						}
						for !r.Quiet() {
							runtime.Gosched()
						}
						break
					}
					runtime.Gosched()
				}
				clear(a.Send)
				clear(a.Recv)
				if rank == quitter {
					select {
					case <-revoked:
					default:
						close(revoked)
					}
				}
			})
		}
		all.Wait()
	}
}

func TestNoSlot(t *testing.T) {
	if _, err := New(noSlots{}, 0, 2, 1, 0); err == nil || !strings.Contains(err.Error(), "slot of rank 0") {
		t.Error(err)
	}
}

type noSlots struct{ Memory }

func (noSlots) Slot(int) ([]byte, error) { return nil, errors.New("no memory") }

// A rank that gives up does not wait for those that will never touch its memory: that go by messages, or
// called something else.
func TestQuietBesideOthers(t *testing.T) {
	const n, bytes = 3, 2 * Short
	start := func(b *Board, kind collective.Kind, bytes int) *Run {
		a := shape(kind, n, b.rank, 0, bytes)
		r := new(Run)
		b.Start(r, kind, &a, &wire.Signature{Op: uint8(kind), Count: uint64(bytes)})
		return r
	}
	t.Run("messages", func(t *testing.T) {
		h := newHost(n)
		h.full = true
		h.far = func(rank int, _ []byte) bool { return rank == 0 }
		bs := boards(t, h, n)
		quits := start(bs[2], collective.KindAllreduce, bytes)
		if over, err := quits.Next(); over || err != nil {
			t.Fatalf("alone: over %t, %v", over, err)
		}
		first := start(bs[0], collective.KindAllreduce, bytes)
		if over, err := first.Next(); over || err != nil {
			t.Fatalf("two of three: over %t, %v", over, err)
		}
		for _, r := range []*Run{start(bs[1], collective.KindAllreduce, bytes), first} {
			if err := drive(r); err != errMessages {
				t.Fatal(err)
			}
		}
		if quits.Quit(); !quits.Quiet() {
			t.Errorf("waits for rank %d, which sends messages", quits.Missing())
		}
	})
	t.Run("mismatch", func(t *testing.T) {
		bs := boards(t, newHost(n), n)
		for _, b := range bs[:2] { // which are over without a look at others
			if err := drive(start(b, []collective.Kind{collective.KindBcast, collective.KindReduce}[b.rank], 8)); err != nil {
				t.Fatal(err)
			}
		}
		quits := start(bs[2], collective.KindAllreduce, bytes)
		if _, err := quits.Next(); err == nil {
			t.Fatal("no mismatch")
		}
		if quits.Quit(); !quits.Quiet() {
			t.Errorf("waits for rank %d, which called something else", quits.Missing())
		}
	})
}

// A run allocates nothing.
func TestAllocations(t *testing.T) {
	b := boards(t, newHost(1), 1)[0]
	a := shape(collective.KindAllreduce, 1, 0, 0, 64)
	var r Run
	var sig wire.Signature
	if allocs := testing.AllocsPerRun(100, func() {
		b.Start(&r, collective.KindAllreduce, &a, &sig)
		if over, err := r.Next(); !over || err != nil {
			t.Fatal(over, err)
		}
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
