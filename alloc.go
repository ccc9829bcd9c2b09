package weft

import (
	"fmt"
	"sync/atomic"
)

// Buf is memory from the arena, which the other ranks of the host can read: a
// large message from it is copied once, straight to its receiver. Its elements
// are zero at first. It must not be used after Free, nor after the world's Close.
type Buf[T any] struct {
	w     *World
	mem   []byte
	slice []T
	freed atomic.Bool
}

// maxBytes bounds a request to what an address space holds.
const maxBytes = 1 << 46

// Alloc returns memory for n elements from the world's arena. Where there is
// no arena, because all ranks are goroutines or messages go over TCP, it is
// ordinary memory.
func Alloc[T any](w *World, n int) (*Buf[T], error) {
	el := elemOf[T]()
	fail := func(err error, hint string) error {
		return &Error{Op: "Alloc", Rank: w.comm.rank, Peer: NoRank, Tag: NoRank, Want: -1, Got: -1,
			Elem: fmt.Sprintf("%d of %v", n, el.typ), Err: err, Hint: hint, CallSite: callSite(), lost: -1}
	}
	switch {
	case el.err != nil:
		return nil, fail(el.err, "")
	case n < 0:
		return nil, fail(ErrCount, "ask for a number of elements that is not negative")
	case n > maxBytes/el.size:
		return nil, fail(ErrMemory, "no computer has that much")
	case w.arena == nil || n == 0:
		return &Buf[T]{w: w, slice: make([]T, n)}, nil
	}
	mem, err := w.arena.Alloc(n * el.size)
	if err != nil {
		return nil, fail(fmt.Errorf("%w: %w", ErrMemory, err), "free what is not needed, or start the job with a larger --arena")
	}
	clear(mem)
	return &Buf[T]{w: w, mem: mem, slice: sliceOf[T](mem[:n*el.size])}, nil
}

// Slice returns the elements. It is the same slice at every call.
func (b *Buf[T]) Slice() []T { return b.slice }

// Free gives the memory back. No operation may use it any more.
func (b *Buf[T]) Free() error {
	if !b.freed.CompareAndSwap(false, true) {
		return &Error{Op: "Free", Peer: NoRank, Tag: NoRank, Want: -1, Got: -1, Err: ErrArgument, lost: -1,
			Hint: "this Buf was freed before", CallSite: callSite()}
	}
	b.slice = nil
	if b.mem == nil {
		return nil
	}
	return b.w.arena.Free(b.mem)
}
