package board

import (
	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/cacheline"
)

// payload returns what a rank has posted.
func (r *Run) payload(rank, n int) []byte {
	s := &r.b.slots[rank]
	p := s.posts[r.number%depth]
	if !r.medium() {
		return p.payload[:n]
	}
	area := s.areas[0]
	if p.flags&secondArea != 0 {
		area = s.areas[1]
	}
	return area[:n]
}

// takeShort carries out a run whose data are in the posts.
func (r *Run) takeShort() {
	b, a := r.b, r.args
	n, root := len(a.Send), b.rank == a.Root
	switch r.kind {
	case collective.KindBcast:
		if !root {
			copy(a.Recv, r.payload(a.Root, len(a.Recv)))
		}
	case collective.KindScatter:
		block := len(a.Recv)
		copy(a.Recv, r.payload(a.Root, block*b.size)[b.rank*block:])
	case collective.KindGather, collective.KindAllgather:
		if r.kind == collective.KindGather && !root {
			return
		}
		for q := range b.size {
			copy(a.Recv[q*n:(q+1)*n], r.payload(q, n))
		}
	case collective.KindAlltoall:
		block := n / b.size
		for q := range b.size {
			copy(a.Recv[q*block:(q+1)*block], r.payload(q, n)[b.rank*block:])
		}
	case collective.KindReduceScatterBlock:
		block := len(a.Recv)
		for q := range b.size {
			b.pieces[q] = r.payload(q, n)[b.rank*block : (b.rank+1)*block]
		}
		fold(&a.Op, a.Recv, b.pieces)
	case collective.KindReduce, collective.KindAllreduce:
		if r.kind == collective.KindReduce && !root {
			return
		}
		for q := range b.size {
			b.pieces[q] = r.payload(q, n)
		}
		fold(&a.Op, a.Recv[:n], b.pieces)
	case collective.KindScan, collective.KindExscan:
		_, end := r.takes()
		for q := range end {
			b.pieces[q] = r.payload(q, n)
		}
		if end > 0 {
			fold(&a.Op, a.Recv[:n], b.pieces[:end])
		}
	}
}

// fold sets dst to the combination of the sources in their order. dst is none of them, unless the
// operator has Many.
func fold(op *collective.Op, dst []byte, sources [][]byte) {
	if len(dst) == 0 {
		return
	}
	if op.Many != nil && len(sources) > 1 {
		op.Many(dst, sources)
		return
	}
	copy(dst, sources[0])
	for _, src := range sources[1:] {
		op.Left(dst, src)
	}
}

// own returns what this rank lets peers read and write.
func (r *Run) own() (source, target []byte) {
	a, root := r.args, r.b.rank == r.args.Root
	switch r.kind {
	case collective.KindBcast:
		switch {
		case root:
			source = a.Recv
		case r.helps():
			target = a.Recv
		}
	case collective.KindScatter:
		if root {
			source = a.Send
		}
	case collective.KindGather:
		if root {
			target = a.Recv
		}
	case collective.KindReduce:
		if source = a.Send; root {
			target = a.Recv
		}
	case collective.KindAllreduce, collective.KindScan, collective.KindExscan:
		source, target = a.Send, a.Recv
	default:
		source = a.Send
	}
	return source, target
}

// open lets peers into this rank's memory, and returns the flags that tell how far.
func (r *Run) open(p *post) uint64 {
	r.source, r.target = r.own()
	r.shared = true
	if r.target != nil && r.kind == collective.KindBcast {
		region, ok := r.b.mem.Reach(r.target)
		if !ok {
			return noTarget
		}
		p.putRegion(offTarget, region)
		return 0
	}
	// What is read must not be written meanwhile. A rank that finds its own result in its source
	// opens a copy.
	copied := (r.kind == collective.KindAlltoall || r.kind == collective.KindReduceScatterBlock) && overlap(r.args.Send, r.args.Recv)
	if r.openOne(p, offSource, &r.source, 0, copied) && r.openOne(p, offTarget, &r.target, 1, false) {
		return 0
	}
	return outOfReach
}

func (r *Run) openOne(p *post, at int, mem *[]byte, bounce int, copied bool) bool {
	if len(*mem) == 0 {
		return true
	}
	region, ok := r.b.mem.Reach(*mem)
	if !ok || copied {
		buf := r.b.bounceBuffer(bounce, len(*mem))
		if buf == nil {
			return false
		}
		if bounce == 0 {
			copyPieces(buf, *mem)
		}
		*mem = buf
		if region, ok = r.b.mem.Reach(buf); !ok {
			return false
		}
	}
	p.putRegion(at, region)
	return true
}

