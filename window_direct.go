package weft

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/progress"
	"github.com/weft-hpc/weft/internal/proto"
)

// windowBase is what the ways have in common: a notification is an empty message whose
// tag is its id.
type windowBase struct{ *window }

func (b windowBase) notified(ctx context.Context, source, id int32) (int, error) {
	r := b.c.w.engine.Call(ctx, progress.Call{Kind: proto.Recv, Ctx: b.c.comm.P2P, Peer: source, Tag: id})
	return int(r.Status.Source), r.Err
}

func (b windowBase) note(target int, id int32) progress.Call {
	return progress.Call{Kind: proto.Send, Ctx: b.c.comm.P2P, Peer: int32(target), Tag: id}
}

// world returns the rank in the world.
func (b windowBase) world(target int) int { return int(b.c.comm.Members()[target]) }

// directOps copies: every rank's part is mapped here.
//
// What a rank has put is visible to whoever hears of it by a message, a notification
// or a barrier's, since the queues of the transports publish their frames with atomic stores.
type directOps struct {
	windowBase
	parts [][]byte // by rank
}

func (d *directOps) mapAll(cards []windowCard) (err error) {
	m := d.c.w.engine.Mapper(d.c.comm.Members())
	for r := range cards {
		n := d.lens[r] * d.el.size
		switch {
		case r == d.c.rank:
			d.parts[r] = d.mem
		case n > 0 && m == nil:
			return progress.ErrClosed
		case n > 0:
			if d.parts[r], err = m.Map(d.world(r), cards[r].region(), n); err != nil {
				return fmt.Errorf("map the window of rank %d: %w", r, err)
			}
		}
	}
	return nil
}

func (d *directOps) about() string {
	if d.c.size == 1 {
		return "direct: one rank"
	}
	return "direct: every rank's memory is mapped"
}

func (d *directOps) put(ctx context.Context, target int, off uint64, src []byte, notify int32) error {
	copyPieces(d.parts[target][off:], src)
	if notify == noNotify {
		return nil
	}
	return d.c.w.engine.Call(ctx, d.note(target, notify)).Err
}

func (d *directOps) get(_ context.Context, target int, off uint64, dst []byte) error {
	copyPieces(dst, d.parts[target][off:off+uint64(len(dst))])
	return nil
}

func (d *directOps) atomic(_ context.Context, target int, off uint64, op atomicOp) (uint64, error) {
	if err := d.c.w.engine.Reachable(d.c.comm, d.world(target)); err != nil {
		return 0, err
	}
	return op.do(wordAt(d.parts[target], off)), nil
}

func (d *directOps) flush(_ context.Context, first, end int) (int, error) {
	for target := first; target < end; target++ {
		if err := d.c.w.engine.Reachable(d.c.comm, d.world(target)); err != nil {
			return target, err
		}
	}
	return 0, nil
}

func (d *directOps) stop(clean bool) (bool, error) { return clean, nil }

// do carries an atomic out on memory that only processors touch.
func (op *atomicOp) do(p *uint64) (old uint64) {
	if op.kind == progress.FetchAdd {
		return atomic.AddUint64(p, op.add) - op.add
	}
	for {
		old = atomic.LoadUint64(p)
		if old != op.expect || atomic.CompareAndSwapUint64(p, old, op.swap) {
			return old
		}
	}
}

// copyPiece bounds a copy that the scheduler and the collector cannot interrupt.
const copyPiece = 512 << 10

func copyPieces(dst, src []byte) {
	for len(src) > copyPiece {
		copy(dst[:copyPiece], src)
		dst, src = dst[copyPiece:], src[copyPiece:]
	}
	copy(dst, src)
}
