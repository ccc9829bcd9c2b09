package collective

// allgatherBruck: in step k every rank hands the first 2^k blocks that it has,
// counted from its own, to the rank 2^k below it. Blocks are collected in rank
// order from the rank's own on, and turned to their place at the end. Any P.
//
//	steps     ceil(log2 P)
//	messages  P ceil(log2 P)
//	bytes     (P-1) S
//	memory    S
//
// Bruck et al.: Efficient algorithms for all-to-all communications in multiport
// message-passing systems, 1997; Thakur et al. 2005, section 4.1; MPI 4.1, 6.7.
var allgatherBruck = Algorithm{
	Kind: KindAllgather, Name: "bruck",
	Cost: allgatherShortCost,
	time: func(l lane, n int) float64 { return l.collected(l.each(n)) + l.copy(n) },
	run: func(p group, a Args) error {
		rank, size := p.Rank(), p.Size()
		b := len(a.Send)
		all := p.Scratch(slotVector, size*b)
		move(p, all[:b], a.Send)
		for have := 1; have < size; have <<= 1 {
			n := min(have, size-have)
			err := p.Sendrecv(all[:n*b], (rank-have+size)%size, all[have*b:(have+n)*b], (rank+have)%size)
			if err != nil {
				return err
			}
		}
		head := (size - rank) * b // up to the block of the last rank
		move(p, a.Recv[rank*b:], all[:head])
		move(p, a.Recv[:rank*b], all[head:])
		return nil
	},
}

// allgatherDoubling: groups of 1, 2, 4 ... ranks exchange all their blocks with
// the neighbouring group, each rank with its counterpart. Blocks are received in
// their final place.
//
//	steps     log2 P
//	messages  P log2 P
//	bytes     (P-1) S
//
// Thakur et al. 2005, section 4.1; MPI 4.1, 6.7.
var allgatherDoubling = Algorithm{
	Kind: KindAllgather, Name: "doubling", NeedsPowerOfTwo: true,
	Cost: allgatherShortCost,
	time: func(l lane, n int) float64 { return l.collected(l.each(n)) },
	run: func(p group, a Args) error {
		rank, size := p.Rank(), p.Size()
		b := len(a.Send)
		move(p, a.Recv[rank*b:][:b], a.Send)
		for mask := 1; mask < size; mask <<= 1 {
			peer := rank ^ mask
			give, take := (rank&^(mask-1))*b, (peer&^(mask-1))*b
			if err := p.Sendrecv(a.Recv[give:give+mask*b], peer, a.Recv[take:take+mask*b], peer); err != nil {
				return err
			}
		}
		return nil
	},
}

func allgatherShortCost(s Shape) Cost {
	return Cost{Steps: log2(s.Ranks), Messages: s.Ranks * log2(s.Ranks), Bytes: (s.Ranks - 1) * s.Bytes}
}
