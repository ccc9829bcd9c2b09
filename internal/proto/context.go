package proto

import (
	"fmt"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/match"
	"github.com/weft-hpc/weft/internal/wire"
)

// A context id has three parts: bit 0 tells collective traffic from
// point-to-point, bits 1-15 are the communicator's index, and bits 16-31 its
// generation, so that messages for an earlier communicator with the same index
// are recognised.
const (
	// MaxComms is the number of communicators that can be open at once.
	MaxComms   = 1 << 15
	collective = 1
)

// ContextID returns the id of a communicator's point-to-point context.
func ContextID(index int, generation uint16) uint32 {
	return uint32(generation)<<16 | uint32(index)<<1
}

func splitID(id uint32) (index int, generation uint16) {
	return int(id >> 1 & (MaxComms - 1)), uint16(id >> 16)
}

// Comm is what the core knows of an open communicator: a context for each kind
// of traffic.
type Comm struct {
	P2P, Coll *Context
	// Called returns what this rank called under a number without BeginCollective, as far as that is kept for a member
	// that has not come to it. May be nil.
	Called func(member int32, number uint32) (sig wire.Signature, known bool)

	members []int32 // world ranks
	revoked error
	ended   atomic.Bool // is set with it, for those who do not hold the core
}

// Context is one matching space of one communicator.
type Context struct {
	id     uint32
	rank   int32
	comm   *Comm
	queue  *match.Queue[*Op, *Message]
	probes []*Op
	newest uint32  // number of the newest collective here
	calls  []entry // of the collectives in progress and the last others, by number; a power of two
}

// entry is one collective that this rank has called.
type entry struct {
	sig  wire.Signature
	open bool // it is in progress
}

// pastCalls is how many collectives a context remembers at least.
const pastCalls = 8

type commSlot struct {
	comm   *Comm
	used   bool
	gen    uint16  // of the comm, or of the last one
	notice *notice // for a comm that is opened later
}

// notice is a Revoke frame that came before its communicator was opened here.
type notice struct {
	id        uint32
	peer, src int32 // who sent it: world rank, and rank in the communicator
	err       *RevokedError
	payload   []byte
}

// slot returns the slot of a context id.
func (c *Core) slot(id uint32) *commSlot {
	index, _ := splitID(id)
	for len(c.comms) <= index {
		c.comms = append(c.comms, commSlot{})
	}
	return &c.comms[index]
}

// Rank returns this process's rank in the communicator.
func (x *Context) Rank() int32 { return x.rank }

// World returns the world rank of a member.
func (x *Context) World(rank int32) int { return int(x.comm.members[rank]) }

// Members returns the world ranks of the members, which must not be changed.
func (m *Comm) Members() []int32 { return m.members }

// Err returns why the communicator is revoked, or nil.
func (m *Comm) Err() error { return m.revoked }

// Revoked tells whether Err is not nil. Any goroutine may ask.
func (m *Comm) Revoked() bool { return m.ended.Load() }

// Open opens the communicator with the id of its point-to-point context, whose
// members are the given world ranks, this process being members[rank].
// Messages that arrived before are matched now.
func (c *Core) Open(id uint32, members []int32, rank int) *Comm {
	index, gen := splitID(id)
	s := c.slot(id)
	if s.comm != nil {
		panic(fmt.Sprintf("proto: communicator index %d opened twice", index))
	}
	c.newest += uint64(gen - uint16(c.newest)) // it was chosen newer than any here
	m := &Comm{members: members}
	open := func(id uint32) *Context {
		return &Context{id: id, rank: int32(rank), comm: m, queue: match.New[*Op, *Message](len(members))}
	}
	m.P2P, m.Coll = open(id), open(id|collective)
	early := s.notice
	*s = commSlot{comm: m, used: true, gen: gen}
	if early != nil && early.id == id && m.P2P.speaks(early.src, early.peer) && m.P2P.has(early.err.By) {
		c.notify(m, early.err.By, early.err.Lost, early.payload)
		c.revoke(m, early.err)
	}
	c.matchEarly(index)
	return m
}

// matchEarly matches the messages that arrived before their communicator was
// opened here, and drops those for earlier ones of its index.
func (c *Core) matchEarly(index int) {
	early := c.early
	c.early = nil
	for _, e := range early {
		if i, _ := splitID(e.ctx); i != index {
			c.early = append(c.early, e)
			continue
		}
		ctx := c.context(e.ctx)
		if ctx == nil || !ctx.speaks(e.node.Src, e.peer) {
			c.Stats.Stale++
			c.drop(e)
			continue
		}
		c.arrived(ctx, e)
	}
}

// Receives returns how many receives and probes are posted on a communicator.
func (c *Core) Receives(m *Comm) (n int) {
	for _, x := range []*Context{m.P2P, m.Coll} {
		n += x.queue.Receives() + len(x.probes)
	}
	return n
}

