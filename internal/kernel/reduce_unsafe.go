package kernel

import (
	"fmt"
	"math"
	"reflect"
	"unsafe"
)

// An isa is a set of instructions that kernels are written in.
type isa uint8

const (
	isaGo isa = iota
	isaAVX2
	isaAVX512
)

func (s isa) String() string { return [...]string{"Go", "AVX2", "AVX-512"}[s] }

// active is what kernels use. Tests set it, on processors that have it.
var active = vectors

// A class is a group of element types that share their assembly.
type class uint8

const (
	float64s class = iota
	float32s
	int64s
	int32s
	uint64s
	uint32s
	classes = iota
	noClass = class(classes)
)

// A shape says how elements of a kind are reduced.
type shape struct {
	kind  reflect.Kind
	size  int   // bytes in an element
	class class // noClass for those without assembly
}

const wordSize = int(unsafe.Sizeof(uintptr(0)))

var (
	wordClass  = [...]class{4: int32s, 8: int64s}[wordSize]
	uwordClass = [...]class{4: uint32s, 8: uint64s}[wordSize]
)

var shapes = [...]shape{
	reflect.Int:        {reflect.Int, wordSize, wordClass},
	reflect.Int8:       {reflect.Int8, 1, noClass},
	reflect.Int16:      {reflect.Int16, 2, noClass},
	reflect.Int32:      {reflect.Int32, 4, int32s},
	reflect.Int64:      {reflect.Int64, 8, int64s},
	reflect.Uint:       {reflect.Uint, wordSize, uwordClass},
	reflect.Uint8:      {reflect.Uint8, 1, noClass},
	reflect.Uint16:     {reflect.Uint16, 2, noClass},
	reflect.Uint32:     {reflect.Uint32, 4, uint32s},
	reflect.Uint64:     {reflect.Uint64, 8, uint64s},
	reflect.Uintptr:    {reflect.Uintptr, wordSize, uwordClass},
	reflect.Float32:    {reflect.Float32, 4, float32s},
	reflect.Float64:    {reflect.Float64, 8, float64s},
	reflect.Complex64:  {reflect.Complex64, 8, noClass},
	reflect.Complex128: {reflect.Complex128, 16, noClass},
}

// A route is how an operator is done on a kind: on so many elements of shape for each
// one, as complex numbers add like their parts.
type route struct {
	shape *shape
	parts int
}

var routes = func() (r [operators][len(shapes)]route) {
	for kind := range shapes {
		if shapes[kind].size == 0 {
			continue
		}
		complex := reflect.Kind(kind) == reflect.Complex64 || reflect.Kind(kind) == reflect.Complex128
		for op := range Operator(operators) {
			if !complex || op == OpProd {
				r[op][kind] = route{&shapes[kind], 1}
			}
		}
	}
	r[OpSum][reflect.Complex64] = route{&shapes[reflect.Float32], 2}
	r[OpSum][reflect.Complex128] = route{&shapes[reflect.Float64], 2}
	return r
}()

// find returns the route of op on kind, and panics if there is none.
func find(op Operator, kind reflect.Kind) *route {
	if op >= operators || int(kind) >= len(shapes) || routes[op][kind].shape == nil {
		undefined(op, kind)
	}
	return &routes[op][kind]
}

func undefined(op Operator, kind reflect.Kind) {
	panic(fmt.Sprintf("kernel: there is no %v of %v", op, kind))
}

const (
	// pieceBytes bounds the memory that one call of the assembly goes through: the
	// goroutine cannot be preempted in it, and the garbage collector waits. It is
	// some 10 us.
	pieceBytes = 256 << 10

	// groupMax is the number of sources that one call reads side by side: as many
	// streams as processors prefetch well.
	groupMax = 8

	// blockBytes is the length of a block where there are more sources than
	// that. Its intermediate value stays in the first-level cache.
	blockBytes = 4 << 10

	// lineBytes is the length of a line of the caches, and no less than a vector.
	lineBytes = 64
)

// streamBytes is the length from which on a destination that is no source is
// written past the caches, which saves reading it first. Shorter ones may
// still be in a cache when they are read next.
var streamBytes = 8 << 20

// Into sets dst[i] = a[i] op b[i] for every i of dst. a and b have the length
// of dst, or Into panics. dst may be a, b or both; it must not overlap them otherwise.
func Into[T Integer | Float | Complex](op Operator, dst, a, b []T) {
	if len(a) != len(dst) {
		refuse(op, len(dst), 0, len(a))
	}
	if len(b) != len(dst) {
		refuse(op, len(dst), 1, len(b))
	}
	r := find(op, reflect.TypeFor[T]().Kind())
	two(r.shape, op, unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(a)), unsafe.Pointer(unsafe.SliceData(b)), len(dst)*r.parts)
}

