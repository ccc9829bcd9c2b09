package job

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"github.com/weft-hpc/weft/internal/control"
)

func TestWireUpThatHangsIsTalkedAbout(t *testing.T) {
	for _, c := range []struct {
		joined []int
		want   string
	}{
		{nil, ""}, // not Weft programs, it seems
		{[]int{0, 1, 2}, ""},
		{[]int{0, 2}, "weftrun: rank 1 has not joined the job after 10s"},
		{[]int{1}, "weftrun: ranks 0, 2 have not joined"},
	} {
		var b bytes.Buffer
		s := &supervisor{rec: newRecord(3), speech: newSpeech(new(sync.Mutex), &b)}
		for _, rank := range c.joined {
			s.rec.reached(rank, joined)
		}
		s.wonder()
		s.speech.close()
		if got := b.String(); !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("ranks %v joined: said %q, want %q", c.joined, got, c.want)
		}
	}
}

func TestRanksText(t *testing.T) {
	for want, ranks := range map[string][]int{
		"rank 3":     {3},
		"ranks 0, 2": {0, 2},
		"ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more": {0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
	} {
		if got := ranksText(ranks); got != want {
			t.Errorf("%v: %q, want %q", ranks, got, want)
		}
	}
}

// TestEndIsBounded goes through the stages with ranks that nothing ends.
func TestEndIsBounded(t *testing.T) {
	var b bytes.Buffer
	notes := newMailbox()
	s := &supervisor{plan: &Plan{Spec: &Spec{}, Host: "h", Size: 2, Local: []int{0, 1}}, notes: notes, rec: newRecord(2), next: stopped(), blame: stopped(),
		speech: newSpeech(new(sync.Mutex), &b), left: 2}
	s.host = &host{plan: s.plan, pids: make([]int, 2), hub: control.NewHub(control.Job{Size: 2}, func(control.Report) {})}
	s.cards = control.NewExchange(2, 2, nil, true, (*rootLinks)(s))
	s.end(failure{rank: -1, code: 3, lost: -1, text: "it is late"})
	var stages []stage
	for s.left > 0 {
		stages = append(stages, s.stage)
		s.advance()
	}
	s.speech.close()
	if len(stages) != 3 || stages[0] != told || stages[1] != warned || stages[2] != killed {
		t.Errorf("stages %v", stages)
	}
	for _, want := range []string{"weftrun: it is late; 2 ranks are being stopped\n", "ranks 0, 1 did not end within 0s and a SIGTERM",
		"ranks 0, 1 do not end even by SIGKILL"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("lacks %q: %s", want, b.String())
		}
	}
	if err := s.host.hub.Close(); err != nil {
		t.Error(err)
	}
}

func TestExiting(t *testing.T) {
	for stat, want := range map[string]bool{
		"12 (a) b) S 1 12 12 0 -1 4194560 100 0":   false,
		"12 (heat2d) R 1 12 12 0 -1 4194564 100 0": true,
		"12 (heat2d) Z 1 12 12 0 -1 4194560 100 0": true,
		"12 (heat2d) Z": false,
		"":              false,
	} {
		if got := exiting(stat); got != want {
			t.Errorf("%q: %v", stat, got)
		}
	}
}
