package rdmatest

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/weft-hpc/weft/rdma"
)

var moveTests = []test{
	{"Send", func(t *testing.T, open Open) { testSizes(t, open, rdma.Send, config{}) }},
	{"SendImm", func(t *testing.T, open Open) { testSizes(t, open, rdma.SendImm, config{}) }},
	{"SendToSRQ", func(t *testing.T, open Open) { testSizes(t, open, rdma.Send, config{srq: 16}) }},
	{"Write", func(t *testing.T, open Open) { testSizes(t, open, rdma.Write, config{}) }},
	{"WriteImm", func(t *testing.T, open Open) { testSizes(t, open, rdma.WriteImm, config{}) }},
	{"WriteImmToSRQ", func(t *testing.T, open Open) { testSizes(t, open, rdma.WriteImm, config{srq: 16}) }},
	{"Read", func(t *testing.T, open Open) { testSizes(t, open, rdma.Read, config{}) }},
	{"Inline", testInline},
	{"Segments", testSegments},
	{"SmallMTU", testSmallMTU},
	{"Atomics", testAtomics},
	{"AtomicsFromBothEnds", testAtomicsFromBothEnds},
	{"BothWays", testBothWays},
	{"ToItself", testToItself},
}

// sizes are the lengths at which something changes, on a path with such an MTU.
func sizes(mtu rdma.MTU, maxMessage int64) []int {
	m := int(mtu)
	all := []int{0, 1, 2, 7, 8, 9, 63, 64, 65, 255, 256, 257, m - 1, m, m + 1, 2*m - 1, 2 * m, 2*m + 1, 3*m + 17, 65537, 1 << 20}
	return slices.DeleteFunc(all, func(n int) bool { return int64(n) > maxMessage })
}

// guard is the number of bytes before and after a target that must not change.
const guard = 96

func testSizes(t *testing.T, open Open, op rdma.Opcode, cfg config) {
	a, b := pair(t, open, cfg)
	all := sizes(rdma.PathMTU(a.port.ActiveMTU, b.port.ActiveMTU), a.port.MaxMessage)
	largest := slices.Max(all)
	src, dst := a.alloc(largest+2*guard, allAccess), b.alloc(largest+2*guard, allAccess)
	from, to := src, dst
	if op == rdma.Read {
		from, to = dst, src
	}
	for i, size := range all {
		what := sizesName(op, size)
		fill(from.b[guard:guard+size], i)
		set(to.b, 0xee)
		if op.TakesReceive() {
			wr := rdma.RecvWR{ID: uint64(1000 + i)}
			if !op.Remote() {
				wr.SGL = dst.seg(guard, size)
			}
			b.recv(wr)
		}
		wr := rdma.SendWR{ID: uint64(i), Op: op, Flags: rdma.Signaled, SGL: src.seg(guard, size), Imm: 0xa1b2c300 + uint32(i)}
		if op.Remote() {
			wr.RemoteAddr, wr.RKey = dst.Addr()+guard, dst.RKey()
		}
		if size == 0 && i%2 == 0 {
			wr.SGL = nil
		}
		a.send(wr)
		wc := a.success(uint64(i))
		if wc.Op != op.WC() || wc.QPN != a.qp.Num() || op == rdma.Read && int(wc.Bytes) != size {
			t.Fatalf("%s: %+v", what, wc)
		}
		if op.TakesReceive() {
			b.wantReceive(b.success(uint64(1000+i)), op, size, wr.Imm)
		}
		a.want(to.b[guard:guard+size], i, what)
		a.wantAll(to.b[:guard], 0xee, what+": before the target")
		a.wantAll(to.b[guard+size:], 0xee, what+": behind the target")
	}
}

// wantReceive checks what the completion of a receive says.
func (n *node) wantReceive(wc rdma.WC, op rdma.Opcode, size int, imm uint32) {
	n.t.Helper()
	want := rdma.WC{ID: wc.ID, QPN: n.qp.Num(), Op: rdma.WCRecv, Bytes: uint32(size)}
	if op == rdma.WriteImm {
		want.Op = rdma.WCRecvWriteImm
	}
	if op.HasImm() {
		// A number arrives as the same number, whatever the order of its bytes on the wire.
		want.Imm, want.Flags = imm, rdma.HasImm
	}
	if wc != want {
		n.t.Fatalf("%v of %d bytes received as %+v; want %+v", op, size, wc, want)
	}
}