// Many sets dst[i] = srcs[0][i] op srcs[1][i] op ... from the left, reading every
// source and writing dst once. It copies a single source. Each
// source has the length of dst and there is at least one, or Many panics.
// dst may be one of the sources, or several; it must not overlap them otherwise.
// Sources may overlap each other. Many keeps neither dst nor srcs.
func Many[T Integer | Float | Complex](op Operator, dst []T, srcs [][]T) {
	for i := range srcs {
		if len(srcs[i]) != len(dst) {
			refuse(op, len(dst), i, len(srcs[i]))
		}
	}
	// Only the addresses in heads are used, and those are the same in any type.
	heads := unsafe.Slice((*[]byte)(unsafe.Pointer(unsafe.SliceData(srcs))), len(srcs))
	r := find(op, reflect.TypeFor[T]().Kind())
	many(r.shape, op, unsafe.Pointer(unsafe.SliceData(dst)), heads, len(dst)*r.parts)
}

// ManyBytes is Many for elements of a kind that are known as bytes. The
// length of dst must be a multiple of that of an element.
func ManyBytes(op Operator, kind reflect.Kind, dst []byte, srcs [][]byte) {
	r := find(op, kind)
	if size := r.shape.size * r.parts; len(dst)%size != 0 {
		panic(fmt.Sprintf("kernel: %v of %v: %d bytes are not elements of %d bytes", op, kind, len(dst), size))
	}
	for i := range srcs {
		if len(srcs[i]) != len(dst) {
			refuse(op, len(dst), i, len(srcs[i]))
		}
	}
	many(r.shape, op, unsafe.Pointer(unsafe.SliceData(dst)), srcs, len(dst)/r.shape.size)
}

// two reduces n elements of a and b into dst.
func two(s *shape, op Operator, dst, a, b unsafe.Pointer, n int) {
	srcs := [2]unsafe.Pointer{a, b}
	for n*s.size > pieceBytes/4 { // of three arrays
		if n*s.size >= streamBytes && dst != a && dst != b {
			many(s, op, dst, [][]byte{unsafe.Slice((*byte)(a), n*s.size), unsafe.Slice((*byte)(b), n*s.size)}, n)
			return
		}
		piece := pieceBytes / 4 / s.size
		step(s, op, dst, &srcs[0], 2, piece, 0)
		n -= piece
		dst, srcs[0], srcs[1] = unsafe.Add(dst, piece*s.size), unsafe.Add(srcs[0], piece*s.size), unsafe.Add(srcs[1], piece*s.size)
	}
	if n > 0 {
		step(s, op, dst, &srcs[0], 2, n, 0)
	}
}

// many reduces n elements at each of heads, whose lengths do not count, into
// dst.
func many(s *shape, op Operator, dst unsafe.Pointer, heads [][]byte, n int) {
	k, group := len(heads), groupMax
	if active == isaGo || s.class == noClass {
		group = 2
	}
	switch {
	case k == 0:
		panic(fmt.Sprintf("kernel: %v of no sources", op))
	case n == 0:
		return
	case k == 1:
		copy(unsafe.Slice((*byte)(dst), n*s.size), unsafe.Slice(unsafe.SliceData(heads[0]), n*s.size))
		return
	}
	if head, ok := streams(s, dst, heads, n); ok {
		if head > 0 {
			some(s, op, dst, heads, group, 0, head, 0)
		}
		some(s, op, dst, heads, group, head, n, 1)
		return
	}
	some(s, op, dst, heads, group, 0, n, 0)
}

// streams reports whether dst is to be written past the caches, and how many
// elements come before its first full line.
func streams(s *shape, dst unsafe.Pointer, heads [][]byte, n int) (head int, ok bool) {
	if n*s.size < streamBytes || active == isaGo || s.class == noClass || uintptr(dst)%uintptr(s.size) != 0 {
		return 0, false
	}
	for _, h := range heads {
		if unsafe.Pointer(unsafe.SliceData(h)) == dst {
			return 0, false
		}
	}
	return min(int(-uintptr(dst)%lineBytes)/s.size, n), true
}

