package weft

import (
	"context"
	"fmt"

	"github.com/weft-hpc/weft/internal/progress"
)

// Window is memory of each rank that all ranks of a communicator read and write
// without the owner's help: it need not call anything meanwhile. (MPI 4.1, chapter 12)
//
// Put and Get only start. Flush waits for this rank's own, Fence for everybody's;
// PutNotify tells its target, which finds the data there when Notified returns. Between
// these calls the order of operations, also of one rank's on one target, is not defined,
// and an element that one operation writes must not be touched by another, nor through
// Local. Only FetchAdd and CompareSwap may meet: they are atomic to each other, though
// not to what a program does through Local or with Put. To look at a counter that others
// change, add 0 to it.
//
// Any number of goroutines may call Put, Get, PutNotify, Notified, Flush, FetchAdd and
// CompareSwap at once. Fence and Close are collective: one at a time, the same on all
// ranks.
//
// Transport tells how the window works. Where ranks map each other's memory, or a network card
// reaches into it, operations are copies and card commands, and nothing runs at the
// target. Elsewhere they are messages, which the target's goroutines carry out while they wait in
// other calls, or its I/O goroutine does while the program computes.
type Window[T any] struct {
	win   *window
	local []T
}

// MaxNotify is the largest id of a notification.
const MaxNotify = 1<<30 - 1

// NewWindow makes a window. It is a collective call. Each rank gives the number of its own elements,
// which may differ and be 0; they are zero at first. The memory is the arena's, as with
// Alloc. A rank that cannot give it is an error on all ranks, and c stays usable. (MPI 4.1, 12.2.2:
// MPI_Win_allocate)
//
// The window has a message space of its own. It must be closed before the
// program's function returns.
func NewWindow[T any](ctx context.Context, c *Comm, n int) (*Window[T], error) {
	win, err := c.newWindow(ctx, elemOf[T](), n)
	if err != nil {
		return nil, err
	}
	return &Window[T]{win, sliceOf[T](win.mem)}, nil
}

// Local returns this rank's elements, always the same slice. It must not be used
// after Close.
func (w *Window[T]) Local() []T { return w.local }

// Len returns how many elements a rank has.
func (w *Window[T]) Len(rank int) int { return w.win.lens[rank] }

// Rank returns this process's rank in the window's communicator.
func (w *Window[T]) Rank() int { return w.win.c.rank }

// Size returns the number of ranks.
func (w *Window[T]) Size() int { return w.win.c.size }

// Name returns the window's name, which errors show.
func (w *Window[T]) Name() string { return w.win.c.name }

// Transport tells in a few words how the window works.
func (w *Window[T]) Transport() string { return w.win.ops.about() }

// Put starts to copy src to the target's elements from offset on. src must not be changed until
// Flush of the target, or Fence, has returned. When much is under way to the target,
// Put waits for some of it first; if ctx ends then, nothing was started. A target
// NoRank is nobody. (MPI 4.1, 12.3.1)
func (w *Window[T]) Put(ctx context.Context, target, offset int, src []T) error {
	const call = "Put"
	win := w.win
	if err := win.checkPlace(call, target, offset, len(src)); err != nil || target == NoRank || len(src) == 0 {
		return err
	}
	return win.failure(ctx, call, target, win.ops.put(ctx, target, win.bytes(offset), bytesOf(src), noNotify))
}

// Get starts to copy the target's elements from offset on to dst, which must not be touched until
// Flush of the target, or Fence, has returned. It waits for room as Put
// does. (MPI 4.1, 12.3.2)
func (w *Window[T]) Get(ctx context.Context, target, offset int, dst []T) error {
	const call = "Get"
	win := w.win
	if err := win.checkPlace(call, target, offset, len(dst)); err != nil || target == NoRank || len(dst) == 0 {
		return err
	}
	return win.failure(ctx, call, target, win.ops.get(ctx, target, win.bytes(offset), bytesOf(dst)))
}

// PutNotify is Put, and lets the target's Notified with that id, from 0 to MaxNotify, return once
// the data are there, and all that this rank has put to the target before. src may be
// empty. Notifications are never lost: when some thousands were not waited for, PutNotify and
// Flush wait for the target to do so. (GASPI: gaspi_write_notify)
func (w *Window[T]) PutNotify(ctx context.Context, target, offset int, src []T, id int) error {
	const call = "PutNotify"
	win := w.win
	if id < 0 || id > MaxNotify {
		return win.c.errorf(call, fmt.Errorf("%w: id %d", ErrTag, id), "ids of notifications go from 0 to %d", MaxNotify)
	}
	if err := win.checkPlace(call, target, offset, len(src)); err != nil || target == NoRank {
		return err
	}
	return win.failure(ctx, call, target, win.ops.put(ctx, target, win.bytes(offset), bytesOf(src), int32(id)))
}

