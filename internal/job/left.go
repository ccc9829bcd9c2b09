package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/batch"
)

// How the ranks learn when the job's time ends: the limit of the batch job, or
// --timeout, whichever comes first.

// askWait bounds what is waited for a batch system's answer.
const askWait = 5 * time.Second

// askLeft asks the batch system, if there is one, without waiting.
func (s *supervisor) askLeft() {
	b := s.plan.Batch
	if b == nil || b.System == "" {
		return
	}
	go func() { // it ends with the process, if the batch system is slow
		left := b.TimeLeft(asking())
		s.notes.put(note{left: &left})
	}()
}

// asking is the real world, batch systems' commands included.
func asking() batch.Source {
	src := batch.System()
	src.Run = ask
	return src
}

// ask runs a command and returns what it says. The supervisor, which reaps all children,
// may take its exit status away from us.
func ask(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askWait)
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
		err = fmt.Errorf("no answer within %v", askWait)
	}
	return string(b), err
}

// learnLeft takes the batch system's answer.
func (s *supervisor) learnLeft(l batch.Left) {
	if s.plan.Spec.Verbose {
		s.say("time left for the job: %v", l)
	}
	if l.Known && !l.Endless {
		s.ends = time.Now().Add(l.For)
		if s.left > 0 {
			s.tellLimit()
		}
	}
}

// tellLimit tells the ranks when the job's time ends, as far as that is known.
func (s *supervisor) tellLimit() {
	ends := s.ends
	if d := s.plan.Spec.Timeout; d > 0 {
		if at := s.started.Add(d); ends.IsZero() || at.Before(ends) {
			ends = at
		}
	}
	if ends.IsZero() {
		return
	}
	left := time.Until(ends)
	s.check(s.host.hub.Limit(left))
	s.far.tell(&message{Verb: msgLimit, Left: int64(left)})
}
