package collective

import "math/bits"

// The reduce-scatter by recursive halving: the exchanges of Rabenseifner's
// reductions (see halves), on a vector whose blocks are put in such an order that
// each rank ends with its own. Ranks beyond the largest power of two Q hand their
// vector to a neighbour, which hands them their result. Operands stay in rank
// order: any operator.
//
//	steps     log2 Q, two more if Q < P
//	messages  2 (P-Q) + Q log2 Q
//	bytes     (P-1) S + the blocks of the ranks that hand over
//	memory    3 S/2, 2 S if Q < P
//
// Thakur et al. 2005, section 4.3; MPI 4.1, 6.10.
var (
	reduceScatterBlockHalving = Algorithm{
		Kind: KindReduceScatterBlock, Name: "halving", Cost: reduceScatterHalvingCost, time: reduceScatterHalvingTime,
		run: func(p group, a Args) error { return reduceHalves(p, a, scatterBlock(a)) },
	}
	reduceScatterHalving = Algorithm{
		Kind: KindReduceScatter, Name: "halving", Cost: reduceScatterHalvingCost, time: reduceScatterHalvingTime,
		run: func(p group, a Args) error { return reduceHalves(p, a, scatterBlocks(a)) },
	}
)

func reduceScatterHalvingCost(s Shape) Cost {
	q := floor2(s.Ranks)
	extra := s.Ranks - q
	c := Cost{Steps: log2(q) + 2*min(extra, 1), Messages: 2*extra + q*log2(q), Bytes: (s.Ranks - 1) * s.Bytes}
	for v := range extra {
		if s.Counts == nil {
			c.Bytes += s.Bytes / s.Ranks
		} else {
			c.Bytes += s.Counts[2*v+1]
		}
	}
	return c
}

func reduceScatterHalvingTime(l lane, n int) float64 {
	return l.copy(n) + l.folded(n, l.each(n)) + l.halves(n)
}

// reversed is a vector in the order of halving: at position j are the blocks of the
// number that is j with its bits reversed, which are those of one rank or of a
// pair.
type reversed struct {
	h *halves
	q parts
}

// ranks returns the ranks whose blocks are at position j.
func (r reversed) ranks(j int) (lo, hi int) {
	n := log2(r.h.q)
	v := int(bits.Reverse64(uint64(j)) >> (64 - n))
	if v < r.h.extra {
		return 2 * v, 2*v + 2
	}
	return v + r.h.extra, v + r.h.extra + 1
}

// block returns what is at position j of the vector in rank order.
func (r reversed) block(vector []byte, j int) []byte {
	first, end := r.ranks(j)
	lo, _ := r.q.at(first)
	_, hi := r.q.at(end - 1)
	return vector[lo:hi]
}

// bytes returns the length of the positions lo to hi-1.
func (r reversed) bytes(lo, hi int) (n int) {
	for j := lo; j < hi; j++ {
		first, end := r.ranks(j)
		for i := first; i < end; i++ {
			n += r.q.len(i)
		}
	}
	return n
}

func reduceHalves(p group, a Args, q parts) error {
	rank, size := p.Rank(), p.Size()
	if size == 1 {
		move(p, a.Recv, q.one(a.Send, 0))
		return nil
	}
	h := halvesOf(p, -1, 0, 1)
	if keeper := h.keeper(h.v); rank != keeper {
		if err := p.Send(a.Send, keeper); err != nil {
			return err
		}
		return p.Recv(a.Recv, keeper)
	}
	order := reversed{&h, q}
	total := len(a.Send)
	paired := rank < 2*h.extra
	src, val := a.Send, p.Scratch(slotVector, total)
	var tmp []byte
	if paired {
		tmp = p.Scratch(slotInput, total)
		if err := p.Recv(tmp, rank+1); err != nil {
			return err
		}
		a.Op.Right(tmp, a.Send)
		src = tmp
	}
	for j, rest := 0, val; j < h.q; j++ {
		block := order.block(src, j)
		move(p, rest[:len(block)], block)
		rest = rest[len(block):]
	}
	lo, hi := 0, h.q // the positions that are left
	for mask := 1; mask < h.q; mask <<= 1 {
		mid := (lo + hi) / 2
		cut := order.bytes(lo, mid)
		keep, give := val[:cut], val[cut:]
		if h.v&mask == 0 {
			hi = mid
		} else {
			keep, give = give, keep
			lo = mid
		}
		if tmp == nil {
			tmp = p.Scratch(slotInput, len(keep))
		}
		peer := h.keeper(h.v ^ mask)
		in := tmp[:len(keep)]
		if err := p.Sendrecv(give, peer, in, peer); err != nil {
			return err
		}
		if peer > rank {
			a.Op.Left(keep, in)
		} else {
			a.Op.Right(keep, in)
		}
		val = keep
	}
	own := q.len(rank)
	move(p, a.Recv, val[:own])
	if paired {
		return p.Send(val[own:], rank+1)
	}
	return nil
}
