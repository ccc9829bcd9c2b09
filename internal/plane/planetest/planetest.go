// Package planetest is the suite that a control plane passes: what package plane
// promises, with the failures that networks and strangers cause. A package that runs it calls [Play] in its TestMain.
package planetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/plane"
)

// What the suite waits for at most.
const patience = 20 * time.Second

var secret = []byte("a secret of thirty-two bytes....")

func config() plane.Config {
	return plane.Config{Job: "job", Secret: secret, Build: "b1", Beat: 50 * time.Millisecond, Quiet: 500 * time.Millisecond}
}

// Run runs the suite for a way.
func Run(t *testing.T, way string) {
	p, err := plane.Lookup(way)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]func(*testing.T, plane.Way){
		"order": order, "large frames": large, "many members": func(t *testing.T, p plane.Way) { many(t, p, way) }, "dead peer": deadPeer, "cut off": cutOff, "goodbye": goodbye,
		"no way back": noWayBack, "wrong key": wrongKey, "other build": otherBuild, "unknown name": unknownName, "two of one name": twins,
		"port scanner": portScanner, "half open": halfOpen, "replay": replay, "changed on the way": tampered, "hold": holding,
		"reader that is stuck": stuck, "nobody there": nobody, "impostor": impostor, "small frames in a flood": flood,
	} {
		t.Run(name, func(t *testing.T) {
			switch name {
			case "hold", "cut off", "port scanner", "reader that is stuck": // these mostly wait
				t.Parallel()
			}
			test(t, p)
		})
	}
}

// heard is one call of a handler.
type heard struct {
	what   string
	member int
	frame  []byte
	err    error
}

// ear is a handler that keeps what it hears.
type ear struct {
	mu     sync.Mutex
	cond   *sync.Cond
	all    []heard
	onData func(member int, b []byte) // instead of keeping frames
}

func newEar() *ear {
	e := new(ear)
	e.cond = sync.NewCond(&e.mu)
	return e
}

func (e *ear) put(h heard) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, h)
	e.cond.Broadcast()
}

func (e *ear) Up(m int) { e.put(heard{what: "up", member: m}) }
func (e *ear) Frame(m int, b []byte) {
	if e.onData != nil {
		e.onData(m, b)
		return
	}
	e.put(heard{what: "frame", member: m, frame: b})
}
func (e *ear) Down(m int, err error)    { e.put(heard{what: "down", member: m, err: err}) }
func (e *ear) Refused(m int, err error) { e.put(heard{what: "refused", member: m, err: err}) }

// wait returns the first n calls of a kind, once they are there.
func (e *ear) wait(t *testing.T, what string, n int) []heard {
	t.Helper()
	timer := time.AfterFunc(patience, func() { e.mu.Lock(); e.cond.Broadcast(); e.mu.Unlock() })
	defer timer.Stop()
	end := time.Now().Add(patience)
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		var out []heard
		for _, h := range e.all {
			if h.what == what {
				out = append(out, h)
			}
		}
		if len(out) >= n {
			return out[:n]
		}
		if !time.Now().Before(end) {
			t.Fatalf("%d of %d calls of %s after %v: %v", len(out), n, what, patience, e.all)
		}
		e.cond.Wait()
	}
}

func (e *ear) count(what string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, h := range e.all {
		if h.what == what {
			n++
		}
	}
	return n
}

func names(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "host" + strconv.Itoa(i)
	}
	return out
}

// open starts a root on the loopback interface.
func open(t *testing.T, p plane.Way, cfg plane.Config, n int, h plane.Handler) plane.Root {
	t.Helper()
	r, err := p.Listen(cfg, "127.0.0.1:0", names(n), h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func address(r plane.Root) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.Port())) }