// Inline data needs no registration and may be reused as soon as Post returns. A
// queue may be granted less than was asked for.
func testInline(t *testing.T, open Open) {
	a, b := pair(t, open, config{inline: 64})
	granted := a.qp.Caps().MaxInline
	if granted < 1 {
		t.Fatalf("64 inline bytes asked for, %d granted", granted)
	}
	dst := b.alloc(granted+1, allAccess)
	data := make([]byte, granted+1)
	for i, size := range []int{0, 1, 8, granted - 1, granted} {
		for _, op := range []rdma.Opcode{rdma.Send, rdma.SendImm, rdma.Write, rdma.WriteImm} {
			fill(data, i)
			set(dst.b, 0xee)
			if op.TakesReceive() {
				b.recv(rdma.RecvWR{ID: 1, SGL: dst.seg(0, size)})
			}
			a.send(rdma.SendWR{ID: 2, Op: op, Flags: rdma.Signaled, Inline: data[:size], RemoteAddr: dst.Addr(), RKey: dst.RKey(), Imm: 3})
			set(data, 0xdd)
			a.success(2)
			if op.TakesReceive() {
				b.wantReceive(b.success(1), op, size, 3)
			}
			b.want(dst.b[:size], i, "inline "+sizesName(op, size))
			b.wantAll(dst.b[size:], 0xee, "behind inline "+sizesName(op, size))
		}
	}
	_, err := a.qp.PostSend([]rdma.SendWR{{Inline: data[:granted+1]}})
	a.wantErr(err, rdma.ErrInvalid)
	_, err = a.qp.PostSend([]rdma.SendWR{{Op: rdma.Read, Inline: data[:1]}})
	a.wantErr(err, rdma.ErrInvalid)
	_, err = a.qp.PostSend([]rdma.SendWR{{SGL: make([]rdma.SGE, 1), Inline: data[:1]}})
	a.wantErr(err, rdma.ErrInvalid)
}

// Data is gathered from several segments and scattered to others, of several regions.
func testSegments(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	const n = 3 * 5000
	s1, s2 := a.alloc(n, rdma.LocalWrite|rdma.RemoteRead), a.alloc(n, rdma.LocalWrite)
	d1, d2 := b.alloc(n, allAccess), b.alloc(n, rdma.LocalWrite)
	data := make([]byte, n)
	fill(data, 5)
	for i, cut := range [][3]int{{1, 5000, 9999}, {0, 1, 2}, {4096, 0, n - 4096}, {7, 7, 0}} {
		total := cut[0] + cut[1] + cut[2]
		copy(s1.b, data[:cut[0]])
		copy(s2.b[100:], data[cut[0]:cut[0]+cut[1]])
		copy(s1.b[cut[0]:], data[cut[0]+cut[1]:total])
		gather := []rdma.SGE{rdma.Segment(s1, 0, cut[0]), rdma.Segment(s2, 100, cut[1]), rdma.Segment(s1, cut[0], cut[2])}
		set(d1.b, 0)
		set(d2.b, 0)
		half := total / 2
		b.recv(rdma.RecvWR{ID: 1, SGL: []rdma.SGE{rdma.Segment(d2, 3, half), rdma.Segment(d1, 0, n)}})
		a.send(rdma.SendWR{ID: 2, Flags: rdma.Signaled, SGL: gather})
		a.success(2)
		if wc := b.success(1); int(wc.Bytes) != total {
			t.Fatalf("%d bytes received of %d", wc.Bytes, total)
		}
		b.want(append(slices.Clone(d2.b[3:3+half]), d1.b[:total-half]...), 5, fmt.Sprintf("segments, cut %d", i))

		set(d1.b, 0)
		a.send(rdma.SendWR{ID: 3, Op: rdma.Write, Flags: rdma.Signaled, SGL: gather, RemoteAddr: d1.Addr(), RKey: d1.RKey()})
		a.success(3)
		b.want(d1.b[:total], 5, fmt.Sprintf("written from segments, cut %d", i))
		set(s1.b, 0)
		set(s2.b, 0)
		a.send(rdma.SendWR{ID: 4, Op: rdma.Read, Flags: rdma.Signaled, SGL: gather, RemoteAddr: d1.Addr(), RKey: d1.RKey()})
		a.success(4)
		a.want(slices.Concat(s1.b[:cut[0]], s2.b[100:100+cut[1]], s1.b[cut[0]:cut[0]+cut[2]]), 5, fmt.Sprintf("read to segments, cut %d", i))
	}
	tooMany := make([]rdma.SGE, a.qp.Caps().MaxSendSGEs+1)
	_, err := a.qp.PostSend([]rdma.SendWR{{SGL: tooMany}})
	a.wantErr(err, rdma.ErrInvalid)
	_, err = b.qp.PostRecv([]rdma.RecvWR{{SGL: make([]rdma.SGE, b.qp.Caps().MaxRecvSGEs+1)}})
	b.wantErr(err, rdma.ErrInvalid)
}

