package weft

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/board"
)

// Plan is a collective on given buffers that is run again and again, with what
// the buffers hold at the time. Making one sends nothing; all ranks run theirs
// as they call other collectives. Run and Start allocate nothing. A plan is used by
// one goroutine at a time, and may be left to the garbage collector when it is not
// running. (MPI 4.1, 6.13)
type Plan[T any] struct {
	c    *Comm
	call collCall
	run  collRun
	why  string
	cost collective.Cost
	all  bool // cost is known here

	predicted time.Duration

	shared bool // it goes over shared memory, unless that turns out to be out of reach
	hosted bool // and what it does inside a host
}

// Run runs the collective once and returns when it is done.
func (p *Plan[T]) Run(ctx context.Context) error { return p.c.run(ctx, &p.call) }

// Start starts the collective, which then is a request of the scope. It is ErrPending
// while the one started before is in progress.
func (p *Plan[T]) Start(s *Scope) *Request {
	call, run := p.call, &p.run
	if p.c.w.engine.Active(&run.task) {
		call.bad = p.c.errorf(call.name, fmt.Errorf("%w: the plan's last start", ErrPending), "wait for it first, or make a second plan")
		run = nil
	}
	return p.c.start(s, &call, run)
}

// Explanation says how a plan runs.
type Explanation struct {
	Collective string
	Algorithm  string
	Why        string // this algorithm was chosen
	Ranks      int
	Steps      int           // the longest chain of messages, each rank sending and receiving one at a time
	Predicted  time.Duration // by the world's model, of a run by messages; 0 if it cannot be told
	Messages   int           // of all ranks; -1 for neighbourhoods
	Bytes      int           // that all ranks send; -1 where a rank does not know what others give

	SentMessages, SentBytes         int // by this rank
	ReceivedMessages, ReceivedBytes int
}

// String returns one line.
func (e Explanation) String() string {
	s := fmt.Sprintf("%s on %d ranks by %s (%s): %d steps", e.Collective, e.Ranks, e.Algorithm, e.Why, e.Steps)
	if e.Messages >= 0 {
		s += fmt.Sprintf(", %d messages", e.Messages)
	}
	if e.Bytes >= 0 {
		s += fmt.Sprintf(" with %d bytes", e.Bytes)
	}
	return s + fmt.Sprintf("; this rank sends %d with %d bytes and receives %d with %d",
		e.SentMessages, e.SentBytes, e.ReceivedMessages, e.ReceivedBytes)
}

// Explain says which algorithm the plan runs, why, and what it sends.
func (p *Plan[T]) Explain() Explanation {
	if p.shared {
		e := Explanation{Collective: p.call.name, Algorithm: sharedName, Ranks: p.c.size, Steps: 1}
		switch bytes := p.c.shared.board.Longest(collOps[p.call.op].kind, len(p.call.send), len(p.call.recv)); {
		case bytes <= board.Short:
			e.Why = "the ranks map each other's memory, and the data are short"
		default:
			e.Why, e.Steps = "the ranks map each other's memory, so data are copied once, or through a buffer; by messages if neither can be", 2
		}
		return e
	}
	e := Explanation{Collective: p.call.name, Algorithm: p.call.alg.Name, Why: p.why, Ranks: p.c.size,
		Predicted: p.predicted, Steps: p.cost.Steps, Messages: p.cost.Messages, Bytes: -1}
	if p.all {
		e.Bytes = p.cost.Bytes
	}
	if p.hosted {
		e.Why += "; shared memory inside each host, and messages where data there are out of reach"
	}
	steps := p.run.sched.Steps()
	for i := 0; i < len(steps); i++ {
		switch step := &steps[i]; step.Kind {
		case collective.StepShare:
			if p.hosted {
				i += step.Else
			}
		case collective.StepSend:
			e.SentMessages++
			e.SentBytes += len(step.A)
		case collective.StepRecv:
			e.ReceivedMessages++
			e.ReceivedBytes += len(step.A)
		}
	}
	return e
}

// plan makes a plan of a call.
func plan[T any](c *Comm, call *collCall) (*Plan[T], error) {
	c.mustBeOpen()
	if call.el != nil && call.el.err != nil {
		return nil, c.errorf(call.name, call.el.err, "")
	}
	if call.root < 0 || call.root >= c.size {
		return nil, c.errorf(call.name, fmt.Errorf("%w: root %d", ErrRank, call.root), "ranks here go from 0 to %d", c.size-1)
	}
	if call.bad != nil {
		return nil, call.bad
	}
	for _, counts := range []*Counts{&call.sendCounts, &call.recvCounts} {
		counts.N, counts.Displs = slices.Clone(counts.N), slices.Clone(counts.Displs)
	}
	p := &Plan[T]{c: c, call: *call}
	alg, shape, err := p.run.record(c, &p.call)
	if err != nil {
		return nil, c.collectiveFailure(context.Background(), call.name, call.el, err)
	}
	switch {
	case call.alg != nil:
		p.why = "as asked"
	case alg == crowdedBarrier:
		p.why = "several ranks share a core: each waits once"
	default:
		_, p.why = c.choose().Explain(alg.Kind, shape.Bytes, call.raw)
	}
	if b, err := c.boardFor(call); err != nil {
		return nil, c.collectiveFailure(context.Background(), call.name, call.el, err)
	} else if b != nil {
		p.shared = true
	} else if h, err := c.hostBoards(); err != nil {
		return nil, c.collectiveFailure(context.Background(), call.name, call.el, err)
	} else if h != nil {
		p.hosted = slices.ContainsFunc(p.run.sched.Steps(), func(step collective.Step) bool { return step.Kind == collective.StepShare })
	}
	p.call.planned = call.alg == nil
	p.call.alg = alg
	p.predicted = time.Duration(c.choose().Predict(alg, shape.Bytes) * float64(time.Second))
	switch alg.Kind {
	case collective.KindGatherv, collective.KindScatterv, collective.KindAlltoallv:
		p.cost = alg.Cost(shape)
	case collective.KindNeighbor:
		p.cost = collective.Cost{Steps: max(len(call.neighbors.Sends), len(call.neighbors.Recvs)), Messages: -1}
	case collective.KindReduceScatter:
		for _, n := range call.sendCounts.N {
			shape.Counts = append(shape.Counts, n*call.el.size)
		}
		p.cost, p.all = alg.Cost(shape), true
	default:
		p.cost, p.all = alg.Cost(shape), true
	}
	return p, nil
}

