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
