package collective

import "math/bits"

// tree is the binomial tree of all rooted operations. It is made of aligned
// blocks of real ranks: at level mask, the ranks that differ only in the bits
// below 2*mask form a block of two halves, low and high, each of which has one
// head. The head of a half is the root when it is in there, else the lowest
// rank, which exists whenever the half is not empty. The two heads meet; the head
// of the block goes on to the next level and the other one is its child.
//
// So a child stands for a contiguous range of ranks for any root and any number
// of ranks: blocks are gathered into their final place and operands meet in rank
// order, with the same association for every root. Textbook trees number the
// ranks from the root, which wraps around and needs a rotation or, for an
// operator that does not commute, one more message.
//
// There are ceil(log2 P) levels.
type tree struct {
	rank, root, size int
}

func treeOf(p group, root int) tree { return tree{p.Rank(), root, p.Size()} }

// meet is what a head does at one level.
type meet struct {
	peer   int
	child  bool // this rank is the child of peer, else its parent
	lo, hi int  // the ranks that the child stands for
}

// at returns the meeting of the head this rank is at a level; false when the
// high half is empty. It must not be asked about levels above the one where
// the rank is a child.
func (t tree) at(mask int) (m meet, ok bool) {
	base := t.rank &^ (2*mask - 1)
	mid, end := base+mask, min(base+2*mask, t.size)
	if mid >= t.size {
		return meet{}, false
	}
	low, high := base, mid
	rootLow := base <= t.root && t.root < mid
	rootHigh := mid <= t.root && t.root < end
	if rootLow {
		low = t.root
	} else if rootHigh {
		high = t.root
	}
	m.lo, m.hi = mid, end // the high head is the child
	if rootHigh {
		m.lo, m.hi = base, mid
	}
	if t.rank < mid {
		m.peer, m.child = high, rootHigh
	} else {
		m.peer, m.child = low, !rootHigh
	}
	return m, true
}

// top returns the level at which this rank is a child, and that meeting; for
// the root, the first level above all others.
func (t tree) top() (mask int, m meet) {
	for mask = 1; mask < t.size; mask <<= 1 {
		if m, ok := t.at(mask); ok && m.child {
			return mask, m
		}
	}
	return mask, meet{lo: 0, hi: t.size}
}

// span returns the ranks that a rank stands for: all for the root.
func span(rank, root, size int) (lo, hi int) {
	_, m := tree{rank, root, size}.top()
	return m.lo, m.hi
}

// log2 returns ceil(log2 n).
func log2(n int) int { return bits.Len(uint(n - 1)) }
