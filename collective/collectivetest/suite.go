// Package collectivetest is the conformance suite of collective algorithms and of
// the Peer that they run on. A new algorithm joins by being in the registry of
// package collective; a new Peer joins by calling Run with a World of its own.
//
// The suite checks answers (exact operators against a fold in rank order, also
// operators that do not commute; floating point to the bit across ranks, between
// runs, and in place or not), buffers (canaries, send buffers unchanged), costs
// (steps, messages and bytes counted against Algorithm.Cost), the rules of Peer
// (no call after an error, errors returned unchanged, no wild Scratch), and the
// wrong-answer reports of other libraries, by name.
//
// It does not check that ranks which disagree are told so: that is the Peer's
// task, in the package that implements it.
package collectivetest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/weft-hpc/weft/collective"
)

var rankCounts = []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16}

// Run runs the suite. It takes some ten seconds in memory.
func Run(t *testing.T, w World) {
	forAlgorithms(t, "Answers", func(t *testing.T, alg *collective.Algorithm) { answers(t, w, alg) })
	forAlgorithms(t, "Long", func(t *testing.T, alg *collective.Algorithm) { long(t, w, alg) })
	forAlgorithms(t, "ManyRanks", func(t *testing.T, alg *collective.Algorithm) { manyRanks(t, w, alg) })
	forAlgorithms(t, "Pipelined", func(t *testing.T, alg *collective.Algorithm) {
		if alg.Name == "chain" || alg.Name == "tree" {
			pipelined(t, w, alg)
		}
	})
	forAlgorithms(t, "Nodes", func(t *testing.T, alg *collective.Algorithm) { onNodes(t, w, alg, 60) })
	t.Run("Neighbors", func(t *testing.T) { neighbors(t, w) })
	forAlgorithms(t, "Faults", func(t *testing.T, alg *collective.Algorithm) { faults(t, w, alg, 2, 3, 5, 8) })
	for _, kind := range collective.Kinds() {
		t.Run("Selected/"+kind.String(), func(t *testing.T) { selected(t, w, kind) })
	}
	t.Run("BarrierWaits", func(t *testing.T) { barrierWaits(t, w) })
	reports(t, w)
}

// RunSample runs a part of the suite, for a World on which a call takes long: every
// algorithm on a few numbers of ranks, answers and faults.
func RunSample(t *testing.T, w World) {
	forAlgorithms(t, "Answers", func(t *testing.T, alg *collective.Algorithm) {
		for _, ranks := range []int{1, 2, 3, 5, 8} {
			for _, op := range operators(alg, ranks) {
				if op.size != matrix.size && op.whole == nil && ranks > 3 {
					continue
				}
				for _, count := range []int{0, 2, 4*ranks + 5, 3000} {
					sameBits(t, w, trial{kind: alg.Kind, alg: alg.Name, ranks: ranks, root: ranks / 2, count: count, op: op})
				}
			}
		}
	})
	forAlgorithms(t, "Faults", func(t *testing.T, alg *collective.Algorithm) { faults(t, w, alg, 2, 3) })
	forAlgorithms(t, "Nodes", func(t *testing.T, alg *collective.Algorithm) { onNodes(t, w, alg, 6) })
	t.Run("Neighbors", func(t *testing.T) { neighbors(t, w) })
}

func forAlgorithms(t *testing.T, name string, check func(*testing.T, *collective.Algorithm)) {
	for _, kind := range collective.Kinds() {
		for _, algName := range collective.Algorithms(kind) {
			t.Run(fmt.Sprintf("%s/%v/%s", name, kind, algName), func(t *testing.T) {
				alg, err := collective.Lookup(kind, algName)
				if err != nil {
					t.Fatal(err)
				}
				check(t, alg)
			})
		}
	}
}

// roots returns every root, or the one that stands for none.
func roots(kind collective.Kind, ranks int) []int {
	if !kind.Rooted() {
		return []int{0}
	}
	all := make([]int, ranks)
	for i := range all {
		all[i] = i
	}
	return all
}

// inPlaces returns whether to call in place: no, and yes where there is such a
// thing.
func inPlaces(kind collective.Kind) []bool {
	if kind == collective.KindBarrier || kind == collective.KindBcast {
		return []bool{false}
	}
	return []bool{false, true}
}

