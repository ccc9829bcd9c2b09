package job

import (
	"context"
	"time"

	"github.com/weft-hpc/weft/internal/batch"
)

// How the ranks learn when the job's time ends: the limit of the batch job, or
// --timeout, whichever comes first.

// askLeft asks the batch system, if there is one, without waiting.
func (s *supervisor) askLeft() {
	b := s.plan.Batch
	if b == nil || b.System == "" {
		return
	}
	go func() { // it ends with the process, if the batch system is slow
		left := b.TimeLeft(batch.Asking(context.Background()))
		s.notes.put(note{left: &left})
	}()
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
