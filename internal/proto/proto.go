// Package proto is the core of the library: it decides what becomes of each
// send, receive and frame. It is a pure state machine: events go in, actions
// come out, and there is no clock, goroutine, lock or input/output inside, so
// the same events always give the same actions. Package progress feeds it and
// carries out its actions on transports.
//
// # Protocols
//
// A message goes eagerly (one EAGER frame with the data) when it fits the
// peer's eager limit and credit; else by rendezvous:
//
//	sender                         receiver
//	RTS  ------------------------> matched with a receive; then either
//	                               Pull (it reads the sender's memory itself)
//	     <------------------------ FIN
//	or
//	     <------------------------ CTS, with the region of the receive's buffer where the transport writes to memory
//	DATA ------------------------> straight into the receive's buffer
//
// A synchronous send that fits goes eagerly too, and completes with the FIN
// that the receiver sends when it matches.
//
// # Credit
//
// A sender may have Window bytes of messages at a peer that the peer has not
// matched yet: an EAGER costs its payload and messageCost, an RTS costs
// messageCost. The receiver gives credit back as messages match, in a CREDIT
// frame when it owes as much as the sender may have left. Without credit for an EAGER a message goes
// by RTS; without credit for that it waits at the sender, and later messages to
// the same peer behind it. So the memory of unexpected messages is bounded by
// Window for each peer, and a peer that exceeds it breaks the protocol.
//
// The price: a receiver that waits for a message while Window/messageCost
// earlier ones of the same sender are unmatched waits until it matches some.
//
// # States of an operation, and who owns its buffer
//
//	queued     send waits for credit; cancellable             the core
//	offered    RTS or synchronous EAGER is out                the core; the peer may read it
//	streaming  DATA is with the transport                     the transport, until Sent
//	posted     receive waits for a match; cancellable         the core
//	awaiting   receive is matched, CTS is out                 the core
//	exposed    the same, and the sender may write to it       the transport, until Landed
//	landing    its DATA are arriving                          the transport, until Landed
//	pulling    receive is matched, Pull is in progress        the transport, until Pulled
//	done       listed in Done                                 the caller
//
// # Collectives that do not meet
//
// Each message of a collective carries what was called, so ranks that disagree mostly hear of it with the first. Where those who
// disagree send each other nothing, each waits for another. So a rank that has waited long tells whom it waits for what
// it called (WAITING). If no two ranks that wait for each other, directly or through others, disagree, then
// all of them are in the same call, whose algorithm does not end up there, or one of them has not called it yet.
//
// When a peer is lost, what the transport owns stays with it until PeerDown.
//
// An eager send is done when the transport takes its frame: the action carries
// the operation and the caller completes it.
package proto

import (
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/match"
	"github.com/weft-hpc/weft/internal/wire"
)

// Errors that end an operation. They are wrapped in errors that say more.
var (
	ErrTruncated = errors.New("message longer than the receive buffer")
	ErrType      = errors.New("message of another element type")
	ErrMismatch  = errors.New("ranks disagree about the collective")
	ErrRevoked   = errors.New("communicator revoked")
	ErrPeerLost  = errors.New("rank failed")
	ErrPeerLeft  = errors.New("rank has left the job")
	ErrCanceled  = errors.New("operation withdrawn")
)

// MismatchError tells how two calls of a collective differ.
type MismatchError struct {
	Mine, Theirs wire.Signature
	Rank         int32                        // theirs
	CallText     func(*wire.Signature) string // in words; may be nil
}

func (e *MismatchError) Error() string {
	mine, theirs := fmt.Sprintf("%+v", e.Mine), fmt.Sprintf("%+v", e.Theirs)
	if e.CallText != nil {
		mine, theirs = e.CallText(&e.Mine), e.CallText(&e.Theirs)
	}
	return fmt.Sprintf("%v: rank %d called %s, this rank %s", ErrMismatch, e.Rank, theirs, mine)
}

// Unwrap makes errors.Is(err, ErrMismatch) true.
func (e *MismatchError) Unwrap() error { return ErrMismatch }

// RevokedError ends every operation on a communicator that a member revoked.
type RevokedError struct {
	By     int32 // rank in the communicator
	Reason string
	Cause  error // why, if it is an error of this package
	Lost   int   // the world rank whose loss is the cause, and one more; 0 if none is
}

func (e *RevokedError) Error() string {
	return fmt.Sprintf("%v: rank %d reports: %s", ErrRevoked, e.By, e.Reason)
}

// Unwrap returns ErrRevoked and the cause.
func (e *RevokedError) Unwrap() []error { return []error{ErrRevoked, e.Cause} }

