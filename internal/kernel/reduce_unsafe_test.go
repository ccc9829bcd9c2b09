package kernel

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// kinds are all that have reductions; those with assembly come first.
var kinds = []reflect.Kind{
	reflect.Float64, reflect.Float32, reflect.Int64, reflect.Int32, reflect.Uint64, reflect.Uint32, reflect.Int, reflect.Uint, reflect.Uintptr,
	reflect.Complex128, reflect.Complex64, reflect.Int8, reflect.Int16, reflect.Uint8, reflect.Uint16,
}

func isComplex(kind reflect.Kind) bool {
	return kind == reflect.Complex64 || kind == reflect.Complex128
}

// defined reports whether op is one on kind.
func defined(op Operator, kind reflect.Kind) bool {
	return op == OpSum || op == OpProd || !isComplex(kind)
}

// specials64 and specials32 are the bits of what goes wrong first: zeros, ones,
// infinities, denormals, quiet and signalling NaNs of both signs with payloads,
// which are large, small and negative whole numbers at the same time.
var specials64 = []uint64{
	0, 1 << 63, 1, 1<<63 | 1, 0x000F_FFFF_FFFF_FFFF, 0x0010_0000_0000_0000, 0x3FF0_0000_0000_0000, 0xBFF0_0000_0000_0000,
	0x7FEF_FFFF_FFFF_FFFF, 0xFFEF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000, 0xFFF0_0000_0000_0000, 0x7FF8_0000_0000_0000, 0xFFF8_0000_0000_0000,
	0x7FF8_0000_0000_0001, 0xFFFF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0001, 0xFFF4_0000_DEAD_BEEF, 0x7FFF_FFFF_FFFF_FFFF,
	1<<32 - 1, 1 << 32, 1<<31 - 1, 1 << 31, 0xFFFF_FFFF_8000_0000, 3, 0xFFFF_FFFF_FFFF_FFFD,
}

var specials32 = []uint32{
	0, 1 << 31, 1, 1<<31 | 1, 0x007F_FFFF, 0x0080_0000, 0x3F80_0000, 0xBF80_0000, 0x7F7F_FFFF, 0xFF7F_FFFF, 0x7F80_0000, 0xFF80_0000,
	0x7FC0_0000, 0xFFC0_0000, 0x7FC0_0001, 0xFFFF_FFFF, 0x7F80_0001, 0xFFA0_BEEF, 0x7FFF_FFFF, 0x8000_FFFF, 0xFFFF_8000, 3, 0xFFFF_FFFD,
}

// fill writes elements of kind: a half is special, and the rest anything, or
// for half of these of moderate size, so that not all results overflow.
func fill(r *rand.Rand, kind reflect.Kind, b []byte) {
	for i := 0; i < len(b); i += 8 {
		var word [8]byte
		binary.NativeEndian.PutUint64(word[:], r.Uint64())
		copy(b[i:], word[:])
	}
	switch kind {
	case reflect.Float64, reflect.Complex128, reflect.Int64, reflect.Uint64, reflect.Int, reflect.Uint, reflect.Uintptr:
		for ; len(b) >= 8; b = b[8:] {
			switch r.IntN(4) {
			case 0, 1:
				binary.NativeEndian.PutUint64(b, specials64[r.IntN(len(specials64))])
			case 2:
				binary.NativeEndian.PutUint64(b, math.Float64bits(r.NormFloat64()*math.Pow(10, float64(r.IntN(30)-15))))
			}
		}
	case reflect.Float32, reflect.Complex64, reflect.Int32, reflect.Uint32:
		for ; len(b) >= 4; b = b[4:] {
			switch r.IntN(4) {
			case 0, 1:
				binary.NativeEndian.PutUint32(b, specials32[r.IntN(len(specials32))])
			case 2:
				binary.NativeEndian.PutUint32(b, math.Float32bits(float32(r.NormFloat64()*math.Pow(10, float64(r.IntN(10)-5)))))
			}
		}
	}
}

// use has kernels use set s for the rest of the test, or skips it.
func use(t testing.TB, s isa) {
	if s > vectors {
		t.Skipf("%v kernels were not run: this processor or build has no more than %v; go test ./internal/kernel on a processor that has them", s, isa(vectors))
	}
	active = s
	t.Cleanup(func() { active = vectors })
}

