// Package arena allocates from one range of memory that lives outside the Go
// heap, so that a peer or a network card may touch what was allocated.
//
// The owner of an [Arena] is one rank; it may use it from any number of
// goroutines. Bookkeeping is kept in the owner's Go heap and not in the range:
// a peer that runs wild over the range cannot break the allocator.
//
// Memory is handed out first fit, lowest address first, so that the touched part
// stays small. Pages become real in growing steps, by a commit function, when
// an allocation first reaches them. So a host that is short of memory makes
// Alloc fail, instead of killing a rank that touches a page which does not exist.
// Pages that were made real stay real.
//
// The package does not map memory and does not clear it: what Alloc returns
// holds zeros when it was never used before, and old data otherwise.
package arena

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Alignments. A cache line for all, so that no two allocations share one; a page
// and a huge page where the waste is small beside the allocation.
const (
	Align     = 64
	pageAlign = 4 << 10
	hugeAlign = 2 << 20

	pageFrom = 64 << 10
	hugeFrom = 8 << 20
)

// Commit steps double from the first to the last as the arena grows.
const (
	firstStep = 1 << 20
	lastStep  = 64 << 20
)

// A Registrar is told of allocations of 64 KiB and more, which start on a page where
// there is room for that: for instance to make them known to a network card. Any goroutine
// may call it, for different allocations at once.
type Registrar interface {
	// Allocated is called when b was handed out, before its user gets it. b has its full capacity.
	Allocated(b []byte)
	// Freeing is called before b can be handed out again. An error keeps it allocated, and
	// is what Free returns.
	Freeing(b []byte) error
}

// Errors of Alloc and Free. They come wrapped in what was asked for.
var (
	ErrFull     = errors.New("arena full")
	ErrNotAlloc = errors.New("not an allocation of this arena, or freed before")
)

// extent is a free piece of the range.
type extent struct{ off, size int }

// Arena is an allocator over one range of memory.
type Arena struct {
	mem    []byte
	commit func(off, n int) error

	mu        sync.Mutex
	free      []extent    // by offset; no two touch
	live      map[int]int // offset to size of what is allocated
	committed int         // the pages below are real
	step      int         // the next commit
	inUse     int
	peak      int
	registrar Registrar // nil: none
}

// Stats is what an arena holds, in bytes but for Live.
type Stats struct {
	Size      int // the whole range
	Committed int // backed by memory
	InUse     int // allocated, rounding included
	Peak      int // highest InUse
	Largest   int // largest free piece, alignment aside
	Live      int // number of allocations
}

// New makes an allocator over mem, which starts on a page and stays mapped as
// long as anything allocated is in use. commit makes n bytes from off real, or
// says why it cannot; nil when they are real already.
func New(mem []byte, commit func(off, n int) error) *Arena {
	if commit == nil {
		commit = func(int, int) error { return nil }
	}
	a := &Arena{mem: mem, commit: commit, live: make(map[int]int), step: firstStep}
	if len(mem) > 0 {
		a.free = []extent{{0, len(mem)}}
	}
	return a
}

// Alloc returns n bytes that start at a multiple of [Align]; its capacity is n
// rounded up.
func (a *Arena) Alloc(n int) ([]byte, error) {
	if n < 0 {
		return nil, fmt.Errorf("arena: allocate %d bytes: negative", n)
	}
	b, r, err := a.alloc(n)
	if r != nil && err == nil && cap(b) >= pageFrom {
		r.Allocated(b[:cap(b)])
	}
	return b, err
}

func (a *Arena) alloc(n int) ([]byte, Registrar, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n > len(a.mem) {
		return nil, nil, a.full(n)
	}
	size := max(roundUp(n, Align), Align)
	align := Align
	switch {
	case n >= hugeFrom:
		align = hugeAlign
	case n >= pageFrom:
		align = pageAlign
	}
	i, off := a.find(size, align)
	if i < 0 && align > pageAlign {
		i, off = a.find(size, pageAlign)
	}
	if i < 0 && align > Align {
		i, off = a.find(size, Align)
	}
	if i < 0 {
		return nil, nil, a.full(n)
	}
	if err := a.grow(off + size); err != nil {
		return nil, nil, fmt.Errorf("arena: allocate %d bytes (%d in use of %d): %w", n, a.inUse, len(a.mem), err)
	}
	a.cut(i, off, size)
	a.live[off] = size
	a.inUse += size
	a.peak = max(a.peak, a.inUse)
	return a.mem[off : off+n : off+size], a.registrar, nil
}