// Kind is the kind of an operation.
type Kind uint8

// The kinds of operations.
const (
	Send   Kind = 1 + iota
	Ssend       // completes when the receiver has matched it
	Recv        // receives a message
	Probe       // completes when a message could be received, and leaves it there
	Mprobe      // takes the message out of matching, for PostMrecv
)

type state uint8

const (
	idle state = iota
	queued
	offered
	streaming
	posted
	awaiting
	exposed
	landing
	pulling
	done
)

// Status tells what was received.
type Status struct {
	Source, Tag int32
	Bytes       int64 // length of the message, which may exceed the buffer
	Type        uint32
}

// Op is a send, a receive or a probe. The caller fills the first group of
// fields, posts it, and leaves it alone until it is listed in Done.
type Op struct {
	Owner  any // the caller's, untouched here
	Kind   Kind
	Ctx    *Context
	Peer   int32 // destination or source rank in the communicator; match.Any
	Tag    int32
	Type   uint32 // hash of the element type
	Buf    []byte
	Region wire.Region // of Buf, when HasRegion: peers can pull it
	Sig    wire.Signature
	// HasRegion and Signed tell whether Region and Sig are set.
	HasRegion, Signed bool

	// Results.
	Status  Status
	Err     error
	Message *Message // of an Mprobe

	state state
	world int32 // the peer's rank in the world
	asked bool  // a Cancel frame is out
	waits Patience
	id    uint32
	want  int64  // bytes that a Data frame will bring, or that are to be pulled
	sid   uint32 // the sender's id of the message being received
	node  match.Node[*Op]
	next  *Op // in the queue of a peer
}

// Reset prepares a finished operation for another use.
func (o *Op) Reset() { *o = Op{} }

// World returns the world rank of the operation's peer, and -1 before a
// receive from any source has matched.
func (o *Op) World() int { return int(o.world) }

// ActionKind says what the caller has to do.
type ActionKind uint8

// The kinds of actions.
const (
	// SendFrame: give Header and Payload to the transport of Peer, in the order
	// of the actions for that peer. When Op is not nil, it is done once the
	// transport has taken the frame.
	SendFrame ActionKind = 1 + iota
	// SendData: give Header and Payload to the transport with the token
	// Header.Reply, in the same order. Report Sent.
	SendData
	// SendCTS: give Header, without a payload, to the transport of Peer, in the same
	// order. If the transport lets peers write to memory, put the region of Payload, where
	// the data will go, into Header first, and report Exposed.
	SendCTS
	// Pull: have the transport read Region of Peer into Payload. Report Pulled.
	Pull
)

// Action is what the core wants done.
type Action struct {
	Kind    ActionKind
	Peer    int32 // world rank
	Header  wire.Header
	Payload []byte
	Region  wire.Region
	Op      *Op
}

// Config describes the process that a Core speaks for.
type Config struct {
	Rank, Size int
	Window     int64 // bytes of credit for each peer, the same on all ranks
	// CallText says in words what a rank called, for the error when ranks disagree. May be nil.
	CallText func(*wire.Signature) string
}

// messageCost is what an unexpected message costs beside its payload.
const messageCost = 64

// Core is the state of one rank. It is not safe for concurrent use.
type Core struct {
	rank     int32
	window   int64
	callText func(*wire.Signature) string
	peers    []peer
	absent   int        // peers that are gone
	comms    []commSlot // by index in the context id
	newest   uint64     // generation that was opened here, counted without wrapping
	ops      table
	early    []*Message // for contexts that are not open here yet
	free     messagePool

	// Out are the actions to carry out, and Done the operations that are
	// finished. The caller takes both after each event and calls Taken.
	Out  []Action
	Done []*Op

	Stats Stats
}

// Stats counts what a Core has seen.
type Stats struct {
	Eager, Rendezvous    uint64 // messages sent
	Unexpected           uint64 // messages that arrived before their receive
	UnexpectedBytes      int64  // held now
	UnexpectedBytesMax   int64
	Duplicates, Stale    uint64 // frames dropped
	CreditStalls         uint64 // sends that had to wait for credit
	Pulled, Streamed     uint64 // rendezvous messages received
	LocalCopies          uint64 // messages from a rank to itself
	RefusedAfterRevoking uint64
}

type peer struct {
	eagerMax int32 // longest payload that goes eagerly
	pullMin  int32 // from this length on memory that can be pulled is not sent eagerly
	recvSeq  uint32
	credit   int64 // what may be sent there
	room     int64 // what the peer may send here
	owed     int64 // what it may send again, not told yet
	gone     error // lost, or left in good order
	queue    opQueue
}

