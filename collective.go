package weft

import (
	"context"

	"github.com/weft-hpc/weft/collective"
)

// The collectives. All ranks of the communicator call the same ones in the
// same order, with the same root, element type, count and operator. Messages carry
// what was called, so ranks that disagree get ErrMismatch, all of them, as soon as
// one message shows it; if none flows between those who disagree, within a second
// or two, when those who wait say what for. In place means to give the same slice as send and recv; slices
// that overlap in part are ErrOverlap. Lengths may be zero. When a collective fails
// on any rank, for whatever reason, the communicator is revoked: every operation on
// it fails on every rank.
//
// Each has a nonblocking form (Ibcast), which returns a request, and a persistent
// one (PlanBcast), which is run again and again.

// Barrier returns when all ranks have called it. (MPI 4.1, 6.3)
func Barrier(ctx context.Context, c *Comm, opts ...CollOption) error {
	if done, err := c.again(ctx, &plainCall{op: opBarrier}, opts); done {
		return err
	}
	var call collCall
	c.barrierCall(&call, opts)
	return c.run(ctx, &call)
}

// Bcast copies the root's buf to all ranks. (MPI 4.1, 6.4)
func Bcast[T any](ctx context.Context, c *Comm, buf []T, root int, opts ...CollOption) error {
	p := plainCall{op: opBcast, el: elemOf[T](), recv: bytesOf(buf), root: root}
	if done, err := c.again(ctx, &p, opts); done {
		return err
	}
	var call collCall
	c.bcastCall(&call, p.el, p.recv, root, opts)
	return c.run(ctx, &call)
}

// Reduce combines the ranks' send element by element into the root's recv. The
// other ranks' recv is not used and may be nil. (MPI 4.1, 6.9.1)
func Reduce[T any](ctx context.Context, c *Comm, send, recv []T, op Op[T], root int, opts ...CollOption) error {
	p := plainCall{op: opReduce, el: elemOf[T](), send: bytesOf(send), recv: bytesOf(recv), raw: op.raw, variant: op.variant, root: root}
	if done, err := c.again(ctx, &p, opts); done {
		return err
	}
	var call collCall
	c.reduceCall(&call, p.el, p.send, p.recv, op.raw, op.variant, root, opts)
	return c.run(ctx, &call)
}

// Allreduce combines the ranks' send element by element into every rank's
// recv. All ranks get the same bits, and the same ones in every run with as many
// ranks in the same places; see "Reproducible reductions" above for more than
// that. (MPI 4.1, 6.9.6)
func Allreduce[T any](ctx context.Context, c *Comm, send, recv []T, op Op[T], opts ...CollOption) error {
	p := plainCall{op: opAllreduce, el: elemOf[T](), send: bytesOf(send), recv: bytesOf(recv), raw: op.raw, variant: op.variant}
	if done, err := c.again(ctx, &p, opts); done {
		return err
	}
	var call collCall
	c.allreduceCall(&call, "Allreduce", p.el, p.send, p.recv, op.raw, op.variant, opts)
	return c.run(ctx, &call)
}

// ReduceScatterBlock combines the ranks' send element by element, and leaves part
// i of the result in rank i's recv; send holds Size() times as many elements as
// recv. In place: recv is the first part of send, whatever the rank, and the rest
// of send stays as it is. (MPI 4.1, 6.10.1)
func ReduceScatterBlock[T any](ctx context.Context, c *Comm, send, recv []T, op Op[T], opts ...CollOption) error {
	p := plainCall{op: opReduceScatterBlock, el: elemOf[T](), send: bytesOf(send), recv: bytesOf(recv), raw: op.raw, variant: op.variant}
	if done, err := c.again(ctx, &p, opts); done {
		return err
	}
	var call collCall
	c.reduceScatterBlockCall(&call, p.el, p.send, p.recv, op.raw, op.variant, opts)
	return c.run(ctx, &call)
}

// ReduceScatter is ReduceScatterBlock with parts of different lengths: part i has
// counts[i] elements, the same counts on all ranks. (MPI 4.1, 6.10.2)
func ReduceScatter[T any](ctx context.Context, c *Comm, send, recv []T, counts []int, op Op[T], opts ...CollOption) error {
	var call collCall
	c.reduceScatterCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), counts, op.raw, op.variant, opts)
	return c.run(ctx, &call)
}

