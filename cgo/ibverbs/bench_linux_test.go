//go:build cgo

package ibverbs

import (
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/rdma"
)

// These are what perftest measures, with the same sizes and depths, so that a run of both
// in one VM can be compared:
//
//	BenchmarkLatency8 spin     ib_send_lat -s 8
//	BenchmarkLatency8 sleep    ib_send_lat -s 8 -e
//	BenchmarkRate8             ib_send_bw -s 8
//	BenchmarkWrite             ib_write_bw -s SIZE

func eachMode(b *testing.B, run func(b *testing.B, io IO)) {
	for _, io := range modes {
		b.Run(io.String(), func(b *testing.B) { run(b, io) })
	}
}

// waiter gets completions in one of two ways.
type waiter func(e *end) (*rdma.WC, error)

func spin(e *end) (*rdma.WC, error) {
	for idle := 0; e.i == e.n; idle++ {
		var err error
		if e.n, err = e.cq.Poll(e.wcs[:]); err != nil {
			return nil, err
		}
		e.i = 0
	}
	e.i++
	return &e.wcs[e.i-1], e.wcs[e.i-1].Err("")
}

func sleep(e *end) (*rdma.WC, error) {
	for e.i == e.n {
		n, err := e.cq.Poll(e.wcs[:])
		if n == 0 && err == nil {
			if err = e.cq.Arm(false); err == nil {
				n, err = e.cq.Poll(e.wcs[:])
			}
		}
		if err != nil {
			return nil, err
		}
		if e.n, e.i = n, 0; n > 0 {
			break
		}
		fds := []unix.PollFd{{Fd: int32(e.ch.FD()), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, 10_000); err != nil && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
		for more := true; more; {
			if _, more, err = e.ch.Next(); err != nil {
				return nil, err
			}
		}
	}
	e.i++
	return &e.wcs[e.i-1], e.wcs[e.i-1].Err("")
}

// pingPong answers every message until so many were received, and sends the first if it begins.
func (e *end) pingPong(rounds int, begin bool, wait waiter) error {
	recv := []rdma.RecvWR{{SGL: []rdma.SGE{rdma.Segment(e.mr, 0, 8)}}}
	send := []rdma.SendWR{{Flags: rdma.Signaled, Inline: []byte("8 bytes.")}}
	sent, completed := 0, 0
	if begin {
		if _, err := e.qp.PostSend(send); err != nil {
			return err
		}
		sent++
	}
	for received := 0; received < rounds || completed < sent; {
		wc, err := wait(e)
		if err != nil {
			return err
		}
		if wc.Op != rdma.WCRecv {
			completed++
			continue
		}
		received++
		if _, err := e.qp.PostRecv(recv); err != nil {
			return err
		}
		if sent < rounds {
			if _, err := e.qp.PostSend(send); err != nil {
				return err
			}
			sent++
		}
	}
	return nil
}

func latency(b *testing.B, io IO, wait waiter) {
	x, y := connected(b, io, 16)
	for _, e := range []*end{x, y} {
		e.recv(rdma.RecvWR{SGL: []rdma.SGE{rdma.Segment(e.mr, 0, 8)}}, rdma.RecvWR{SGL: []rdma.SGE{rdma.Segment(e.mr, 0, 8)}})
	}
	run := func(n int) {
		done := make(chan error)
		go func() { done <- y.pingPong(n, false, wait) }()
		if err := errors.Join(x.pingPong(n, true, wait), <-done); err != nil {
			b.Fatal(err)
		}
	}
	run(100)
	// In pieces, because the median says more than the average on a machine that others use, too.
	const piece = 25
	var took []float64
	b.ResetTimer()
	for done := 0; done < b.N; done += piece {
		start := time.Now()
		run(piece)
		took = append(took, float64(time.Since(start).Nanoseconds())/(2*piece))
	}
	slices.Sort(took)
	b.ReportMetric(took[0], "ns/best")
	b.ReportMetric(took[len(took)/2], "ns/one-way")
}

func BenchmarkLatency8(b *testing.B) {
	eachMode(b, func(b *testing.B, io IO) {
		b.Run("spin", func(b *testing.B) { latency(b, io, spin) })
		b.Run("sleep", func(b *testing.B) { latency(b, io, sleep) })
		b.Run("busy", func(b *testing.B) {
			var stop atomic.Bool
			var sink atomic.Uint64
			for range runtime.GOMAXPROCS(0) {
				go func() {
					v := uint64(1)
					for !stop.Load() {
						for range 10_000 {
							v = v*6364136223846793005 + 1
						}
					}
					sink.Add(v)
				}()
			}
			latency(b, io, sleep)
			stop.Store(true)
		})
	})
}

// BenchmarkRate8 sends messages of 8 bytes one way, 128 under way at most.
func BenchmarkRate8(b *testing.B) {
	eachMode(b, func(b *testing.B, io IO) {
		const depth, batch = 128, 32
		x, y := connected(b, io, 0)
		recvs := make([]rdma.RecvWR, batch)
		for i := range recvs {
			recvs[i].SGL = []rdma.SGE{rdma.Segment(y.mr, 0, 8)}
		}
		for range 448 / batch {
			y.recv(recvs...)
		}
		sends := make([]rdma.SendWR, batch)
		for i := range sends {
			sends[i].SGL = []rdma.SGE{rdma.Segment(x.mr, 0, 8)}
		}
		sends[batch-1].Flags = rdma.Signaled
		total := (b.N + batch - 1) / batch
		var received atomic.Int64 // credit, for which a protocol would send messages
		b.ResetTimer()
		done := make(chan error)
		go func() {
			for got := 1; got <= total*batch; got++ {
				if _, err := spin(y); err != nil {
					done <- err
					return
				}
				if got%batch == 0 {
					received.Store(int64(got))
					if _, err := y.qp.PostRecv(recvs); err != nil {
						done <- err
						return
					}
				}
			}
			done <- nil
		}()
		posted, completed := 0, 0
		for completed < total {
			for posted < total && (posted-completed)*batch < depth && posted*batch-int(received.Load()) <= 384 {
				x.post(sends...)
				posted++
			}
			if completed < posted {
				x.success()
				completed++
			}
		}
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(total*batch)/b.Elapsed().Seconds(), "msg/s")
	})
}

