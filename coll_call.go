package weft

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/board"
	"github.com/weft-hpc/weft/internal/cacheline"
	"github.com/weft-hpc/weft/internal/progress"
	"github.com/weft-hpc/weft/internal/proto"
	"github.com/weft-hpc/weft/internal/wire"
)

// A collective is described by a collCall, whatever its form. The blocking form
// runs the algorithm on the caller's goroutine (collect), the nonblocking one
// records it and leaves it to the engine (start), a plan keeps what it was made of.

// The operations in signatures. The numbers are part of the protocol.
const (
	opBarrier uint8 = 1 + iota
	opBcast
	opReduce
	opAllreduce
	opGather
	opScatter
	opAllgather
	opClose
	opFence
	opGatherv
	opScatterv
	opAllgatherv
	opAlltoall
	opAlltoallv
	opReduceScatterBlock
	opReduceScatter
	opScan
	opExscan
	opNeighborAllgather
	opNeighborAllgatherv
	opNeighborAlltoall
	opNeighborAlltoallv
	opExchange
)

// collOp is what is known of an operation.
type collOp struct {
	name string
	kind collective.Kind
}

var collOps = [...]collOp{
	opBarrier:            {"Barrier", collective.KindBarrier},
	opBcast:              {"Bcast", collective.KindBcast},
	opReduce:             {"Reduce", collective.KindReduce},
	opAllreduce:          {"Allreduce", collective.KindAllreduce},
	opGather:             {"Gather", collective.KindGather},
	opScatter:            {"Scatter", collective.KindScatter},
	opAllgather:          {"Allgather", collective.KindAllgather},
	opClose:              {"Close", collective.KindBarrier},
	opFence:              {"Fence", collective.KindBarrier},
	opGatherv:            {"Gatherv", collective.KindGatherv},
	opScatterv:           {"Scatterv", collective.KindScatterv},
	opAllgatherv:         {"Allgatherv", collective.KindAllgatherv},
	opAlltoall:           {"Alltoall", collective.KindAlltoall},
	opAlltoallv:          {"Alltoallv", collective.KindAlltoallv},
	opReduceScatterBlock: {"ReduceScatterBlock", collective.KindReduceScatterBlock},
	opReduceScatter:      {"ReduceScatter", collective.KindReduceScatter},
	opScan:               {"Scan", collective.KindScan},
	opExscan:             {"Exscan", collective.KindExscan},
	opNeighborAllgather:  {"NeighborAllgather", collective.KindNeighbor},
	opNeighborAllgatherv: {"NeighborAllgatherv", collective.KindNeighbor},
	opNeighborAlltoall:   {"NeighborAlltoall", collective.KindNeighbor},
	opNeighborAlltoallv:  {"NeighborAlltoallv", collective.KindNeighbor},
	opExchange:           {"Exchange", collective.KindNeighbor},
}

// collCall is one rank's call of a collective.
type collCall struct {
	name       string // of the function that the user called
	op         uint8
	root       int
	el         *elem // nil where no data move
	send, recv []byte
	count      uint64                // elements, as far as all ranks have the same
	variant    uint16                // hash of the operator, and of a forced algorithm
	raw        *collective.Op        // noOperator where nothing is reduced
	alg        *collective.Algorithm // that sends its messages; nil: the one that fits
	planned    bool                  // alg was chosen before, and not asked for

	sendCounts, recvCounts Counts // of the v forms
	neighbors              *collective.Neighbors

	bad error // what is wrong with the arguments, as far as this rank can tell
}

// noOperator is the operator of calls that have none.
var noOperator collective.Op

// counts says how many bytes every rank gives.
func (call *collCall) counts(bytes int) {
	if call.el.size > 0 {
		call.count = uint64(bytes / call.el.size)
	}
}

// reduces adds the operator.
func (call *collCall) reduces(c *Comm, op *collective.Op, variant uint16) {
	if call.variant = variant; op != nil {
		call.raw = op
	} else {
		call.bad = c.errorf(call.name, fmt.Errorf("%w: no operator", ErrArgument), "make the operator with Sum, OpFunc or another constructor")
	}
}

