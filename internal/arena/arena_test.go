package arena_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-hpc/weft/internal/arena"
)

// interval is one allocation as the model sees it.
type interval struct {
	off int
	b   []byte
}

// TestModel allocates and frees at random beside a plain list of intervals.
func TestModel(t *testing.T) {
	const size = 24 << 20
	mem := make([]byte, size)
	rapid.Check(t, func(t *rapid.T) {
		committed := 0
		a := arena.New(mem, func(off, n int) error {
			if off != committed || n <= 0 || off+n > size {
				return fmt.Errorf("commit of [%d,+%d) with %d committed", off, n, committed)
			}
			committed += n
			return nil
		})
		var live []interval
		sizes := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(60<<10, 70<<10), rapid.IntRange(0, 9<<20))
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				n := sizes.Draw(t, "n")
				b, err := a.Alloc(n)
				if err != nil {
					if !errors.Is(err, arena.ErrFull) || a.Stats().Largest >= n+arena.Align {
						t.Fatalf("Alloc(%d) with %+v: %v", n, a.Stats(), err)
					}
					return
				}
				off, ok := a.Contains(b)
				switch {
				case !ok:
					t.Fatal("allocation outside the arena")
				case len(b) != n || cap(b) < n || cap(b) >= n+2*arena.Align:
					t.Fatalf("Alloc(%d) has length %d, capacity %d", n, len(b), cap(b))
				case off%arena.Align != 0:
					t.Fatalf("offset %d is not aligned", off)
				case off+cap(b) > committed:
					t.Fatalf("allocation ends at %d, committed are %d", off+cap(b), committed)
				}
				for _, o := range live {
					if off < o.off+cap(o.b) && o.off < off+cap(b) {
						t.Fatalf("[%d,+%d) overlaps [%d,+%d)", off, cap(b), o.off, cap(o.b))
					}
				}
				live = append(live, interval{off, b})
			},
			"free": func(t *rapid.T) {
				if len(live) == 0 {
					return
				}
				i := rapid.IntRange(0, len(live)-1).Draw(t, "i")
				b := live[i].b
				live = slices.Delete(live, i, i+1)
				if err := a.Free(b); err != nil {
					t.Fatal(err)
				}
				if err := a.Free(b); !errors.Is(err, arena.ErrNotAlloc) {
					t.Fatalf("second Free: %v", err)
				}
			},
			"": func(t *rapid.T) {
				use := 0
				for _, o := range live {
					use += cap(o.b)
				}
				if s := a.Stats(); s.Live != len(live) || s.InUse != use || s.Committed != committed || s.Peak < use {
					t.Fatalf("%+v, want %d live with %d bytes, %d committed", s, len(live), use, committed)
				}
			},
		})
		for _, o := range live {
			if err := a.Free(o.b); err != nil {
				t.Fatal(err)
			}
		}
		if s := a.Stats(); s.Largest != size || s.InUse != 0 {
			t.Fatalf("after freeing everything: %+v", s)
		}
		if _, err := a.Alloc(size); err != nil {
			t.Fatalf("the whole arena after freeing everything: %v", err)
		}
	})
}

func TestForeign(t *testing.T) {
	mem := make([]byte, 1<<16)
	a := arena.New(mem[4096:8192], nil)
	b, err := a.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string][]byte{"nil": nil, "heap": make([]byte, 5), "below": mem[:10], "above": mem[8192:8200],
		"inside an allocation": b[1:], "free part": mem[5000:5010], "over the end": mem[8000:8200], "from below": mem[4000:5000],
		"longer": mem[4096:5000]} {
		if err := a.Free(f); !errors.Is(err, arena.ErrNotAlloc) {
			t.Errorf("Free of %s: %v", name, err)
		}
	}
	for name, f := range map[string][]byte{"nil": nil, "below": mem[:10], "above": mem[8192:8200], "empty, just above": mem[8192:8192],
		"over the end": mem[8191:8193], "from below": mem[4095:4097], "larger": mem} {
		if off, ok := a.Contains(f); ok {
			t.Errorf("Contains %s at %d", name, off)
		}
	}
	for _, in := range [][2]int{{4096, 8192}, {4096, 4096}, {8191, 8192}, {5000, 5001}} {
		if off, ok := a.Contains(mem[in[0]:in[1]]); !ok || off != in[0]-4096 {
			t.Errorf("Contains [%d,%d) is %v, at %d", in[0], in[1], ok, off)
		}
	}
	if err := a.Free(b[:0]); err != nil {
		t.Errorf("Free of the allocation cut short: %v", err)
	}
}

// TestShortOfMemory: a refused commit is an error of that Alloc; a smaller one
// goes through, and the arena goes on.
func TestShortOfMemory(t *testing.T) {
	limit := 3 << 20
	short := errors.New("no space")
	a := arena.New(make([]byte, 64<<20), func(off, n int) error {
		if off+n > limit {
			return short
		}
		return nil
	})
	big, err := a.Alloc(5 << 19)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Alloc(1 << 20); !errors.Is(err, short) || !strings.Contains(err.Error(), "1048576") {
		t.Errorf("Alloc beyond the memory there is: %v", err)
	}
	small, err := a.Alloc(1000)
	if err != nil {
		t.Errorf("a small Alloc after a large one failed: %v", err)
	}
	if err := errors.Join(a.Free(big), a.Free(small)); err != nil {
		t.Error(err)
	}
	if _, err := a.Alloc(3 << 20); err != nil {
		t.Errorf("all there is: %v", err)
	}
}

func TestBadSizes(t *testing.T) {
	a := arena.New(make([]byte, 4096), nil)
	for _, n := range []int{-1, 4097, 1<<63 - 1} {
		if _, err := a.Alloc(n); err == nil {
			t.Errorf("Alloc(%d) succeeded", n)
		}
	}
	if _, err := arena.New(nil, nil).Alloc(0); !errors.Is(err, arena.ErrFull) {
		t.Errorf("Alloc(0) of an empty arena: %v", err)
	}
}

func TestConcurrent(t *testing.T) {
	a := arena.New(make([]byte, 8<<20), nil)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 500 {
				b, err := a.Alloc(i * 37 % 5000)
				if err != nil {
					t.Error(err)
					return
				}
				for j := range b {
					b[j] = byte(g)
				}
				for j := range b {
					if b[j] != byte(g) {
						t.Errorf("goroutine %d: memory is shared", g)
						return
					}
				}
				if err := a.Free(b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if s := a.Stats(); s.Live != 0 || s.Largest != s.Size {
		t.Errorf("%+v", s)
	}
}

func BenchmarkContains(b *testing.B) {
	a := arena.New(make([]byte, 1<<20), nil)
	p, _ := a.Alloc(1000)
	for b.Loop() {
		if _, ok := a.Contains(p); !ok {
			b.Fatal("not there")
		}
	}
}
