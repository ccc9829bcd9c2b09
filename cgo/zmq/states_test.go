//go:build zmq && cgo && linux

package zmq

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/weft-hpc/weft/internal/plane"
)

// TestStates goes through the lives of connections, as a monitor tells them.
func TestStates(t *testing.T) {
	type step struct {
		h    happening
		want state
		why  error
	}
	const (
		connected = zmq4.EVENT_CONNECTED
		succeeded = zmq4.EVENT_HANDSHAKE_SUCCEEDED
		protocol  = zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL
		ended     = zmq4.EVENT_DISCONNECTED
	)
	for name, life := range map[string][]step{
		"good":      {{happening{connected, 7}, connecting, nil}, {happening{succeeded, 0}, up, nil}, {happening{ended, 7}, lost, plane.ErrClosed}},
		"nobody":    {{happening{zmq4.EVENT_CLOSED, 7}, refused, errNoAnswer}, {happening{succeeded, 0}, refused, nil}},
		"wrong key": {{happening{connected, 7}, connecting, nil}, {happening{protocol, 1}, refused, errNoKey}, {happening{ended, 7}, refused, nil}},
		"unknown":   {{happening{zmq4.EVENT_HANDSHAKE_FAILED_AUTH, 400}, refused, errNoKey}},
		"scanner":   {{happening{zmq4.EVENT_HANDSHAKE_FAILED_NO_DETAIL, int(syscall.ECONNRESET)}, refused, syscall.ECONNRESET}},
		"no word":   {{happening{ended, 7}, refused, errNotOurs}},
		"changed":   {{happening{succeeded, 0}, up, nil}, {happening{protocol, 1}, lost, errChanged}, {happening{ended, 7}, lost, nil}},
		"no way back": {{happening{succeeded, 0}, up, nil}, {happening{ended, 7}, lost, plane.ErrClosed}, {happening{connected, 8}, lost, nil},
			{happening{succeeded, 0}, lost, nil}},
	} {
		s := connecting
		for i, st := range life {
			var why error
			s, why = s.after(st.h)
			if s != st.want || !errors.Is(why, st.why) || (st.why == nil) != (why == nil) {
				t.Errorf("%s, step %d, %v: %v, %v; want %v, %v", name, i, st.h.event, s, why, st.want, st.why)
			}
		}
	}
}

// TestKeys: the keys of a job are those of its secret and name, and of one end.
func TestKeys(t *testing.T) {
	cfg := func(job, secret string) *plane.Config { return &plane.Config{Job: job, Secret: []byte(secret)} }
	const secret = "a secret of thirty-two bytes...."
	seen := map[string]string{}
	for name, c := range map[string]*plane.Config{"a job": cfg("a", secret), "another": cfg("b", secret), "another secret": cfg("a", secret[1:])} {
		p, err := newPairs(c)
		if err != nil {
			t.Fatal(err)
		}
		again, err := newPairs(c)
		if err != nil || p != again {
			t.Errorf("%s: other keys a second time, %v", name, err)
		}
		for _, k := range []pair{p.root, p.member} {
			public, err := zmq4.AuthCurvePublic(k.secret)
			if err != nil || public != k.public {
				t.Errorf("%s: ZeroMQ derives %q, we %q, %v", name, public, k.public, err)
			}
			if other := seen[k.secret]; other != "" {
				t.Errorf("%s and %s have the same key", name, other)
			}
			seen[k.secret] = name
		}
	}
}

// between is two lines whose records go from one to the other.
func between(t *testing.T) (a, b *line, move func() error) {
	t.Helper()
	cfg := &plane.Config{Quiet: time.Minute}
	a, b = newLine(cfg, time.Now(), func() {}), newLine(cfg, time.Now(), func() {})
	return a, b, func() error {
		_, err := a.emit(func(rec []byte) error { return b.take(append([]byte(nil), rec...), time.Now()) })
		return err
	}
}

// TestCredit: a peer whose handler takes nothing is sent a window and no more; what it takes lets more through.
func TestCredit(t *testing.T) {
	a, b, move := between(t)
	const frames = 100
	for range frames {
		a.send(make([]byte, maxPiece))
	}
	for range 20 {
		if err := move(); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(b.inbox); n != window/(maxPiece+fixedCost) {
		t.Errorf("%d frames came without being taken, want %d", n, window/(maxPiece+fixedCost))
	}
	taken := make(chan struct{}, frames)
	go b.deliver(func([]byte) { taken <- struct{}{} })
	defer b.shut()
	for n := 0; n < frames; n++ {
		timer := time.NewTimer(10 * time.Second)
		for waiting := true; waiting; {
			select {
			case <-taken:
				waiting = false
			case <-timer.C:
				t.Fatalf("%d of %d frames came", n, frames)
			default:
				if _, err := b.emit(func(rec []byte) error { return a.take(append([]byte(nil), rec...), time.Now()) }); err != nil {
					t.Fatal(err)
				}
				if err := move(); err != nil {
					t.Fatal(err)
				}
			}
		}
		timer.Stop()
	}
}

// TestRecordsAreCounted: one that is missing, repeated, too long, of no kind, or more than was granted ends the link.
func TestRecordsAreCounted(t *testing.T) {
	rec := func(what byte, n uint64, b ...byte) []byte {
		return append([]byte{what, byte(n), byte(n >> 8), 0, 0, 0, 0, 0, 0}, b...)
	}
	for want, records := range map[string][][]byte{
		"record 2 came where 1 was due": {rec(beat, 0), rec(beat, 2)},
		"record 0 came where 1 was due": {rec(last, 0, 'x'), rec(last, 0, 'x')},
		"a record of 3 bytes":           {{1, 2, 3}},
		"a record of 65546 bytes":       {rec(last, 0, make([]byte, maxPiece+1)...)},
		"of kind 77":                    {rec(77, 0)},
		"a grant of 1 bytes":            {rec(grant, 0, 1)},
		"grants more than it had":       {rec(grant, 0, 1, 0, 0, 0)},
		"gave this host up: too loud":   {rec(gone, 0, []byte("too loud")...)},
		"it said goodbye":               {rec(bye, 0)},
	} {
		_, b, _ := between(t)
		var err error
		for _, r := range records {
			err = b.take(r, time.Now())
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	_, b, _ := between(t)
	var err error
	for i := range uint64(1000) {
		if err = b.take(rec(last, i, make([]byte, 4096)...), time.Now()); err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "more than it was granted") {
		t.Errorf("it took 4 MiB: %v", err)
	}
}
