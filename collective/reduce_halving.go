package collective

// reduceHalving: reduce-scatter by recursive halving, then gather. Any operator:
// see halves for the order. Q is the largest power of two up to P.
//
//	steps     2 log2 Q, one more if Q < P
//	messages  P-Q + Q log2 Q + Q-1
//	bytes     (P-1) S + S log2(Q)/2 when Q divides the elements
//	memory    S on other ranks than the root, S/2 more for what is received
//	          (S when in place and Q < P)
//
// Rabenseifner 2004; Thakur et al. 2005, section 4.4; MPI 4.1, 6.9.1.
var reduceHalving = Algorithm{
	Kind: KindReduce, Name: "halving",
	Cost: func(s Shape) Cost {
		q := floor2(s.Ranks)
		extra := s.Ranks - q
		c := Cost{
			Steps:    2*log2(q) + min(extra, 1),
			Messages: extra + q*log2(q) + q - 1,
			Bytes:    (s.Ranks - 1) * s.Bytes,
		}
		// A number sends what it owns once its bit differs from the root's.
		h := halves{q: q, extra: extra}
		root := h.number(s.Root)
		cut := split{s.Bytes, s.Elem, q}
		for v := range q {
			lo, hi := 0, q
			for mask := 1; mask < q && lo < hi; mask <<= 1 {
				if mid := (lo + hi) / 2; v&mask == 0 {
					hi = mid
				} else {
					lo = mid
				}
				if v>>log2(2*mask) == root>>log2(2*mask) && (v^root)&mask != 0 {
					c.Bytes += cut.len(lo, hi)
				}
			}
		}
		return c
	},
	time: func(l lane, n int) float64 { return l.folded(n, -1) + l.halves(n) + l.unhalved(n) },
	run: func(p group, a Args) error {
		if p.Size() == 1 {
			move(p, a.Recv, a.Send)
			return nil
		}
		h := halvesOf(p, a.Root, len(a.Send), a.Op.Size)
		dst := a.Recv
		if h.rank != a.Root {
			if h.rank != h.keeper(h.v) {
				return p.Send(a.Send, h.keeper(h.v))
			}
			dst = p.Scratch(slotVector, len(a.Send))
		}
		val := newPartial(p, a.Op, a.Send, dst)
		if _, err := h.fold(a.Send, &val); err != nil {
			return err
		}
		if err := h.scatter(&val); err != nil {
			return err
		}
		return h.gather(dst)
	},
}
