package collectivetest

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weft-hpc/weft/collective"
)

// onNodes runs an algorithm that is node-aware on so many random maps of ranks to
// nodes: of one to five nodes and up to 13 ranks, some of which lie node by node, some with
// as many ranks on each.
func onNodes(t *testing.T, w World, alg *collective.Algorithm, maps int) {
	if !alg.NodeAware {
		return
	}
	r := rand.New(rand.NewPCG(uint64(alg.Kind), uint64(len(alg.Name))))
	for i := range maps {
		nodes := randomNodes(r, i)
		ranks, topology := len(nodes), collective.NewTopology(nodes)
		for _, op := range operators(alg, ranks) {
			if !alg.Suits(ranks, topology, op.commutative || !alg.Kind.Reduces()) {
				continue
			}
			counts := counts(alg.Kind, ranks)
			for range 2 {
				root := 0
				if alg.Kind.Rooted() {
					root = r.IntN(ranks)
				}
				sameBits(t, w, trial{kind: alg.Kind, alg: alg.Name, ranks: ranks, root: root, count: counts[r.IntN(len(counts))], op: op, nodes: nodes})
			}
		}
	}
	for _, nodes := range [][]int{{0, 0, 1, 1}, {0, 1, 1, 0, 1, 0}} {
		faultsOn(t, w, trial{kind: alg.Kind, alg: alg.Name, ranks: len(nodes), nodes: nodes})
	}
}

func randomNodes(r *rand.Rand, i int) []int {
	n := []int{1, 2, 3, 5}[r.IntN(4)]
	nodes := make([]int, 1+r.IntN(13))
	if i%3 == 0 { // as many ranks on each
		nodes = make([]int, n*(1+r.IntN(max(1, 13/n))))
	}
	for rank := range nodes {
		switch {
		case i%3 > 0:
			nodes[rank] = r.IntN(n)
		case i%2 > 0:
			nodes[rank] = rank * n / len(nodes)
		default:
			nodes[rank] = rank % n
		}
	}
	if i%6 == 1 { // node by node, but not as many on each
		slices.Sort(nodes)
	}
	for rank := range nodes {
		nodes[rank] = 7 * (n - nodes[rank]) // numbers are names, and mean nothing
	}
	return nodes
}
