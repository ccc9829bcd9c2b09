package collective

// allreduceDoubling: groups of 1, 2, 4 ... ranks exchange their partial results
// with the neighbouring group, each rank with its counterpart, and all combine
// them. Ranks beyond the largest power of two Q are folded as described at
// halves, so operands stay in rank order: any operator.
//
// An element is combined on every rank, so each must do exactly the same: it
// calls Left with the lower group's value as inout, also on the ranks of the
// higher group, which combine in the buffer that they received. Right may give
// other bits for the same operands, for instance another NaN.
//
//	steps     log2 Q, two more if Q < P
//	messages  2 (P-Q) + Q log2 Q
//	bytes     (2 (P-Q) + Q log2 Q) S
//	memory    S
//
// Thakur et al. 2005, section 4.5; MPI 4.1, 6.9.6.
var allreduceDoubling = Algorithm{
	Kind: KindAllreduce, Name: "doubling",
	Cost: func(s Shape) Cost {
		q := floor2(s.Ranks)
		extra := s.Ranks - q
		messages := 2*extra + q*log2(q)
		return Cost{Steps: log2(q) + 2*min(extra, 1), Messages: messages, Bytes: messages * s.Bytes}
	},
	time: func(l lane, n int) float64 {
		t := l.folded(n, n) + l.copy(n)
		for dist := 1; dist < floor2(l.ranks); dist <<= 1 {
			t += l.exchange(dist, n) + l.reduce(n)
		}
		return t
	},
	run: func(p group, a Args) error {
		h := halvesOf(p, -1, len(a.Send), a.Op.Size)
		paired := h.rank < 2*h.extra
		if keeper := h.keeper(h.v); h.rank != keeper {
			if err := p.Send(a.Send, keeper); err != nil {
				return err
			}
			return p.Recv(a.Recv, keeper)
		}
		move(p, a.Recv, a.Send)
		val, tmp := a.Recv, p.Scratch(slotInput, len(a.Send))
		if paired {
			if err := p.Recv(tmp, h.rank+1); err != nil {
				return err
			}
			a.Op.Left(val, tmp)
		}
		for mask := 1; mask < h.q; mask <<= 1 {
			peer := h.keeper(h.v ^ mask)
			if err := p.Sendrecv(val, peer, tmp, peer); err != nil {
				return err
			}
			if peer > h.rank {
				a.Op.Left(val, tmp)
			} else {
				a.Op.Left(tmp, val)
				val, tmp = tmp, val
			}
		}
		move(p, a.Recv, val)
		if paired {
			return p.Send(a.Recv, h.rank+1)
		}
		return nil
	},
}
