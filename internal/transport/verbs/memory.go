package verbs

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/weft-hpc/weft/internal/arena"
	"github.com/weft-hpc/weft/rdma"
)

// registry holds the registrations of arena blocks, each with keys that reach no further
// than the block. It is an arena.Registrar, so any goroutine calls it.
type registry struct {
	t     *Transport
	arena *arena.Arena

	mu     sync.Mutex
	blocks []*block // by address
	closed bool
	told   bool
}

// block is a registered allocation.
type block struct {
	addr uint64
	n    int
	uses int // transfers, exposures and windows that need it; guarded by registry.mu
	mrs  [maxRails]rdma.MR
}

// lease is the right to use memory with a device, until it is given up.
type lease struct {
	b      *block
	mrs    [maxRails]rdma.MR // of this lease alone
	pinner *runtime.Pinner
}

func (l *lease) mr(rail int) rdma.MR {
	if l.b != nil {
		return l.b.mrs[rail]
	}
	return l.mrs[rail]
}

func (l *lease) lkey(rail int) uint32 { return l.mr(rail).LKey() }
func (l *lease) rkey(rail int) uint32 { return l.mr(rail).RKey() }

// Allocated implements arena.Registrar. A block that cannot be registered is used all the
// same, through send buffers and receives.
func (g *registry) Allocated(b []byte) {
	access := rdma.LocalWrite | rdma.RemoteWrite
	if g.t.cfg.Read {
		access |= rdma.RemoteRead
	}
	k := &block{addr: addressOf(b), n: len(b)}
	err := g.t.register(&k.mrs, b, access, len(g.t.rails))
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		if !g.told {
			g.told = true
			g.t.notice("verbs: rank %d cannot register %d bytes of arena memory, messages in it are copied: %v", g.t.cfg.Rank, len(b), err)
		}
		return
	}
	if g.closed { // the arena was detached meanwhile
		if err := closeAll(&k.mrs); err != nil && !gone(err) {
			g.t.notice("%v", err)
		}
		return
	}
	i, _ := g.find(k.addr)
	g.blocks = slices.Insert(g.blocks, i, k)
}

// Freeing implements arena.Registrar.
func (g *registry) Freeing(b []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	i, ok := g.find(addressOf(b))
	if !ok {
		return nil
	}
	k := g.blocks[i]
	if k.uses > 0 {
		return fmt.Errorf("verbs: %d operations still use the %d bytes; wait for them first: %w", k.uses, k.n, errInUse)
	}
	g.blocks = slices.Delete(g.blocks, i, i+1)
	return closeAll(&k.mrs)
}

var errInUse = errors.New("in use")

// find returns the place of the block that starts at addr.
func (g *registry) find(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(g.blocks, addr, func(k *block, addr uint64) int { return cmp.Compare(k.addr, addr) })
}

// use returns the block that b lies in as a whole, and counts the use.
func (g *registry) use(b []byte) *block {
	addr := addressOf(b)
	g.mu.Lock()
	defer g.mu.Unlock()
	i, ok := g.find(addr)
	if !ok {
		i--
	}
	if i < 0 {
		return nil
	}
	k := g.blocks[i]
	if off := addr - k.addr; off > uint64(k.n) || uint64(len(b)) > uint64(k.n)-off {
		return nil
	}
	k.uses++
	return k
}

func (g *registry) done(k *block) {
	g.mu.Lock()
	k.uses--
	g.mu.Unlock()
}

// close takes all registrations back.
func (g *registry) close() error {
	if g.arena != nil {
		g.arena.Detach()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	var errs []error
	for _, k := range g.blocks {
		if err := closeAll(&k.mrs); err != nil && !gone(err) {
			errs = append(errs, err)
		}
	}
	g.blocks = nil
	return errors.Join(errs...)
}

// register registers b with the first rails.
func (t *Transport) register(mrs *[maxRails]rdma.MR, b []byte, access rdma.Access, rails int) error {
	for i, r := range t.rails[:rails] {
		mr, err := r.pd.RegisterMemory(b, access)
		if err != nil {
			return errors.Join(err, closeAll(mrs))
		}
		mrs[i] = mr
	}
	return nil
}

func closeAll(mrs *[maxRails]rdma.MR) error {
	var errs []error
	for i, mr := range mrs {
		if mr != nil {
			errs = append(errs, mr.Close())
			mrs[i] = nil
		}
	}
	return errors.Join(errs...)
}

// borrow makes b known to the devices of the first rails. False means that b has to be
// copied: it is short, or cannot be registered.
func (t *Transport) borrow(l *lease, b []byte, access rdma.Access, rails int) bool {
	if l.b = t.memory.use(b); l.b != nil {
		return true
	}
	if len(b) < t.tune.register {
		return false
	}
	p := new(runtime.Pinner)
	p.Pin(&b[0])
	if err := t.register(&l.mrs, b, access, rails); err != nil {
		p.Unpin()
		t.stats.Fallbacks++
		t.noticeOnce(&t.told.register, "verbs: rank %d cannot register a message of %d bytes, it is copied instead: %v", t.cfg.Rank, len(b), err)
		return false
	}
	l.pinner = p
	t.stats.Registrations++
	return true
}

// giveUp ends a lease. The devices are done with the memory. The order matters: Go gives the pages
// of memory that is not pinned back to the kernel, also under a registration.
func (t *Transport) giveUp(l *lease) {
	if l.b != nil {
		t.memory.done(l.b)
		l.b = nil
		return
	}
	if l.pinner == nil {
		return
	}
	if err := closeAll(&l.mrs); err != nil && !gone(err) {
		// Its pages stay the device's for good, so they must not become anybody else's.
		leaked.Lock()
		leaked.pins = append(leaked.pins, l.pinner)
		leaked.Unlock()
		t.notice("verbs: rank %d: memory of a message is kept: %v", t.cfg.Rank, err)
	} else {
		l.pinner.Unpin()
	}
	l.pinner = nil
}

// leaked pins what a device would not let go of.
var leaked struct {
	sync.Mutex
	pins []*runtime.Pinner
}

// gone says that an error is the end of the device, which then holds nothing any more.
func gone(err error) bool {
	return errors.Is(err, rdma.ErrDeviceFatal) || errors.Is(err, rdma.ErrClosed)
}
