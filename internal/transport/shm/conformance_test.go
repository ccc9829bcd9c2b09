package shm

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/weft-hpc/weft/internal/transport/transporttest"
)

const testArena = 32 << 20

// world wraps transports of this process for the suite.
func world(all []*Transport, release func()) *transporttest.World {
	w := &transporttest.World{Close: release}
	for _, t := range all {
		w.Ranks = append(w.Ranks, t)
	}
	w.Alloc = func(rank, n int) ([]byte, error) { return all[rank].Arena().Alloc(n) }
	w.Kill = func(rank int) {
		if err := w.Ranks[rank].Close(); err != nil {
			panic(err)
		}
		for i, t := range all {
			if i != rank {
				t.MarkDown(rank, errors.New("killed by the test"))
				t.MarkDown(rank, errors.New("told twice"))
			}
		}
	}
	return w
}

// heapWorld has its segment in the Go heap, where the race detector sees it.
func heapWorld(t *testing.T, n int) []*Transport {
	t.Helper()
	l, err := newLayout(n, testArena)
	if err != nil {
		t.Fatal(err)
	}
	all, err := attachAll(&segment{layout: l, mem: make([]byte, l.size), fd: -1})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestConformanceHeap runs the suite on one mapping that the race detector sees.
func TestConformanceHeap(t *testing.T) {
	transporttest.Run(t, func(t *testing.T, n int) *transporttest.World { return world(heapWorld(t, n), nil) })
}

// TestConformanceLocal runs the suite on transports that share a mapping.
func TestConformanceLocal(t *testing.T) {
	transporttest.Run(t, func(t *testing.T, n int) *transporttest.World {
		all, err := Local(t.Name(), n, testArena)
		if err != nil {
			t.Fatal(err)
		}
		return world(all, nil)
	})
}

// TestConformanceMapped runs the suite with a mapping for each rank, as
// processes have, and ranks whose numbers in the world are not their indices.
func TestConformanceMapped(t *testing.T) {
	transporttest.Run(t, func(t *testing.T, n int) *transporttest.World {
		f, err := Create("test", n, testArena)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		all := make([]*Transport, n)
		ranks := make([]int, n) // index i is rank n-1-i
		for i := range n {
			ranks[i] = n - 1 - i
		}
		for i := range n {
			if all[ranks[i]], err = Open(f, Config{Index: i, World: ranks}); err != nil {
				t.Fatal(err)
			}
		}
		return world(all, nil)
	})
}

// TestManyRanks exchanges frames with every size of ring.
func TestManyRanks(t *testing.T) {
	for _, n := range []int{13, 32, 33, 128, 129, 200} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			all, err := Local("many", n, 0)
			if err != nil {
				t.Fatal(err)
			}
			exchange(t, all)
			for _, tr := range all {
				if err := tr.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(entries)
}