// Both ends may agree on less than the active MTU.
func testSmallMTU(t *testing.T, open Open) {
	a, b := pair(t, open, config{mtu: 256})
	src, dst := a.alloc(10000, allAccess), b.alloc(10000, allAccess)
	for i, size := range []int{255, 256, 257, 511, 512, 513, 9999} {
		fill(src.b, i)
		a.send(rdma.SendWR{ID: 1, Op: rdma.Write, Flags: rdma.Signaled, SGL: src.seg(0, size), RemoteAddr: dst.Addr(), RKey: dst.RKey()})
		a.success(1)
		b.want(dst.b[:size], i, sizesName(rdma.Write, size))
		set(src.b, 0)
		a.send(rdma.SendWR{ID: 2, Op: rdma.Read, Flags: rdma.Signaled, SGL: src.seg(0, size), RemoteAddr: dst.Addr(), RKey: dst.RKey()})
		a.success(2)
		a.want(src.b[:size], i, sizesName(rdma.Read, size))
	}
}

func (n *node) needAtomics() bool {
	if !n.limits.Atomics {
		n.t.Log("the device has no atomics: posting one must say so")
		m := n.alloc(8, rdma.LocalWrite)
		_, err := n.qp.PostSend([]rdma.SendWR{{Op: rdma.FetchAdd, SGL: m.seg(0, 8)}})
		n.wantErr(err, rdma.ErrUnsupported)
		return false
	}
	return true
}

func testAtomics(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	if !a.needAtomics() {
		return
	}
	res, cell := a.alloc(24, rdma.LocalWrite), b.alloc(24, allAccess)
	word := func(m mem, i int) uint64 { return binary.NativeEndian.Uint64(m.b[8*i:]) }
	do := func(wr rdma.SendWR, wantOld, wantNew uint64) {
		t.Helper()
		set(res.b, 0xee)
		wr.ID, wr.Flags, wr.SGL, wr.RemoteAddr, wr.RKey = 1, rdma.Signaled, res.seg(8, 8), cell.Addr()+8, cell.RKey()
		a.send(wr)
		if wc := a.success(1); wc.Op != wr.Op.WC() || wc.Bytes != 8 {
			t.Fatalf("%v completed as %+v", wr.Op, wc)
		}
		if word(res, 1) != wantOld || word(cell, 1) != wantNew {
			t.Fatalf("%v gave 0x%x and left 0x%x; want 0x%x and 0x%x", wr.Op, word(res, 1), word(cell, 1), wantOld, wantNew)
		}
		const untouched = 0xeeeeeeeeeeeeeeee
		if word(res, 0) != untouched || word(res, 2) != untouched || word(cell, 0) != 0 || word(cell, 2) != 0 {
			t.Fatalf("%v touched its neighbours: % x, % x", wr.Op, res.b, cell.b)
		}
	}
	do(rdma.SendWR{Op: rdma.FetchAdd, Add: 5}, 0, 5)
	do(rdma.SendWR{Op: rdma.FetchAdd, Add: 1 << 40}, 5, 1<<40+5)
	do(rdma.SendWR{Op: rdma.FetchAdd, Add: ^uint64(0)}, 1<<40+5, 1<<40+4)
	do(rdma.SendWR{Op: rdma.CompareSwap, Compare: 1<<40 + 5, Swap: 9}, 1<<40+4, 1<<40+4)
	do(rdma.SendWR{Op: rdma.CompareSwap, Compare: 1<<40 + 4, Swap: 9}, 1<<40+4, 9)
	do(rdma.SendWR{Op: rdma.FetchAdd}, 9, 9)
	if _, err := a.qp.PostSend([]rdma.SendWR{{Op: rdma.FetchAdd, SGL: res.seg(0, 4), RemoteAddr: cell.Addr(), RKey: cell.RKey()}}); err == nil {
		t.Error("an atomic with room for 4 bytes of result was posted")
	}
}