// BenchmarkWrite writes into the peer's memory, some at once.
func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{4096, 65536, 1 << 20} {
		b.Run(map[int]string{4096: "4KiB", 65536: "64KiB", 1 << 20: "1MiB"}[size], func(b *testing.B) {
			eachMode(b, func(b *testing.B, io IO) {
				x, y := connected(b, io, 0)
				depth := min(128, memorySize/size*8)
				wr := []rdma.SendWR{{Op: rdma.Write, Flags: rdma.Signaled, SGL: []rdma.SGE{rdma.Segment(x.mr, 0, size)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()}}
				b.SetBytes(int64(size))
				b.ResetTimer()
				for posted, completed := 0, 0; completed < b.N; completed++ {
					for posted < b.N && posted-completed < depth {
						x.post(wr...)
						posted++
					}
					x.success()
				}
			})
		})
	}
}

// BenchmarkCalls is the cost of the calls themselves.
func BenchmarkCalls(b *testing.B) {
	eachMode(b, func(b *testing.B, io IO) {
		b.Run("PollEmpty", func(b *testing.B) {
			x, _ := connected(b, io, 0)
			b.ReportAllocs()
			for b.Loop() {
				if n, err := x.cq.Poll(x.wcs[:]); n != 0 || err != nil {
					b.Fatal(n, err)
				}
			}
		})
		b.Run("Arm", func(b *testing.B) {
			x, _ := connected(b, io, 0)
			b.ReportAllocs()
			for b.Loop() {
				if err := x.cq.Arm(false); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("PostRecv32", func(b *testing.B) {
			x, _ := connected(b, io, 0)
			recvs := make([]rdma.RecvWR, 32)
			for i := range recvs {
				recvs[i].SGL = []rdma.SGE{rdma.Segment(x.mr, 0, 8)}
			}
			b.ReportAllocs()
			var busy time.Duration
			for i := 0; i < b.N; i++ {
				start := time.Now()
				_, err := x.qp.PostRecv(recvs)
				busy += time.Since(start)
				if err != nil {
					b.Fatal(err)
				}
				if i%15 == 14 { // 480 of 511: make room
					if err := errors.Join(x.qp.Fail(), drained(x, 480)); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(busy.Nanoseconds())/float64(b.N), "ns/post")
		})
	})
}

// drained waits for n flushed completions.
func drained(e *end, n int) error {
	for range n {
		wc := e.next()
		if wc.Status != rdma.StatusFlushed {
			return wc.Err("")
		}
	}
	return nil
}
