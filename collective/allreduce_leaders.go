package collective

// Two allreduces by nodes: each node reduces to its leader, the leaders do an allreduce,
// and each hands the result to its node. All ranks get the same bits, as the leaders do.
//
// allreduceLeaders is for short vectors: reduceBinomial, allreduceDoubling,
// bcastBinomial. Q is the largest power of two up to N.
//
//	steps     2 ceil(log2 q) + log2 Q, two more if Q < N
//	messages  2 (P-N) + 2 (N-Q) + Q log2 Q
//	bytes     S a message; those of the leaders are between nodes
//	memory    2 S
//
// allreduceLeadersHalving is for long ones: reduceHalving, allreduceHalving,
// bcastScatterRing. Between nodes are 2 (N-1) S, the fewest that there can be.
//
//	steps     those of the parts
//	messages  those of the parts
//	bytes     those of the parts
//	memory    S
var (
	allreduceLeaders        = allreduceByNodes("leaders", reduceBinomial, allreduceDoubling, bcastBinomial)
	allreduceLeadersHalving = allreduceByNodes("leaders-halving", reduceHalving, allreduceHalving, bcastScatterRing)
)

func allreduceByNodes(name string, up, across, down Algorithm) Algorithm {
	run := func(p group, a Args) error {
		val := a.Send
		if a.Nodes.inside(p).Size() > 1 {
			val = a.Recv
			if a.Nodes.leads(p, 0) {
				p.Scratch(slotInput, len(a.Send)) // as much as the second part may want
			}
			if err := a.Nodes.share(p, Up, &up, Args{Send: a.Send, Recv: val, Op: a.Op}); err != nil {
				return err
			}
		}
		if a.Nodes.leads(p, 0) {
			if err := across.run(a.Nodes.leaders(p, 0), Args{Send: val, Recv: a.Recv, Op: a.Op}); err != nil {
				return err
			}
		}
		return a.Nodes.share(p, Down, &down, Args{Recv: a.Recv})
	}
	return Algorithm{
		Kind: KindAllreduce, Name: name, NodeAware: true,
		Cost: func(s Shape) Cost {
			s.Root = 0 // there is none
			return nodesCost(s, run, inPhases(s.Nodes, func(node Shape) Cost { return up.Cost(node).and(down.Cost(node)) }), across.Cost(leadersShape(s)))
		},
		time: func(l lane, n int) float64 {
			return l.inside(&up, n) + across.time(l.leaders(), n) + l.inside(&down, n)
		},
		run: run,
	}
}
