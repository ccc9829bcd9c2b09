package check

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func listen(t *testing.T, secret string) *Listener {
	t.Helper()
	l, err := Listen("127.0.0.1:0", []byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestProbe(t *testing.T) {
	l := listen(t, "secret")
	r, err := Probe(t.Context(), l.Addr(), []byte("secret"))
	if err != nil || r.Skew.Abs() > r.Error+time.Millisecond || r.Took <= 0 {
		t.Errorf("got %+v, %v", r, err)
	}
	for _, f := range JudgeProbe("a", "b", l.Addr(), "eth0", r, err) {
		if f.State != Fine {
			t.Errorf("%v", f)
		}
	}
}

// A clock that is wrong is a problem, beyond what the probe cannot tell.
func TestSkew(t *testing.T) {
	for _, c := range []struct {
		ahead time.Duration
		want  State
	}{{0, Fine}, {900 * time.Millisecond, Fine}, {3 * time.Second, Problem}, {-time.Hour, Problem}} {
		l := listen(t, "secret")
		l.now = func() time.Time { return time.Now().Add(c.ahead) }
		r, err := Probe(t.Context(), l.Addr(), []byte("secret"))
		if err != nil {
			t.Fatal(err)
		}
		if off := (r.Skew - c.ahead).Abs(); off > r.Error+time.Millisecond {
			t.Errorf("%v ahead: told %v", c.ahead, r.Skew)
		}
		all := JudgeProbe("a", "b", "x", "eth0", r, nil)
		if clock := all[1]; clock.State != c.want || clock.Check != "clock of b" || (clock.Fix != "") != (c.want == Problem) {
			t.Errorf("%v ahead: %v", c.ahead, clock)
		}
	}
	// A slow network can only tell so much.
	if all := JudgeProbe("a", "b", "x", "eth0", Reached{Skew: 3 * time.Second, Error: 2500 * time.Millisecond}, nil); all[1].State != Fine {
		t.Errorf("%v", all[1])
	}
}

// stalled accepts connections, says some bytes, and takes nothing.
func stalled(t *testing.T, say []byte) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		if _, err := c.Write(say); err != nil {
			t.Error(err)
		}
		<-t.Context().Done()
		c.Close()
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return ln.Addr().String()
}

func TestProbeFails(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := ln.Addr().String()
	ln.Close()
	for _, c := range []struct {
		name, addr, text, fix string
	}{
		{"nobody there", closed, "no connection: dial tcp " + closed + ": connect: connection refused; a firewall", "iptables -I INPUT -p tcp -s a -j ACCEPT, on b"},
		{"another job", listen(t, "other").Addr(), "an answer that is not of this job", "weftrun --interface NAME"},
		{"silence", stalled(t, nil), "no answer: the time of 5s is up", "iptables"},
		{"a stranger", stalled(t, make([]byte, helloSize)), "not of this job", "weftrun --interface NAME"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		r, err := Probe(ctx, c.addr, []byte("secret"))
		cancel()
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		all := JudgeProbe("a", "b", c.addr, "eth0", r, err)
		if f := all[0]; f.State != Problem || !strings.Contains(f.Text, c.text) || !strings.Contains(f.Fix, c.fix) {
			t.Errorf("%s: %v", c.name, f)
		}
		if all[1].State != Unknown {
			t.Errorf("%s: the clock: %v", c.name, all[1])
		}
	}
}

// What probes end with decides the command that is given.
func TestJudgeProbe(t *testing.T) {
	for _, c := range []struct {
		err       error
		text, fix string
	}{
		{fmt.Errorf("%w: %w", errDial, syscall.EHOSTUNREACH), "the host is off", "weftrun --interface"},
		{fmt.Errorf("%w: %w", errDial, syscall.ENETUNREACH), "is not reached", "weftrun --interface"},
		{fmt.Errorf("%w: %w", errDial, context.DeadlineExceeded), "firewall", "iptables"},
		{fmt.Errorf("%w: %w", errLoad, errors.New("timeout")), "packets of full length are lost", "ip link set eth0 mtu 1500"},
	} {
		all := JudgeProbe("a", "b", "x", "eth0", Reached{}, c.err)
		if f := all[0]; f.Host != "a" || f.Check != "reach b" || f.State != Problem || !strings.Contains(f.Text, c.text) || !strings.Contains(f.Fix, c.fix) {
			t.Errorf("%v: %v", c.err, f)
		}
	}
}

// Strangers, and those who say nothing, do not keep a listener from closing.
func TestListenerCloses(t *testing.T) {
	l := listen(t, "secret")
	for range 3 {
		c, err := net.Dial("tcp", l.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if r, err := Probe(t.Context(), l.Addr(), []byte("secret")); err != nil {
		t.Errorf("%+v, %v", r, err)
	}
	began := time.Now()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("closing took %v", took)
	}
}
