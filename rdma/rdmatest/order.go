package rdmatest

import (
	"encoding/binary"
	"testing"

	"github.com/weft-hpc/weft/rdma"
)

var orderTests = []test{
	{"Messages", testMessageOrder},
	{"WritesBeforeWriteImm", testWritesBeforeWriteImm},
	{"ReadAfterWrite", testReadAfterWrite},
	{"Fence", testFence},
	{"ManyReads", testManyReads},
	{"CompletionCoversEarlier", testCompletionCoversEarlier},
	{"MistakeWriteWithoutNotice", testMistakeWriteWithoutNotice},
}

// What one QP sends arrives in order, receives are taken in order, and
// both complete in order.
func testMessageOrder(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	const n, rounds = 32, 5
	src, dst := a.alloc(n*300, rdma.LocalWrite), b.alloc(n*300, rdma.LocalWrite)
	for round := range rounds {
		var sends []rdma.SendWR
		var recvs []rdma.RecvWR
		for i := range n {
			size := (i * 37) % 300
			fill(src.b[300*i:300*i+size], i+round)
			recvs = append(recvs, rdma.RecvWR{ID: uint64(i), SGL: dst.seg(300*i, 300)})
			sends = append(sends, rdma.SendWR{ID: uint64(i), Op: rdma.SendImm, Flags: rdma.Signaled, Imm: uint32(i), SGL: src.seg(300*i, size)})
		}
		b.recv(recvs...)
		a.send(sends...)
		for i := range n {
			a.success(uint64(i))
			wc := b.success(uint64(i))
			if wc.Imm != uint32(i) || int(wc.Bytes) != (i*37)%300 {
				t.Fatalf("message %d came as number %d with %d bytes", i, wc.Imm, wc.Bytes)
			}
			b.want(dst.b[300*i:300*i+int(wc.Bytes)], i+round, "message in order")
		}
	}
}

// When a WriteImm has arrived, so has every write before it.
func testWritesBeforeWriteImm(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	const n, size = 16, 9001
	src, dst := a.alloc(n*size, rdma.LocalWrite), b.alloc(n*size, allAccess)
	for round := range 4 {
		fill(src.b, round)
		b.recv(rdma.RecvWR{ID: 1})
		var wrs []rdma.SendWR
		for i := range n {
			wr := rdma.SendWR{ID: uint64(i), Op: rdma.Write, SGL: src.seg(i*size, size), RemoteAddr: dst.Addr() + uint64(i*size), RKey: dst.RKey()}
			if i == n-1 {
				wr.Op, wr.Flags = rdma.WriteImm, rdma.Signaled
			}
			wrs = append(wrs, wr)
		}
		a.send(wrs...)
		if wc := b.success(1); int(wc.Bytes) != size {
			t.Fatalf("a WriteImm of %d bytes came with %d", size, wc.Bytes)
		}
		b.want(dst.b, round, "writes before a WriteImm")
		a.success(n - 1)
	}
}

// A READ sees what the same QP wrote before.
func testReadAfterWrite(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	const size = 20_011
	src, back, dst := a.alloc(size, rdma.LocalWrite), a.alloc(size, rdma.LocalWrite), b.alloc(size, allAccess)
	for round := range 8 {
		fill(src.b, round)
		a.send(rdma.SendWR{ID: 1, Op: rdma.Write, SGL: src.seg(0, size), RemoteAddr: dst.Addr(), RKey: dst.RKey()},
			rdma.SendWR{ID: 2, Op: rdma.Read, Flags: rdma.Signaled, SGL: back.seg(0, size), RemoteAddr: dst.Addr(), RKey: dst.RKey()})
		a.success(2)
		a.want(back.b, round, "read after write")
	}
}

