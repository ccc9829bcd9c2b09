// Package direct makes ranks of processes that were started together without weftrun, by
// srun or by the mpiexec of an MPI library: it finds their places, has them meet, and
// keeps their job together until its end.
//
// # Vocabulary
//
// A place is rank, size, and what the processes have in common that was there before they
// met: a manager (package pmi), or the step of a Slurm job. An invitation is what rank 0
// has the others know: the job's name and secret, and where it listens. It travels in the
// manager's space, or in a file in the home directory that only its owner can read; never
// on a command line or in an environment. The judge is in the process of rank 0, and does
// what weftrun does for its ranks: it deals cards, tells of deaths and aborts, and lets
// all go when all have said goodbye.
//
// # The life of a job
//
//	rank 0                                  another rank
//	listens, writes the invitation      ->  reads it, dials, proves that it knows the secret
//	                                    <-  card: host, processors
//	knows all, forms hosts: layout      ->  gets its host's segment from the first rank there
//	a line (package control) over the link, both ways, from here on
//
// Links are those of package plane: sealed, and with a beat, so that a host that is cut
// off is noticed.
//
// # Who ends the job
//
// Nobody but the ranks themselves, so each one has a guard: when a rank is lost, or the job is
// aborted, or rank 0 is gone, a rank that has not ended some seconds later ends itself.
//
// # What it does not do
//
// Output, signals and binding are the starter's. Ranks of one host share memory if they
// are in one network namespace; others are on different hosts for all that is known here.
package direct

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/plane"
	"github.com/weft-hpc/weft/internal/pmi"
)

const (
	// guardWait is what a rank gets to end by itself after the job has failed.
	guardWait = 5 * time.Second
	// meetWait bounds the time in which all ranks must come, from the first on.
	meetWait = 2 * time.Minute

	exitGuard = 1 // of a rank that its guard ends
)

// System is what a process has around it. Tests bring their own.
type System struct {
	Getenv   func(string) string
	Setenv   func(name, value string) error
	Unsetenv func(name string) error
	Home     string // the directory for invitations
	Notice   func(line string)
	Exit     func(code int)
	// Segment makes the shared memory of a host.
	Segment func(name string, n int, arena int64) (*os.File, error)
	// Left tells how long the job may still run, if that can be told; rank 0 asks once, and may
	// have to wait. Nil is as good as not told.
	Left func(ctx context.Context) (left time.Duration, ok bool)

	grace time.Duration                  // 0: guardWait
	host  func() (card, error)           // nil: this one
	adopt func(fd int) (*os.File, error) // nil: inherited
}

// ThisProcess is what the calling process has around it, but for Left.
func ThisProcess(segment func(name string, n int, arena int64) (*os.File, error)) System {
	home, _ := os.UserHomeDir() // where none is known, and one is needed, the error names the file
	return System{Getenv: os.Getenv, Setenv: os.Setenv, Unsetenv: os.Unsetenv, Home: home, Exit: os.Exit, Segment: segment,
		Notice: func(line string) { fmt.Fprintln(os.Stderr, "weft: "+line) }}
}

// place is where this process is, and how it hears from rank 0.
type place struct {
	rank, size int
	oneHost    bool // known from the start
	about      string
	manager    *pmi.Client // nil: by the file
	file       string
}

// byFile tells whether others wait for a file.
func (p *place) byFile() bool { return p.manager == nil && p.size > 1 }

// invitation is what all need to know.
type invitation struct {
	Job    string   `json:"job"`
	Secret []byte   `json:"secret"`
	Addrs  []string `json:"addrs"`
}

// Rank is this process's part of a job.
type Rank struct {
	Client *control.Client

	sys    System
	place  *place
	judge  *judge       // in rank 0
	link   *link        // in others
	serve  func() error // ends what hands the segment on
	guard  sync.Once
	timer  *time.Timer
	closed sync.Once
}

// Join makes this process a rank of its job, once all others have come. It returns nil and
// no error where nothing says that there are others.
func Join(ctx context.Context, sys System) (*Rank, error) {
	p, err := find(ctx, &sys)
	if err != nil || p == nil {
		return nil, err
	}
	notice := sys.Notice
	sys.Notice = func(line string) { notice(fmt.Sprintf("rank %d: %s", p.rank, line)) }
	r := &Rank{sys: sys, place: p, serve: func() error { return nil }}
	meet, cancel := context.WithTimeoutCause(ctx, meetWait, fmt.Errorf("not all had come after %v", meetWait))
	defer cancel()
	if err = r.join(meet); err != nil {
		return nil, errors.Join(fmt.Errorf("rank %d of %d (%s): %w", p.rank, p.size, p.about, err), r.Close())
	}
	return r, nil
}

func (r *Rank) join(ctx context.Context) error {
	mine, err := r.card()
	if err != nil {
		return err
	}
	var inv *invitation
	if r.place.rank == 0 {
		if inv, err = r.open(mine); err != nil {
			return err
		}
		if err = r.invite(ctx, inv); err != nil {
			return err
		}
		lay, err := r.judge.gather(ctx)
		if r.place.byFile() {
			err = errors.Join(err, removeInvitation(r.place.file))
		}
		if err != nil {
			return err
		}
		if r.sys.Left != nil {
			r.judge.askLeft(r.sys.Left)
		}
		return r.takePlace(ctx, inv, lay, r.judge.own)
	}
	var lay *layout
	r.link = newLink(r.place.rank, mine, r.sys.Notice)
	if inv, lay, err = r.meet(ctx); err != nil {
		return err
	}
	return r.takePlace(ctx, inv, lay, r.link.rank)
}

