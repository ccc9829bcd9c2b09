package tcp

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

type phase uint8

const (
	connecting    phase = iota // D: connect is under way
	wantChallenge              // D: hello is sent
	wantVerdict                // D: proof is sent
	wantHello                  // A
	wantProof                  // A: challenge is sent
)

func (ph phase) String() string {
	return [...]string{"connecting", "waiting for its challenge", "waiting for its verdict", "waiting for its hello", "waiting for its proof"}[ph]
}

// attempt is where a dial has got to.
type attempt struct {
	index  int   // of the address in the card
	again  int   // dials of that address before this one
	before error // why the other addresses failed
}

// conn is a connection in its handshake; D and A as in handshake.go. It ends by becoming
// the connection of a peer, or by drop.
type conn struct {
	fd     int
	slot   int // in Transport.pre
	phase  phase
	ticks  int // left
	remote netip.AddrPort

	// p is the peer that a dial goes to, or that an accepted connection claims to
	// be: proved only when its state says up.
	p    *peer
	try  attempt
	born uint64 // A: counts connections

	hello     []byte
	challenge []byte
	buf       [80]byte // the message that is coming in
	have      int
}

// expects is the size of the next message.
func (c *conn) expects() int {
	switch c.phase {
	case wantChallenge:
		return challengeLen
	case wantVerdict:
		return verdictSize
	case wantHello:
		return helloSize
	}
	return macSize
}

func (t *Transport) enter(c *conn, events uint32) error {
	c.slot = -1
	for i, old := range t.pre {
		if old == nil {
			c.slot = i
			break
		}
	}
	if c.slot < 0 {
		c.slot = len(t.pre)
		t.pre = append(t.pre, nil)
	}
	if err := t.watch(unix.EPOLL_CTL_ADD, c.fd, events, handshakeEvent, c.slot); err != nil {
		_ = unix.Close(c.fd)
		return err
	}
	t.pre[c.slot] = c
	t.inPre++
	return nil
}

// drop closes a connection in its handshake.
func (t *Transport) drop(c *conn) {
	_ = unix.Close(c.fd)
	t.leave(c)
}

func (t *Transport) leave(c *conn) {
	t.pre[c.slot] = nil
	t.inPre--
}

// dial connects to p at one address of its card, that of the attempt or the
// first after it that works.
func (t *Transport) dial(p *peer, a attempt) {
	for a.index < len(p.addrs) {
		c := &conn{p: p, phase: connecting, ticks: dialTicks, remote: p.addrs[a.index], try: a}
		err := t.connect(c)
		if err == nil {
			p.dial = c
			return
		}
		a = a.next(c, err)
	}
	t.fail(p, fmt.Errorf("tcp: rank %d cannot reach rank %d: %w", t.cfg.Rank, p.rank, a.before))
}

func (a attempt) next(c *conn, err error) attempt {
	return attempt{index: a.index + 1, before: errors.Join(a.before, fmt.Errorf("%v: %w", c.remote, err))}
}

func (t *Transport) connect(c *conn) (err error) {
	if c.fd, err = unix.Socket(family(c.remote.Addr()), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	if err = setOptions(c.fd); err == nil {
		err = unix.Connect(c.fd, sockaddr(c.remote))
	}
	if err != nil && err != unix.EINPROGRESS {
		_ = unix.Close(c.fd)
		return explain(err)
	}
	return t.enter(c, unix.EPOLLOUT)
}

// explain adds to an error of connect what it means.
func explain(err error) error {
	if errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%w: nobody listens there, so that rank has ended", err)
	}
	return err
}

// redial is called when a dial failed: the next address, or the end.
func (t *Transport) redial(c *conn, err error) {
	t.drop(c)
	c.p.dial = nil
	t.dial(c.p, c.try.next(c, err))
}

// dialAgain is called when the other side closed without a verdict. It has
// ended, and then refuses the next dial; or strangers crowded us out.
func (t *Transport) dialAgain(c *conn) {
	if c.try.again++; c.try.again >= sameAddress {
		t.redial(c, errors.New("it closed the connection during the handshake: its process has ended"))
		return
	}
	t.drop(c)
	c.p.dial = nil
	t.dial(c.p, c.try)
}

