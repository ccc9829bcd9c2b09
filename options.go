package weft

import (
	"context"

	"github.com/weft-hpc/weft/internal/transport/sim"
)

// Option changes how a world is set up.
type Option func(*config)

type config struct {
	transport  string // what --transport says otherwise
	unexpected int64
	eagerMax   int // below the transport's; 0: no limit
	rdmaRead   bool
	codec      Codec
	fabric     sim.Config
	noBoards   bool   // collectives go by messages
	windowVia  string // restricts windows to one way to work, if not empty
	nodes      []int  // of the ranks of Local; nil: all on one
	killed     func(kill func(rank int))
	cancel     context.CancelCauseFunc // of Main's context
}

// defaults of the options.
const (
	defaultUnexpected = 64 << 20
	minWindow         = 32 << 10
	maxWindow         = 1 << 20
)

func newConfig(opts []Option) *config {
	cfg := &config{unexpected: defaultUnexpected, codec: Gob{}}
	for _, o := range opts {
		o(cfg)
	}
	return cfg
}

// window divides the memory for unexpected messages among the peers.
func (cfg *config) window(size int) int64 {
	return min(max(cfg.unexpected/int64(max(size-1, 1)), minWindow), maxWindow)
}

// WithTransport asks for a transport by name, like weftrun's --transport,
// which it overrides: auto, shm, tcp or verbs. One that cannot be used is an error.
func WithTransport(name string) Option { return func(c *config) { c.transport = name } }

// WithRDMARead has the receiver of a large message from memory of Alloc fetch it by
// RDMA READ, instead of the sender write it. That saves an answer, and on most
// devices costs bandwidth. It matters to verbs only, and is the same on all ranks.
func WithRDMARead() Option { return func(c *config) { c.rdmaRead = true } }

// WithUnexpectedLimit bounds the bytes of messages that a rank holds before
// they are received; the default is 64 MiB. The limit is divided among the
// other ranks, each of which gets at least 32 KiB; a sender that has used up
// its part waits. All ranks must give the same limit.
func WithUnexpectedLimit(bytes int64) Option { return func(c *config) { c.unexpected = bytes } }

// WithCodec sets what SendValue and RecvValue encode with; the default is Gob.
func WithCodec(codec Codec) Option { return func(c *config) { c.codec = codec } }

// Faults are what the fabric between the ranks of Local does wrong. All come
// from Seed. The zero Faults are none.
type Faults struct {
	Seed      uint64
	Delay     int     // a message stays hidden for up to so many looks
	Duplicate float64 // probability that a frame comes twice
	Full      float64 // probability that the fabric has no room for a frame
	Stream    bool    // ranks cannot read each other's memory
	Eager     int     // longest message sent without asking; 0: the usual
}

// WithFaults makes Local run on a faulty fabric. Other worlds ignore it.
func WithFaults(f Faults) Option {
	return func(c *config) {
		c.fabric = sim.Config{Seed: f.Seed, Delay: f.Delay, Duplicate: f.Duplicate, Again: f.Full, NoPull: f.Stream}
		c.eagerMax = f.Eager
	}
}

// WithKill hands f, before the ranks of Local start, a function that ends a
// rank's connections as its death would. Other worlds ignore it.
func WithKill(f func(kill func(rank int))) Option { return func(c *config) { c.killed = f } }
