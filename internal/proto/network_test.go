package proto

import (
	"bytes"
	"fmt"

	"github.com/weft-hpc/weft/internal/match"
	"github.com/weft-hpc/weft/internal/wire"
)

// network joins the cores of n ranks by links that lose nothing and keep their
// order, like a transport. The test decides when a frame is delivered. It
// carries actions out as package progress does.
type network struct {
	cores []*Core
	links [][]link // from, to
	log   func(rank int, format string, args ...any)
	done  func(rank int, op *Op)
	// writes says that the transport lets a sender write to its receiver's memory.
	writes bool
	pulls  []pull // that wait to be carried out
}

// link carries frames from one rank to another.
type link struct {
	seq     uint32
	frames  []frame
	last    []byte // the last frame that was delivered, for duplicates
	landing []byte // where the payload of the first frame, a Data frame, is going
	dead    bool   // as its sender was told
}

type frame struct {
	bytes []byte // as encoded; without the payload of a Data frame
	data  []byte // payload of a Data frame, in its sender's memory
}

func (f *frame) header() (h wire.Header, payload []byte) {
	n, err := wire.Decode(f.bytes, &h)
	if err != nil {
		panic(err)
	}
	return h, f.bytes[n:]
}

type pull struct {
	rank   int
	op     *Op
	region wire.Region
	dst    []byte
}

func newNetwork(ranks int, window int64, eagerMax, pullMin int) *network {
	n := &network{log: func(int, string, ...any) {}, done: func(int, *Op) {}}
	for r := range ranks {
		c := New(Config{Rank: r, Size: ranks, Window: window})
		for p := range ranks {
			c.SetLimits(p, eagerMax, pullMin)
		}
		n.cores = append(n.cores, c)
		n.links = append(n.links, make([]link, ranks))
	}
	return n
}

// act carries out what a core wants done.
func (n *network) act(rank int) {
	c := n.cores[rank]
	for len(c.Out) > 0 || len(c.Done) > 0 {
		for i := range c.Out {
			n.carryOut(rank, &c.Out[i])
		}
		for _, op := range c.Done {
			n.done(rank, op)
		}
		c.Taken()
	}
}

func (n *network) carryOut(rank int, a *Action) {
	if a.Kind == Pull {
		n.log(rank, "pull %d bytes from %d", len(a.Payload), a.Peer)
		n.pulls = append(n.pulls, pull{rank, a.Op, a.Region, a.Payload})
		return
	}
	c, l := n.cores[rank], &n.links[rank][a.Peer]
	if gone := c.Gone(int(a.Peer)); gone != nil || l.dead {
		n.log(rank, "-> %d %s: not sent", a.Peer, describe(&a.Header, len(a.Payload)))
		switch {
		case a.Op != nil:
			a.Op.Err = gone
			n.done(rank, a.Op)
		case a.Kind == SendData:
			c.NotSent(int(a.Peer), a.Header.Reply)
		}
		return
	}
	if a.Kind == SendCTS {
		a.Payload = nil
		if n.writes {
			a.Header.Flags |= wire.HasRegion
			a.Header.Region = wire.Region{Key: a.Header.Reply}
			c.Exposed(a.Header.Reply)
		}
	}
	a.Header.Seq = l.seq
	l.seq++
	n.log(rank, "-> %d %s", a.Peer, describe(&a.Header, len(a.Payload)))
	f := frame{bytes: make([]byte, a.Header.Size())}
	a.Header.Encode(f.bytes)
	if a.Kind == SendData {
		f.data = a.Payload
	} else {
		f.bytes = append(f.bytes, a.Payload...)
	}
	l.frames = append(l.frames, f)
	if a.Op != nil {
		a.Op.Err = nil
		n.done(rank, a.Op)
	}
}

// deliver hands over the first frame of a link.
func (n *network) deliver(from, to int) {
	l := &n.links[from][to]
	if h, _ := l.frames[0].header(); h.Kind == wire.Data {
		if l.landing != nil || n.begin(from, to) {
			n.land(from, to)
		}
		n.sent(from, to)
		return
	}
	f := l.frames[0]
	l.frames = l.frames[1:]
	l.last = f.bytes
	n.receive(from, to, f.bytes)
}

// receive gives a frame, which may be forged, to a core.
func (n *network) receive(from, to int, encoded []byte) {
	f := frame{bytes: bytes.Clone(encoded)}
	h, payload := f.header()
	if err := n.cores[to].Frame(from, &h, payload); err != nil {
		n.violation(from, to, err)
	}
	for i := range f.bytes { // a transport reuses its memory
		f.bytes[i] = 0xdd
	}
	n.act(to)
}

func (n *network) violation(from, to int, err error) {
	n.log(to, "violation: %v", err)
	n.cores[to].Lost(from, err)
}

// begin asks where the payload of the first frame goes. It reports whether it
// goes anywhere.
func (n *network) begin(from, to int) bool {
	l := &n.links[from][to]
	h, _ := l.frames[0].header()
	dst, err := n.cores[to].Dest(from, &h, len(l.frames[0].data))
	if err != nil {
		n.violation(from, to, err)
	}
	l.landing = dst
	n.act(to)
	return dst != nil
}