// refuse notes what is wrong, unless something else is already.
func (call *collCall) refuse(err error) {
	if call.bad == nil {
		call.bad = err
	}
}

// collOptions are what CollOptions set.
type collOptions struct{ algorithm string }

// CollOption changes how a collective runs. All ranks give the same ones.
type CollOption func(*collOptions)

// WithAlgorithm runs a collective by the named algorithm instead of the one that
// fits its length best. An unknown name is ErrArgument, with the known ones.
func WithAlgorithm(name string) CollOption {
	return func(o *collOptions) { o.algorithm = name }
}

// with applies options.
func (call *collCall) with(c *Comm, opts []CollOption) {
	if len(opts) == 0 {
		return
	}
	var o collOptions
	for _, opt := range opts {
		opt(&o)
	}
	if o.algorithm == "" {
		return
	}
	kind := collOps[call.op].kind
	if o.algorithm == sharedName && board.Serves(kind) {
		if c.mapper() == nil {
			call.refuse(c.errorf(call.name, fmt.Errorf("%w: algorithm %q on ranks that do not map each other's memory", ErrArgument, sharedName),
				"%s has %s", call.name, c.algorithmNames(kind)))
		}
		return // it is what runs unless another one is asked for
	}
	alg, err := collective.Lookup(kind, o.algorithm)
	switch {
	case err != nil:
		call.refuse(c.errorf(call.name, fmt.Errorf("%w: no algorithm %q", ErrArgument, o.algorithm), "%s has %s", call.name, c.algorithmNames(kind)))
		return
	case !alg.SuitsOp(c.size, c.choose().Nodes(), call.raw):
		call.refuse(c.errorf(call.name, fmt.Errorf("%w: algorithm %q does not suit %d ranks on %d nodes and operator %s", ErrArgument, alg.Name, c.size, c.choose().Nodes().Nodes(), opName(call.variant)),
			"%s has %s", call.name, c.algorithmNames(kind)))
		return
	}
	call.alg = alg
	// Ranks that force different algorithms disagree.
	name := "by " + alg.Name
	if call.variant != 0 {
		name = opName(call.variant) + " " + name
	}
	call.variant = opVariant(name, call.raw.Commutative)
}

// algorithmNames lists what WithAlgorithm takes.
func (c *Comm) algorithmNames(kind collective.Kind) string {
	names := collective.Algorithms(kind)
	if board.Serves(kind) && c.mapper() != nil {
		names = append(names, sharedName)
	}
	return strings.Join(names, ", ")
}

// algorithm returns the one that runs the call.
func (c *Comm) algorithm(call *collCall, a *collective.Args) *collective.Algorithm {
	kind := collOps[call.op].kind
	switch {
	case call.alg != nil:
		return call.alg
	case kind == collective.KindBarrier && c.w.crowded:
		return crowdedBarrier
	}
	return c.choose().Choose(kind, a)
}

// crowdedBarrier is for ranks of which several share a core.
var crowdedBarrier = func() *collective.Algorithm {
	alg, err := collective.Lookup(collective.KindBarrier, "central")
	if err != nil {
		panic(err)
	}
	return alg
}()

// sign checks what all collectives have in common, and sets sig to what has to
// agree between the ranks, with the number of the call.
func (c *Comm) sign(sig *wire.Signature, call *collCall) {
	// Field by field, here and below: a processor that reads in one piece what it has just written
	// in several waits for it.
	sig.Op, sig.Variant, sig.Root, sig.Type, sig.Count, sig.Seq = call.op, call.variant, int32(call.root), 0, call.count, c.coll.last
	if el := call.el; el != nil {
		sig.Type = el.hash
		if el.err != nil {
			call.bad = c.errorf(call.name, el.err, "")
		}
	}
	if call.root < 0 || call.root >= c.size {
		call.bad = c.errorf(call.name, fmt.Errorf("%w: root %d", ErrRank, call.root), "ranks here go from 0 to %d", c.size-1)
	}
}

// blockStore holds where the blocks of a v form lie.
type blockStore struct {
	blocks [2]collective.Blocks
	displs [2][]int // for counts that have none
}

