//go:build zmq && cgo && linux

package zmq

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/weft-hpc/weft/internal/plane"
)

// members share one context, which has a thread that does their work. It is there while
// there is one of them.
var members struct {
	sync.Mutex
	ctx  *zmq4.Context
	uses int
}

func acquire() (*zmq4.Context, error) {
	members.Lock()
	defer members.Unlock()
	if members.uses == 0 {
		ctx, err := zmq4.NewContext()
		if err == nil {
			err = ctx.SetMaxSockets(1 << 14)
		}
		if err != nil {
			return nil, err
		}
		members.ctx = ctx
	}
	members.uses++
	return members.ctx, nil
}

func release() error {
	members.Lock()
	defer members.Unlock()
	members.uses--
	if members.uses > 0 {
		return nil
	}
	return members.ctx.Term()
}

// monitors are numbered, since their addresses are names.
var monitors atomic.Uint64

// member is a plane.Member.
type member struct {
	cfg   plane.Config
	name  string
	addr  string
	h     plane.Handler
	line  *line
	sock  *socket
	watch *monitor
	group sync.WaitGroup
	done  chan struct{} // closed when the owner's goroutine ends
	up    chan error    // how joining went, once

	// The owner's.
	state    state
	accepted bool
	limit    time.Time // for joining
	leave    time.Time // for the goodbye
	beat     time.Time

	mu      sync.Mutex
	closing bool
	giveUp  error // the caller of join has gone
}

// join connects a member to the first address that answers.
func join(ctx context.Context, cfg plane.Config, name string, addrs []string, h plane.Handler) (plane.Member, error) {
	if err := cfg.Fill(); err != nil {
		return nil, err
	}
	keys, err := newPairs(&cfg)
	if err != nil {
		return nil, err
	}
	var why []string
	for _, a := range addrs {
		m, err := dial(ctx, cfg, keys, name, a, h)
		if err == nil {
			return m, nil
		}
		why = append(why, fmt.Sprintf("%s: %v", a, explain(ctx, a, err)))
	}
	return nil, plane.ErrUnreached(why)
}

// explain asks the kernel why nothing answers, which ZeroMQ does not tell.
func explain(ctx context.Context, addr string, err error) error {
	if !errors.Is(err, errNoAnswer) {
		return err
	}
	d := net.Dialer{Timeout: plane.DialWait, KeepAlive: -1}
	conn, why := d.DialContext(ctx, "tcp", addr)
	if why != nil {
		return why
	}
	conn.Close()
	return err
}

func dial(ctx context.Context, cfg plane.Config, keys pairs, name, addr string, h plane.Handler) (*member, error) {
	z, err := acquire()
	if err != nil {
		return nil, err
	}
	m := &member{cfg: cfg, name: name, addr: addr, h: h, done: make(chan struct{}), up: make(chan error, 1)}
	if err := m.open(z, keys); err != nil {
		return nil, errors.Join(err, release())
	}
	m.line = newLine(&m.cfg, time.Now(), m.sock.rouse)
	m.limit = time.Now().Add(plane.DialWait + plane.HandshakeWait)
	m.group.Go(m.run)
	stop := context.AfterFunc(ctx, func() {
		m.mu.Lock()
		m.giveUp = context.Cause(ctx)
		m.mu.Unlock()
		m.sock.rouse()
	})
	err = <-m.up
	if !stop() && err == nil { // it was both
		m.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		m.group.Wait()
		return nil, err
	}
	return m, nil
}

// open makes the socket, and begins to connect.
func (m *member) open(z *zmq4.Context, keys pairs) error {
	s, err := newSocket(z, zmq4.DEALER)
	if err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(m.addr)
	if err == nil {
		err = errors.Join(setUp(s), s.SetReconnectIvl(-1), s.SetConnectTimeout(plane.DialWait), s.SetIpv6(strings.Contains(host, ":")),
			s.ClientAuthCurve(keys.root.public, keys.member.public, keys.member.secret))
	}
	if err == nil {
		m.watch, err = watch(z, s, strconv.FormatUint(monitors.Add(1), 10))
	}
	if err == nil {
		m.sock = s
		err = s.Connect("tcp://" + m.addr)
	}
	if err != nil {
		if m.watch != nil {
			err = errors.Join(err, m.watch.stop())
		}
		return errors.Join(err, s.close())
	}
	return nil
}

// setUp sets what both ends want alike.
func setUp(s *socket) error {
	return errors.Join(s.SetSndhwm(maxInside), s.SetRcvhwm(maxInside), s.SetMaxmsgsize(maxRecord+wireExtra), s.SetHandshakeIvl(plane.HandshakeWait))
}

// send puts a record into the socket. ZeroMQ has room for all that credit allows.
func (m *member) send(rec []byte) error {
	_, err := m.sock.SendBytes(rec, zmq4.DONTWAIT)
	if again(err) {
		return plane.ErrFull
	}
	return err
}