// eachSet runs f with every instruction set. Those that this processor lacks
// are reported as skipped.
func eachSet(t *testing.T, f func(t *testing.T)) {
	for _, s := range []isa{isaGo, isaAVX2, isaAVX512} {
		t.Run(s.String(), func(t *testing.T) {
			use(t, s)
			f(t)
		})
	}
}

// A trial is one reduction of k sources of n elements. dst lies in source alias,
// or apart from all if that is negative. Offsets are bytes from a line of the
// caches.
type trial struct {
	op      Operator
	kind    reflect.Kind
	k, n    int
	alias   int
	offsets [4]int // of dst and, in turn, the sources
	seed    uint64
	stream  bool // whatever the length
}

const guard = 64

// at returns memory and the start of a part of it, at an offset from a line of the
// caches. There are guards before and behind the n bytes of that part.
func at(offset, n int) (whole []byte, start int) {
	whole = make([]byte, guard+lineBytes+offset+n+guard)
	for i := range whole {
		whole[i] = byte(i*7 + 1)
	}
	first := uintptr(unsafe.Pointer(unsafe.SliceData(whole))) + guard
	return whole, guard + int(-first%lineBytes) + offset
}

// run reduces with set s, checks that nothing but dst is written, and returns the
// result.
func (c trial) run(t rapid.TB, s isa) []byte {
	defer func(a isa, b int) { active, streamBytes = a, b }(active, streamBytes)
	active = s
	if c.stream {
		streamBytes = 1
	}
	r := rand.New(rand.NewPCG(c.seed, 1))
	size := c.n * shapes[c.kind].size
	whole, start := at(c.offsets[0], size)
	end := start + size
	srcs, keep := make([][]byte, c.k), make([][]byte, c.k)
	for i := range srcs {
		memory, from := at(c.offsets[1+i%3], size)
		if i == c.alias {
			memory, from = whole, start
		}
		srcs[i] = memory[from : from+size : from+size]
		fill(r, c.kind, srcs[i])
		keep[i] = bytes.Clone(srcs[i])
	}
	before := bytes.Clone(whole)
	ManyBytes(c.op, c.kind, whole[start:end:end], srcs)
	for i := range srcs {
		if i != c.alias && !bytes.Equal(srcs[i], keep[i]) {
			t.Fatalf("%+v with %v: source %d was written", c, s, i)
		}
	}
	if !bytes.Equal(whole[:start], before[:start]) || !bytes.Equal(whole[end:], before[end:]) {
		t.Fatalf("%+v with %v: memory beside dst was written", c, s)
	}
	return whole[start:end]
}

// check compares all sets of this processor with the twin.
func (c trial) check(t rapid.TB) {
	want := c.run(t, isaGo)
	for s := isaAVX2; s <= vectors; s++ {
		if got := c.run(t, s); !bytes.Equal(got, want) {
			size := shapes[c.kind].size
			for i := range c.n {
				if g, w := got[i*size:][:size], want[i*size:][:size]; !bytes.Equal(g, w) {
					t.Fatalf("%+v: element %d is % x with %v, % x in Go", c, i, g, s, w)
				}
			}
		}
	}
}

// forEach calls f for every operator on every kind that has assembly, and on complex
// numbers, which have it in part.
func forEach(f func(op Operator, kind reflect.Kind)) {
	for _, kind := range []reflect.Kind{reflect.Float64, reflect.Float32, reflect.Int64, reflect.Int32, reflect.Uint64, reflect.Uint32, reflect.Complex128, reflect.Complex64} {
		for op := range Operator(operators) {
			if defined(op, kind) {
				f(op, kind)
			}
		}
	}
}

// Every length around the loops' and every tail, apart and in place.
func TestSetsAgreeOnEveryLength(t *testing.T) {
	sets(t)
	forEach(func(op Operator, kind reflect.Kind) {
		for n := range 131 {
			for _, alias := range []int{-1, n % 2} {
				c := trial{op: op, kind: kind, k: 2 + n/2%2, n: n, alias: alias, seed: uint64(n), stream: n%3 == 0}
				c.offsets = [4]int{n % 64, n * 8 % 64, 0, 24}
				c.check(t)
			}
		}
	})
}