// land ends what begin began.
func (n *network) land(from, to int) {
	l := &n.links[from][to]
	h, _ := l.frames[0].header()
	copy(l.landing, l.frames[0].data)
	l.landing = nil
	n.cores[to].Landed(from, &h)
	n.act(to)
}

// sent tells the sender of a Data frame that its payload is free again.
func (n *network) sent(from, to int) {
	l := &n.links[from][to]
	f := l.frames[0]
	h, _ := f.header()
	l.frames = l.frames[1:]
	l.last = f.bytes
	if !l.dead {
		n.cores[from].Sent(to, h.Reply)
		n.act(from)
	}
}

// pull carries out the first pull.
func (n *network) pull(err error) {
	p := n.pulls[0]
	n.pulls = n.pulls[1:]
	if err == nil {
		err = n.read(p.region, p.dst)
	}
	n.cores[p.rank].Pulled(p.op, err)
	n.act(p.rank)
}

// regions is the memory that pulls read, by the key of its region.
var regions = map[uint32][]byte{}

func (n *network) read(r wire.Region, dst []byte) error {
	src := regions[r.Key]
	if len(src) < len(dst) {
		return fmt.Errorf("region %d has %d bytes", r.Key, len(src))
	}
	copy(dst, src)
	return nil
}

// down is the transport's report that a peer is gone.
func (n *network) down(rank, peer int, err error) {
	n.links[peer][rank].landing = nil
	n.links[rank][peer].dead = true
	n.links[rank][peer].frames = nil
	n.links[peer][rank].frames = nil
	n.cores[rank].PeerDown(peer, err)
	n.act(rank)
}

// quiet reports whether nothing is on its way.
func (n *network) quiet() bool {
	for _, from := range n.links {
		for i := range from {
			if len(from[i].frames) > 0 {
				return false
			}
		}
	}
	return len(n.pulls) == 0
}

func shortID(id uint32) string { return fmt.Sprintf("%d.%d", id&indexMask, id>>indexBits) }

// describe prints a frame for a trace.
func describe(h *wire.Header, payload int) string {
	s := fmt.Sprintf("%v #%d", h.Kind, h.Seq)
	if h.Kind == wire.Eager || h.Kind == wire.RTS || h.Ctx != 0 {
		index, gen := splitID(h.Ctx)
		s += fmt.Sprintf(" ctx %d/%d", index, gen)
		if h.Ctx&collective != 0 {
			s += "c"
		}
		s += fmt.Sprintf(" src %d tag %d", h.Src, h.Tag)
	}
	if h.Flags&wire.Sync != 0 {
		s += " sync"
	}
	if h.Flags&wire.HasID != 0 {
		s += " id " + shortID(h.ID)
		if h.Reply != 0 {
			s += " reply " + shortID(h.Reply)
		}
	}
	if h.Flags&wire.HasBytes != 0 {
		s += fmt.Sprintf(" bytes %d", h.Bytes)
	}
	if h.Flags&wire.HasRegion != 0 {
		s += fmt.Sprintf(" region %d", h.Region.Key)
	}
	if h.Flags&wire.HasSig != 0 {
		s += fmt.Sprintf(" sig %d/%d/%d", h.Sig.Op, h.Sig.Seq, h.Sig.Count)
	}
	if payload > 0 {
		s += fmt.Sprintf(" payload %d", payload)
	}
	return s
}

var stateNames = [...]string{"idle", "queued", "offered", "streaming", "posted", "awaiting", "exposed", "landing", "pulling", "done"}

// leftovers lists what a core still holds.
func (c *Core) leftovers() (left []string) {
	add := func(format string, args ...any) { left = append(left, fmt.Sprintf(format, args...)) }
	for _, op := range c.ops.live() {
		add("operation %s %s", shortID(op.id), stateNames[op.state])
	}
	if len(c.ops.free) != len(c.ops.slots)-len(c.ops.live()) {
		add("%d of %d ids are free", len(c.ops.free), len(c.ops.slots))
	}
	if n := len(c.early); n > 0 {
		add("%d early messages", n)
	}
	var held int64
	count := func(n *match.Node[*Message]) { held += int64(len(n.Owner.data)) }
	for i, s := range c.comms {
		if s.comm == nil {
			continue
		}
		for _, x := range []*Context{s.comm.P2P, s.comm.Coll} {
			if n := x.queue.Receives(); n > 0 {
				add("context %d: %d receives", i, n)
			}
			if n := x.queue.Messages(); n > 0 {
				add("context %d: %d unexpected messages", i, n)
				x.queue.EachMessage(count)
			}
			if n := len(x.probes); n > 0 {
				add("context %d: %d probes", i, n)
			}
		}
	}
	for i := range c.peers {
		p := &c.peers[i]
		if p.gone != nil {
			add("peer %d: %v", i, p.gone)
		}
		if p.queue.head != nil || p.queue.tail != nil {
			add("peer %d: sends wait for credit", i)
		}
	}
	if c.Stats.UnexpectedBytes != 0 {
		add("%d unexpected bytes", c.Stats.UnexpectedBytes)
	}
	return left
}
