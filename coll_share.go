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
// they can. Where they are on several hosts, those of each come to it for what they do inside their host: coll_hosts.go.

// sharedName is the algorithm's name, for WithAlgorithm and Explain.
const sharedName = "shared-memory"

// shared is how a communicator's members reach each other's memory.
type shared struct {
	index       int    // of the communicator, the same on all members
	incarnation uint32 // how often the index has been used, not 0

	once  sync.Once
	board *board.Board // nil: they do not
	err   error
}

// sharedRun is a run on a board of all members, or of some.
type sharedRun struct {
	board.Run
	members []int32 // those that have the board, by their ranks on it; nil: all
}

// rank returns a member's rank in the communicator.
func (r *sharedRun) rank(i int) int {
	if r.members == nil {
		return i
	}
	return int(r.members[i])
}

// Missing implements progress.Condition.
func (r *sharedRun) Missing() int { return r.rank(r.Run.Missing()) }

// A slot of the transport has to hold one of the board's.
const _ = uint(transport.SlotSize - board.SlotSize)

// sharedBoard returns the communicator's board, or nil when its members do not map each other's memory. An error
// is this rank's own: it lacks memory.
func (c *Comm) sharedBoard() (*board.Board, error) {
	s := &c.shared
	s.once.Do(func() {
		m := c.mapper()
		if m == nil {
			return
		}
		if s.board, s.err = c.newBoard(m, s.index, c.comm.Members(), c.rank); s.err != nil {
			return
		}
		c.w.engine.Do(func(*proto.Core) {
			c.comm.Called = func(member int32, number uint32) (wire.Signature, bool) { return s.board.Called(int(member), number) }
		})
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

// newBoard makes this rank's view of a board in the slots with a number; world are the ranks that have it.
func (c *Comm) newBoard(m transport.Mapper, slot int, world []int32, rank int) (*board.Board, error) {
	b, err := board.New(sharedMemory{c.w, m, slot, world}, rank, len(world), c.shared.incarnation, hostCaches())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMemory, err)
	}
	return b, nil
}

// mapper returns the transport that a board of the communicator would be on, or nil if it can have none.
func (c *Comm) mapper() transport.Mapper {
	if c.choose().Nodes() != nil {
		return nil
	}
	return c.mapperOf(c.comm.Members())
}

// mapperOf is mapper of a board of some members, by their ranks in the world.
func (c *Comm) mapperOf(world []int32) transport.Mapper {
	if c.w.noBoards || len(world) < 2 || len(world) > board.MaxRanks {
		return nil
	}
	m := c.w.engine.Mapper(world)
	if m == nil || c.shared.index >= m.Slots()/2 { // the other half is for second boards
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
	if err := m.c.w.engine.Usable(m.c.comm); err != nil {
		return false, false, err
	}
	m.store.args(&m.args, call)
	b.Start(&m.shared.Run, collOps[call.op].kind, &m.args, &m.sig)
	begun, err = m.follow(&m.shared)
	return begun, m.shared.Messages(), err
}

// follow goes on with a run until it is over. begun says that the engine knows of the collective.
func (m *member) follow(r *sharedRun) (begun bool, err error) {
	for {
		over, err := nextOf(r, m.args.Op.Left != nil)
		if err == nil && !over {
			var now bool
			now, err = m.c.w.engine.Until(m.ctx, m.c.comm, &m.sig, r)
			begun = begun || now
		}
		if err != nil {
			r.Quit()
		}
		if err != nil || over {
			return begun, err
		}
	}
}

// nextOf is Next of a run, which may call an operator that panics.
func nextOf(r *sharedRun, reduces bool) (over bool, err error) {
	if reduces {
		defer recoverOperator(&err)
	}
	if over, err = r.Next(); err == nil {
		return over, nil
	}
	return false, r.mismatchOf(err)
}

// mismatchOf returns the error with a mismatch in the form that messages give it.
func (r *sharedRun) mismatchOf(err error) error {
	if m, ok := errors.AsType[*board.MismatchError](err); ok {
		return &proto.MismatchError{Rank: int32(r.rank(m.Rank)), Mine: m.Mine, Theirs: m.Theirs, CallText: signature}
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

// sharedMemory is a board.Memory.
type sharedMemory struct {
	w      *World
	mapper transport.Mapper
	slot   int
	world  []int32 // the ranks that have the board
}

func (s sharedMemory) Slot(rank int) ([]byte, error) {
	return s.mapper.Slot(int(s.world[rank]), s.slot)
}

func (s sharedMemory) Reach(mem []byte) (wire.Region, bool) { return s.mapper.Reach(mem) }

func (s sharedMemory) Map(rank int, r wire.Region, n int) ([]byte, error) {
	return s.mapper.Map(int(s.world[rank]), r, n)
}

func (s sharedMemory) Asleep(rank int) *atomic.Uint32 { return s.mapper.Asleep(int(s.world[rank])) }

func (s sharedMemory) Nudge(rank int) { s.mapper.Nudge(int(s.world[rank])) }

func (s sharedMemory) Alloc(n int) ([]byte, error) {
	if s.w.arena == nil {
		return make([]byte, n), nil
	}
	return s.w.arena.Alloc(n)
}

func (s sharedMemory) Free(mem []byte) error {
	if s.w.arena == nil {
		return nil
	}
	return s.w.arena.Free(mem)
}

// boards are those that this rank has for the communicator.
func (c *Comm) boards() []*board.Board {
	if c.shared.board != nil {
		return []*board.Board{c.shared.board}
	}
	if c.hosted.members != nil {
		return c.hosted.boards[:]
	}
	return nil
}

// closeBoards frees what the boards used, when the members have come to the end of the communicator together.
func (c *Comm) closeBoards() error {
	var errs []error
	for _, b := range c.boards() {
		if b.Idle() {
			errs = append(errs, b.Close())
		}
	}
	return errors.Join(errs...)
}

// disagreement compares the last collectives of the members, as far as they went over boards.
func (c *Comm) disagreement() error {
	for _, b := range c.boards() {
		if err := b.Disagreement(); err != nil {
			r := sharedRun{members: c.hosted.members}
			return c.collectiveError(context.Background(), "Close", r.mismatchOf(err))
		}
	}
	return nil
}
