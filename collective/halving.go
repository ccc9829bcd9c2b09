package collective

import "math/bits"

// halves is one rank's place in the reductions that halve vectors (Rabenseifner:
// Optimization of Collective Reduction Operations, 2004).
//
// P ranks are folded to the largest power of two Q: of the first P-Q pairs
// (0,1), (2,3) ... one rank, the keeper, takes over the vector of the other.
// Keepers and unpaired ranks are numbered 0 to Q-1 in rank order.
//
// Then, with distance 1, 2, 4 ... Q/2, two ranks whose numbers differ in one bit
// exchange halves of their current range and keep one half each, combined.
// Distances grow, unlike in the paper, so what meets are neighbouring groups of
// ranks: the operands stay in rank order. In the end every number owns one of Q
// blocks (the one whose index is its number with the bits reversed), and each
// element was combined in one place only.
type halves struct {
	p      group
	rank   int
	q      int // the largest power of two up to P
	extra  int // P-Q
	root   int // is a keeper when it is in a pair; else -1
	v      int // the number of this rank or of its keeper
	cut    split
	lo, hi int // the current range of blocks
}

func halvesOf(p group, root, bytes, elem int) halves {
	size := p.Size()
	q := floor2(size)
	h := halves{p: p, rank: p.Rank(), q: q, extra: size - q, root: root, cut: split{bytes, elem, q}, hi: q}
	h.v = h.number(h.rank)
	return h
}

// floor2 returns the largest power of two up to n.
func floor2(n int) int { return 1 << (bits.Len(uint(n)) - 1) }

// number returns the number of a rank, which the two of a pair share.
func (h *halves) number(rank int) int {
	if rank < 2*h.extra {
		return rank / 2
	}
	return rank - h.extra
}

// keeper returns the rank with a number.
func (h *halves) keeper(v int) int {
	switch {
	case v >= h.extra:
		return v + h.extra
	case h.root == 2*v+1:
		return h.root
	}
	return 2 * v
}

// fold combines the vectors of pairs. It returns false on a rank that has
// handed over its vector. One step, P-Q messages, (P-Q) S bytes.
func (h *halves) fold(send []byte, val *partial) (kept bool, err error) {
	if h.rank >= 2*h.extra {
		return true, nil
	}
	keeper := h.keeper(h.v)
	if h.rank != keeper {
		return false, h.p.Send(send, keeper)
	}
	other := h.rank ^ 1
	if err := h.p.Recv(val.room(0, len(send)), other); err != nil {
		return false, err
	}
	val.merge(0, len(send), other > h.rank)
	return true, nil
}

// scatter leaves the result of one block on each number. log2 Q steps, Q log2 Q
// messages, (Q-1) S bytes.
func (h *halves) scatter(val *partial) error {
	for mask := 1; mask < h.q; mask <<= 1 {
		peer := h.keeper(h.v ^ mask)
		mid := (h.lo + h.hi) / 2
		giveLo, giveHi := mid, h.hi
		if h.v&mask == 0 {
			h.hi = mid
		} else {
			giveLo, giveHi = h.lo, mid
			h.lo = mid
		}
		lo, hi := h.cut.at(h.lo), h.cut.at(h.hi)
		if err := h.p.Sendrecv(h.cut.of(val.val, giveLo, giveHi), peer, val.room(lo, hi), peer); err != nil {
			return err
		}
		val.merge(lo, hi, peer > h.rank)
	}
	return nil
}

// allgather gives all numbers all blocks, by the exchanges of scatter in
// reverse. log2 Q steps, Q log2 Q messages, (Q-1) S bytes.
func (h *halves) allgather(vector []byte) error {
	for mask := h.q / 2; mask > 0; mask >>= 1 {
		peer := h.keeper(h.v ^ mask)
		lo, hi := h.lo, h.hi
		theirLo, theirHi := h.widen(mask)
		if err := h.p.Sendrecv(h.cut.of(vector, lo, hi), peer, h.cut.of(vector, theirLo, theirHi), peer); err != nil {
			return err
		}
	}
	return nil
}

// gather collects all blocks on the root, by the exchanges of scatter in reverse
// and in the root's direction only. log2 Q steps, Q-1 messages, S log2(Q)/2 bytes
// when Q divides the elements.
func (h *halves) gather(vector []byte) error {
	root := h.number(h.root)
	for mask := h.q / 2; mask > 0; mask >>= 1 {
		peer := h.keeper(h.v ^ mask)
		if (h.v^root)&mask != 0 {
			return h.p.Send(h.cut.of(vector, h.lo, h.hi), peer)
		}
		theirLo, theirHi := h.widen(mask)
		if err := h.p.Recv(h.cut.of(vector, theirLo, theirHi), peer); err != nil {
			return err
		}
	}
	return nil
}

// widen takes back one halving and returns the half that was given away.
func (h *halves) widen(mask int) (lo, hi int) {
	width := h.hi - h.lo
	if h.v&mask == 0 {
		lo, hi = h.hi, h.hi+width
		h.hi = hi
	} else {
		lo, hi = h.lo-width, h.lo
		h.lo = lo
	}
	return lo, hi
}
