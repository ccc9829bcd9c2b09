package weft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/arena"
	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/direct"
	"github.com/weft-hpc/weft/internal/progress"
	"github.com/weft-hpc/weft/internal/proto"
	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/transport/sim"
)

// World is this process's part of a job.
type World struct {
	engine    *progress.Engine
	comm      *Comm
	arena     *arena.Arena
	codec     Codec
	valueElem *elem
	node      int
	nodes     []int // of all ranks, nil if there is one
	model     *collective.Model
	modelFrom string // in words
	via       string
	crowded   bool       // several ranks share a core, on every host
	opening   sync.Mutex // held while a communicator is opened

	reachesAll bool // a message to every rank costs little
	hostsShare bool // on each of several hosts, ranks map each other's memory

	windows   atomic.Int32 // that are open
	windowVia string       // what windows are restricted to; tests set it
	noBoards  bool         // collectives go by messages; tests set it

	client *control.Client // nil without a launcher
	direct *direct.Rank    // of a rank that srun or the like has started; nil otherwise
	leave  func(ctx context.Context, untold []int) error
	closed atomic.Bool
	cancel context.CancelCauseFunc // ends the context of Main
}

// link is how a world reaches its ranks.
type link struct {
	rank, size int
	transports []transport.Transport
	route      []transport.Transport
	arena      *arena.Arena
	policy     progress.Policy
	via        string // in words, for World.Transport
	crowded    bool
	node       int   // the same for all ranks of a host
	nodes      []int // of all ranks, nil if there is one
	model      *collective.Model
	reachesAll bool // see World
	hostsShare bool
}

func newWorld(cfg *config, l *link) *World {
	w := &World{arena: l.arena, codec: cfg.codec, valueElem: valueElem(cfg.codec), via: l.via, crowded: l.crowded, node: l.node, nodes: l.nodes, model: l.model, reachesAll: l.reachesAll, hostsShare: l.hostsShare && !cfg.noBoards, windowVia: cfg.windowVia, noBoards: cfg.noBoards, cancel: cfg.cancel}
	w.engine = progress.New(progress.Config{
		Rank: l.rank, Size: l.size, Window: cfg.window(l.size),
		Transports: l.transports, Route: l.route, Policy: l.policy, PullMin: pullMin, EagerMax: cfg.eagerMax,
		CallText: signature,
	})
	members := make([]int32, l.size)
	for i := range members {
		members[i] = int32(i)
	}
	if w.model == nil {
		w.model = collective.NewModel(collective.OneHost, collective.OneHost)
	}
	w.modelFrom = "default for " + l.via
	if l.crowded {
		w.model = w.model.Crowded()
		w.modelFrom += ", where ranks share cores"
	}
	w.engine.Do(func(core *proto.Core) {
		w.comm = w.newComm("world", core.Open(proto.ContextID(0, 0), members, l.rank), 0, 1)
	})
	return w
}

// pullMin is the length from which messages in arena memory are announced and
// pulled by their receiver. Shorter ones are cheaper by two copies.
const pullMin = 4 << 10

// Comm returns the communicator of all ranks.
func (w *World) Comm() *Comm { return w.comm }

// Transport tells in a few words how messages travel, and why so.
func (w *World) Transport() string { return w.via }

// Stats are counters of a world since its start.
type Stats struct {
	Eager, Rendezvous  uint64 // messages sent
	Pulled, Streamed   uint64 // large messages received by one copy; by streaming
	Unexpected         uint64 // messages that came before their receive
	UnexpectedBytesMax int64  // most bytes of such messages held at once
	CreditStalls       uint64 // sends that had to wait for the receiver
}

// Stats returns the counters.
func (w *World) Stats() Stats {
	s := w.engine.Stats()
	return Stats{Eager: s.Eager, Rendezvous: s.Rendezvous, Pulled: s.Pulled, Streamed: s.Streamed,
		Unexpected: s.Unexpected, UnexpectedBytesMax: s.UnexpectedBytesMax, CreditStalls: s.CreditStalls}
}

// Init makes this process part of its job: the ranks that weftrun started, or
// srun, or the mpiexec of an MPI library that speaks PMI-1, or a world of one rank when
// there is no launcher. In a batch system's job without any of these it is ErrNotLaunched.
// It is called once; the World must be closed. Most programs use Main instead.
func Init(ctx context.Context, opts ...Option) (*World, error) {
	w, err := initialize(ctx, newConfig(opts))
	if err == nil {
		if err = w.startModel(ctx); err != nil {
			err = errors.Join(err, w.drop())
		}
	}
	if err != nil {
		return nil, &Error{Op: "Init", Peer: NoRank, Tag: NoRank, Want: -1, Got: -1, lost: -1, Err: err, CallSite: callSite()}
	}
	return w, nil
}

// initialized is set once in a process: its line to the launcher can be taken up
// only once, and a second world would be one of one rank in silence.
var initialized atomic.Bool

func initialize(ctx context.Context, cfg *config) (*World, error) {
	if !initialized.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("%w: this process has called Init or Main before", ErrArgument)
	}
	client, err := control.FromEnv()
	if err != nil {
		return nil, err
	}
	if client == nil {
		return initializeDirect(ctx, cfg)
	}
	w, err := joinJob(ctx, cfg, client)
	if err != nil {
		return nil, err
	}
	client.Watch(w.event)
	return w, nil
}

