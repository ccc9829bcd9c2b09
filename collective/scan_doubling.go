package collective

// The prefix reductions by doubling distances: after step k a rank has combined the
// 2^k ranks up to and with itself, and hands that to the rank 2^k above it. What
// comes is always what lies just below: any operator, in rank order.
//
//	steps     ceil(log2 P)
//	messages  P-1 + P-2 + P-4 + ...
//	bytes     S for each message
//
// Hillis, Steele: Data parallel algorithms, 1986; MPI 4.1, 6.11.

// scanDoubling has a memory of S.
var scanDoubling = Algorithm{
	Kind: KindScan, Name: "doubling", Cost: scanDoublingCost,
	time: func(l lane, n int) float64 { return l.copy(n) + l.prefixes(n, 1) },
	run: func(p group, a Args) error {
		move(p, a.Recv, a.Send)
		var tmp []byte
		return doubling(p, func(dst, src int) error {
			if src >= 0 && tmp == nil {
				tmp = p.Scratch(slotInput, len(a.Send))
			}
			if err := exchange(p, dst >= 0, a.Recv, dst, src >= 0, tmp, src); err != nil {
				return err
			}
			if src >= 0 {
				a.Op.Right(a.Recv, tmp)
			}
			return nil
		})
	},
}

// exscanDoubling has a memory of 2 S: the value that is handed on holds the
// rank's own operand, the result does not.
var exscanDoubling = Algorithm{
	Kind: KindExscan, Name: "doubling", Cost: scanDoublingCost,
	time: func(l lane, n int) float64 { return l.copy(n) + l.prefixes(n, 2) },
	run: func(p group, a Args) error {
		if p.Size() == 1 {
			return nil
		}
		n := len(a.Send)
		val, tmp := p.Scratch(slotVector, n), p.Scratch(slotInput, n)
		move(p, val, a.Send)
		first := true
		return doubling(p, func(dst, src int) error {
			if err := exchange(p, dst >= 0, val, dst, src >= 0, tmp, src); err != nil {
				return err
			}
			if src < 0 {
				return nil
			}
			if first {
				move(p, a.Recv, tmp)
				first = false
			} else {
				a.Op.Right(a.Recv, tmp)
			}
			a.Op.Right(val, tmp)
			return nil
		})
	},
}

// doubling calls step for each distance 1, 2, 4 ... with the rank that far above
// and below; -1 where there is none.
func doubling(p group, step func(dst, src int) error) error {
	rank, size := p.Rank(), p.Size()
	for dist := 1; dist < size; dist <<= 1 {
		dst, src := rank+dist, rank-dist
		if dst >= size {
			dst = -1
		}
		if err := step(dst, max(src, -1)); err != nil {
			return err
		}
	}
	return nil
}

func scanDoublingCost(s Shape) Cost {
	c := Cost{Steps: log2(s.Ranks)}
	for dist := 1; dist < s.Ranks; dist <<= 1 {
		c.Messages += s.Ranks - dist
	}
	c.Bytes = c.Messages * s.Bytes
	return c
}
