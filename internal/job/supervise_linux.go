package job

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/control"
)

const (
	killWait     = time.Second            // from SIGTERM to SIGKILL
	giveUpWait   = 5 * time.Second        // from SIGKILL to leaving behind what the kernel does not let go
	orphanWait   = time.Second            // from the last rank's end to the end of what it left behind
	blameWait    = 100 * time.Millisecond // for the end of a rank that another one misses
	dyingLimit   = 15 * time.Second       // for one whose process is ending
	farBlameWait = 3 * time.Second        // the same, when the loss of its host may be the reason
	joinPatience = 10 * time.Second       // until a wire-up that hangs is talked about
)

// stage is how far the end of a job has come.
type stage uint8

const (
	running stage = iota
	told
	warned
	killed
)

// supervisor runs one job.
type supervisor struct {
	plan    *Plan
	host    *host
	far     *far // the other hosts; nil when there are none
	notes   *mailbox
	rec     *record
	cards   *control.Exchange
	joined  *control.Word // says that all have; nil before
	stage   stage
	next    *time.Timer      // when the stage changes
	blame   *time.Timer      // when an abort is believed whom it blames
	blamed  time.Time        // when somebody was
	part    *time.Timer      // when ranks that have left are told of
	parted  []control.Report // goodbyes of which others are not told yet
	speech  *speech
	signal  os.Signal          // that ends the job
	left    int                // ranks that have not ended
	ends    time.Time          // when the batch job's time is over; zero: not known
	started time.Time          // from when --timeout counts
	ran     bool               // the ranks were started
	ended   *failure           // of the launcher's own, that ends a job which goes on after those of ranks
	freed   bool               // all ranks have said Goodbye
	mark    func(phase string) // hears that a phase is over, in a simulation; else nil
	fallen  int                // ranks that a job has gone on without
}

// forwarded are the signals that are passed on to the ranks. The ones that end
// the job are told from the others in ending.
var forwarded = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH}

// ending tells whether a signal ends the job.
func ending(s os.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGHUP || s == syscall.SIGQUIT
}

// reached is called at the end of each phase of a start.
func (s *supervisor) reached(phase string) {
	if s.mark != nil {
		s.mark(phase)
	}
}

// stopped returns a timer that is not running.
func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

func (s *supervisor) say(format string, args ...any) {
	s.speech.say("weftrun: " + fmt.Sprintf(format, args...) + "\n")
}

func (s *supervisor) sayError(err error) int {
	s.say("%v", err)
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ExitSetup
}

func (s *supervisor) run(signals, children <-chan os.Signal) int {
	if s.plan.Spec.Report {
		for _, line := range s.plan.bindings() {
			s.say("%s", line)
		}
	}
	s.cards = control.NewExchange(s.plan.Size, len(s.plan.Local), s.far.branches(), true, (*rootLinks)(s))
	err := s.bringUp(signals, children)
	if err == nil {
		err = s.host.start()
	}
	if err != nil {
		// Those that were started must not run on.
		for _, rank := range s.plan.Local {
			s.host.signal(rank, syscall.SIGKILL)
		}
		code := s.sayError(err)
		s.dismissFar()
		s.sweep(children)
		s.finish()
		return code
	}
	s.left += s.plan.Size
	s.ran = true
	s.reached("agents ready")
	if s.started.IsZero() { // from here on, and not from a start that took its time
		s.started = time.Now()
	}
	s.tellLimit()
	var deadline <-chan time.Time
	if d := s.plan.Spec.Timeout; d > 0 {
		t := time.NewTimer(time.Until(s.started.Add(d)))
		defer t.Stop()
		deadline = t.C
	}
	patience := time.NewTimer(joinPatience)
	defer patience.Stop()
	keep := time.NewTimer(keeperDelay)
	defer keep.Stop()

	s.reap()
	for s.left > 0 {
		select {
		case <-children:
			s.reap()
		case <-s.notes.some:
			s.readNotes()
		case sig := <-signals:
			s.pass(sig.(syscall.Signal))
		case <-deadline:
			d := s.plan.Spec.Timeout
			s.end(failure{rank: -1, code: ExitTimeout, lost: -1, text: fmt.Sprintf("the job ran longer than --timeout %v", d)})
		case <-s.blame.C:
			if s.dying(s.rec.first.lost) {
				s.blame.Reset(blameWait)
				break
			}
			s.tell()
		case <-s.part.C:
			var gone []departure
			for _, r := range s.parted {
				if len(r.Untold) > 0 {
					s.check(s.host.hub.Left(r.Rank, r.Untold))
					gone = append(gone, departure{r.Rank, r.Untold})
				}
			}
			if s.parted = nil; gone != nil {
				s.far.tell(&message{Verb: msgLeft, Gone: gone})
			}
		case <-s.next.C:
			s.advance()
		case <-patience.C:
			s.wonder()
		case <-keep.C:
			if err := s.host.keep(); err != nil {
				s.say("%v; if weftrun is killed, what the ranks have started may stay", err)
			}
		}
	}
	s.awaitFar(signals, children)
	s.reached("ranks ended")
	s.dismissFar()
	s.sweep(children)
	// Only output is left, for which a slow reader may take its time. From here
	// on a signal is for us, and does what it always does.
	signal.Reset(forwarded...)
	s.finish()
	s.readNotes()
	if s.rec.first == nil {
		return 0
	}
	if s.plan.Spec.KeepGoing {
		s.sayFallen()
	} else if s.plan.Spec.Verbose {
		for _, f := range s.rec.later {
			s.say("then %s", s.describe(f))
		}
	}
	return s.rec.first.code
}

