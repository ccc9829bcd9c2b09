//go:build zmq && cgo && linux

package zmq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/weft-hpc/weft/internal/plane"
)

func init() { plane.Register(Name, plane.Way{Listen: listen, Join: join}) }

// root is a plane.Root.
type root struct {
	cfg   plane.Config
	build [16]byte
	h     plane.Handler
	ctx   *zmq4.Context
	sock  *socket
	watch *monitor
	zap   *zap
	port  int
	group sync.WaitGroup // the owner, and who delivers

	// The owner's.
	fds      accepted
	conns    map[string]*conn // by ZeroMQ's address
	suspects map[*conn]int    // their connection may have ended: how often that was asked
	beat     time.Time
	leave    time.Time

	mu      sync.Mutex
	roster  *plane.Roster
	members []*conn // by member; nil until it is up
	dirty   []*conn // have something to do
	closed  bool
}

// conn is one connection.
type conn struct {
	id     string
	member int
	line   *line // nil: it was refused
	dirty  bool  // on root.mu
	dead   bool  // the line has ended, and that was dealt with
}

// listen opens a root at an address such as 10.0.0.1:0.
func listen(cfg plane.Config, addr string, names []string, h plane.Handler) (plane.Root, error) {
	if err := cfg.Fill(); err != nil {
		return nil, err
	}
	r := &root{cfg: cfg, build: digest(cfg.Build), h: h, conns: make(map[string]*conn), suspects: make(map[*conn]int),
		fds: accepted{peers: make(map[int]string), conns: make(map[int]*conn)}, roster: plane.NewRoster(names), members: make([]*conn, len(names))}
	if err := r.open(addr); err != nil {
		return nil, fmt.Errorf("zmq: %s: %w", addr, err)
	}
	r.group.Go(r.run)
	return r, nil
}

func (r *root) open(addr string) error {
	keys, err := newPairs(&r.cfg)
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if r.ctx, err = zmq4.NewContext(); err != nil {
		return err
	}
	if r.zap, err = newZap(r.ctx, keys.member.public); err != nil {
		return errors.Join(err, r.ctx.Term())
	}
	if r.sock, err = newSocket(r.ctx, zmq4.ROUTER); err != nil {
		return errors.Join(err, r.zap.stop(), r.ctx.Term())
	}
	if host == "" {
		host = "*"
	} else if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	// What was sent to a host that is cut off does not keep its connection: the kernel gives it up, some time after us.
	err = errors.Join(setUp(r.sock), r.sock.SetRouterMandatory(1), r.sock.SetBacklog(4096), r.sock.SetIpv6(host == "*" || host[0] == '['),
		r.sock.SetTcpMaxrt(2*(r.cfg.Quiet+plane.SecondChance)), r.sock.ServerAuthCurve("weft", keys.root.secret))
	if err == nil {
		r.watch, err = watch(r.ctx, r.sock, "root")
	}
	if err == nil {
		err = r.sock.Bind("tcp://" + host + ":" + port)
	}
	if err == nil {
		r.port, err = boundPort(r.sock)
	}
	if err != nil {
		return errors.Join(err, r.shut())
	}
	r.fds.port = r.port
	return nil
}

func boundPort(s *socket) (int, error) {
	at, err := s.GetLastEndpoint()
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(at[strings.LastIndexByte(at, ':')+1:])
}

// shut closes what open has opened.
func (r *root) shut() error {
	var err error
	if r.watch != nil {
		err = r.watch.stop()
	}
	return errors.Join(err, r.sock.close(), r.zap.stop(), r.ctx.Term())
}

func (r *root) Port() int { return r.port }

// run owns the socket.
func (r *root) run() {
	tick := tickOf(&r.cfg)
	next := time.Now().Add(tick)
	r.beat = time.Now().Add(r.cfg.Beat)
	for {
		until := next
		if len(r.suspects) > 0 {
			until = time.Now().Add(time.Millisecond)
		}
		if err := r.sock.sleep(until); err != nil {
			r.each(func(c *conn) { c.line.fail(err) })
		}
		now := time.Now()
		r.receive(now)
		for _, h := range r.watch.take() {
			r.heed(h)
		}
		r.doubt(now)
		if !now.Before(next) {
			r.tick(now)
			next = now.Add(tick)
		}
		r.emit()
		if r.left(now) {
			return
		}
	}
}

