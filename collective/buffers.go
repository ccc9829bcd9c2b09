package collective

// same says that two slices are the same memory: the mark of a call in place.
func same(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// pieceBytes bounds one copy: a goroutine cannot be preempted inside one, and
// the garbage collector waits for it.
const pieceBytes = 256 << 10

// move copies src to dst, which has the same length. Every local copy of the
// package is made by it, or written down if p only records.
func move(p group, dst, src []byte) {
	if same(dst, src) {
		return
	}
	if r, ok := p.Peer.(*recorder); ok {
		r.add(StepCopy, dst, src, 0)
		return
	}
	pieces(dst, src)
}

// pieces copies in pieces.
func pieces(dst, src []byte) {
	for len(src) > pieceBytes {
		copy(dst, src[:pieceBytes])
		dst, src = dst[pieceBytes:], src[pieceBytes:]
	}
	copy(dst, src)
}

// split cuts a vector into parts blocks of whole units. Blocks differ by at
// most one unit, the longer ones are spread evenly, and blocks may be empty: so
// halves of the blocks are halves of the vector, also with fewer units than parts.
type split struct {
	bytes, unit, parts int
}

// at returns where block i starts, and the end of the vector for i = parts.
func (s split) at(i int) int {
	units := (s.bytes + s.unit - 1) / s.unit
	return min(s.bytes, s.unit*(i*(units/s.parts)+i*(units%s.parts)/s.parts))
}

// longest returns the length of the longest block.
func (s split) longest() int {
	units := (s.bytes + s.unit - 1) / s.unit
	return min(s.bytes, s.unit*((units+s.parts-1)/s.parts))
}

// of returns blocks lo to hi-1 of a vector.
func (s split) of(vector []byte, lo, hi int) []byte {
	return vector[s.at(lo):s.at(hi)]
}

// len returns the bytes of blocks lo to hi-1.
func (s split) len(lo, hi int) int { return s.at(hi) - s.at(lo) }

// Slots of Peer.Scratch.
const (
	slotVector = iota // a partial result, or the blocks of a subtree
	slotInput         // a received vector that is combined with another
	slotOther         // a second partial result, or a copy of the send buffer
	slotNode          // what the ranks of a node have together

	slotWhole = slotNode // all operands of what this rank combines
)

// partial is one rank's partial result of a reduction. It starts as the
// caller's send buffer, which is only read. The first contribution is received
// straight into dst and combined there with the send buffer, which saves a
// copy of the vector; from then on dst holds the value and contributions are
// received beside it.
//
// After a merge of a range, only that range of the value means anything.
type partial struct {
	p   group
	op  Op
	val []byte // the value: the send buffer, then dst
	dst []byte
	tmp []byte
	own bool // val is dst
}

func newPartial(p group, op Op, send, dst []byte) partial {
	return partial{p: p, op: op, val: send, dst: dst, own: same(send, dst)}
}

// room returns where to receive a contribution to bytes lo to hi. Ranges only
// ever shrink.
func (v *partial) room(lo, hi int) []byte {
	if !v.own {
		return v.dst[lo:hi]
	}
	if v.tmp == nil {
		v.tmp = v.p.Scratch(slotInput, hi-lo)
	}
	return v.tmp[:hi-lo]
}

// merge combines what was received in room with the value. The contribution
// comes from ranks all above or all below those in the value.
func (v *partial) merge(lo, hi int, above bool) {
	switch {
	case v.own && above:
		v.op.Left(v.dst[lo:hi], v.tmp[:hi-lo])
	case v.own:
		v.op.Right(v.dst[lo:hi], v.tmp[:hi-lo])
	case above:
		v.op.Right(v.dst[lo:hi], v.val[lo:hi])
	default:
		v.op.Left(v.dst[lo:hi], v.val[lo:hi])
	}
	v.val, v.own = v.dst, true
}
