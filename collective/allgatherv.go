package collective

// allgathervBruck: in step k every rank hands the first 2^k blocks that it has,
// counted from its own, to the rank 2^k below it, as in allgatherBruck, and sets
// them in their places at the end. All ranks know all lengths. Any P.
//
//	steps     ceil(log2 P)
//	messages  P ceil(log2 P)
//	bytes     (P-1) S
//	memory    S
//
// Bruck et al.: Efficient algorithms for all-to-all communications in multiport
// message-passing systems, 1997; MPI 4.1, 6.7.
var allgathervBruck = Algorithm{
	Kind: KindAllgatherv, Name: "bruck",
	Cost: allgatherShortCost,
	time: func(l lane, n int) float64 { return l.collected(l.each(n)) + l.copy(n) },
	run: func(p group, a Args) error {
		return bruck(p, parts{Blocks: a.RecvBlocks}, a.Send, a.Recv)
	},
}

// bruck gives all ranks all blocks, of which a rank has its own.
func bruck(p group, q parts, block, recv []byte) error {
	rank, size := p.Rank(), p.Size()
	total := 0
	for i := range size {
		total += q.len(i)
	}
	all := p.Scratch(slotVector, total)
	move(p, all[:len(block)], block)
	bytes := len(block) // of the blocks that are here
	for have := 1; have < size; have <<= 1 {
		n := min(have, size-have)
		give, take := bytes, 0
		if n < have {
			give = 0
			for i := range n {
				give += q.len((rank + i) % size)
			}
		}
		for i := have; i < have+n; i++ {
			take += q.len((rank + i) % size)
		}
		if err := p.Sendrecv(all[:give], (rank-have+size)%size, all[bytes:bytes+take], (rank+have)%size); err != nil {
			return err
		}
		bytes += take
	}
	for i := range size {
		dst := q.one(recv, (rank+i)%size)
		move(p, dst, all[:len(dst)])
		all = all[len(dst):]
	}
	return nil
}

// allgathervRing: block i starts at rank i and travels around the ring.
//
//	steps     P-1
//	messages  P (P-1)
//	bytes     (P-1) S
//	memory    none
//
// Thakur et al. 2005, section 4.1; MPI 4.1, 6.7.
var allgathervRing = Algorithm{
	Kind: KindAllgatherv, Name: "ring",
	Cost: allgatherRingCost,
	time: func(l lane, n int) float64 { return l.around(l.each(n)) },
	run: func(p group, a Args) error {
		q := parts{Blocks: a.RecvBlocks}
		move(p, q.one(a.Recv, p.Rank()), a.Send)
		return ring(p, q, a.Recv)
	},
}
