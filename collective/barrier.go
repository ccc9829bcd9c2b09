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
	time: func(l lane, n int) float64 { return l.collected(0) },
	run: func(p group, _ Args) error {
		rank, size := p.Rank(), p.Size()
		for dist := 1; dist < size; dist <<= 1 {
			if err := p.Sendrecv(nil, (rank+dist)%size, nil, (rank-dist+size)%size); err != nil {
				return err
			}
		}
		return nil
	},
}

// barrierCentral: all tell rank 0 that they have arrived, and rank 0 tells all.
// Linear in the ranks, but a rank waits once and not in every step, which is
// what counts when more ranks than cores take turns: each wait that does not
// end at once costs a change of processes.
//
//	steps     2 (P-1)
//	messages  2 (P-1)
//	bytes     0
var barrierCentral = Algorithm{
	Kind: KindBarrier, Name: "central",
	Cost: func(s Shape) Cost {
		return Cost{Steps: 2 * (s.Ranks - 1), Messages: 2 * (s.Ranks - 1)}
	},
	time: func(l lane, n int) float64 { return 2 * l.fan(0) },
	run: func(p group, _ Args) error {
		if p.Rank() > 0 {
			if err := p.Send(nil, 0); err != nil {
				return err
			}
			return p.Recv(nil, 0)
		}
		for src := 1; src < p.Size(); src++ {
			if err := p.Recv(nil, src); err != nil {
				return err
			}
		}
		for dst := 1; dst < p.Size(); dst++ {
			if err := p.Send(nil, dst); err != nil {
				return err
			}
		}
		return nil
	},
}
