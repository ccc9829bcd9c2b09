package collective

// scatterBinomial: blocks go down the tree, to the largest half first. A rank
// is handed the blocks of all ranks it stands for, which start with its own.
//
//	steps     ceil(log2 P)
//	messages  P-1
//	bytes     those of gather, see there
//	memory    at most S/2 on other ranks than the root
//
// Thakur et al. 2005, section 4.3 (as part of broadcast); MPI 4.1, 6.6.
var scatterBinomial = Algorithm{
	Kind: KindScatter, Name: "binomial",
	Cost: func(s Shape) Cost {
		return Cost{Steps: log2(s.Ranks), Messages: s.Ranks - 1, Bytes: treeBytes(s)}
	},
	time: func(l lane, n int) float64 { return l.grown(l.each(n)) },
	run: func(p group, a Args) error {
		t := treeOf(p, a.Root)
		mask, up := t.top()
		b := len(a.Recv)
		all := a.Send
		first := 0 // the rank whose block is the first in all
		switch {
		case t.rank == t.root:
		case up.hi-up.lo == 1:
			return p.Recv(a.Recv, up.peer)
		default:
			first = up.lo
			all = p.Scratch(slotVector, (up.hi-up.lo)*b)
			if err := p.Recv(all, up.peer); err != nil {
				return err
			}
		}
		for mask >>= 1; mask > 0; mask >>= 1 {
			if m, ok := t.at(mask); ok {
				if err := p.Send(all[(m.lo-first)*b:(m.hi-first)*b], m.peer); err != nil {
					return err
				}
			}
		}
		move(p, a.Recv, all[(t.rank-first)*b:][:b])
		return nil
	},
}