// join connects a member that must get through.
func join(t *testing.T, p plane.Way, cfg plane.Config, addr string, i int, h plane.Handler) plane.Member {
	t.Helper()
	m, err := p.Join(t.Context(), cfg, "host"+strconv.Itoa(i), []string{addr}, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// refuse expects that a member does not get through.
func refuse(t *testing.T, p plane.Way, cfg plane.Config, addr, name, want string) {
	t.Helper()
	m, err := p.Join(t.Context(), cfg, name, []string{addr}, newEar())
	if err == nil {
		m.Close()
		t.Fatalf("%s was let in", name)
	}
	if !strings.Contains(err.Error(), want) {
		t.Errorf("the error lacks %q: %v", want, err)
	}
}

// works checks that a root still takes and serves member i.
func works(t *testing.T, p plane.Way, cfg plane.Config, r plane.Root, at *ear, i int) {
	t.Helper()
	before := at.count("frame")
	e := newEar()
	m := join(t, p, cfg, address(r), i, e)
	m.Send([]byte("hello"))
	got := at.wait(t, "frame", before+1)[before]
	if got.member != i || string(got.frame) != "hello" {
		t.Errorf("heard %+v", got)
	}
	r.Send(i, []byte("answer"))
	if f := e.wait(t, "frame", 1)[0].frame; string(f) != "answer" {
		t.Errorf("heard %q", f)
	}
}

func order(t *testing.T, p plane.Way) {
	const n = 5000
	at, e := newEar(), newEar()
	r := open(t, p, config(), 1, at)
	m := join(t, p, config(), address(r), 0, e)
	at.wait(t, "up", 1)
	for i := range n {
		b := make([]byte, 4+i%300)
		binary.LittleEndian.PutUint32(b, uint32(i))
		m.Send(b)
		r.Send(0, b)
	}
	for _, side := range []*ear{at, e} {
		for i, h := range side.wait(t, "frame", n) {
			if len(h.frame) != 4+i%300 || binary.LittleEndian.Uint32(h.frame) != uint32(i) {
				t.Fatalf("frame %d: %d bytes %.8x", i, len(h.frame), h.frame)
			}
		}
	}
}

func large(t *testing.T, p plane.Way) {
	at, e := newEar(), newEar()
	r := open(t, p, config(), 1, at)
	m := join(t, p, config(), address(r), 0, e)
	at.wait(t, "up", 1)
	sizes := []int{0, 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1 << 20, 40 << 20}
	for i, n := range sizes {
		b := make([]byte, n)
		if _, err := rand.Read(b); err != nil {
			t.Fatal(err)
		}
		m.Send(b)
		r.Send(0, b)
		for _, side := range []*ear{at, e} {
			if got := side.wait(t, "frame", i+1)[i].frame; !bytes.Equal(got, b) {
				t.Fatalf("%d bytes became %d others", n, len(got))
			}
		}
	}
}

// deadPeer: the connection closes without a goodbye.
func deadPeer(t *testing.T, p plane.Way) {
	at, e := newEar(), newEar()
	r := open(t, p, config(), 2, at)
	w := newWire(t, address(r))
	join(t, p, config(), w.addr, 0, e)
	at.wait(t, "up", 1)
	w.close()
	for _, side := range []*ear{at, e} {
		if h := side.wait(t, "down", 1)[0]; h.err == nil || h.member != 0 {
			t.Errorf("heard %+v", h)
		}
	}
	refuse(t, p, config(), address(r), "host0", "given up already") // it cannot connect again
	works(t, p, config(), r, at, 1)
}

// cutOff: nothing comes through any more, and nothing closes.
func cutOff(t *testing.T, p plane.Way) {
	cfg := config()
	at, e := newEar(), newEar()
	r := open(t, p, cfg, 1, at)
	w := newWire(t, address(r))
	join(t, p, cfg, w.addr, 0, e)
	at.wait(t, "up", 1)
	time.Sleep(2 * cfg.Quiet) // idle, and alive
	if at.count("down")+e.count("down") > 0 {
		t.Fatal("an idle link was given up")
	}
	w.cut()
	began := time.Now()
	for _, side := range []*ear{at, e} {
		h := side.wait(t, "down", 1)[0]
		if h.err == nil || !strings.Contains(h.err.Error(), "nothing was heard") {
			t.Errorf("heard %+v", h)
		}
	}
	if d := time.Since(began); d > cfg.Quiet+5*time.Second {
		t.Errorf("it took %v", d)
	}
}

func goodbye(t *testing.T, p plane.Way) {
	at := newEar()
	r := open(t, p, config(), 2, at)
	m := join(t, p, config(), address(r), 0, newEar())
	m.Send([]byte("last words"))
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if h := at.wait(t, "down", 1)[0]; h.err != nil {
		t.Errorf("a goodbye is %v", h.err)
	}
	if f := at.wait(t, "frame", 1)[0].frame; string(f) != "last words" {
		t.Errorf("heard %q", f)
	}
	// And the other way.
	e := newEar()
	join(t, p, config(), address(r), 1, e)
	at.wait(t, "up", 2)
	r.Send(1, []byte("go"))
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if h := e.wait(t, "down", 1)[0]; h.err != nil {
		t.Errorf("a goodbye is %v", h.err)
	}
	if f := e.wait(t, "frame", 1)[0].frame; string(f) != "go" {
		t.Errorf("heard %q", f)
	}
}

// noWayBack: a member that was down stays down.
func noWayBack(t *testing.T, p plane.Way) {
	at := newEar()
	r := open(t, p, config(), 2, at)
	if err := join(t, p, config(), address(r), 0, newEar()).Close(); err != nil {
		t.Fatal(err)
	}
	at.wait(t, "down", 1)
	refuse(t, p, config(), address(r), "host0", "given up already")
	// One that was dropped before it came, too.
	r.Drop(1, errors.New("it took too long"))
	if h := at.wait(t, "down", 2)[1]; h.member != 1 || h.err == nil || h.err.Error() != "it took too long" {
		t.Errorf("heard %+v", h)
	}
	refuse(t, p, config(), address(r), "host1", "given up already")
}

func wrongKey(t *testing.T, p plane.Way) {
	at := newEar()
	r := open(t, p, config(), 1, at)
	cfg := config()
	cfg.Secret = []byte("another secret of its own.......")
	refuse(t, p, cfg, address(r), "host0", "")
	if h := at.wait(t, "refused", 1)[0]; h.member != -1 {
		t.Errorf("an unproved name was believed: %+v", h)
	}
	cfg = config()
	cfg.Job = "another"
	refuse(t, p, cfg, address(r), "host0", "")
	works(t, p, config(), r, at, 0)
}

func otherBuild(t *testing.T, p plane.Way) {
	at := newEar()
	r := open(t, p, config(), 1, at)
	cfg := config()
	cfg.Build = "b2"
	refuse(t, p, cfg, address(r), "host0", "another build")
	if h := at.wait(t, "refused", 1)[0]; h.member != 0 || !strings.Contains(h.err.Error(), "another build") {
		t.Errorf("heard %+v", h)
	}
	works(t, p, config(), r, at, 0)
}

func unknownName(t *testing.T, p plane.Way) {
	at := newEar()
	r := open(t, p, config(), 1, at)
	refuse(t, p, config(), address(r), "stranger", "no host of that name")
	works(t, p, config(), r, at, 0)
}

func twins(t *testing.T, p plane.Way) {
	at, e := newEar(), newEar()
	r := open(t, p, config(), 1, at)
	m := join(t, p, config(), address(r), 0, e)
	at.wait(t, "up", 1)
	refuse(t, p, config(), address(r), "host0", "a connection with that host already")
	m.Send([]byte("still here"))
	if f := at.wait(t, "frame", 1)[0].frame; string(f) != "still here" {
		t.Errorf("heard %q", f)
	}
}

func portScanner(t *testing.T, p plane.Way) {
	at := newEar()
	r := open(t, p, config(), 1, at)
	for _, words := range []string{"", "GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02\x00", strings.Repeat("A", 1<<20)} {
		c, err := net.Dial("tcp", address(r))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, words) // it may hang up on us
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if words == "" {
			c.Close()
			continue
		}
		// It is sent away, and told nothing of the job.
		b, _ := io.ReadAll(c)
		if bytes.Contains(b, []byte("job")) || bytes.Contains(b, []byte("host0")) {
			t.Errorf("a stranger was told %q", b)
		}
		c.Close()
	}
	works(t, p, config(), r, at, 0)
}

// halfOpen: many connections that say nothing keep nobody out.
func halfOpen(t *testing.T, p plane.Way) {
	at := newEar()
	r := open(t, p, config(), 1, at)
	for range 40 {
		c, err := net.Dial("tcp", address(r))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	works(t, p, config(), r, at, 0)
}

// replay: what a member said once is worth nothing a second time.
func replay(t *testing.T, p plane.Way) {
	at := newEar()
	r := open(t, p, config(), 2, at)
	w := newWire(t, address(r))
	m := join(t, p, config(), w.addr, 0, newEar())
	m.Send([]byte("pay 100"))
	at.wait(t, "frame", 1)
	said := w.toRoot()
	c, err := net.Dial("tcp", address(r))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Write(said) // it may hang up on us
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); err != nil && errors.Is(err, context.DeadlineExceeded) {
		t.Error("the replay was not sent away")
	}
	if n := at.count("frame"); n != 1 {
		t.Errorf("%d frames", n)
	}
	works(t, p, config(), r, at, 1)
}

// tampered: a byte that changes on the way ends the link.
func tampered(t *testing.T, p plane.Way) {
	at, e := newEar(), newEar()
	r := open(t, p, config(), 1, at)
	w := newWire(t, address(r))
	m := join(t, p, config(), w.addr, 0, e)
	m.Send([]byte("first"))
	at.wait(t, "frame", 1)
	w.change()
	m.Send([]byte("second"))
	if h := at.wait(t, "down", 1)[0]; h.err == nil {
		t.Error("it passed")
	}
	for _, h := range at.all {
		if h.what == "frame" && string(h.frame) != "first" {
			t.Errorf("frame %q", h.frame)
		}
	}
}

// holding: a root that is stopped is not given up, if it said so before.
func holding(t *testing.T, p plane.Way) {
	cfg := config()
	slow := cfg
	slow.Beat = 10 * time.Second // this root is silent, as if it were stopped
	at, e := newEar(), newEar()
	r := open(t, p, slow, 1, at)
	join(t, p, cfg, address(r), 0, e)
	at.wait(t, "up", 1)
	r.Send(0, []byte("a"))
	r.Hold()
	time.Sleep(cfg.Quiet + 3*time.Second)
	if e.count("down") > 0 {
		t.Fatal("it was given up")
	}
	// Once it speaks again, it must go on speaking.
	r.Send(0, []byte("b"))
	e.wait(t, "frame", 2)
	if h := e.wait(t, "down", 1)[0]; h.err == nil {
		t.Error("it was given up without an error")
	}
}

// stuck: a member that does not read is given up, and holds up nobody.
func stuck(t *testing.T, p plane.Way) {
	at := newEar()
	r := open(t, p, config(), 2, at)
	w := newWire(t, address(r))
	join(t, p, config(), w.addr, 0, newEar())
	join(t, p, config(), address(r), 1, newEar())
	at.wait(t, "up", 2)
	w.cut()
	piece := make([]byte, 1<<20)
	began := time.Now()
	for range plane.MaxQueue>>20 + 16 {
		r.Send(0, piece)
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("Send waited for %v", d)
	}
	if h := at.wait(t, "down", 1)[0]; h.member != 0 || h.err == nil {
		t.Errorf("heard %+v", h)
	}
}

func nobody(t *testing.T, p plane.Way) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	refuse(t, p, config(), addr, "host0", addr)
	// The next address counts.
	at := newEar()
	r := open(t, p, config(), 1, at)
	m, err := p.Join(t.Context(), config(), "host0", []string{addr, address(r)}, newEar())
	if err != nil {
		t.Fatal(err)
	}
	m.Close()
}

