package weft

import (
	"github.com/weft-hpc/weft/collective"
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
}

// record writes down a call's algorithm.
func (r *collRun) record(c *Comm, call *collCall) (*collective.Algorithm, collective.Shape, error) {
	var a collective.Args
	r.store.args(&a, call)
	alg := c.algorithm(call, &a)
	return alg, collective.ShapeOf(alg.Kind, c.size, a), r.sched.Record(alg, c.rank, c.size, a)
}

// start is the nonblocking form of a call. run is nil for one that the request
// keeps, else it has been recorded.
func (c *Comm) start(s *Scope, call *collCall, run *collRun) *Request {
	c.mustBeOpen()
	r := s.add(c, call.name, call.el, NoRank, NoRank)
	sig := c.signature(call)
	err := call.bad
	if err == nil && run == nil {
		if r.own == nil {
			r.own = new(collRun)
		}
		run = r.own
		if _, _, failed := run.record(c, call); failed != nil {
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
	run.c, run.sig, run.next = c, sig, 0
	c.w.engine.StartTask(&run.task, c.comm, sig, run, &r.op)
	return r
}

// Next implements progress.Steps.
func (r *collRun) Next(t *progress.Task) (done bool, err error) {
	defer recoverOperator(&err)
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

func (r *collRun) post(t *progress.Task, kind proto.Kind, step *collective.Step) {
	t.Post(&progress.Call{Kind: kind, Ctx: r.c.comm.Coll, Peer: step.Peer, Tag: int32(r.sig.Seq & MaxTag), Buf: step.A, Sig: &r.sig})
}
