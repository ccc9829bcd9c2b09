package job

import (
	"strings"
	"syscall"
	"testing"
)

// A script is what happens to three ranks, in order, one word for each event:
//
//	h1 hello, j1 join, g1 goodbye, x1=3 exit with status 3, k1=9 end by signal 9,
//	a1=5 abort with code 5, a1=5/2 the same because of the loss of rank 2,
//	s1 the launcher signals rank 1
func play(t *testing.T, script string) (*record, []string) {
	t.Helper()
	r := newRecord(3)
	var firsts []string
	for word := range strings.FieldsSeq(script) {
		rank := int(word[1] - '0')
		value, blamed, _ := strings.Cut(strings.TrimPrefix(word[2:], "="), "/")
		n := 0
		for _, c := range value {
			n = n*10 + int(c-'0')
		}
		lost := -1
		if blamed != "" {
			lost = int(blamed[0] - '0')
		}
		first := false
		switch word[0] {
		case 'h':
			first = r.reached(rank, greeted)
		case 'j':
			first = r.reached(rank, joined)
		case 'g':
			first = r.reached(rank, left)
		case 'x':
			first = r.exit(rank, status{100, syscall.WaitStatus(n << 8)})
		case 'k':
			first = r.exit(rank, status{100, syscall.WaitStatus(n)})
		case 'a':
			first = r.abort(rank, n, "reason", lost)
		case 's':
			r.ranks[rank].signalled = true
		default:
			t.Fatalf("unknown event %q", word)
		}
		if first {
			firsts = append(firsts, word)
		}
	}
	return r, firsts
}

func TestRecord(t *testing.T) {
	for _, c := range []struct {
		name, script string
		firsts       string // the events that were told to be first
		rank, code   int    // of the first failure at the end; code 0: none
		text         string
	}{
		{"all well", "h0 h1 h2 j0 j1 j2 g0 g1 g2 x0=0 x1=0 x2=0", "", 0, 0, ""},
		{"no Weft programs", "x2=0 x1=0 x0=0", "", 0, 0, ""},
		{"status", "x2=0 x1=4 x0=5", "x1=4", 1, 4, "exit status 4"},
		{"signal", "k2=9 x1=5", "k2=9", 2, 137, "signal 9 (killed), which is often"},
		{"core", "k2=139", "k2=139", 2, 139, "left a core file"},
		{"status after goodbye", "h0 j0 g0 x0=3", "x0=3", 0, 3, "exit status 3"},
		{"no goodbye", "h0 j0 x0=0", "x0=0", 0, 1, "before it had finished"},
		{"not even joined", "h0 x0=0", "x0=0", 0, 1, "before it had finished"},
		{"goodbye without a join", "h0 g0 x0=0 x1=0 x2=0", "", 0, 0, ""},
		{"left, then others join", "x1=0 h0 j0", "j0", 1, 1, "never joined the job, while rank 0 did"},
		{"others joined, then leaves", "h0 j0 x1=0", "x1=0", 1, 1, "never joined the job, while rank 0 did"},
		{"victims do not count", "s1 k1=15 x2=7", "x2=7", 2, 7, "exit status 7"},
		{"abort and its exit", "h0 a0=5 x0=9 x1=3", "a0=5", 0, 5, "aborted the job with code 5: reason"},
		{"abort with code 0", "h0 a0=0", "a0=0", 0, 1, "code 1"},
		{"abort with a big code", "h0 a0=256", "a0=256", 0, 1, "code 1"},
		{"blame before the death", "h0 a0=5/2 k2=9", "a0=5/2 k2=9", 2, 137, "signal 9"},
		{"blame after the death", "h0 k2=9 a0=5/2", "k2=9", 2, 137, "signal 9"},
		{"blame without a death", "h0 a0=5/2 x1=3", "a0=5/2", 0, 5, "aborted"},
		{"blame of a victim", "h0 a0=5/2 s2 k2=15", "a0=5/2", 0, 5, "aborted"},
		{"chain of blame", "h0 h1 a0=5/1 a1=6/2 x2=7", "a0=5/1 a1=6/2 x2=7", 2, 7, "exit status 7"},
		{"blame of oneself", "h0 a0=5/0 x0=3", "a0=5/0", 0, 5, "aborted"},
		{"blame of one that left well", "h0 h2 g2 x2=0 a0=5/2", "a0=5/2", 0, 5, "aborted"},
	} {
		r, firsts := play(t, c.script)
		if got := strings.Join(firsts, " "); got != c.firsts {
			t.Errorf("%s: first failures at %q, want %q", c.name, got, c.firsts)
		}
		switch {
		case c.code == 0 && r.first != nil:
			t.Errorf("%s: fails: %+v", c.name, r.first)
		case c.code != 0 && r.first == nil:
			t.Errorf("%s: does not fail", c.name)
		case c.code != 0 && (r.first.rank != c.rank || r.first.code != c.code || !strings.Contains(r.first.text, c.text)):
			t.Errorf("%s: fails with %+v", c.name, r.first)
		}
	}
}
