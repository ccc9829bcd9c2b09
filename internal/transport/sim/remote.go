package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

// Endpoint returns the transport of a rank with what the Config says it can do
// beside moving frames: a transport.Mapper, since all ranks are in one process, or with
// Config.Remote a transport.Remote, or neither.
func (f *Fabric) Endpoint(rank int) transport.Transport {
	t := f.ranks[rank]
	switch {
	case f.cfg.Remote:
		f.remotes.Do(func() { f.grants = make(map[uint32]grant) })
		return &remote{Transport: t, fate: rand.New(rand.NewPCG(f.cfg.Seed, uint64(rank)<<1|1<<63))}
	case f.cfg.NoMap, f.cfg.NoPull:
		return t
	}
	return mapper{t}
}

// mapper is a Transport whose ranks touch each other's memory.
type mapper struct{ *Transport }

var _ transport.Mapper = mapper{}

// Map implements transport.Mapper.
func (t mapper) Map(peer int, r wire.Region, n int) ([]byte, error) { return memory(peer, r, n) }

// Reach implements transport.Mapper.
func (t mapper) Reach(mem []byte) (wire.Region, bool) { return t.Describe(mem) }

// slots is how many each rank has.
const slots = 4096

// Slots implements transport.Mapper.
func (t mapper) Slots() int { return slots }

// Slot implements transport.Mapper.
func (t mapper) Slot(rank, number int) ([]byte, error) {
	if uint(rank) >= uint(len(t.f.ranks)) || uint(number) >= slots {
		return nil, fmt.Errorf("sim: slot %d of rank %d: there are %d for each of %d ranks", number, rank, slots, len(t.f.ranks))
	}
	key := [2]int{rank, number}
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	if t.f.slots == nil {
		t.f.slots = make(map[[2]int][]byte)
	}
	if t.f.slots[key] == nil {
		t.f.slots[key] = make([]byte, transport.SlotSize)
	}
	return t.f.slots[key], nil
}

// Asleep implements transport.Mapper.
func (t mapper) Asleep(peer int) *atomic.Uint32 { return &t.f.ranks[peer].armed }

// Nudge implements transport.Mapper.
func (t mapper) Nudge(peer int) {
	if p := t.f.ranks[peer]; p.armed.Load() != 0 {
		p.parked.wake()
	}
}

// remote is a Transport with a card that works on windows. It is strict: it checks
// every bound and every right, writes a long Put from its end to its beginning, lets
// Gets and atomics overtake, and its atomics are none for anybody else.
type remote struct {
	*Transport
	fate  *rand.Rand
	queue []work // in the order of their calls
}

var _ transport.Remote = (*remote)(nil)

// grant is memory that a rank has opened.
type grant struct {
	region wire.Region
	owner  int
	mem    []byte
	access transport.Access
}

// work is an operation on a window.
type work struct {
	kind   workKind
	peer   int
	token  uint32
	buf    []byte // of put and get; what is left of it
	window []byte // what it works on
	a, b   uint64 // of atomics
	wait   int    // Polls until it may happen
}

type workKind uint8

const (
	workPut workKind = iota
	workGet
	workAdd
	workSwap
)

const (
	remoteDepth = 32      // operations under way at once, for each rank
	remotePiece = 8 << 10 // of a Put, in one Poll
)

// Grant implements transport.Remote.
func (t *remote) Grant(mem []byte, access transport.Access) (wire.Region, error) {
	t.f.atomics.Lock()
	defer t.f.atomics.Unlock()
	t.f.lastKey++
	r := wire.Region{Kind: uint32(t.rank), Key: t.f.lastKey, Addr: uint64(len(mem))}
	t.f.grants[r.Key] = grant{r, t.rank, mem, access}
	return r, nil
}

// Withdraw implements transport.Remote.
func (t *remote) Withdraw(r wire.Region) error {
	t.f.atomics.Lock()
	defer t.f.atomics.Unlock()
	if g, ok := t.f.grants[r.Key]; !ok || g.region != r || g.owner != t.rank {
		return fmt.Errorf("sim: rank %d withdraws %+v, which it has not granted", t.rank, r)
	}
	delete(t.f.grants, r.Key)
	return nil
}

// Put implements transport.Remote.
func (t *remote) Put(peer int, to wire.Region, off uint64, src []byte, token uint32) error {
	return t.start(to, off, uint64(len(src)), transport.Writable, work{kind: workPut, peer: peer, token: token, buf: src})
}

// Get implements transport.Remote.
func (t *remote) Get(peer int, from wire.Region, off uint64, dst []byte, token uint32) error {
	return t.start(from, off, uint64(len(dst)), transport.Readable, work{kind: workGet, peer: peer, token: token, buf: dst})
}

