package weft

import (
	"errors"
	"fmt"
	"testing"

	"github.com/weft-hpc/weft/internal/control"
)

// TestKnown: a rank says nothing that the launcher has said; of a rank that the job goes on without, it says what that
// means to it.
func TestKnown(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{control.Event{Kind: control.RankDied, Rank: 1}, true},
		{control.Event{Kind: control.Aborted, Rank: -1}, true},
		{control.Event{Kind: control.LauncherLost, Rank: -1}, false},
		{control.Event{Kind: control.RankDied, Rank: 1, GoesOn: true}, false},
		{errors.New("mine"), false},
	} {
		if got := known(fmt.Errorf("init: %w", c.err)); got != c.want {
			t.Errorf("%#v is known: %v", c.err, got)
		}
	}
}
