package batch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

// askWait bounds what is waited for the answer of a batch system's command.
const askWait = 5 * time.Second

// Asking is the real world with Run, whose commands end with ctx, or when they take too long.
func Asking(ctx context.Context) Source {
	src := System()
	src.Run = func(name string, args ...string) (string, error) { return ask(ctx, name, args...) }
	return src
}

// ask runs a command and returns what it says. Who reaps all children, as weftrun does, may take
// its exit status away from us.
func ask(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askWait, fmt.Errorf("no answer within %v", askWait))
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	b, err := io.ReadAll(io.LimitReader(out, 1<<20))
	if errWait := cmd.Wait(); err == nil && !errors.Is(errWait, syscall.ECHILD) {
		err = errWait
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return string(b), err
}
