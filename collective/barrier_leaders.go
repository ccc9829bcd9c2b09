package collective

// barrierLeaders: the ranks of each node tell their leader that they have arrived, up a
// binomial tree; the leaders tell each other by dissemination; each tells its node.
//
//	steps     2 ceil(log2 q) + ceil(log2 N)
//	messages  2 (P-N) + N ceil(log2 N)
//	bytes     0
var barrierLeaders = Algorithm{
	Kind: KindBarrier, Name: "leaders", NodeAware: true,
	Cost: func(s Shape) Cost {
		return nodesCost(s, runBarrierLeaders, inPhases(s.Nodes, func(node Shape) Cost {
			return gatherBinomial.Cost(node).and(bcastBinomial.Cost(node))
		}), barrierDissemination.Cost(leadersShape(s)))
	},
	time: func(l lane, n int) float64 {
		return l.inside(&gatherBinomial, 0) + l.leaders().collected(0) + l.inside(&bcastBinomial, 0)
	},
	run: runBarrierLeaders,
}

func runBarrierLeaders(p group, a Args) error {
	if err := a.Nodes.share(p, Up, &gatherBinomial, Args{}); err != nil {
		return err
	}
	if a.Nodes.leads(p, 0) {
		if err := barrierDissemination.run(a.Nodes.leaders(p, 0), Args{}); err != nil {
			return err
		}
	}
	return a.Nodes.share(p, Down, &bcastBinomial, Args{})
}
