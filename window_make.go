package weft

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/progress"
	"github.com/weft-hpc/weft/internal/proto"
	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

// window is a Window without its element type.
type window struct {
	c       *Comm // the window's own
	el      *elem
	lens    []int  // elements, by rank
	mem     []byte // this rank's elements
	whole   []byte // mem as it was allocated, never empty
	region  wire.Region
	ops     windowOps
	waiting atomic.Int32 // calls of Notified
	closed  atomic.Bool
}

// windowOps is a way for a window to work; all ranks have the same. Places
// are checked by the caller, offsets are in bytes, and lengths not zero but for a put that
// notifies.
type windowOps interface {
	about() string
	put(ctx context.Context, target int, off uint64, src []byte, notify int32) error
	get(ctx context.Context, target int, off uint64, dst []byte) error
	atomic(ctx context.Context, target int, off uint64, op atomicOp) (old uint64, err error)
	notified(ctx context.Context, source, id int32) (from int, err error)
	// flush waits for operations on the targets from first to before end. It returns the
	// target that the error is about.
	flush(ctx context.Context, first, end int) (target int, err error)
	// stop ends the window's use of its memory, which everybody is done with if
	// clean is true. It reports whether the memory can be freed.
	stop(clean bool) (free bool, err error)
}

// noNotify as an id is a put without a notification.
const noNotify = -1

type atomicOp struct {
	kind         progress.RemoteKind
	add          uint64
	expect, swap uint64
}

// The ways for a window to work, the best one first.
const (
	wayDirect = iota
	wayRemote
	wayMessages
)

var wayNames = [...]string{"direct", "remote", "messages"}

// windowCard is what the ranks tell each other when they make a window.
type windowCard struct {
	Len    uint64 // elements
	Type   uint32 // hash of the element type
	Failed uint32 // an index in windowFaults
	Ways   uint64 // that this rank can go, a bit for each
	Kind   uint32 // of the region that peers use
	Key    uint32
	Addr   uint64
}

// windowFaults are why a rank cannot give its part. Other ranks get an error that says so
// for them.
var windowFaults = [...]error{nil, ErrElemType, ErrCount, ErrMemory, ErrTransport}

func (card *windowCard) fail(err error) {
	for code, fault := range windowFaults {
		if code > 0 && errors.Is(err, fault) {
			card.Failed = uint32(code)
			return
		}
	}
	card.Failed = uint32(len(windowFaults) - 1)
}

func (c *Comm) newWindow(ctx context.Context, el *elem, n int) (*window, error) {
	c.mustBeOpen()
	const call = "NewWindow"
	name := fmt.Sprintf("%s/window%d", c.name, c.windows.Add(1))
	own, err := c.derive(ctx, call, name, c.comm.Members(), c.rank)
	if err != nil {
		return nil, err
	}
	w := &window{c: own, el: el}
	card := windowCard{Len: uint64(max(n, 0)), Type: el.hash}
	failed := w.allocate(n)
	if failed == nil {
		card.Ways = w.ways()
	} else {
		card.fail(failed)
	}
	// First round: who has how much, and how everybody can be reached.
	cards, err := w.exchange(ctx, &card)
	if err != nil {
		w.free()
		return nil, err
	}
	if err := w.agreed(cards, failed); err != nil {
		w.free()
		return nil, errors.Join(err, own.Close(ctx))
	}
	ways := ^uint64(0)
	for i := range cards {
		ways &= cards[i].Ways
		w.lens = append(w.lens, int(cards[i].Len))
	}
	way := wayDirect
	for ways>>way&1 == 0 {
		way++
	}
	// Second round: this rank's part is there.
	card.Failed = 0
	if failed = w.open(way, cards, &card); failed != nil {
		card.fail(failed)
	}
	if cards, err = w.exchange(ctx, &card); err != nil {
		return nil, err // somebody may use the memory by now, so it is not freed
	}
	if err := w.agreed(cards, failed); err != nil {
		return nil, errors.Join(err, own.Close(ctx))
	}
	w.start(way, cards)
	c.w.windows.Add(1)
	return w, nil
}

