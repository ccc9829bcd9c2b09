package fake_test

import (
	"testing"

	"github.com/weft-hpc/weft/rdma"
)

// BenchmarkRoundTrip is the cost of the fake itself: two messages of 8 bytes,
// posted and polled by one goroutine.
func BenchmarkRoundTrip(b *testing.B) {
	_, x, y := two(b, 1)
	wr := []rdma.SendWR{{Flags: rdma.Signaled, Inline: make([]byte, 8)}}
	_, mr := x.region(8, rdma.LocalWrite)
	_, mr2 := y.region(8, rdma.LocalWrite)
	recvs := map[*end][]rdma.RecvWR{x: {{SGL: []rdma.SGE{rdma.Segment(mr, 0, 8)}}}, y: {{SGL: []rdma.SGE{rdma.Segment(mr2, 0, 8)}}}}
	wcs := make([]rdma.WC, 4)
	one := func(from, to *end) {
		to.recv(recvs[to]...)
		from.post(wr...)
		for _, e := range []*end{from, to} {
			for n := 0; n == 0; {
				var err error
				if n, err = e.cq.Poll(wcs); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		one(x, y)
		one(y, x)
	}
}

func BenchmarkWrite1MiB(b *testing.B) {
	_, x, y := two(b, 1)
	const size = 1 << 20
	_, smr := x.region(size, rdma.LocalWrite)
	_, dmr := y.region(size, allAccess)
	wr := []rdma.SendWR{{Op: rdma.Write, Flags: rdma.Signaled, SGL: []rdma.SGE{rdma.Segment(smr, 0, size)}, RemoteAddr: dmr.Addr(), RKey: dmr.RKey()}}
	b.SetBytes(size)
	for b.Loop() {
		x.post(wr...)
		x.next()
	}
}
