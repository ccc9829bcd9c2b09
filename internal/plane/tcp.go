package plane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

const spareStrangers = 64 // connections that may be in a handshake besides all members

// root is a Root over TCP.
type root struct {
	cfg     Config
	secrets secrets
	h       Handler
	ln      net.Listener
	room    chan struct{} // a token for each handshake
	group   sync.WaitGroup

	mu     sync.Mutex
	roster *Roster
	links  []*link
	young  map[net.Conn]bool // in a handshake
	closed bool
}

// listen opens a root over TCP at an address such as 10.0.0.1:0.
func listen(cfg Config, addr string, members []string, h Handler) (Root, error) {
	if err := cfg.Fill(); err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("plane: %w", err)
	}
	r := &root{cfg: cfg, secrets: newSecrets(&cfg), h: h, ln: ln, roster: NewRoster(members), links: make([]*link, len(members)),
		room: make(chan struct{}, len(members)+spareStrangers), young: make(map[net.Conn]bool)}
	r.group.Go(r.accept)
	return r, nil
}

func (r *root) Port() int { return r.ln.Addr().(*net.TCPAddr).Port }

func (r *root) accept() {
	for {
		conn, err := r.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of descriptors, for instance; members try again
			continue
		}
		select {
		case r.room <- struct{}{}:
		default:
			conn.Close() // too many strangers
			continue
		}
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			conn.Close()
			<-r.room
			return
		}
		r.young[conn] = true
		r.group.Go(func() {
			defer func() { <-r.room }()
			r.greet(conn)
		})
		r.mu.Unlock()
	}
}

// greet takes a connection through the handshake.
func (r *root) greet(conn net.Conn) {
	member, c, err := r.shake(conn)
	r.mu.Lock()
	delete(r.young, conn)
	closed := r.closed
	if err == nil && !closed && !r.roster.Rise(member) {
		err = errors.New(Duplicate.String())
	}
	if err != nil || closed {
		r.mu.Unlock()
		conn.Close()
		if err != nil && !closed {
			r.h.Refused(member, fmt.Errorf("a connection from %v was refused: %w", conn.RemoteAddr(), err))
		}
		return
	}
	l := newLink(conn, &r.cfg, c.toMember, c.toRoot)
	r.links[member] = l
	r.mu.Unlock()
	r.h.Up(member)
	l.run(func(b []byte) { r.h.Frame(member, b) }, func(err error) { r.fell(member, err) })
}

func (r *root) shake(conn net.Conn) (int, ciphers, error) {
	if err := conn.SetDeadline(time.Now().Add(HandshakeWait)); err != nil {
		return -1, ciphers{}, err
	}
	member, c, err := r.secrets.receive(conn, func(name string) (int, Verdict) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.roster.Judge(name)
	})
	if err == nil {
		err = errors.Join(conn.SetDeadline(time.Time{}), conn.SetReadDeadline(time.Now().Add(r.cfg.Quiet)))
	}
	return member, c, err
}

func (r *root) fell(member int, err error) {
	r.mu.Lock()
	first := r.roster.Fall(member)
	r.mu.Unlock()
	if first {
		r.h.Down(member, err)
	}
}

func (r *root) link(member int) *link {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.links[member]
}

func (r *root) Send(member int, b []byte) {
	if b == nil {
		b = []byte{}
	}
	if l := r.link(member); l != nil {
		l.send(b)
	}
}

func (r *root) Hold() {
	for i := range r.links {
		if l := r.link(i); l != nil {
			l.send(nil)
		}
	}
	time.Sleep(20 * time.Millisecond) // for the writers; the caller is about to stop
}

func (r *root) Drop(member int, err error) {
	if l := r.link(member); l != nil {
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
	for c := range r.young {
		c.Close()
	}
	links := r.links
	r.mu.Unlock()
	err := r.ln.Close()
	var closing sync.WaitGroup
	for _, l := range links {
		if l != nil {
			closing.Go(l.close)
		}
	}
	closing.Wait()
	r.group.Wait()
	return err
}

// member is a Member over TCP.
type member struct{ l *link }

// join connects a member over TCP.
func join(ctx context.Context, cfg Config, name string, addrs []string, h Handler) (Member, error) {
	if err := cfg.Fill(); err != nil {
		return nil, err
	}
	var errs []string
	for _, a := range addrs {
		l, err := dial(ctx, &cfg, name, a)
		if err != nil {
			errs = append(errs, fmt.Sprintf("%s: %v", a, err))
			continue
		}
		h.Up(0)
		l.run(func(b []byte) { h.Frame(0, b) }, func(err error) { h.Down(0, err) })
		return &member{l}, nil
	}
	return nil, ErrUnreached(errs)
}

func dial(ctx context.Context, cfg *Config, name, addr string) (*link, error) {
	d := net.Dialer{Timeout: DialWait, KeepAlive: -1}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	s := newSecrets(cfg)
	err = conn.SetDeadline(time.Now().Add(HandshakeWait))
	var c ciphers
	if err == nil {
		c, err = s.join(conn, name)
	}
	if err == nil {
		err = errors.Join(conn.SetDeadline(time.Time{}), conn.SetReadDeadline(time.Now().Add(cfg.Quiet)))
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return newLink(conn, cfg, c.toRoot, c.toMember), nil
}

func (m *member) Send(b []byte) {
	if b == nil {
		b = []byte{}
	}
	m.l.send(b)
}

func (m *member) Close() error {
	m.l.close()
	return nil
}