// operators returns those that an algorithm takes. For an operation that does
// not reduce they are element types of 1, 4, 8 and 16 bytes.
func operators(alg *collective.Algorithm, ranks int) []operator {
	var ops []operator
	for _, op := range []operator{sumUint8, affine, sumFloat64, matrix, sumNaN, weighted} {
		if alg.Kind == collective.KindBarrier && op.size > 1 || alg.Kind != collective.KindAllreduce && op.sloppy {
			continue
		}
		raw := op.op()
		if !alg.Kind.Reduces() {
			if raw.Commutative, raw.Whole = true, nil; op.whole != nil {
				continue
			}
		}
		if alg.SuitsOp(ranks, nil, &raw) {
			ops = append(ops, op)
		}
	}
	return ops
}

// mustRun runs a trial, directly and by way of a schedule, and compares costs and
// bits.
func mustRun(t *testing.T, w World, c trial) [][]byte {
	t.Helper()
	cost, first, err := c.run(w)
	if err != nil {
		t.Fatal(err)
	}
	if c.alg == "" {
		return first
	}
	alg, err := collective.Lookup(c.kind, c.alg)
	if err != nil {
		t.Fatal(err)
	}
	if want := alg.Cost(c.shape()); cost != want {
		t.Fatalf("%v: counted %+v, the formula says %+v", c, cost, want)
	}
	c.recorded = true
	again, second, err := c.run(w)
	if err != nil {
		t.Fatal(err)
	}
	if cost != again {
		t.Fatalf("%v: counted %+v, and %+v without the schedule", c, again, cost)
	}
	for rank, got := range second {
		if i := differs(got, first[rank]); i >= 0 && !c.op.sloppy {
			t.Fatalf("%v: rank %d: other bits than without the schedule, in byte %d", c, rank, i)
		}
	}
	return first
}

func (c trial) shape() collective.Shape {
	s := collective.Shape{Ranks: c.ranks, Root: c.root, Nodes: c.topology()}
	if c.kind.Reduces() {
		s.Elem = c.op.size
	}
	switch c.kind {
	case collective.KindBarrier:
	case collective.KindAlltoallv:
		for from := range c.ranks {
			for i := range c.ranks {
				s.Bytes += c.block(from, i) * c.op.size
			}
			s.Own += c.block(from, from) * c.op.size
		}
	case collective.KindGather, collective.KindGatherv, collective.KindScatter, collective.KindScatterv, collective.KindAllgather,
		collective.KindAllgatherv, collective.KindAlltoall, collective.KindReduceScatterBlock, collective.KindReduceScatter:
		for i := range c.ranks {
			s.Counts = append(s.Counts, c.block(0, i)*c.op.size)
			s.Bytes += s.Counts[i]
		}
		s.Own = s.Counts[c.root]
	default:
		s.Bytes = c.count * c.op.size
	}
	return s
}

// answers runs one operator on every number of ranks, root and count, the others
// on some.
func answers(t *testing.T, w World, alg *collective.Algorithm) {
	for _, ranks := range rankCounts {
		for _, op := range operators(alg, ranks) {
			for _, root := range roots(alg.Kind, ranks) {
				full := op.size == matrix.size || op.whole != nil
				if !full && ranks > 4 && (ranks%3 == 0 || root != 0 && root != ranks/2 && root != ranks-1) {
					continue
				}
				for i, count := range counts(alg.Kind, ranks) {
					if !full && i%2 == 1 {
						continue
					}
					sameBits(t, w, trial{kind: alg.Kind, alg: alg.Name, ranks: ranks, root: root, count: count, op: op})
				}
			}
		}
	}
}

// counts returns small numbers of elements: none, one, odd, fewer than ranks,
// one for each, one more, several for each and an odd rest.
func counts(kind collective.Kind, ranks int) []int {
	if kind == collective.KindBarrier {
		return []int{0}
	}
	return []int{0, 1, max(ranks-1, 2), 3, 4*ranks + 5, ranks + 1}
}

