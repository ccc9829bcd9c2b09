// Package progress drives the protocol core of one rank: it hands events of the
// transports to package proto, carries out the actions that come back, and
// decides who polls and how a wait is spent.
//
// # Locks and owners
//
// Engine.mu guards the core, the transports and the outboxes; it belongs to one
// rank and is held for one event or one poll at a time.
//
// Beside it there is a role, the poller, which one goroutine has at a time:
//
//	free    nobody polls; the I/O goroutine will within a tick
//	user    a goroutine inside Wait polls, for itself and all others of the rank
//	io      the I/O goroutine polls, or sleeps until a peer wakes it
//
// A goroutine that has to wait takes the role if it is free or the I/O
// goroutine's, else it parks until its operation is done or the role is passed
// on to it. While user goroutines communicate, the I/O goroutine only looks at
// the role once a tick, so it costs them nothing; when they compute, it takes
// the role, sleeps armed in the transport, and every message that arrives is
// matched and answered at once.
//
// # How a wait is spent
//
// The poller polls with PAUSE between polls for a while (Policy.Spin), then
// yields the core a few times, then arms the transports and sleeps. A peer that
// sends to an armed rank wakes it.
package progress

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/proto"
	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

// Policy says how a wait is spent.
type Policy struct {
	// Polls is how often a wait polls before it looks at the clock.
	Polls int
	// Spin is how long it polls without giving the core away.
	Spin time.Duration
	// NoPause leaves out the PAUSE between two polls. It spares the other thread of a core, which a
	// poll that takes long does by itself, and costs much in a virtual machine.
	NoPause bool
	// Turn is how often a goroutine that polls or posts goes through the Go scheduler meanwhile; 0 is never. It
	// is for transports that call into C: there the runtime's watchdog takes the processor away from a
	// goroutine that has not been scheduled for 10 ms, and each time looks again every 20 us for a while, on the core
	// of the poller where the rank is bound to one.
	Turn time.Duration
	// Yields is how often it then gives the core to somebody else.
	Yields int
	// Yield gives the core away once: to other processes, or to other
	// goroutines when the ranks are goroutines.
	Yield func()
	// Tick is how often the I/O goroutine sees whether the program has stopped
	// communicating, at first. A tick costs some 20 us of processor time.
	Tick time.Duration
}

// Config describes an engine.
type Config struct {
	Rank, Size int
	// Window is the credit for each peer in bytes, see package proto.
	Window int64
	// Transports are polled in turn. The engine sleeps in the first.
	Transports []transport.Transport
	// Route is the transport to each rank; nil for the rank itself.
	Route []transport.Transport
	// PullMin is the length from which a message in memory that its receiver
	// can reach is pulled by it rather than sent eagerly.
	PullMin int
	// EagerMax lowers the eager limit of the transports, if it is not zero.
	EagerMax int
	Policy   Policy
	// CallText says in words what a rank called, for the error when ranks disagree. May be nil.
	CallText func(*wire.Signature) string
}

// Who has the poller's role.
const (
	roleFree int32 = iota
	roleUser
	roleIO
)

// Engine is the progress engine of one rank.
type Engine struct {
	mu         sync.Mutex
	core       *proto.Core
	route      []transport.Transport
	transports []transport.Transport
	seq        []uint32 // of the next frame to each peer
	outbox     []outbox // by peer: actions that the transport had no room for
	blocked    []int32  // peers with a non-empty outbox
	touched    []bool   // peers that a frame went to or came from
	told       []bool   // peers that were told goodbye
	pulled     []pullResult
	policy     Policy

	role    atomic.Int32
	asleep  atomic.Bool // the poller sleeps in a transport
	parked  atomic.Int32
	parking []*Op       // operations whose goroutines are parked, guarded by mu
	pool    []*Op       // for blocking calls, guarded by mu
	polled  uint64      // polls by the program so far, guarded by mu
	closed  atomic.Bool // the transports are not touched any more; set with mu held
	leaving bool        // this rank has said goodbye, guarded by mu
	remote  remotes
	offered atomic.Pointer[Task]
	ready   []*Task // that can go on, guarded by mu
	watches []watch // guarded by mu
	handled []*Op   // that are over, and whose Handlers are not told yet, guarded by mu

	turned time.Time // when a goroutine in here last went through the scheduler, guarded by mu
	effort int       // since the clock was last looked at for that, guarded by mu

	// The context whose end wakes the poller; the poller's.
	watched <-chan struct{} // its Done
	unwatch func() bool

	io         ioState
	sleepers   []chan struct{} // of the transports after the first
	background sync.WaitGroup
}

