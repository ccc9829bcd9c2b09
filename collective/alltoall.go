package collective

// The exchanges between all pairs, in steps k = 1 ... P-1: rank r sends to rank
// r+k and receives from rank r-k. An empty block is a message too, so that ranks
// which disagree about its length find out.
//
//	steps     P-1
//	messages  P (P-1)
//	bytes     (P-1) S; of the v forms all blocks but those to the rank itself
//	memory    none; S in place
//
// MPI 4.1, 6.8.

// alltoallPosted does up to window steps at once: a slow rank holds up nobody
// who does not need its block yet.
var alltoallPosted = Algorithm{
	Kind: KindAlltoall, Name: "posted", Cost: alltoallCost,
	time: func(l lane, n int) float64 { return l.posted(l.each(n)) },
	run: func(p group, a Args) error {
		q := parts{size: len(a.Send) / p.Size()}
		return pairs(p, a, q, q, window)
	},
}

// alltoallPairwise does one step after the other, so that every rank receives
// from one rank at a time and long messages do not share a link.
//
// Thakur et al. 2005, section 4.2.
var alltoallPairwise = Algorithm{
	Kind: KindAlltoall, Name: "pairwise", Cost: alltoallCost,
	time: func(l lane, n int) float64 { return l.pairs(l.each(n)) },
	run: func(p group, a Args) error {
		q := parts{size: len(a.Send) / p.Size()}
		return pairs(p, a, q, q, 1)
	},
}

// alltoallvPosted is alltoallPosted with blocks of different lengths.
var alltoallvPosted = Algorithm{
	Kind: KindAlltoallv, Name: "posted", Cost: alltoallvCost,
	time: func(l lane, n int) float64 { return l.posted(l.each(n)) },
	run: func(p group, a Args) error {
		return pairs(p, a, parts{Blocks: a.SendBlocks}, parts{Blocks: a.RecvBlocks}, window)
	},
}

// alltoallvPairwise is alltoallPairwise with blocks of different lengths.
var alltoallvPairwise = Algorithm{
	Kind: KindAlltoallv, Name: "pairwise", Cost: alltoallvCost,
	time: func(l lane, n int) float64 { return l.pairs(l.each(n)) },
	run: func(p group, a Args) error {
		return pairs(p, a, parts{Blocks: a.SendBlocks}, parts{Blocks: a.RecvBlocks}, 1)
	},
}

func alltoallCost(s Shape) Cost {
	return Cost{Steps: s.Ranks - 1, Messages: s.Ranks * (s.Ranks - 1), Bytes: (s.Ranks - 1) * s.Bytes}
}

func alltoallvCost(s Shape) Cost {
	return Cost{Steps: s.Ranks - 1, Messages: s.Ranks * (s.Ranks - 1), Bytes: s.Bytes - s.Own}
}

// pairs exchanges with all ranks, at most that many steps at a time.
func pairs(p group, a Args, to, from parts, atOnce int) error {
	rank, size := p.Rank(), p.Size()
	send := a.Send
	if same(a.Send, a.Recv) {
		send = p.Scratch(slotOther, len(a.Send))
		move(p, send, a.Send)
	}
	move(p, from.one(a.Recv, rank), to.one(send, rank))
	for k := 1; k < size; k += atOnce {
		for i := k; i < min(k+atOnce, size); i++ {
			src, dst := (rank-i+size)%size, (rank+i)%size
			p.PostRecv(from.one(a.Recv, src), src)
			p.PostSend(to.one(send, dst), dst)
		}
		if err := p.Finish(); err != nil {
			return err
		}
	}
	return nil
}
