package progress

import (
	"github.com/weft-hpc/weft/internal/proto"
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
	Peer   int // world rank, the own one too; its transport is a transport.Remote
	Window wire.Region
	Offset uint64 // bytes
	Buf    []byte // of Put and Get; an empty Put is only a Note behind earlier ones
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
	if e.closed.Load() {
		err = ErrClosed
	}
	if err == nil && r.Kind == Put && len(r.Buf) == 0 {
		e.finish(&op.Op)
		e.begin(r.Sent, r.Note)
		return true
	}
	if err == nil {
		token := e.remote.take(op, r.Peer)
		t := e.remoteTo(r.Peer)
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

// remoteTo returns the transport to the windows of a rank. Those of this rank itself are
// reached by a device as well, so that an atomic is one for all who use it.
func (e *Engine) remoteTo(peer int) transport.Remote {
	if t, ok := e.route[peer].(transport.Remote); ok {
		return t
	}
	for _, t := range e.transports {
		if t, ok := t.(transport.Remote); ok {
			return t
		}
	}
	panic("progress: no transport to the window of that rank")
}

// common returns the transport that leads to all peers but this rank itself, or nil.
func (e *Engine) common(peers []int32) (t transport.Transport) {
	for _, p := range peers {
		switch r := e.route[p]; {
		case r == nil:
		case t == nil:
			t = r
		case t != r:
			return nil
		}
	}
	return t
}

// Mapper returns the transport that maps the memory of all peers but this rank itself, or nil.
func (e *Engine) Mapper(peers []int32) transport.Mapper {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed.Load() {
		return nil
	}
	m, _ := e.common(peers).(transport.Mapper)
	return m
}

// Remote tells whether one transport reaches into the windows of all peers.
func (e *Engine) Remote(peers []int32) bool {
	_, ok := e.common(peers).(transport.Remote)
	return ok
}

// Grant opens mem to peers for StartRemote.
func (e *Engine) Grant(peers []int32, mem []byte, access transport.Access) (wire.Region, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed.Load() {
		return wire.Region{}, ErrClosed
	}
	return e.common(peers).(transport.Remote).Grant(mem, access)
}

// Withdraw ends a Grant.
func (e *Engine) Withdraw(peers []int32, r wire.Region) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed.Load() {
		return ErrClosed
	}
	return e.common(peers).(transport.Remote).Withdraw(r)
}

// Reachable returns why nothing that belongs to a communicator reaches a rank of the world any
// more, or nil.
func (e *Engine) Reachable(m *proto.Comm, peer int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := m.Err(); err != nil {
		return err
	}
	return e.core.Gone(peer)
}