// sameBits runs a trial twice and in place: same bits each time.
func sameBits(t *testing.T, w World, c trial) {
	t.Helper()
	want := mustRun(t, w, c)
	again := []trial{c}
	if c.op.exact {
		again = nil // was compared with the only right answer
	}
	for _, inPlace := range inPlaces(c.kind) {
		if inPlace {
			c.inPlace = true
			again = append(again, c)
		}
	}
	for _, c := range again {
		for rank, got := range mustRun(t, w, c) {
			if c.kind == collective.KindAlltoallv || c.kind == collective.KindExscan && rank == 0 {
				continue // has other counts in place; is left as it was
			}
			// Which NaN comes out may depend on the buffers, but not on the rank.
			if i := differs(got, want[rank]); i >= 0 && !c.op.sloppy && !c.op.exact {
				t.Fatalf("%v: rank %d: other bits than in an earlier run, in byte %d", c, rank, i)
			}
		}
	}
}

// long runs vectors of many pieces and cache lines, on few ranks and roots.
func long(t *testing.T, w World, alg *collective.Algorithm) {
	if alg.Kind == collective.KindBarrier {
		return // has no length
	}
	for _, ranks := range []int{1, 3, 4} {
		if len(operators(alg, ranks)) == 0 {
			continue
		}
		count := 40<<10 + 7
		if ranks == 1 {
			count = 270<<10 + 7 // more than move copies at once
		}
		if blocked(alg.Kind) {
			count /= ranks
		}
		for _, inPlace := range inPlaces(alg.Kind) {
			mustRun(t, w, trial{kind: alg.Kind, alg: alg.Name, ranks: ranks, root: ranks / 2, count: count, op: plain(alg.Kind, alg.Name), inPlace: inPlace})
		}
	}
}

// blocked says that count is the length of a block, of which there is one for each
// rank.
func blocked(k collective.Kind) bool {
	switch k {
	case collective.KindBarrier, collective.KindBcast, collective.KindReduce, collective.KindAllreduce, collective.KindScan, collective.KindExscan:
		return false
	}
	return true
}

// pipelined runs vectors of several segments, of other lengths than the rest, with
// each root, on the algorithms that cut them.
func pipelined(t *testing.T, w World, alg *collective.Algorithm) {
	for _, ranks := range []int{2, 3, 4, 5, 6, 7, 8, 13} {
		for _, root := range roots(alg.Kind, ranks) {
			for _, bytes := range []int{8<<10 - 16, 20 << 10, 50<<10 + 16} {
				for _, op := range []operator{matrix, sumUint8} {
					if op.size == 1 && ranks%4 != 3 {
						continue
					}
					for _, inPlace := range inPlaces(alg.Kind) {
						mustRun(t, w, trial{kind: alg.Kind, alg: alg.Name, ranks: ranks, root: root, count: bytes / op.size, op: op, inPlace: inPlace})
					}
				}
			}
		}
	}
}

// manyRanks runs trees that are deep, and full but for one rank or with one rank
// too many.
func manyRanks(t *testing.T, w World, alg *collective.Algorithm) {
	for _, ranks := range []int{31, 33, 64} {
		if ranks == 64 && alg.Kind == collective.KindAlltoallv {
			continue // has the most messages, and nothing that is new there
		}
		ops := operators(alg, ranks)
		if len(ops) == 0 {
			continue
		}
		op := ops[0]
		if alg.Suits(ranks, nil, false) && alg.Kind.Reduces() {
			op = matrix
		}
		for _, root := range []int{0, ranks / 3, ranks - 1} {
			mustRun(t, w, trial{kind: alg.Kind, alg: alg.Name, ranks: ranks, root: root, count: 3, op: op})
			if !alg.Kind.Rooted() {
				break
			}
		}
	}
}

// selected runs the entry points on both sides of each length at which another algorithm
// is chosen.
func selected(t *testing.T, w World, kind collective.Kind) {
	for _, ranks := range []int{1, 2, 3, 4, 7, 8} {
		lengths := []int{0, 1, 1000}
		for _, limit := range changes(kind, ranks) {
			if limit > 64<<10 && ranks != 3 && ranks != 4 {
				continue
			}
			if blocked(kind) {
				limit /= ranks
			}
			lengths = append(lengths, limit-1, limit, limit+1)
		}
		if kind == collective.KindBarrier {
			lengths = []int{0}
		}
		for _, n := range lengths {
			for _, inPlace := range inPlaces(kind) {
				if inPlace && n > 64<<10 {
					continue
				}
				mustRun(t, w, trial{kind: kind, ranks: ranks, root: ranks - 1, count: n, op: sumUint8, inPlace: inPlace})
				if kind.Reduces() && n < 10<<10 {
					mustRun(t, w, trial{kind: kind, ranks: ranks, root: ranks - 1, count: n / 4, op: affine, inPlace: inPlace})
					mustRun(t, w, trial{kind: kind, ranks: ranks, root: ranks - 1, count: n / 4, op: weighted, inPlace: inPlace})
				}
			}
		}
	}
}

