package weft

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/collective/collectivetest"
)

// The suite of the algorithms over communicators: real messages with signatures, on a
// fabric that is slow, repeats frames and reorders those of different pairs.
func TestCollectiveSuite(t *testing.T) {
	for name, faults := range map[string]Faults{
		"eager":      {Seed: 1, Delay: 2, Duplicate: 0.05, Full: 0.1},
		"rendezvous": {Seed: 2, Delay: 1, Duplicate: 0.05, Full: 0.1, Eager: 64, Stream: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &suiteWorlds{t: t, faults: faults, free: map[int]*suiteWorld{}}
			collectivetest.RunSample(t, w.run)
			for _, s := range w.free {
				s.end()
			}
		})
	}
}

// suiteWorlds keeps a world for each number of ranks: starting one for each of some
// ten thousand calls takes longer than these do.
type suiteWorlds struct {
	t      *testing.T
	faults Faults
	free   map[int]*suiteWorld
}

type suiteWorld struct {
	jobs []chan func(p collective.Peer) error
	errs []error
	done sync.WaitGroup // of a job
	over chan error
}

func (ws *suiteWorlds) start(n int) *suiteWorld {
	s := &suiteWorld{errs: make([]error, n), over: make(chan error, 1)}
	for range n {
		s.jobs = append(s.jobs, make(chan func(p collective.Peer) error))
	}
	go func() {
		s.over <- Local(context.Background(), n, func(ctx context.Context, c *Comm) error {
			for job := range s.jobs[c.rank] {
				short, stop := context.WithTimeout(ctx, 20*time.Second)
				// Not the error of collect, which is told from that of the algorithm.
				_ = c.collect(short, collCall{name: "Suite", op: opBarrier}, func(m *member) (err error) {
					err = job(m)
					s.errs[c.rank] = err
					return err
				})
				stop()
				s.done.Done()
			}
			return nil
		}, WithFaults(ws.faults))
	}()
	return s
}

func (s *suiteWorld) end() error {
	for _, jobs := range s.jobs {
		close(jobs)
	}
	return <-s.over
}

// run is a collectivetest.World. A world in which a call failed is revoked, and not
// used again.
func (ws *suiteWorlds) run(n int, fn func(p collective.Peer) error) []error {
	s := ws.free[n]
	if s == nil {
		s = ws.start(n)
		ws.free[n] = s
	}
	s.done.Add(n)
	for rank, jobs := range s.jobs {
		s.errs[rank] = errNotRun
		jobs <- fn
	}
	s.done.Wait()
	errs := append([]error(nil), s.errs...)
	for _, err := range errs {
		if err != nil {
			delete(ws.free, n)
			_ = s.end() // says again what failed
			break
		}
	}
	return errs
}

var errNotRun = &Error{Op: "a rank that could not begin"}
