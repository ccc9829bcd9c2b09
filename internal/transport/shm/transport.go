package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/arena"
	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

// Config is what a rank knows about itself and its neighbours.
type Config struct {
	Index int   // this rank's place on the host, from 0
	World []int // rank in the world of each rank on the host, by index

	// Oversubscribed says that there are more ranks than cores. Then nobody spins
	// for somebody who may be waiting for the same core.
	Oversubscribed bool
}

// Transport is one rank's end of the segment. See package transport for who may
// call what.
type Transport struct {
	seg    *segment
	self   int     // own index
	world  []int   // index to rank in the world
	index  []int32 // rank in the world to index, -1 where a rank is not on this host
	arena  *arena.Arena
	yields bool // see Config.Oversubscribed

	// The own block.
	armed, bell, attention *atomic.Uint32

	direct *atomic.Uint32 // in the header: whether ranks can read each other's memory
	token  *uint64        // what they try to read, see cma_unsafe.go

	// Used by the caller that holds the engine's lock.
	attended uint32   // the attention word that was acted upon
	lanes    []inLane // by index
	active   []*inLane
	out      []outLane // by index
	blocked  []*outLane
	bulks    []*bulkOut // those with something queued
	helping  []int      // who wants help with a pull from this rank
	sent     []report
	errs     []downReport // not reported yet
	downs    []error      // by index: why nothing goes there any more
	busy     bool         // Poll has more to do than lanes
	hdr      wire.Header

	mu    sync.Mutex
	marks []downReport // from MarkDown, not seen by Poll yet

	dead  []atomic.Bool // by index: MarkDown was called
	users bellUsers
}

// report is a payload that is free again.
type report struct {
	peer  int
	token uint32
}

// downReport is a peer's end.
type downReport struct {
	index int
	err   error
}

var _ transport.Mapper = (*Transport)(nil)

// Open maps the segment in f as the rank that cfg says. f may be closed then.
func Open(f *os.File, cfg Config) (*Transport, error) {
	seg, err := mapSegment(f)
	if err != nil {
		return nil, err
	}
	t, err := attach(seg, cfg)
	if err != nil {
		return nil, errors.Join(err, seg.release())
	}
	return t, nil
}

// Local makes a segment for n ranks of this process, rank i at index i.
func Local(name string, n int, arenaBytes int64) ([]*Transport, error) {
	f, err := Create(name, n, arenaBytes)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	seg, err := mapSegment(f)
	if err != nil {
		return nil, err
	}
	defer seg.release()
	return attachAll(seg)
}

func attachAll(seg *segment) ([]*Transport, error) {
	world := make([]int, seg.ranks)
	for i := range world {
		world[i] = i
	}
	all := make([]*Transport, seg.ranks)
	for i := range all {
		seg.refs.Add(1)
		t, err := attach(seg, Config{Index: i, World: world, Oversubscribed: true})
		if err != nil {
			seg.refs.Add(-1)
			for _, t := range all[:i] {
				err = errors.Join(err, t.Close())
			}
			return nil, err
		}
		all[i] = t
	}
	return all, nil
}

// attach takes over one reference to seg, unless it fails.
func attach(seg *segment, cfg Config) (*Transport, error) {
	n := seg.ranks
	if len(cfg.World) != n {
		return nil, fmt.Errorf("shm: segment for %d ranks, but this rank was told of %d on its host", n, len(cfg.World))
	}
	if cfg.Index < 0 || cfg.Index >= n {
		return nil, fmt.Errorf("shm: index %d on a host with %d ranks", cfg.Index, n)
	}
	highest := -1
	for _, r := range cfg.World {
		highest = max(highest, r)
	}
	index := make([]int32, highest+1)
	for i := range index {
		index[i] = -1
	}
	for i, r := range cfg.World {
		if r < 0 || index[r] >= 0 {
			return nil, fmt.Errorf("shm: rank %d at index %d is negative or listed twice in %v", r, i, cfg.World)
		}
		index[r] = int32(i)
	}
	block := seg.block(cfg.Index)
	if pid := uint32(os.Getpid()); !at32(seg.mem, block+offAttached).CompareAndSwap(0, pid) {
		return nil, fmt.Errorf("shm: index %d (rank %d) was taken by process %d before process %d: each rank needs an index of its own",
			cfg.Index, cfg.World[cfg.Index], at32(seg.mem, block+offAttached).Load(), pid)
	}
	t := &Transport{
		seg: seg, self: cfg.Index, world: append([]int(nil), cfg.World...), index: index, yields: cfg.Oversubscribed,
		armed: at32(seg.mem, block+offArmed), bell: at32(seg.mem, block+offBell), attention: at32(seg.mem, block+offAttention),
		direct: at32(seg.mem, offDirect),
		lanes:  make([]inLane, n), active: make([]*inLane, 0, n), out: make([]outLane, n), blocked: make([]*outLane, 0, n),
		sent: make([]report, 0, 64), downs: make([]error, n), dead: make([]atomic.Bool, n),
	}
	for i := range n {
		t.lanes[i].init(seg, i, t.self)
		t.out[i].init(seg, t.self, i)
	}
	closeClaims(seg, t.self)
	start := seg.arenaAt(t.self)
	t.arena = arena.New(seg.mem[start:start+seg.arena:start+seg.arena], func(off, n int) error { return seg.commit(start+off, n) })
	t.publishToken()
	return t, nil
}

