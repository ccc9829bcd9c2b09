package collective

// allreduceSlices: the ranks of each node reduce-scatter the vector in pairs, so that
// each has one slice of q; the ranks that have the same slice do an allreduce of it by
// halving; the slices travel around the ring of each node. For long vectors: all ranks of
// a node have a part in the combining and in what goes between nodes. All nodes have q
// ranks. Any operator, if ranks are numbered node by node. Q is the largest power
// of two up to N.
//
//	steps     2 (q-1) + 2 log2 Q, two more if Q < N
//	messages  2 P (q-1) + q (2 (N-Q) + 2 Q log2 Q)
//	bytes     2 (P-1) S, 2 (N-1) S of them between nodes
//	memory    3 slices, one more in place
//
// Bayatpour et al.: Scalable reduction collectives with data partitioning-based
// multi-leader design, 2017.
var allreduceSlices = Algorithm{
	Kind: KindAllreduce, Name: "slices", NodeAware: true, NeedsEqualNodes: true,
	Cost: func(s Shape) Cost {
		n := s.Nodes.Nodes()
		q := s.Ranks / n
		column := Shape{Ranks: n, Bytes: s.Bytes, Elem: s.Elem}
		each := allreduceHalving.Cost(column)
		return Cost{
			Steps:    2*(q-1) + each.Steps,
			Messages: 2*s.Ranks*(q-1) + q*each.Messages,
			Bytes:    2 * (s.Ranks - 1) * s.Bytes,
			Between:  2 * (n - 1) * s.Bytes,
		}
	},
	time: func(l lane, n int) float64 {
		node := l.node()
		b := node.each(n)
		return 2*node.around(b) + times(node.ranks-1, node.reduce(b)) + allreduceHalving.time(l.columns(node.ranks), b)
	},
	run: func(p group, a Args) error {
		node, column := a.Nodes.inside(p), a.Nodes.column(p)
		if node.Size() == 1 {
			return allreduceHalving.run(column, a)
		}
		cut := split{len(a.Send), a.Op.Size, node.Size()}
		slice := cut.of(a.Recv, node.me, node.me+1)
		val := slice
		if same(a.Send, a.Recv) {
			val = p.Scratch(slotNode, len(slice))
		}
		if err := reducePairwise(node, Args{Send: a.Send, Recv: val, Op: a.Op}, parts{cut: cut}); err != nil {
			return err
		}
		if err := allreduceHalving.run(column, Args{Send: val, Recv: slice, Op: a.Op}); err != nil {
			return err
		}
		return ring(node, parts{cut: cut}, a.Recv)
	},
}
