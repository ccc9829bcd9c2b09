package weft

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/transport/sim"
)

// Local runs fn on n ranks that are goroutines of this process, and returns when
// all have returned: for tests, and for programs that want ranks without
// processes. The error is the first one in time; it ends the context of the
// other ranks, and operations on the failed rank fail. A panic in fn is
// an error.
func Local(ctx context.Context, n int, fn func(ctx context.Context, world *Comm) error, opts ...Option) error {
	if n < 1 {
		return &Error{Op: "Local", Peer: NoRank, Tag: NoRank, Want: -1, Got: -1, Err: fmt.Errorf("%w: a world of %d ranks", ErrArgument, n), CallSite: callSite(), lost: -1}
	}
	cfg := newConfig(opts)
	fabric := sim.New(n, cfg.fabric)
	if cfg.killed != nil {
		cfg.killed(fabric.Kill)
	}
	links := make([]*link, n)
	for rank := range links {
		t := fabric.Endpoint(rank)
		links[rank] = &link{rank: rank, size: n, nodes: cfg.nodes, hostsShare: true, transports: []transport.Transport{t}, route: routeAll(n, rank, t)}
		if cfg.nodes != nil {
			links[rank].node = slices.Index(cfg.nodes, cfg.nodes[rank])
		}
	}
	return runLocal(ctx, cfg, links, fabric.Kill, fn)
}

// runLocal runs fn on ranks that are goroutines. kill ends a rank's connections as its death would.
func runLocal(ctx context.Context, cfg *config, links []*link, kill func(rank int), fn func(ctx context.Context, world *Comm) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	var first sync.Once
	var cause error
	left := newRendezvous(len(links))
	for rank, l := range links {
		l.policy, l.reachesAll, l.via = goroutinePolicy(), true, "in process: ranks are goroutines"
		w := newWorld(cfg, l)
		w.leave = left.wait
		all.Go(func() {
			err := protect(rank, func() error { return fn(ctx, w.comm) })
			if err != nil {
				first.Do(func() { cause = fmt.Errorf("rank %d: %w", rank, err) })
				cancel(err)
				kill(rank)
				left.leave()
				_ = w.engine.Close() // the first cause is what counts
				return
			}
			err = w.Close(ctx)
			if err != nil && !errors.Is(err, context.Canceled) {
				first.Do(func() { cause = fmt.Errorf("rank %d: %w", rank, err) })
			}
			if errors.Is(err, ErrPending) { // then it did not wait for the others, and they need not for it
				cancel(err)
				left.leave()
			}
		})
	}
	all.Wait()
	return cause
}

// protect turns a panic into an error with its stack.
func protect(rank int, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{rank, p, debug.Stack()}
		}
	}()
	return f()
}

// panicError is a panic on a rank.
type panicError struct {
	rank  int
	value any
	stack []byte
}

func (e *panicError) Error() string {
	return fmt.Sprintf("panic: %v\n%s", e.value, e.stack)
}

func routeAll(size, rank int, t transport.Transport) []transport.Transport {
	route := make([]transport.Transport, size)
	for i := range route {
		if i != rank {
			route[i] = t
		}
	}
	return route
}

// rendezvous is a point that n parties pass together.
type rendezvous struct {
	mu      sync.Mutex
	missing int
	open    chan struct{}
}

func newRendezvous(n int) *rendezvous { return &rendezvous{missing: n, open: make(chan struct{})} }

func (r *rendezvous) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.missing--; r.missing == 0 {
		close(r.open)
	}
}

func (r *rendezvous) wait(ctx context.Context, _ []int) error {
	r.leave()
	select {
	case <-r.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
