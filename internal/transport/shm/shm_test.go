package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/wire"
)

// sink counts, and keeps the last of each.
type sink struct {
	frames, landed, sent int
	from                 int
	payload              []byte
	dst                  []byte
	down                 []error
}

func (s *sink) Frame(peer int, _ *wire.Header, p []byte) {
	s.frames++
	s.from, s.payload = peer, append(s.payload[:0], p...)
}
func (s *sink) Dest(_ int, _ *wire.Header, n int) []byte { s.dst = make([]byte, n); return s.dst }
func (s *sink) Landed(int, *wire.Header)                 { s.landed++ }
func (s *sink) Sent(int, uint32)                         { s.sent++ }
func (s *sink) PeerDown(_ int, err error)                { s.down = append(s.down, err) }

func eager() *wire.Header { return &wire.Header{Kind: wire.Eager} }

// exchange has the ranks at both ends and in the middle send the number of the
// pair to all others.
func exchange(t *testing.T, all []*Transport) {
	t.Helper()
	sinks := make([]sink, len(all))
	senders := []int{0, len(all) / 2, len(all) - 1}
	for _, from := range senders {
		tr := all[from]
		for to := range all {
			if to == from {
				continue
			}
			if err := tr.Send(to, eager(), binary.LittleEndian.AppendUint64(nil, uint64(from*len(all)+to))); err != nil {
				t.Fatal(err)
			}
			s := &sinks[to]
			all[to].Poll(s)
			if s.from != from || binary.LittleEndian.Uint64(s.payload) != uint64(from*len(all)+to) {
				t.Fatalf("rank %d got %x from %d", to, s.payload, s.from)
			}
		}
	}
	for i := range sinks {
		want := len(senders)
		if slices.Contains(senders, i) {
			want--
		}
		if sinks[i].frames != want {
			t.Errorf("rank %d got %d frames", i, sinks[i].frames)
		}
	}
}

