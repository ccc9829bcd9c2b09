package verbs

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/rdma"
)

// conn is what a rank knows of a peer. It is made on first use. See the package's comment
// for the states.
type conn struct {
	peer  int
	state connState
	err   error // why nothing goes there any more: set when state becomes connFailing

	// The attempt to connect.
	epoch     uint32
	tries     int
	hello     *hello      // the peer's, of this epoch
	eps       []*endpoint // by rail
	passive   *endpoint   // of a connection with oneself: the other end
	peerReady bool        // it may be sent to
	peerUp    bool        // its probes were answered
	probes    int         // ours that are not answered
	used      bool        // a message came or went: from here on an attempt cannot be repeated
	open      int         // endpoints that are not closed, of all attempts

	// Credits, modulo 2^16 but for allowed and window.
	allowed  int    // receives of the peer for this rank
	sent     uint16 // that were used
	acked    uint16 // that the peer gave back
	window   int    // receives of this rank for the peer
	returned uint16 // that were posted again
	owed     uint16 // returned, as the peer knows it
	owing    bool   // in Transport.owing
	unposted int    // receives in Transport.refill that c pays for

	remote           uint32 // the peer's name for the connection
	chunk            int    // of one RDMA write
	reads            int    // that the peer answers at once
	sendSeq, recvSeq uint32
	framesOut        uint32 // number that the next frame to the peer has, as the engine counts
	framesIn         uint32 // and that from it

	posting   *transfer // not wholly posted
	pushing   bool      // in Transport.pushing
	receiving *exposure // announced, and not landed
	held      []heldMessage
	frag      fragment
	keys      []railKeys
	mute      bool  // it broke the rules: nothing of it counts any more
	ended     bool  // what it held is free: PeerDown is due
	doom      error // why it fails as soon as the CQs are empty
}

type connState uint8

const (
	connIdle connState = iota
	connMaking
	connGreeting
	connReadying
	connWaiting
	connProbing
	connUp
	connFailing
	connDown
)

// maxEpoch bounds how often a peer may begin again.
const maxEpoch = 64

func (t *Transport) conn(peer int) *conn {
	c := t.conns[peer]
	if c == nil {
		c = &conn{peer: peer}
		t.conns[peer] = c
	}
	return c
}

// notUp is what an operation on a peer that is not connected returns. It starts to connect.
func (t *Transport) notUp(peer int) error {
	if peer < 0 || peer >= t.cfg.Size {
		return fmt.Errorf("verbs: there is no rank %d in a job of %d", peer, t.cfg.Size)
	}
	c := t.conn(peer)
	switch {
	case c.state >= connFailing:
		return c.err
	case c.state == connIdle && c.doom == nil:
		t.begin(c, 1)
	}
	return transport.ErrAgain
}

// begin starts an attempt to connect: it makes the queue pairs.
func (t *Transport) begin(c *conn, epoch uint32) {
	c.epoch, c.state, c.peerReady, c.peerUp, c.probes = epoch, connMaking, false, false, 0
	if c.hello != nil && c.hello.epoch != epoch {
		c.hello = nil
	}
	for _, r := range t.rails {
		if r.dead != nil {
			t.fail(c, fmt.Errorf("verbs: no connection with %s: %w", t.who(c.peer), r.dead))
			return
		}
		if r.cqFree < 2*reserved+1 {
			t.fail(c, fmt.Errorf("verbs: no connection with %s: the completion queue of %d on %s has no room for another queue pair", t.who(c.peer), r.cq.Cap(), r.name))
			return
		}
	}
	self := c.peer == t.cfg.Rank
	if c.window == 0 && !self {
		c.window = t.grant()
	}
	c.eps = nil
	for _, r := range t.rails {
		c.eps = append(c.eps, t.newEndpoint(c, r))
		if self {
			c.passive = t.newEndpoint(c, r)
			break
		}
	}
	eps := c.all()
	opts := rdma.QPCaps{MaxSendWRs: t.tune.sq, MaxSendSGEs: 1, MaxInline: t.tune.inline}
	t.background(func() error { return makeQPs(eps, opts) }, func(err error) { t.made(c, eps, err) })
}

// all are the endpoints of the attempt.
func (c *conn) all() []*endpoint {
	if c.passive == nil {
		return c.eps
	}
	return []*endpoint{c.eps[0], c.passive}
}