// Scan leaves in each rank's recv the combination of the send of the ranks 0 to
// itself. (MPI 4.1, 6.11.1)
func Scan[T any](ctx context.Context, c *Comm, send, recv []T, op Op[T], opts ...CollOption) error {
	p := plainCall{op: opScan, el: elemOf[T](), send: bytesOf(send), recv: bytesOf(recv), raw: op.raw, variant: op.variant}
	if done, err := c.again(ctx, &p, opts); done {
		return err
	}
	var call collCall
	c.scanCall(&call, opScan, p.el, p.send, p.recv, op.raw, op.variant, opts)
	return c.run(ctx, &call)
}

// Exscan is Scan without the rank's own send: of the ranks 0 to itself less one.
// Rank 0's recv stays as it is. (MPI 4.1, 6.11.2)
func Exscan[T any](ctx context.Context, c *Comm, send, recv []T, op Op[T], opts ...CollOption) error {
	p := plainCall{op: opExscan, el: elemOf[T](), send: bytesOf(send), recv: bytesOf(recv), raw: op.raw, variant: op.variant}
	if done, err := c.again(ctx, &p, opts); done {
		return err
	}
	var call collCall
	c.scanCall(&call, opExscan, p.el, p.send, p.recv, op.raw, op.variant, opts)
	return c.run(ctx, &call)
}

// Gather collects the ranks' send in the root's recv, in rank order; recv holds
// Size() times as many elements. The other ranks' recv is not used and may be
// nil. In place at the root: send is its own part of recv. (MPI 4.1, 6.5)
func Gather[T any](ctx context.Context, c *Comm, send, recv []T, root int, opts ...CollOption) error {
	p := plainCall{op: opGather, el: elemOf[T](), send: bytesOf(send), recv: bytesOf(recv), root: root}
	if done, err := c.again(ctx, &p, opts); done {
		return err
	}
	var call collCall
	c.gatherCall(&call, p.el, p.send, p.recv, root, opts)
	return c.run(ctx, &call)
}

// Scatter hands out the root's send in rank order; send holds Size() times as
// many elements as each recv. The other ranks' send is not used and may be nil.
// In place at the root: recv is its own part of send. (MPI 4.1, 6.6)
func Scatter[T any](ctx context.Context, c *Comm, send, recv []T, root int, opts ...CollOption) error {
	p := plainCall{op: opScatter, el: elemOf[T](), send: bytesOf(send), recv: bytesOf(recv), root: root}
	if done, err := c.again(ctx, &p, opts); done {
		return err
	}
	var call collCall
	c.scatterCall(&call, p.el, p.send, p.recv, root, opts)
	return c.run(ctx, &call)
}

// Allgather collects the ranks' send in every rank's recv, in rank order; recv
// holds Size() times as many elements. In place: send is the rank's own part of
// recv. (MPI 4.1, 6.7)
func Allgather[T any](ctx context.Context, c *Comm, send, recv []T, opts ...CollOption) error {
	p := plainCall{op: opAllgather, el: elemOf[T](), send: bytesOf(send), recv: bytesOf(recv)}
	if done, err := c.again(ctx, &p, opts); done {
		return err
	}
	var call collCall
	c.allgatherCall(&call, "Allgather", p.el, p.send, p.recv, opts)
	return c.run(ctx, &call)
}

// Alltoall sends part i of send to rank i, and receives part i of recv from it;
// both hold Size() parts of one length. In place: send and recv are the same
// slice. (MPI 4.1, 6.8)
func Alltoall[T any](ctx context.Context, c *Comm, send, recv []T, opts ...CollOption) error {
	p := plainCall{op: opAlltoall, el: elemOf[T](), send: bytesOf(send), recv: bytesOf(recv)}
	if done, err := c.again(ctx, &p, opts); done {
		return err
	}
	var call collCall
	c.alltoallCall(&call, p.el, p.send, p.recv, opts)
	return c.run(ctx, &call)
}

// allreduce and allgather are what this package itself needs.
func (c *Comm) allreduce(ctx context.Context, name string, el *elem, send, recv []byte, op *collective.Op, variant uint16) error {
	var call collCall
	c.allreduceCall(&call, name, el, send, recv, op, variant, nil)
	return c.run(ctx, &call)
}

func (c *Comm) allgather(ctx context.Context, name string, el *elem, send, recv []byte) error {
	var call collCall
	c.allgatherCall(&call, name, el, send, recv, nil)
	return c.run(ctx, &call)
}
