package check

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// A probe, from host A to host B:
//
//	A -> B  nonce
//	B -> A  time of B's clock, HMAC(secret, nonce, time)
//	A -> B  load
//	B -> A  one byte
//
// So what answers is known to be of the same job, the clocks are compared, and packets of full
// length have crossed the network in their greatest numbers.
const (
	nonceSize = 32
	helloSize = 8 + sha256.Size
	loadSize  = 256 << 10

	// probeWait bounds one probe.
	probeWait = 5 * time.Second
)

// Listener answers the probes of other hosts.
type Listener struct {
	secret []byte
	ln     net.Listener
	now    func() time.Time
	group  sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // nil once closed
}

// Listen answers probes at an address such as 10.0.0.1:0, until Close.
func Listen(addr string, secret []byte) (*Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("check: %w", err)
	}
	l := &Listener{secret: secret, ln: ln, now: time.Now, conns: make(map[net.Conn]bool)}
	l.group.Go(l.accept)
	return l, nil
}

// Addr returns what others dial.
func (l *Listener) Addr() string { return l.ln.Addr().String() }

func (l *Listener) accept() {
	for {
		c, err := l.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of descriptors, for instance; probes have time
			continue
		}
		l.mu.Lock()
		if l.conns == nil {
			l.mu.Unlock()
			c.Close()
			return
		}
		l.conns[c] = true
		l.group.Go(func() {
			defer c.Close()
			_ = l.answer(c) // the prober says what was missing
			l.mu.Lock()
			delete(l.conns, c)
			l.mu.Unlock()
		})
		l.mu.Unlock()
	}
}

func (l *Listener) answer(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(probeWait)); err != nil {
		return err
	}
	nonce := make([]byte, nonceSize)
	if _, err := io.ReadFull(c, nonce); err != nil {
		return err
	}
	if _, err := c.Write(hello(l.secret, nonce, l.now())); err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, c, loadSize); err != nil {
		return err
	}
	_, err := c.Write([]byte{1})
	return err
}

func hello(secret, nonce []byte, now time.Time) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(now.UnixNano()))
	m := hmac.New(sha256.New, secret)
	m.Write(nonce)
	m.Write(b)
	return m.Sum(b)
}

// Close stops answering.
func (l *Listener) Close() error {
	err := l.ln.Close()
	l.mu.Lock()
	for c := range l.conns {
		c.Close()
	}
	l.conns = nil
	l.mu.Unlock()
	l.group.Wait()
	return err
}

// Reached is what a probe tells.
type Reached struct {
	Skew  time.Duration // how far the other clock is ahead
	Error time.Duration // by how much that may be wrong
	Took  time.Duration // of the load
}

// The steps of a probe, for who explains an error.
var (
	errDial   = errors.New("no connection")
	errAnswer = errors.New("no answer")
	errOther  = errors.New("an answer that is not of this job: something else listens there, or another host has the address, too")
	errLoad   = errors.New("a connection, but 256 KiB did not get through")
)

// Probe connects to a listener.
func Probe(ctx context.Context, addr string, secret []byte) (Reached, error) {
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return Reached{}, fmt.Errorf("%w: %w", errDial, err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	nonce := make([]byte, nonceSize)
	_, _ = rand.Read(nonce) // never fails; it ends the process if it has to
	var r Reached
	sent := time.Now()
	b := make([]byte, helloSize)
	if _, err = c.Write(nonce); err == nil {
		_, err = io.ReadFull(c, b)
	}
	if err != nil {
		return r, fmt.Errorf("%w: %w", errAnswer, late(ctx, err))
	}
	round := time.Since(sent)
	theirs := time.Unix(0, int64(binary.LittleEndian.Uint64(b)))
	if !hmac.Equal(b, hello(secret, nonce, theirs)) {
		return r, errOther
	}
	r.Skew, r.Error = theirs.Sub(sent.Add(round/2)), round/2
	began := time.Now()
	if _, err = c.Write(make([]byte, loadSize)); err == nil {
		_, err = io.ReadFull(c, b[:1])
	}
	if err != nil {
		return r, fmt.Errorf("%w: %w", errLoad, late(ctx, err))
	}
	r.Took = time.Since(began)
	return r, nil
}

// late is why a connection failed that is closed when ctx ends.
func late(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil:
		return err
	case errors.Is(ctx.Err(), context.Canceled):
		return context.Cause(ctx)
	}
	return fmt.Errorf("the time of %v is up: %w", probeWait, context.Cause(ctx))
}

// maxSkew is what clocks may differ by.
const maxSkew = time.Second

// JudgeProbe returns the findings of a probe from one host to another.
func JudgeProbe(from, to, addr, iface string, r Reached, err error) []Finding {
	reach, clock := Finding{Host: from, Check: "reach " + to}, Finding{Host: from, Check: "clock of " + to}
	switch {
	case err == nil:
		reach.Text = fmt.Sprintf("%s, 256 KiB in %v", addr, r.Took.Round(time.Microsecond))
	case errors.Is(err, errLoad):
		reach.State, reach.Text = Problem, fmt.Sprintf("%s: %v: packets of full length are lost on the way", addr, err)
		reach.Fix = fmt.Sprintf("ip link set %s mtu 1500, on both hosts", iface)
	case errors.Is(err, errDial) && errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		reach.State, reach.Text = Problem, fmt.Sprintf("%s: %v: its network is not reached from here, or the host is off", addr, err)
		reach.Fix = "weftrun --interface NAME, of a network that both hosts are in"
	case errors.Is(err, errOther):
		reach.State, reach.Text = Problem, fmt.Sprintf("%s: %v", addr, err)
		reach.Fix = "weftrun --interface NAME, of a network on which every host has an address of its own"
	default:
		reach.State, reach.Text = Problem, fmt.Sprintf("%s: %v; a firewall between the hosts looks like this", addr, err)
		reach.Fix = fmt.Sprintf("iptables -I INPUT -p tcp -s %s -j ACCEPT, on %s", from, to)
	}
	if err != nil && !errors.Is(err, errLoad) {
		clock.State, clock.Text = Unknown, "the host was not reached"
		return []Finding{reach, clock}
	}
	skew := r.Skew.Round(time.Millisecond)
	clock.Text = fmt.Sprintf("%v off, or %v more or less", skew, r.Error.Round(time.Microsecond))
	if r.Skew.Abs()-r.Error > maxSkew {
		clock.State, clock.Fix = Problem, "chronyc makestep, on the host that is wrong"
		clock.Text += ": times of files and of messages do not compare, and munge refuses what is minutes off"
	}
	return []Finding{reach, clock}
}
