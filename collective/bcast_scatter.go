package collective

// Two broadcasts of long vectors: scatter the blocks down the tree, then gather
// them on all ranks. Both gathers leave out what the receiver was handed by the
// scatter, so every rank receives every byte once and the root receives
// nothing: the bytes are the fewest possible.
//
// Barnett et al.: Interprocessor collective communication library (InterCom),
// 1994; Thakur et al. 2005, section 4.3; the saving: Zhou et al.: A
// bandwidth-saving optimization for MPI broadcast collective operation, 2015.

// bcastScatterRing: block i starts at rank i and travels around the ring. In
// step k rank r passes block r-k to rank r+1.
//
//	steps     ceil(log2 P) + P-1
//	messages  P(P-1) + P-1 - (blocks that the scatter hands out)
//	          = P(P-1) + P-1 - P log2(P)/2 for P a power of two
//	bytes     (P-1) S
var bcastScatterRing = Algorithm{
	Kind: KindBcast, Name: "scatter-ring",
	Cost: func(s Shape) Cost {
		c := Cost{Steps: log2(s.Ranks) + s.Ranks - 1, Messages: s.Ranks - 1, Bytes: (s.Ranks - 1) * s.Bytes}
		for r := range s.Ranks {
			lo, hi := span(r, s.Root, s.Ranks)
			c.Messages += s.Ranks - (hi - lo)
		}
		return c
	},
	time: func(l lane, n int) float64 { return l.grown(l.each(n)) + l.around(l.each(n)) },
	run: func(p group, a Args) error {
		if err := bcastScatter(p, a); err != nil {
			return err
		}
		rank, size := p.Rank(), p.Size()
		s := bcastSplit(len(a.Recv), size)
		next, prev := (rank+1)%size, (rank-1+size)%size
		lo, hi := span(rank, a.Root, size)
		nextLo, nextHi := span(next, a.Root, size)
		for k := range size - 1 {
			give := (rank - k + size) % size
			take := (prev - k + size) % size
			gives := give < nextLo || give >= nextHi
			takes := take < lo || take >= hi
			if err := exchange(p, gives, s.of(a.Recv, give, give+1), next, takes, s.of(a.Recv, take, take+1), prev); err != nil {
				return err
			}
		}
		return nil
	},
}

// bcastScatterDoubling: groups of 1, 2, 4 ... ranks exchange all their blocks
// with the neighbouring group, each rank with its counterpart.
//
//	steps     2 log2 P
//	messages  P log2 P
//	bytes     (P-1) S
var bcastScatterDoubling = Algorithm{
	Kind: KindBcast, Name: "scatter-doubling", NeedsPowerOfTwo: true,
	Cost: func(s Shape) Cost {
		c := Cost{Steps: 2 * log2(s.Ranks), Messages: s.Ranks - 1, Bytes: (s.Ranks - 1) * s.Bytes}
		for r := range s.Ranks {
			lo, hi := span(r, s.Root, s.Ranks)
			c.Messages += log2(s.Ranks) - log2(hi-lo)
		}
		return c
	},
	time: func(l lane, n int) float64 { return l.grown(l.each(n)) + l.collected(l.each(n)) },
	run: func(p group, a Args) error {
		if err := bcastScatter(p, a); err != nil {
			return err
		}
		rank, size := p.Rank(), p.Size()
		s := bcastSplit(len(a.Recv), size)
		lo, hi := span(rank, a.Root, size)
		for mask := 1; mask < size; mask <<= 1 {
			peer := rank ^ mask
			peerLo, peerHi := span(peer, a.Root, size)
			give, take := rank&^(mask-1), peer&^(mask-1)
			gives := mask >= peerHi-peerLo
			takes := mask >= hi-lo
			if err := exchange(p, gives, s.of(a.Recv, give, give+mask), peer, takes, s.of(a.Recv, take, take+mask), peer); err != nil {
				return err
			}
		}
		return nil
	},
}

// bcastSplit cuts at multiples of a cache line.
func bcastSplit(bytes, size int) split { return split{bytes, 64, size} }

// bcastScatter hands every rank the blocks of the ranks it stands for, each in
// its final place in the buffer.
//
//	steps     ceil(log2 P)
//	messages  P-1
//	bytes     S log2(P)/2 for P a power of two that divides S
func bcastScatter(p group, a Args) error {
	t := treeOf(p, a.Root)
	s := bcastSplit(len(a.Recv), t.size)
	mask, up := t.top()
	if t.rank != t.root {
		if err := p.Recv(s.of(a.Recv, up.lo, up.hi), up.peer); err != nil {
			return err
		}
	}
	for mask >>= 1; mask > 0; mask >>= 1 {
		if m, ok := t.at(mask); ok {
			if err := p.Send(s.of(a.Recv, m.lo, m.hi), m.peer); err != nil {
				return err
			}
		}
	}
	return nil
}

// exchange sends if gives, and receives if takes.
func exchange(p group, gives bool, send []byte, dst int, takes bool, recv []byte, src int) error {
	switch {
	case gives && takes:
		return p.Sendrecv(send, dst, recv, src)
	case gives:
		return p.Send(send, dst)
	case takes:
		return p.Recv(recv, src)
	}
	return nil
}
