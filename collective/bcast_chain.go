package collective

// bcastChain: segments go from the root through all ranks, in the order root,
// root+1 ... root-1. For vectors so long that filling the chain does not matter:
// every rank receives and sends each byte once.
//
//	steps     P-1 + K-1, K segments (see segments)
//	messages  (P-1) K
//	bytes     (P-1) S
//	memory    none
//
// Pjesivac-Grbovic et al.: Performance analysis of MPI collective operations,
// 2007; MPI 4.1, 6.4.
var bcastChain = Algorithm{
	Kind: KindBcast, Name: "chain",
	Cost: func(s Shape) Cost {
		if s.Ranks == 1 {
			return Cost{}
		}
		k := chainSegments(s.Bytes, 64, s.Ranks).parts
		return Cost{Steps: s.Ranks - 1 + k - 1, Messages: (s.Ranks - 1) * k, Bytes: (s.Ranks - 1) * s.Bytes}
	},
	time: func(l lane, n int) float64 { return l.piped(chainSegments(n, 64, l.ranks), 0) },
	run: func(p group, a Args) error {
		rank, size := p.Rank(), p.Size()
		s := chainSegments(len(a.Recv), 64, size)
		prev, next := (rank-1+size)%size, (rank+1)%size
		if rank == a.Root {
			prev = -1
		}
		if next == a.Root {
			next = -1
		}
		for i := range s.parts + 1 {
			gives, takes := next >= 0 && i > 0, prev >= 0 && i < s.parts
			var out, in []byte
			if gives {
				out = s.of(a.Recv, i-1, i)
			}
			if takes {
				in = s.of(a.Recv, i, i+1)
			}
			if err := exchange(p, gives, out, next, takes, in, prev); err != nil {
				return err
			}
		}
		return nil
	},
}
