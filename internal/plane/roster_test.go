package plane

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
)

// TestRoster goes through the lives of members, as scripts.
func TestRoster(t *testing.T) {
	for script, want := range map[string]string{
		"judge a, rise a, judge a":         "0 accepted, true, 0 there is a connection with that host already",
		"judge c":                          "-1 no host of that name was expected",
		"rise a, rise a":                   "true, false",
		"rise b, fall b, judge b, fall b":  "true, true, 1 that host was given up already, false",
		"fall a, rise a, judge a":          "true, false, 0 that host was given up already",
		"judge a, judge b, rise a, fall b": "0 accepted, 1 accepted, true, true",
		"rise a, fall a, rise a, judge a":  "true, true, false, 0 that host was given up already",
		"judge b, rise b, judge a, rise a": "1 accepted, true, 0 accepted, true",
	} {
		r := NewRoster([]string{"a", "b"})
		var got []string
		for step := range strings.SplitSeq(script, ", ") {
			verb, name, _ := strings.Cut(step, " ")
			switch verb {
			case "judge":
				m, v := r.Judge(name)
				got = append(got, fmt.Sprintf("%d %v", m, v))
			case "rise":
				got = append(got, fmt.Sprint(r.Rise(r.number[name])))
			case "fall":
				got = append(got, fmt.Sprint(r.Fall(r.number[name])))
			}
		}
		if s := strings.Join(got, ", "); s != want {
			t.Errorf("%s:\n got %s\nwant %s", script, s, want)
		}
	}
}

// rw joins what a stranger says with what is said to it.
type rw struct {
	io.Reader
	io.Writer
}

func FuzzHandshake(f *testing.F) {
	cfg := Config{Job: "j", Secret: bytes.Repeat([]byte{7}, 32)}
	s := newSecrets(&cfg)
	f.Add([]byte(magic))
	f.Add(append([]byte(magic), make([]byte, helloSize+proofSize)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, err := s.receive(rw{bytes.NewReader(b), io.Discard}, func(string) (int, Verdict) { return 0, Accepted })
		if err == nil {
			t.Fatal("a stranger was let in")
		}
		if _, err := s.join(rw{bytes.NewReader(b), io.Discard}, "a"); err == nil {
			t.Fatal("an impostor was believed")
		}
	})
}