// run owns the socket.
func (m *member) run() {
	defer close(m.done)
	tick := tickOf(&m.cfg)
	m.beat = time.Now().Add(m.cfg.Beat)
	next := time.Now().Add(tick)
	pending := false
	for {
		until := next
		if pending {
			until = past
		}
		if err := m.sock.sleep(until); err != nil {
			m.line.fail(err)
		}
		now := time.Now()
		m.receive(now)
		m.heed()
		var err error
		if m.accepted {
			pending, err = m.line.emit(m.send)
		}
		if err == nil && !now.Before(next) {
			err = m.tick(now)
			next = now.Add(tick)
		}
		if err != nil {
			m.line.fail(err)
		}
		m.look(now)
		if over, err := m.line.over(); over {
			m.end(err)
			return
		}
	}
}

// receive takes all that is there.
func (m *member) receive(now time.Time) {
	for {
		rec, err := m.sock.RecvBytes(zmq4.DONTWAIT)
		if again(err) {
			return
		}
		if err == nil {
			err = m.take(rec, now)
		}
		switch {
		case errors.Is(err, errBye):
			_ = m.line.goodbye(m.send) // it may be gone
			m.line.fail(nil)
			return
		case err != nil:
			m.line.fail(err)
			return
		}
	}
}

func (m *member) take(rec []byte, now time.Time) error {
	if m.accepted {
		return m.line.take(rec, now)
	}
	what, b, err := m.line.number(rec)
	if err != nil {
		return err
	}
	if what != verdict || len(b) != 3 {
		return fmt.Errorf("what listens there is not weftrun: it begins with a record of kind %d", what)
	}
	if v := binary.LittleEndian.Uint16(b[1:]); v != plane.Version {
		return fmt.Errorf("weftrun speaks version %d of the protocol, this agent %d; install the same weftrun on all hosts", v, plane.Version)
	}
	if v := plane.Verdict(b[0]); v != plane.Accepted {
		return fmt.Errorf("weftrun refused this agent: %v", v)
	}
	m.accepted = true
	m.line.deadline = now.Add(m.cfg.Quiet)
	m.h.Up(0)
	m.up <- nil
	m.group.Go(func() {
		m.line.deliver(func(b []byte) { m.h.Frame(0, b) })
		_, err := m.line.over()
		m.h.Down(0, err)
	})
	return nil
}

// heed follows the connection.
func (m *member) heed() {
	for _, h := range m.watch.take() {
		was := m.state
		var why error
		m.state, why = m.state.after(h)
		if m.state == was {
			continue
		}
		switch m.state {
		case up:
			d := digest(m.cfg.Build)
			b := append(binary.LittleEndian.AppendUint16(nil, plane.Version), d[:]...)
			if err := m.line.put(hello, append(b, m.name...), m.send); err != nil {
				m.line.fail(err)
			}
		case lost:
			m.receive(time.Now()) // what came before
			m.line.lose(why)
		default:
			if errors.Is(why, errNotOurs) { // it is us who are not believed, or nobody is there to do so
				why = fmt.Errorf("what listens there is not weftrun, or does not know the job's secret: %w", plane.ErrClosed)
			}
			m.line.fail(why)
		}
	}
}

// tick looks at the clock.
func (m *member) tick(now time.Time) error {
	if !m.accepted {
		if now.After(m.limit) {
			return fmt.Errorf("no answer within %v", plane.DialWait+plane.HandshakeWait)
		}
		return nil
	}
	due := !now.Before(m.beat)
	if due {
		m.beat = now.Add(m.cfg.Beat)
	}
	return m.line.tick(now, due, m.send)
}

// look heeds what others want of the owner.
func (m *member) look(now time.Time) {
	m.mu.Lock()
	closing, giveUp := m.closing, m.giveUp
	m.mu.Unlock()
	if giveUp != nil && !m.accepted {
		m.line.fail(giveUp)
	}
	if closing {
		if m.leave.IsZero() {
			m.leave = now.Add(plane.GoodbyeWait)
		}
		if !now.Before(m.leave) {
			m.line.fail(nil)
		}
	}
}

// end lets go of everything.
func (m *member) end(why error) {
	// Nothing that goes wrong here is of use to anybody: the link has ended.
	_ = m.watch.stop()
	_ = m.sock.close()
	_ = release()
	m.line.shut()
	if !m.accepted {
		if why == nil {
			why = plane.ErrClosed
		}
		m.up <- why
	}
}

func (m *member) Send(b []byte) {
	if b == nil {
		b = []byte{}
	}
	m.line.send(b)
}

func (m *member) Close() error {
	m.mu.Lock()
	m.closing = true
	m.mu.Unlock()
	m.line.finish()
	m.group.Wait()
	return nil
}

// tickOf is how often lines are looked at.
func tickOf(cfg *plane.Config) time.Duration {
	return max(min(cfg.Beat, cfg.Quiet)/4, 10*time.Millisecond)
}
