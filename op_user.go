package weft

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/weft-hpc/weft/collective"
)

// ErrOperator: an operator of the program panicked.
var ErrOperator = errors.New("operator panicked")

// OpFunc makes an operator of f, which must be associative. Unless it is
// commutative, it is applied in rank order: f(f(a0, a1), a2) and so on, up to
// association. f runs on the goroutine that called a blocking collective, and on
// whichever goroutine makes progress for a nonblocking one; it must not call weft.
// If f panics, the collective fails with ErrOperator, and ErrRevoked on the other
// ranks. (MPI 4.1, 6.9.5)
func OpFunc[T any](name string, commutative bool, f func(a, b T) T) Op[T] {
	if f == nil {
		panic("weft: OpFunc " + name + " without a function")
	}
	return userOp(name, commutative, func(inout, in []T) {
		for i := range inout {
			inout[i] = f(inout[i], in[i])
		}
	}, func(inout, in []T) {
		for i := range inout {
			inout[i] = f(in[i], inout[i])
		}
	})
}

// OpSlice is OpFunc for whole slices, which saves a call for each element: f
// computes inout[i] = inout[i] op in[i] for all i. The slices have the same length,
// and f does not keep them. Each call has some part of the vectors, so f must not
// depend on where an element lies.
func OpSlice[T any](name string, commutative bool, f func(inout, in []T)) Op[T] {
	if f == nil {
		panic("weft: OpSlice " + name + " without a function")
	}
	pieces := sync.Pool{New: func() any { return new([64]T) }}
	right := func(inout, in []T) {
		// in op inout is wanted in inout, and f leaves its result in its first: so
		// through a copy of in, as in is only read.
		piece := pieces.Get().(*[64]T)
		defer pieces.Put(piece)
		for len(inout) > 0 {
			n := copy(piece[:], in)
			f(piece[:n], inout[:n])
			copy(inout, piece[:n])
			inout, in = inout[n:], in[n:]
		}
	}
	if commutative {
		right = f
	}
	return userOp(name, commutative, f, right)
}

func userOp[T any](name string, commutative bool, left, right func(inout, in []T)) Op[T] {
	guard := func(f func(inout, in []T)) func(inout, in []byte) {
		k := bytesKernel(f)
		return func(inout, in []byte) {
			defer blameOperator(name)
			k(inout, in)
		}
	}
	op := &collective.Op{Size: elemOf[T]().size, Commutative: commutative, Left: guard(left), Right: guard(right)}
	return Op[T]{name, opVariant(name, commutative), op}
}

// operatorPanic is the panic of an operator of the program.
type operatorPanic struct {
	name  string
	value any
	where string
}

func (e *operatorPanic) Error() string {
	return fmt.Sprintf("%v: %s, at %s: %v", ErrOperator, e.name, e.where, e.value)
}

// Unwrap returns ErrOperator, and the panic's value if that is an error.
func (e *operatorPanic) Unwrap() []error {
	if err, ok := e.value.(error); ok {
		return []error{ErrOperator, err}
	}
	return []error{ErrOperator}
}

// blameOperator marks a panic as an operator's. It is deferred.
func blameOperator(name string) {
	if p := recover(); p != nil {
		panic(&operatorPanic{name, p, panicSite()})
	}
}

// recoverOperator turns an operator's panic into an error, and lets any other go
// on. It is deferred.
func recoverOperator(err *error) {
	switch p := recover().(type) {
	case nil:
	case *operatorPanic:
		*err = p
	default:
		panic(p)
	}
}

// panicSite returns where a panic that is being recovered was raised.
func panicSite() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	panicking := false
	for {
		f, more := frames.Next()
		switch {
		case strings.HasPrefix(f.Function, "runtime."):
			panicking = panicking || f.Function == "runtime.gopanic" || strings.HasPrefix(f.Function, "runtime.panic") || f.Function == "runtime.sigpanic"
		case panicking:
			return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		}
		if !more {
			return "an unknown place"
		}
	}
}
