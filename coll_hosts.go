package weft

import (
	"sync"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/board"
	"github.com/weft-hpc/weft/internal/wire"
)

// A communicator of several hosts has boards on each of them, for what node-aware algorithms do inside a
// host. There is one for each phase: the phase after the messages between hosts ends late, and collectives that were started
// behind it need not wait with their first one, since runs on one board end in their order.

// hosted is how a member reaches those on its own host.
type hosted struct {
	once    sync.Once
	members []int32 // on this host, by their places there; nil if they have no boards
	boards  [collective.Phases]*board.Board
	err     error
}

// hostBoards returns the boards of this host, or nil. All its members get the same. An error is this rank's own.
func (c *Comm) hostBoards() (*hosted, error) {
	h := &c.hosted
	h.once.Do(func() { h.err = h.open(c) })
	if h.err != nil || h.members == nil {
		return nil, h.err
	}
	return h, nil
}

func (h *hosted) open(c *Comm) error {
	if c.choose().Nodes() == nil {
		return nil
	}
	members, place := c.choose().Nodes().Mates(c.rank)
	world := make([]int32, len(members))
	for i, rank := range members {
		world[i] = c.comm.Members()[rank]
	}
	m := c.mapperOf(world)
	if m == nil {
		return nil
	}
	for i := range h.boards {
		b, err := c.newBoard(m, c.shared.index+i*(m.Slots()/2), world, place)
		if err != nil {
			return err
		}
		h.boards[i] = b
	}
	h.members = members
	return nil
}

// start makes r this rank's part in a phase of a collective.
func (h *hosted) start(r *sharedRun, phase collective.Phase, kind collective.Kind, a *collective.Args, sig *wire.Signature) {
	r.members = h.members
	h.boards[phase].Start(&r.Run, kind, a, sig)
}

var _ collective.Sharer = (*member)(nil)

// Share implements collective.Sharer.
func (m *member) Share(phase collective.Phase, kind collective.Kind, a collective.Args) (done bool, err error) {
	h, err := m.c.hostBoards()
	if h == nil {
		return false, err
	}
	m.args = a
	h.start(&m.shared, phase, kind, &m.args, &m.sig)
	_, err = m.follow(&m.shared)
	return !m.shared.Messages(), err
}

// startPhases starts the phases of a recorded algorithm that go over boards, on which runs are in the order of
// collectives.
func (r *collRun) startPhases() error {
	steps := r.sched.Steps()
	for i := range steps {
		step := &steps[i]
		if step.Kind != collective.StepShare {
			continue
		}
		h, err := r.c.hostBoards()
		if h == nil {
			return err
		}
		r.hosted = true
		r.args[step.Phase] = r.sched.Shared(step)
		h.start(&r.runs[step.Phase], step.Phase, step.Share, &r.args[step.Phase], &r.sig)
	}
	return nil
}

// share carries out a step over the board of its phase, and tells whether it is over; then its messages are skipped, unless
// they are due.
func (r *collRun) share(step *collective.Step) (over bool, err error) {
	r.current = &r.runs[step.Phase]
	if over, err = nextOf(r.current, false); over {
		if !r.current.Messages() {
			r.next += step.Else
		}
		r.current = nil
	}
	return over, err
}