// args fills in the call's arguments for its algorithm. They use the store.
func (st *blockStore) args(a *collective.Args, call *collCall) {
	a.Send, a.Recv, a.Root, a.Neighbors = call.send, call.recv, call.root, call.neighbors
	setOp(&a.Op, call.raw)
	a.SendBlocks, a.RecvBlocks = nil, nil
	if call.sendCounts.N != nil {
		a.SendBlocks = st.set(0, &call.sendCounts, call.el.size)
	}
	if call.recvCounts.N != nil {
		a.RecvBlocks = st.set(1, &call.recvCounts, call.el.size)
	}
}

func setOp(dst, op *collective.Op) {
	dst.Size, dst.Commutative = op.Size, op.Commutative
	dst.Left, dst.Right, dst.Many, dst.Whole = op.Left, op.Right, op.Many, op.Whole
}

func (st *blockStore) set(i int, counts *Counts, unit int) *collective.Blocks {
	b := &st.blocks[i]
	b.Counts, b.Displs, b.Unit = counts.N, counts.Displs, unit
	if counts.Displs == nil {
		st.displs[i] = counts.packed(st.displs[i])
		b.Displs = st.displs[i]
	}
	return b
}

// member is one rank's collective.Peer. A communicator has one, for one
// blocking collective at a time.
type member struct {
	c       *Comm
	busy    atomic.Uint64 // 1 while one starts, or a blocking one is in progress
	last    uint32        // number of the last one; for who is busy
	failed  atomic.Bool   // a collective has told the program so
	ctx     context.Context
	sig     wire.Signature
	store   blockStore
	args    collective.Args            // of shared
	shared  sharedRun                  // over shared memory
	checked *[opExscan + 1]checkedCall // the last right call of each operation
	scratch [4][]byte
	ops     []*progress.Op // for posted messages
	posted  int            // of ops, those in use
}

// begin makes this goroutine the one that takes the communicator's next number.
func (m *member) begin(call *collCall) error {
	if !m.busy.CompareAndSwap(0, 1) {
		return m.c.errorf(call.name, ErrConcurrent, "another goroutine is in a collective on it; give each goroutine a Dup of its own")
	}
	m.last++
	return nil
}

// end lets others begin.
func (m *member) end() { cacheline.Publish(&m.busy, 0) }

// refuse is a collective call that this rank cannot take part in.
func (c *Comm) refuse(ctx context.Context, name string, why error) error {
	return c.collect(ctx, collCall{name: name, op: opBarrier, bad: why}, nil)
}

// run is the blocking form of a call.
func (c *Comm) run(ctx context.Context, call *collCall) error {
	return c.enter(ctx, call, nil)
}

// collect is run by an algorithm of the caller's.
func (c *Comm) collect(ctx context.Context, call collCall, run func(*member) error) error {
	return c.enter(ctx, &call, run)
}

// enter runs one blocking collective: it announces the signature, runs the
// algorithm, and revokes the communicator if anything fails, bad arguments on this
// rank included, since the others wait for it.
func (c *Comm) enter(ctx context.Context, call *collCall, run func(*member) error) error {
	c.mustBeOpen()
	m := &c.coll
	if err := m.begin(call); err != nil {
		return err
	}
	m.ctx = ctx
	c.sign(&m.sig, call)
	engine := c.w.engine
	err, begun, messages := call.bad, false, true
	var b *board.Board
	if err == nil && run == nil {
		if b, err = c.boardFor(call); b != nil {
			begun, messages, err = m.share(b, call)
		}
	}
	if err == nil && messages && !begun {
		begun, err = true, engine.BeginCollective(c.comm, m.sig)
	}
	switch {
	case err != nil || !messages:
	case run != nil:
		err = run(m)
	default:
		err = m.runMessages(call)
	}
	if err == nil && !messages {
		m.know(b, call, &m.sig)
	}
	return c.leave(ctx, call, begun, err)
}

// leave ends a blocking collective. begun says that the engine knows of it.
func (c *Comm) leave(ctx context.Context, call *collCall, begun bool, err error) error {
	m := &c.coll
	if begun || err != nil {
		c.w.engine.EndCollective(c.comm, m.sig.Seq, toldOthers(ctx, err))
	}
	if err != nil {
		m.settle()
	}
	m.ctx = nil
	m.end()
	switch {
	case err == nil:
		return nil
	case err == call.bad:
		m.failed.Store(true)
		return err
	}
	return c.collectiveFailure(ctx, call.name, call.el, err)
}

