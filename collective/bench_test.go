package collective_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/collective/collectivetest"
)

// group is ranks that make the same calls again and again, with every rank but
// 0 on a goroutine of its own.
type group struct {
	kind  collective.Kind
	ranks int
	bytes int // a block, or the vector
}

// args returns a rank's arguments; what it does not need is ignored.
func (g group) args() collective.Args {
	send, recv := g.bytes, g.bytes
	switch g.kind {
	case collective.KindGather, collective.KindAllgather, collective.KindGatherv, collective.KindAllgatherv:
		recv *= g.ranks
	case collective.KindScatter, collective.KindScatterv, collective.KindReduceScatterBlock, collective.KindReduceScatter:
		send *= g.ranks
	case collective.KindAlltoall, collective.KindAlltoallv:
		send *= g.ranks
		recv *= g.ranks
	}
	blocks := &collective.Blocks{Unit: 1}
	for i := range g.ranks {
		blocks.Counts = append(blocks.Counts, g.bytes)
		blocks.Displs = append(blocks.Displs, i*g.bytes)
	}
	return collective.Args{Send: make([]byte, send), Recv: make([]byte, recv), SendBlocks: blocks, RecvBlocks: blocks, Op: xor}
}

// run has rank0 call alg on rank 0, while the other ranks call it until rank 0 is
// done.
func (g group) run(tb testing.TB, alg *collective.Algorithm, rank0 func(call func())) {
	// Sends wait, or the ranks that only send run ahead without bound.
	m := collectivetest.NewMem(g.ranks, -1)
	var wg sync.WaitGroup
	for rank := 1; rank < g.ranks; rank++ {
		p, a := m.Peer(rank), g.args()
		wg.Go(func() {
			var err error
			for err == nil {
				err = alg.Run(p, a)
			}
			if err != errStop {
				tb.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	p, a := m.Peer(0), g.args()
	rank0(func() {
		if err := alg.Run(p, a); err != nil {
			tb.Errorf("rank 0: %v", err)
		}
	})
	m.Done(errStop)
	wg.Wait()
}

var errStop = errors.New("rank 0 is done")

// A Schedule that is recorded again allocates nothing.
func TestRecordingDoesNotAllocate(t *testing.T) {
	for _, ranks := range []int{1, 2, 5, 8} {
		forAll(t, ranks, func(alg *collective.Algorithm) {
			var s collective.Schedule
			a := group{alg.Kind, ranks, 64}.args()
			if n := testing.AllocsPerRun(100, func() {
				if err := s.Record(alg, ranks-1, ranks, a); err != nil {
					t.Fatal(err)
				}
			}); n > 0 {
				t.Errorf("%v %s on %d ranks: %v allocations", alg.Kind, alg.Name, ranks, n)
			}
		})
	}
}

// A short call allocates nothing, on any rank.
func TestShortCallsDoNotAllocate(t *testing.T) {
	for _, ranks := range []int{1, 2, 5, 8} {
		forAll(t, ranks, func(alg *collective.Algorithm) {
			group{alg.Kind, ranks, 64}.run(t, alg, func(call func()) {
				for range 50 {
					call() // the peers' pools fill up
				}
				if n := testing.AllocsPerRun(200, call); n >= 1 {
					t.Errorf("%v %s on %d ranks: %v allocations a call", alg.Kind, alg.Name, ranks, n)
				}
			})
		})
	}
}

func BenchmarkAlgorithms(b *testing.B) {
	const ranks = 4
	forAll(b, ranks, func(alg *collective.Algorithm) {
		for _, bytes := range []int{8, 16 << 10, 1 << 20} {
			if alg.Kind == collective.KindBarrier && bytes > 8 {
				continue
			}
			b.Run(fmt.Sprintf("%v/%s/P=%d/S=%d", alg.Kind, alg.Name, ranks, bytes), func(b *testing.B) {
				b.SetBytes(int64(bytes))
				b.ReportAllocs()
				group{alg.Kind, ranks, bytes}.run(b, alg, func(call func()) {
					for b.Loop() {
						call()
					}
				})
			})
		}
	})
}

func forAll(tb testing.TB, ranks int, fn func(alg *collective.Algorithm)) {
	for _, kind := range collective.Kinds() {
		for _, name := range collective.Algorithms(kind) {
			alg, err := collective.Lookup(kind, name)
			if err != nil {
				tb.Fatal(err)
			}
			if alg.Suits(ranks, nil, true) {
				fn(alg)
			}
		}
	}
}
