package collective

// front says that a call of reduce-scatter is in place: recv is the first bytes
// of send.
func front(send, recv []byte) bool {
	return len(recv) > 0 && len(send) >= len(recv) && &recv[0] == &send[0]
}

// Both forms of reduce-scatter are one: of blocks of one length, and of given
// lengths.
func scatterBlock(a Args) parts  { return parts{size: len(a.Recv)} }
func scatterBlocks(a Args) parts { return parts{Blocks: a.SendBlocks} }

// The pairwise reduce-scatter: in step k rank r sends block r+k to rank r+k and
// receives its own block from rank r-k. The ranks below come in falling order and
// are combined with the rank's own operand; the ranks above come after them, also
// falling, and are combined on their own until the end. So the operands stay in
// rank order: any operator.
//
//	steps     P-1
//	messages  P (P-1)
//	bytes     (P-1) S
//	memory    two blocks, one more in place
//
// Thakur et al. 2005, section 4.3; MPI 4.1, 6.10.
var (
	reduceScatterBlockPairwise = Algorithm{
		Kind: KindReduceScatterBlock, Name: "pairwise", Cost: reduceScatterLinearCost,
		time: reducePairwiseTime,
		run:  func(p group, a Args) error { return reducePairwise(p, a, scatterBlock(a)) },
	}
	reduceScatterPairwise = Algorithm{
		Kind: KindReduceScatter, Name: "pairwise", Cost: reduceScatterLinearCost,
		time: reducePairwiseTime,
		run:  func(p group, a Args) error { return reducePairwise(p, a, scatterBlocks(a)) },
	}
)

func reduceScatterLinearCost(s Shape) Cost {
	return Cost{Steps: s.Ranks - 1, Messages: s.Ranks * (s.Ranks - 1), Bytes: (s.Ranks - 1) * s.Bytes}
}

func reducePairwiseTime(l lane, n int) float64 {
	b := l.each(n)
	return l.pairs(b) + times(l.ranks-1, l.reduce(b))
}

func reducePairwise(p group, a Args, q parts) error {
	rank, size := p.Rank(), p.Size()
	own := q.one(a.Send, rank)
	val := a.Recv // rank 0 up to this rank; on rank 0 those above it
	if size > 1 && front(a.Send, a.Recv) {
		val = p.Scratch(slotVector, len(own))
	}
	var tmp, above []byte
	if size > 2 {
		tmp = p.Scratch(slotInput, len(own))
	}
	switch {
	case rank == 0:
		above = val
	case rank < size-1:
		above = p.Scratch(slotOther, len(own))
	}
	for k := 1; k < size; k++ {
		dst, src := (rank+k)%size, (rank-k+size)%size
		in := tmp
		switch src {
		case rank - 1:
			in = val
		case size - 1:
			in = above
		}
		if err := p.Sendrecv(q.one(a.Send, dst), dst, in, src); err != nil {
			return err
		}
		switch {
		case src == rank-1:
			a.Op.Left(val, own)
		case src < rank:
			a.Op.Right(val, in)
		case src < size-1:
			a.Op.Right(above, in)
		}
	}
	switch {
	case size == 1:
		move(p, a.Recv, own)
		return nil
	case rank == 0:
		a.Op.Right(val, own)
	case rank < size-1:
		a.Op.Left(val, above)
	}
	move(p, a.Recv, val)
	return nil
}

// The ring of reduce-scatter: block i starts at rank i+1 and travels around the
// ring, every rank adds its own operand, until rank i holds the result. The
// operands are combined in the order i+1 ... P-1, 0 ... i, so the operator must
// commute.
//
//	steps     P-1
//	messages  P (P-1)
//	bytes     (P-1) S
//	memory    two blocks
//
// Patarasuk, Yuan 2009; MPI 4.1, 6.10.
var (
	reduceScatterBlockRing = Algorithm{
		Kind: KindReduceScatterBlock, Name: "ring", NeedsCommutative: true, Cost: reduceScatterLinearCost,
		time: reduceRingTime,
		run:  func(p group, a Args) error { return reduceRing(p, a, scatterBlock(a)) },
	}
	reduceScatterRing = Algorithm{
		Kind: KindReduceScatter, Name: "ring", NeedsCommutative: true, Cost: reduceScatterLinearCost,
		time: reduceRingTime,
		run:  func(p group, a Args) error { return reduceRing(p, a, scatterBlocks(a)) },
	}
)

func reduceRingTime(l lane, n int) float64 {
	b := l.each(n)
	return l.around(b) + times(l.ranks-1, l.reduce(b))
}

func reduceRing(p group, a Args, q parts) error {
	rank, size := p.Rank(), p.Size()
	longest := 0
	for i := range size {
		longest = max(longest, q.len(i))
	}
	next, prev := (rank+1)%size, (rank-1+size)%size
	out := q.one(a.Send, prev)
	for k := range size - 1 {
		take := (prev - k - 1 + 2*size) % size
		// Two slots in turn: one holds what is sent, one what comes.
		in := p.Scratch(slotInput+k%2, longest)[:q.len(take)]
		if err := p.Sendrecv(out, next, in, prev); err != nil {
			return err
		}
		a.Op.Left(in, q.one(a.Send, take))
		out = in
	}
	move(p, a.Recv, out)
	return nil
}
