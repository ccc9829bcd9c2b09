package proto

import (
	"testing"

	"github.com/weft-hpc/weft/internal/wire"
)

// Many collectives may be in progress at once, and end in any order; each message is
// compared with the call of its own number.
func TestManyCollectivesInProgress(t *testing.T) {
	const many = 100 // more than are remembered otherwise
	c := New(Config{Rank: 0, Size: 2, Window: 1 << 16})
	x := c.Open(ContextID(0, 0), []int32{0, 1}, 0).Coll
	sig := func(seq uint32) wire.Signature {
		return wire.Signature{Op: uint8(seq%7 + 1), Seq: seq, Count: uint64(seq)}
	}
	// Near the wrap of numbers.
	first := ^uint32(0) - many/2
	for i := range uint32(many) {
		if err := c.BeginCollective(x, sig(first+i)); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when string, open func(i uint32) bool) {
		t.Helper()
		for i := range uint32(many) {
			same, other := sig(first+i), sig(first+i)
			other.Count++
			if got := x.disagrees(&same); got == open(i) {
				t.Errorf("%s: the same call as %d disagrees: %t", when, i, got)
			}
			if !x.disagrees(&other) {
				t.Errorf("%s: another call than %d agrees", when, i)
			}
		}
		if later := sig(first + many); x.disagrees(&later) {
			t.Errorf("%s: a call that is not made here yet disagrees", when)
		}
		if before := sig(first - 1); !x.disagrees(&before) {
			t.Errorf("%s: a call before all others agrees", when)
		}
	}
	check("all open", func(uint32) bool { return true })
	for i := uint32(1); i < many; i += 2 {
		c.EndCollective(x, first+i)
	}
	c.EndCollective(x, first+many) // was never begun
	check("every other one is over", func(i uint32) bool { return i%2 == 0 })
	// What a new one takes the place of is one that is over.
	for i := uint32(0); i < many; i += 2 {
		c.EndCollective(x, first+i)
	}
	if err := c.BeginCollective(x, sig(first+many)); err != nil || x.disagrees(&wire.Signature{Op: uint8((first+many)%7 + 1), Seq: first + many, Count: uint64(first + many)}) {
		t.Errorf("the next one: %v", err)
	}
}