// makeQPs creates queue pairs and takes them to INIT. It runs in a job, whose endpoints
// nobody else touches.
func makeQPs(eps []*endpoint, caps rdma.QPCaps) error {
	for _, e := range eps {
		r := e.rail
		qp, err := r.pd.CreateQP(rdma.QPOptions{SendCQ: r.cq, RecvCQ: r.cq, SRQ: r.srq, Caps: caps})
		if err != nil {
			return err
		}
		e.made, e.inline, e.psn = qp, qp.Caps().MaxInline, randomBits(24)
		access := rdma.RemoteWrite | rdma.RemoteRead
		if r.limits.Atomics {
			access |= rdma.RemoteAtomic
		}
		if err := qp.Init(rdma.InitAttr{Port: r.port.Num, PKeyIndex: r.pkey, Access: access}); err != nil {
			return err
		}
	}
	return nil
}

func randomBits(n int) uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails; it ends the process if it has to
	return binary.LittleEndian.Uint32(b[:]) >> (32 - n)
}

// current reports whether eps are those of the attempt under way, in that state.
func (c *conn) current(eps []*endpoint, state connState) bool {
	return c.state == state && len(c.eps) > 0 && c.eps[0] == eps[0]
}

// made goes on when the queue pairs are there.
func (t *Transport) made(c *conn, eps []*endpoint, err error) {
	for _, e := range eps {
		e.qp, e.state = e.made, epQuiet
	}
	switch {
	case !c.current(eps, connMaking):
		for _, e := range eps {
			t.retire(e)
		}
	case err != nil:
		t.refuse(c, c.epoch, fmt.Errorf("verbs: no connection with %s: %w", t.who(c.peer), err))
	case c.peer == t.cfg.Rank:
		c.state = connReadying
		for _, e := range eps {
			e.busy = true
		}
		t.background(func() error { return t.loopBack(eps) }, func(err error) { t.readied(c, eps, err) })
	default:
		for _, e := range eps {
			e.inline = min(e.inline, len(t.scratch))
		}
		c.state = connGreeting
		h := t.say(c, sayHello)
		for _, e := range eps {
			h.rails = append(h.rails, e.rail.hello(e.qp, e.psn, t.tune.reads))
		}
		t.tell(c.peer, h)
		if c.state == connGreeting && c.hello != nil {
			t.meet(c)
		}
	}
}

// say starts a message of the link.
func (t *Transport) say(c *conn, kind helloKind) *hello {
	h := &hello{kind: kind, job: t.job, rank: uint32(t.cfg.Rank), epoch: max(c.epoch, 1), segment: uint32(t.tune.segment)}
	if kind == sayHello {
		h.window, h.conn = uint32(c.window), c.eps[0].name()
	}
	return h
}

// refuse ends a connection that cannot be, and tells the peer why. epoch is the peer's.
func (t *Transport) refuse(c *conn, epoch uint32, err error) {
	h := t.say(c, sayReject)
	h.epoch = max(epoch, 1)
	h.reason = err.Error()[:min(len(err.Error()), maxReason)]
	t.tell(c.peer, h)
	t.fail(c, err)
}

// meet connects the queue pairs with the peer's, whose HELLO is there.
func (t *Transport) meet(c *conn) {
	if err := t.agree(c); err != nil {
		t.refuse(c, c.epoch, fmt.Errorf("verbs: %s and %s cannot be connected: %w", t.who(t.cfg.Rank), t.who(c.peer), err))
		return
	}
	c.allowed, c.remote = int(c.hello.window), c.hello.conn
	c.chunk, c.reads = t.chunk, int(c.hello.rails[0].reads)
	for i := range c.hello.rails {
		c.chunk = int(min(uint64(c.chunk), c.hello.rails[i].maxMessage))
	}
	c.state = connReadying
	eps, peer := c.eps, c.hello
	for _, e := range eps {
		e.busy = true
	}
	t.background(func() error { return t.join(eps, peer) }, func(err error) { t.readied(c, eps, err) })
}