// changes returns the lengths of a vector, up to a MiB, from which on the entry points take
// another algorithm.
func changes(kind collective.Kind, ranks int) (lengths []int) {
	c := collective.NewChooser(collective.NewModel(collective.Ethernet, collective.Ethernet), ranks, nil)
	last, _ := c.Explain(kind, 1, &collective.Op{Commutative: true})
	for k := range 20 {
		for _, n := range []int{2 << k, 3 << k} {
			if alg, _ := c.Explain(kind, n, &collective.Op{Commutative: true}); alg != last {
				last, lengths = alg, append(lengths, n)
			}
		}
	}
	return lengths
}

var errInjected = errors.New("collectivetest: injected fault")

// faults makes every call of every rank fail once. The rank returns that error
// unchanged and calls no more; the others return.
func faults(t *testing.T, w World, alg *collective.Algorithm, numbers ...int) {
	for _, ranks := range numbers {
		if len(operators(alg, ranks)) > 0 {
			faultsOn(t, w, trial{kind: alg.Kind, alg: alg.Name, ranks: ranks})
		}
	}
}

func faultsOn(t *testing.T, w World, c trial) {
	for _, c.inPlace = range inPlaces(c.kind) {
		c.root, c.count, c.op = c.ranks/2, 5, plain(c.kind, c.alg)
		for rank := range c.ranks {
			for call, reached := 1, true; reached; call++ {
				reached = c.fault(t, w, rank, call)
			}
		}
	}
}

func (c trial) fault(t *testing.T, w World, rank, call int) (reached bool) {
	t.Helper()
	ps := newProbes(c.ranks)
	ps.failRank, ps.failCall, ps.fault = rank, call, errInjected
	d, topology := c.data(), c.topology()
	broken := make([]error, c.ranks)
	errs := w(c.ranks, func(p collective.Peer) error {
		probe := ps.wrap(p)
		args := c.prepare(d, p.Rank()).args
		args.Nodes = topology
		err := c.call(probe, args)
		if probe.verdict(err); probe.broken != nil {
			broken[p.Rank()] = probe.broken
		}
		return err
	})
	reached = errs[rank] != nil
	for r, err := range errs {
		if broken[r] != nil {
			t.Fatalf("%v: call %d of rank %d failed: %v", c, call, rank, broken[r])
		}
		if r == rank && reached && err != errInjected {
			t.Fatalf("%v: call %d of rank %d failed: it returned %v", c, call, rank, err)
		}
		if !reached && err != nil {
			t.Fatalf("%v: no call failed, but rank %d returned %v", c, r, err)
		}
	}
	return reached
}

// barrierWaits checks that nobody leaves before the last one has come: the
// step clock of a rank that entered at step 100 shows on all.
func barrierWaits(t *testing.T, w World) {
	for _, name := range collective.Algorithms(collective.KindBarrier) {
		for _, ranks := range rankCounts {
			for late := range ranks {
				ps := newProbes(ranks)
				left := make([]int, ranks)
				c := trial{kind: collective.KindBarrier, alg: name, ranks: ranks}
				for rank, err := range w(ranks, func(p collective.Peer) error {
					probe := ps.wrap(p)
					if p.Rank() == late {
						probe.clock = 100
					}
					err := c.call(probe, collective.Args{})
					left[p.Rank()] = probe.clock
					return err
				}) {
					if err != nil {
						t.Fatalf("%v: rank %d: %v", c, rank, err)
					}
					if left[rank] < 100 {
						t.Fatalf("%v: rank %d left before rank %d came", c, rank, late)
					}
				}
			}
		}
	}
}
