package job

import (
	"fmt"
	"syscall"
)

// phase is how far a rank has come. Phases only grow.
type phase uint8

const (
	started phase = iota // a process that has not spoken: not a Weft program, or not yet
	greeted              // said Hello
	joined               // sent its card
	left                 // said Goodbye
)

// failure is why a job fails. It is the launcher's own when rank is -1.
type failure struct {
	rank int
	code int    // the launcher's exit code
	text string // what happened, after the rank's name
	lost int    // the rank that an aborting one blames, -1 for none

	reason string // of an abort, as the rank gave it
	second bool   // of an abort: the rank lost another one
	whole  bool   // the text stands alone: it is about a host, and rank is one of those there
}

// status of an ended process.
type status struct {
	pid int
	syscall.WaitStatus
}

// record keeps what is known of every rank, and which failure came first. It is
// pure: it takes what happened and says whether that was a failure.
//
// First means first in the order that things became known, with two exceptions.
// A rank that the launcher has signalled is a victim, whatever it ends with. And
// a rank that aborts because it lost another one gives way to that one's own
// failure, which may become known a little later.
type record struct {
	ranks   []rankRecord
	joiners int
	leavers int // ranks that have said Goodbye, or, where the job goes on, will never do
	early   int // the first rank that ended well without joining, or -1
	first   *failure
	later   []failure
	news    []failure // of both, those that have not been told; where the job goes on
	goesOn  bool      // after a failure of a rank
}

type rankRecord struct {
	phase     phase
	aborted   bool // has aborted the job, so its exit status tells nothing more
	ended     bool
	signalled bool // by the launcher
}

func newRecord(n int) *record { return &record{ranks: make([]rankRecord, n), early: -1} }

// fail notes a failure and tells whether it is the first.
func (r *record) fail(f failure) bool {
	r.news = append(r.news, f)
	switch {
	case r.first == nil:
		r.first = &f
		return true
	case r.first.lost >= 0 && r.first.lost == f.rank:
		r.later = append(r.later, *r.first)
		r.first = &f
		return true
	}
	r.later = append(r.later, f)
	return false
}

// reached notes a rank's phase.
func (r *record) reached(rank int, p phase) bool {
	s := &r.ranks[rank]
	before := s.phase
	if p > before {
		if s.phase = p; p == left && !s.ended {
			r.leavers++
		}
	}
	if p != joined || before >= joined {
		return false
	}
	r.joiners++
	if r.early >= 0 {
		early := r.early
		r.early = -1 // once is enough
		return r.fail(r.tooEarly(early, rank))
	}
	return false
}

// allLeft tells whether every rank has said Goodbye, or will never do.
func (r *record) allLeft() bool { return r.leavers == len(r.ranks) }

// over notes that a rank's process has ended.
func (r *record) over(rank int) {
	s := &r.ranks[rank]
	if !s.ended && s.phase != left && r.goesOn {
		r.leavers++
	}
	s.ended = true
}

func (r *record) tooEarly(rank, joiner int) failure {
	return failure{rank: rank, code: 1, lost: -1, text: fmt.Sprintf(
		"ended with exit status 0 and never joined the job, while rank %d did; all ranks or none must be Weft programs", joiner)}
}

// abort notes that a rank ends the job.
func (r *record) abort(rank, code int, reason string, lost int) bool {
	r.ranks[rank].aborted = true
	if code &= 0xff; code == 0 {
		code = 1
	}
	second := lost >= 0
	if lost == rank || lost >= 0 && r.ranks[lost].ended {
		// A rank that has ended is judged already: well, or as the first failure.
		lost = -1
	}
	how := "aborted the job"
	if r.goesOn {
		how = "failed"
	}
	return r.fail(failure{rank: rank, code: code, lost: lost, second: second, reason: reason, text: fmt.Sprintf("%s with code %d: %s", how, code, reason)})
}

// exit notes the end of a rank's process, after everything that it said.
func (r *record) exit(rank int, st status) bool {
	r.over(rank)
	s := &r.ranks[rank]
	f := failure{rank: rank, lost: -1}
	switch {
	case st.Signaled():
		f.code = 128 + int(st.Signal())
		f.text = fmt.Sprintf("(pid %d) ended with signal %d (%v)%s", st.pid, st.Signal(), st.Signal(), hint(st))
	case st.ExitStatus() != 0:
		f.code = st.ExitStatus()
		f.text = fmt.Sprintf("(pid %d) ended with exit status %d", st.pid, f.code)
	case s.phase == greeted || s.phase == joined:
		f.code = 1
		f.text = fmt.Sprintf("(pid %d) ended with exit status 0 before it had finished: it left without closing its world", st.pid)
	case s.phase == started:
		if r.early < 0 {
			r.early = rank
		}
		if j := r.joiner(); j >= 0 {
			f = r.tooEarly(rank, j)
			break
		}
		return false
	default:
		return false
	}
	if s.aborted || s.signalled {
		return false // the consequence of what is known already
	}
	return r.fail(f)
}

// endedWell tells whether a rank whose process has ended did what it should.
func (r *record) endedWell(rank int, st status) bool {
	s := r.ranks[rank]
	return !st.Signaled() && st.ExitStatus() == 0 && !s.aborted && (s.phase == left || s.phase == started && r.joiners == 0)
}

func hint(st status) string {
	switch {
	case st.Signal() == syscall.SIGKILL:
		return ", which is often the kernel when memory runs out"
	case st.CoreDump():
		return " and left a core file"
	}
	return ""
}

// joiner returns a rank that has joined, or -1.
func (r *record) joiner() int {
	if r.joiners > 0 {
		for i, s := range r.ranks {
			if s.phase >= joined {
				return i
			}
		}
	}
	return -1
}

// vanish notes the end of ranks of which nothing more can be known, and returns
// those that had not ended.
func (r *record) vanish(ranks []int) []int {
	var gone []int
	for _, rank := range ranks {
		if !r.ranks[rank].ended {
			r.over(rank)
			gone = append(gone, rank)
		}
	}
	return gone
}

// running returns the ranks that have not ended.
func (r *record) running() []int {
	var out []int
	for i, s := range r.ranks {
		if !s.ended {
			out = append(out, i)
		}
	}
	return out
}

// idle returns the ranks that have neither ended nor joined.
func (r *record) idle() []int {
	var out []int
	for i, s := range r.ranks {
		if !s.ended && s.phase < joined {
			out = append(out, i)
		}
	}
	return out
}
