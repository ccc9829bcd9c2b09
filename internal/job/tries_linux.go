package job

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A job may be tried several times, each with a supervisor, a plan and agents of its own:
// nothing but the user's wishes and what was learned of hosts passes from one to the next.

// leastTime is what a batch job must have left for another try to make sense.
const leastTime = 10 * time.Second

// Run runs a job to its end, again where it failed and the user wants that, and
// returns the exit code. It writes what the user must know to says. It takes over the
// process: signals, orphans, and all children; it is called once.
func Run(plan *Plan, says io.Writer) int {
	signals := make(chan os.Signal, 16)
	children := make(chan os.Signal, 1) // one token is enough: reap takes all
	signal.Notify(children, syscall.SIGCHLD)
	// A write to a closed pipe must return, not kill us. Ignoring the signal
	// would make the ranks ignore it too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	defer signal.Reset()
	var started time.Time
	input := openInput()
	for {
		for _, s := range append(forwarded, syscall.SIGTSTP, syscall.SIGCONT) {
			if !signal.Ignored(s) { // nohup and background jobs mean it
				signal.Notify(signals, s)
			}
		}
		s := &supervisor{plan: plan, notes: newMailbox(), rec: newRecord(plan.Size),
			next: stopped(), blame: stopped(), part: stopped(), started: started}
		s.rec.goesOn = plan.Spec.KeepGoing
		code := s.try(signals, children, says)
		next := s.again(input)
		s.speech.close()
		if next == nil {
			return code
		}
		plan, started = next, s.started
	}
}

// try runs the job once.
func (s *supervisor) try(signals, children <-chan os.Signal, says io.Writer) int {
	sinks := newSinks(func(err error) { s.notes.put(note{broken: err}) })
	s.speech = newSpeech(sinks[1].lock, says)
	err := errors.Join(adoptOrphans(), raiseMemlock())
	if err == nil {
		s.host, err = newHost(s.plan, s.notes, sinks)
	}
	if err == nil && len(s.plan.Others) > 0 {
		if s.far, err = newFar(s.plan, s.notes, s.host, sinks); err != nil {
			err = errors.Join(err, s.host.close())
		} else {
			s.host.other = s.far.commandEnded
		}
	}
	if err != nil {
		return s.sayError(err)
	}
	s.askLeft()
	code := s.run(signals, children)
	if err := s.host.close(); err != nil {
		s.say("%v", err)
	}
	return code
}

// again plans another try; nil when this was the last. There is none after an end that
// somebody wanted, by a signal or a limit of time, nor when the job could not be started:
// it would end the same way.
func (s *supervisor) again(in input0) *Plan {
	spec, f := s.plan.Spec, s.rec.first
	switch {
	case spec.Restarts == 0 || f == nil || !s.ran || s.signal != nil || f.rank < 0 || f.whole && f.code != ExitHostLost:
		return nil
	case spec.Try == spec.Restarts:
		s.say("the job failed %s, which is as often as --restart %d allows", times(spec.Try+1), spec.Restarts)
		return nil
	case !s.ends.IsZero() && time.Until(s.ends) < leastTime:
		s.say("the job is not started again: its time in the batch system is over")
		return nil
	}
	if s.far != nil {
		for _, site := range s.far.sites {
			if site.state == lost {
				spec.Without = append(spec.Without, site.Name)
			}
		}
	}
	spec.Try++
	p, err := NewPlan(spec)
	if err == nil {
		err = in.rewind()
	}
	if err != nil {
		s.say("the job is not started again: %v", err)
		return nil
	}
	without := ""
	if len(spec.Without) > 0 {
		without = ", without " + strings.Join(spec.Without, ", ")
	}
	s.say("the job is started again, restart %d of %d%s%s", spec.Try, spec.Restarts, without, in.note)
	return p
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return count(n, "time")
}

// input0 is what is known of our standard input, which rank 0 of a first try reads.
type input0 struct {
	file  bool // that can be read again
	start int64
	note  string // for the user, where it cannot
}

func openInput() (in input0) {
	var st unix.Stat_t
	if unix.Fstat(0, &st) != nil {
		return in
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		at, err := unix.Seek(0, 0, io.SeekCurrent)
		in.file, in.start = err == nil, at
	case unix.S_IFIFO, unix.S_IFSOCK:
		in.note = "; standard input is a pipe, of which it finds what was not read"
	}
	return in
}

// rewind has the next rank 0 find what the first one found.
func (in *input0) rewind() error {
	if !in.file {
		return nil
	}
	if _, err := unix.Seek(0, in.start, io.SeekStart); err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	return nil
}

// How a job goes on without ranks that failed, where the user wants that.

// goesOn tells whether a rank's failure ends that rank only.
func (s *supervisor) goesOn() bool { return s.plan.Spec.KeepGoing && s.stage == running }

// judge is called after everything that may have been a failure of a rank.
func (s *supervisor) judge(first bool) {
	if !s.goesOn() {
		if first {
			s.failed()
		}
		return
	}
	rest := ""
	if s.left > 0 {
		rest = "; the others go on"
	}
	for _, f := range s.rec.news {
		s.say("%s%s", s.describe(f), rest)
	}
	s.rec.news = nil
	s.release()
}

// mourn tells the others of ranks that have failed and ended.
func (s *supervisor) mourn(ranks []int) {
	s.cards.Refuse()
	for _, rank := range ranks {
		s.fallen++
		f := s.rec.of(rank)
		switch {
		case f.whole:
			f.text = "is gone: " + f.text
		case f.second: // or each would tell what all before it have told
			f.text = fmt.Sprintf("failed with code %d, as it had lost another rank", f.code)
		}
		s.check(s.host.hub.Died(rank, f.code, f.text, true))
		s.far.tell(&message{Verb: msgDied, Rank: rank, Code: f.code, Text: f.text, GoesOn: true, Word: s.joined})
	}
}

// of returns the last failure of a rank, or of its host.
func (r *record) of(rank int) failure {
	var all []failure
	if r.first != nil {
		all = append(all, *r.first)
	}
	all = append(all, r.later...)
	for _, f := range slices.Backward(all) {
		if f.rank == rank {
			return f
		}
	}
	for _, f := range slices.Backward(all) {
		if f.whole {
			return f
		}
	}
	return failure{rank: rank, code: 1, lost: -1, text: "ended"}
}

// sayFallen sums up, at the end of a job that went on.
func (s *supervisor) sayFallen() {
	if s.fallen == 0 {
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %s failed:", s.fallen, count(s.plan.Size, "rank"))
	for _, f := range append([]failure{*s.rec.first}, s.rec.later...) {
		b.WriteString("\n    " + s.describe(f))
	}
	s.say("%s", b.String())
}
