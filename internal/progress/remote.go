package progress

import (
	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

// RemoteKind is the kind of a one-sided operation.
type RemoteKind uint8

// The kinds of one-sided operations.
const (
	Put RemoteKind = iota
	Get
	FetchAdd
	CompareSwap
)

// Remote describes an operation on a window of a peer.
type Remote struct {
	Kind   RemoteKind
	Peer   int // world rank; its transport is a transport.Remote
	Window wire.Region
	Offset uint64 // bytes
	Buf    []byte // of Put and Get
	Add    uint64 // of FetchAdd
	Expect uint64 // of CompareSwap
	Swap   uint64
	// Note is a message to the same peer that is sent behind a Put, so that whoever
	// receives it finds what was put. The caller waits for it as well.
	Note *Call
	Sent *Op // the operation of Note
}

// remotes are the one-sided operations in progress. Engine.mu guards them.
type remotes struct {
	slots   []remoteSlot // by token
	free    []uint32
	waiting []remoteStart // for room in the transport, in order
}

type remoteSlot struct {
	op   *Op // nil: free
	peer int
}

type remoteStart struct {
	op *Op
	r  Remote
}

// StartRemote begins an operation that the caller owns and waits for. Its result is in
// Op.Old.
func (e *Engine) StartRemote(op *Op, r *Remote) {
	e.mu.Lock()
	defer e.mu.Unlock()
	op.Owner = op
	if len(e.remote.waiting) > 0 || !e.startRemote(op, r) {
		e.remote.waiting = append(e.remote.waiting, remoteStart{op, *r})
	}
	e.act()
	if !op.Finished() {
		e.needIO()
	}
}

// startRemote hands an operation to its transport. It reports whether it is over with.
func (e *Engine) startRemote(op *Op, r *Remote) bool {
	err := e.core.Gone(r.Peer)
	if e.closed {
		err = ErrClosed
	}
	if err == nil {
		token := e.remote.take(op, r.Peer)
		t := e.route[r.Peer].(transport.Remote)
		switch r.Kind {
		case Put:
			err = t.Put(r.Peer, r.Window, r.Offset, r.Buf, token)
		case Get:
			err = t.Get(r.Peer, r.Window, r.Offset, r.Buf, token)
		case FetchAdd:
			err = t.FetchAdd(r.Peer, r.Window, r.Offset, r.Add, token)
		case CompareSwap:
			err = t.CompareSwap(r.Peer, r.Window, r.Offset, r.Expect, r.Swap, token)
		}
		switch err {
		case nil:
			e.touched[r.Peer] = true
			if r.Note != nil {
				e.begin(r.Sent, r.Note)
			}
			return true
		case transport.ErrAgain:
			e.remote.give(token)
			return false
		}
		e.remote.give(token)
		e.core.Lost(r.Peer, err)
		err = e.core.Gone(r.Peer)
	}
	op.Err = err
	e.finish(&op.Op)
	if r.Note != nil {
		r.Sent.Owner, r.Sent.Err = r.Sent, err
		e.finish(&r.Sent.Op)
	}
	return true
}

// retryRemote starts what waits for room.
func (e *Engine) retryRemote() (moved int) {
	q := e.remote.waiting
	for moved < len(q) && e.startRemote(q[moved].op, &q[moved].r) {
		moved++
	}
	rest := copy(q, q[moved:])
	clear(q[rest:])
	e.remote.waiting = q[:rest]
	return moved
}

// endRemote ends what is under way with a peer, or with everybody if peer is negative.
func (e *Engine) endRemote(peer int, err error) {
	for token := range e.remote.slots {
		if s := &e.remote.slots[token]; s.op != nil && (peer < 0 || s.peer == peer) {
			op := s.op
			e.remote.give(uint32(token))
			op.Err = err
			e.finish(&op.Op)
		}
	}
}

func (s sink) Done(_ int, token uint32, old uint64) {
	op := s.remote.slots[token].op
	s.remote.give(token)
	op.Old = old
	s.finish(&op.Op)
}

func (x *remotes) take(op *Op, peer int) uint32 {
	n := len(x.free)
	if n == 0 {
		x.slots = append(x.slots, remoteSlot{op, peer})
		return uint32(len(x.slots) - 1)
	}
	token := x.free[n-1]
	x.free = x.free[:n-1]
	x.slots[token] = remoteSlot{op, peer}
	return token
}

func (x *remotes) give(token uint32) {
	x.slots[token] = remoteSlot{}
	x.free = append(x.free, token)
}

// inProgress counts operations that are not done.
func (x *remotes) inProgress() int { return len(x.slots) - len(x.free) + len(x.waiting) }