// receive takes all that is there. That is bounded: what members may send is, by their credit.
func (r *root) receive(now time.Time) {
	for {
		id, err := r.sock.RecvBytes(zmq4.DONTWAIT)
		if err != nil {
			if !again(err) {
				r.each(func(c *conn) { c.line.fail(err) })
			}
			return
		}
		if c := r.conns[string(id)]; c != nil {
			rec, err := r.sock.RecvBytes(zmq4.DONTWAIT)
			r.take(c, rec, err, now)
			continue
		}
		rec, about, err := r.sock.RecvBytesWithMetadata(zmq4.DONTWAIT, "__fd")
		fd, bad := strconv.Atoi(about["__fd"])
		if bad != nil {
			fd = -1 // then its end is seen when it is silent, or sent to
		}
		if err == nil {
			r.meet(string(id), fd, rec, now)
		}
	}
}

// take hands a record of a connection to its line.
func (r *root) take(c *conn, rec []byte, err error, now time.Time) {
	if c.line == nil || c.dead {
		return // it was told, and will go
	}
	if err == nil {
		err = c.line.take(rec, now)
	}
	switch {
	case errors.Is(err, errBye):
		_ = c.line.goodbye(r.sender(c)) // it may be gone
		c.line.fail(nil)
	case err != nil:
		c.line.fail(err)
	}
	r.mark(c)
}

// meet hears the first record of a connection.
func (r *root) meet(id string, fd int, rec []byte, now time.Time) {
	c := &conn{id: id, member: -1}
	if before := r.fds.bind(fd, c); before != nil {
		r.suspects[before] = 0
	}
	r.conns[id] = c
	c.line = newLine(&r.cfg, now, func() { r.mark(c); r.sock.rouse() })
	v, name, err := r.judge(c, rec)
	if err == nil {
		body := binary.LittleEndian.AppendUint16([]byte{byte(v)}, plane.Version)
		err = c.line.put(verdict, body, r.sender(c))
		if err == nil && v != plane.Accepted {
			err = fmt.Errorf("%q: %v", name, v)
		}
	}
	if err != nil {
		c.line = nil
		r.h.Refused(c.member, fmt.Errorf("a connection from %v was refused: %w", r.fds.peer(fd), err))
		return
	}
	r.mu.Lock()
	r.members[c.member] = c
	r.mu.Unlock()
	r.group.Go(func() {
		r.h.Up(c.member)
		c.line.deliver(func(b []byte) { r.h.Frame(c.member, b) })
		_, err := c.line.over()
		r.fell(c.member, err)
	})
}

// judge decides about a member that says hello.
func (r *root) judge(c *conn, rec []byte) (v plane.Verdict, name string, err error) {
	what, b, err := c.line.number(rec)
	if err != nil {
		return 0, "", err
	}
	if what != hello || len(b) < 2+len(r.build) {
		return 0, "", fmt.Errorf("%w: it begins with a record of kind %d", errNotOurs, what)
	}
	name = string(b[2+len(r.build):])
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return plane.GivenUp, name, nil
	}
	c.member, v = r.roster.Judge(name)
	switch {
	case binary.LittleEndian.Uint16(b) != plane.Version, [16]byte(b[2:]) != r.build:
		v = plane.WrongBuild
	case v == plane.Accepted:
		r.roster.Rise(c.member)
	}
	return v, name, nil
}

// sender returns what sends a record to a connection.
func (r *root) sender(c *conn) func([]byte) error {
	return func(rec []byte) error {
		_, err := r.sock.Send(c.id, zmq4.DONTWAIT|zmq4.SNDMORE)
		if err == nil {
			_, err = r.sock.SendBytes(rec, zmq4.DONTWAIT)
		}
		switch {
		case again(err):
			return plane.ErrFull
		case zmq4.AsErrno(err) == zmq4.EHOSTUNREACH:
			return plane.ErrClosed
		}
		return err
	}
}

// heed follows connections.
func (r *root) heed(h happening) {
	suspect, stranger := r.fds.after(h)
	if suspect != nil {
		r.suspects[suspect] = 0
	}
	if stranger != nil {
		r.h.Refused(-1, stranger)
	}
}

