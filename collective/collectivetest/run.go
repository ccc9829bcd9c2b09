package collectivetest

import (
	"bytes"
	"fmt"

	"github.com/weft-hpc/weft/collective"
)

// trial is one call of one operation on all ranks.
type trial struct {
	kind    collective.Kind
	alg     string // "" is the entry point
	ranks   int
	root    int
	count   int // elements: of the vector, or of a block
	op      operator
	inPlace bool
	nodes   []int // of the ranks; nil: all on one

	recorded bool // by way of a Schedule
}

func (c trial) String() string {
	s := fmt.Sprintf("%v/%s P=%d", c.kind, c.alg, c.ranks)
	if c.kind.Rooted() {
		s += fmt.Sprintf(" root=%d", c.root)
	}
	s += fmt.Sprintf(" count=%d size=%d", c.count, c.op.size)
	if c.kind.Reduces() {
		s += " op=" + c.op.name
	}
	if c.inPlace {
		s += " in-place"
	}
	if c.nodes != nil {
		s += fmt.Sprintf(" nodes=%v", c.nodes)
	}
	if c.recorded {
		s += " recorded"
	}
	return s
}

const (
	canary = 0xc5
	guard  = 24
)

var canaries = bytes.Repeat([]byte{canary}, guard)

// guarded is a buffer with canaries on both sides. A buffer of no bytes is nil on
// every other one.
type guarded struct {
	all, buf []byte
}

func newGuarded(n int, isNil bool) guarded {
	all := bytes.Repeat([]byte{canary}, n+2*guard)
	g := guarded{all, all[guard : guard+n : guard+n]}
	if n == 0 && isNil {
		g.buf = nil
	}
	return g
}

func (g guarded) check(what string) error {
	n := len(g.all) - guard
	if !bytes.Equal(g.all[:guard], canaries) || !bytes.Equal(g.all[n:], canaries) {
		return fmt.Errorf("wrote outside %s of %d bytes", what, n-guard)
	}
	return nil
}

// vector returns n elements of a rank.
func (c trial) vector(rank, n int) []byte {
	out := make([]byte, 0, n*c.op.size)
	// The pattern repeats, at a length that has nothing to do with that of a block.
	for i := range min(n, period) {
		out = out[:len(out)+c.op.size]
		c.op.element(out[len(out)-c.op.size:], rank, i)
	}
	for len(out) < cap(out) {
		out = append(out, out[:min(period*c.op.size, cap(out)-len(out))]...)
	}
	return out
}

const period = 1021

// varies says that the blocks of the operation have different lengths.
func (c trial) varies() bool {
	switch c.kind {
	case collective.KindGatherv, collective.KindScatterv, collective.KindAllgatherv, collective.KindAlltoallv, collective.KindReduceScatter:
		return true
	}
	return false
}

// block returns the elements of block i; for alltoall, of what rank from sends to
// rank i. A third of the blocks that differ are empty, and all are if count is 0.
func (c trial) block(from, i int) int {
	if !c.varies() {
		return c.count
	}
	switch {
	case c.kind != collective.KindAlltoallv:
		from = 0
	case c.inPlace:
		from, i = min(from, i), max(from, i)
	}
	h := int(hash(from, i+c.count) >> 8 % (1 << 30))
	if h%3 == 0 {
		return 0
	}
	return h / 3 % (2*c.count + 1)
}

// layout says where blocks of these lengths lie in a buffer: with a gap of an
// element between them where the operation can have gaps. It returns the length
// of the buffer.
func (c trial) layout(lengths []int) (b *collective.Blocks, n int) {
	gap := 0
	if c.varies() && c.kind != collective.KindReduceScatter {
		gap = 1
	}
	b = &collective.Blocks{Unit: c.op.size}
	for i, length := range lengths {
		if i > 0 {
			n += gap
		}
		b.Counts, b.Displs = append(b.Counts, length), append(b.Displs, n)
		n += length
	}
	return b, n * c.op.size
}

func (c trial) lengths(of func(i int) int) []int {
	all := make([]int, c.ranks)
	for i := range all {
		all[i] = of(i)
	}
	return all
}

func (c trial) topology() *collective.Topology {
	if c.nodes == nil {
		return nil
	}
	return collective.NewTopology(c.nodes)
}

// data are the vectors of all ranks, and if the trial reduces, what ranks 0 to i
// give in rank order. They are made once for all ranks of a trial, and only read.
type data struct {
	vectors, prefixes [][]byte
}

func (c trial) data() data {
	var d data
	if c.kind == collective.KindBarrier {
		return d
	}
	for rank := range c.ranks {
		n := c.block(rank, rank)
		switch c.kind {
		case collective.KindAlltoall, collective.KindAlltoallv, collective.KindReduceScatterBlock, collective.KindReduceScatter:
			n = 0
			for i := range c.ranks {
				n += c.block(rank, i)
			}
		}
		d.vectors = append(d.vectors, c.vector(rank, n))
	}
	if !c.kind.Reduces() || !c.op.exact {
		return d
	}
	op := c.op.op()
	for rank, v := range d.vectors {
		v = bytes.Clone(v)
		if c.op.whole != nil {
			c.op.whole(v, d.vectors[:rank+1])
		} else if rank > 0 {
			op.Right(v, d.prefixes[rank-1])
		}
		d.prefixes = append(d.prefixes, v)
	}
	return d
}