// FetchAdd implements transport.Remote.
func (t *remote) FetchAdd(peer int, at wire.Region, off, add uint64, token uint32) error {
	return t.start(at, off, 8, transport.Atomic, work{kind: workAdd, peer: peer, token: token, a: add})
}

// CompareSwap implements transport.Remote.
func (t *remote) CompareSwap(peer int, at wire.Region, off, expect, swap uint64, token uint32) error {
	return t.start(at, off, 8, transport.Atomic, work{kind: workSwap, peer: peer, token: token, a: expect, b: swap})
}

func (t *remote) start(r wire.Region, off, n uint64, need transport.Access, w work) error {
	if k := &t.links[w.peer]; k.state.Load() != linkUp {
		return k.err
	}
	if len(t.queue) >= remoteDepth || t.fate.Float64() < t.f.cfg.Again {
		t.room.add(t.rank) // nothing else would end a Wait
		return transport.ErrAgain
	}
	t.f.atomics.Lock()
	g, ok := t.f.grants[r.Key]
	t.f.atomics.Unlock()
	size := uint64(len(g.mem))
	switch {
	case !ok || g.region != r || g.owner != w.peer:
		return fmt.Errorf("sim: rank %d has not granted %+v", w.peer, r)
	case g.access&need == 0:
		return fmt.Errorf("sim: rank %d has granted %+v for access %b, not %b", w.peer, r, g.access, need)
	case off > size || n > size-off || need == transport.Atomic && off%8 != 0:
		return fmt.Errorf("sim: %d bytes at offset %d of a window of %d bytes of rank %d", n, off, size, w.peer)
	}
	w.window = g.mem[off : off+n]
	w.wait = t.fate.IntN(t.f.cfg.Delay + 1)
	t.queue = append(t.queue, w)
	return nil
}

// Send implements transport.Transport. A frame stays behind the Puts before it.
func (t *remote) Send(peer int, h *wire.Header, payload []byte) error {
	if t.puts(peer) {
		return transport.ErrAgain
	}
	return t.Transport.Send(peer, h, payload)
}

// SendBulk implements transport.Transport.
func (t *remote) SendBulk(peer int, h *wire.Header, payload []byte, token uint32) error {
	if t.puts(peer) {
		return transport.ErrAgain
	}
	return t.Transport.SendBulk(peer, h, payload, token)
}

func (t *remote) puts(peer int) bool {
	return slices.ContainsFunc(t.queue, func(w work) bool { return w.kind == workPut && w.peer == peer })
}

// Poll implements transport.Transport.
func (t *remote) Poll(s transport.Sink) int {
	n := 0
	if len(t.queue) > 0 {
		n = t.run(s.(transport.RemoteSink))
	}
	return n + t.Transport.Poll(s)
}

// Arm implements transport.Transport.
func (t *remote) Arm() bool { return len(t.queue) == 0 && t.Transport.Arm() }

// run does what is due.
func (t *remote) run(s transport.RemoteSink) (n int) {
	held := make(map[int]bool) // peers with an earlier Put
	left := t.queue[:0]
	for _, w := range t.queue {
		if t.links[w.peer].state.Load() != linkUp {
			continue // PeerDown is the end of it
		}
		w.wait--
		done := false
		if w.wait < 0 && !(w.kind == workPut && held[w.peer]) {
			old, over := t.do(&w)
			if done = over; done {
				s.Done(w.peer, w.token, old)
			}
			n++
		}
		if !done {
			held[w.peer] = held[w.peer] || w.kind == workPut
			left = append(left, w)
		}
	}
	clear(t.queue[len(left):])
	t.queue = left
	return n
}

// do does a piece of an operation. A link that goes down leaves it undone.
func (t *remote) do(w *work) (old uint64, over bool) {
	memory := t.memoryOf(w.peer)
	memory.Lock()
	defer memory.Unlock()
	if t.links[w.peer].state.Load() != linkUp {
		return 0, false
	}
	switch w.kind {
	case workPut:
		rest := max(len(w.buf)-remotePiece, 0)
		copy(w.window[rest:], w.buf[rest:])
		w.buf, w.window = w.buf[:rest], w.window[:rest]
		return 0, rest == 0
	case workGet:
		copy(w.buf, w.window)
		return 0, true
	}
	t.f.atomics.Lock()
	defer t.f.atomics.Unlock()
	p := word(w.window)
	old = *p
	switch {
	case w.kind == workAdd:
		*p += w.a
	case old == w.a:
		*p = w.b
	}
	return old, true
}

// cards are what the ranks of a fabric with Config.Remote share.
type cards struct {
	remotes sync.Once
	atomics sync.Mutex // held for an atomic, and for grants
	grants  map[uint32]grant
	lastKey uint32
}
