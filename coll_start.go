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
	args  collective.Args // of a shared run
	next  int             // step
	sig   wire.Signature

	call             *collCall // of a run that has not recorded its steps, nor may need to
	share            board.Run // while shared is set
	shared, quitting bool
	early            error // of its first step, which start took
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
	defer c.coll.end()
	var sig wire.Signature
	c.sign(&sig, call)
	err := call.bad
	var b *board.Board
	if err == nil {
		if b, err = c.boardFor(call); err != nil {
			err = c.collectiveFailure(s.ctx, call.name, call.el, err)
		}
	}
	if err == nil && run == nil {
		if r.own == nil {
			r.own = new(collRun)
		}
		run = r.own
		if b != nil {
			run.keep(call)
		} else if _, _, failed := run.record(c, call); failed != nil {
			err = c.collectiveFailure(s.ctx, call.name, call.el, failed)
		}
	}
	if err != nil {
		c.w.engine.EndCollective(c.comm, sig.Seq, err) // the others wait for this rank
		c.coll.failed.Store(true)
		r.failed = err
		return r
	}
	r.run = run
	run.c, run.sig, run.next, run.early = c, sig, 0, nil
	if run.shared, run.quitting = b != nil, false; b != nil {
		run.store.args(&run.args, call)
		b.Start(&run.share, collOps[call.op].kind, &run.args, &run.sig)
		if c.w.engine.Usable(c.comm) == nil {
			var over bool
			if over, run.early = nextOf(&run.share, true); over && !run.share.Messages() {
				r.op.Complete() // without the engine
				return r
			}
		}
	}
	c.w.engine.StartTask(&run.task, c.comm, sig, run, &r.op)
	return r
}

// Next implements progress.Steps.
func (r *collRun) Next(t *progress.Task) (done bool, err error) {
	defer recoverOperator(&err)
	if r.early != nil {
		return false, r.early
	}
	if r.shared {
		over, err := nextOf(&r.share, true)
		if !over {
			if err == nil {
				t.Watch(&r.share)
			}
			return false, err
		}
		r.shared = false
		if !r.share.Messages() {
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
		default:
			r.sched.Local(step)
		}
	}
	return t.Pending() == 0, nil
}

// Stop implements progress.Steps.
func (r *collRun) Stop(t *progress.Task) {
	switch {
	case !r.shared:
		return
	case !r.quitting:
		r.quitting = true
		r.share.Quit()
	case !r.share.Quiet(): // so the rank that it waited for is gone
		r.share.Forget()
	}
	if !r.share.Quiet() {
		t.Watch(&r.share)
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
