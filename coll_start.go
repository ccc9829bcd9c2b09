package weft

import (
	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/board"
	"github.com/weft-hpc/weft/internal/progress"
	"github.com/weft-hpc/weft/internal/proto"
	"github.com/weft-hpc/weft/internal/wire"
)

// collRun is a collective that the engine advances: the steps of its algorithm,
// and how far it has come. One that is used again allocates nothing.
type collRun struct {
	c     *Comm
	task  progress.Task
	sched collective.Schedule
	store blockStore
	next  int // step
	sig   wire.Signature

	call     *collCall // of a run that has not recorded its steps, nor may need to
	runs     [collective.Phases]sharedRun
	args     [collective.Phases]collective.Args // of the runs
	current  *sharedRun                         // of the runs, the one in progress
	hosted   bool                               // phases inside the host go over its boards
	quitting bool
	reduces  bool
	early    error // of a step that the engine did not take
}

// record writes down a call's algorithm.
func (r *collRun) record(c *Comm, call *collCall) (*collective.Algorithm, collective.Shape, error) {
	var a collective.Args
	r.store.args(&a, call)
	a.Nodes = c.choose().Nodes()
	alg := c.algorithm(call, &a)
	return alg, collective.ShapeOf(alg.Kind, c.size, a), r.sched.Record(alg, c.rank, c.size, a)
}

// start is the nonblocking form of a call. run is nil for one that the request
// keeps, else it has been recorded.
func (c *Comm) start(s *Scope, call *collCall, run *collRun) *Request {
	c.mustBeOpen()
	r := s.add(c, call.name, call.el, NoRank, NoRank)
	if err := c.coll.begin(call); err != nil {
		r.failed = err
		return r
	}
	recorded := run != nil
	run = r.collective(run)
	if err := run.start(c, call, recorded, &r.op); err != nil {
		c.w.engine.EndCollective(c.comm, run.sig.Seq, err) // the others wait for this rank
		c.coll.failed.Store(true)
		r.failed = err
		if err != call.bad {
			r.failed = c.collectiveFailure(s.ctx, call.name, call.el, err)
		}
	}
	c.coll.end()
	return r
}

// collective makes r the request of a run: of its own, unless there is another.
func (r *Request) collective(run *collRun) *collRun {
	if run == nil {
		if r.own == nil {
			r.own = new(collRun)
		}
		run = r.own
	}
	r.run = run
	return run
}

// prepare makes the run one that has not started.
func (r *collRun) prepare(c *Comm) {
	r.c, r.next, r.early, r.current, r.hosted, r.quitting = c, 0, nil, nil, false, false
}

// start starts a call, and has op end when it is over. An error is of one that has not been started.
func (r *collRun) start(c *Comm, call *collCall, recorded bool, op *progress.Op) error {
	engine := c.w.engine
	r.prepare(c)
	c.sign(&r.sig, call)
	if call.bad != nil {
		return call.bad
	}
	b, err := c.boardFor(call)
	if err != nil {
		return err
	}
	if b == nil {
		if !recorded {
			if _, _, err := r.record(c, call); err != nil {
				return err
			}
		}
		if err := r.startPhases(); err != nil {
			return err
		}
		engine.StartTask(&r.task, c.comm, r.sig, r, op)
		return nil
	}
	if err := engine.Usable(c.comm); err != nil {
		return err // what it posts would be taken for what went wrong
	}
	r.store.args(&r.args[0], call)
	c.coll.know(b, call, &r.sig)
	if r.begin(b, call.op, call.raw.Left != nil, op) {
		return nil
	}
	if !recorded {
		r.keep(call)
	}
	engine.OfferTask(&r.task, c.comm, r.sig, r, op)
	return nil
}

// begin begins a run over shared memory, and tells whether it is over at once: then the engine never hears of it.
func (r *collRun) begin(b *board.Board, op uint8, reduces bool, done *progress.Op) bool {
	r.current, r.reduces = &r.runs[0], reduces
	b.Start(&r.current.Run, collOps[op].kind, &r.args[0], &r.sig)
	over := r.goOn()
	if over {
		done.Complete()
	}
	return over
}

// goOn advances a run over shared memory that nobody else does, and tells whether it is over.
func (r *collRun) goOn() bool {
	var over bool
	over, r.early = nextOf(r.current, r.reduces)
	return over && !r.current.Messages()
}

// hasten goes on with a run that the engine has not begun, as the blocking form would. Who waits for the run calls it.
func (r *collRun) hasten() {
	engine := r.c.w.engine
	if !engine.TakeBack(&r.task) {
		return
	}
	for r.early == nil && engine.Soon(r.current) {
		if r.goOn() {
			engine.EndTask(&r.task)
			return
		}
		if r.current.Messages() {
			break
		}
	}
	engine.HandOver(&r.task)
}

// Next implements progress.Steps.
func (r *collRun) Next(t *progress.Task) (done bool, err error) {
	defer recoverOperator(&err)
	if r.early != nil {
		return false, r.early
	}
	if run := r.current; run != nil && !r.hosted {
		over, err := nextOf(run, false)
		if !over {
			if err == nil {
				t.Watch(run)
			}
			return false, err
		}
		r.current = nil
		if !run.Messages() {
			return true, nil
		}
		if r.call != nil {
			if _, _, err := r.record(r.c, r.call); err != nil {
				return false, err
			}
		}
	}
	steps := r.sched.Steps()
	for r.next < len(steps) {
		step := &steps[r.next]
		r.next++
		switch step.Kind {
		case collective.StepSend:
			r.post(t, proto.Send, step)
		case collective.StepRecv:
			r.post(t, proto.Recv, step)
		case collective.StepWait:
			if t.Pending() > 0 {
				return false, nil
			}
		case collective.StepShare:
			if !r.hosted {
				continue
			}
			if over, err := r.share(step); !over {
				if err == nil {
					r.next-- // once more
					t.Watch(r.current)
				}
				return false, err
			}
		default:
			r.sched.Local(step)
		}
	}
	return t.Pending() == 0, nil
}

// Stop implements progress.Steps.
func (r *collRun) Stop(t *progress.Task) {
	run := r.current
	switch {
	case run == nil:
		return
	case !r.quitting:
		r.quitting = true
		run.Quit()
	case !run.Quiet(): // so the rank that it waited for is gone
		run.Forget()
	}
	if !run.Quiet() {
		t.Watch(run)
	}
}

// keep keeps a call, in case its steps have to be recorded after all.
func (r *collRun) keep(call *collCall) {
	if r.call == nil {
		r.call = new(collCall)
	}
	*r.call = *call
}

func (r *collRun) post(t *progress.Task, kind proto.Kind, step *collective.Step) {
	t.Post(&progress.Call{Kind: kind, Ctx: r.c.comm.Coll, Peer: step.Peer, Tag: int32(r.sig.Seq & MaxTag), Buf: step.A, Sig: &r.sig})
}
