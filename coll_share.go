package weft

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/board"
	"github.com/weft-hpc/weft/internal/proto"
	"github.com/weft-hpc/weft/internal/topo"
	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

// Collectives of ranks that map each other's memory, as those of one host do, go through it
// instead of messages: package board. All ranks of a communicator come to the same conclusion whether
// they can.

// sharedName is the algorithm's name, for WithAlgorithm and Explain.
const sharedName = "shared-memory"

// shared is how a communicator's members reach each other's memory.
type shared struct {
	index       int    // of the communicator, the same on all members
	incarnation uint32 // how often the index has been used, not 0

	once   sync.Once
	mapper transport.Mapper // nil: they do not
	board  *board.Board
	err    error
}

// A slot of the transport has to hold one of the board's.
const _ = uint(transport.SlotSize - board.SlotSize)

// sharedBoard returns the communicator's board, or nil when its members do not map each other's memory. An error
// is this rank's own: it lacks memory.
func (c *Comm) sharedBoard() (*board.Board, error) {
	s := &c.shared
	s.once.Do(func() {
		if s.mapper = c.mapper(); s.mapper == nil {
			return
		}
		if s.board, s.err = board.New(sharedMemory{c}, c.rank, c.size, s.incarnation, hostCaches()); s.err != nil {
			s.err = fmt.Errorf("%w: %w", ErrMemory, s.err)
		}
	})
	return s.board, s.err
}

// hostCaches is how many bytes the host's caches hold, 0 where the system does not tell: then a board copies as if
// everything stayed in them.
var hostCaches = sync.OnceValue(func() int64 {
	cpus, err := topo.Allowed()
	if err != nil {
		return 0
	}
	n, err := topo.System.Caches(cpus[0])
	if err != nil {
		return 0
	}
	return n
})

// mapper returns the transport that a board of the communicator would be on, or nil if it can have none.
func (c *Comm) mapper() transport.Mapper {
	if c.w.noBoards || c.size < 2 || c.size > board.MaxRanks {
		return nil
	}
	m := c.w.engine.Mapper(c.comm.Members())
	if m == nil || c.shared.index >= m.Slots() {
		return nil
	}
	return m
}

// boardFor returns the board that a call goes over, or nil.
func (c *Comm) boardFor(call *collCall) (*board.Board, error) {
	if call.alg != nil && !call.planned || call.op == opClose || call.op == opFence || !board.Serves(collOps[call.op].kind) {
		return nil, nil
	}
	return c.sharedBoard()
}

// share is the blocking form of a call over the board. Where memory is out of reach it
// reports that messages are due.
func (m *member) share(b *board.Board, call *collCall) (begun, messages bool, err error) {
	c := m.c
	engine := c.w.engine
	if err := engine.Usable(c.comm); err != nil {
		return false, false, err
	}
	m.store.args(&m.args, call)
	r := &m.shared
	b.Start(r, collOps[call.op].kind, &m.args, &m.sig)
	for {
		over, err := nextOf(r, call.raw.Left != nil)
		if err == nil && !over {
			var now bool
			now, err = engine.Until(m.ctx, c.comm, &m.sig, r)
			begun = begun || now
		}
		switch {
		case err != nil:
			r.Quit()
			return begun, false, err
		case over:
			return begun, r.Messages(), nil
		}
	}
}

// nextOf is Next of a run, which may call an operator that panics.
func nextOf(r *board.Run, reduces bool) (over bool, err error) {
	if reduces {
		defer recoverOperator(&err)
	}
	if over, err = r.Next(); err == nil {
		return over, nil
	}
	return false, mismatchOf(err)
}

// mismatchOf returns the error with a mismatch in the form that messages give it.
func mismatchOf(err error) error {
	if m, ok := errors.AsType[*board.MismatchError](err); ok {
		return &proto.MismatchError{Rank: int32(m.Rank), Mine: m.Mine, Theirs: m.Theirs, CallText: signature}
	}
	return err
}

// settle returns when no peer touches this rank's memory any more, after a run that failed and of
// which the others have been told.
func (m *member) settle() {
	for r := &m.shared; r.Failed() && !r.Quiet(); {
		if err := m.c.w.engine.UntilLast(m.c.comm, r); err != nil {
			r.Forget()
		}
	}
}

// sharedMemory is a communicator's board.Memory.
type sharedMemory struct{ c *Comm }

func (s sharedMemory) world(rank int) int { return int(s.c.comm.Members()[rank]) }

func (s sharedMemory) Slot(rank int) ([]byte, error) {
	return s.c.shared.mapper.Slot(s.world(rank), s.c.shared.index)
}

func (s sharedMemory) Reach(mem []byte) (wire.Region, bool) { return s.c.shared.mapper.Reach(mem) }

func (s sharedMemory) Map(rank int, r wire.Region, n int) ([]byte, error) {
	return s.c.shared.mapper.Map(s.world(rank), r, n)
}

func (s sharedMemory) Asleep(rank int) *atomic.Uint32 { return s.c.shared.mapper.Asleep(s.world(rank)) }

func (s sharedMemory) Nudge(rank int) { s.c.shared.mapper.Nudge(s.world(rank)) }

func (s sharedMemory) Alloc(n int) ([]byte, error) {
	if s.c.w.arena == nil {
		return make([]byte, n), nil
	}
	return s.c.w.arena.Alloc(n)
}

func (s sharedMemory) Free(mem []byte) error {
	if s.c.w.arena == nil {
		return nil
	}
	return s.c.w.arena.Free(mem)
}

// closeBoard frees what the board used, when the members have come to the end of the communicator together.
func (c *Comm) closeBoard() error {
	if c.shared.board == nil || !c.shared.board.Idle() {
		return nil
	}
	return c.shared.board.Close()
}

// disagreement compares the last collectives of the members, as far as they went over the board.
func (c *Comm) disagreement() error {
	if c.shared.board == nil {
		return nil
	}
	if err := c.shared.board.Disagreement(); err != nil {
		return c.collectiveError(context.Background(), "Close", mismatchOf(err))
	}
	return nil
}
