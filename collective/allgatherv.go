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
	run: func(p Peer, a Args) error {
		rank, size := p.Rank(), p.Size()
		q := parts{Blocks: a.RecvBlocks}
		total := 0
		for i := range size {
			total += q.len(i)
		}
		all := p.Scratch(slotVector, total)
		move(p, all[:len(a.Send)], a.Send)
		bytes := len(a.Send) // of the blocks that are here
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
			block := q.one(a.Recv, (rank+i)%size)
			move(p, block, all[:len(block)])
			all = all[len(block):]
		}
		return nil
	},
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
	run: func(p Peer, a Args) error {
		rank, size := p.Rank(), p.Size()
		q := parts{Blocks: a.RecvBlocks}
		move(p, q.one(a.Recv, rank), a.Send)
		next, prev := (rank+1)%size, (rank-1+size)%size
		for k := range size - 1 {
			give, take := (rank-k+size)%size, (prev-k+size)%size
			if err := p.Sendrecv(q.one(a.Recv, give), next, q.one(a.Recv, take), prev); err != nil {
				return err
			}
		}
		return nil
	},
}
