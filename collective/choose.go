package collective

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Chooser chooses the algorithms of a group's calls: of those that suit a call the one
// for which the model predicts the least time. It depends on nothing but what all ranks
// know, so all choose alike. What it has worked out for an operation and a class of
// lengths it keeps. Any number of goroutines may use it.
type Chooser struct {
	model *Model
	ranks int
	nodes *Topology
	rows  [len(registry)]atomic.Pointer[row]
}

// row has the algorithms of one operation: for each demand and class of lengths 1 + the
// index in the registry, 0 if it is not known yet.
type row [demands * classes]atomic.Uint32

// demand is what an operator asks of an algorithm.
type demand int

const (
	anyOrder demand = iota
	rankOrder
	allAtOnce // operands of an element
	demands   = iota
)

func demandOf(op *Op, ranks int) demand {
	switch {
	case op.Whole != nil && ranks > 2: // two ranks have but two operands
		return allAtOnce
	case op.Commutative:
		return anyOrder
	}
	return rankOrder
}

// Lengths are in classes of two for each power of two: up to 3 2^k, and up to 4 2^k. The
// first are 0, 1 and 2.
const classes = 2 * 48

func classOf(n int) int {
	if n <= 2 {
		return n
	}
	k := bits.Len(uint(n-1)) - 2 // n-1 is 2 2^k or more, and less than 4 2^k
	return min(3+2*k+(n-1)>>k&1, classes-1)
}

// sampleOf returns the length that stands for a class: its longest.
func sampleOf(class int) int {
	if class <= 2 {
		return class
	}
	return (3 + (class-3)%2) << ((class - 3) / 2)
}

// NewChooser returns one for a group of ranks. All ranks of it give the same model and
// topology.
func NewChooser(m *Model, ranks int, nodes *Topology) *Chooser {
	return &Chooser{model: m, ranks: ranks, nodes: nodes}
}

// Nodes returns the topology that it chooses by.
func (c *Chooser) Nodes() *Topology { return c.nodes }

// Choose returns the algorithm for a call.
func (c *Chooser) Choose(k Kind, a *Args) *Algorithm {
	return c.choose(k, vectorBytes(k, c.ranks, a), demandOf(&a.Op, c.ranks))
}

func (c *Chooser) choose(k Kind, bytes int, d demand) *Algorithm {
	if len(registry[k]) == 1 {
		return registry[k][0]
	}
	r := c.rows[k].Load()
	if r == nil {
		r = new(row)
		if !c.rows[k].CompareAndSwap(nil, r) {
			r = c.rows[k].Load()
		}
	}
	class := classOf(bytes)
	slot := &r[int(d)*classes+class]
	i := slot.Load()
	if i == 0 {
		i = 1 + uint32(c.best(k, sampleOf(class), d))
		slot.Store(i)
	}
	return registry[k][i-1]
}

// best returns the index of the algorithm with the least time. Of two that take as long
// the first wins, and node-aware ones are left out where they have nothing to know.
func (c *Chooser) best(k Kind, bytes int, d demand) int {
	found, least := -1, 0.0
	for i, alg := range registry[k] {
		if !c.suits(alg, d) {
			continue
		}
		if t := c.Predict(alg, bytes); found < 0 || t < least {
			found, least = i, t
		}
	}
	return found
}

func (c *Chooser) suits(alg *Algorithm, d demand) bool {
	if n := c.nodes.Nodes(); alg.NodeAware && (n == 1 || n == c.ranks) {
		return false
	}
	if d == allAtOnce {
		return alg.NeedsWhole
	}
	return alg.Suits(c.ranks, c.nodes, d == anyOrder)
}

// Predict returns the time that an algorithm takes for a vector (see Shape.Bytes), in
// seconds; 0 if it cannot be told.
func (c *Chooser) Predict(alg *Algorithm, bytes int) float64 {
	if alg.time == nil || c.ranks == 1 {
		return 0
	}
	return alg.time(lane{Model: c.model, ranks: c.ranks, nodes: c.nodes}, bytes)
}

// Explain returns the algorithm for a vector (see Shape.Bytes) and an operator, of which only what it asks
// of an algorithm counts, and why it is that one in words.
func (c *Chooser) Explain(k Kind, bytes int, op *Op) (alg *Algorithm, why string) {
	d := demandOf(op, c.ranks)
	alg = c.choose(k, bytes, d)
	type other struct {
		name string
		time float64
	}
	var others []other
	for _, o := range of(k) {
		if o != alg && c.suits(o, d) {
			others = append(others, other{o.Name, c.Predict(o, bytes)})
		}
	}
	switch {
	case c.ranks == 1:
		return alg, "one rank sends nothing"
	case !knowsBytes(k):
		return alg, "not all ranks know the lengths, so there is nothing to choose by"
	case len(others) == 0:
		return alg, "there is no other"
	}
	slices.SortStableFunc(others, func(a, b other) int { return cmp.Compare(a.time, b.time) })
	var words []string
	for _, o := range others[:min(2, len(others))] {
		words = append(words, fmt.Sprintf("%s %v", o.name, rounded(o.time)))
	}
	return alg, fmt.Sprintf("predicted to take %v, %s", rounded(c.Predict(alg, bytes)), strings.Join(words, ", "))
}

// knowsBytes says whether all ranks know the length of the vector.
func knowsBytes(k Kind) bool {
	switch k {
	case KindGatherv, KindScatterv, KindAlltoallv, KindNeighbor:
		return false
	}
	return true
}

// rounded is a time with three digits.
func rounded(s float64) time.Duration {
	d := time.Duration(s * float64(time.Second))
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}
