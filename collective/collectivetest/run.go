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

// vector returns a rank's elements.
func (c trial) vector(rank int) []byte {
	n := c.count * c.op.size
	out := make([]byte, 0, n)
	// The pattern repeats, at a length that has nothing to do with that of a block.
	for i := range min(c.count, period) {
		out = out[:len(out)+c.op.size]
		c.op.element(out[len(out)-c.op.size:], rank, i)
	}
	for len(out) < n {
		out = append(out, out[:min(period*c.op.size, n-len(out))]...)
	}
	return out
}

const period = 1021

// data are the elements of all ranks, one after the other, and their reduction
// in rank order if the trial reduces. They are made once for all ranks of a
// trial, and only read.
type data struct {
	blocks, folded []byte
}

func (c trial) data() data {
	var d data
	if c.kind == collective.KindBarrier {
		return d
	}
	for rank := range c.ranks {
		d.blocks = append(d.blocks, c.vector(rank)...)
	}
	if c.kind.Reduces() && c.op.exact {
		op, n := c.op.op(), c.count*c.op.size
		d.folded = bytes.Clone(d.blocks[:n])
		for rank := 1; rank < c.ranks; rank++ {
			op.Left(d.folded, d.blocks[rank*n:][:n])
		}
	}
	return d
}

// rankCall is one rank's buffers. sent and want are what send and recv must hold
// after the call. A nil sent is one that is overwritten; a nil want with bytes in
// recv is a result with rounding, compared with other ranks only.
type rankCall struct {
	send, recv guarded
	sent, want []byte
	args       collective.Args
}

func (c trial) prepare(d data, rank int) rankCall {
	isRoot := !c.kind.Rooted() || rank == c.root
	isNil := rank%2 == 0
	block := c.count * c.op.size
	own := func(rank int) []byte { return d.blocks[rank*block:][:block] }
	r := rankCall{send: newGuarded(0, isNil), recv: newGuarded(0, isNil)}
	r.args.Root = c.root
	switch c.kind {
	case collective.KindBcast:
		r.want = own(c.root)
		r.recv = newGuarded(block, isNil)
		if isRoot {
			copy(r.recv.buf, r.want)
		}
		r.args.Recv = r.recv.buf
	case collective.KindGather, collective.KindAllgather:
		r.sent = own(rank)
		if isRoot {
			r.recv = newGuarded(c.ranks*block, isNil)
			r.want = d.blocks
		}
		r.args.Recv = r.recv.buf
		if isRoot && c.inPlace {
			r.args.Send = r.recv.buf[rank*block:][:block]
		} else {
			r.send = newGuarded(block, isNil)
			r.args.Send = r.send.buf
		}
		copy(r.args.Send, r.sent)
	case collective.KindScatter:
		r.want = own(rank)
		if isRoot {
			r.sent = d.blocks
			r.send = newGuarded(c.ranks*block, isNil)
			copy(r.send.buf, r.sent)
		}
		r.args.Send = r.send.buf
		if isRoot && c.inPlace {
			r.args.Recv = r.send.buf[rank*block:][:block]
		} else {
			r.recv = newGuarded(block, isNil)
			r.args.Recv = r.recv.buf
		}
	case collective.KindReduce, collective.KindAllreduce:
		r.args.Op = c.op.op()
		r.sent = own(rank)
		if isRoot {
			r.recv = newGuarded(block, isNil)
			r.want = d.folded
		}
		r.args.Recv = r.recv.buf
		if isRoot && c.inPlace {
			r.args.Send = r.recv.buf
		} else {
			r.send = newGuarded(block, isNil)
			r.args.Send = r.send.buf
		}
		copy(r.args.Send, r.sent)
		if isRoot && c.inPlace {
			r.sent = nil
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
	if r.sent != nil && !bytes.Equal(r.args.Send, r.sent) {
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
	}
	return fmt.Errorf("collectivetest: no entry point for %v", c.kind)
}

// run makes the call on all ranks of a world, checks every buffer, and returns
// what was counted and what every rank received.
func (c trial) run(w World) (cost collective.Cost, results [][]byte, err error) {
	ps := newProbes(c.ranks)
	d := c.data()
	calls := make([]rankCall, c.ranks)
	errs := w(c.ranks, func(p collective.Peer) error {
		r := c.prepare(d, p.Rank())
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