// cut returns block i of a vector whose blocks lie one after the other, as rank
// from has them.
func (c trial) cut(v []byte, from, i int) []byte {
	at := 0
	for j := range i {
		at += c.block(from, j)
	}
	return v[at*c.op.size:][:c.block(from, i)*c.op.size]
}

// rankCall is one rank's buffers. sent and want are what send and recv must hold
// after the call. A nil sent is one that is overwritten; a nil want with bytes in
// recv is a result with rounding, compared with other ranks only.
type rankCall struct {
	send, recv guarded
	sent, want []byte
	args       collective.Args
}

// spread returns a buffer of n bytes, canaries but for the given blocks.
func spread(n int, b *collective.Blocks, block func(i int) []byte) []byte {
	buf := bytes.Repeat([]byte{canary}, n)
	for i := range b.Counts {
		copy(buf[b.Displs[i]*b.Unit:], block(i))
	}
	return buf
}

func at(buf []byte, b *collective.Blocks, i int) []byte {
	return buf[b.Displs[i]*b.Unit:][:b.Counts[i]*b.Unit]
}

func (c trial) prepare(d data, rank int) rankCall {
	isRoot := !c.kind.Rooted() || rank == c.root
	isNil := rank%2 == 0
	whole, n := c.layout(c.lengths(func(i int) int { return c.block(rank, i) }))
	var r rankCall
	r.args.Root = c.root
	own := func(i int) []byte { return d.vectors[i] }
	send := func(b []byte) {
		r.sent = b
		r.send = newGuarded(len(b), isNil)
		copy(r.send.buf, b)
		r.args.Send = r.send.buf
	}
	recv := func(n int, want []byte) {
		r.want = want
		r.recv = newGuarded(n, isNil)
		r.args.Recv = r.recv.buf
	}
	r.send, r.recv = newGuarded(0, isNil), newGuarded(0, isNil)
	r.args.Send, r.args.Recv = r.send.buf, r.recv.buf
	if c.kind.Reduces() {
		r.args.Op = c.op.op()
	}
	folded := func(i int) []byte {
		if i < 0 || d.prefixes == nil {
			return nil
		}
		return d.prefixes[i]
	}
	switch c.kind {
	case collective.KindBcast:
		recv(n/c.ranks, own(c.root))
		if isRoot {
			copy(r.recv.buf, r.want)
		}
	case collective.KindGather, collective.KindAllgather, collective.KindGatherv, collective.KindAllgatherv:
		if isRoot {
			recv(n, spread(n, whole, own))
			if c.varies() {
				r.args.RecvBlocks = whole
			}
		}
		if isRoot && c.inPlace {
			r.args.Send = at(r.recv.buf, whole, rank)
			copy(r.args.Send, own(rank))
		} else {
			send(own(rank))
		}
	case collective.KindScatter, collective.KindScatterv:
		if isRoot {
			send(spread(n, whole, own))
			if c.varies() {
				r.args.SendBlocks = whole
			}
		}
		if isRoot && c.inPlace {
			r.want = own(rank)
			r.args.Recv = at(r.send.buf, whole, rank)
		} else {
			recv(len(own(rank)), own(rank))
		}
	case collective.KindAlltoall, collective.KindAlltoallv:
		from, m := c.layout(c.lengths(func(i int) int { return c.block(i, rank) }))
		recv(m, spread(m, from, func(i int) []byte { return c.cut(own(i), i, rank) }))
		out := spread(n, whole, func(i int) []byte { return c.cut(own(rank), rank, i) })
		if c.varies() {
			r.args.SendBlocks, r.args.RecvBlocks = whole, from
		}
		if c.inPlace {
			copy(r.recv.buf, out)
			r.args.Send = r.recv.buf
		} else {
			send(out)
		}
	case collective.KindReduce, collective.KindAllreduce, collective.KindScan, collective.KindExscan:
		last := c.ranks - 1
		switch c.kind {
		case collective.KindScan:
			last = rank
		case collective.KindExscan:
			last = rank - 1
		}
		if isRoot {
			recv(len(own(rank)), folded(last))
		}
		if isRoot && c.inPlace {
			r.args.Send = r.recv.buf
			copy(r.args.Send, own(rank))
		} else {
			send(own(rank))
		}
		if last < 0 { // is not written
			r.want = bytes.Clone(r.args.Recv)
		}
	case collective.KindReduceScatterBlock, collective.KindReduceScatter:
		send(own(rank))
		mine := c.block(rank, rank) * c.op.size
		var want []byte
		if f := folded(c.ranks - 1); f != nil {
			want = c.cut(f, rank, rank)
		}
		if c.varies() {
			r.args.SendBlocks = whole
		}
		if c.inPlace {
			r.args.Recv = r.args.Send[:mine]
			r.want = want
		} else {
			recv(mine, want)
		}
	}
	return r
}