type outbox struct{ actions []proto.Action }

type pullResult struct {
	op  *proto.Op
	err error
}

// Op is an operation that somebody can wait for.
type Op struct {
	proto.Op
	Old      uint64 // of an atomic on a window: what was there
	finished atomic.Bool
	notify   chan struct{} // capacity 1; made by the first goroutine that parks
	parked   int           // goroutines that wait for notify
	closed   chan struct{} // for select, closed when the operation is done
	task     *Task         // that it is a message of
	handler  Handler       // whom to tell, instead of its waiters
}

// Finished reports whether the operation is done, and its results are there.
func (o *Op) Finished() bool { return o.finished.Load() }

// Complete ends an operation without error that was never handed to an engine.
func (o *Op) Complete() {
	o.Err = nil
	o.finished.Store(true)
}

// Recycle prepares a finished operation for another use.
func (o *Op) Recycle() {
	o.Op.Reset()
	o.finished.Store(false)
	o.closed, o.Old, o.task, o.handler = nil, 0, nil, nil
}

// New returns an engine and starts its I/O goroutine. The engine owns the
// transports from now on.
func New(cfg Config) *Engine {
	e := &Engine{
		core:    proto.New(proto.Config{Rank: cfg.Rank, Size: cfg.Size, Window: cfg.Window, CallText: cfg.CallText}),
		route:   cfg.Route,
		seq:     make([]uint32, cfg.Size),
		outbox:  make([]outbox, cfg.Size),
		touched: make([]bool, cfg.Size),
		told:    make([]bool, cfg.Size),
		policy:  cfg.Policy,

		transports: cfg.Transports,
	}
	for peer, t := range cfg.Route {
		if t != nil {
			eagerMax := t.MaxEager()
			if cfg.EagerMax > 0 {
				eagerMax = min(eagerMax, cfg.EagerMax)
			}
			e.core.SetLimits(peer, eagerMax, cfg.PullMin)
		}
	}
	e.io.stop = make(chan struct{})
	e.startSleepers()
	e.startIO()
	return e
}

// Do runs f with the core and carries out what comes of it. f must not wait.
func (e *Engine) Do(f func(*proto.Core)) {
	e.mu.Lock()
	f(e.core)
	e.act()
	e.mu.Unlock()
}

// describe fills in how a send's buffer can be pulled, if it is long enough
// for that to matter.
func (e *Engine) describe(op *Op) {
	if t := e.route[op.Ctx.World(op.Peer)]; t != nil {
		op.Region, op.HasRegion = t.Describe(op.Buf)
	}
}

// describeMin is the length from which a send asks whether its buffer can be
// pulled: below it a copy through the transport is always cheaper.
const describeMin = 4 << 10

// Cancel asks for an operation to be withdrawn. It reports whether it is done
// now; else it is done later, one way or the other.
func (e *Engine) Cancel(op *Op) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if op.Finished() {
		return true
	}
	if len(e.watches) > 0 && e.unwatchOp(op) {
		e.act()
		return true
	}
	if w := op.World(); w >= 0 && e.takeBack(w, &op.Op) {
		e.core.TakenBack(&op.Op)
		e.act()
		return true
	}
	done := e.core.Cancel(&op.Op)
	e.act()
	return done
}

// takeBack removes an eager send from an outbox.
func (e *Engine) takeBack(peer int, op *proto.Op) bool {
	box := &e.outbox[peer]
	for i := range box.actions {
		if box.actions[i].Op == op && box.actions[i].Kind == proto.SendFrame {
			box.actions = slices.Delete(box.actions, i, i+1)
			if len(box.actions) == 0 {
				i := slices.Index(e.blocked, int32(peer))
				e.blocked = slices.Delete(e.blocked, i, i+1)
			}
			return true
		}
	}
	return false
}

// Poll makes progress once and reports whether anything happened.
func (e *Engine) Poll() bool {
	e.mu.Lock()
	e.polled++
	n := e.poll()
	e.mu.Unlock()
	return n > 0
}