// allocate gets this rank's memory.
func (w *window) allocate(n int) error {
	const call = "NewWindow"
	c, size := w.c, w.el.size
	switch {
	case w.el.err != nil:
		return c.errorf(call, w.el.err, "")
	case n < 0:
		return c.errorf(call, fmt.Errorf("%w: %d elements", ErrCount, n), "ask for a number of elements that is not negative")
	case n > maxBytes/size:
		return c.errorf(call, fmt.Errorf("%w: %d of %v", ErrMemory, n, w.el.typ), "no computer has that much")
	}
	bytes := max(n*size, 8)
	if c.w.arena == nil {
		w.whole = bytesOf(make([]uint64, (bytes+7)/8))
	} else {
		mem, err := c.w.arena.Alloc(bytes)
		if err != nil {
			return c.errorf(call, fmt.Errorf("%w: %d of %v: %w", ErrMemory, n, w.el.typ, err), "free what is not needed, or start the job with a larger --arena")
		}
		clear(mem)
		w.whole = mem
	}
	w.mem = w.whole[: n*size : n*size]
	return nil
}

func (w *window) free() error {
	mem := w.whole
	w.mem, w.whole = nil, nil
	if mem == nil || w.c.w.arena == nil {
		return nil
	}
	return w.c.w.arena.Free(mem)
}

// ways finds out how this rank reaches the others, and can be reached.
func (w *window) ways() uint64 {
	engine, peers := w.c.w.engine, w.c.comm.Members()
	ways := uint64(1 << wayMessages)
	if engine.Remote(peers) {
		ways |= 1 << wayRemote
	}
	var mapped bool
	if m := engine.Mapper(peers); m != nil {
		w.region, mapped = m.Reach(w.whole)
	}
	if mapped || len(peers) == 1 {
		ways |= 1 << wayDirect
	}
	for way, name := range wayNames {
		if via := w.c.w.windowVia; via != "" && via != name {
			ways &^= 1 << way
		}
	}
	return ways
}

// exchange tells all ranks the card of each.
func (w *window) exchange(ctx context.Context, card *windowCard) ([]windowCard, error) {
	card.Kind, card.Key, card.Addr = w.region.Kind, w.region.Key, w.region.Addr
	cards := make([]windowCard, w.c.size)
	err := w.c.allgather(ctx, "NewWindow", elemOf[windowCard](), bytesOf([]windowCard{*card}), bytesOf(cards))
	return cards, err
}

// agreed tells why no window comes of the cards, the same on all ranks but for the
// details, which the rank that failed has.
func (w *window) agreed(cards []windowCard, mine error) error {
	const call = "NewWindow"
	if mine != nil {
		return mine
	}
	ways := ^uint64(0)
	for r := range cards {
		card := &cards[r]
		fail := func(err error, hint string) error {
			e := w.c.errorf(call, err, "%s", hint)
			e.Peer = r
			return e
		}
		switch {
		case card.Failed != 0:
			return fail(fmt.Errorf("%w on that rank", windowFaults[min(int(card.Failed), len(windowFaults)-1)]), "see that rank's own error")
		case card.Type != w.el.hash:
			return fail(fmt.Errorf("%w: it makes one of %s, this rank of %v", ErrMismatch, typeName(card.Type), w.el.typ), "give the same element type on all ranks")
		case card.Len > maxBytes:
			return fail(fmt.Errorf("%w: it announces %d elements", ErrMemory, card.Len), "that rank is broken")
		}
		ways &= card.Ways
	}
	if ways == 0 {
		return w.c.errorf(call, ErrTransport, "the ranks have no way to a window in common") // only tests forbid messages
	}
	return nil
}

// open prepares this rank for the way that all ranks go.
func (w *window) open(way int, cards []windowCard, mine *windowCard) (err error) {
	switch way {
	case wayDirect:
		d := &directOps{windowBase: windowBase{w}, parts: make([][]byte, len(cards))}
		w.ops = d
		if err = d.mapAll(cards); err != nil {
			err = w.c.errorf("NewWindow", fmt.Errorf("%w: %w", ErrTransport, err), "")
		}
	case wayRemote:
		w.region, err = w.c.w.engine.Grant(w.c.comm.Members(), w.whole, w.access())
		if err != nil {
			err = w.c.errorf("NewWindow", fmt.Errorf("%w: %w", ErrTransport, err), "")
		}
	}
	return err
}

// access is what peers have to be able to do.
func (w *window) access() transport.Access {
	access := transport.Readable | transport.Writable
	switch w.el.typ.Kind() {
	case reflect.Int64, reflect.Uint64:
		access |= transport.Atomic
	}
	return access
}

// start makes the window usable: all ranks have opened theirs.
func (w *window) start(way int, cards []windowCard) {
	switch way {
	case wayRemote:
		w.ops = newRemoteOps(w, cards)
	case wayMessages:
		w.ops = newMessageOps(w)
	}
}

