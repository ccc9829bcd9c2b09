package collective

// barrierDissemination: in step k every rank tells the rank 2^k above it that
// it and the 2^k-1 ranks below it have arrived.
//
//	steps     ceil(log2 P)
//	messages  P ceil(log2 P)
//	bytes     0
//
// Hensgen, Finkel, Manber: Two algorithms for barrier synchronization, 1988.
var barrierDissemination = Algorithm{
	Kind: KindBarrier, Name: "dissemination",
	Cost: func(s Shape) Cost {
		return Cost{Steps: log2(s.Ranks), Messages: s.Ranks * log2(s.Ranks)}
	},
	run: func(p Peer, _ Args) error {
		rank, size := p.Rank(), p.Size()
		for dist := 1; dist < size; dist <<= 1 {
			if err := p.Sendrecv(nil, (rank+dist)%size, nil, (rank-dist+size)%size); err != nil {
				return err
			}
		}
		return nil
	},
}