// Free gives back what Alloc returned: the same slice, or a shorter one that
// starts at the same byte.
func (a *Arena) Free(b []byte) error {
	off, ok := a.Contains(b)
	if !ok {
		return fmt.Errorf("arena: free %d bytes: %w", len(b), ErrNotAlloc)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	size, ok := a.live[off]
	if r := a.registrar; ok && r != nil && size >= pageFrom && len(b) <= size {
		a.mu.Unlock() // it may take long
		err := r.Freeing(a.mem[off : off+size : off+size])
		a.mu.Lock()
		if err != nil {
			return fmt.Errorf("arena: free %d bytes at offset %d: %w", len(b), off, err)
		}
		size, ok = a.live[off] // somebody else may have freed it meanwhile
	}
	if !ok || len(b) > size {
		return fmt.Errorf("arena: free %d bytes at offset %d: %w", len(b), off, ErrNotAlloc)
	}
	delete(a.live, off)
	a.inUse -= size
	a.release(off, size)
	return nil
}

// Attach has r told of allocations from now on, and first of those that are in use. An arena has
// one registrar at a time.
func (a *Arena) Attach(r Registrar) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.registrar != nil {
		panic("arena: Attach of a second registrar")
	}
	a.registrar = r
	for off, size := range a.live {
		if size >= pageFrom {
			r.Allocated(a.mem[off : off+size : off+size])
		}
	}
}

// Detach ends that. The registrar may hear of one more allocation that is under way.
func (a *Arena) Detach() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.registrar = nil
}

// Stats reports the state of the arena.
func (a *Arena) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := Stats{Size: len(a.mem), Committed: a.committed, InUse: a.inUse, Peak: a.peak, Live: len(a.live)}
	for _, e := range a.free {
		s.Largest = max(s.Largest, e.size)
	}
	return s
}

func (a *Arena) full(n int) error {
	largest := 0
	for _, e := range a.free {
		largest = max(largest, e.size)
	}
	return fmt.Errorf("arena: allocate %d bytes: %d of %d in use, the largest free piece is %d; free buffers, or give each rank a larger arena: %w",
		n, a.inUse, len(a.mem), largest, ErrFull)
}

// find returns the first free extent that holds size bytes at a multiple of
// align, and the offset of those; -1 when there is none.
func (a *Arena) find(size, align int) (i, off int) {
	for i, e := range a.free {
		if off := roundUp(e.off, align); off+size <= e.off+e.size {
			return i, off
		}
	}
	return -1, 0
}

// grow makes the pages below end real: in large steps where there is room, in
// the smallest one that does where there is not.
func (a *Arena) grow(end int) error {
	if end <= a.committed {
		return nil
	}
	least := min(roundUp(end, pageAlign), len(a.mem)) - a.committed
	n := min(max(least, a.step), len(a.mem)-a.committed)
	err := a.commit(a.committed, n)
	if err != nil && n > least {
		n = least
		err = a.commit(a.committed, n)
	}
	if err != nil {
		return fmt.Errorf("commit %d bytes: %w", n, err)
	}
	a.committed += n
	a.step = min(2*a.step, lastStep)
	return nil
}

// cut takes [off, off+size) out of the free extent i, which contains it.
func (a *Arena) cut(i, off, size int) {
	e := a.free[i]
	head := extent{e.off, off - e.off}
	tail := extent{off + size, e.off + e.size - off - size}
	switch {
	case head.size > 0 && tail.size > 0:
		a.free[i] = head
		a.free = slices.Insert(a.free, i+1, tail)
	case head.size > 0:
		a.free[i] = head
	case tail.size > 0:
		a.free[i] = tail
	default:
		a.free = slices.Delete(a.free, i, i+1)
	}
}

// release puts [off, off+size) back and joins it with its free neighbours.
func (a *Arena) release(off, size int) {
	i, _ := slices.BinarySearchFunc(a.free, off, func(e extent, off int) int { return e.off - off })
	before := i > 0 && a.free[i-1].off+a.free[i-1].size == off
	after := i < len(a.free) && off+size == a.free[i].off
	switch {
	case before && after:
		a.free[i-1].size += size + a.free[i].size
		a.free = slices.Delete(a.free, i, i+1)
	case before:
		a.free[i-1].size += size
	case after:
		a.free[i] = extent{off, size + a.free[i].size}
	default:
		a.free = slices.Insert(a.free, i, extent{off, size})
	}
}

func roundUp(n, align int) int { return (n + align - 1) &^ (align - 1) }