// With Fence a send carries what a READ and an atomic before it brought.
func testFence(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	const size = 10_007
	via, src, dst := a.alloc(size, rdma.LocalWrite), b.alloc(size, allAccess), b.alloc(size, rdma.LocalWrite)
	for round := range 8 {
		fill(src.b, round)
		set(via.b, 0)
		b.recv(rdma.RecvWR{ID: 1, SGL: dst.seg(0, size)})
		a.send(rdma.SendWR{ID: 2, Op: rdma.Read, SGL: via.seg(0, size), RemoteAddr: src.Addr(), RKey: src.RKey()},
			rdma.SendWR{ID: 3, Flags: rdma.Signaled | rdma.Fence, SGL: via.seg(0, size)})
		a.success(3)
		b.success(1)
		b.want(dst.b, round, "sent after a fenced READ")
	}
	if !a.limits.Atomics {
		return
	}
	for round := range uint64(8) {
		binary.NativeEndian.PutUint64(src.b, round)
		b.recv(rdma.RecvWR{ID: 1, SGL: dst.seg(0, 8)})
		a.send(rdma.SendWR{ID: 2, Op: rdma.FetchAdd, Add: 1, SGL: via.seg(0, 8), RemoteAddr: src.Addr(), RKey: src.RKey()},
			rdma.SendWR{ID: 3, Flags: rdma.Signaled | rdma.Fence, SGL: via.seg(0, 8)})
		a.success(3)
		b.success(1)
		if v := binary.NativeEndian.Uint64(dst.b); v != round {
			t.Fatalf("sent %d after a fenced atomic that brought %d", v, round)
		}
	}
}

// More READs than may be in flight are queued by the device, and complete in order.
func testManyReads(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	const n, size = 60, 3001
	dst, src := a.alloc(n*size, rdma.LocalWrite), b.alloc(n*size, rdma.RemoteRead)
	fill(src.b, 1)
	for i := range n {
		a.send(rdma.SendWR{ID: uint64(i), Op: rdma.Read, Flags: rdma.Signaled, SGL: dst.seg(i*size, size), RemoteAddr: src.Addr() + uint64(i*size), RKey: src.RKey()})
	}
	for i := range n {
		a.success(uint64(i))
		// What has completed is there; the rest need not be.
		if got, want := dst.b[i*size+size-1], src.b[i*size+size-1]; got != want {
			t.Fatalf("READ %d completed, and its last byte is 0x%02x, not 0x%02x", i, got, want)
		}
	}
	a.want(dst.b, 1, "many READs")
}

// A signaled request tells of all before it, by being the only one that completes.
func testCompletionCoversEarlier(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	src, dst := a.alloc(64*100, rdma.LocalWrite), b.alloc(64*100, allAccess)
	for round := range 6 {
		fill(src.b, round)
		for i := range 10 {
			wr := rdma.SendWR{ID: uint64(i), Op: rdma.Write, SGL: src.seg(640*i, 640), RemoteAddr: dst.Addr() + uint64(640*i), RKey: dst.RKey()}
			if i == 9 {
				wr.Flags = rdma.Signaled
			}
			a.send(wr)
		}
		a.success(9)
		b.want(dst.b, round, "written before a signaled write")
		a.none("unsignaled writes")
	}
}

// A write alone tells the target nothing: programs that counted on a completion
// there waited for ever (w180112/RDMA-example#3).
func testMistakeWriteWithoutNotice(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	src, dst := a.alloc(5000, rdma.LocalWrite), b.alloc(5000, allAccess)
	b.recv(rdma.RecvWR{ID: 1})
	b.ok(b.cq.Arm(false))
	a.send(rdma.SendWR{ID: 2, Op: rdma.Write, Flags: rdma.Signaled, SGL: src.seg(0, 5000), RemoteAddr: dst.Addr(), RKey: dst.RKey()})
	a.success(2)
	b.none("a write takes no receive")
	if ready, err := readable(b.channel.FD(), 0); ready || err != nil {
		t.Errorf("a write notifies its target: %v, %v", ready, err)
	}
	a.send(rdma.SendWR{ID: 3, Op: rdma.WriteImm, Flags: rdma.Signaled})
	a.success(3)
	b.success(1)
}
