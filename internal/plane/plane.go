// Package plane is the control plane between the launcher of a job and its
// agents, of which there is one on each other host. It carries frames whose
// contents belong to package job, and never user data.
//
// # Vocabulary
//
// A [Root] is the launcher's end, a [Member] an agent's. A member is known by a name, the
// one that its host has in the job. A link joins the two; its frames arrive whole, in order,
// once, and from who they claim to be from, or the link is down.
//
// # The life of a member
//
//	expected   its agent has been started, or will be
//	up         it has proved that it knows the job's secret
//	down       its link has ended: with a goodbye, by a failure, in silence
//
// There is no way back from down: a host whose ranks were given up cannot come back
// with them.
//
// # What it promises
//
// A peer that is cut off is reported after Quiet, and a little, in which a process that
// was stopped itself catches up. Send never waits: what is queued for one member has a
// limit, and a member that does not take it is down. Who must send much waits for credit from
// the other end, which is package job's affair.
//
// A stranger costs a message and nothing else: port scanners, half-open connections,
// members of other jobs, and replays of recorded ones.
//
// A [Way] does this over one kind of connection: "tcp" in this package, others register themselves. Package
// planetest has the suite for all of them.
package plane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// TCP is the name of the way that this package has.
	TCP = "tcp"

	// Version is the version of the protocol, frames of package job included.
	Version = 2

	// DefaultBeat is how often an idle link says that it is there.
	DefaultBeat = 2 * time.Second
	// DefaultQuiet is how long a peer may be silent.
	DefaultQuiet = 8 * time.Second
	// SecondChance is what a peer gets after Quiet. A process that was stopped itself finds its
	// deadlines gone, and what the peer has said meanwhile not yet read.
	SecondChance = 2 * time.Second
	// DialWait and HandshakeWait bound how long a member tries an address, and how long a stranger
	// may take to prove itself.
	DialWait      = 5 * time.Second
	HandshakeWait = 5 * time.Second
	// GoodbyeWait bounds how long a link that closes may take to send what it has.
	GoodbyeWait = 2 * time.Second

	// MaxFrame is the longest frame in bytes.
	MaxFrame = 512 << 20
	// MaxQueue is how much may wait for one peer, in bytes, on top of one frame.
	MaxQueue = 64 << 20
)

// Handler hears what happens. Its methods are called on goroutines of the plane, for one
// member one call at a time, and may call Send. They must not wait for long.
type Handler interface {
	// Up: the member may be sent to.
	Up(member int)
	// Frame: the bytes belong to the handler.
	Frame(member int, b []byte)
	// Down: the last call for this member. The error is nil after a goodbye.
	Down(member int, err error)
	// Refused: somebody was sent away. Member is -1 unless it proved that it knows the secret.
	Refused(member int, err error)
}

// Config describes a plane. Both ends are given the same Job, Secret and Build.
type Config struct {
	Job    string
	Secret []byte
	Build  string // names the build of the program: ends of different builds part
	Beat   time.Duration
	Quiet  time.Duration
}

// Fill puts defaults in, and refuses what cannot be.
func (c *Config) Fill() error {
	if c.Beat == 0 {
		c.Beat = DefaultBeat
	}
	if c.Quiet == 0 {
		c.Quiet = DefaultQuiet
	}
	if len(c.Secret) < 16 {
		return errors.New("plane: the secret has fewer than 16 bytes")
	}
	return nil
}

// Root is the launcher's end.
type Root interface {
	// Port is the port that members dial.
	Port() int
	// Send queues a frame for a member. The bytes must not change any more. A
	// member that is not up takes nothing, which Down tells.
	Send(member int, b []byte)
	// Hold tells all members that this process will be silent until it sends again.
	Hold()
	// Drop takes a member down, with that error.
	Drop(member int, err error)
	// Close says goodbye to all members, sends what is queued, for a bounded time, and
	// waits for the plane's goroutines.
	Close() error
}

// Member is an agent's end. Its handler hears of the root as member 0.
type Member interface {
	Send(b []byte)
	Close() error
}

// Joiner connects a member to the first of some addresses that answers. It returns
// when the member is up, or with an error.
type Joiner func(ctx context.Context, cfg Config, name string, addrs []string, h Handler) (Member, error)

// Opener opens a root for members of these names.
type Opener func(cfg Config, addr string, members []string, h Handler) (Root, error)

// Way is one way to carry frames.
type Way struct {
	Listen Opener
	Join   Joiner
	Absent error // why this build does not have it, and how to build it; nil if it does
}

// ways has what was registered, by name.
var ways = struct {
	sync.Mutex
	m map[string]Way
}{m: map[string]Way{TCP: {Listen: listen, Join: join}}}

// Register adds a way. Packages call it when they are initialized; two ways of one name are
// a mistake in the program.
func Register(name string, w Way) {
	ways.Lock()
	defer ways.Unlock()
	if _, ok := ways.m[name]; ok {
		panic("plane: " + name + " is registered twice")
	}
	ways.m[name] = w
}

// Lookup returns a way, or why there is none of that name.
func Lookup(name string) (Way, error) {
	ways.Lock()
	defer ways.Unlock()
	w, ok := ways.m[name]
	if !ok {
		return Way{}, fmt.Errorf("there is no control plane %q; there are: %s", name, strings.Join(slices.Sorted(maps.Keys(ways.m)), ", "))
	}
	return w, w.Absent
}

// ErrFull ends a link whose peer does not take what it is sent: more than MaxQueue waits for it.
var ErrFull = errors.New("it does not take what it is sent")

// ErrSilent is the end of a link that nothing was heard from.
func ErrSilent(cfg *Config) error {
	return fmt.Errorf("nothing was heard from it for %v", cfg.Quiet+SecondChance)
}

// ErrClosed ends a link without a goodbye.
var ErrClosed = errors.New("its connection closed")

// ErrUnreached is why a member reached no root, with the reason for each address.
func ErrUnreached(why []string) error {
	return fmt.Errorf("weftrun cannot be reached: %s", strings.Join(why, "; "))
}

var errClosed = errors.New("this end was closed")