// Name returns "shm".
func (t *Transport) Name() string { return "shm" }

// MaxEager is the longest payload of one frame.
func (t *Transport) MaxEager() int { return t.seg.maxEager() }

// Arena is the memory that this rank allocates from and its peers can pull. It
// is unmapped by Close: nothing in it may be touched afterwards.
func (t *Transport) Arena() *arena.Arena { return t.arena }

// peer returns the index of a rank, or why nothing can be sent to it.
func (t *Transport) peer(rank int) (int, error) {
	if uint(rank) < uint(len(t.index)) {
		if i := t.index[rank]; i >= 0 && int(i) != t.self {
			return int(i), t.downs[i]
		}
	}
	return 0, fmt.Errorf("shm: rank %d is not another rank of this host, which has %v", rank, t.world)
}

// Poll moves frames, bulk payloads and pieces of pulls. What it returns counts
// pieces of payloads as well: as long as they move, nobody should go to sleep.
func (t *Transport) Poll(s transport.Sink) int {
	if a := t.attention.Load(); a != t.attended {
		t.attend(a)
	}
	n := 0
	for _, l := range t.active {
		n += t.drain(l, s)
	}
	if t.busy {
		n += t.work(s)
	}
	return n
}

// attend looks for what the attention word announced.
func (t *Transport) attend(word uint32) {
	t.attended = word
	// The dead first: what they did before they died is visible after this.
	t.mu.Lock()
	t.errs = append(t.errs, t.marks...)
	t.marks = t.marks[:0]
	t.mu.Unlock()
	block := t.seg.block(t.self)
	for base := 0; base < t.seg.ranks; base += 32 {
		for set := at32(t.seg.mem, block+offActive+base/8).Load(); set != 0; set &= set - 1 {
			if i := base + lowest(set); i < t.seg.ranks && i != t.self && !t.lanes[i].active && t.downs[i] == nil {
				t.lanes[i].active = true
				t.active = append(t.active, &t.lanes[i])
			}
		}
		for set := at32(t.seg.mem, block+offHelp+base/8).Swap(0); set != 0; set &= set - 1 {
			if i := base + lowest(set); i < t.seg.ranks && i != t.self {
				t.helping = append(t.helping, i)
				t.busy = true
			}
		}
	}
	t.busy = t.busy || len(t.errs) > 0
}

// work does what is seldom there to do, and finds out whether more is left.
func (t *Transport) work(s transport.Sink) int {
	n := t.bury(s)
	for i := 0; i < len(t.bulks); {
		n += t.push(t.bulks[i])
		if t.bulks[i].n == 0 {
			t.bulks[i].moves = false
			t.bulks = remove(t.bulks, i)
		} else {
			i++
		}
	}
	for _, r := range t.sent {
		s.Sent(r.peer, r.token)
	}
	n += len(t.sent)
	t.sent = t.sent[:0]
	for i := 0; i < len(t.helping); {
		m, more := t.help(t.helping[i])
		n += m
		if more {
			i++
		} else {
			t.helping = remove(t.helping, i)
		}
	}
	t.busy = len(t.errs) > 0 || len(t.bulks) > 0 || len(t.helping) > 0
	return n
}

// Close unmaps the segment for this rank.
func (t *Transport) Close() error {
	t.users.close(func() { t.ring(t.self) })
	return t.seg.release()
}

// remove deletes s[i] without keeping the order.
func remove[T any](s []T, i int) []T {
	var zero T
	last := len(s) - 1
	s[i], s[last] = s[last], zero
	return s[:last]
}