// joinJob makes the world of a rank that has a line to its launcher.
func joinJob(ctx context.Context, cfg *config, client *control.Client) (*World, error) {
	l, err := connect(ctx, cfg, client)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	w := newWorld(cfg, l)
	w.client = client
	w.leave = client.Leave
	return w, nil
}

// newSingle returns a world of one rank.
func newSingle(cfg *config) *World {
	t := sim.New(1, sim.Config{}).Transport(0)
	return newWorld(cfg, &link{size: 1, transports: []transport.Transport{t}, route: make([]transport.Transport, 1),
		policy: processPolicy(false), via: "none: one rank"})
}

// batchJob names the batch system's job that the process runs in, or "".
func batchJob(getenv func(string) string) string {
	for _, b := range []struct{ variable, system string }{
		{"PBS_JOBID", "PBS"}, {"SLURM_JOB_ID", "Slurm"}, {"LSB_JOBID", "LSF"},
	} {
		if id := getenv(b.variable); id != "" {
			return fmt.Sprintf("%s job %s", b.system, id)
		}
	}
	if id := getenv("JOB_ID"); id != "" && getenv("SGE_TASK_ID") != "" {
		return "Grid Engine job " + id
	}
	return ""
}

// event acts on what the launcher reports.
func (w *World) event(e control.Event) {
	if w.direct != nil {
		w.direct.Heard(e)
	}
	switch e.Kind {
	case control.RankLeft:
		w.engine.PeerLeft(e.Rank)
	case control.RankDied:
		w.engine.PeerLost(e.Rank, e)
	default:
		if w.cancel != nil {
			w.cancel(e)
		}
	}
}

// processPolicy is how a rank that is a process waits.
func processPolicy(oversubscribed bool) progress.Policy {
	if oversubscribed {
		return progress.Policy{Polls: 10, Yields: 200, Yield: yieldCore, Tick: 10 * time.Millisecond}
	}
	return progress.Policy{Polls: 64, Spin: 200 * time.Microsecond, Yields: 3, Yield: yieldCore, Tick: time.Millisecond}
}

// goroutinePolicy is how a rank that is a goroutine waits: others share its
// processor, so it gives it away at once.
func goroutinePolicy() progress.Policy {
	return progress.Policy{Polls: 1, Yields: 4, Yield: runtime.Gosched, Tick: 5 * time.Millisecond}
}

// spareProcessor gives the I/O goroutine a processor of the Go scheduler beside
// those of the computation; without one it waits up to 10 ms for its turn.
func spareProcessor() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	}
}

// lateMismatch is the error of ranks whose last collectives disagreed without any
// of them having to wait for a message that would have shown it: two roots of a Bcast,
// say. All messages are here when all ranks have come to the end.
func (w *World) lateMismatch() error {
	for w.engine.Poll() {
	}
	if w.comm.coll.failed.Load() {
		return nil
	}
	if err := w.comm.disagreement(); err != nil {
		return err
	}
	err := w.comm.comm.Err()
	if w.comm.coll.failed.Load() || !errors.Is(err, ErrMismatch) {
		return nil
	}
	return w.comm.collectiveError(context.Background(), "Close", err)
}

// drop closes what the world has open. The others are not told that this end is in order.
func (w *World) drop() error {
	w.closed.Store(true)
	errs := []error{w.engine.Close()}
	if w.client != nil {
		errs = append(errs, w.client.Close())
	}
	if w.direct != nil {
		errs = append(errs, w.direct.Close())
	}
	return errors.Join(errs...)
}

// Close ends this process's part of the job: the others learn that it sends
// nothing more, and it returns when all of them have come to the same point, or
// ctx has ended. Operations still in progress are ErrPending.
func (w *World) Close(ctx context.Context) error {
	if !w.closed.CompareAndSwap(false, true) {
		return nil
	}
	if open := w.windows.Load(); open > 0 {
		err := &Error{Op: "Close", Comm: w.comm.name, Rank: w.comm.rank, Peer: NoRank, Tag: NoRank, Want: -1, Got: -1, lost: -1, Err: ErrPending,
			Hint: fmt.Sprintf("%d of the windows made with NewWindow are open; every rank calls Window.Close before it returns", open)}
		return errors.Join(err, w.engine.Close())
	}
	if pending := w.engine.Pending(); pending > 0 {
		operations := "operations were"
		if pending == 1 {
			operations = "operation was"
		}
		err := &Error{Op: "Close", Comm: w.comm.name, Rank: w.comm.rank, Peer: NoRank, Tag: NoRank, Want: -1, Got: -1, lost: -1, Err: ErrPending,
			Hint: fmt.Sprintf("%d %s not waited for; use Scope.Wait before returning", pending, operations)}
		return errors.Join(err, w.engine.Close()) // the launcher is not told that this end is in order
	}
	untold := w.engine.Leave(w.reachesAll)
	errs := []error{w.engine.Drain(ctx)}
	if w.leave != nil {
		errs = append(errs, w.leave(ctx, untold))
	}
	errs = append(errs, w.lateMismatch(), w.drop())
	return errors.Join(errs...)
}