// bounceBuffer returns n bytes in reach of peers, or nil.
func (b *Board) bounceBuffer(i, n int) []byte {
	if n > bounceMax {
		return nil
	}
	if len(b.bounce[i]) < n {
		buf, err := b.mem.Alloc(max(n, 16<<10))
		if err != nil {
			return nil // the arena is full: then messages need no more of it
		}
		if old := b.bounce[i]; old != nil && b.mem.Free(old) != nil {
			return nil
		}
		b.bounce[i] = buf
	}
	return b.bounce[i][:n]
}

// copyOut brings what peers wrote to a bounce buffer to where it belongs.
func (r *Run) copyOut() {
	_, target := r.own()
	if len(target) == 0 || r.kind == collective.KindExscan && r.b.rank == 0 {
		return
	}
	if &r.target[0] != &target[0] {
		copyPieces(target, r.target)
	}
}

// takeLong carries out a run whose data are in the ranks' memory.
func (r *Run) takeLong() (err error) {
	b, a := r.b, r.args
	n, root := len(a.Send), b.rank == a.Root
	switch r.kind {
	case collective.KindBcast:
		return r.takeBcast(root)
	case collective.KindScatter:
		block := len(a.Recv)
		src := a.Send
		if !root {
			if src, err = r.view(a.Root, offSource, block*b.size); err != nil {
				return err
			}
		}
		r.move(a.Recv, src[b.rank*block:][:block])
		return nil
	case collective.KindGather:
		dst := r.target
		if !root {
			if dst, err = r.view(a.Root, offTarget, n*b.size); err != nil {
				return err
			}
		}
		r.move(dst[b.rank*n:][:n], a.Send)
		return nil
	}
	for q := range b.size {
		if b.sources[q] = r.source; q != b.rank {
			if b.sources[q], err = r.view(q, offSource, n); err != nil {
				return err
			}
		}
	}
	switch r.kind {
	case collective.KindAllgather, collective.KindAlltoall:
		block, from := n, 0
		if r.kind == collective.KindAlltoall {
			block = n / b.size
			from = b.rank * block
		}
		for i := range b.size {
			q := (b.rank + i) % b.size // not all from the same one
			r.move(a.Recv[q*block:][:block], b.sources[q][from:][:block])
		}
		return nil
	case collective.KindReduceScatterBlock:
		block := len(a.Recv)
		r.reduce(b.rank*block, (b.rank+1)*block, func(lo, hi int) []byte { return a.Recv[lo-b.rank*block : hi-b.rank*block] }, nil)
		return nil
	}
	for q := range b.size {
		if b.targets[q] = r.target; q != b.rank && (r.kind != collective.KindReduce || q == a.Root) {
			if b.targets[q], err = r.view(q, offTarget, n); err != nil {
				return err
			}
		}
	}
	lo, hi := r.part(n)
	switch r.kind {
	case collective.KindReduce:
		r.reduce(lo, hi, func(lo, hi int) []byte { return b.targets[a.Root][lo:hi] }, nil)
	case collective.KindAllreduce:
		r.reduce(lo, hi, func(lo, hi int) []byte { return b.targets[b.rank][lo:hi] }, b.targets)
	default:
		r.scan(lo, hi)
	}
	return nil
}

// takeBcast copies to this rank, or to the only other one what the root does of it.
func (r *Run) takeBcast(root bool) error {
	b, n := r.b, len(r.args.Recv)
	half := n
	if r.helps() && b.slots[1-r.args.Root].posts[r.number%depth].flags&noTarget == 0 {
		half = n / 2 &^ 63
	}
	if root {
		if half == n {
			return nil
		}
		dst, err := r.view(1-r.args.Root, offTarget, n)
		if err == nil {
			r.move(dst[half:], r.source[half:])
		}
		return err
	}
	src, err := r.view(r.args.Root, offSource, n)
	if err == nil {
		r.move(r.args.Recv[:half], src[:half])
	}
	return err
}

// part returns this rank's part of a vector of n bytes: whole elements, and whole cache lines of
// the vector but for its end.
func (r *Run) part(n int) (lo, hi int) {
	unit := r.args.Op.Size
	for unit%64 != 0 {
		unit *= 2
	}
	units := (n + unit - 1) / unit
	at := func(i int) int { return min(n, units*i/r.b.size*unit) }
	return at(r.b.rank), at(r.b.rank + 1)
}

// pieceBytes is how much of each vector is reduced at a time: what is copied on afterwards is
// in a cache then, and the collector does not wait long.
const pieceBytes = 32 << 10