// New returns the core of one rank, with no context open.
func New(cfg Config) *Core {
	if cfg.Window < messageCost {
		panic(fmt.Sprintf("proto: a window of %d bytes lets no message through, the least is %d", cfg.Window, messageCost))
	}
	c := &Core{rank: int32(cfg.Rank), window: cfg.Window, callText: cfg.CallText, peers: make([]peer, cfg.Size)}
	for i := range c.peers {
		c.peers[i].credit, c.peers[i].room = cfg.Window, cfg.Window
	}
	return c
}

// SetLimits tells which payloads go eagerly to a peer, and from which length
// on memory that the peer can pull is announced instead.
func (c *Core) SetLimits(peer, eagerMax, pullMin int) {
	c.peers[peer].eagerMax, c.peers[peer].pullMin = int32(eagerMax), int32(pullMin)
}

// Taken empties Out and Done, for the next event.
func (c *Core) Taken() {
	clear(c.Done)
	c.Out, c.Done = c.Out[:0], c.Done[:0]
}

// Gone returns why no message can come from a peer any more, or nil.
func (c *Core) Gone(peer int) error { return c.peers[peer].gone }

// emit appends an action and returns it for filling in.
func (c *Core) emit(kind ActionKind, peer int32) *Action {
	if len(c.Out) < cap(c.Out) {
		c.Out = c.Out[:len(c.Out)+1]
	} else {
		c.Out = append(c.Out, Action{})
	}
	a := &c.Out[len(c.Out)-1]
	a.Kind, a.Peer = kind, peer
	a.Payload, a.Op = nil, nil
	return a
}

// control emits a frame that carries no message.
func (c *Core) control(peer int32, kind wire.Kind, flags wire.Flags) *wire.Header {
	a := c.emit(SendFrame, peer)
	a.Header = wire.Header{Kind: kind, Flags: flags}
	return &a.Header
}

func (c *Core) finish(op *Op, err error) {
	if op.id != 0 {
		c.ops.remove(op.id)
		op.id = 0
	}
	op.state, op.Err = done, err
	c.Done = append(c.Done, op)
}

// opQueue is a first-in first-out queue of operations.
type opQueue struct{ head, tail *Op }

func (q *opQueue) push(op *Op) {
	op.next = nil
	if q.tail == nil {
		q.head = op
	} else {
		q.tail.next = op
	}
	q.tail = op
}

func (q *opQueue) pop() *Op {
	op := q.head
	q.head, op.next = op.next, nil
	if q.head == nil {
		q.tail = nil
	}
	return op
}

func (q *opQueue) remove(op *Op) {
	var prev *Op
	for o := q.head; o != nil; prev, o = o, o.next {
		if o != op {
			continue
		}
		if prev == nil {
			q.head = o.next
		} else {
			prev.next = o.next
		}
		if q.tail == o {
			q.tail = prev
		}
		o.next = nil
		return
	}
}

// table gives operations the ids by which peers refer to them. An id holds a
// generation, so that a late frame cannot hit the id's next user. Zero is no id.
type table struct {
	slots []slot
	free  []uint32
}

type slot struct {
	op  *Op
	gen uint32
}

const (
	indexBits = 22
	indexMask = 1<<indexBits - 1
)

func (t *table) add(op *Op) {
	var i uint32
	if n := len(t.free); n > 0 {
		i, t.free = t.free[n-1], t.free[:n-1]
	} else {
		i = uint32(len(t.slots))
		if i > indexMask {
			panic("proto: more than 4 million rendezvous operations at once")
		}
		t.slots = append(t.slots, slot{gen: 1})
	}
	t.slots[i].op = op
	op.id = i | t.slots[i].gen<<indexBits
}

func (t *table) get(id uint32) *Op {
	i := id & indexMask
	if int(i) >= len(t.slots) || t.slots[i].gen != id>>indexBits {
		return nil
	}
	return t.slots[i].op
}

func (t *table) remove(id uint32) {
	i := id & indexMask
	s := &t.slots[i]
	s.op = nil
	if s.gen++; s.gen == 1<<(32-indexBits) {
		s.gen = 1
	}
	t.free = append(t.free, i)
}

// live returns the operations in the table, for the rare events that concern
// all of them.
func (t *table) live() []*Op {
	var ops []*Op
	for _, s := range t.slots {
		if s.op != nil {
			ops = append(ops, s.op)
		}
	}
	return ops
}