// accept takes what waits at the listener.
func (t *Transport) accept() {
	for range 16 {
		fd, sa, err := unix.Accept4(t.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
		case unix.EAGAIN:
			return
		case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
			// Epoll would report the listener without end. The next tick tries again.
			if err := t.watch(unix.EPOLL_CTL_MOD, t.listener, 0, listenerEvent, 0); err == nil {
				t.deaf = true
				t.setTicking()
			}
			t.notice("tcp: rank %d cannot accept a connection: %v; trying again (ulimit -n?)", t.cfg.Rank, err)
			return
		default: // the connection was gone before we came
			continue
		}
		t.born++
		c := &conn{fd: fd, born: t.born, phase: wantHello, ticks: handshakeTicks, remote: addrPort(sa)}
		if err := setOptions(fd); err != nil {
			_ = unix.Close(fd)
			continue
		}
		if t.inPre >= t.cfg.Size+spareHandshakes {
			t.dropOldest()
		}
		if err := t.enter(c, unix.EPOLLIN); err != nil {
			t.notice("tcp: rank %d cannot accept %v: %v", t.cfg.Rank, c.remote, err)
			continue
		}
		t.setTicking()
	}
}

// dropOldest makes room when strangers fill the table of handshakes.
func (t *Transport) dropOldest() {
	var oldest *conn
	for _, c := range t.pre {
		if c != nil && c.phase >= wantHello && (oldest == nil || c.born < oldest.born) {
			oldest = c
		}
	}
	if oldest != nil {
		t.refuse(oldest, "too many connections that do not authenticate")
	}
}

// refuse closes an accepted connection and says why.
func (t *Transport) refuse(c *conn, why string) {
	t.drop(c)
	claim := ""
	if c.p != nil {
		claim = fmt.Sprintf(" that claims to be rank %d", c.p.rank)
	}
	t.notice("tcp: rank %d refused a connection from %v%s: %s", t.cfg.Rank, c.remote, claim, why)
}

func (t *Transport) notice(format string, args ...any) {
	t.refused++
	t.told++
	switch {
	case t.cfg.Notice == nil || t.told > maxNotices+1:
	case t.told == maxNotices+1:
		t.cfg.Notice(fmt.Sprintf("tcp: rank %d refuses more connections, which are only counted from here on", t.cfg.Rank))
	default:
		t.cfg.Notice(fmt.Sprintf(format, args...))
	}
}

// late is called at each tick.
func (t *Transport) late(c *conn) {
	if c.ticks--; c.ticks > 0 {
		return
	}
	if c.phase >= wantHello {
		t.refuse(c, "it took too long, "+c.phase.String())
		return
	}
	t.redial(c, fmt.Errorf("no answer in time, %v: a firewall, or an address that leads elsewhere? --interface names another network", c.phase))
}

// advance goes on with a handshake; its socket is ready. It returns 1 when
// that makes room for somebody who was refused.
func (t *Transport) advance(c *conn) int {
	if c.phase == connecting {
		t.connected(c)
		return 0
	}
	want := c.expects()
	n, e := recv(c.fd, c.buf[c.have:want])
	switch {
	case e == unix.EAGAIN:
		return 0
	case e != 0 || n == 0:
		t.ended(c)
		return 0
	}
	c.have += n
	if (c.phase == wantHello || c.phase == wantChallenge) && !checkMagic(c.buf[:c.have]) {
		if c.phase == wantHello {
			t.refuse(c, "it is no Weft rank")
		} else {
			t.redial(c, errors.New("what listens there is no Weft rank"))
		}
		return 0
	}
	if c.have < want {
		return 0
	}
	msg := append([]byte(nil), c.buf[:want]...)
	c.have = 0
	switch c.phase {
	case wantHello:
		t.gotHello(c, msg)
	case wantChallenge:
		t.gotChallenge(c, msg)
	case wantProof:
		return t.gotProof(c, msg)
	case wantVerdict:
		return t.gotVerdict(c, msg)
	}
	return 0
}