// check looks at a rank's buffers after the call.
func (c trial) check(r rankCall) error {
	if err := r.send.check("send"); err != nil {
		return err
	}
	if err := r.recv.check("recv"); err != nil {
		return err
	}
	kept := 0 // what of send must be as it was
	switch {
	case !c.inPlace:
	case c.kind == collective.KindReduceScatterBlock || c.kind == collective.KindReduceScatter:
		kept = len(r.args.Recv)
	}
	if r.sent != nil && !bytes.Equal(r.args.Send[kept:], r.sent[kept:]) {
		return fmt.Errorf("send buffer was changed")
	}
	if c.kind.Reduces() && !c.op.exact {
		return nil // compared across ranks
	}
	if i := differs(r.args.Recv, r.want); i >= 0 {
		return fmt.Errorf("wrong byte at %d of %d", i, len(r.want))
	}
	return nil
}

// differs returns where two slices differ, -1 for nowhere.
func differs(got, want []byte) int {
	if bytes.Equal(got, want) {
		return -1
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return i
		}
	}
	return min(len(got), len(want))
}

// call makes the call that a trial names.
func (c trial) call(p collective.Peer, a collective.Args) error {
	if c.alg != "" {
		alg, err := collective.Lookup(c.kind, c.alg)
		if err != nil {
			return err
		}
		if c.recorded {
			var s collective.Schedule
			if err := s.Record(alg, p.Rank(), p.Size(), a); err != nil {
				return err
			}
			return s.Play(p)
		}
		return alg.Run(p, a)
	}
	switch c.kind {
	case collective.KindBarrier:
		return collective.Barrier(p)
	case collective.KindBcast:
		return collective.Bcast(p, a.Recv, a.Root)
	case collective.KindGather:
		return collective.Gather(p, a.Send, a.Recv, a.Root)
	case collective.KindScatter:
		return collective.Scatter(p, a.Send, a.Recv, a.Root)
	case collective.KindAllgather:
		return collective.Allgather(p, a.Send, a.Recv)
	case collective.KindReduce:
		return collective.Reduce(p, a.Send, a.Recv, a.Op, a.Root)
	case collective.KindAllreduce:
		return collective.Allreduce(p, a.Send, a.Recv, a.Op)
	case collective.KindGatherv:
		return collective.Gatherv(p, a.Send, a.Recv, a.RecvBlocks, a.Root)
	case collective.KindScatterv:
		return collective.Scatterv(p, a.Send, a.Recv, a.SendBlocks, a.Root)
	case collective.KindAllgatherv:
		return collective.Allgatherv(p, a.Send, a.Recv, a.RecvBlocks)
	case collective.KindAlltoall:
		return collective.Alltoall(p, a.Send, a.Recv)
	case collective.KindAlltoallv:
		return collective.Alltoallv(p, a.Send, a.SendBlocks, a.Recv, a.RecvBlocks)
	case collective.KindReduceScatterBlock:
		return collective.ReduceScatterBlock(p, a.Send, a.Recv, a.Op)
	case collective.KindReduceScatter:
		return collective.ReduceScatter(p, a.Send, a.Recv, a.SendBlocks, a.Op)
	case collective.KindScan:
		return collective.Scan(p, a.Send, a.Recv, a.Op)
	case collective.KindExscan:
		return collective.Exscan(p, a.Send, a.Recv, a.Op)
	}
	return fmt.Errorf("collectivetest: no entry point for %v", c.kind)
}

// run makes the call on all ranks of a world, checks every buffer, and returns
// what was counted and what every rank received.
func (c trial) run(w World) (cost collective.Cost, results [][]byte, err error) {
	ps := newProbes(c.ranks)
	ps.nodes = c.nodes
	topology := c.topology()
	d := c.data()
	calls := make([]rankCall, c.ranks)
	errs := w(c.ranks, func(p collective.Peer) error {
		r := c.prepare(d, p.Rank())
		r.args.Nodes = topology
		calls[p.Rank()] = r
		probe := ps.wrap(p)
		return probe.verdict(c.call(probe, r.args))
	})
	for rank, err := range errs {
		if err != nil {
			return ps.cost, nil, fmt.Errorf("%v: rank %d: %w", c, rank, err)
		}
	}
	for rank, r := range calls {
		if err := c.check(r); err != nil {
			return ps.cost, nil, fmt.Errorf("%v: rank %d: %w", c, rank, err)
		}
		results = append(results, r.args.Recv)
	}
	return ps.cost, results, c.checkBits(results)
}

// checkBits compares an allreduce across ranks.
func (c trial) checkBits(results [][]byte) error {
	if c.kind != collective.KindAllreduce {
		return nil
	}
	for rank, got := range results {
		if i := differs(got, results[0]); i >= 0 {
			return fmt.Errorf("%v: ranks 0 and %d have other bits in byte %d", c, rank, i)
		}
	}
	return nil
}
