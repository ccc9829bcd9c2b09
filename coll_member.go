package weft

import (
	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/progress"
	"github.com/weft-hpc/weft/internal/proto"
)

var _ collective.Peer = (*member)(nil)

func (m *member) Rank() int { return m.c.rank }
func (m *member) Size() int { return m.c.size }

// call is a message of the collective in progress. Its tag is the collective's
// number, so that messages of several in progress do not meet.
func (m *member) call(kind proto.Kind, buf []byte, peer int) progress.Call {
	return progress.Call{Kind: kind, Ctx: m.c.comm.Coll, Peer: int32(peer), Tag: int32(m.sig.Seq & MaxTag), Buf: buf, Sig: &m.sig}
}

// Send implements collective.Peer.
func (m *member) Send(buf []byte, dst int) error {
	return m.c.w.engine.Call(m.ctx, m.call(proto.Send, buf, dst)).Err
}

// Recv implements collective.Peer.
func (m *member) Recv(buf []byte, src int) error {
	return progress.Filled(len(buf), m.c.w.engine.Call(m.ctx, m.call(proto.Recv, buf, src)))
}

// Sendrecv implements collective.Peer.
func (m *member) Sendrecv(send []byte, dst int, recv []byte, src int) error {
	s, r := m.c.w.engine.Pair(m.ctx, m.call(proto.Send, send, dst), m.call(proto.Recv, recv, src))
	if s.Err != nil && r.Err == nil {
		return s.Err
	}
	return progress.Filled(len(recv), r)
}

// PostSend implements collective.Peer.
func (m *member) PostSend(buf []byte, dst int) { m.post(m.call(proto.Send, buf, dst)) }

// PostRecv implements collective.Peer.
func (m *member) PostRecv(buf []byte, src int) { m.post(m.call(proto.Recv, buf, src)) }

func (m *member) post(call progress.Call) {
	if m.posted == len(m.ops) {
		m.ops = append(m.ops, new(progress.Op))
	}
	op := m.ops[m.posted]
	m.posted++
	m.c.w.engine.Start(op, &call)
}

// Finish implements collective.Peer. After an error it withdraws what it can, and
// returns when nothing touches the buffers any more.
func (m *member) Finish() (err error) {
	for _, op := range m.ops[:m.posted] {
		if err != nil {
			m.c.w.engine.Cancel(op)
		}
		m.c.w.engine.Wait(m.ctx, op)
		r := progress.Result{Status: op.Status, Err: op.Err}
		if op.Kind == proto.Recv {
			r.Err = progress.Filled(len(op.Buf), r)
		}
		op.Recycle()
		if err == nil {
			err = r.Err
		}
	}
	m.posted = 0
	return err
}

// Scratch implements collective.Peer.
func (m *member) Scratch(slot, n int) []byte {
	if cap(m.scratch[slot]) < n {
		m.scratch[slot] = make([]byte, n)
	}
	return m.scratch[slot][:n]
}
