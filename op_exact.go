package weft

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	"github.com/weft-hpc/weft/internal/exact"
	"github.com/weft-hpc/weft/internal/kernel"
)

// Exact is a sum of floats, and of products of floats, that has not been rounded.
// Its terms may come in any order and in any groups, from any number of ranks: the
// Value is the same, to the bit. It is an element for messages and collectives,
// of 544 bytes; MergeExact is its operator. The zero Exact is the sum of nothing.
//
// The Value is the float next to the true sum, the even one of two that are equally
// near. Nothing overflows or underflows on the way: it is infinite only if the true
// sum is too large, or if a term was infinite. A NaN among the terms, infinities
// of both signs, and a product of zero and infinity give NaN, always the same
// one. A sum that is zero is +0, but -0 if there are terms and all are -0.
//
// ExactTotal and ExactDot are short forms for one sum over all ranks.
type Exact[T Float] struct{ sum exact.Sum }

// Add adds terms, some 3 ns each. (go test -run - -bench Slice ./internal/exact)
func (e *Exact[T]) Add(terms ...T) { exact.Add(&e.sum, terms) }

// AddDot adds x[i]*y[i] for all i, without rounding the products. It is
// ErrCount if one is longer than the other.
func (e *Exact[T]) AddDot(x, y []T) error {
	if err := sameLength(x, y); err != nil {
		return err
	}
	exact.AddProducts(&e.sum, x, y)
	return nil
}

func sameLength[T any](x, y []T) error {
	if len(x) != len(y) {
		return fmt.Errorf("%w: a dot product of %d and %d elements", ErrCount, len(x), len(y))
	}
	return nil
}

// Merge adds the terms of other.
func (e *Exact[T]) Merge(other *Exact[T]) { e.sum.Merge(&other.sum) }

// Value returns the sum, rounded once.
func (e *Exact[T]) Value() T { return exact.Round[T](&e.sum) }

// MergeExact merges sums that were not rounded. Unlike that of Sum[float64], its result
// depends on nothing but the terms.
func MergeExact[T Float]() Op[Exact[T]] {
	if reflect.TypeFor[T]().Kind() == reflect.Float32 {
		return Op[Exact[T]](mergeExact32)
	}
	return Op[Exact[T]](mergeExact64)
}

// An exact sum of float32 differs from one of float64 only in how it is rounded, but
// ranks are to agree about that.
var mergeExact32, mergeExact64 = newOp("exact sum of float32", mergeSums), newOp("exact sum of float64", mergeSums)

func mergeSums(inout, in []exact.Sum) {
	for i := range inout {
		inout[i].Merge(&in[i])
	}
}

// SumExact adds like Sum, but rounds once: each element of the result is the float
// next to the true sum of what the ranks give. So it has the same bits whichever
// rank gives which of the values. It does not undo roundings before that: where a rank
// adds up several values first, elements of type Exact are needed. The rules for
// values are those of Exact; but where there is one value only, it is passed on, and a NaN
// may keep its payload.
//
// More than two ranks are not combined in pairs but all at once, by algorithms of
// their own. That takes 2 ns for each value, and 20 ns where their exponents are far
// apart. (go test -run - -bench Elements ./internal/exact)
func SumExact[T Float]() Op[T] {
	switch any((*T)(nil)).(type) {
	case *float32:
		return *any(&sumExact32).(*Op[T])
	case *float64:
		return *any(&sumExact64).(*Op[T])
	}
	return newSumExact[T]()
}

var sumExact32, sumExact64 = newSumExact[float32](), newSumExact[float64]()

func newSumExact[T Float]() Op[T] {
	op := newOp("exact sum", kernel.Sum[T])
	op.raw.Many = func(dst []byte, sources [][]byte) {
		if len(sources) == 2 { // one addition is rounded once
			kernel.Into(kernel.OpSum, sliceOf[T](dst), sliceOf[T](sources[0]), sliceOf[T](sources[1]))
			return
		}
		exact.Elements(sliceOf[T](dst), len(sources), func(k int) []T { return sliceOf[T](sources[k]) })
	}
	op.raw.Whole = func(dst, operands []byte) {
		exact.Elements(sliceOf[T](dst), len(operands)/len(dst), func(k int) []T { return sliceOf[T](operands[k*len(dst) : (k+1)*len(dst)]) })
	}
	return op
}

// ExactTotal returns the sum of the elements of all ranks' parts, rounded once: the
// same bits however the elements are spread over any number of ranks, whose parts may
// have any lengths. The rules for values are those of Exact.
func ExactTotal[T Float](ctx context.Context, c *Comm, part []T, opts ...CollOption) (T, error) {
	sum := exactSums.Get().(*[1]exact.Sum)
	defer exactSums.Put(sum)
	sum[0] = exact.Sum{}
	exact.Add(&sum[0], part)
	return allreduceExact[T](ctx, c, "ExactTotal", sum[:], opts)
}

// ExactDot returns the sum of x[i]*y[i] over all elements of all ranks, rounded once;
// the products are not rounded either. It is ExactTotal otherwise. On each rank x and
// y have the same length.
func ExactDot[T Float](ctx context.Context, c *Comm, x, y []T, opts ...CollOption) (T, error) {
	if err := sameLength(x, y); err != nil {
		return 0, c.refuse(ctx, "ExactDot", c.errorf("ExactDot", err, "make y as long as x"))
	}
	sum := exactSums.Get().(*[1]exact.Sum)
	defer exactSums.Put(sum)
	sum[0] = exact.Sum{}
	exact.AddProducts(&sum[0], x, y)
	return allreduceExact[T](ctx, c, "ExactDot", sum[:], opts)
}

// exactSums are for the calls that sum on their own, which shall not allocate.
var exactSums = sync.Pool{New: func() any { return new([1]exact.Sum) }}

func allreduceExact[T Float](ctx context.Context, c *Comm, name string, sum []exact.Sum, opts []CollOption) (T, error) {
	var call collCall
	op := MergeExact[T]()
	c.allreduceCall(&call, name, elemOf[Exact[T]](), bytesOf(sum), bytesOf(sum), op.raw, op.variant, opts)
	if err := c.run(ctx, &call); err != nil {
		return 0, err
	}
	return exact.Round[T](&sum[0]), nil
}
