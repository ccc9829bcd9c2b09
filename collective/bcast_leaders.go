package collective

// Two broadcasts by nodes: the root sends to the leaders, then each leader to its node,
// both by the same algorithm.
//
// bcastLeaders is for short vectors: both are binomial.
//
//	steps     ceil(log2 N) + ceil(log2 q)
//	messages  P-1
//	bytes     (P-1) S, (N-1) S of them between nodes
//
// bcastLeadersRing is for long ones: both are bcastScatterRing.
//
//	steps     ceil(log2 N) + N-1 + ceil(log2 q) + q-1
//	messages  those of the parts
//	bytes     (P-1) S, (N-1) S of them between nodes
var (
	bcastLeaders     = bcastByNodes("leaders", bcastBinomial)
	bcastLeadersRing = bcastByNodes("leaders-ring", bcastScatterRing)
)

func bcastByNodes(name string, part Algorithm) Algorithm {
	return byNodes(KindBcast, name, part, func(p group, a Args) error {
		if a.Nodes.leads(p, a.Root) {
			if err := part.run(a.Nodes.leaders(p, a.Root), Args{Recv: a.Recv, Root: a.Nodes.Node(a.Root)}); err != nil {
				return err
			}
		}
		return part.run(a.Nodes.inside(p), Args{Recv: a.Recv, Root: a.Nodes.leader(p, a.Root)})
	})
}