func (w *window) bytes(elements int) uint64 { return uint64(elements) * uint64(w.el.size) }

func (w *window) checkOpen(call string) error {
	if w.closed.Load() {
		return w.c.errorf(call, ErrArgument, "the window is closed")
	}
	w.c.mustBeOpen()
	return nil
}

// checkPlace checks that the window is open, and has count elements at an offset of the target.
func (w *window) checkPlace(call string, target, offset, count int) error {
	if err := w.checkOpen(call); err != nil || target == NoRank {
		return err
	}
	if target < 0 || target >= w.c.size {
		return w.c.errorf(call, fmt.Errorf("%w: target %d", ErrRank, target), "ranks here go from 0 to %d", w.c.size-1)
	}
	if n := w.lens[target]; offset < 0 || offset > n || count > n-offset {
		e := w.c.errorf(call, fmt.Errorf("%w: %d elements at offset %d, and rank %d has %d of %v", ErrRange, count, offset, target, n, w.el.typ),
			"Len tells how many a rank has")
		e.Peer = target
		return e
	}
	return nil
}

func (w *window) atomic(ctx context.Context, call string, target, offset int, op atomicOp) (uint64, error) {
	if target == NoRank {
		return 0, w.c.errorf(call, fmt.Errorf("%w: target NoRank", ErrRank), "there is no element there to return")
	}
	if err := w.checkPlace(call, target, offset, 1); err != nil {
		return 0, err
	}
	old, err := w.ops.atomic(ctx, target, w.bytes(offset), op)
	return old, w.failure(ctx, call, target, err)
}

// failure makes the error of an operation, nil if err is.
func (w *window) failure(ctx context.Context, call string, target int, err error) error {
	if err == nil {
		return nil
	}
	e := w.c.errorf(call, err, "")
	e.Peer = target
	switch {
	case errors.Is(err, errStillOn):
		e.Err = context.Cause(ctx)
		e.Hint = "operations that have started go on and own their buffers; Flush again to wait for them"
	case errors.Is(err, errNoRoom):
		e.Err = context.Cause(ctx)
		e.Hint = fmt.Sprintf("nothing was started: %d operations are under way to that rank", queueDepth)
	case errors.Is(err, proto.ErrCanceled):
		e.Err = context.Cause(ctx)
		e.Hint = "no notification was taken or sent"
	case errors.Is(err, ErrRankFailed):
		e.lost = proto.LostRank(err)
		e.Hint = "what was under way to that rank is lost; its own message says why it ended"
	case errors.Is(err, ErrRankLeft):
		e.Hint = "the other rank returned from its function while this one still needed it"
	case errors.Is(err, ErrRevoked):
		e.Hint = "a Fence or Close has failed on some rank, and the window cannot be used any more"
	}
	return e
}

var (
	// errStillOn is the end of a context while operations are under way.
	errStillOn = errors.New("operations go on")
	// errNoRoom is the end of a context before an operation could start.
	errNoRoom = errors.New("no room")
)

func (w *window) flushAll(ctx context.Context, call string) error {
	target, err := w.ops.flush(ctx, 0, w.c.size)
	return w.failure(ctx, call, target, err)
}

func (w *window) barrier(m *member) error {
	if w.c.w.crowded {
		return collective.CrowdedBarrier(m)
	}
	return collective.Barrier(m)
}

func (w *window) close(ctx context.Context) error {
	const call = "Close"
	if err := w.checkOpen(call); err != nil {
		return err
	}
	if n := w.waiting.Load(); n > 0 {
		return w.c.errorf(call, ErrPending, "%d calls of Notified wait on it; end them, then close it again: the other ranks wait for that", n)
	}
	if !w.closed.CompareAndSwap(false, true) {
		return w.c.errorf(call, ErrArgument, "the window is closed")
	}
	defer w.c.w.windows.Add(-1)
	err := w.flushAll(ctx, call)
	if err != nil {
		err = w.c.refuse(ctx, call, err)
	} else {
		err = w.c.collect(ctx, collCall{name: call, op: opClose}, w.barrier)
	}
	free, errStop := w.ops.stop(err == nil)
	w.c.closed.Store(true)
	w.c.w.engine.Do(func(core *proto.Core) { core.Close(w.c.comm) })
	if free {
		errStop = errors.Join(errStop, w.free())
	}
	if errStop != nil {
		errStop = w.c.errorf(call, errStop, "")
	}
	return errors.Join(err, errStop)
}
