package tcp

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

// Config says who a rank is and where it listens.
type Config struct {
	Rank, Size int
	// Secret is shared by the ranks of a job and nobody else, 16 bytes or more.
	Secret []byte
	// Job names the job, so that ranks of two jobs know each other apart.
	Job string
	// Interface is a network interface by name, address or CIDR prefix. Empty
	// leaves the choice to Listen.
	Interface string
	// Loopback says that all ranks are on this host.
	Loopback bool
	// Notice takes one line about a connection that was refused. The first few are
	// told, then they are only counted. It is called inside Poll and must not
	// call the transport. May be nil.
	Notice func(line string)
	// Interfaces lists the network interfaces, in place of the system's. May be nil.
	Interfaces func() ([]Interface, error)

	tick time.Duration // for tests: a second when zero
}

const (
	// maxEager is the longest payload of Send. A longer message asks first, which costs
	// a round trip, and saves a copy.
	maxEager = 64 << 10
	// readAhead is how much is read when nothing is known of what comes. What of it belongs
	// to a Data frame is copied once more.
	readAhead = 16 << 10

	inSize    = maxHead + maxEager + readAhead
	outSize   = 2 * (maxHead + maxEager) // two frames of any size wait while the socket is full
	copyLimit = 4 << 10                  // up to here a copy is cheaper than a second piece in sendmsg
	bulkLimit = 32                       // SendBulks under way to one peer

	minSecret       = 16
	backlog         = 4096
	handshakeTicks  = 5
	dialTicks       = 10
	findTicks       = 20
	quietTicks      = 9  // without an acknowledgement, until a peer is lost
	directPeers     = 2  // up to here connections are read without asking epoll
	eventsEvery     = 16 // Polls; then epoll is asked all the same
	maxNotices      = 8
	sameAddress     = 4  // dials of an address that accepts and hangs up
	spareHandshakes = 64 // strangers that may be in a handshake besides all ranks
)

// Transport is a rank's end of all its connections.
type Transport struct {
	cfg      Config
	id       identity
	choice   choice
	card     []byte
	find     func(rank int) error // asks for a card
	listener int
	epoll    int
	timer    int
	wake     wake

	peers  []*peer // by rank; nil until used
	up     []*peer
	pre    []*conn // in a handshake; nil entries are free
	inPre  int
	expect int     // peers that wait for a crossed dial
	lost   []*peer // PeerDown is due
	broken []*peer // could not be written to; read what is left, then lost
	done   []done  // Sent is due

	events  [64]unix.EpollEvent
	ahead   bool // Arm saw events that Poll has not
	polls   uint
	ticking bool
	deaf    bool // the listener is out of epoll, for want of descriptors
	refused int
	told    int    // of the refused, by Notice
	born    uint64 // connections accepted
	closed  bool
	marked  atomic.Bool // marks holds something
	markMu  sync.Mutex
	marks   []mark
	scratch [maxHead + copyLimit]byte
	vec     vector
	freeIn  [][]byte
	freeOut [][]byte
}

type done struct {
	peer  int
	token uint32
}

// mark is a call of MarkDown or Found that Poll has not seen yet.
type mark struct {
	rank  int
	addrs []netip.AddrPort // of Found
	err   error
}

var _ transport.Transport = (*Transport)(nil)

