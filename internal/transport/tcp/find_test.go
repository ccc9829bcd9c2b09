package tcp

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/wire"
)

// finder has ends ask for cards, and keeps who asked whom for which.
func finder(ends []*end) *[]string {
	asked := new([]string)
	for _, e := range ends {
		e.FindCards(func(rank int) error {
			*asked = append(*asked, fmt.Sprintf("%d asks for %d", e.cfg.Rank, rank))
			return nil
		})
	}
	return asked
}

func finding(t *testing.T, n int, tick time.Duration) ([]*end, *[]string) {
	t.Helper()
	ends := make([]*end, n)
	for r := range ends {
		ends[r] = listenAs(t, Config{Rank: r, Size: n, Job: "job", tick: tick})
	}
	return ends, finder(ends)
}

// TestFoundCard: a rank asks for a card once, at its first Send, and what it sends meanwhile arrives in order; the answer may
// come on any goroutine.
func TestFoundCard(t *testing.T) {
	ends, asked := finding(t, 3, 0)
	for seq := range uint32(5) {
		mustSend(t, ends[0], 2, seq, 100)
	}
	if got := fmt.Sprint(*asked); got != "[0 asks for 2]" {
		t.Errorf("asked: %s", got)
	}
	go ends[0].Found(2, ends[2].Card(), nil)
	until(t, "frames", func() bool { return len(ends[2].got[0]) == 5 }, ends...)
	if got := fmt.Sprint(ends[2].got[0]); got != "[0 1 2 3 4]" {
		t.Errorf("rank 2 got %s", got)
	}
	ends[0].Found(2, ends[2].Card(), nil) // again: of no use, and no harm
	mustSend(t, ends[2], 0, 7, 10)        // over the same connection, so nobody is asked
	until(t, "the way back", func() bool { return len(ends[0].got[2]) == 1 }, ends...)
	if len(*asked) != 1 || len(ends[0].down)+len(ends[2].down) > 0 {
		t.Errorf("asked %v, down %v %v", *asked, ends[0].down, ends[2].down)
	}
}

// TestFoundCrossed: both ask, and the answers come in either order, or to one of them not at all.
func TestFoundCrossed(t *testing.T) {
	for _, order := range [][]int{{0, 1}, {1, 0}, {0}, {1}} {
		ends, _ := finding(t, 2, 0)
		mustSend(t, ends[0], 1, 1, 10)
		mustSend(t, ends[1], 0, 2, 10)
		for _, r := range order {
			ends[r].Found(1-r, ends[1-r].Card(), nil)
			for range 3 {
				ends[r].Poll(ends[r]) // it dials, or the other one is faster
			}
		}
		until(t, "frames both ways", func() bool { return len(ends[0].got[1]) == 1 && len(ends[1].got[0]) == 1 }, ends...)
		for _, e := range ends {
			if len(e.up) != 1 || e.expect != 0 || len(e.down) != 0 || len(e.notices) != 0 {
				t.Errorf("answers %v: rank %d has %d connections, expects %d, down %v, says %q", order, e.cfg.Rank, len(e.up), e.expect, e.down, e.notices)
			}
		}
	}
}

// TestNoCardFound: what becomes of a peer without a card has its reason, and the rank's number.
func TestNoCardFound(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(e *end)
		want string
	}{
		"refused":     {func(e *end) { e.Found(1, nil, errors.New("nobody knows it")) }, "rank 0 has no card of rank 1: nobody knows it"},
		"nonsense":    {func(e *end) { e.Found(1, []byte("nonsense"), nil) }, "rank 0 has no card of rank 1: not a card"},
		"never comes": {func(*end) {}, "rank 1: its card, which says where it listens, did not come within 20 s"},
		"has ended":   {func(e *end) { e.MarkDown(1, errors.New("exit status 3")) }, "rank 1 has ended: exit status 3"},
	} {
		ends, _ := finding(t, 2, 5*time.Millisecond)
		e := ends[0]
		mustSend(t, e, 1, 1, 10)
		c.do(e)
		until(t, name, func() bool { return e.down[1] != nil }, e)
		if got := e.down[1].Error(); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		e.Found(1, ends[1].Card(), nil) // too late
		e.Poll(e)
		if e.expect != 0 || e.inPre != 0 {
			t.Errorf("%s: it expects %d, and dials %d", name, e.expect, e.inPre)
		}
	}
	ends, _ := finding(t, 2, 0)
	ends[0].FindCards(func(int) error { return errors.New("the line has ended") })
	if err := ends[0].Send(1, &wire.Header{Kind: wire.Eager}, nil); err == nil || !strings.Contains(err.Error(), "card of rank 1: the line has ended") {
		t.Errorf("nobody to ask: %v", err)
	}
	ends[0].Found(1, nil, nil) // after Close as well
	if err := ends[0].Close(); err != nil {
		t.Fatal(err)
	}
	ends[0].Found(1, ends[1].Card(), nil)
}
