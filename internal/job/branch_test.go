package job

import (
	"slices"
	"testing"

	"github.com/weft-hpc/weft/internal/control"
)

// TestDeathBeforeTheTreeTells: an agent may hear of a death, by its link to the launcher, before it hears by the tree that all
// had joined. Then no Join fails for it.
func TestDeathBeforeTheTreeTells(t *testing.T) {
	for name, c := range map[string]struct {
		word *control.Word
		ok   bool
	}{
		"all had joined": {&control.Word{All: &control.Lack{}}, true},
		"not all":        {nil, false},
	} {
		joined := make(chan struct{})
		hub := control.NewHub(control.Job{Size: 2, LocalRanks: []int{0}, Layout: control.Layout{{0, 1, 1}}, Secret: control.NewSecret()}, func(r control.Report) {
			if r.Kind == control.Joined {
				close(joined)
			}
		})
		a := &agent{host: &host{hub: hub}, news: newMailboxOf[branchNews]()}
		var err error
		if a.tree, err = newBranch(branchConfig{size: 2, own: 1, deep: true, all: func(l control.Lack) { a.check(hub.All(l)) }}, a.news); err != nil {
			t.Fatal(err)
		}
		line, err := hub.Open(0)
		if err != nil {
			t.Fatal(err)
		}
		if line, err = control.Own(line); err != nil {
			t.Fatal(err)
		}
		rank, err := control.Dial(line, nil)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			_, err := rank.Join(t.Context(), nil, "")
			done <- err
		}()
		<-joined
		if _, err := a.obey(&message{Verb: msgDied, Rank: 1, Code: 3, Text: "ended", GoesOn: true, Word: c.word}); err != nil {
			t.Error(err)
		}
		if err := <-done; (err == nil) != c.ok {
			t.Errorf("%s: Join: %v", name, err)
		}
		if err := rank.Close(); err != nil {
			t.Error(err)
		}
		if err := hub.Close(); err != nil {
			t.Error(err)
		}
	}
}

// heard is a link that hands on what it is sent.
type heard chan *message

func (h heard) Send(b []byte) {
	m, err := decode(b)
	if err != nil {
		panic(err)
	}
	h <- m
}
func (h heard) Close() error { return nil }

// TestFailedAgentServesTheTree: an agent whose ranks cannot run on says so once, starts nothing, and answers who exchanges cards through it.
func TestFailedAgentServesTheTree(t *testing.T) {
	said := make(heard, 10)
	a := &agent{member: said, up: make(chan struct{}), gone: make(chan struct{}), orders: newMailboxOf[*message](), news: newMailboxOf[branchNews](),
		notes: newMailbox(), hold: stopped(), host: &host{plan: &Plan{Size: 2}}}
	close(a.up)
	var err error
	if a.tree, err = newBranch(branchConfig{size: 2, own: 1, up: a.send, all: func(control.Lack) {}}, a.news); err != nil {
		t.Fatal(err)
	}
	a.tree.cards.Join(0, []byte("card"), "")
	if m := <-said; m.Verb != msgCards || m.Word.All == nil {
		t.Fatalf("it said %+v, not that all of its ranks have joined", m)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		a.loop(nil, nil)
	}()
	for _, m := range []*message{
		{Verb: msgCards, Word: &control.Word{Ask: [][2]int{{7, 1}}}}, // no such rank
		{Verb: msgCards, Word: &control.Word{Ask: [][2]int{{8, 1}}}},
		{Verb: msgStart},
		{Verb: msgCards, Word: &control.Word{Ask: [][2]int{{0, 1}}}},
	} {
		a.orders.put(m)
	}
	var verbs []verb
	var last *message
	for range 3 {
		last = <-said
		verbs = append(verbs, last.Verb)
	}
	if want := []verb{msgFailed, msgDone, msgCards}; !slices.Equal(verbs, want) || last.Word == nil || len(last.Word.Cards) != 1 || string(last.Word.Cards[0].Bytes) != "card" {
		t.Errorf("it said %v, want %v; the last: %+v", verbs, want, last)
	}
	close(a.gone)
	<-over
	if a.began {
		t.Error("it has started ranks")
	}
}
