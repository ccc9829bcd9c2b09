package collective

// scatterLinear: the root sends every rank its block, up to window of them at
// once. For blocks so long that the root's link is what counts.
//
//	steps     P-1
//	messages  P-1
//	bytes     (P-1) S/P
//	memory    none
//
// MPI 4.1, 6.6.
var scatterLinear = Algorithm{
	Kind: KindScatter, Name: "linear",
	Cost: func(s Shape) Cost {
		return Cost{Steps: s.Ranks - 1, Messages: s.Ranks - 1, Bytes: s.Bytes / s.Ranks * (s.Ranks - 1)}
	},
	time: func(l lane, n int) float64 { return l.fan(l.each(n)) },
	run:  func(p group, a Args) error { return scatterAll(p, a, parts{size: len(a.Recv)}) },
}

// scattervLinear is scatterLinear with blocks of different lengths, which only
// the root knows; see gathervLinear.
//
//	steps     P-1
//	messages  P-1
//	bytes     S less the root's own block
//	memory    none
//
// MPI 4.1, 6.6.
var scattervLinear = Algorithm{
	Kind: KindScatterv, Name: "linear",
	Cost: func(s Shape) Cost {
		return Cost{Steps: s.Ranks - 1, Messages: s.Ranks - 1, Bytes: s.Bytes - s.Own}
	},
	time: func(l lane, n int) float64 { return l.fan(l.each(n)) },
	run:  func(p group, a Args) error { return scatterAll(p, a, parts{Blocks: a.SendBlocks}) },
}

func scatterAll(p group, a Args, q parts) error {
	rank, size := p.Rank(), p.Size()
	if rank != a.Root {
		return p.Recv(a.Recv, a.Root)
	}
	for lo := 0; lo < size; lo += window {
		for dst := lo; dst < min(lo+window, size); dst++ {
			if dst != rank {
				p.PostSend(q.one(a.Send, dst), dst)
			}
		}
		if err := p.Finish(); err != nil {
			return err
		}
	}
	move(p, a.Recv, q.one(a.Send, rank))
	return nil
}