// Notified waits for the next notification with that id from source, or AnySource, and
// returns whose it was. Each notification is for one call. If ctx ends first, none is lost.
// (GASPI: gaspi_notify_waitsome, gaspi_notify_reset)
func (w *Window[T]) Notified(ctx context.Context, source, id int) (from int, err error) {
	const call = "Notified"
	win := w.win
	switch {
	case source == NoRank:
		return NoRank, nil
	case id < 0 || id > MaxNotify:
		return NoRank, win.c.errorf(call, fmt.Errorf("%w: id %d", ErrTag, id), "ids of notifications go from 0 to %d", MaxNotify)
	case source < AnySource || source >= win.c.size:
		return NoRank, win.c.errorf(call, fmt.Errorf("%w: source %d", ErrRank, source), "ranks here go from 0 to %d; AnySource is %d", win.c.size-1, AnySource)
	}
	if err := win.checkOpen(call); err != nil {
		return NoRank, err
	}
	win.waiting.Add(1)
	defer win.waiting.Add(-1)
	from, err = win.ops.notified(ctx, int32(source), int32(id))
	if err != nil {
		return NoRank, win.failure(ctx, call, source, err)
	}
	return from, nil
}

// Flush returns when all that this rank has started on the target is done: what was put is
// in its memory, what was got is here. Its error is the first one of these
// operations. If ctx ends first, they go on and own their buffers: Flush again. (MPI 4.1, 12.5.4)
func (w *Window[T]) Flush(ctx context.Context, target int) error {
	const call = "Flush"
	if err := w.win.checkPlace(call, target, 0, 0); err != nil || target == NoRank {
		return err
	}
	_, err := w.win.ops.flush(ctx, target, target+1)
	return w.win.failure(ctx, call, target, err)
}

// FlushAll is Flush of every rank. (MPI 4.1, 12.5.4: MPI_Win_flush_all)
func (w *Window[T]) FlushAll(ctx context.Context) error {
	if err := w.win.checkOpen("FlushAll"); err != nil {
		return err
	}
	return w.win.flushAll(ctx, "FlushAll")
}

// Fence returns when all operations that any rank has started before its own Fence are done.
// It is a collective call. (MPI 4.1, 12.5.1)
func (w *Window[T]) Fence(ctx context.Context) error {
	const call = "Fence"
	win := w.win
	if err := win.checkOpen(call); err != nil {
		return err
	}
	if err := win.flushAll(ctx, call); err != nil {
		return win.c.refuse(ctx, call, err)
	}
	return win.c.collect(ctx, collCall{name: call, op: opFence}, win.barrier)
}

// Close ends the window when all ranks have called it and everybody's operations are done, and
// frees its memory. It is a collective call. If it fails, as for the death of a
// rank, the window is closed all the same, but its memory is freed only when nobody can
// write to it any more, which may be at the end of the world. (MPI 4.1, 12.2.5)
func (w *Window[T]) Close(ctx context.Context) error {
	if err := w.win.close(ctx); err != nil {
		return err
	}
	w.local = nil
	return nil
}

// Word are the elements that FetchAdd and CompareSwap work on: integers of 8 bytes.
type Word interface{ ~int64 | ~uint64 }

// FetchAdd adds to an element of the target and returns what was there before, at once for all
// ranks. It waits until that is done. If ctx ends first, it may or may not happen
// still. (MPI 4.1, 12.3.4: MPI_Fetch_and_op)
func FetchAdd[T Word](ctx context.Context, w *Window[T], target, offset int, add T) (T, error) {
	old, err := w.win.atomic(ctx, "FetchAdd", target, offset, atomicOp{kind: progress.FetchAdd, add: uint64(add)})
	return T(old), err
}

// CompareSwap sets an element of the target to swap if it is expect, and returns what was there
// before. Otherwise it is as FetchAdd. (MPI 4.1, 12.3.4: MPI_Compare_and_swap)
func CompareSwap[T Word](ctx context.Context, w *Window[T], target, offset int, expect, swap T) (T, error) {
	old, err := w.win.atomic(ctx, "CompareSwap", target, offset, atomicOp{kind: progress.CompareSwap, expect: uint64(expect), swap: uint64(swap)})
	return T(old), err
}