func (e *Engine) poll() int {
	if e.closed.Load() {
		return 0
	}
	n := 0
	if e.offered.Load() != nil {
		e.accept()
	}
	for _, t := range e.transports {
		n += t.Poll(sink{e})
	}
	if len(e.watches) > 0 {
		n += e.look()
	}
	if len(e.core.Out)+len(e.core.Done)+len(e.ready)+len(e.handled) > 0 {
		e.act()
	}
	if len(e.blocked) > 0 {
		n += e.flush()
		e.act()
	}
	if len(e.remote.waiting) > 0 {
		n += e.retryRemote()
		e.act()
	}
	return n
}

// act carries out the core's actions until there are none.
func (e *Engine) act() {
	for len(e.core.Out)+len(e.core.Done)+len(e.ready)+len(e.handled) > 0 {
		for i := 0; i < len(e.core.Out); i++ { // it may grow on the way
			e.carryOut(&e.core.Out[i])
		}
		for _, op := range e.core.Done {
			e.finish(op)
		}
		e.core.Taken()
		// Pull results come last: they make new actions.
		for i := range e.pulled {
			e.core.Pulled(e.pulled[i].op, e.pulled[i].err)
		}
		clear(e.pulled)
		e.pulled = e.pulled[:0]
		e.runReady()
		e.handle()
	}
}

func (e *Engine) carryOut(a *proto.Action) {
	if a.Kind == proto.Pull {
		err := e.route[a.Peer].Pull(int(a.Peer), a.Region, a.Payload)
		e.pulled = append(e.pulled, pullResult{a.Op, err})
		return
	}
	box := &e.outbox[a.Peer]
	if len(box.actions) == 0 {
		if e.handOver(a) {
			return
		}
		e.blocked = append(e.blocked, a.Peer)
	}
	queued := *a
	if a.Op == nil && a.Kind == proto.SendFrame && len(a.Payload) > 0 {
		// Nobody keeps a notice's payload alive and unchanged.
		queued.Payload = append([]byte(nil), a.Payload...)
	}
	box.actions = append(box.actions, queued)
}

// handOver gives an action to its transport. It reports whether it is over
// with: taken, or its peer is gone.
func (e *Engine) handOver(a *proto.Action) bool {
	peer := int(a.Peer)
	if e.closed.Load() || e.core.Gone(peer) != nil {
		e.refuse(a)
		return true
	}
	t := e.route[peer]
	a.Header.Seq = e.seq[peer]
	e.touched[peer] = true
	var err error
	switch a.Kind {
	case proto.SendFrame:
		err = t.Send(peer, &a.Header, a.Payload)
	case proto.SendCTS:
		if err = e.expose(t, a); err == nil {
			err = t.Send(peer, &a.Header, nil)
		}
	default:
		err = t.SendBulk(peer, &a.Header, a.Payload, a.Header.Reply)
	}
	switch err {
	case nil:
		e.seq[peer]++
		if e.turns(1 + len(a.Payload)>>10) {
			runtime.Gosched() // with the lock: who wants that waits for the rest of the posts anyway
		}
		if a.Op != nil {
			a.Op.Err = nil
			e.finish(a.Op)
		}
		return true
	case transport.ErrAgain:
		return false
	}
	e.core.Lost(peer, err)
	e.refuse(a)
	return true
}

// expose puts into a CTS where its sender may write, on a transport that lets it.
func (e *Engine) expose(t transport.Transport, a *proto.Action) (err error) {
	x, ok := t.(transport.Exposer)
	if !ok || a.Header.Flags&wire.HasRegion != 0 { // done, and then there was no room for the frame
		return nil
	}
	if a.Header.Region, err = x.Expose(int(a.Peer), a.Header.Reply, a.Payload); err != nil {
		return err
	}
	a.Header.Flags |= wire.HasRegion
	e.core.Exposed(a.Header.Reply)
	return nil
}

// refuse ends the send of an action that no transport takes any more.
func (e *Engine) refuse(a *proto.Action) {
	if a.Kind == proto.SendData {
		e.core.NotSent(int(a.Peer), a.Header.Reply)
	}
	if a.Op != nil {
		a.Op.Err = e.core.Refusal(a.Op)
		e.finish(a.Op)
	}
}

