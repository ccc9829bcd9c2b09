// Package sim is a transport between ranks that live in one process, as
// goroutines. With a zero [Config] it is a perfect and fast fabric, which is
// what weft.Local runs on; with faults in the Config it is the fabric that
// tests of everything above it run on.
//
// # Vocabulary
//
// A [Fabric] joins n ranks. A lane is the queue of one ordered pair of ranks;
// it is made on the first Send of that pair and holds encoded frames in a ring
// of bytes, so that a header goes through the same encoding as on a real wire.
// A link is the two lanes between two ranks, up or down.
//
// # Ownership
//
// A lane has one writer, the goroutine that drives the sender, and one reader,
// the goroutine that drives the receiver; they share nothing but the ring's two
// positions and no lock. What a rank must look at is announced in bit sets, a
// bit for each peer, so that a Poll costs the same however many idle peers
// there are.
//
// A receiver reads the memory of a sender in two places, the payload of SendBulk and
// Pull. Both hold the memory lock of that sender's link, and the sender takes it
// once before it reports PeerDown: after that report nobody reads its buffers.
//
// # Faults
//
// All faults come from Config.Seed by way of generators that belong to one lane
// each, so that the k-th frame of a lane meets the same fate in every run that
// makes the same calls. Package wefttest prints the seed when a test fails. Cut
// and Kill break links at run time. A fault never makes anybody wait for
// something that does not come: Arm refuses while a delayed frame is pending.
//
// What it does not do: lose, corrupt or reorder the frames of one lane. No
// transport may.
package sim

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/wire"
)

// Config says what a fabric does. The zero Config is a perfect fabric.
type Config struct {
	// Seed decides all the faults below.
	Seed uint64
	// Delay hides each frame from 0 to Delay of its receiver's Polls, counted
	// from when it is first in its lane.
	Delay int
	// Duplicate is the probability that a frame other than Data is delivered
	// twice in a row.
	Duplicate float64
	// Again is the probability that Send and SendBulk return ErrAgain for no
	// reason.
	Again float64
	// NoPull makes Describe say that no memory can be reached, so that large
	// messages are streamed.
	NoPull bool
	// SmallEager is what MaxEager returns, when it is not zero.
	SmallEager int
	// NoMap, or NoPull, makes Endpoint return no transport.Mapper, and Remote a transport.Remote
	// instead, whose operations Delay and Again concern too.
	NoMap, Remote bool
}

// defaultEager is the longest eager payload: beyond it, one copy out of the
// sender's memory beats two through the ring.
const defaultEager = 8 << 10

// Fabric joins the ranks of one process.
type Fabric struct {
	cfg   Config
	eager int
	ranks []*Transport

	mu    sync.Mutex        // serialises changes of links, and
	slots map[[2]int][]byte // by rank and number

	cards
}

// New makes a fabric of n ranks.
func New(n int, cfg Config) *Fabric {
	switch {
	case n < 1:
		panic(fmt.Sprintf("sim: a fabric of %d ranks", n))
	case cfg.Delay < 0 || cfg.SmallEager < 0 || cfg.Duplicate < 0 || cfg.Duplicate > 1 || cfg.Again < 0 || cfg.Again >= 1:
		panic(fmt.Sprintf("sim: config out of range: %+v", cfg))
	}
	f := &Fabric{cfg: cfg, eager: defaultEager, ranks: make([]*Transport, n)}
	if cfg.SmallEager > 0 {
		f.eager = cfg.SmallEager
	}
	for r := range f.ranks {
		f.ranks[r] = newTransport(f, r, n)
	}
	return f
}

// Transport returns the transport of a rank, always the same one.
func (f *Fabric) Transport(rank int) *Transport { return f.ranks[rank] }

// Cut breaks the link between two ranks, as a pulled cable does: what is under
// way is lost, and both see PeerDown.
func (f *Fabric) Cut(a, b int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut(a, b, "the link was cut")
}

// Kill breaks every link of a rank, as the end of its process does: all others
// see it go down, and it sees them go.
func (f *Fabric) Kill(rank int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for peer := range f.ranks {
		if peer != rank {
			f.cut(rank, peer, fmt.Sprintf("rank %d was killed", rank))
		}
	}
}

// MarkDown implements transport.Transport.
func (t *Transport) MarkDown(peer int, err error) {
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	t.f.cut(t.rank, peer, err.Error())
}

func (f *Fabric) cut(a, b int, why string) {
	f.setLink(a, b, linkCut, why)
	f.setLink(b, a, linkCut, why)
	f.ranks[a].announce(f.ranks[a].changed, b)
	f.ranks[b].announce(f.ranks[b].changed, a)
}

// hangUp is what Close does to a link: the peer still gets the frames that are
// in its lane, but may not touch the memory of the closed rank any more.
func (f *Fabric) hangUp(rank int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for peer, p := range f.ranks {
		f.setLink(rank, peer, linkCut, "this rank closed its transport")
		if peer != rank {
			f.setLink(peer, rank, linkClosing, fmt.Sprintf("rank %d closed its transport", rank))
			p.announce(p.changed, rank)
		}
	}
}

// setLink moves the state of rank's link to peer forward, never back.
func (f *Fabric) setLink(rank, peer int, state uint32, why string) {
	l := &f.ranks[rank].links[peer]
	if l.state.Load() >= state {
		return
	}
	if l.err == nil {
		l.err = fmt.Errorf("sim: no link from rank %d to rank %d: %s", rank, peer, why)
	}
	l.state.Store(state)
}

// States of a link, as one of its ends sees it. They only grow.
const (
	linkUp      uint32 = iota
	linkClosing        // the peer closed: read the frames in its lane, then report
	linkCut            // read nothing any more
	linkDown           // PeerDown was reported
)

// link is what a rank knows of its connection to a peer.
type link struct {
	state atomic.Uint32
	err   error // written once, before state leaves linkUp, under Fabric.mu

	// memory is held by the peer while it reads memory of this rank.
	memory sync.Mutex
}

// bitset is a set of peers that others add to and its owner takes from.
type bitset []atomic.Uint64

func newBitset(n int) bitset { return make(bitset, (n+63)/64) }

// add is called after what it announces was published: when the bit is set
// already its owner has yet to take it, and will see what was published.
func (s bitset) add(i int) {
	w, b := &s[i>>6], uint64(1)<<(i&63)
	if w.Load()&b == 0 {
		w.Or(b)
	}
}

func (s bitset) take(w int) uint64 {
	if s[w].Load() == 0 {
		return 0
	}
	return s[w].Swap(0)
}

func (s bitset) empty() bool {
	for w := range s {
		if s[w].Load() != 0 {
			return false
		}
	}
	return true
}

// next returns the lowest member of a word of a set, and the word without it.
func next(word uint64, w int) (peer int, rest uint64) {
	return w<<6 + bits.TrailingZeros64(word), word & (word - 1)
}

func errTooLong(h *wire.Header, n, limit int) error {
	return fmt.Errorf("sim: %v frame of %d bytes, Send takes up to %d", h.Kind, n, limit)
}