// ended is called when the other side closed in the middle of a handshake.
func (t *Transport) ended(c *conn) {
	switch {
	case c.phase < wantHello:
		t.dialAgain(c)
	case c.p != nil && (c.p.state == up || c.p.dial != nil):
		t.drop(c) // gave up its dial for ours
	case c.phase == wantHello && c.have == 0:
		// A port scanner, or a rank that gave up its dial for ours before it was
		// connected. There is nothing to tell of either.
		t.drop(c)
		t.refused++
	default:
		t.refuse(c, "it closed the connection, "+c.phase.String())
	}
}

func (t *Transport) connected(c *conn) {
	soerr, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && soerr != 0 {
		err = unix.Errno(soerr)
	}
	if err != nil {
		t.redial(c, explain(err))
		return
	}
	c.phase = wantChallenge
	c.hello = t.id.hello(c.p.rank)
	if err := t.watch(unix.EPOLL_CTL_MOD, c.fd, unix.EPOLLIN, handshakeEvent, c.slot); err != nil {
		t.redial(c, err)
		return
	}
	t.say(c, c.hello)
}

// say sends a handshake message. It always fits an empty socket; when it does
// not go, the connection is broken and its next read tells.
func (t *Transport) say(c *conn, msg []byte) { _, _ = send(c.fd, msg) }

func (t *Transport) gotHello(c *conn, msg []byte) {
	c.hello = msg
	from, v := t.id.readHello(msg)
	c.challenge = t.id.challenge(v)
	t.say(c, c.challenge)
	if v != accepted {
		t.refuse(c, v.String())
		return
	}
	c.p = t.peer(from)
	c.phase = wantProof
}

func (t *Transport) gotChallenge(c *conn, msg []byte) {
	c.challenge = msg
	if err := t.id.readChallenge(msg); err != nil {
		t.redial(c, err)
		return
	}
	c.phase = wantVerdict
	t.say(c, t.id.proof(c.hello, c.challenge))
}

func (t *Transport) gotProof(c *conn, msg []byte) int {
	p, v := c.p, accepted
	switch {
	case !t.id.checkProof(c.hello, c.challenge, msg):
		v = wrongSecret
	case p.state == up && p.late:
		// The other side dialed too, before it accepted this side's dial and gave
		// its own up; what it had said by then is only read now.
		p.late = false
		v = crossed
	case p.state == up:
		v = duplicate
	case p.state >= failed:
		v = gone
	case p.dial != nil && t.cfg.Rank < p.rank:
		v = crossed
	}
	t.say(c, t.id.verdict(c.hello, c.challenge, v))
	switch v {
	case accepted:
		if p.dial != nil { // crossed, and the other side's dial stands
			t.drop(p.dial)
			p.dial = nil
		}
		return t.promote(c)
	case crossed:
		t.drop(c)
	default:
		t.refuse(c, v.String())
	}
	return 0
}

func (t *Transport) gotVerdict(c *conn, msg []byte) int {
	v, err := t.id.readVerdict(c.hello, c.challenge, msg)
	switch {
	case err != nil:
		t.redial(c, err)
	case v == crossed && t.cfg.Rank < c.p.rank:
		t.redial(c, errors.New("it wants us to wait for its own connection, which only a lower rank may"))
	case v == crossed:
		t.drop(c)
		c.p.dial = nil
		c.p.expected = dialTicks
		t.expect++
	default:
		c.p.dial = nil
		c.p.late = t.cfg.Rank < c.p.rank
		return t.promote(c)
	}
	return 0
}

// promote makes c the connection of its peer, and sends what waited for that.
func (t *Transport) promote(c *conn) int {
	p := c.p
	t.leave(c)
	t.expectNone(p)
	p.state, p.fd, p.remote = up, c.fd, c.remote
	t.up = append(t.up, p)
	if err := t.watch(unix.EPOLL_CTL_MOD, p.fd, unix.EPOLLIN, peerEvent, p.rank); err != nil {
		t.fail(p, err)
		return 0
	}
	return t.flush(p)
}

// setOptions makes a socket send at once, and notice that an idle peer's host is gone.
func setOptions(fd int) error {
	for _, o := range []struct{ level, name, value int }{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 4},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 2},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("setsockopt: %w", err)
		}
	}
	return nil
}

func family(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
