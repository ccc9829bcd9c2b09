package collective

// The prefix reductions along a chain: segments go from rank 0 up, and every rank
// combines its own with them and passes them on. Any operator, in rank order:
// ((a0 op a1) op a2) op ... For vectors so long that filling the chain does not
// matter.
//
//	steps     P-1 + K-1, K segments (see segments)
//	messages  (P-1) K
//	bytes     (P-1) S
//
// MPI 4.1, 6.11.

// scanChain has a memory of a segment, in place only.
var scanChain = Algorithm{
	Kind: KindScan, Name: "chain", Cost: scanChainCost,
	time: func(l lane, n int) float64 {
		s := chainSegments(n, 8, l.ranks)
		return l.copy(n) + l.piped(s, l.reduce(s.longest()))
	},
	run: func(p group, a Args) error {
		s := chainSegments(len(a.Send), a.Op.Size, p.Size())
		rank := p.Rank()
		inPlace := same(a.Send, a.Recv)
		if rank == 0 {
			move(p, a.Recv, a.Send)
		}
		var tmp []byte
		if inPlace && rank > 0 {
			tmp = p.Scratch(slotInput, s.longest())
		}
		return chain(p, s, a.Recv, func(i int) []byte {
			if inPlace {
				return tmp[:s.len(i, i+1)]
			}
			return s.of(a.Recv, i, i+1)
		}, func(i int, in []byte) {
			if val := s.of(a.Recv, i, i+1); inPlace {
				a.Op.Right(val, in)
			} else {
				a.Op.Left(val, s.of(a.Send, i, i+1))
			}
		})
	},
}

// exscanChain has a memory of S on all ranks but the first and the last, and a
// segment more in place.
var exscanChain = Algorithm{
	Kind: KindExscan, Name: "chain", Cost: scanChainCost,
	time: func(l lane, n int) float64 {
		s := chainSegments(n, 8, l.ranks)
		if l.ranks == 2 {
			return l.piped(s, 0)
		}
		return l.piped(s, l.reduce(s.longest()))
	},
	run: func(p group, a Args) error {
		s := chainSegments(len(a.Send), a.Op.Size, p.Size())
		rank, last := p.Rank(), p.Size()-1
		inPlace := same(a.Send, a.Recv)
		var val, tmp []byte // the segments to pass on; one that was received
		switch {
		case rank == 0:
			val = a.Send
		case rank < last:
			val = p.Scratch(slotVector, len(a.Send))
		}
		if inPlace && rank > 0 {
			tmp = p.Scratch(slotInput, s.longest())
		}
		return chain(p, s, val, func(i int) []byte {
			if inPlace {
				return tmp[:s.len(i, i+1)]
			}
			return s.of(a.Recv, i, i+1)
		}, func(i int, in []byte) {
			if rank < last {
				v := s.of(val, i, i+1)
				move(p, v, in)
				a.Op.Left(v, s.of(a.Send, i, i+1))
			}
			move(p, s.of(a.Recv, i, i+1), in)
		})
	},
}

// chain passes segments up the ranks: each is received from the rank below into
// room, worked on, and sent from val while the next one is received.
func chain(p group, s split, val []byte, room func(i int) []byte, work func(i int, in []byte)) error {
	rank, size := p.Rank(), p.Size()
	for i := range s.parts + 1 {
		gives, takes := rank < size-1 && i > 0, rank > 0 && i < s.parts
		var out, in []byte
		if gives {
			out = s.of(val, i-1, i)
		}
		if takes {
			in = room(i)
		}
		if err := exchange(p, gives, out, rank+1, takes, in, rank-1); err != nil {
			return err
		}
		if takes {
			work(i, in)
		}
	}
	return nil
}

func scanChainCost(s Shape) Cost {
	if s.Ranks == 1 {
		return Cost{}
	}
	k := chainSegments(s.Bytes, s.Elem, s.Ranks).parts
	return Cost{Steps: s.Ranks - 1 + k - 1, Messages: (s.Ranks - 1) * k, Bytes: (s.Ranks - 1) * s.Bytes}
}
