package main

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/weft-hpc/weft/collective"
)

var testNet = machine{perNode: 1, Model: collective.Model{Between: collective.Link{Latency: 1e-6, Overhead: 3e-7, Gap: 1e-7, PerByte: 8e-11},
	Reduce: 1e-10, Copy: 1e-10}}

// Times that can be worked out by hand.
func TestModelByHand(t *testing.T) {
	hop := testNet.Between.Latency + 2*testNet.Between.Overhead
	for _, tc := range []struct {
		kind        collective.Kind
		name        string
		ranks, size int
		want        float64
	}{
		{collective.KindBarrier, "dissemination", 64, 0, 6 * hop},
		{collective.KindBcast, "binomial", 2, 1000, hop + 1000*testNet.Between.PerByte},
		{collective.KindBcast, "binomial", 1, 1000, 0},
		// The second child's message leaves an overhead later than the first's.
		{collective.KindBcast, "binomial", 3, 0, hop + testNet.Between.Overhead},
		{collective.KindScan, "doubling", 2, 8, hop + 8*(testNet.Between.PerByte+testNet.Reduce+testNet.Copy)},
		{collective.KindGather, "linear", 3, 1000, hop + testNet.Between.Overhead + 1000*testNet.Between.PerByte},
	} {
		alg, err := collective.Lookup(tc.kind, tc.name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := testNet.predict(alg, tc.ranks, tc.size)
		if err != nil || p.How != byRun {
			t.Fatalf("%+v: %v", p, err)
		}
		if math.Abs(p.Seconds-tc.want) > 1e-10 {
			t.Errorf("%v %s on %d ranks, %d bytes: %v, by hand %v", tc.kind, tc.name, tc.ranks, tc.size, p.Seconds, tc.want)
		}
	}
}

// Every algorithm runs to its end on the model, is counted as its formula says, and
// takes at least the time of its longest chain.
func TestModelRunsAll(t *testing.T) {
	for _, kind := range collective.Kinds() {
		for _, name := range collective.Algorithms(kind) {
			alg, err := collective.Lookup(kind, name)
			if err != nil {
				t.Fatal(err)
			}
			for _, ranks := range []int{1, 2, 3, 8, 13, 64} {
				if !alg.Suits(ranks, nil, true) {
					continue
				}
				for _, size := range []int{0, 1, 8, 100, 100000} {
					p, err := testNet.predict(alg, ranks, size)
					if err != nil {
						t.Fatalf("%v %s on %d ranks: %v", kind, name, ranks, err)
					}
					// A step of one rank can be the send behind another, which waits only for the card.
					if least := float64(p.Steps) * testNet.Between.Gap; p.Seconds < least && ranks > 1 {
						t.Errorf("%v %s on %d ranks, %d bytes: %v for %d steps", kind, name, ranks, size, p.Seconds, p.Steps)
					}
				}
			}
		}
	}
}

// Where all ranks do the same, one rank's schedule gives the time of all.
func TestModelMirror(t *testing.T) {
	for _, tc := range []struct {
		kind collective.Kind
		name string
	}{
		{collective.KindBarrier, "dissemination"}, {collective.KindAllgather, "ring"}, {collective.KindAllgather, "bruck"},
		{collective.KindAlltoall, "posted"}, {collective.KindAlltoall, "pairwise"}, {collective.KindAlltoall, "bruck"},
		{collective.KindAllreduce, "ring"}, {collective.KindReduceScatterBlock, "pairwise"},
	} {
		alg, err := collective.Lookup(tc.kind, tc.name)
		if err != nil {
			t.Fatal(err)
		}
		for _, ranks := range []int{2, 7, 64} {
			size := 64 * ranks // so that all blocks are of one length
			p, err := testNet.predict(alg, ranks, size)
			if err != nil {
				t.Fatal(err)
			}
			unit := size
			if blocked(tc.kind) {
				unit = 8
			}
			memory := make([]byte, ranks*unit+unit+1)
			var sched collective.Schedule
			if err := sched.Record(alg, ranks/2, ranks, modelArgs(tc.kind, ranks, unit, memory)); err != nil {
				t.Fatal(err)
			}
			got, ok := testNet.mirror(compact(sched.Steps(), size/unit))
			if !ok || math.Abs(got-p.Seconds) > 0.02*p.Seconds {
				t.Errorf("%v %s on %d ranks: mirror %v (%t), run %v", tc.kind, tc.name, ranks, got, ok, p.Seconds)
			}
		}
	}
}

// For short vectors no chosen algorithm takes steps in proportion to the ranks where
// one with fewer is there.
func TestChosenAlgorithmsGrowSlowly(t *testing.T) {
	for _, kind := range collective.Kinds() {
		chooser := collective.NewChooser(&testNet.Model, 4096, testNet.nodes(4096))
		fewest, chosen := math.MaxInt, 0
		for _, name := range collective.Algorithms(kind) {
			alg, err := collective.Lookup(kind, name)
			if err != nil {
				t.Fatal(err)
			}
			s := modelShape(kind, 4096, 1)
			fewest = min(fewest, alg.Cost(s).Steps)
			if best, _ := chooser.Explain(kind, s.Bytes, &collective.Op{Commutative: true}); best == alg {
				chosen = alg.Cost(s).Steps
			}
		}
		linear := kind == collective.KindGatherv || kind == collective.KindScatterv || kind == collective.KindAlltoallv
		if chosen > fewest || !linear && fewest > 2*12 {
			t.Errorf("%v on 4096 ranks: %d steps are chosen, the fewest are %d", kind, chosen, fewest)
		}
	}
}

func TestModelFindsDeadlock(t *testing.T) {
	all := [][]event{{{kind: collective.StepRecv, peer: 1}, {kind: collective.StepWait}}, nil}
	if _, err := testNet.run(all); err == nil || !strings.Contains(err.Error(), "1 of 2 ranks wait") {
		t.Errorf("got %v", err)
	}
}

func TestModelCommand(t *testing.T) {
	run := func(args ...string) (string, error) {
		cmd := root()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetArgs(append([]string{"bench", "model"}, args...))
		err := cmd.Execute()
		return out.String(), err
	}
	out, err := run("--ranks", "4,70000", "--bytes", "8", "--collective", "allreduce")
	if err != nil || !strings.Contains(out, "doubling  *") || !strings.Contains(out, "~") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err = run("--ranks", "4", "--bytes", "8", "--json"); err != nil || !strings.Contains(out, `"how": "run"`) {
		t.Errorf("%v\n%s", err, out)
	}
	for _, args := range [][]string{{"--collective", "sing"}, {"--ranks", "0"}, {"--bytes", "-1"}, {"--bandwidth", "0"}} {
		if _, err := run(args...); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
