package collective

// bcastBinomial: the vector goes down the tree, to the largest half first.
//
//	steps     ceil(log2 P)
//	messages  P-1
//	bytes     (P-1) S
//
// Thakur, Rabenseifner, Gropp: Optimization of Collective Communication
// Operations in MPICH, 2005, section 4.3.
var bcastBinomial = Algorithm{
	Kind: KindBcast, Name: "binomial",
	Cost: func(s Shape) Cost {
		return Cost{Steps: log2(s.Ranks), Messages: s.Ranks - 1, Bytes: (s.Ranks - 1) * s.Bytes}
	},
	time: func(l lane, n int) float64 { return l.down(n) },
	run: func(p group, a Args) error {
		t := treeOf(p, a.Root)
		mask, up := t.top()
		if t.rank != t.root {
			if err := p.Recv(a.Recv, up.peer); err != nil {
				return err
			}
		}
		for mask >>= 1; mask > 0; mask >>= 1 {
			if m, ok := t.at(mask); ok {
				if err := p.Send(a.Recv, m.peer); err != nil {
					return err
				}
			}
		}
		return nil
	},
}