// agree says what keeps two ranks apart.
func (t *Transport) agree(c *conn) error {
	h := c.hello
	if int(h.segment) != t.tune.segment {
		return fmt.Errorf("receives have %d bytes here and %d there; start all ranks with the same settings", t.tune.segment, h.segment)
	}
	if len(h.rails) != len(t.rails) {
		return fmt.Errorf("there are %d rails here and %d there; give --device as many devices on all hosts", len(t.rails), len(h.rails))
	}
	for i, r := range t.rails {
		p := &h.rails[i]
		switch {
		case p.link != r.port.LinkLayer:
			return fmt.Errorf("rail %d is %v here (%s) and %v there; choose ports of one network with --device", i, r.port.LinkLayer, r.name, p.link)
		case p.gidType != r.gid.Type:
			return fmt.Errorf("rail %d has a GID of type %v here (%s) and %v there; compare weft info of both hosts", i, r.gid.Type, r.name, p.gidType)
		}
	}
	return nil
}

// join takes queue pairs to RTS. It runs in a job; ReadyToReceive may take seconds.
func (t *Transport) join(eps []*endpoint, peer *hello) error {
	for i, e := range eps {
		if err := t.joinOne(e, &peer.rails[i]); err != nil {
			return err
		}
	}
	return nil
}

func (t *Transport) joinOne(e *endpoint, p *helloRailInfo) error {
	r := e.rail
	path := rdma.Path{DLID: p.lid}
	if r.port.LinkLayer == rdma.LinkEthernet || r.port.GRHRequired || r.gid.GID.SubnetPrefix() != p.gid.SubnetPrefix() {
		path.Global, path.DGID, path.SGIDIndex, path.HopLimit = true, p.gid, r.gid.Index, 64
		path.FlowLabel = randomBits(20) | 1 // spreads connections over parallel links
	}
	u := &t.tune
	err := e.made.ReadyToReceive(rdma.RTRAttr{Path: path, MTU: rdma.PathMTU(r.port.ActiveMTU, p.mtu), DestQPN: p.qpn, RecvPSN: p.psn,
		MaxReads: u.reads, MinRNRTimer: u.rnrTimer})
	if err != nil {
		return withPeer(err, p.gid)
	}
	e.wired = true
	return e.made.ReadyToSend(rdma.RTSAttr{SendPSN: e.psn, MaxReads: min(u.reads, int(p.reads)), Timeout: u.timeout, Retries: u.retries,
		RNRRetries: u.rnrRetries})
}

func withPeer(err error, gid rdma.GID) error {
	if e, ok := errors.AsType[*rdma.Error](err); ok && e.Peer == "" {
		e.Peer = gid.String()
	}
	return err
}

// loopBack connects the two queue pairs of a connection with oneself.
func (t *Transport) loopBack(eps []*endpoint) error {
	a, b := eps[0], eps[1]
	toB, toA := b.rail.hello(b.made, b.psn, t.tune.reads), a.rail.hello(a.made, a.psn, t.tune.reads)
	return errors.Join(t.joinOne(a, &toB), t.joinOne(b, &toA))
}

// readied goes on when the queue pairs are in RTS.
func (t *Transport) readied(c *conn, eps []*endpoint, err error) {
	for _, e := range eps {
		e.busy = false
		if err == nil {
			e.state = epReady
		}
	}
	switch {
	case !c.current(eps, connReadying):
		for _, e := range eps {
			t.retire(e)
		}
	case errors.Is(err, syscall.ETIMEDOUT):
		t.retry(c, fmt.Errorf("verbs: no connection with %s: %w", t.who(c.peer), err))
	case err != nil:
		t.refuse(c, c.epoch, fmt.Errorf("verbs: no connection with %s: %w", t.who(c.peer), err))
	case c.peer == t.cfg.Rank:
		c.chunk, c.reads = t.chunk, t.tune.reads
		t.up(c)
	default:
		c.state = connWaiting
		t.tell(c.peer, t.say(c, sayReady))
		if c.state == connWaiting && c.peerReady {
			t.probe(c)
		}
	}
}

// probe sends nothing over each rail, before anything that could be lost. Only when the probes of
// both ends were answered there are messages: until then an attempt can be repeated.
func (t *Transport) probe(c *conn) {
	c.state = connProbing
	c.probes = len(c.eps)
	for _, e := range c.eps {
		if c.state == connProbing {
			t.ping(e, workProbe)
		}
	}
}

// probed notes that a probe has arrived.
func (t *Transport) probed(e *endpoint) {
	c := e.conn
	if c.state != connProbing || e.state != epReady {
		return
	}
	if c.probes--; c.probes > 0 {
		return
	}
	t.tell(c.peer, t.say(c, sayUp))
	if c.state == connProbing && c.peerUp {
		t.up(c)
	}
}

