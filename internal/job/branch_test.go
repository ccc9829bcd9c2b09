package job

import (
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