// impostor: a member does not believe a root that does not know the secret.
func impostor(t *testing.T, p plane.Way) {
	cfg := config()
	cfg.Secret = []byte("the impostor has another secret.")
	r := open(t, p, cfg, 1, newEar())
	refuse(t, p, config(), address(r), "host0", "")
	// One that says nothing at all.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err == nil {
			_, _ = io.WriteString(c, fmt.Sprintf("%0500d", 0))
			c.Close()
		}
	}()
	refuse(t, p, config(), ln.Addr().String(), "host0", "")
}

// flood: small frames come through while another member sends as much as it can.
func flood(t *testing.T, p plane.Way) {
	at := newEar()
	replies := make(chan struct{}, 1)
	var r plane.Root
	credit := make(chan struct{}, 4)
	at.onData = func(m int, b []byte) {
		if m == 0 {
			<-credit
			return
		}
		replies <- struct{}{}
	}
	cfg := config()
	cfg.Quiet = 10 * time.Second
	r = open(t, p, cfg, 2, at)
	loud := join(t, p, cfg, address(r), 0, newEar())
	quiet := join(t, p, cfg, address(r), 1, newEar())
	at.wait(t, "up", 2)
	stop := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		piece := make([]byte, 32<<10)
		for {
			select {
			case <-stop:
				return
			case credit <- struct{}{}: // a bounded number under way, as package job sees to
				loud.Send(piece)
			}
		}
	})
	worst := time.Duration(0)
	var all []time.Duration
	for range 300 {
		began := time.Now()
		quiet.Send([]byte("x"))
		<-replies
		d := time.Since(began)
		all = append(all, d)
		worst = max(worst, d)
	}
	close(stop)
	group.Wait()
	t.Logf("worst of %d small frames in a flood: %v", len(all), worst)
	if worst > 5*time.Second {
		t.Errorf("a small frame took %v", worst)
	}
}
