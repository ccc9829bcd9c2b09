package collective

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The classes cover all lengths, in order, and the sample of each is its longest.
func TestClasses(t *testing.T) {
	for n := range 100_000 {
		c := classOf(n)
		if sample := sampleOf(c); n > sample || c > 0 && n <= sampleOf(c-1) {
			t.Fatalf("%d is in class %d, up to %d", n, c, sample)
		}
	}
	for k := range 47 {
		if n := 1 << k; sampleOf(classOf(n)) != n || classOf(n+1) == classOf(n) {
			t.Errorf("2^%d is in class %d, up to %d", k, classOf(n), sampleOf(classOf(n)))
		}
	}
	if c := classOf(1 << 62); c != classes-1 {
		t.Errorf("2^62 is in class %d of %d", c, classes)
	}
}

// Whatever the model and the nodes are, the choice suits the call, and is the same when it is
// made again, by many at once, and by Explain.
func TestChooseSuits(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	link := func() Link {
		return Link{r.Float64() * 1e-5, r.Float64() * 1e-6, r.Float64() * 1e-6, r.Float64() * 1e-9, r.IntN(2) * 4096}
	}
	for range 100 {
		m := &Model{link(), link(), r.Float64() * 1e-9, r.Float64() * 1e-9}
		nodes := make([]int, 1+r.IntN(20))
		for i := range nodes {
			nodes[i] = r.IntN(4)
		}
		ranks, topology := len(nodes), NewTopology(nodes)
		c := NewChooser(m, ranks, topology)
		for _, kind := range Kinds() {
			for n := 1; n < 1<<28; n *= 5 {
				for what, op := range map[string]Op{"commutes": {Commutative: true}, "keeps order": {}, "whole": {Whole: func(dst, operands []byte) {}}} {
					if op.Whole != nil && !kind.Reduces() {
						continue
					}
					alg, why := NewChooser(m, ranks, topology).Explain(kind, n, &op)
					op.Left = func(inout, in []byte) {}
					if alg.Kind != kind || why == "" || !alg.SuitsOp(ranks, topology, &op) {
						t.Fatalf("%v of %d bytes on %v, operator that %s: %s, because %q", kind, n, nodes, what, alg.Name, why)
					}
					var all sync.WaitGroup
					for range 2 {
						all.Go(func() {
							if got := c.choose(kind, n, demandOf(&op, ranks)); got != alg {
								t.Errorf("%v of %d bytes on %v, operator that %s: %s, and %s", kind, n, nodes, what, alg.Name, got.Name)
							}
						})
					}
					all.Wait()
				}
			}
		}
	}
}

// What is not asked for the first time allocates nothing.
func TestChooseDoesNotAllocate(t *testing.T) {
	c := NewChooser(NewModel(OneHost, Ethernet), 12, NewTopology([]int{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}))
	a := &Args{Send: make([]byte, 5000), Op: Op{Size: 8, Commutative: true}}
	if n := testing.AllocsPerRun(100, func() { c.Choose(KindAllreduce, a) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// On nodes with several ranks each the leaders win for short vectors where messages between nodes
// cost a lot, and are not thought of where there is one node.
func TestChooseLeaders(t *testing.T) {
	m := NewModel(OneHost, Ethernet)
	var nodes []int
	for i := range 32 {
		nodes = append(nodes, i/8)
	}
	for _, kind := range []Kind{KindBarrier, KindAllreduce, KindAllgather} {
		if alg, why := NewChooser(m, 32, NewTopology(nodes)).Explain(kind, 32, &Op{Commutative: true}); alg.Name != "leaders" {
			t.Errorf("%v on 4 nodes: %s, %s", kind, alg.Name, why)
		}
		if alg, why := NewChooser(m, 32, nil).Explain(kind, 32, &Op{Commutative: true}); alg.NodeAware || strings.Contains(why, "leaders") {
			t.Errorf("%v on one node: %s, %s", kind, alg.Name, why)
		}
	}
	// Ranks that are dealt out in turn: halves would go between nodes at the first, longest step.
	slices.Sort(nodes)
	for i := range nodes {
		nodes[i] = i % 4
	}
	if alg, why := NewChooser(m, 32, NewTopology(nodes)).Explain(KindAllreduce, 1<<20, &Op{Commutative: true}); !alg.NodeAware {
		t.Errorf("long allreduce on ranks dealt out in turn: %s, %s", alg.Name, why)
	}
	if alg, why := NewChooser(m, 32, NewTopology(nodes)).Explain(KindAllreduce, 1<<20, &Op{Commutative: false}); alg.NodeAware {
		t.Errorf("the same, with an operator that does not commute: %s, %s", alg.Name, why)
	}
}

func TestParseModel(t *testing.T) {
	good, err := json.Marshal(NewModel(OneHost, Ethernet))
	if err != nil {
		t.Fatal(err)
	}
	m, err := ParseModel(good)
	if err != nil || *m != *NewModel(OneHost, Ethernet) {
		t.Errorf("%+v, %v", m, err)
	}
	for _, tc := range []struct{ old, new, want string }{
		{`"latency_s":8e-8`, `"latency_s":-1`, "inside.latency_s is -1"},
		{`"gap_s":0.000003`, `"gap_s":1e300`, "between.gap_s is 1e+300"},
		{`"copy_per_byte_s":5e-11`, `"copy_per_byte_s":null`, "does not say copy_per_byte_s"},
		{`"rendezvous_bytes":65536`, `"rendezvous_bytes":-1`, "between.rendezvous_bytes is -1"},
		{`"rendezvous_bytes":65536`, `"x":1`, `unknown field "x"`},
		{`{"inside"`, `["inside"`, "not a model"},
	} {
		bad := strings.Replace(string(good), tc.old, tc.new, 1)
		if bad == string(good) {
			t.Fatalf("no %s in %s", tc.old, good)
		}
		if _, err := ParseModel([]byte(bad)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.new, err, tc.want)
		}
	}
}
