package collective

// gatherBinomial: blocks go up the tree. Every rank but the root collects the
// blocks of the ranks it stands for, which start with its own, and passes them
// on in one message; the root receives each message in its final place.
//
//	steps     ceil(log2 P)
//	messages  P-1
//	bytes     S log2(P)/2 for P a power of two, less than S ceil(log2 P)/2
//	          rounded up to whole blocks otherwise; see treeBytes
//	memory    at most S/2 on other ranks than the root
//
// Thakur et al. 2005, section 4.1 (as part of allgather); MPI 4.1, 6.5.
var gatherBinomial = Algorithm{
	Kind: KindGather, Name: "binomial",
	Cost: func(s Shape) Cost {
		return Cost{Steps: log2(s.Ranks), Messages: s.Ranks - 1, Bytes: treeBytes(s)}
	},
	time: func(l lane, n int) float64 { return l.grown(l.each(n)) },
	run: func(p group, a Args) error {
		t := treeOf(p, a.Root)
		top, up := t.top()
		b := len(a.Send)
		all := a.Recv
		first := 0 // the rank whose block is the first in all
		switch {
		case t.rank == t.root:
			move(p, all[t.rank*b:][:b], a.Send)
		case up.hi-up.lo == 1:
			return p.Send(a.Send, up.peer)
		default:
			first = up.lo
			all = p.Scratch(slotVector, (up.hi-up.lo)*b)
			move(p, all[:b], a.Send)
		}
		for mask := 1; mask < top; mask <<= 1 {
			if m, ok := t.at(mask); ok {
				if err := p.Recv(all[(m.lo-first)*b:(m.hi-first)*b], m.peer); err != nil {
					return err
				}
			}
		}
		if t.rank == t.root {
			return nil
		}
		return p.Send(all, up.peer)
	},
}

// treeBytes returns the bytes on the wire when every rank but the root sends or
// is sent the blocks of all ranks it stands for.
func treeBytes(s Shape) int {
	blocks := 0
	for r := range s.Ranks {
		if r != s.Root {
			lo, hi := span(r, s.Root, s.Ranks)
			blocks += hi - lo
		}
	}
	return blocks * (s.Bytes / s.Ranks)
}
