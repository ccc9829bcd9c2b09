package weft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/weft-hpc/weft/internal/control"
)

// Main runs fn as this process's rank of its job and ends the process. It
// joins the job, runs fn with the communicator of all ranks, and leaves the job
// when fn returns nil. When fn returns an error or panics on any rank, the whole
// job ends, and weftrun shows the first cause.
//
// ctx ends when the job does: on SIGINT or SIGTERM, when another rank has
// failed, and when the launcher is gone.
//
// The exit code is 0, 1 for an error, 2 for a panic, and 128 plus its number for
// a signal that fn ended with.
func Main(fn func(ctx context.Context, world *Comm) error, opts ...Option) {
	os.Exit(run(fn, opts))
}

// Exit codes of Main.
const (
	exitError = 1
	exitPanic = 2
)

// signalError is the cause of a context that a signal ended.
type signalError struct{ sig syscall.Signal }

func (e signalError) Error() string { return "signal: " + e.sig.String() }

func run(fn func(ctx context.Context, world *Comm) error, opts []Option) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer func() {
		signal.Stop(signals) // first: a signal that comes to a closed channel is a panic
		close(signals)
	}()
	go func() {
		for s := range signals {
			cancel(signalError{s.(syscall.Signal)})
			signal.Stop(signals) // a program that does not look at ctx ends with the next one
		}
	}()

	cfg := newConfig(opts)
	cfg.cancel = cancel
	limit := new(limitSource)
	ctx = context.WithValue(ctx, limitKey{}, limit)
	w, err := initialize(ctx, cfg)
	if err != nil {
		if !known(err) {
			say(err)
		}
		return exitError
	}
	limit.client.Store(w.client)
	if err = w.startModel(ctx); err == nil {
		err = protect(w.comm.rank, func() error { return fn(ctx, w.comm) })
	}
	if err == nil {
		err = w.Close(ctx)
		if err == nil {
			return 0
		}
	}
	code := w.fail(ctx, err)
	if w.direct != nil {
		if err := w.direct.Close(); err != nil {
			say(err) // the others may not have heard why
		}
	}
	return code
}

// say prints an error, which may have the prefix already.
func say(err error) {
	fmt.Fprintln(os.Stderr, "weft: "+strings.TrimPrefix(err.Error(), "weft: "))
}

// known tells whether an error is the end of the job that the launcher reported. Where the job goes on without a
// rank, what another one makes of that is news.
func known(err error) bool {
	e, ok := errors.AsType[control.Event](err)
	return ok && e.Kind != control.LauncherLost && !e.GoesOn
}

// known is known for a rank that has a world: without weftrun it is told why its line ended, and
// has said so.
func (w *World) known(err error) bool {
	_, ok := errors.AsType[control.Event](err)
	return known(err) || ok && w.direct != nil
}

// fail ends the job because of this rank's error and returns the exit code.
func (w *World) fail(ctx context.Context, err error) int {
	code, lost := exitError, -1
	var panicked *panicError
	var byRank *Error
	var bySignal signalError
	switch cause := context.Cause(ctx); {
	case errors.As(err, &panicked):
		code = exitPanic
	case errors.As(cause, &bySignal) && errors.Is(err, cause):
		code = 128 + int(bySignal.sig)
	case errors.Is(err, ErrRankFailed) && errors.As(err, &byRank):
		lost = byRank.lost
	}
	if w.known(err) || w.known(context.Cause(ctx)) {
		return code // what the launcher has told is not news to it
	}
	if w.client == nil {
		say(err)
		return code
	}
	if errAbort := w.client.Abort(code, err.Error(), lost); errAbort != nil {
		fmt.Fprintf(os.Stderr, "weft: rank %d: %v\n", w.comm.rank, err)
	}
	return code
}