// Listen opens a rank's listening socket.
func Listen(cfg Config) (*Transport, error) {
	if cfg.Size < 1 || cfg.Rank < 0 || cfg.Rank >= cfg.Size {
		return nil, fmt.Errorf("tcp: rank %d of %d ranks", cfg.Rank, cfg.Size)
	}
	if len(cfg.Secret) < minSecret {
		return nil, fmt.Errorf("tcp: the job's secret has %d bytes, at least %d are needed", len(cfg.Secret), minSecret)
	}
	if cfg.Interfaces == nil {
		cfg.Interfaces = systemInterfaces
	}
	if cfg.tick == 0 {
		cfg.tick = time.Second
	}
	list, err := cfg.Interfaces()
	if err != nil {
		return nil, err
	}
	t := &Transport{cfg: cfg, id: newIdentity(cfg.Rank, cfg.Size, cfg.Secret, cfg.Job), peers: make([]*peer, cfg.Size),
		listener: -1, epoll: -1, timer: -1}
	t.wake.init()
	t.cfg.Secret = nil
	if t.choice, err = choose(list, cfg.Interface, cfg.Loopback); err != nil {
		return nil, err
	}
	if err := t.open(); err != nil {
		t.closeFiles()
		return nil, err
	}
	return t, nil
}

// open makes the file descriptors that live as long as the transport.
func (t *Transport) open() (err error) {
	if t.listener, err = listen(t.choice.addr); err != nil {
		return fmt.Errorf("tcp: listen at %v (%s): %w", t.choice.addr, t.choice.name, err)
	}
	sa, err := unix.Getsockname(t.listener)
	if err != nil {
		return fmt.Errorf("tcp: address of the listener: %w", err)
	}
	t.card = encodeCard([]netip.AddrPort{addrPort(sa)})
	if t.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("tcp: epoll: %w", err)
	}
	if t.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC); err != nil {
		return fmt.Errorf("tcp: timerfd: %w", err)
	}
	if t.wake.fd, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return fmt.Errorf("tcp: eventfd: %w", err)
	}
	return errors.Join(t.watch(unix.EPOLL_CTL_ADD, t.listener, unix.EPOLLIN, listenerEvent, 0),
		t.watch(unix.EPOLL_CTL_ADD, t.timer, unix.EPOLLIN, timerEvent, 0),
		t.watch(unix.EPOLL_CTL_ADD, t.wake.fd, unix.EPOLLIN, wakeEvent, 0))
}

func listen(addr netip.Addr) (int, error) {
	fd, err := unix.Socket(family(addr), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(addr, 0))); err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Card returns what the other ranks need to reach this one.
func (t *Transport) Card() []byte { return t.card }

// FindCards sets how this rank learns where another one listens: find is called at the first Send to it, asks for
// its card without waiting for it, and the answer comes by Found. It is called once, before the first Send.
func (t *Transport) FindCards(find func(rank int) error) { t.find = find }

// Found is the answer to a call of find: the card of a rank, or why there is none. Any
// goroutine may call it.
func (t *Transport) Found(rank int, card []byte, err error) {
	m := mark{rank: rank, err: err}
	if err == nil {
		m.addrs, m.err = decodeCard(card)
	}
	if m.err != nil {
		m.err = fmt.Errorf("tcp: rank %d has no card of rank %d: %w", t.cfg.Rank, rank, m.err)
	}
	t.mark(m)
}

// About says in one line where this rank listens, and why there.
func (t *Transport) About() string {
	addrs, _ := decodeCard(t.card)
	return fmt.Sprintf("tcp at %v on %s: %s", addrs[0], t.choice.name, t.choice.why)
}

// Refused returns the number of connections that were refused so far. It is
// for whoever may call Poll.
func (t *Transport) Refused() int { return t.refused }

// Name implements transport.Transport.
func (t *Transport) Name() string { return "tcp" }

// MaxEager implements transport.Transport.
func (t *Transport) MaxEager() int { return maxEager }

// Describe implements transport.Transport: nobody reaches memory over TCP.
func (t *Transport) Describe([]byte) (wire.Region, bool) { return wire.Region{}, false }

// Pull implements transport.Transport.
func (t *Transport) Pull(peer int, _ wire.Region, dst []byte) error {
	return fmt.Errorf("tcp: pull of %d bytes from rank %d: TCP reaches no memory", len(dst), peer)
}

