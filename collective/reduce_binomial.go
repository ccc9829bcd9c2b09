package collective

// reduceBinomial: vectors go up the tree and are combined where two heads meet.
// Any operator, any root: the operands are in rank order, and their association
// is the same for every root.
//
//	steps     ceil(log2 P)
//	messages  P-1
//	bytes     (P-1) S
//	memory    2 S on ranks that are parents
//
// Thakur et al. 2005, section 4.4; MPI 4.1, 6.9.1.
var reduceBinomial = Algorithm{
	Kind: KindReduce, Name: "binomial",
	Cost: func(s Shape) Cost {
		return Cost{Steps: log2(s.Ranks), Messages: s.Ranks - 1, Bytes: (s.Ranks - 1) * s.Bytes}
	},
	time: func(l lane, n int) float64 { return l.down(n) + times(log2(l.ranks), l.reduce(n)) },
	run: func(p group, a Args) error {
		t := treeOf(p, a.Root)
		top, up := t.top()
		n := len(a.Send)
		dst := a.Recv
		if t.rank != t.root {
			if up.hi-up.lo == 1 {
				return p.Send(a.Send, up.peer)
			}
			dst = p.Scratch(slotVector, n)
		}
		v := newPartial(p, a.Op, a.Send, dst)
		for mask := 1; mask < top; mask <<= 1 {
			if m, ok := t.at(mask); ok {
				if err := p.Recv(v.room(0, n), m.peer); err != nil {
					return err
				}
				v.merge(0, n, m.peer > t.rank)
			}
		}
		if t.rank != t.root {
			return p.Send(v.val, up.peer)
		}
		move(p, dst, v.val) // alone
		return nil
	},
}
