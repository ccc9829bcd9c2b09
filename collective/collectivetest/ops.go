package collectivetest

import (
	"encoding/binary"
	"math"

	"github.com/weft-hpc/weft/collective"
)

// operator is an operator on single elements and a source of elements.
type operator struct {
	name        string
	size        int
	commutative bool
	// exact operators are associative to the bit, so a fold in rank order is
	// the one right answer.
	exact bool
	// combine sets dst = a op b, element by element; dst may be a or b.
	combine func(dst, a, b []byte)
	// element writes element i of a rank.
	element func(dst []byte, rank, i int)
	// sloppy operators use Left for Right: right in value, not in bits.
	sloppy bool
	// whole, if it is not nil, sets dst to the combination of operands, and combine is
	// right for two of these.
	whole func(dst []byte, operands [][]byte)
}

func (o operator) op() collective.Op {
	left := func(inout, in []byte) { o.combine(inout, inout, in) }
	right := func(inout, in []byte) { o.combine(inout, in, inout) }
	if o.sloppy {
		right = left
	}
	op := collective.Op{Size: o.size, Commutative: o.commutative, Left: left, Right: right}
	if o.whole != nil {
		op.Many = o.whole
		op.Whole = func(dst, operands []byte) {
			var all [][]byte
			for ; len(operands) > 0; operands = operands[len(dst):] {
				all = append(all, operands[:len(dst)])
			}
			o.whole(dst, all)
		}
	}
	return op
}

// plain is the simplest operator that an algorithm takes, or the entry point.
func plain(kind collective.Kind, name string) operator {
	if alg, err := collective.Lookup(kind, name); err == nil && alg.NeedsWhole {
		return weighted
	}
	return sumUint8
}

// each applies a function of single elements.
func each(size int, combine func(dst, a, b []byte)) func(dst, a, b []byte) {
	return func(dst, a, b []byte) {
		for i := 0; i < len(dst); i += size {
			combine(dst[i:i+size], a[i:i+size], b[i:i+size])
		}
	}
}

const prime = 65521

// hash spreads small numbers.
func hash(rank, i int) uint64 {
	x := uint64(rank)*0x9e3779b97f4a7c15 + uint64(i)*0xbf58476d1ce4e5b9 + 0x94d049bb133111eb
	x ^= x >> 31
	x *= 0xd6e8feb86659fd93
	return x ^ x>>29
}

var sumUint8 = operator{
	name: "sum-uint8", size: 1, commutative: true, exact: true,
	combine: func(dst, a, b []byte) {
		for i := range dst {
			dst[i] = a[i] + b[i]
		}
	},
	element: func(dst []byte, rank, i int) { dst[0] = byte(hash(rank, i)) },
}

// affine composes x -> ax+b modulo a prime: associative, not commutative.
var affine = operator{
	name: "affine", size: 4, exact: true,
	combine: each(4, func(dst, a, b []byte) {
		le := binary.LittleEndian
		a0, a1 := uint64(le.Uint16(a)), uint64(le.Uint16(a[2:]))
		b0, b1 := uint64(le.Uint16(b)), uint64(le.Uint16(b[2:]))
		le.PutUint16(dst, uint16(a0*b0%prime))
		le.PutUint16(dst[2:], uint16((a0*b1+a1)%prime))
	}),
	element: func(dst []byte, rank, i int) {
		h := hash(rank, i)
		binary.LittleEndian.PutUint16(dst, uint16(h%(prime-1)+1))
		binary.LittleEndian.PutUint16(dst[2:], uint16(h>>32%prime))
	},
}

// matrix is the product of 2x2 matrices modulo a prime: not commutative.
var matrix = operator{
	name: "matrix", size: 16, exact: true,
	combine: each(16, func(dst, a, b []byte) {
		var x, y [4]uint64
		for i := range 4 {
			x[i] = uint64(binary.LittleEndian.Uint32(a[4*i:]))
			y[i] = uint64(binary.LittleEndian.Uint32(b[4*i:]))
		}
		for i, v := range [4]uint64{
			x[0]*y[0] + x[1]*y[2], x[0]*y[1] + x[1]*y[3],
			x[2]*y[0] + x[3]*y[2], x[2]*y[1] + x[3]*y[3],
		} {
			binary.LittleEndian.PutUint32(dst[4*i:], uint32(v%prime))
		}
	}),
	element: func(dst []byte, rank, i int) {
		for j := range 4 {
			binary.LittleEndian.PutUint32(dst[4*j:], uint32(hash(rank, 4*i+j)%prime))
		}
	},
}

// sumFloat64 adds numbers whose sum depends much on the association.
var sumFloat64 = operator{
	name: "sum-float64", size: 8, commutative: true,
	combine: each(8, func(dst, a, b []byte) {
		le := binary.LittleEndian
		sum := math.Float64frombits(le.Uint64(a)) + math.Float64frombits(le.Uint64(b))
		le.PutUint64(dst, math.Float64bits(sum))
	}),
	element: func(dst []byte, rank, i int) {
		h := hash(rank, i)
		x := math.Ldexp(1+float64(h%1000)/1000, int(h>>10%120)-60)
		if h>>20%2 == 0 {
			x = -x
		}
		binary.LittleEndian.PutUint64(dst, math.Float64bits(x))
	},
}

// weighted is a0 + 2 a1 + 3 a2 and so on: it cannot be had from partial results.
var weighted = operator{
	name: "weighted", size: 4, exact: true,
	combine: func(dst, a, b []byte) { weigh(dst, [][]byte{a, b}) },
	element: func(dst []byte, rank, i int) { binary.LittleEndian.PutUint32(dst, uint32(hash(rank, i))) },
	whole:   weigh,
}

func weigh(dst []byte, operands [][]byte) {
	for i := 0; i < len(dst); i += 4 {
		var sum uint32
		for k, a := range operands {
			sum += uint32(k+1) * binary.LittleEndian.Uint32(a[i:])
		}
		binary.LittleEndian.PutUint32(dst[i:], sum)
	}
}

// sumNaN adds a different NaN on every rank: which one comes out depends on the
// order of the operands, and Right gives another one than it should.
var sumNaN = operator{
	name: "sum-nan", size: 8, commutative: true, sloppy: true,
	combine: func(dst, a, b []byte) { copy(dst, a) },
	element: func(dst []byte, rank, i int) {
		binary.LittleEndian.PutUint64(dst, math.Float64bits(math.NaN())|uint64(rank+1)<<8|uint64(i)<<16)
	},
}