// reap takes note of every process that has ended.
func (s *supervisor) reap() {
	s.host.reap(func(rank int, st status) {
		// What it said before it ended comes first.
		if err := s.host.hub.Drain(rank); err != nil {
			s.say("rank %d: %v", rank, err)
		}
		s.readNotes()
		s.exited(rank, st)
	})
}

// exited takes the end of a rank's process, after all that it said.
func (s *supervisor) exited(rank int, st status) {
	s.left--
	first := s.rec.exit(rank, st)
	if s.goesOn() && !s.rec.endedWell(rank, st) {
		s.mourn([]int{rank})
	}
	s.judge(first)
}

func (s *supervisor) readNotes() {
	for _, n := range s.notes.take() {
		switch {
		case n.report != nil:
			s.hear(*n.report)
		case n.broken != nil:
			s.outputBroke(n.broken)
		case n.far != nil:
			s.hearFar(n.far)
		case n.left != nil:
			s.learnLeft(*n.left)
		default:
			s.say("%s", n.say)
		}
	}
	if s.cards != nil {
		s.cards.Flush()
	}
}

func (s *supervisor) hear(r control.Report) {
	var failed bool
	switch r.Kind {
	case control.Hello:
		failed = s.rec.reached(r.Rank, greeted)
	case control.Joined:
		early := s.rec.early
		if failed = s.rec.reached(r.Rank, joined); early >= 0 && s.goesOn() {
			s.mourn([]int{early})
		}
		if s.far.site(r.Rank) < 0 {
			s.cards.Join(r.Rank, r.Card, r.Text)
		}
	case control.Asked:
		s.cards.Ask(r.Rank, r.Of)
	case control.Goodbye:
		failed = s.rec.reached(r.Rank, left)
		s.farewell(r)
	case control.Abort:
		failed = s.rec.abort(r.Rank, r.Code, r.Text, r.Lost)
	case control.Broken:
		failed = s.rec.fail(failure{rank: r.Rank, code: 1, lost: -1, text: "cannot be understood: " + r.Text})
	}
	s.judge(failed)
}

// partDelay is how long the others are not told that a rank has left. Most
// ranks end at about the same time, and then nobody needs to hear of each.
const partDelay = time.Second

// farewell lets all ranks go when the last one has said Goodbye.
func (s *supervisor) farewell(r control.Report) {
	if s.release() {
		return
	}
	s.parted = append(s.parted, r)
	if len(s.parted) == 1 {
		s.part.Reset(partDelay)
	}
}

// release lets all ranks go if the last one has said Goodbye.
func (s *supervisor) release() bool {
	if s.freed || !s.rec.allLeft() {
		return s.freed
	}
	s.freed = true
	s.reached("cards fetched, all left")
	s.parted = nil
	s.part.Stop()
	s.check(s.host.hub.Release())
	s.far.tell(&message{Verb: msgRelease})
	return true
}