// PlanBarrier plans a Barrier.
func PlanBarrier(c *Comm, opts ...CollOption) (*Plan[byte], error) {
	var call collCall
	c.barrierCall(&call, opts)
	return plan[byte](c, &call)
}

// PlanBcast plans a Bcast.
func PlanBcast[T any](c *Comm, buf []T, root int, opts ...CollOption) (*Plan[T], error) {
	var call collCall
	c.bcastCall(&call, elemOf[T](), bytesOf(buf), root, opts)
	return plan[T](c, &call)
}

// PlanReduce plans a Reduce.
func PlanReduce[T any](c *Comm, send, recv []T, op Op[T], root int, opts ...CollOption) (*Plan[T], error) {
	var call collCall
	c.reduceCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), op.raw, op.variant, root, opts)
	return plan[T](c, &call)
}

// PlanAllreduce plans an Allreduce.
func PlanAllreduce[T any](c *Comm, send, recv []T, op Op[T], opts ...CollOption) (*Plan[T], error) {
	var call collCall
	c.allreduceCall(&call, "Allreduce", elemOf[T](), bytesOf(send), bytesOf(recv), op.raw, op.variant, opts)
	return plan[T](c, &call)
}

// PlanReduceScatterBlock plans a ReduceScatterBlock.
func PlanReduceScatterBlock[T any](c *Comm, send, recv []T, op Op[T], opts ...CollOption) (*Plan[T], error) {
	var call collCall
	c.reduceScatterBlockCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), op.raw, op.variant, opts)
	return plan[T](c, &call)
}

// PlanReduceScatter plans a ReduceScatter.
func PlanReduceScatter[T any](c *Comm, send, recv []T, counts []int, op Op[T], opts ...CollOption) (*Plan[T], error) {
	var call collCall
	c.reduceScatterCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), counts, op.raw, op.variant, opts)
	return plan[T](c, &call)
}

// PlanScan plans a Scan.
func PlanScan[T any](c *Comm, send, recv []T, op Op[T], opts ...CollOption) (*Plan[T], error) {
	var call collCall
	c.scanCall(&call, opScan, elemOf[T](), bytesOf(send), bytesOf(recv), op.raw, op.variant, opts)
	return plan[T](c, &call)
}

// PlanExscan plans an Exscan.
func PlanExscan[T any](c *Comm, send, recv []T, op Op[T], opts ...CollOption) (*Plan[T], error) {
	var call collCall
	c.scanCall(&call, opExscan, elemOf[T](), bytesOf(send), bytesOf(recv), op.raw, op.variant, opts)
	return plan[T](c, &call)
}

// PlanGather plans a Gather.
func PlanGather[T any](c *Comm, send, recv []T, root int, opts ...CollOption) (*Plan[T], error) {
	var call collCall
	c.gatherCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), root, opts)
	return plan[T](c, &call)
}

// PlanGatherv plans a Gatherv.
func PlanGatherv[T any](c *Comm, send, recv []T, counts Counts, root int, opts ...CollOption) (*Plan[T], error) {
	var call collCall
	c.gathervCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), counts, root, opts)
	return plan[T](c, &call)
}

// PlanScatter plans a Scatter.
func PlanScatter[T any](c *Comm, send, recv []T, root int, opts ...CollOption) (*Plan[T], error) {
	var call collCall
	c.scatterCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), root, opts)
	return plan[T](c, &call)
}

// PlanScatterv plans a Scatterv.
func PlanScatterv[T any](c *Comm, send, recv []T, counts Counts, root int, opts ...CollOption) (*Plan[T], error) {
	var call collCall
	c.scattervCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), counts, root, opts)
	return plan[T](c, &call)
}

// PlanAllgather plans an Allgather.
func PlanAllgather[T any](c *Comm, send, recv []T, opts ...CollOption) (*Plan[T], error) {
	var call collCall
	c.allgatherCall(&call, "Allgather", elemOf[T](), bytesOf(send), bytesOf(recv), opts)
	return plan[T](c, &call)
}

// PlanAllgatherv plans an Allgatherv.
func PlanAllgatherv[T any](c *Comm, send, recv []T, counts Counts, opts ...CollOption) (*Plan[T], error) {
	var call collCall
	c.allgathervCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), counts, opts)
	return plan[T](c, &call)
}

// PlanAlltoall plans an Alltoall.
func PlanAlltoall[T any](c *Comm, send, recv []T, opts ...CollOption) (*Plan[T], error) {
	var call collCall
	c.alltoallCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), opts)
	return plan[T](c, &call)
}

// PlanAlltoallv plans an Alltoallv.
func PlanAlltoallv[T any](c *Comm, send, recv []T, sendCounts, recvCounts Counts, opts ...CollOption) (*Plan[T], error) {
	var call collCall
	c.alltoallvCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), sendCounts, recvCounts, opts)
	return plan[T](c, &call)
}
