package collective

// allgatherRing: block i starts at rank i and travels around the ring.
//
//	steps     P-1
//	messages  P (P-1)
//	bytes     (P-1) S
//
// Thakur et al. 2005, section 4.1; MPI 4.1, 6.7.
var allgatherRing = Algorithm{
	Kind: KindAllgather, Name: "ring",
	Cost: allgatherRingCost,
	time: func(l lane, n int) float64 { return l.around(l.each(n)) },
	run: func(p group, a Args) error {
		b := len(a.Send)
		move(p, a.Recv[p.Rank()*b:][:b], a.Send)
		return ring(p, parts{size: b}, a.Recv)
	},
}

// ring gives all ranks all blocks of a vector of which rank i has block i: in
// step k rank r passes block r-k to rank r+1. P-1 steps, P (P-1) messages,
// (P-1) S bytes.
func ring(p group, q parts, vector []byte) error {
	rank, size := p.Rank(), p.Size()
	next, prev := (rank+1)%size, (rank-1+size)%size
	for k := range size - 1 {
		give := (rank - k + size) % size
		take := (prev - k + size) % size
		if err := p.Sendrecv(q.one(vector, give), next, q.one(vector, take), prev); err != nil {
			return err
		}
	}
	return nil
}

func allgatherRingCost(s Shape) Cost {
	return Cost{Steps: s.Ranks - 1, Messages: s.Ranks * (s.Ranks - 1), Bytes: (s.Ranks - 1) * s.Bytes}
}
