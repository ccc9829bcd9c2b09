package weft

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/proto"
)

// Comm is a communicator: a group of ranks with a message space of its own, so
// that messages and collectives on one never meet those on another. Any number
// of goroutines may use it at once, for one collective at a time.
type Comm struct {
	w      *World
	name   string
	comm   *proto.Comm
	rank   int
	size   int
	closed atomic.Bool
	coll   member
	shared shared
	hosted hosted
	choice choice

	windows atomic.Int32 // made so far, for their names
}

func (w *World) newComm(name string, pc *proto.Comm, index int, incarnation uint32) *Comm {
	c := &Comm{w: w, name: name, comm: pc, rank: int(pc.P2P.Rank()), size: len(pc.Members())}
	c.coll.c = c
	c.shared.index, c.shared.incarnation = index, incarnation
	return c
}

// Rank returns this process's rank in the communicator, from 0 to Size()-1.
func (c *Comm) Rank() int { return c.rank }

// Size returns the number of ranks.
func (c *Comm) Size() int { return c.size }

// Name returns the communicator's name, which errors show.
func (c *Comm) Name() string { return c.name }

// World returns the world that the communicator is part of.
func (c *Comm) World() *World { return c.w }

func (c *Comm) mustBeOpen() {
	if c == nil {
		panic("weft: nil communicator")
	}
	if c.closed.Load() {
		panic("weft: communicator " + c.name + " is closed")
	}
	if c.w.closed.Load() {
		panic("weft: the world is closed")
	}
}

// Dup returns a communicator with the same ranks and a message space of its
// own. It is a collective call. (MPI 4.1, 7.4.2)
func (c *Comm) Dup(ctx context.Context, name string) (*Comm, error) {
	return c.derive(ctx, "Dup", name, c.comm.Members(), c.rank)
}

// Undefined as the color of Split makes a rank part of no new communicator.
const Undefined = -1

// Split returns a communicator of the ranks that gave the same color, in order
// of key and then of rank here; nil where color is Undefined. It is a
// collective call. (MPI 4.1, 7.4.2)
func (c *Comm) Split(ctx context.Context, color, key int) (*Comm, error) {
	if color < Undefined {
		return nil, c.refuse(ctx, "Split", c.errorf("Split", fmt.Errorf("%w: color %d", ErrArgument, color), "colors are not negative, or Undefined"))
	}
	type vote struct{ Color, Key, Rank int64 }
	mine := []vote{{int64(color), int64(key), int64(c.rank)}}
	votes := make([]vote, c.size)
	if err := c.allgather(ctx, "Split", elemOf[vote](), bytesOf(mine), bytesOf(votes)); err != nil {
		return nil, err
	}
	votes = slices.DeleteFunc(votes, func(v vote) bool { return v.Color != int64(color) || color == Undefined })
	slices.SortFunc(votes, func(a, b vote) int {
		switch {
		case a.Key != b.Key && a.Key < b.Key, a.Key == b.Key && a.Rank < b.Rank:
			return -1
		}
		return 1
	})
	members, rank := make([]int32, len(votes)), -1
	for i, v := range votes {
		members[i] = c.comm.Members()[v.Rank]
		if v.Rank == int64(c.rank) {
			rank = i
		}
	}
	return c.derive(ctx, "Split", fmt.Sprintf("%s/%d", c.name, color), members, rank)
}

// SplitNode returns a communicator of the ranks on this host. (MPI 4.1, 7.4.2:
// MPI_COMM_TYPE_SHARED)
func (c *Comm) SplitNode(ctx context.Context) (*Comm, error) {
	return c.Split(ctx, c.w.node, 0)
}

// Group returns a communicator of the given ranks in that order; nil on the
// others. It is a collective call of all ranks of c, with the same list. (MPI
// 4.1, 7.4.2: MPI_Comm_create)
func (c *Comm) Group(ctx context.Context, ranks []int) (*Comm, error) {
	seen := make(map[int]bool, len(ranks))
	members, mine := make([]int32, len(ranks)), -1
	for i, r := range ranks {
		if r < 0 || r >= c.size || seen[r] {
			return nil, c.refuse(ctx, "Group", c.errorf("Group", fmt.Errorf("%w: rank %d", ErrRank, r), "give each rank from 0 to %d at most once", c.size-1))
		}
		seen[r] = true
		members[i] = c.comm.Members()[r]
		if r == c.rank {
			mine = i
		}
	}
	return c.derive(ctx, "Group", c.name+"/group", members, mine)
}

