package collective

// Two allgathers by nodes: each node gathers its blocks at its leader, up a binomial
// tree; the leaders gather the nodes' blocks; and each hands them all to its node. Where
// ranks are not numbered node by node, the blocks are gathered beside their places, and
// every rank sorts them at the end.
//
// allgatherLeaders is for short blocks: the leaders use bruck, and hand down by
// bcastBinomial.
//
//	steps     2 ceil(log2 q) + ceil(log2 N)
//	messages  2 (P-N) + N ceil(log2 N)
//	bytes     (N-1) S between nodes; inside, (P-N) S and those of gatherBinomial
//	memory    S/q, S on leaders; S more where ranks are not numbered node by node
//
// allgatherLeadersRing is for long ones: the leaders use a ring, and hand down by
// bcastScatterRing.
//
//	steps     ceil(log2 q) + N-1 + ceil(log2 q) + q-1
//	messages  those of the parts
//	bytes     (N-1) S between nodes; inside, (P-N) S and those of gatherBinomial
//	memory    S/q; S more where ranks are not numbered node by node
var (
	allgatherLeaders = allgatherByNodes("leaders", allgatherBruck, bcastBinomial, func(p group, q parts, vector []byte) error {
		return bruck(p, q, q.one(vector, p.me), vector)
	})
	allgatherLeadersRing = allgatherByNodes("leaders-ring", allgatherRing, bcastScatterRing, ring)
)

// allgatherByNodes makes one whose leaders cost what those of the algorithm like do.
func allgatherByNodes(name string, like, down Algorithm, across func(p group, q parts, vector []byte) error) Algorithm {
	run := func(p group, a Args) error {
		b := len(a.Send)
		all := a.Recv
		if !a.Nodes.keepsOrder() {
			all = p.Scratch(slotNode, len(a.Recv))
		}
		own, q := all, parts{size: b, nodes: a.Nodes}
		if a.Nodes != nil {
			own = q.one(all, a.Nodes.Node(p.me))
		}
		if err := a.Nodes.share(p, Up, &gatherBinomial, Args{Send: a.Send, Recv: own}); err != nil {
			return err
		}
		if a.Nodes != nil && a.Nodes.leads(p, 0) {
			if err := across(a.Nodes.leaders(p, 0), q, all); err != nil {
				return err
			}
		}
		if err := a.Nodes.share(p, Down, &down, Args{Recv: all}); err != nil {
			return err
		}
		if !a.Nodes.keepsOrder() {
			for i, rank := range a.Nodes.ranks {
				move(p, a.Recv[int(rank)*b:][:b], all[i*b:][:b])
			}
		}
		return nil
	}
	return Algorithm{
		Kind: KindAllgather, Name: name, NodeAware: true,
		Cost: func(s Shape) Cost {
			s.Root = 0 // there is none
			return nodesCost(s, run, inPhases(s.Nodes, func(node Shape) Cost {
				handed := down.Cost(node)
				node.Bytes = node.Bytes / s.Ranks * node.Ranks
				return gatherBinomial.Cost(node).and(handed)
			}), like.Cost(leadersShape(s)))
		},
		time: func(l lane, n int) float64 {
			largest := l.each(n) * l.node().ranks // block of a node
			t := l.inside(&gatherBinomial, largest) + like.time(l.leaders(), largest*l.nodes.Nodes()) + l.inside(&down, n)
			if !l.nodes.keepsOrder() {
				t += l.copy(n)
			}
			return t
		},
		run: run,
	}
}