func (t *Transport) up(c *conn) {
	c.state = connUp
	t.stats.Connections++
}

// retry begins again with fresh queue pairs, a few times, as long as no message can have
// been lost.
func (t *Transport) retry(c *conn, err error) {
	c.tries++
	if c.used || c.tries >= t.tune.attempts || c.epoch >= maxEpoch || t.closing {
		if c.tries > 1 {
			err = fmt.Errorf("%w (in the last of %d attempts)", err, c.tries)
		}
		t.refuse(c, c.epoch, err)
		return
	}
	t.stats.Retries++
	t.supersede(c)
	t.begin(c, c.epoch+1)
}

// supersede gives the queue pairs of an attempt up.
func (t *Transport) supersede(c *conn) {
	eps := c.all()
	c.eps, c.passive = nil, nil
	for _, e := range eps {
		t.retire(e)
	}
}

// heard handles a message of the link.
func (t *Transport) heard(peer int, b []byte) {
	c := t.conn(peer)
	h, err := decodeHello(b)
	switch {
	case err != nil:
	case h.job != t.job:
		err = errors.New("it belongs to another job")
	case int(h.rank) != peer:
		err = fmt.Errorf("it says that it is rank %d", h.rank)
	case h.epoch > maxEpoch:
		err = fmt.Errorf("it has begun %d times", h.epoch)
	}
	if err != nil {
		err = fmt.Errorf("verbs: %s and %s cannot be connected: %w", t.who(t.cfg.Rank), t.who(peer), err)
		epoch := c.epoch
		if h != nil {
			epoch = h.epoch
		}
		if c.state < connFailing { // else it answers what this rank has said already
			t.refuse(c, epoch, err)
		}
		return
	}
	switch h.kind {
	case sayHello:
		t.heardHello(c, h)
	case sayReady:
		if h.epoch == c.epoch {
			c.peerReady = true
			if c.state == connWaiting {
				t.probe(c)
			}
		}
	case sayUp:
		if h.epoch == c.epoch {
			c.peerUp = true
			if c.state == connProbing && c.probes == 0 {
				t.up(c)
			}
		}
	case sayReject:
		if h.epoch < c.epoch {
			t.stats.Stale++
		} else {
			t.fail(c, fmt.Errorf("verbs: %s refuses to be connected with %s: %s", t.who(peer), t.who(t.cfg.Rank), h.reason))
		}
	}
}

func (t *Transport) heardHello(c *conn, h *hello) {
	switch {
	case t.closing:
	case c.state >= connFailing || c.doom != nil:
		reject := t.say(c, sayReject)
		reject.epoch = h.epoch
		reject.reason = "it counts that rank as down"
		t.tell(c.peer, reject)
	case c.state == connIdle:
		c.hello = h
		t.begin(c, h.epoch)
	case h.epoch < c.epoch || h.epoch == c.epoch && c.hello != nil:
		t.stats.Stale++ // of an attempt that is over
	case h.epoch == c.epoch:
		c.hello = h
		if c.state == connGreeting {
			t.meet(c)
		}
	case c.used:
		t.fail(c, fmt.Errorf("verbs: %s has given the connection up, with messages on it", t.who(c.peer)))
	default:
		t.supersede(c)
		c.hello = h
		t.begin(c, h.epoch)
	}
}

// letter is a message of the link.
type letter struct {
	peer int
	b    []byte
}

// tell sends a message over the link, now or as soon as there is room.
func (t *Transport) tell(peer int, h *hello) {
	t.letters = append(t.letters, letter{peer, h.encode()})
	t.postLetters()
}

// postLetters hands messages to the link, in order. It returns how many went.
func (t *Transport) postLetters() int {
	n := 0
	var stuck []letter
	t.linkUsed = true
	letters := t.letters
	t.letters = nil
	for _, l := range letters {
		blocked := false
		for _, s := range stuck {
			blocked = blocked || s.peer == l.peer
		}
		err := transport.ErrAgain
		if !blocked {
			err = t.link.Send(l.peer, &wire.Header{Kind: wire.Eager}, l.b)
		}
		switch {
		case err == nil:
			n++
		case errors.Is(err, transport.ErrAgain):
			stuck = append(stuck, l)
		default:
			t.condemn(l.peer, fmt.Errorf("verbs: %s cannot be told of a connection: %w", t.who(l.peer), err))
		}
	}
	t.letters = append(stuck, t.letters...)
	return n
}