// Lengths around what one call and one block take, and long odd ones.
func TestSetsAgreeOnLongSlices(t *testing.T) {
	sets(t)
	forEach(func(op Operator, kind reflect.Kind) {
		size := shapes[kind].size
		if kind != reflect.Float64 && kind != reflect.Int32 || op == OpProd || op == OpMin {
			return // what is special about length is the same for all
		}
		for _, c := range []struct{ k, bytes int }{{2, pieceBytes / 4}, {2, pieceBytes + 5*size}, {3, pieceBytes / 4}, {groupMax + 1, blockBytes}} {
			for _, d := range []int{-1, 0, 1} {
				trial{op: op, kind: kind, k: c.k, n: c.bytes/size + d, alias: (d+2)%3 - 1, seed: uint64(c.bytes), stream: d == 1}.check(t)
			}
		}
	})
}

// Every place of dst and of a source in a line, bytes included.
func TestSetsAgreeAtEveryAlignment(t *testing.T) {
	sets(t)
	forEach(func(op Operator, kind reflect.Kind) {
		for offset := range lineBytes {
			for _, n := range []int{37, 163} {
				c := trial{op: op, kind: kind, k: 3, n: n, alias: -1, seed: uint64(offset), stream: n == 163}
				c.offsets = [4]int{offset, (offset * 5) % 64, 0, 1}
				c.check(t)
				c.offsets = [4]int{0, offset, 63 - offset, 0}
				c.check(t)
			}
		}
	})
}

// Numbers of sources around the groups that they are read in.
func TestSetsAgreeOnEveryNumberOfSources(t *testing.T) {
	sets(t)
	forEach(func(op Operator, kind reflect.Kind) {
		for k := 1; k <= 3*groupMax; k++ {
			for _, alias := range []int{-1, k / 2, k - 1} {
				trial{op: op, kind: kind, k: k, n: 61, alias: alias, seed: uint64(k)}.check(t)
			}
		}
	})
}

func TestSetsAgreeOnAnything(t *testing.T) {
	sets(t)
	rapid.Check(t, func(t *rapid.T) {
		c := trial{
			op:   Operator(rapid.IntRange(0, operators-1).Draw(t, "op")),
			kind: rapid.SampledFrom(kinds).Draw(t, "kind"),
			k:    rapid.IntRange(1, 40).Draw(t, "sources"),
			n:    rapid.IntRange(0, 3000).Draw(t, "elements"), seed: rapid.Uint64().Draw(t, "seed"),
			stream: rapid.Bool().Draw(t, "stream"),
		}
		if !defined(c.op, c.kind) {
			c.op = OpProd
		}
		c.alias = rapid.IntRange(-1, c.k-1).Draw(t, "alias")
		for i := range c.offsets {
			c.offsets[i] = rapid.IntRange(0, lineBytes-1).Draw(t, "offset")
		}
		c.check(t)
	})
}

// FuzzMany takes the sources' bytes from the input.
func FuzzMany(f *testing.F) {
	f.Add(uint8(0), uint8(0), uint8(2), int8(-1), bytes.Repeat([]byte{0, 0, 0, 0, 0, 0, 0xF8, 0x7F}, 40))
	f.Add(uint8(3), uint8(1), uint8(9), int8(4), bytes.Repeat([]byte{1, 0, 0x80, 0xFF, 0, 0, 0, 0x80}, 90))
	f.Fuzz(func(t *testing.T, o, kd, sources uint8, alias int8, data []byte) {
		op, kind, k := Operator(o%operators), kinds[int(kd)%len(kinds)], int(sources%40)+1
		if !defined(op, kind) {
			return // nothing to compare
		}
		n := len(data) / k / shapes[kind].size * shapes[kind].size
		defer func() { active = vectors }()
		var want []byte
		for s := isaGo; s <= vectors; s++ {
			active = s
			all := bytes.Clone(data)
			srcs := make([][]byte, k)
			for i := range srcs {
				srcs[i] = all[i*n : (i+1)*n]
			}
			dst := make([]byte, n)
			if alias >= 0 {
				dst = srcs[int(alias)%k]
			}
			ManyBytes(op, kind, dst, srcs)
			if s == isaGo {
				want = bytes.Clone(dst)
			} else if !bytes.Equal(dst, want) {
				t.Fatalf("%v of %v, %d sources, dst in %d: % x with %v, % x in Go", op, kind, k, alias, dst, s, want)
			}
		}
	})
}

// sets says which sets a test compares with Go, and skips it where there is none.
func sets(t *testing.T) {
	if vectors == isaGo {
		t.Skip("there is no assembly for this processor or build to compare with: run it on amd64 with AVX2")
	}
	for s := isaAVX2; s <= isaAVX512; s++ {
		if s > vectors {
			t.Logf("%v kernels were not run: this processor has none", s)
		}
	}
}