// reduce combines bytes lo to hi of all sources into what dst returns, and copies that to the same bytes of
// targets.
func (r *Run) reduce(lo, hi int, dst func(lo, hi int) []byte, targets [][]byte) {
	b, op := r.b, &r.args.Op
	step := max(pieceBytes/op.Size, 1) * op.Size
	for ; lo < hi; lo += step {
		end := min(lo+step, hi)
		for q := range b.size {
			b.pieces[q] = b.sources[q][lo:end]
		}
		out := dst(lo, end)
		if op.Many != nil {
			op.Many(out, b.pieces)
		} else { // the result may be one of the sources
			acc := b.temporary(0, end-lo)
			fold(op, acc, b.pieces)
			copy(out, acc)
		}
		for q, target := range targets {
			if q != b.rank {
				copy(target[lo:end], out)
			}
		}
	}
}

// scan leaves in bytes lo to hi of each target the combination of the sources up to it.
func (r *Run) scan(lo, hi int) {
	b, op := r.b, &r.args.Op
	step := max(pieceBytes/op.Size, 1) * op.Size
	for ; lo < hi; lo += step {
		end := min(lo+step, hi)
		switch {
		case op.Whole != nil:
			r.scanWhole(lo, end)
			continue
		case op.Many != nil:
			r.scanMany(lo, end)
			continue
		}
		acc, src := b.temporary(0, end-lo), b.temporary(1, end-lo)
		copy(acc, b.sources[0][lo:end])
		if r.kind == collective.KindScan {
			copy(b.targets[0][lo:end], acc)
		}
		for q := 1; q < b.size; q++ {
			copy(src, b.sources[q][lo:end]) // the target may be the same
			if r.kind == collective.KindExscan {
				copy(b.targets[q][lo:end], acc)
			}
			if r.kind == collective.KindScan || q < b.size-1 {
				op.Left(acc, src)
			}
			if r.kind == collective.KindScan {
				copy(b.targets[q][lo:end], acc)
			}
		}
	}
}

// scanWhole is scan of an operator that needs all operands at once. It begins with the last
// rank: the target of one may be its source, which those before it do not need.
func (r *Run) scanWhole(lo, hi int) {
	b := r.b
	for q := range b.size {
		b.pieces[q] = b.sources[q][lo:hi]
	}
	own := 0
	if r.kind == collective.KindScan {
		own = 1
	}
	for q := b.size - 1; q+own > 0; q-- {
		r.args.Op.Many(b.targets[q][lo:hi], b.pieces[:q+own])
	}
}

// scanMany is scan of an operator that combines two vectors into a third one.
func (r *Run) scanMany(lo, hi int) {
	b, many := r.b, r.args.Op.Many
	if r.kind == collective.KindScan { // each rank's result goes on from the one before
		copy(b.targets[0][lo:hi], b.sources[0][lo:hi])
		for q := 1; q < b.size; q++ {
			b.pieces[0], b.pieces[1] = b.targets[q-1][lo:hi], b.sources[q][lo:hi]
			many(b.targets[q][lo:hi], b.pieces[:2])
		}
		return
	}
	acc, next := b.temporary(0, hi-lo), b.temporary(1, hi-lo)
	copy(acc, b.sources[0][lo:hi])
	for q := 1; q < b.size; q++ {
		if q < b.size-1 { // before the target is written, which may be the same
			b.pieces[0], b.pieces[1] = acc, b.sources[q][lo:hi]
			many(next, b.pieces[:2])
		}
		copy(b.targets[q][lo:hi], acc)
		acc, next = next, acc
	}
}

func (b *Board) temporary(i, n int) []byte {
	if cap(b.scratch[i]) < n {
		b.scratch[i] = make([]byte, max(n, pieceBytes))
	}
	return b.scratch[i][:n]
}

// copyPiece bounds one copy, which the scheduler and the collector cannot interrupt.
const copyPiece = 256 << 10

// copyPieces copies src to dst, which may be the same memory.
func copyPieces(dst, src []byte) { inPieces(dst, src, func(dst, src []byte) { copy(dst, src) }) }

func inPieces(dst, src []byte, do func(dst, src []byte)) {
	if len(src) == 0 || &dst[0] == &src[0] {
		return
	}
	for len(src) > copyPiece {
		do(dst[:copyPiece], src[:copyPiece])
		dst, src = dst[copyPiece:], src[copyPiece:]
	}
	do(dst, src)
}

// move is copyPieces of what a collective brings from one rank to another.
func (r *Run) move(dst, src []byte) {
	if c := r.b.cache; c > 0 && int64(r.footprint()) > c {
		inPieces(dst, src, cacheline.Stream)
		return
	}
	copyPieces(dst, src)
}

// footprint is how many bytes all ranks read and write in a collective that combines nothing.
func (r *Run) footprint() int {
	n := r.longest
	switch r.kind {
	case collective.KindBcast:
		return n * r.b.size
	case collective.KindScatter:
		return 2 * n
	case collective.KindAllgather:
		return n * r.b.size * (1 + r.b.size)
	}
	return 2 * n * r.b.size
}
