package collective

// Two reductions by nodes: each node to its leader, then the leaders to the root, both
// by the same algorithm.
//
// reduceLeaders is for short vectors: both are binomial.
//
//	steps     ceil(log2 q) + ceil(log2 N)
//	messages  P-1
//	bytes     (P-1) S, (N-1) S of them between nodes
//	memory    2 S, S more on leaders
//
// reduceLeadersHalving is for long ones: both are reduceHalving.
//
//	steps     those of the parts
//	messages  those of the parts
//	bytes     (P-1) S and what is gathered, see reduceHalving; (N-1) S and what is
//	          gathered from the leaders are between nodes
//	memory    2 S, S more on leaders
var (
	reduceLeaders        = reduceByNodes("leaders", reduceBinomial)
	reduceLeadersHalving = reduceByNodes("leaders-halving", reduceHalving)
)

func reduceByNodes(name string, part Algorithm) Algorithm {
	return byNodes(KindReduce, name, part, func(p group, a Args) error {
		node := a.Nodes.inside(p)
		val := a.Send
		if node.Size() > 1 {
			leads := a.Nodes.leads(p, a.Root)
			switch {
			case p.me == a.Root:
				val = a.Recv
			case leads:
				val = p.Scratch(slotNode, len(a.Send))
			}
			if leads {
				p.Scratch(slotInput, len(a.Send)) // as much as the second part may want
			}
			if err := part.run(node, Args{Send: a.Send, Recv: val, Op: a.Op, Root: a.Nodes.leader(p, a.Root)}); err != nil || !leads {
				return err
			}
		}
		return part.run(a.Nodes.leaders(p, a.Root), Args{Send: val, Recv: a.Recv, Op: a.Op, Root: a.Nodes.Node(a.Root)})
	})
}
