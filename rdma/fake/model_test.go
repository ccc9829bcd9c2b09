package fake_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-hpc/weft/rdma"
)

// Any sequence of operations between two ends leaves the memory that it leaves when
// each is done at once, if what follows a READ or an atomic is fenced.
func TestModel(t *testing.T) {
	const size, depth = 3000, 32
	rapid.Check(t, func(rt *rapid.T) {
		_, a, b := two(rt, rapid.Uint64().Draw(rt, "seed"))
		mine, amr := a.region(size, rdma.LocalWrite)
		theirs, bmr := b.region(size, allAccess)
		box, boxmr := b.region(depth*256, rdma.LocalWrite)
		for i := range size {
			mine[i], theirs[i] = byte(i), byte(255-i)
		}
		wantMine, wantTheirs, wantBox := bytes.Clone(mine), bytes.Clone(theirs), bytes.Clone(box)
		boxes := 0
		var wrs []rdma.SendWR
		fence := rdma.Flags(0)
		for i := range rapid.IntRange(1, depth).Draw(rt, "n") {
			op := rdma.Opcode(rapid.IntRange(int(rdma.Send), int(rdma.CompareSwap)).Draw(rt, "op"))
			n := rapid.IntRange(0, 2000).Draw(rt, "size")
			switch {
			case op.Atomic():
				n = 8
			case op.TakesReceive() && !op.Remote():
				n %= 257
			}
			from := rapid.IntRange(0, size-n).Draw(rt, "from")
			to := rapid.IntRange(0, size-n).Draw(rt, "to")
			if op.Atomic() {
				to -= int((bmr.Addr() + uint64(to)) % 8)
				if to < 0 {
					to += 8
				}
			}
			// Two segments that are not in the order of their addresses.
			cut := rapid.IntRange(0, n).Draw(rt, "cut")
			other := rapid.IntRange(0, size-n).Draw(rt, "other")
			if op.Result() { // or the order of the segments would matter where they overlap
				other = from
			}
			wr := rdma.SendWR{ID: uint64(i), Op: op, Flags: fence | rdma.Signaled, Imm: uint32(i), Add: 3, Compare: binary.NativeEndian.Uint64(wantTheirs[min(to, size-8):]), Swap: 4,
				RemoteAddr: bmr.Addr() + uint64(to), RKey: bmr.RKey(),
				SGL: []rdma.SGE{rdma.Segment(amr, from, cut), rdma.Segment(amr, other+cut, n-cut)}}
			data := append(bytes.Clone(wantMine[from:from+cut]), wantMine[other+cut:other+n]...)
			switch {
			case op.Result():
				old := bytes.Clone(wantTheirs[to : to+n])
				copy(wantMine[from:], old)
				v := binary.NativeEndian.Uint64(wantTheirs[min(to, size-8):])
				if op == rdma.FetchAdd {
					binary.NativeEndian.PutUint64(wantTheirs[to:], v+3)
				} else if op == rdma.CompareSwap {
					binary.NativeEndian.PutUint64(wantTheirs[to:], 4)
				}
			case op.Remote():
				copy(wantTheirs[to:], data)
			default:
				copy(wantBox[256*boxes:], data)
			}
			if op.TakesReceive() {
				boxes++
			}
			fence = 0
			if op.Result() {
				fence = rdma.Fence
			}
			wrs = append(wrs, wr)
		}
		for i := range boxes {
			b.recv(rdma.RecvWR{ID: uint64(i), SGL: []rdma.SGE{rdma.Segment(boxmr, 256*i, 256)}})
		}
		a.post(wrs...)
		for i := range wrs {
			if wc := a.next(); wc.Status != rdma.StatusSuccess || wc.ID != uint64(i) {
				rt.Fatalf("request %d of %d: %+v", i, len(wrs), wc)
			}
		}
		for i := range boxes {
			if wc := b.next(); wc.Status != rdma.StatusSuccess || wc.ID != uint64(i) {
				rt.Fatalf("receive %d of %d: %+v", i, boxes, wc)
			}
		}
		if !bytes.Equal(mine, wantMine) || !bytes.Equal(theirs, wantTheirs) || !bytes.Equal(box, wantBox) {
			rt.Fatalf("memory after %+v is not what it should be", wrs)
		}
	})
}