// check takes an error that only a defect of ours can cause.
func (s *supervisor) check(err error) {
	if err != nil {
		s.end(failure{rank: -1, code: ExitSetup, lost: -1, text: err.Error()})
	}
}

// outputBroke ends the job when nobody takes its output, as a pipe does with a
// single program.
func (s *supervisor) outputBroke(err error) {
	if errors.Is(err, syscall.EPIPE) {
		f := failure{rank: -1, code: 128 + int(syscall.SIGPIPE), lost: -1, text: "nobody reads the output any more"}
		if s.isEnd(f) {
			s.tell() // without a word, as others die of SIGPIPE
		}
		return
	}
	s.end(failure{rank: -1, code: 1, lost: -1, text: fmt.Sprintf("the output of the ranks cannot be written: %v", err)})
}

// end ends the job for a reason of the launcher's own.
func (s *supervisor) end(f failure) {
	if s.isEnd(f) {
		s.failed()
	}
}

// isEnd notes a failure of the launcher's own, and tells whether the job ends for it.
func (s *supervisor) isEnd(f failure) bool {
	goesOn := s.goesOn()
	first := s.rec.fail(f)
	if goesOn {
		s.ended = &f
	}
	return first || goesOn
}

// cause is the failure that the job ends for.
func (s *supervisor) cause() *failure {
	if s.ended != nil {
		return s.ended
	}
	return s.rec.first
}

// failed is called when the record has a first failure, or a better one.
func (s *supervisor) failed() {
	f := s.cause()
	if f.lost >= 0 && s.stage == running {
		wait := blameWait
		if s.far.where(f.lost) != "" {
			wait = farBlameWait
		}
		s.blame.Reset(wait)
		s.blamed = time.Now()
		return
	}
	s.blame.Stop()
	s.announce()
	s.tell()
}

// dying reports whether the process of a rank on this host is at its end, though the
// kernel has not told so yet. Others see its connections close first; the rest may take
// seconds, of RDMA devices for example. It is over within dyingLimit, or not waited for.
func (s *supervisor) dying(rank int) bool {
	return time.Since(s.blamed) < dyingLimit && s.host.exiting(rank)
}

// announce prints the first failure.
func (s *supervisor) announce() {
	rest := ""
	others := s.rec.running()
	n := len(others)
	for _, rank := range others {
		if rank == s.cause().rank {
			n--
		}
	}
	if n > 0 {
		which := count(n, "other rank")
		if s.cause().rank < 0 {
			which = count(n, "rank")
		}
		rest = fmt.Sprintf("; %s %s being stopped", which, are(n))
	}
	s.say("%s%s", s.describe(*s.cause()), rest)
}

func (s *supervisor) describe(f failure) string {
	if f.rank < 0 || f.whole {
		return f.text
	}
	host := s.far.where(f.rank)
	if host == "" {
		host = s.plan.Host
	}
	return fmt.Sprintf("rank %d on host %s %s", f.rank, host, f.text)
}

// tell lets everybody know of the first failure, and starts the clock.
func (s *supervisor) tell() {
	f := s.cause()
	if f.lost >= 0 { // nothing came of the blame
		f.lost = -1
		s.announce()
	}
	if s.stage != running {
		return
	}
	s.stage = told
	s.next.Reset(s.plan.Spec.Grace)
	s.cards.Refuse()
	switch {
	case f.whole:
		s.check(s.host.hub.Aborted(-1, f.code, f.text))
		s.far.tell(&message{Verb: msgAborted, Rank: -1, Code: f.code, Text: f.text})
	case f.rank >= 0 && s.rec.ranks[f.rank].ended:
		s.check(s.host.hub.Died(f.rank, f.code, f.text, false))
		s.far.tell(&message{Verb: msgDied, Rank: f.rank, Code: f.code, Text: f.text})
	default:
		text := f.text
		if f.reason != "" {
			text = f.reason
		}
		s.check(s.host.hub.Aborted(f.rank, f.code, text))
		s.far.tell(&message{Verb: msgAborted, Rank: f.rank, Code: f.code, Text: text})
	}
	var deaf []int // to all but signals
	for _, rank := range s.rec.running() {
		if s.rec.ranks[rank].phase == started {
			deaf = append(deaf, rank)
		}
	}
	s.stop(deaf, syscall.SIGTERM)
}

