package job

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is an input that hands out given pieces; a nil piece is silence for as
// long as the deadline allows.
type script struct {
	pieces   [][]byte
	deadline time.Time
	last     error // after the pieces
}

func (s *script) SetReadDeadline(t time.Time) error { s.deadline = t; return nil }
func (s *script) Close() error                      { return nil }

func (s *script) Read(b []byte) (int, error) {
	if len(s.pieces) == 0 {
		return 0, s.last
	}
	p := s.pieces[0]
	if p == nil {
		s.pieces = s.pieces[1:]
		if !s.deadline.IsZero() {
			return 0, os.ErrDeadlineExceeded
		}
		return s.Read(b)
	}
	n := copy(b, p)
	if n < len(p) {
		s.pieces[0] = p[n:]
	} else {
		s.pieces = s.pieces[1:]
	}
	return n, nil
}

// writes notes each write.
type writes struct{ all []string }

func (w *writes) Write(b []byte) (int, error) {
	w.all = append(w.all, string(b))
	return len(b), nil
}

func newSink(w io.Writer, onError func(error)) *sink {
	return &sink{lock: new(sync.Mutex), out: w, failed: new(atomic.Pointer[error]), onError: onError}
}

// pieces: | separates them, ~ is silence.
func pieces(s string) [][]byte {
	var out [][]byte
	for p := range strings.SplitSeq(s, "|") {
		switch p {
		case "":
		case "~":
			out = append(out, nil)
		default:
			out = append(out, []byte(p))
		}
	}
	return out
}

func TestStreamWrites(t *testing.T) {
	for _, c := range []struct {
		name, in, want string // want: writes, separated by |
		s              *stream
	}{
		{"nothing", "", "", &stream{}},
		{"one line", "a\n", "a\n", &stream{}},
		{"a line in pieces", "ab|cd|\n", "abcd\n", &stream{}},
		{"many lines at once", "a\nb\nc", "a\nb\n|c", &stream{}},
		{"silence inside a line", "ab|~|c\n", "abc\n", &stream{}},
		{"a prompt", "a\nab|~|c\n", "a\n|ab|c\n", &stream{patch: true}},
		{"a rank alone", "ab|c\nd|\n", "ab|c\nd|\n", &stream{eager: true}},
		{"tags", "a\n\nb|c\n", "[0] a\n[0] \n|[0] bc\n", &stream{tag: []byte("[0] ")}},
		{"tag at the end", "a", "[0] a|\n", &stream{tag: []byte("[0] ")}},
		{"tags wait for lines", "a|~|b\n", "[0] ab\n", &stream{tag: []byte("[0] ")}},
	} {
		w := new(writes)
		s := c.s
		s.in, s.to = &script{pieces: pieces(c.in), last: io.EOF}, newSink(w, nil)
		if err := s.copy(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := strings.Join(w.all, "|"); got != c.want {
			t.Errorf("%s: wrote %q, want %q", c.name, got, c.want)
		}
		if s.locked || !s.to.lock.(*sync.Mutex).TryLock() {
			t.Errorf("%s: the sink stays locked", c.name)
		}
	}
}

func TestStreamOfLongLines(t *testing.T) {
	for _, n := range []int{maxLine - 1, maxLine, maxLine + 1, 3*maxLine + 7} {
		for _, tag := range []string{"", "[7] "} {
			long := strings.Repeat("x", n) + "\n"
			w := new(writes)
			s := stream{in: &script{pieces: [][]byte{[]byte("a\n" + long + "b\n")}, last: io.EOF}, to: newSink(w, nil)}
			if tag != "" {
				s.tag = []byte(tag)
			}
			if err := s.copy(); err != nil {
				t.Fatal(err)
			}
			if got, want := strings.Join(w.all, ""), tag+"a\n"+tag+long+tag+"b\n"; got != want {
				t.Errorf("a line of %d with tag %q: %d bytes, want %d", n, tag, len(got), len(want))
			}
		}
	}
}

func TestLongLineHoldsTheSink(t *testing.T) {
	w := new(writes)
	sink := newSink(w, nil)
	in := &script{last: io.EOF}
	s := stream{in: in, to: sink, buf: make([]byte, 0, maxLine)}
	s.buf = append(s.buf, bytes.Repeat([]byte{'x'}, maxLine)...)
	s.pass(false)
	if sink.lock.(*sync.Mutex).TryLock() {
		t.Error("another stream could write inside a long line")
	}
	if err := s.deadline(); err != nil || in.deadline.IsZero() {
		t.Errorf("a held sink needs a deadline: %v, %v", in.deadline, err)
	}
	s.buf = append(s.buf, "end\n"...)
	s.pass(false)
	if !sink.lock.(*sync.Mutex).TryLock() {
		t.Error("the sink is held after the end of the line")
	}
}

func TestStreamThatCannotEnd(t *testing.T) {
	s := stream{in: &script{pieces: [][]byte{[]byte("last words"), nil}, last: io.EOF}, to: newSink(io.Discard, nil)}
	s.drain()
	if err := s.copy(); err == nil || !strings.Contains(err.Error(), "outside the job") {
		t.Errorf("a pipe that stays open: %v", err)
	}
	broken := errors.New("broken")
	s = stream{in: &script{last: broken}, to: newSink(io.Discard, nil)}
	if err := s.copy(); !errors.Is(err, broken) {
		t.Errorf("a pipe that fails: %v", err)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space") }

func TestSinkReportsOneError(t *testing.T) {
	var errs []error
	sink := newSink(full{}, func(err error) { errs = append(errs, err) })
	s := stream{in: &script{pieces: pieces("a\n|b\n|c\n"), last: io.EOF}, to: sink}
	if err := s.copy(); err != nil { // the rank is not held up
		t.Error(err)
	}
	if len(errs) != 1 {
		t.Errorf("%d errors reported: %v", len(errs), errs)
	}
}

func TestStreamsLoseNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.SampledFrom([]byte("ab\n")), 0, 300).Draw(t, "output")
		var in [][]byte
		for rest := want; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			in = append(in, rest[:n])
			rest = rest[n:]
			if rapid.Bool().Draw(t, "silence") {
				in = append(in, nil)
			}
		}
		w := new(writes)
		s := stream{in: &script{pieces: in, last: io.EOF}, to: newSink(w, nil),
			eager: rapid.Bool().Draw(t, "eager"), patch: rapid.Bool().Draw(t, "patch")}
		tagged := rapid.Bool().Draw(t, "tagged")
		if tagged {
			s.tag = []byte("# ")
		}
		if err := s.copy(); err != nil {
			t.Fatal(err)
		}
		expect := string(want)
		if tagged && len(want) > 0 {
			body, ended := strings.CutSuffix(expect, "\n")
			expect = "# " + strings.ReplaceAll(body, "\n", "\n# ") + "\n"
			_ = ended // a last line without an end gets one
		}
		if got := strings.Join(w.all, ""); got != expect {
			t.Fatalf("got %q, want %q", got, expect)
		}
	})
}

func TestSpeech(t *testing.T) {
	var lock sync.Mutex
	var b bytes.Buffer
	s := newSpeech(&lock, &b)
	lock.Lock() // a stuck reader
	var want string
	for i := range 100 {
		s.say(fmt.Sprintln(i))
		want += fmt.Sprintln(i)
	}
	lock.Unlock()
	s.close()
	if b.String() != want {
		t.Errorf("said %q", b.String())
	}
}