// takePlace gets the segment and takes the line up.
func (r *Rank) takePlace(ctx context.Context, inv *invitation, lay *layout, line *os.File) error {
	segment, err := r.segment(ctx, inv, lay)
	if err != nil {
		return errors.Join(err, line.Close())
	}
	r.Client, err = control.Dial(line, segment)
	return err
}

// open makes rank 0's end.
func (r *Rank) open(mine card) (*invitation, error) {
	inv := &invitation{Job: "direct-" + rand.Text()[:12], Secret: control.NewSecret()}
	listen, addrs, err := addresses(r.place.oneHost)
	if err != nil {
		return nil, err
	}
	if r.judge, err = newJudge(inv, r.place.size, mine, listen, r.sys.Notice); err != nil {
		return nil, err
	}
	inv.Addrs = withPort(addrs, r.judge.root.Port())
	return inv, nil
}

// invite lets the others know.
func (r *Rank) invite(ctx context.Context, inv *invitation) error {
	b, err := json.Marshal(inv)
	if err != nil {
		return err
	}
	if r.place.byFile() {
		return writeInvitation(r.place.file, b)
	}
	if r.place.manager == nil {
		return nil
	}
	_, err = r.place.manager.Share(ctx, "invitation", b)
	return err
}

// meet finds the invitation and follows it. A file may be one that a job of the same
// number has left, so it is looked at again until somebody answers.
func (r *Rank) meet(ctx context.Context) (*invitation, *layout, error) {
	p := r.place
	if p.manager != nil {
		b, err := p.manager.Share(ctx, "invitation", nil)
		if err != nil {
			return nil, nil, err
		}
		inv, err := parseInvitation(b)
		if err != nil {
			return nil, nil, fmt.Errorf("from the process manager: %w", err)
		}
		lay, err := r.link.join(ctx, inv)
		return inv, lay, err
	}
	if _, err := os.Stat(r.sys.Home); err != nil {
		return nil, nil, fmt.Errorf("%s, but %w; %s", byFile, err, without)
	}
	wait := 10 * time.Millisecond
	for {
		inv, err := readInvitation(p.file)
		if err == nil {
			var lay *layout
			if lay, err = r.link.join(ctx, inv); err == nil {
				return inv, lay, nil
			}
		}
		if errors.Is(err, errInvitation) || r.link.joined() {
			return nil, nil, err
		}
		select {
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("waited for rank 0: %w; last, %w (%s, which all hosts must share; %s)", context.Cause(ctx), err, byFile, without)
		case <-time.After(wait):
		}
		wait = min(2*wait, 500*time.Millisecond)
	}
}

// parseInvitation reads what rank 0 wrote.
func parseInvitation(b []byte) (*invitation, error) {
	inv := new(invitation)
	if err := json.Unmarshal(b, inv); err != nil {
		return nil, fmt.Errorf("%w: %w", errInvitation, err)
	}
	if inv.Job == "" || len(inv.Secret) != control.SecretSize || len(inv.Addrs) == 0 {
		return nil, fmt.Errorf("%w: it lacks the job, the secret or the addresses", errInvitation)
	}
	return inv, nil
}

// errInvitation is an invitation that must not be followed.
var errInvitation = errors.New("the invitation of rank 0 is not one; start all ranks from one build")

// planeConfig is what both ends of a link know.
func planeConfig(inv *invitation) plane.Config {
	return plane.Config{Job: inv.Job, Secret: inv.Secret, Build: fmt.Sprintf("direct 1, control %d", control.Version)}
}

// Heard starts the guard when an event means that the job cannot go on.
func (r *Rank) Heard(e control.Event) {
	if e.Kind == control.RankLeft || e.GoesOn {
		return
	}
	r.guard.Do(func() {
		grace := guardWait
		if r.sys.grace > 0 {
			grace = r.sys.grace
		}
		r.timer = time.AfterFunc(grace, func() {
			r.sys.Notice(fmt.Sprintf("did not end by itself within %v after the job had failed (%v)", grace, e))
			r.sys.Exit(exitGuard)
		})
	})
}

// Finish tells the process manager that this rank has ended in good order.
func (r *Rank) Finish(ctx context.Context) error {
	if r.place.manager == nil {
		return nil
	}
	return r.place.manager.Finalize(ctx)
}

// Close sends what this rank has said, and gives everything back. Calls after the first
// do nothing.
func (r *Rank) Close() (err error) {
	r.closed.Do(func() {
		r.guard.Do(func() {}) // no guard any more, if there was none
		if r.timer != nil {
			r.timer.Stop()
		}
		if r.Client != nil {
			err = r.Client.Close()
		}
		err = errors.Join(err, r.serve())
		if r.judge != nil {
			err = errors.Join(err, r.judge.close())
		}
		if r.link != nil {
			err = errors.Join(err, r.link.close())
		}
		if r.place.manager != nil {
			err = errors.Join(err, r.place.manager.Close())
		}
	})
	return err
}
