package weft

import (
	"context"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/board"
	"github.com/weft-hpc/weft/internal/wire"
)

// The way of a short collective over shared memory whose like has gone that way before. Checking a
// call and finding its way takes as long as all the rest; so a communicator remembers, for each operation, the
// last call that was right.

// plainCall is a call without options.
type plainCall struct {
	op         uint8
	variant    uint16 // of the operator
	root       int
	el         *elem
	send, recv []byte
	raw        *collective.Op // nil where nothing is reduced
}

// checkedCall is a call that has gone over the board.
type checkedCall struct {
	board      *board.Board // nil: none has
	sig        wire.Signature
	el         *elem
	send, recv int     // lengths
	apart      uintptr // from the one to the other
}

// like tells whether a call is as right as the checked one.
func (k *checkedCall) like(p *plainCall) bool {
	return k.board != nil && k.el == p.el && k.send == len(p.send) && k.recv == len(p.recv) &&
		int(k.sig.Root) == p.root && k.sig.Variant == p.variant &&
		(k.apart == distance(p.send, p.recv) || !touch(p.send, p.recv))
}

// touch tells whether two pieces of memory overlap.
func touch(a, b []byte) bool {
	same, partial := overlap(a, b)
	return same || partial
}

// know remembers a call that goes over the board, if it is short. Who is busy calls it.
func (m *member) know(b *board.Board, call *collCall, sig *wire.Signature) {
	if b.Longest(collOps[call.op].kind, len(call.send), len(call.recv)) > board.Short {
		return
	}
	if m.checked == nil {
		m.checked = new([opExscan + 1]checkedCall)
	}
	m.checked[call.op] = checkedCall{board: b, sig: *sig, el: call.el, send: len(call.send), recv: len(call.recv), apart: distance(call.send, call.recv)}
}

// recall begins a call whose like is known; then m.end is due. Otherwise it returns nil, and has done nothing.
func (c *Comm) recall(p *plainCall, opts []CollOption) *checkedCall {
	if c == nil || len(opts) > 0 || c.closed.Load() || c.w.closed.Load() {
		return nil
	}
	m := &c.coll
	if !m.busy.CompareAndSwap(0, 1) {
		return nil
	}
	if m.checked == nil || !m.checked[p.op].like(p) || c.w.engine.Usable(c.comm) != nil {
		m.end()
		return nil
	}
	m.last++
	return &m.checked[p.op]
}

// again runs a call if its like is known. Otherwise it has done nothing.
func (c *Comm) again(ctx context.Context, p *plainCall, opts []CollOption) (done bool, err error) {
	k := c.recall(p, opts)
	if k == nil {
		return false, nil
	}
	m := &c.coll
	m.sig = k.sig
	m.sig.Seq = m.last
	p.args(&m.args)
	k.board.Start(&m.shared.Run, collOps[p.op].kind, &m.args, &m.sig)
	m.ctx = ctx
	begun, err := m.follow(&m.shared)
	if !begun && err == nil {
		m.ctx = nil
		m.end()
		return true, nil
	}
	return true, c.leave(ctx, &collCall{name: collOps[p.op].name, el: p.el}, begun, err)
}

// startAgain starts a call if its like is known. Otherwise it returns nil, and has done nothing.
func (c *Comm) startAgain(s *Scope, p *plainCall, opts []CollOption) *Request {
	k := c.recall(p, opts)
	if k == nil {
		return nil
	}
	r := s.add(c, collOps[p.op].name, p.el, NoRank, NoRank)
	run := r.collective(nil)
	run.prepare(c)
	run.sig = k.sig
	run.sig.Seq = c.coll.last
	p.args(&run.args[0])
	if !run.begin(k.board, p.op, p.raw != nil, &r.op) {
		c.w.engine.OfferTask(&run.task, c.comm, run.sig, run, &r.op)
	}
	c.coll.end()
	return r
}

// args fills in what differs from call to call.
func (p *plainCall) args(a *collective.Args) {
	a.Send, a.Recv, a.Root = p.send, p.recv, p.root
	if p.raw != nil {
		setOp(&a.Op, p.raw)
	}
}