// Poll implements transport.Transport. Room after ErrAgain counts as a report,
// so that a caller who sleeps on zero tries again first.
func (t *Transport) Poll(s transport.Sink) int {
	n := 0
	if t.marked.Load() {
		t.takeMarks()
	}
	direct := len(t.up) <= directPeers && t.inPre == 0 && !t.ahead
	if direct {
		for i := len(t.up) - 1; i >= 0; i-- {
			n += t.service(t.up[i], s)
		}
	}
	if t.polls++; !direct || t.polls%eventsEvery == 0 {
		n += t.handleEvents(s)
	}
	if len(t.done)+len(t.broken)+len(t.lost) > 0 {
		n += t.report(s)
	}
	return n
}

// MarkDown implements transport.Transport.
func (t *Transport) MarkDown(peer int, err error) {
	t.mark(mark{rank: peer, err: fmt.Errorf("tcp: rank %d has ended: %w", peer, err)})
}

func (t *Transport) mark(m mark) {
	t.markMu.Lock()
	t.marks = append(t.marks, m)
	t.marked.Store(true)
	t.markMu.Unlock()
	t.Wake()
}

// takeMarks dials the peers that were found, and ends those that MarkDown named, unless there is a
// connection: then the system tells, after what is still in it.
func (t *Transport) takeMarks() {
	t.markMu.Lock()
	marks := t.marks
	t.marks = nil
	t.marked.Store(false)
	t.markMu.Unlock()
	for _, m := range marks {
		switch p := t.peer(m.rank); {
		case p.state >= up: // it was faster
		case m.err != nil:
			t.fail(p, m.err)
		case p.finding:
			t.expectNone(p)
			p.addrs = m.addrs
			t.dial(p, attempt{})
			t.setTicking()
		}
	}
}

// report delivers what is due.
func (t *Transport) report(s transport.Sink) int {
	n := 0
	for _, d := range t.done {
		if t.peers[d.peer].state <= up {
			s.Sent(d.peer, d.token)
			n++
		}
	}
	t.done = t.done[:0]
	for _, p := range t.broken {
		for p.drained = false; p.state == up && !p.drained; {
			n += t.receive(p, s)
		}
		t.fail(p, p.err)
	}
	t.broken = t.broken[:0]
	for _, p := range t.lost {
		p.state = down
		s.PeerDown(p.rank, p.err)
		n++
	}
	t.lost = t.lost[:0]
	return n
}

// service does all that can be done for a peer that is up.
func (t *Transport) service(p *peer, s transport.Sink) int {
	n := t.receive(p, s)
	if p.state == up && p.blocked {
		n += t.flush(p)
	}
	return n
}

// Close implements transport.Transport. What waits in output buffers is given a
// moment to go.
func (t *Transport) Close() error {
	if t.closed {
		return errors.New("tcp: Close of a closed transport")
	}
	t.closed = true
	t.linger()
	t.wake.shut()
	for _, c := range t.pre {
		if c != nil {
			t.drop(c)
		}
	}
	for _, p := range t.up {
		_ = unix.Close(p.fd)
	}
	t.up = nil
	t.closeFiles()
	return nil
}

// linger flushes for up to a second.
func (t *Transport) linger() {
	for deadline := time.Now().Add(time.Second); ; {
		var fds []unix.PollFd
		for i := len(t.up) - 1; i >= 0; i-- {
			if p := t.up[i]; p.blocked && len(p.bulks) == 0 {
				if t.flush(p); p.state == up && p.blocked && p.err == nil {
					fds = append(fds, unix.PollFd{Fd: int32(p.fd), Events: unix.POLLOUT})
				}
			}
		}
		left := time.Until(deadline)
		if len(fds) == 0 || left <= 0 {
			return
		}
		_, _ = unix.Poll(fds, int(left/time.Millisecond)+1)
	}
}

func (t *Transport) closeFiles() {
	for _, fd := range []*int{&t.listener, &t.timer, &t.wake.fd, &t.epoll} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}