// flush retries the outboxes.
func (e *Engine) flush() (moved int) {
	still := e.blocked[:0]
	for _, peer := range e.blocked {
		box := &e.outbox[peer]
		n := 0
		for n < len(box.actions) && e.handOver(&box.actions[n]) {
			n++
		}
		moved += n
		rest := copy(box.actions, box.actions[n:])
		clear(box.actions[rest:])
		box.actions = box.actions[:rest]
		if rest > 0 {
			still = append(still, peer)
		}
	}
	e.blocked = still
	return moved
}

// finish publishes an operation's results and wakes who waits for it.
func (e *Engine) finish(p *proto.Op) {
	op := p.Owner.(*Op)
	if op.task != nil {
		e.taskMessage(op)
		return
	}
	if op.handler != nil {
		e.handled = append(e.handled, op)
		return
	}
	parked, notify, closed := op.parked > 0, op.notify, op.closed
	op.finished.Store(true) // from here on op may belong to its waiter again
	if closed != nil {
		close(closed)
	}
	if parked {
		select {
		case notify <- struct{}{}:
		default:
		}
	}
	if e.asleep.Load() {
		e.wake()
	}
}

// wake ends the poller's sleep.
func (e *Engine) wake() {
	for _, t := range e.transports {
		t.Wake()
	}
}

// Closed returns a channel that is closed when op is done.
func (e *Engine) Closed(op *Op) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if op.closed == nil {
		op.closed = make(chan struct{})
		if op.Finished() {
			close(op.closed)
		}
	}
	e.needIO()
	return op.closed
}

// PeerLost reports a rank's death that the launcher has seen. Its transport
// delivers what it had sent, and reports PeerDown then.
func (e *Engine) PeerLost(peer int, err error) {
	if t := e.route[peer]; t != nil {
		t.MarkDown(peer, err)
	}
	e.needIO()
}

// sink is the engine as a transport sees it. Its methods run inside poll, with
// mu held.
type sink struct{ *Engine }

var _ transport.RemoteSink = sink{}

func (s sink) Frame(peer int, h *wire.Header, payload []byte) {
	s.touched[peer] = true
	if s.leaving && !s.told[peer] {
		s.told[peer] = true
		s.core.Goodbye(peer)
	}
	if err := s.core.Frame(peer, h, payload); err != nil {
		s.core.Lost(peer, err)
	}
}

func (s sink) Dest(peer int, h *wire.Header, n int) []byte {
	buf, err := s.core.Dest(peer, h, n)
	if err != nil {
		s.core.Lost(peer, err)
	}
	return buf
}

func (s sink) Landed(peer int, h *wire.Header) { s.core.Landed(peer, h) }
func (s sink) Sent(peer int, token uint32)     { s.core.Sent(peer, token) }

func (s sink) PeerDown(peer int, err error) {
	s.core.PeerDown(peer, err)
	s.endRemote(peer, s.core.Gone(peer))
}

// PeerLeft reports that a rank has left the job in good order without a Goodbye to
// this rank, because it has never sent anything here.
func (e *Engine) PeerLeft(peer int) {
	e.mu.Lock()
	e.core.PeerLeft(peer)
	e.act()
	e.mu.Unlock()
	e.wake()
}

// Leave says goodbye to all ranks that this one has had to do with, or to
// everybody, and returns whom it did not tell. Whoever turns up later is told then.
func (e *Engine) Leave(everybody bool) (untold []int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leaving = true
	for peer, t := range e.route {
		switch {
		case t == nil:
		case everybody || e.touched[peer]:
			e.told[peer] = true
			e.core.Goodbye(peer)
		default:
			untold = append(untold, peer)
		}
	}
	e.act()
	return untold
}

// Pending returns how many operations are in progress.
func (e *Engine) Pending() (n int) {
	e.Do(func(core *proto.Core) { n = core.Pending() + e.remote.inProgress() })
	return n
}

// Drain waits until the transports have taken everything.
func (e *Engine) Drain(ctx context.Context) error {
	for {
		e.mu.Lock()
		e.poll()
		left := len(e.blocked) + len(e.remote.waiting)
		e.mu.Unlock()
		if left == 0 {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%d ranks did not take what was sent to them: %w", left, context.Cause(ctx))
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// Stats returns the core's counters.
func (e *Engine) Stats() proto.Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.core.Stats
}
