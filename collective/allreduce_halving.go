package collective

// allreduceHalving (Rabenseifner): reduce-scatter by recursive halving, then
// allgather. Any operator: see halves for the order. Every element is combined on
// one rank and copied from there, so all ranks get the same bits. Q is the
// largest power of two up to P.
//
//	steps     2 log2 Q, two more if Q < P
//	messages  2 (P-Q) + 2 Q log2 Q
//	bytes     2 (P-1) S
//	memory    S/4, S/2 in place, S in place if Q < P
//
// Rabenseifner 2004; Thakur et al. 2005, section 4.5; MPI 4.1, 6.9.6.
var allreduceHalving = Algorithm{
	Kind: KindAllreduce, Name: "halving",
	Cost: func(s Shape) Cost {
		q := floor2(s.Ranks)
		extra := s.Ranks - q
		return Cost{
			Steps:    2*log2(q) + 2*min(extra, 1),
			Messages: 2*extra + 2*q*log2(q),
			Bytes:    2 * (s.Ranks - 1) * s.Bytes,
		}
	},
	time: func(l lane, n int) float64 { return l.folded(n, n) + l.halves(n) + l.unhalved(n) },
	run: func(p group, a Args) error {
		if p.Size() == 1 {
			move(p, a.Recv, a.Send)
			return nil
		}
		h := halvesOf(p, -1, len(a.Send), a.Op.Size)
		val := newPartial(p, a.Op, a.Send, a.Recv)
		kept, err := h.fold(a.Send, &val)
		if err != nil {
			return err
		}
		if !kept {
			return p.Recv(a.Recv, h.keeper(h.v))
		}
		if err := h.scatter(&val); err != nil {
			return err
		}
		if err := h.allgather(a.Recv); err != nil {
			return err
		}
		if h.rank < 2*h.extra {
			return p.Send(a.Recv, h.rank^1)
		}
		return nil
	},
}