// stop ends ranks with a signal. Stopped ones are woken for it.
func (s *supervisor) stop(ranks []int, sig syscall.Signal) {
	for _, rank := range ranks {
		s.rec.ranks[rank].signalled = true
	}
	s.send(ranks, sig)
	s.send(ranks, syscall.SIGCONT)
}

// send sends a signal to ranks, wherever they are.
func (s *supervisor) send(ranks []int, sig syscall.Signal) {
	for _, rank := range s.far.signal(ranks, sig) {
		s.host.signal(rank, sig)
	}
}

// advance moves on to the next stage of the end.
func (s *supervisor) advance() {
	sig := syscall.SIGTERM
	switch s.stage {
	case told:
		s.stage = warned
		s.next.Reset(killWait)
	case warned:
		s.stage = killed
		s.next.Reset(giveUpWait)
		sig = syscall.SIGKILL
		s.say("%s did not end within %v and a SIGTERM, and %s killed", ranksText(s.rec.running()), s.plan.Spec.Grace, are(len(s.rec.running())))
	case killed:
		s.say("%s %s not end even by SIGKILL, stuck in the kernel, on a dead file system perhaps; left behind", ranksText(s.rec.running()), does(len(s.rec.running())))
		s.left = 0
		return
	}
	s.stop(s.rec.running(), sig)
}

// ranksText names ranks, a few of many.
func ranksText(ranks []int) string {
	const most = 8
	var b strings.Builder
	b.WriteString("rank")
	if len(ranks) != 1 {
		b.WriteString("s")
	}
	for i, r := range ranks {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(ranks)-most)
			break
		}
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, " %d", r)
	}
	return b.String()
}

// pass passes a signal on to the ranks.
func (s *supervisor) pass(sig syscall.Signal) {
	switch {
	case sig == syscall.SIGTSTP:
		// Stopping the group is for us to do: the ranks are in their own.
		s.send(s.rec.running(), syscall.SIGSTOP)
		if s.far != nil {
			s.far.root.Hold()
		}
		syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		return
	case sig == syscall.SIGINT && s.signal == sig: // the user is in a hurry
		s.stage = killed
		s.next.Reset(giveUpWait)
		s.stop(s.rec.running(), syscall.SIGKILL)
		return
	case ending(sig):
		if s.signal == nil {
			s.signal = sig
		}
		if s.rec.first == nil || s.goesOn() {
			// The ranks hear it by the signal itself, which they may handle.
			s.isEnd(failure{rank: -1, code: 128 + int(sig), lost: -1, text: fmt.Sprintf("signal %d (%v) ended the job", sig, sig)})
			s.stage = told
			s.next.Reset(s.plan.Spec.Grace)
			s.announce()
		}
		for _, rank := range s.rec.running() {
			s.rec.ranks[rank].signalled = true
		}
	}
	s.send(s.rec.running(), sig)
}

// wonder says who keeps the others from joining.
func (s *supervisor) wonder() {
	if idle := s.rec.idle(); len(idle) > 0 && s.rec.joiners > 0 && s.rec.first == nil {
		s.say("%s %s not joined the job after %v, and the others wait; are all ranks Weft programs, and not stuck before weft.Init?",
			ranksText(idle), have(len(idle)), joinPatience)
	}
}

// sweep ends what the ranks of this host have left behind.
func (s *supervisor) sweep(children <-chan os.Signal) {
	if text := s.host.sweep(children, nil); text != "" {
		s.say("%s", text)
	}
}

// finish waits until all output is written. It is called when no process of the
// job is left.
func (s *supervisor) finish() {
	s.host.finish()
	if s.far != nil {
		s.far.finish()
	}
}

// The forms of a verb for one rank, and for more.

func are(n int) string  { return form(n, "is", "are") }
func have(n int) string { return form(n, "has", "have") }
func does(n int) string { return form(n, "does", "do") }

func form(n int, one, more string) string {
	if n == 1 {
		return one
	}
	return more
}