// Close gives the communicator back. It is a collective call; messages that
// nobody received are dropped. (MPI 4.1, 7.4.3)
func (c *Comm) Close(ctx context.Context) error {
	c.mustBeOpen()
	if c == c.w.comm {
		return c.errorf("Close", ErrArgument, "the world's communicator ends with the world; close only what Dup, Split and Group returned")
	}
	var pending int
	c.w.engine.Do(func(core *proto.Core) { pending = core.Receives(c.comm) })
	if pending > 0 {
		return c.errorf("Close", ErrPending, "complete or cancel %d receives on it, then close it again: the other ranks wait for that", pending)
	}
	barrier := c.collect(ctx, collCall{name: "Close", op: opClose}, func(p *member) error { return collective.Barrier(p) })
	c.closed.Store(true)
	if barrier == nil {
		barrier = c.closeBoards()
	}
	c.w.engine.Do(func(core *proto.Core) { core.Close(c.comm) })
	return barrier
}

// derive opens a communicator, whose context id all ranks of c agree on even
// if they are not members, in which case rank is -1 and the result nil.
func (c *Comm) derive(ctx context.Context, call, name string, members []int32, rank int) (*Comm, error) {
	c.mustBeOpen()
	if name == "" {
		name = c.name + "'"
	}
	for wait := time.Microsecond; ; wait = min(2*wait, time.Millisecond) {
		// Another goroutine may be opening a communicator from another parent. The
		// two cannot wait for each other, since other ranks may take them in the
		// other order: the one that comes second offers no id and tries again.
		mine := c.w.opening.TryLock()
		child, again, err := c.agree(ctx, call, name, members, rank, mine)
		if mine {
			c.w.opening.Unlock()
		}
		switch {
		case err != nil:
			return nil, err
		case again:
			time.Sleep(wait)
			continue
		}
		return child, nil
	}
}

// offer is what each rank brings to the choice of a context id, and the offers'
// combination is what all know: the indexes free on every rank, whether all
// could offer any, and the newest generation.
type offer struct {
	Free       [proto.MaxComms / 64]uint64
	AllOffered uint64
	Newest     uint64
}

func (o *offer) combine(p *offer) {
	for i := range o.Free {
		o.Free[i] &= p.Free[i]
	}
	o.AllOffered &= p.AllOffered
	o.Newest = max(o.Newest, p.Newest)
}

var offerOp = rawOp[offer](true, func(inout, in []offer) {
	for i := range inout {
		inout[i].combine(&in[i])
	}
})

func (c *Comm) agree(ctx context.Context, call, name string, members []int32, rank int, mine bool) (child *Comm, again bool, err error) {
	offers := make([]offer, 1)
	o := &offers[0]
	if mine {
		o.AllOffered = 1
		c.w.engine.Do(func(core *proto.Core) { o.Newest = uint64(core.FreeIndexes(o.Free[:])) })
	}
	if err := c.allreduce(ctx, call, elemOf[offer](), bytesOf(offers), bytesOf(offers), offerOp, 0); err != nil {
		return nil, false, err
	}
	index := -1
	for i, word := range o.Free {
		if word != 0 {
			index = i*64 + bits.TrailingZeros64(word)
			break
		}
	}
	switch {
	case index < 0 && o.AllOffered == 0:
		return nil, true, nil
	case index < 0:
		return nil, false, c.errorf(call, ErrTooManyComms, "%d are open on some rank; close those no longer needed", proto.MaxComms)
	case rank < 0:
		return nil, false, nil
	}
	id := proto.ContextID(index, uint16(o.Newest)+1)
	var pc *proto.Comm
	c.w.engine.Do(func(core *proto.Core) { pc = core.Open(id, members, rank) })
	return c.w.newComm(name, pc, index, uint32(o.Newest+2)|1<<31), false, nil
}
