package weft

import (
	"context"

	"github.com/weft-hpc/weft/internal/progress"
	"github.com/weft-hpc/weft/internal/wire"
)

// remoteOps works by a transport that reaches into the windows of its peers. Atomics
// on the own window go the same way, for what a card does is atomic only to that card.
type remoteOps struct {
	windowBase
	regions []wire.Region // by rank
	queues  []opQueue     // by rank
}

func (card *windowCard) region() wire.Region {
	return wire.Region{Kind: card.Kind, Key: card.Key, Addr: card.Addr}
}

func newRemoteOps(w *window, cards []windowCard) *remoteOps {
	r := &remoteOps{windowBase: windowBase{w}, queues: newOpQueues(w.c.size)}
	for i := range cards {
		r.regions = append(r.regions, cards[i].region())
	}
	return r
}

func (r *remoteOps) about() string { return "remote: the transport reaches into every rank's memory" }

func (r *remoteOps) put(ctx context.Context, target int, off uint64, src []byte, notify int32) error {
	e := r.c.w.engine
	if target == r.c.rank {
		copyPieces(r.mem[off:], src)
		src = nil
	}
	if len(src) == 0 && notify == noNotify {
		return nil
	}
	q := &r.queues[target]
	if err := q.room(ctx, e, 2); err != nil {
		return r.notStarted(err)
	}
	defer q.mu.Unlock()
	s := q.push()
	if target == r.c.rank { // what it tells of is there
		s.note = r.note(target, notify)
		e.Start(&s.op, &s.note)
		return nil
	}
	s.buf = src
	op := progress.Remote{Kind: progress.Put, Peer: r.world(target), Window: r.regions[target], Offset: off, Buf: src}
	if notify != noNotify {
		s.note = r.note(target, notify)
		op.Note, op.Sent = &s.note, &q.push().op
	}
	e.StartRemote(&s.op, &op)
	return nil
}

func (r *remoteOps) get(ctx context.Context, target int, off uint64, dst []byte) error {
	if target == r.c.rank {
		copyPieces(dst, r.mem[off:off+uint64(len(dst))])
		return nil
	}
	q := &r.queues[target]
	if err := q.room(ctx, r.c.w.engine, 1); err != nil {
		return r.notStarted(err)
	}
	defer q.mu.Unlock()
	s := q.push()
	s.buf = dst
	r.c.w.engine.StartRemote(&s.op, &progress.Remote{Kind: progress.Get, Peer: r.world(target), Window: r.regions[target], Offset: off, Buf: dst})
	return nil
}

func (r *remoteOps) atomic(ctx context.Context, target int, off uint64, op atomicOp) (uint64, error) {
	q := &r.queues[target]
	a := q.takeAtomic()
	r.c.w.engine.StartRemote(&a.op, &progress.Remote{Kind: op.kind, Peer: r.world(target), Window: r.regions[target], Offset: off,
		Add: op.add, Expect: op.expect, Swap: op.swap})
	err := q.finishAtomic(ctx, r.c.w.engine, a)
	if err == errStillOn {
		return 0, err
	}
	old := a.op.Old
	q.giveAtomic(a)
	return old, err
}

func (r *remoteOps) flush(ctx context.Context, first, end int) (int, error) {
	return r.drain(ctx, r.queues, first, end)
}

func (r *remoteOps) stop(bool) (bool, error) {
	err := r.c.w.engine.Withdraw(r.c.comm.Members(), r.region)
	return err == nil, err
}

// drain waits for what is under way to the targets from first to before end.
func (b windowBase) drain(ctx context.Context, queues []opQueue, first, end int) (target int, err error) {
	for t := first; t < end; t++ {
		e := queues[t].drain(ctx, b.c.w.engine)
		if e == nil && t != b.c.rank {
			e = b.c.w.engine.Reachable(b.c.comm, b.world(t))
		}
		if e != nil && err == nil {
			target, err = t, e
		}
	}
	return target, err
}

// notStarted is the error of a call that found no room until its context ended.
func (b windowBase) notStarted(err error) error {
	if err == errStillOn {
		return errNoRoom
	}
	return err
}