// toldOthers is the error that the others hear of.
func toldOthers(ctx context.Context, err error) error {
	if errors.Is(err, proto.ErrCanceled) {
		return fmt.Errorf("its context ended: %w", context.Cause(ctx))
	}
	return err
}

// runMessages runs a call's algorithm over messages. An operator that panics is an error.
func (m *member) runMessages(call *collCall) (err error) {
	var a collective.Args
	m.store.args(&a, call)
	a.Nodes = m.c.choose().Nodes()
	alg := m.c.algorithm(call, &a)
	if call.raw.Left == nil {
		return alg.Run(m, a)
	}
	defer recoverOperator(&err)
	return alg.Run(m, a)
}

// collectiveError makes the error of a collective that failed.
func (c *Comm) collectiveError(ctx context.Context, call string, err error) error {
	return c.collectiveFailure(ctx, call, nil, err)
}

// collectiveFailure is collectiveError of a collective that moves elements.
func (c *Comm) collectiveFailure(ctx context.Context, call string, el *elem, err error) error {
	c.coll.failed.Store(true)
	e := c.errorf(call, err, "")
	e.lost = proto.LostRank(err)
	if length, ok := errors.AsType[*progress.LengthError](err); ok {
		e.Peer, e.Want, e.Got = int(length.Rank), length.Want, length.Got
		e.Err = fmt.Errorf("%w: rank %d sent another count than this rank receives", ErrMismatch, length.Rank)
		if length.Got > length.Want {
			e.Err = fmt.Errorf("%w (%w)", e.Err, ErrTruncated)
		}
		if el != nil && el.size > 0 {
			e.Elem = fmt.Sprintf("%d and %d of %v", length.Got/int64(el.size), length.Want/int64(el.size), el.typ)
		}
		e.Hint = "what a rank sends to another must be as long as what that one receives"
		return e
	}
	var mismatch *proto.MismatchError
	switch {
	case errors.As(err, &mismatch):
		e.Peer = int(mismatch.Rank)
		e.Err = mismatch
		e.Hint = "every rank must call the same collectives in the same order with the same arguments"
	case errors.Is(err, ErrOperator):
		e.Hint = "the communicator is revoked; the operator's own code says why"
	case errors.Is(err, proto.ErrCanceled):
		e.Err = context.Cause(ctx)
		e.Hint = "the communicator is revoked"
	case errors.Is(err, ErrRankFailed), errors.Is(err, ErrRankLeft):
		e.Hint = "a collective needs every rank of the communicator"
	case errors.Is(err, ErrRevoked):
		e.Hint = "the communicator cannot be used any more; mend the call that failed first"
	}
	return e
}

// signature says in words what a rank called.
func signature(s *wire.Signature) string {
	name := fmt.Sprint("operation ", s.Op)
	kind := collective.Kind(0)
	if int(s.Op) < len(collOps) {
		name, kind = collOps[s.Op].name, collOps[s.Op].kind
	}
	switch {
	case s.Type == 0:
	case kind == collective.KindAllgatherv || kind == collective.KindReduceScatter:
		count, hash := splitCount(s.Count)
		name += fmt.Sprintf(" of %d %s in parts (%06x)", count, typeName(s.Type), hash)
	case kind == collective.KindGatherv || kind == collective.KindScatterv || kind == collective.KindAlltoallv,
		s.Op == opNeighborAllgatherv, s.Op == opNeighborAlltoallv, s.Op == opExchange:
		name += " of " + typeName(s.Type)
	default:
		name += fmt.Sprintf(" of %d %s", s.Count, typeName(s.Type))
	}
	if kind.Rooted() {
		name += fmt.Sprintf(" with root %d", s.Root)
	}
	switch {
	case s.Variant == 0:
	case kind.Reduces():
		name += fmt.Sprintf(" with operator %s", opName(s.Variant))
	default:
		name += " " + opName(s.Variant)
	}
	return fmt.Sprintf("%s (number %d)", name, s.Seq)
}
