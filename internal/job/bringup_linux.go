package job

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/topo"
)

// The supervisor's part in a job on several hosts: agents come up, all of them
// or none; then what they say is what a rank of this host would have done.

// bringUp returns when the agents of all other hosts are ready to start their
// ranks. An error means that the job cannot be started, and no rank was.
func (s *supervisor) bringUp(signals, children <-chan os.Signal) error {
	if s.far == nil {
		return nil
	}
	f := s.far
	began := time.Now()
	f.startAgents()
	forked := time.Since(began)
	wait := f.startWait()
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	for f.err == nil && !f.all(ready) {
		select {
		case <-children:
			s.host.reap(func(int, status) {})
		case <-s.notes.some:
			s.readNotes()
		case sig := <-signals:
			if ending(sig) {
				return failf(128+int(sig.(syscall.Signal)), "signal %d (%v) ended the job before its ranks were started", sig, sig)
			}
			if sig == syscall.SIGTSTP {
				f.root.Hold()
				syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			}
		case <-deadline.C:
			return failf(ExitSetup, "not all agents are ready after %v: no word from %s; --start-timeout gives them longer", wait, f.missing(awaited, assigned))
		}
	}
	if f.err != nil {
		return f.err
	}
	if s.plan.Spec.Verbose {
		took := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
		s.say("%s: commands run after %v, the first agent up after %v, the last after %v, all ready after %v", count(len(f.sites), "agent"),
			took(forked), took(f.firstUp.Sub(began)), took(f.lastUp.Sub(began)), took(time.Since(began)))
	}
	return f.begin()
}

// hearFar takes what happened on another host.
func (s *supervisor) hearFar(n *farNote) {
	f := s.far
	switch {
	case n.refused:
		// A stranger is none of our business, but who knows the secret should have
		// come through.
		if n.site >= 0 && f.sites[n.site].state == awaited {
			f.fail(failf(ExitSetup, "host %s: %w", f.sites[n.site].Name, n.err))
		} else if s.plan.Spec.Verbose {
			s.say("%v", n.err)
		}
	case n.spawn != nil:
		f.refused(n.site, n.spawn)
	case n.over != "":
		f.over(n.site, n.over)
	case n.up:
		if f.sites[n.site].state == awaited {
			if f.lastUp = time.Now(); f.firstUp.IsZero() {
				f.firstUp = f.lastUp
			}
			f.assign(n.site)
		}
	case n.down:
		s.farDown(n.site, n.err)
	default:
		s.hearAgent(n.site, n.message)
	}
}

// hearAgent takes a message of an agent.
func (s *supervisor) hearAgent(i int, m *message) {
	f, st := s.far, s.far.sites[i]
	exchange := m.Verb == msgCards || m.Verb == msgOrphan // goes on where ranks have ended
	if st.state == lost || st.state == done && !exchange {
		return
	}
	ours := func(rank int) bool { return rank >= 0 && rank < s.plan.Size && f.siteOf[rank] == int32(i) }
	switch {
	case m.Verb == msgReady && st.state == assigned:
		st.state = ready
		st.addrs = m.Addrs
		for _, c := range childrenOf(i, len(f.sites)) {
			f.introduce(c)
		}
		if s.plan.Spec.Verbose {
			s.say("host %s: %s", st.Name, m.Text)
		}
		if s.plan.Spec.Report {
			for _, line := range m.Lines {
				s.say("%s", line)
			}
		}
	case m.Verb == msgFailed:
		if m.Site > 0 && m.Site <= len(f.sites) { // it could not start another one
			if other := f.sites[m.Site-1]; other.state == awaited {
				f.fail(failf(m.Code, "%s (started from host %s)", m.Text, st.Name))
			}
			return
		}
		if !f.began {
			f.fail(failf(m.Code, "host %s: %s", st.Name, m.Text))
			return
		}
		s.hostFails(i, m.Code, fmt.Sprintf("host %s: %s", st.Name, m.Text))
	case m.Verb == msgReport && !slices.ContainsFunc(m.Reports, func(r control.Report) bool { return !ours(r.Rank) }):
		for _, r := range m.Reports {
			s.hear(r)
		}
	case m.Verb == msgCards && m.Word != nil:
		if err := s.hearCards(i, m.Word); err != nil {
			f.root.Drop(i, err)
		}
	case m.Verb == msgOrphan:
		if st.parent >= 0 && !f.closed { // else its parent was lost here as well
			s.orphaned(i, m.Text)
		}
	case m.Verb == msgExited && ours(m.Rank) && !s.rec.ranks[m.Rank].ended:
		s.exited(m.Rank, status{m.Pid, syscall.WaitStatus(m.Status)})
	case m.Verb == msgSay:
		s.say("host %s: %s", st.Name, m.Text)
	case m.Verb == msgInputCredit && f.input != nil:
		f.input.grant(m.Count)
	case m.Verb == msgDone:
		st.state = done
		// Its ranks have all been heard of, unless it is out of its mind.
		s.hostFails(i, ExitHostLost, fmt.Sprintf("host %s: its agent ended before ranks did", st.Name))
	default:
		f.root.Drop(i, fmt.Errorf("it sends message %d out of order", m.Verb))
	}
}

// farDown takes the end of a link.
func (s *supervisor) farDown(i int, err error) {
	f, st := s.far, s.far.sites[i]
	if st.state == lost {
		return
	}
	why := "its agent ended"
	if err != nil {
		why = err.Error()
	}
	if st.state == done { // all that it had to say of its ranks is said
		s.bypass(i, why)
		return
	}
	st.state = lost
	if !f.began {
		f.fail(failf(ExitHostLost, "host %s was lost: %s", st.Name, why))
		return
	}
	s.bypass(i, why)
	s.hostFails(i, ExitHostLost, fmt.Sprintf("host %s was lost, with %s: %s", st.Name, ranksOf(st.Ranks), why))
}

// hostFails counts what ran on a host as ended, for one reason.
func (s *supervisor) hostFails(i int, code int, text string) {
	gone := s.rec.vanish(s.far.sites[i].Ranks)
	if len(gone) == 0 {
		if s.far.sites[i].state == lost && !s.far.closed {
			s.say("%s", text) // all ranks have ended, yet what they left behind may be there
		}
		return
	}
	s.left -= len(gone)
	rank := gone[0]
	if first := s.rec.first; first != nil && first.lost >= 0 {
		for _, r := range gone {
			if r == first.lost {
				rank = r // this is what the other one saw
			}
		}
	}
	first := s.rec.fail(failure{rank: rank, code: code, lost: -1, text: text, whole: true})
	if s.goesOn() {
		s.mourn(gone)
	}
	s.judge(first)
}

func ranksOf(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}
	return "ranks " + topo.FormatCPUs(ranks)
}

// awaitFar returns when no process is left on the other hosts, or when a signal
// says that this takes too long.
func (s *supervisor) awaitFar(signals, children <-chan os.Signal) {
	if s.far == nil {
		return
	}
	for !s.far.all(done, lost) {
		select {
		case <-children:
			s.host.reap(func(int, status) {})
		case <-s.notes.some:
			s.readNotes()
		case sig := <-signals:
			if ending(sig) {
				s.signal = sig
				s.say("not all output of hosts %s is there; what is missing is lost", s.far.missing(ready))
				return
			}
			s.pass(sig.(syscall.Signal))
		}
	}
}

// dismissFar ends all agents.
func (s *supervisor) dismissFar() {
	if s.far == nil {
		return
	}
	if err := s.far.close(); err != nil {
		s.say("%v", err)
	}
}
