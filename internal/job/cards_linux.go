package job

import (
	"slices"
	"time"

	"github.com/weft-hpc/weft/internal/control"
)

// The exchange of cards between the launcher and its agents: what a control.Exchange does
// at each of them.

// rootLinks are the links of the launcher.
type rootLinks supervisor

// Route implements control.Links.
func (s *rootLinks) Route(rank, _ int) int { return s.far.branchOf(s.far.site(rank)) }

// Send implements control.Links.
func (s *rootLinks) Send(site int, w *control.Word) {
	s.far.send(site, &message{Verb: msgCards, Word: w})
}

// All implements control.Links.
func (s *rootLinks) All(l control.Lack) {
	(*supervisor)(s).reached("all joined")
	s.joined = &control.Word{All: &l}
	(*supervisor)(s).check(s.host.hub.All(l))
}

// Card implements control.Links.
func (s *rootLinks) Card(to, of int, b []byte) { (*supervisor)(s).check(s.host.hub.Card(to, of, b)) }

// hearCards takes what an agent says about cards.
func (s *supervisor) hearCards(i int, w *control.Word) error {
	if w.All != nil {
		for j, st := range s.far.sites {
			if s.far.branchOf(j) != i {
				continue
			}
			for _, rank := range st.Ranks {
				s.hear(control.Report{Rank: rank, Kind: control.Joined, Lost: -1})
			}
		}
	}
	return s.cards.Hear(i, w)
}

// orphaned takes note of a host that has lost its parent.
func (s *supervisor) orphaned(i int, why string) {
	if s.plan.Spec.Verbose {
		st := s.far.sites[i]
		s.say("host %s exchanges cards with weftrun itself from here on, not with host %s: %s", st.Name, s.far.sites[st.parent].Name, why)
	}
	s.adopt(i)
}

// adopt takes a host for a branch of the launcher's, and has its parent let it go.
func (s *supervisor) adopt(i int) {
	st := s.far.sites[i]
	parent := st.parent
	st.parent = -1
	s.cards.Adopt(i)
	s.far.send(parent, &message{Verb: msgDisown, Site: i})
}

// bypass has nobody exchange cards through a host whose link has ended: its children are the launcher's, and then
// its parent lets it go. If it had not joined, the launcher waits for it in vain, so that nobody is told that all have.
func (s *supervisor) bypass(i int, why string) {
	f := s.far
	if f.closed {
		return
	}
	for _, c := range childrenOf(i, len(f.sites)) {
		if f.sites[c].parent == i {
			s.orphaned(c, why)
		}
	}
	if f.sites[i].parent >= 0 {
		s.adopt(i)
	}
}

// branches are the sites that the launcher exchanges cards with.
func (f *far) branches() []int {
	if f == nil {
		return nil
	}
	return childrenOf(-1, len(f.sites))
}

// branchOf returns which of them is nearest to a site.
func (f *far) branchOf(i int) int {
	for f.sites[i].parent >= 0 {
		i = f.sites[i].parent
	}
	return i
}

// kids describes the children of a site.
func (f *far) kids(i int) []kid {
	var out []kid
	for _, c := range childrenOf(i, len(f.sites)) {
		var ranks []int
		for below := []int{c}; len(below) > 0; below = below[1:] {
			ranks = append(ranks, f.sites[below[0]].Ranks...)
			below = append(below, childrenOf(below[0], len(f.sites))...)
		}
		slices.Sort(ranks)
		out = append(out, kid{c, f.sites[c].Name, control.Runs(ranks)})
	}
	return out
}

// introduce tells a site where its parent is, once it can hear it and that is known.
func (f *far) introduce(i int) {
	if s := f.sites[i]; s.parent >= 0 && s.state != awaited && f.sites[s.parent].addrs != nil {
		f.send(i, &message{Verb: msgParent, Addrs: f.sites[s.parent].addrs})
	}
}

// grow opens an agent's links of the tree, and returns where its children find it.
func (a *agent) grow(as *assignment) (addrs []string, err error) {
	cfg := branchConfig{way: a.way, plane: a.plane, name: a.name, size: as.Size, own: len(a.host.plan.Local), deep: as.Deep, kids: as.Kids,
		up: a.send, card: func(to, of int, b []byte) { a.check(a.host.hub.Card(to, of, b)) },
		all: func(l control.Lack) {
			a.held = nil // which the launcher knows now
			a.hold.Stop()
			a.check(a.host.hub.All(l))
		}}
	if len(as.Kids) > 0 {
		names := make([]string, len(as.Kids))
		for i, k := range as.Kids {
			names[i] = k.Name
		}
		if cfg.listen, addrs, err = addressesFor(names, as.Interface); err != nil {
			return nil, &Error{ExitSetup, err}
		}
	}
	if a.tree, err = newBranch(cfg, a.news); err != nil {
		return nil, &Error{ExitSetup, err}
	}
	return a.tree.at(addrs), nil
}

// check tells of an error that only a defect of ours can cause.
func (a *agent) check(err error) {
	if err != nil {
		a.say("%v", err)
	}
}

// holdWait is how long the launcher does not hear that ranks come up and join. If all do, it
// hears so in one message for many hosts; if not, it must know who is missing.
const holdWait = time.Second

// hear takes a report of a rank, and tells whether the launcher must know of it now.
func (a *agent) hear(r *control.Report) (urgent bool) {
	switch r.Kind {
	case control.Asked:
		a.tree.cards.Ask(r.Rank, r.Of)
		return false
	case control.Joined:
		a.tree.cards.Join(r.Rank, r.Card, r.Text)
	}
	if a.held = append(a.held, *r); len(a.held) == 1 {
		a.hold.Reset(holdWait)
	}
	return r.Kind != control.Hello && r.Kind != control.Joined
}

// tellHeld tells the launcher what it need not have heard yet.
func (a *agent) tellHeld() {
	if a.held != nil {
		a.send(&message{Verb: msgReport, Reports: a.held})
		a.held = nil
		a.hold.Stop()
	}
}