func pair(t *testing.T) (a, b *Transport) {
	t.Helper()
	all, err := Local("pair", 2, testArena)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, tr := range all {
			if err := tr.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return all[0], all[1]
}

func TestBadFiles(t *testing.T) {
	good, err := Create("good", 2, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer good.Close()
	head := make([]byte, headerLen)
	if _, err := good.ReadAt(head, 0); err != nil {
		t.Fatal(err)
	}
	info, err := good.Stat()
	if err != nil {
		t.Fatal(err)
	}
	fds := openFiles()
	for name, c := range map[string]struct {
		edit func(b []byte) []byte
		size int64
		want string
	}{
		"empty":     {func([]byte) []byte { return nil }, 0, "not a segment"},
		"short":     {func(b []byte) []byte { return b[:20] }, 20, "not a segment"},
		"magic":     {func(b []byte) []byte { b[0]++; return b }, info.Size(), "not a segment"},
		"version":   {func(b []byte) []byte { b[8]++; return b }, info.Size(), fmt.Sprint("version ", abi+1)},
		"ranks":     {func(b []byte) []byte { b[12] = 3; return b }, info.Size(), "other sizes"},
		"no ranks":  {func(b []byte) []byte { b[12] = 0; return b }, info.Size(), "damaged"},
		"arena":     {func(b []byte) []byte { b[23] = 0xff; return b }, info.Size(), "damaged"},
		"size":      {func(b []byte) []byte { b[24]++; return b }, info.Size(), "other sizes"},
		"truncated": {func(b []byte) []byte { return b }, info.Size() - 1, "truncated"},
	} {
		path := filepath.Join(t.TempDir(), "segment")
		if err := os.WriteFile(path, c.edit(append([]byte(nil), head...)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, c.size); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(f, Config{World: []int{0, 1}}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		f.Close()
	}
	for name, cfg := range map[string]Config{
		"too few":  {World: []int{0}},
		"too many": {World: []int{0, 1, 2}},
		"twice":    {World: []int{5, 5}},
		"negative": {World: []int{0, -1}},
		"index":    {Index: 2, World: []int{0, 1}},
		"minus":    {Index: -1, World: []int{0, 1}},
	} {
		if _, err := Open(good, cfg); err == nil {
			t.Errorf("%s: %+v was accepted", name, cfg)
		}
	}
	for _, n := range []int{-1, 0, MaxRanks + 1} {
		if _, err := Create("bad", n, 0); err == nil {
			t.Errorf("Create for %d ranks succeeded", n)
		}
	}
	for _, size := range []int64{-1, 1 << 62} {
		if _, err := Create("bad", 2, size); err == nil {
			t.Errorf("Create with arenas of %d succeeded", size)
		}
	}
	first, err := Open(good, Config{Index: 1, World: []int{7, 9}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(good, Config{Index: 1, World: []int{7, 9}}); err == nil || !strings.Contains(err.Error(), "rank 9") {
		t.Errorf("an index was taken twice: %v", err)
	}
	if err := first.Send(9, eager(), nil); err == nil {
		t.Error("a rank sent to itself")
	}
	for _, r := range []int{-1, 0, 8, 10, 1 << 40} {
		if err := first.Send(r, eager(), nil); err == nil {
			t.Errorf("sent to rank %d, which is not on this host", r)
		}
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if n := openFiles(); n != fds {
		t.Errorf("%d descriptors open, before %d", n, fds)
	}
}

// TestSealed: nobody can cut the segment under its users.
func TestSealed(t *testing.T) {
	f, err := Create("sealed", 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(4096); !errors.Is(err, unix.EPERM) {
		t.Errorf("Truncate: %v", err)
	}
}

// TestSparse counts the memory that a segment takes before and after use.
func TestSparse(t *testing.T) {
	const n = 16
	f, err := Create("sparse", n, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	real := func() int64 {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	if got := real(); got > 64<<10 {
		t.Errorf("a new segment takes %d bytes", got)
	}
	ranks := make([]int, n)
	all := make([]*Transport, n)
	for i := range ranks {
		ranks[i] = i
	}
	for i := range all {
		if all[i], err = Open(f, Config{Index: i, World: ranks}); err != nil {
			t.Fatal(err)
		}
		defer all[i].Close()
	}
	before := real()
	if err := all[0].Send(1, eager(), nil); err != nil {
		t.Fatal(err)
	}
	all[1].Poll(&sink{})
	if got := real() - before; got > 40<<10 {
		t.Errorf("a lane takes %d bytes", got)
	}
	before = real()
	if _, err := all[3].Arena().Alloc(100); err != nil {
		t.Fatal(err)
	}
	if got := real() - before; got > 1<<20 {
		t.Errorf("the first allocation takes %d bytes", got)
	}
}

// TestViolations plants nonsense where a peer writes. It is reported once, as
// the end of that peer, and nothing else happens.
func TestViolations(t *testing.T) {
	word := func(b *Transport) *atomic.Uint64 { return at64(b.lanes[0].ring, 0) }
	start := uint64(64 << 10 / slotSize)
	for name, plant := range map[string]func(a, b *Transport){
		"length":        func(_, b *Transport) { word(b).Store(slotWord(start, frameLen)) },
		"too long":      func(_, b *Transport) { word(b).Store(slotWord(start, uint32(b.seg.maxFrame()+1))) },
		"short":         func(_, b *Transport) { word(b).Store(slotWord(start, 23)) },
		"nothing":       func(_, b *Transport) { word(b).Store(slotWord(start, 0)) },
		"pad and frame": func(_, b *Transport) { word(b).Store(slotWord(start, framePad|24)) },
		"kind":          func(_, b *Transport) { b.lanes[0].ring[wordSize] = 0x1f },
		"version":       func(_, b *Transport) { b.lanes[0].ring[wordSize] = 0x21 },
		"over the end": func(_, b *Transport) {
			l := &b.lanes[0]
			l.pos += l.slots - 1
			at64(l.ring, int(l.slots-1)*slotSize).Store(slotWord(l.pos, 100))
		},
		"bulk without length": func(_, b *Transport) {
			f := b.lanes[0].ring
			n := (&wire.Header{Kind: wire.Data, Flags: wire.HasID | wire.HasBytes}).Encode(f[wordSize:])
			word(b).Store(slotWord(start, uint32(n)|frameBulk))
		},
		"bulk too long": func(_, b *Transport) {
			f := b.lanes[0].ring
			n := (&wire.Header{Kind: wire.Data, Flags: wire.HasID | wire.HasBytes}).Encode(f[wordSize:])
			binary.LittleEndian.PutUint64(f[wordSize+n:], 1<<63)
			word(b).Store(slotWord(start, uint32(n+8)|frameBulk))
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			if err := a.Send(1, eager(), []byte("x")); err != nil {
				t.Fatal(err)
			}
			plant(a, b)
			var s sink
			for range 5 {
				b.Poll(&s)
			}
			if s.frames+s.landed != 0 || len(s.down) != 1 {
				t.Fatalf("%d frames, %d landed, down: %v", s.frames, s.landed, s.down)
			}
			if !strings.Contains(s.down[0].Error(), "rank 0") {
				t.Errorf("the error does not name the peer: %v", s.down[0])
			}
			if err := b.Send(0, eager(), nil); err == nil {
				t.Error("Send to a peer that broke the protocol")
			}
			if !b.Arm() {
				t.Error("a dead lane keeps its owner awake")
			}
			b.Disarm()
		})
	}
}

// TestBadTail: a consumer that publishes nonsense gets no frame overwritten.
func TestBadTail(t *testing.T) {
	a, b := pair(t)
	if err := a.Send(1, eager(), nil); err != nil {
		t.Fatal(err)
	}
	for _, tail := range []uint64{0, 1, 1 << 63, ^uint64(0)} {
		b.lanes[0].tail.Store(tail)
		for a.Send(1, eager(), make([]byte, 1000)) == nil {
		}
		if a.out[1].head > 2*a.out[1].slots {
			t.Fatalf("tail %#x: the ring was overrun", tail)
		}
	}
}

// TestWrapStress walks all run lengths over all positions of the ring, with data
// that looks like words.
func TestWrapStress(t *testing.T) {
	a, b := pair(t)
	var s sink
	evil := make([]byte, a.MaxEager())
	for i := 0; i < 20_000; i++ {
		n := i * 7919 % 1200
		if i%50 == 0 {
			n = i * 104729 % len(evil)
		}
		o := &a.out[1]
		// Every word of the payload is the word of the frame after the next lap.
		for at := 0; at+8 <= n; at += 8 {
			binary.LittleEndian.PutUint64(evil[at:], slotWord(o.head+o.slots+uint64(at+64)/slotSize, 32))
		}
		if err := a.Send(1, eager(), evil[:n]); err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		if i%3 != 0 {
			b.Poll(&s)
			if s.frames != i+1 || len(s.payload) != n {
				t.Fatalf("frame %d of %d bytes: %d frames, %d bytes, %v", i, n, s.frames, len(s.payload), s.down)
			}
		}
		b.Poll(&s)
		if s.frames != i+1 {
			t.Fatalf("frame %d: there are %d", i, s.frames)
		}
	}
}

// TestOrphanedPull: the helper dies with a claimed piece; the puller finishes.
func TestOrphanedPull(t *testing.T) {
	a, b := pair(t)
	src, err := a.Arena().Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	dst, err := b.Arena().Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	for i := range src {
		src[i] = byte(i * 7)
	}
	r, _ := a.Describe(src)
	// A helper that claims the first piece it can and vanishes.
	claim := at64(a.seg.mem, a.seg.block(1)+offClaim)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if c := claim.Load(); uint32(c) < 8 && claim.CompareAndSwap(c, c+1) {
				b.MarkDown(0, errors.New("gone"))
				return
			}
		}
	}()
	for {
		clear(dst)
		if err := b.Pull(0, r, dst); err != nil {
			t.Fatal(err)
		}
		if string(dst) != string(src) {
			t.Fatal("the pull is incomplete")
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

// TestOrdinaryMemory: ranks of one process have no region for it; a region of
// a process that does not exist, or memory that does not, is an error.
func TestOrdinaryMemory(t *testing.T) {
	a, b := pair(t)
	if r, ok := a.Describe(make([]byte, 100)); ok {
		t.Errorf("ordinary memory in a process by itself is %+v", r)
	}
	if _, ok := a.Describe(nil); ok {
		t.Error("nil has a region")
	}
	for _, addr := range []uint64{0, 8, 1 << 62, ^uint64(0)} {
		err := b.Pull(0, wire.Region{Kind: regionProcess, Key: 0, Addr: addr}, make([]byte, 3<<20))
		if err == nil || !strings.Contains(err.Error(), "rank 0") {
			t.Errorf("Pull from address %#x: %v", addr, err)
		}
	}
}

// TestMap: a peer's arena is the same memory here, within its bounds.
func TestMap(t *testing.T) {
	all, err := Local("map", 3, 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		for _, tr := range all {
			if err := tr.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
	mem, err := all[1].Arena().Alloc(1000)
	if err != nil {
		t.Fatal(err)
	}
	r, ok := all[1].Describe(mem)
	if !ok {
		t.Fatal("memory of the arena is not described")
	}
	got, err := all[0].Map(1, r, 1000)
	if err != nil {
		t.Fatal(err)
	}
	got[999] = 7
	if mem[999] != 7 || len(got) != 1000 || cap(got) != 1000 {
		t.Errorf("mapped %d bytes of %d, the last is %d there", len(got), cap(got), mem[999])
	}
	if end, err := all[0].Map(1, wire.Region{Kind: r.Kind, Key: r.Key, Addr: 4 << 20}, 0); err != nil || len(end) != 0 {
		t.Errorf("nothing at the end: %v", err)
	}
	for name, bad := range map[string]struct {
		peer int
		r    wire.Region
		n    int
	}{
		"another owner":  {2, r, 8},
		"no peer":        {3, r, 8},
		"itself":         {0, r, 8},
		"not an arena":   {1, wire.Region{Kind: regionProcess, Key: r.Key, Addr: r.Addr}, 8},
		"too long":       {1, r, 4<<20 + 1},
		"negative":       {1, r, -1},
		"beyond the end": {1, wire.Region{Kind: r.Kind, Key: r.Key, Addr: 4<<20 - 7}, 8},
		"far away":       {1, wire.Region{Kind: r.Kind, Key: r.Key, Addr: 1 << 63}, 8},
	} {
		if _, err := all[0].Map(bad.peer, bad.r, bad.n); err == nil {
			t.Errorf("%s was mapped", name)
		}
	}
}