// doubt asks ZeroMQ whether the connections of suspects are there, by sending them something. It may hear of the end a little
// later than the monitor; one that is there after all is a suspect no more.
func (r *root) doubt(now time.Time) {
	const enough = 20
	for c, asked := range r.suspects {
		err := plane.ErrClosed
		if c.line != nil && !c.dead {
			err = c.line.put(beat, nil, r.sender(c))
		}
		switch {
		case err != nil:
			r.receive(now) // its last words are there, now that the end is
			r.lose(c)
			delete(r.suspects, c)
		case asked == enough:
			delete(r.suspects, c)
		default:
			r.suspects[c]++
		}
	}
}

// lose takes a connection that has ended.
func (r *root) lose(c *conn) {
	delete(r.conns, c.id)
	if c.line != nil {
		c.line.lose(plane.ErrClosed)
		r.mark(c)
	}
}

// mark notes that there is something to do for a connection.
func (r *root) mark(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !c.dirty {
		c.dirty = true
		r.dirty = append(r.dirty, c)
	}
}

// emit gives a turn to all that have something to do.
func (r *root) emit() {
	r.mu.Lock()
	list := r.dirty
	r.dirty = nil
	for _, c := range list {
		c.dirty = false
	}
	r.mu.Unlock()
	for _, c := range list {
		if c.line == nil || c.dead {
			continue
		}
		over, why := c.line.over()
		if !over {
			again, err := c.line.emit(r.sender(c))
			if again {
				r.mark(c)
				r.sock.rouse()
			}
			if err == nil {
				continue
			}
			c.line.fail(err)
			_, why = c.line.over()
		}
		r.end(c, why)
	}
}

// end lets go of a line that has ended.
func (r *root) end(c *conn, why error) {
	c.dead = true
	if why != nil {
		_ = c.line.put(gone, []byte(why.Error()), r.sender(c)) // it may be gone
	}
	c.line.shut()
}

// tick looks at the clock.
func (r *root) tick(now time.Time) {
	due := !now.Before(r.beat)
	if due {
		r.beat = now.Add(r.cfg.Beat)
	}
	r.each(func(c *conn) {
		if err := c.line.tick(now, due, r.sender(c)); err != nil {
			c.line.fail(err)
			r.mark(c)
		}
	})
}

// each calls f for each line that has not ended.
func (r *root) each(f func(*conn)) {
	for _, c := range r.conns {
		if c.line != nil && !c.dead {
			f(c)
		}
	}
}

// left tells whether it is time to go, and then goes.
func (r *root) left(now time.Time) bool {
	r.mu.Lock()
	closed := r.closed
	r.mu.Unlock()
	if !closed {
		return false
	}
	if r.leave.IsZero() {
		r.leave = now.Add(plane.GoodbyeWait)
	}
	open := false
	r.each(func(*conn) { open = true })
	if open && now.Before(r.leave) {
		return false
	}
	r.each(func(c *conn) {
		c.line.fail(nil)
		r.end(c, nil)
	})
	return true
}

func (r *root) fell(member int, err error) {
	r.mu.Lock()
	first := r.roster.Fall(member)
	r.mu.Unlock()
	if first {
		r.h.Down(member, err)
	}
}

// line returns that of a member that is, or was, up.
func (r *root) line(member int) *line {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.members[member]; c != nil {
		return c.line
	}
	return nil
}

func (r *root) Send(member int, b []byte) {
	if b == nil {
		b = []byte{}
	}
	if l := r.line(member); l != nil {
		l.send(b)
	}
}

func (r *root) Hold() {
	for i := range r.members {
		if l := r.line(i); l != nil {
			l.send(nil)
		}
	}
	time.Sleep(20 * time.Millisecond) // for ZeroMQ's thread; the caller is about to stop
}

func (r *root) Drop(member int, err error) {
	if l := r.line(member); l != nil {
		l.fail(err)
		return
	}
	r.fell(member, err)
}

func (r *root) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	r.mu.Unlock()
	for i := range r.members {
		if l := r.line(i); l != nil {
			l.finish()
		}
	}
	r.sock.rouse()
	r.group.Wait()
	return r.shut()
}