// Every value of a counter is given out once, also when both ends count.
func testAtomicsFromBothEnds(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	if !a.needAtomics() {
		return
	}
	const each = 60
	cell := b.alloc(8, allAccess)
	ra, rb := a.alloc(8*each, rdma.LocalWrite), b.alloc(8*each, rdma.LocalWrite)
	// The end that owns the cell counts through a second connection to itself.
	q1, q2 := b.newQP(), b.newQP()
	connect(b, q1, b, q2)
	for i := range each {
		wr := rdma.SendWR{ID: 1, Op: rdma.FetchAdd, Flags: rdma.Signaled, Add: 1, RemoteAddr: cell.Addr(), RKey: cell.RKey()}
		wr.SGL = ra.seg(8*i, 8)
		a.send(wr)
		wr.SGL = rb.seg(8*i, 8)
		b.sendOn(q1, wr)
	}
	var seen [2 * each]bool
	for range each {
		a.success(1)
		b.success(1)
	}
	for _, r := range []mem{ra, rb} {
		for i := range each {
			v := binary.NativeEndian.Uint64(r.b[8*i:])
			if v >= 2*each || seen[v] {
				t.Fatalf("value %d was given out twice, or never could be", v)
			}
			seen[v] = true
		}
	}
	if v := binary.NativeEndian.Uint64(cell.b); v != 2*each {
		t.Errorf("the counter is at %d, not at %d", v, 2*each)
	}
}

func testBothWays(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	const size = 100_001
	nodes := [2]*node{a, b}
	var src, dst [2]mem
	for i, n := range nodes {
		src[i], dst[i] = n.alloc(size, allAccess), n.alloc(size, allAccess)
		fill(src[i].b, i)
		n.recv(rdma.RecvWR{ID: 7})
	}
	for i, n := range nodes {
		n.send(rdma.SendWR{ID: 8, Op: rdma.WriteImm, Flags: rdma.Signaled, SGL: src[i].seg(0, size), RemoteAddr: dst[1-i].Addr(), RKey: dst[1-i].RKey()})
	}
	for i, n := range nodes {
		got := map[uint64]bool{n.next().ID: true, n.next().ID: true}
		if !got[7] || !got[8] {
			t.Fatalf("completions %v", got)
		}
		n.want(dst[i].b, 1-i, "both ways at once")
	}
}

// A QP may reach another of its own device.
func testToItself(t *testing.T, open Open) {
	a, _ := pair(t, open, config{})
	q1, q2 := a.newQP(), a.newQP()
	connect(a, q1, a, q2)
	src, dst := a.alloc(5000, allAccess), a.alloc(5000, allAccess)
	fill(src.b, 3)
	a.sendOn(q1, rdma.SendWR{ID: 1, Op: rdma.Write, Flags: rdma.Signaled, SGL: src.seg(0, 5000), RemoteAddr: dst.Addr(), RKey: dst.RKey()})
	if wc := a.success(1); wc.QPN != q1.Num() {
		t.Errorf("completion on qp 0x%06x, not on 0x%06x", wc.QPN, q1.Num())
	}
	a.want(dst.b, 3, "written to the own device")
}