// Close closes a communicator. Unexpected messages are dropped. Nothing may be
// posted on it; the number of operations that are is returned and then nothing
// was closed.
func (c *Core) Close(m *Comm) (pending int) {
	for _, x := range []*Context{m.P2P, m.Coll} {
		pending += x.queue.Receives() + len(x.probes)
	}
	if pending > 0 {
		return pending
	}
	for _, x := range []*Context{m.P2P, m.Coll} {
		x.queue.EachMessage(func(n *match.Node[*Message]) {
			x.queue.RemoveMessage(n)
			c.drop(n.Owner)
		})
	}
	index, _ := splitID(m.P2P.id)
	c.comms[index].comm = nil
	return 0
}

// FreeIndexes sets the bits of the communicator indexes that are not in use
// here, and returns the newest generation any of them has had, not cut to 16
// bits: ranks may be on either side of a wrap.
func (c *Core) FreeIndexes(mask []uint64) (newest uint64) {
	for i := range mask {
		mask[i] = ^uint64(0)
	}
	for i := range c.comms {
		if c.comms[i].comm != nil {
			mask[i/64] &^= 1 << (i % 64)
		}
	}
	return c.newest
}

// context returns the open context with an id, or nil.
func (c *Core) context(id uint32) *Context {
	index, gen := splitID(id)
	if index >= len(c.comms) || c.comms[index].comm == nil || c.comms[index].gen != gen {
		return nil
	}
	if id&collective != 0 {
		return c.comms[index].comm.Coll
	}
	return c.comms[index].comm.P2P
}

// closed tells whether the id belongs to a communicator that was open here.
// Generations wrap, and are far apart on a rank that was long without a
// communicator of that index; so only those a little older count as old.
func (c *Core) closed(id uint32) bool {
	index, gen := splitID(id)
	return index < len(c.comms) && c.comms[index].used && c.comms[index].gen-gen < staleSpan
}

const staleSpan = 1 << 12

// speaks tells whether a process is the member of that rank.
func (x *Context) speaks(rank, world int32) bool {
	return x.has(rank) && x.comm.members[rank] == world
}

// has tells whether the communicator has a member of that rank.
func (x *Context) has(rank int32) bool { return rank >= 0 && int(rank) < len(x.comm.members) }

// BeginCollective notes the signature of a collective that this rank enters, and
// returns an error when a message shows that a member has called another. Several
// may be in progress, nonblocking ones, whose numbers differ.
func (c *Core) BeginCollective(x *Context, sig wire.Signature) error {
	if x.calls == nil {
		x.calls = make([]entry, pastCalls)
	}
	for e := x.entry(sig.Seq); e.open && e.sig.Seq != sig.Seq; e = x.entry(sig.Seq) {
		x.grow()
	}
	*x.entry(sig.Seq) = entry{sig, true}
	if int32(sig.Seq-x.newest) > 0 {
		x.newest = sig.Seq
	}
	var err error
	if x.queue.Messages() > 0 {
		x.queue.EachMessage(func(n *match.Node[*Message]) {
			if m := n.Owner; err == nil && m.signed && x.disagrees(&m.sig) {
				err = c.mismatch(x, n.Owner)
			}
		})
	}
	return err
}

// EndCollective notes the end of the collective with a number.
func (c *Core) EndCollective(x *Context, seq uint32) {
	if x.calls != nil && x.entry(seq).sig.Seq == seq {
		x.entry(seq).open = false
	}
}

// entry returns the place of a collective among calls.
func (x *Context) entry(seq uint32) *entry { return &x.calls[seq&uint32(len(x.calls)-1)] }

// grow makes room for more collectives in progress.
func (x *Context) grow() {
	old := x.calls
	x.calls = make([]entry, 2*len(old))
	for _, e := range old {
		*x.entry(e.sig.Seq) = e
	}
}

// disagrees tells whether a message shows that its sender made another call
// than this rank: its signature differs from that of the same call here, or
// belongs to a call that is over here, which has received all its messages.
func (x *Context) disagrees(sig *wire.Signature) bool {
	if int32(sig.Seq-x.newest) > 0 {
		return false
	}
	if x.calls == nil {
		return true
	}
	e := x.entry(sig.Seq)
	return !e.open || *sig != e.sig
}

// mismatch is the error for a message that disagrees.
func (c *Core) mismatch(x *Context, m *Message) error {
	e := &MismatchError{Theirs: m.sig, Rank: m.node.Src, CallText: c.callText}
	if x.calls == nil {
		return e
	}
	if e.Mine = x.entry(m.sig.Seq).sig; e.Mine.Seq != m.sig.Seq {
		e.Mine = x.entry(x.newest).sig // the call itself is forgotten
	}
	return e
}
