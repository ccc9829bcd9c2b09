package weft

import (
	"fmt"
	"hash/fnv"
	"sync"

	"github.com/weft-hpc/weft/collective"
)

// Integer, Float, Complex, Real and Number are the constraints of operators.
type (
	// Integer is every integer type.
	Integer interface {
		~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64
	}
	// Float is every floating-point type.
	Float interface{ ~float32 | ~float64 }
	// Complex is every complex type.
	Complex interface{ ~complex64 | ~complex128 }
	// Real has an order.
	Real interface{ Integer | Float }
	// Number has sums and products.
	Number interface{ Real | Complex }
)

// Op is a reduction operator on elements of type T. Make one with Sum, Prod,
// Min, Max, MinLoc, MaxLoc, BitAnd, BitOr, BitXor, And, Or, Xor, OpFunc or OpSlice;
// a wrong pair of operator and type does not compile.
type Op[T any] struct {
	name    string
	variant uint16         // hash of what has to agree between ranks
	raw     *collective.Op // nil without a constructor
}

// Name returns the operator's name.
func (o Op[T]) Name() string { return o.name }

// opVariants names the operators of this process by their hash, for errors.
var opVariants sync.Map // uint16 -> string

// opVariant hashes what the ranks' operators must have in common.
func opVariant(name string, commutative bool) uint16 {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%t", name, commutative)
	v := max(uint16(h.Sum32()^h.Sum32()>>16), 1)
	opVariants.LoadOrStore(v, name)
	return v
}

func opName(variant uint16) string {
	if name, ok := opVariants.Load(variant); ok {
		return name.(string)
	}
	return fmt.Sprintf("unknown here (%04x)", variant)
}

// rawOp makes the byte form of a kernel that combines inout = inout op in and
// for which the order of the two does not matter.
func rawOp[T any](commutative bool, left func(inout, in []T)) *collective.Op {
	k := bytesKernel(left)
	return &collective.Op{Size: elemOf[T]().size, Commutative: commutative, Left: k, Right: k}
}

func bytesKernel[T any](f func(inout, in []T)) func(inout, in []byte) {
	return func(inout, in []byte) { f(sliceOf[T](inout), sliceOf[T](in)) }
}
