package collective_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/collective/collectivetest"
)

// xor is an operator on bytes that allocates nothing.
var xor = collective.Op{
	Size: 1, Commutative: true,
	Left: func(inout, in []byte) {
		for i := range inout {
			inout[i] ^= in[i]
		}
	},
	Right: func(inout, in []byte) {
		for i := range inout {
			inout[i] ^= in[i]
		}
	},
}

func TestArgumentsRefused(t *testing.T) {
	p := collectivetest.NewMem(4, -1).Peer(1)
	b := make([]byte, 16)
	wide := xor
	wide.Size = 8
	for name, err := range map[string]error{
		"bcast: root 4":                     collective.Bcast(p, b, 4),
		"gather: root -1":                   collective.Gather(p, b, b, -1),
		"recv has 15 bytes, 4 ranks":        collective.Gather(p, b[:4], b[:15], 1),
		"send has 15 bytes, 4 ranks":        collective.Scatter(p, b[:15], b[:4], 1),
		"recv has 3 bytes, 4 ranks":         collective.Allgather(p, b[:1], b[:3]),
		"send has 3 bytes, recv 4":          collective.Reduce(p, b[:3], b[:4], xor, 1),
		"send has 4 bytes, recv 3":          collective.Allreduce(p, b[:4], b[:3], xor),
		"12 bytes are not elements":         collective.Allreduce(p, b[:12], b[:12], wide),
		"8 bytes are not elements":          collective.Reduce(p, b[:8], b[:8], collective.Op{Size: 8}, 0),
		"16 bytes are not elements of ":     collective.Allreduce(p, b, b, collective.Op{Left: xor.Left, Right: xor.Right}),
		"not equal blocks for 4 ranks":      collective.Alltoall(p, b[:15], b[:15]),
		"4 ranks receive 4 each":            collective.ReduceScatterBlock(p, b[:15], b[:4], xor),
		"send has 3 bytes, recv 5":          collective.Scan(p, b[:3], b[:5], xor),
		"no block for each of the 4 ranks":  collective.Gatherv(p, b[:4], b, nil, 1),
		"block 3, of 4 units from 13 on":    collective.Allgatherv(p, b[:4], b, &collective.Blocks{Counts: []int{4, 4, 4, 4}, Displs: []int{0, 4, 8, 13}, Unit: 1}),
		"block 0, of -1 units":              collective.Scatterv(p, b, b[:4], &collective.Blocks{Counts: []int{-1, 4, 4, 4}, Displs: []int{0, 4, 8, 12}, Unit: 1}, 1),
		"own block has 4 bytes, its buffer": collective.Allgatherv(p, b[:3], b, &collective.Blocks{Counts: []int{4, 4, 4, 4}, Displs: []int{0, 4, 8, 12}, Unit: 1}),
		"block 2 does not start where":      collective.ReduceScatter(p, b, b[:4], &collective.Blocks{Counts: []int{4, 4, 4, 4}, Displs: []int{0, 4, 7, 12}, Unit: 1}, xor),
		"neighbour 4 is not one":            collective.Neighbor(p, []collective.Part{{Peer: 4}}, nil),
		"as many messages as it receives":   collective.Neighbor(p, []collective.Part{{Peer: 1}}, nil),
		"sends 2 bytes to itself":           collective.Neighbor(p, []collective.Part{{Peer: 1, Buf: b[:2]}}, []collective.Part{{Peer: 1, Buf: b[:3]}}),
	} {
		_, want, found := strings.Cut(name, ": ")
		if !found {
			want = name
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}

func TestUnsuitedRefused(t *testing.T) {
	p := collectivetest.NewMem(3, -1).Peer(0)
	b := make([]byte, 3)
	ordered := xor
	ordered.Commutative = false
	for _, tc := range []struct {
		kind collective.Kind
		name string
		args collective.Args
	}{
		{collective.KindAllreduce, "ring", collective.Args{Send: b, Recv: b, Op: ordered}},
		{collective.KindAllgather, "doubling", collective.Args{Send: b[:1], Recv: b}},
		{collective.KindBcast, "scatter-doubling", collective.Args{Recv: b}},
	} {
		alg, err := collective.Lookup(tc.kind, tc.name)
		if err != nil {
			t.Fatal(err)
		}
		if err := alg.Run(p, tc.args); !errors.Is(err, collective.ErrUnsuited) {
			t.Errorf("%v %s: got %v", tc.kind, tc.name, err)
		}
	}
}

func TestRegistry(t *testing.T) {
	for _, kind := range collective.Kinds() {
		names := collective.Algorithms(kind)
		if len(names) == 0 {
			t.Errorf("%v has no algorithm", kind)
		}
		slices.Sort(names)
		if len(slices.Compact(names)) != len(collective.Algorithms(kind)) {
			t.Errorf("%v: a name is there twice: %q", kind, names)
		}
		for i, name := range collective.Algorithms(kind) {
			alg, err := collective.Lookup(kind, name)
			if err != nil || alg.Kind != kind || alg.Name != name {
				t.Fatalf("%v %q: %v", kind, name, err)
			}
			if i == 0 && (alg.NeedsCommutative || alg.NeedsPowerOfTwo) {
				t.Errorf("%v: the first algorithm, %s, does not suit every call", kind, name)
			}
		}
	}
	if _, err := collective.Lookup(collective.KindBcast, "ring"); err == nil || !strings.Contains(err.Error(), "scatter-ring") {
		t.Errorf("unknown name: %v", err)
	}
	if names := collective.Algorithms(collective.Kind(200)); names != nil {
		t.Errorf("unknown kind: %q", names)
	}
}

// Whatever the thresholds are, the choice suits the call.
func TestSelectSuits(t *testing.T) {
	for _, th := range []collective.Thresholds{{}, collective.DefaultThresholds(), {
		1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40,
		1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40}} {
		for _, kind := range collective.Kinds() {
			for ranks := 1; ranks <= 17; ranks++ {
				for n := 1; n < 1<<30; n *= 2 {
					for _, commutative := range []bool{true, false} {
						s := collective.Shape{Ranks: ranks, Bytes: n - 1, Elem: 1}
						if alg := th.Select(kind, s, commutative); alg.Kind != kind || !alg.Suits(ranks, nil, commutative) {
							t.Fatalf("%v %+v commutative=%t: selected %s", kind, s, commutative, alg.Name)
						}
					}
				}
			}
		}
	}
}

func TestSelectThresholds(t *testing.T) {
	for _, tc := range []struct {
		kind        collective.Kind
		ranks, n    int
		commutative bool
		want        string
	}{
		{collective.KindBcast, 8, 12 << 10, false, "binomial"},
		{collective.KindBcast, 8, 12<<10 + 1, false, "scatter-doubling"},
		{collective.KindBcast, 8, 512<<10 + 1, false, "scatter-ring"},
		{collective.KindBcast, 7, 12<<10 + 1, false, "tree"},
		{collective.KindBcast, 7, 7 * 8 << 10, false, "scatter-ring"},
		{collective.KindBcast, 7, 8<<20 + 1, false, "chain"},
		{collective.KindBcast, 200, 8<<20 + 1, false, "scatter-ring"},
		{collective.KindBcast, 8, 8<<20 + 1, false, "chain"},
		{collective.KindGather, 8, 8 * 32 << 10, false, "binomial"},
		{collective.KindGather, 8, 8*32<<10 + 8, false, "linear"},
		{collective.KindScatter, 8, 8 * 32 << 10, false, "binomial"},
		{collective.KindScatter, 8, 8*32<<10 + 8, false, "linear"},
		{collective.KindGatherv, 8, 0, false, "linear"},
		{collective.KindScatterv, 8, 0, false, "linear"},
		{collective.KindAllgatherv, 8, 80 << 10, false, "bruck"},
		{collective.KindAllgatherv, 8, 80<<10 + 1, false, "ring"},
		{collective.KindAlltoall, 7, 7 * 256, false, "posted"},
		{collective.KindAlltoall, 8, 8 * 256, false, "bruck"},
		{collective.KindAlltoall, 8, 8*256 + 8, false, "posted"},
		{collective.KindAlltoall, 8, 8 * 32 << 10, false, "posted"},
		{collective.KindAlltoall, 8, 8*32<<10 + 8, false, "pairwise"},
		{collective.KindAlltoallv, 8, 0, false, "posted"},
		{collective.KindReduceScatterBlock, 3, 512 << 10, false, "halving"},
		{collective.KindReduceScatterBlock, 2, 5, false, "pairwise"},
		{collective.KindReduceScatter, 3, 512<<10 + 1, false, "pairwise"},
		{collective.KindScan, 9, 64 << 10, false, "doubling"},
		{collective.KindScan, 9, 9 * 64 << 10, false, "chain"},
		{collective.KindExscan, 2, 64<<10 + 1, false, "doubling"},
		{collective.KindExscan, 2, 2 * 64 << 10, false, "chain"},
		{collective.KindReduce, 7, 4<<20 + 1, false, "chain"},
		// Few bytes for each of many ranks.
		{collective.KindAllgather, 1000, 1 << 20, false, "bruck"},
		{collective.KindAllgather, 1024, 1 << 20, false, "doubling"},
		{collective.KindAllgatherv, 1000, 1 << 20, false, "bruck"},
		{collective.KindReduceScatter, 1000, 1 << 20, true, "halving"},
		{collective.KindReduceScatterBlock, 1000, 1 << 20, true, "halving"},
		{collective.KindAllreduce, 1000, 1 << 20, true, "halving"},
		{collective.KindBcast, 2, 1 << 30, false, "binomial"},
		{collective.KindAllgather, 7, 80 << 10, false, "bruck"},
		{collective.KindAllgather, 7, 80<<10 + 1, false, "ring"},
		{collective.KindAllgather, 8, 512 << 10, false, "doubling"},
		{collective.KindAllgather, 8, 512<<10 + 1, false, "ring"},
		{collective.KindReduce, 7, 2 << 10, false, "binomial"},
		{collective.KindReduce, 7, 2<<10 + 1, false, "halving"},
		{collective.KindAllreduce, 7, 8 << 10, true, "doubling"},
		{collective.KindAllreduce, 7, 8<<10 + 1, true, "halving"},
		{collective.KindAllreduce, 7, 256<<10 + 1, true, "ring"},
		{collective.KindAllreduce, 7, 256<<10 + 1, false, "halving"},
		{collective.KindAllreduce, 8, 256<<10 + 1, true, "halving"},
	} {
		th := collective.DefaultThresholds()
		got := th.Select(tc.kind, collective.Shape{Ranks: tc.ranks, Bytes: tc.n, Elem: 1}, tc.commutative).Name
		if got != tc.want {
			t.Errorf("%v, %d ranks, %d bytes, commutative=%t: %s, want %s", tc.kind, tc.ranks, tc.n, tc.commutative, got, tc.want)
		}
	}
}

// A schedule that is recorded for the call it holds already is not changed, but has
// the new operator; any other call is recorded anew.
func TestRecordAgain(t *testing.T) {
	alg, err := collective.Lookup(collective.KindAllreduce, "doubling")
	if err != nil {
		t.Fatal(err)
	}
	var s collective.Schedule
	calls := 0
	op := xor
	op.Left = func(inout, in []byte) { calls++ }
	b, d := make([]byte, 8), make([]byte, 8)
	record := func(a collective.Args) string {
		t.Helper()
		if err := s.Record(alg, 0, 2, a); err != nil {
			t.Fatal(err)
		}
		steps := s.Steps()
		return fmt.Sprintf("%d %p %d", len(steps), steps[0].A, len(steps[0].A))
	}
	first := record(collective.Args{Send: b, Recv: d, Op: xor})
	if again := record(collective.Args{Send: b, Recv: d, Op: op}); again != first {
		t.Errorf("the same call: %s, then %s", first, again)
	}
	for i := range s.Steps() {
		s.Local(&s.Steps()[i])
	}
	if calls != 1 {
		t.Errorf("the new operator was called %d times", calls)
	}
	for name, a := range map[string]collective.Args{
		"other recv":  {Send: b, Recv: make([]byte, 8), Op: xor},
		"shorter":     {Send: b[:4], Recv: d[:4], Op: xor},
		"in place":    {Send: d, Recv: d, Op: xor},
		"no operator": {Send: b, Recv: d},
	} {
		if name == "no operator" {
			if err := s.Record(alg, 0, 2, a); err == nil {
				t.Error("an allreduce without an operator was recorded")
			}
			continue
		}
		if got := record(a); got == first {
			t.Errorf("%s: was not recorded anew", name)
		}
		record(collective.Args{Send: b, Recv: d, Op: xor})
	}
}
