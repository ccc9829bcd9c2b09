package collective

// reduceChain: segments come to the root along two chains, 0 ... root-1 and P-1
// ... root+1, and every rank on the way combines its own with them. Operands stay
// in rank order: any operator. For vectors so long that filling the chains does not
// matter: no rank but the root receives a byte twice.
//
//	steps     P-1 + K-1 if the root is an end, K segments (see segments);
//	          else max(root + 2K - 1, P-1-root + 2K - 2)
//	messages  (P-1) K
//	bytes     (P-1) S
//	memory    a segment; S more on inner ranks of the chains
//
// Pjesivac-Grbovic et al. 2007; MPI 4.1, 6.9.1.
var reduceChain = Algorithm{
	Kind: KindReduce, Name: "chain",
	Cost: func(s Shape) Cost {
		if s.Ranks == 1 {
			return Cost{}
		}
		k := chainSegments(s.Bytes, s.Elem, s.Ranks).parts
		c := Cost{Steps: s.Ranks - 1 + k - 1, Messages: (s.Ranks - 1) * k, Bytes: (s.Ranks - 1) * s.Bytes}
		if below, above := s.Root, s.Ranks-1-s.Root; below > 0 && above > 0 {
			c.Steps = max(below+2*k-1, above+2*k-2)
		}
		return c
	},
	time: func(l lane, n int) float64 {
		s := chainSegments(n, 8, l.ranks)
		return l.piped(s, l.reduce(s.longest()))
	},
	run: func(p group, a Args) error {
		rank, size := p.Rank(), p.Size()
		s := chainSegments(len(a.Send), a.Op.Size, size)
		if rank == a.Root {
			return reduceChainRoot(p, a, s)
		}
		from, to := rank-1, rank+1 // below the root
		if rank > a.Root {
			from, to = rank+1, rank-1
		}
		if from < 0 || from == size {
			for i := range s.parts {
				if err := p.Send(s.of(a.Send, i, i+1), to); err != nil {
					return err
				}
			}
			return nil
		}
		val := p.Scratch(slotVector, len(a.Send))
		for i := range s.parts + 1 {
			var in, out []byte
			if i < s.parts {
				in = s.of(val, i, i+1)
			}
			if i > 0 {
				out = s.of(val, i-1, i)
			}
			if err := exchange(p, i > 0, out, to, i < s.parts, in, from); err != nil {
				return err
			}
			switch {
			case i == s.parts:
			case rank > a.Root:
				a.Op.Right(in, s.of(a.Send, i, i+1))
			default:
				a.Op.Left(in, s.of(a.Send, i, i+1))
			}
		}
		return nil
	},
}

// reduceChainRoot combines what the two chains bring.
func reduceChainRoot(p group, a Args, s split) error {
	rank, size := p.Rank(), p.Size()
	move(p, a.Recv, a.Send)
	if size == 1 {
		return nil
	}
	tmp := p.Scratch(slotInput, s.longest())
	for i := range s.parts {
		val := s.of(a.Recv, i, i+1)
		in := tmp[:len(val)]
		if rank > 0 {
			if err := p.Recv(in, rank-1); err != nil {
				return err
			}
			a.Op.Right(val, in)
		}
		if rank < size-1 {
			if err := p.Recv(in, rank+1); err != nil {
				return err
			}
			a.Op.Left(val, in)
		}
	}
	return nil
}