// some reduces elements from to end.
func some(s *shape, op Operator, dst unsafe.Pointer, heads [][]byte, group, from, end, stream int) {
	k := len(heads)
	if k > group {
		blocks(s, op, dst, heads, group, from, end, stream)
		return
	}
	var srcs [groupMax]unsafe.Pointer
	piece := pieceBytes / (k + 1) / lineBytes * lineBytes / s.size
	for at := from; at < end; at += piece {
		gather(srcs[:k], heads, at*s.size)
		step(s, op, unsafe.Add(dst, at*s.size), &srcs[0], k, min(piece, end-at), stream)
	}
}

// blocks is some for more sources than one call of a kernel takes. The
// intermediate value of a block is kept aside, so that dst is written once
// and may be any source.
func blocks(s *shape, op Operator, dst unsafe.Pointer, heads [][]byte, group, from, end, stream int) {
	var (
		block [blockBytes / 8]uint64
		srcs  [groupMax]unsafe.Pointer
	)
	value := unsafe.Pointer(&block)
	for most, at := blockBytes/s.size, from; at < end; at += most {
		n, offset := min(most, end-at), at*s.size
		gather(srcs[:group], heads, offset)
		k, rest := group, heads[group:]
		for len(rest) > 0 {
			step(s, op, value, &srcs[0], k, n, 0)
			k = 1 + min(len(rest), group-1)
			srcs[0] = value
			gather(srcs[1:k], rest, offset)
			rest = rest[k-1:]
		}
		step(s, op, unsafe.Add(dst, offset), &srcs[0], k, n, stream)
	}
}

// gather fills places with those offset bytes into heads.
func gather(places []unsafe.Pointer, heads [][]byte, offset int) {
	for i := range places {
		places[i] = unsafe.Add(unsafe.Pointer(unsafe.SliceData(heads[i])), offset)
	}
}

// step reduces the first k sources, of n elements each, into dst. Without
// assembly k is 2. n is not 0. stream is 1 for writing past the caches.
func step(s *shape, op Operator, dst unsafe.Pointer, srcs *unsafe.Pointer, k, n, stream int) {
	if s.class != noClass {
		switch active {
		case isaAVX512:
			runAVX512(op, s.class, dst, srcs, k, n, stream)
			return
		case isaAVX2:
			runAVX2(op, s.class, dst, srcs, k, n, stream)
			return
		}
	}
	pair := (*[2]unsafe.Pointer)(unsafe.Pointer(srcs))
	twin(s.kind, op, dst, pair[0], pair[1], n)
}

func twin(kind reflect.Kind, op Operator, dst, a, b unsafe.Pointer, n int) {
	switch kind {
	case reflect.Int:
		twinInteger(op, elems[int](dst, n), elems[int](a, n), elems[int](b, n))
	case reflect.Int8:
		twinInteger(op, elems[int8](dst, n), elems[int8](a, n), elems[int8](b, n))
	case reflect.Int16:
		twinInteger(op, elems[int16](dst, n), elems[int16](a, n), elems[int16](b, n))
	case reflect.Int32:
		twinInteger(op, elems[int32](dst, n), elems[int32](a, n), elems[int32](b, n))
	case reflect.Int64:
		twinInteger(op, elems[int64](dst, n), elems[int64](a, n), elems[int64](b, n))
	case reflect.Uint:
		twinInteger(op, elems[uint](dst, n), elems[uint](a, n), elems[uint](b, n))
	case reflect.Uint8:
		twinInteger(op, elems[uint8](dst, n), elems[uint8](a, n), elems[uint8](b, n))
	case reflect.Uint16:
		twinInteger(op, elems[uint16](dst, n), elems[uint16](a, n), elems[uint16](b, n))
	case reflect.Uint32:
		twinInteger(op, elems[uint32](dst, n), elems[uint32](a, n), elems[uint32](b, n))
	case reflect.Uint64:
		twinInteger(op, elems[uint64](dst, n), elems[uint64](a, n), elems[uint64](b, n))
	case reflect.Uintptr:
		twinInteger(op, elems[uintptr](dst, n), elems[uintptr](a, n), elems[uintptr](b, n))
	case reflect.Float32:
		twinFloat(op, math.Float32frombits(nanBits32), elems[float32](dst, n), elems[float32](a, n), elems[float32](b, n))
	case reflect.Float64:
		twinFloat(op, math.Float64frombits(nanBits64), elems[float64](dst, n), elems[float64](a, n), elems[float64](b, n))
	case reflect.Complex64:
		twinProdComplex64(elems[complex64](dst, n), elems[complex64](a, n), elems[complex64](b, n))
	case reflect.Complex128:
		twinProdComplex128(elems[complex128](dst, n), elems[complex128](a, n), elems[complex128](b, n))
	}
}

func elems[T any](p unsafe.Pointer, n int) []T { return unsafe.Slice((*T)(p), n) }
