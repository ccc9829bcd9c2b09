package collective

// gatherLinear: every rank sends its block to the root, which receives up to
// window of them at once, each in its final place. For blocks so long that the
// root's link is what counts: no rank passes on what is not its own.
//
//	steps     P-1
//	messages  P-1
//	bytes     (P-1) S/P
//	memory    none
//
// MPI 4.1, 6.5.
var gatherLinear = Algorithm{
	Kind: KindGather, Name: "linear",
	Cost: func(s Shape) Cost {
		return Cost{Steps: s.Ranks - 1, Messages: s.Ranks - 1, Bytes: s.Bytes / s.Ranks * (s.Ranks - 1)}
	},
	time: func(l lane, n int) float64 { return l.fan(l.each(n)) },
	run:  func(p group, a Args) error { return gatherAll(p, a, parts{size: len(a.Send)}) },
}

// gathervLinear is gatherLinear with blocks of different lengths. Only the root
// knows these. In a tree, the ranks between a rank and the root would have to be
// told the lengths first, so the steps of short blocks would double, and what is
// sent would depend on data.
//
//	steps     P-1
//	messages  P-1
//	bytes     S less the root's own block
//	memory    none
//
// MPI 4.1, 6.5.
var gathervLinear = Algorithm{
	Kind: KindGatherv, Name: "linear",
	Cost: func(s Shape) Cost {
		return Cost{Steps: s.Ranks - 1, Messages: s.Ranks - 1, Bytes: s.Bytes - s.Own}
	},
	time: func(l lane, n int) float64 { return l.fan(l.each(n)) },
	run:  func(p group, a Args) error { return gatherAll(p, a, parts{Blocks: a.RecvBlocks}) },
}

func gatherAll(p group, a Args, q parts) error {
	rank, size := p.Rank(), p.Size()
	if rank != a.Root {
		return p.Send(a.Send, a.Root)
	}
	move(p, q.one(a.Recv, rank), a.Send)
	for lo := 0; lo < size; lo += window {
		for src := lo; src < min(lo+window, size); src++ {
			if src != rank {
				p.PostRecv(q.one(a.Recv, src), src)
			}
		}
		if err := p.Finish(); err != nil {
			return err
		}
	}
	return nil
}
