package verbs

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/pause"
	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

// benchSink counts.
type benchSink struct {
	frames, landed, sent int
	dest                 []byte
}

func (s *benchSink) Frame(int, *wire.Header, []byte)    { s.frames++ }
func (s *benchSink) Dest(int, *wire.Header, int) []byte { return s.dest }
func (s *benchSink) Landed(int, *wire.Header)           { s.landed++ }
func (s *benchSink) Sent(int, uint32)                   { s.sent++ }
func (s *benchSink) PeerDown(_ int, err error)          { panic(err) }

// benchWorld makes two connected ranks on the real device.
func benchWorld(b *testing.B) (w *world, sinks [2]*benchSink) {
	b.Helper()
	w = realWorld(b, 2, options{})
	b.Cleanup(func() {
		for _, r := range w.ranks {
			if err := r.Close(); err != nil {
				b.Error(err)
			}
		}
	})
	sinks = [2]*benchSink{{}, {}}
	for i := range 2 {
		for want := sinks[1-i].frames + 1; sinks[1-i].frames < want; {
			if err := w.ranks[i].Send(1-i, eager(0), nil); err == nil {
				for sinks[1-i].frames < want {
					w.ranks[0].Poll(sinks[0])
					w.ranks[1].Poll(sinks[1])
				}
			}
			w.ranks[0].Poll(sinks[0])
			w.ranks[1].Poll(sinks[1])
		}
	}
	*sinks[0], *sinks[1] = benchSink{}, benchSink{}
	return w, sinks
}

// spin polls, as the engine does while it spins.
func spin(t *Transport, s *benchSink) {
	if t.Poll(s) == 0 {
		pause.Spin(1)
	}
}

// BenchmarkDeviceLatency is half a round trip of 8 bytes. On a machine that others use as well the mean
// means little.
func BenchmarkDeviceLatency(b *testing.B) {
	w, s := benchWorld(b)
	payload := make([]byte, 8)
	done := make(chan error)
	b.ResetTimer()
	go func() {
		for i := range b.N {
			for s[1].frames <= i {
				spin(w.ranks[1], s[1])
			}
			if err := w.ranks[1].Send(0, eager(i), payload); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	times := make([]time.Duration, b.N)
	for i := range b.N {
		start := time.Now()
		if err := w.ranks[0].Send(1, eager(i), payload); err != nil {
			b.Fatal(err)
		}
		for s[0].frames <= i {
			spin(w.ranks[0], s[0])
		}
		times[i] = time.Since(start)
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/2, "median-ns/half")
	b.ReportMetric(float64(times[0].Nanoseconds())/2, "best-ns/half")
}

// BenchmarkDeviceRate is how fast 8 bytes go one way.
func BenchmarkDeviceRate(b *testing.B) {
	w, s := benchWorld(b)
	payload := make([]byte, 8)
	var over atomic.Bool
	done := make(chan struct{})
	const step = 100
	var marks []time.Time
	b.ResetTimer()
	go func() {
		defer close(done)
		for s[1].frames < b.N {
			spin(w.ranks[1], s[1])
			if s[1].frames >= len(marks)*step {
				marks = append(marks, time.Now())
			}
		}
		over.Store(true)
	}()
	for i := 0; i < b.N; {
		switch err := w.ranks[0].Send(1, eager(i), payload); {
		case err == nil:
			i++
		case errors.Is(err, transport.ErrAgain):
			spin(w.ranks[0], s[0])
		default:
			b.Fatal(err)
		}
	}
	for !over.Load() {
		spin(w.ranks[0], s[0])
	}
	<-done
	best(b, marks, step, 8)
}

// best reports the fastest and the median of the intervals, each of step messages of n bytes.
func best(b *testing.B, marks []time.Time, step, n int) {
	var d []time.Duration
	for i := 1; i < len(marks); i++ {
		d = append(d, marks[i].Sub(marks[i-1]))
	}
	if len(d) == 0 {
		return
	}
	slices.Sort(d)
	rate := func(d time.Duration) float64 { return float64(step) / d.Seconds() }
	b.ReportMetric(rate(d[0])*float64(n)/(1<<20), "best-MiB/s")
	b.ReportMetric(rate(d[len(d)/2])*float64(n)/(1<<20), "median-MiB/s")
	b.ReportMetric(rate(d[0]), "best-msg/s")
}

// BenchmarkDeviceBulk is the bandwidth between buffers of arena memory.
func BenchmarkDeviceBulk(b *testing.B) {
	for _, n := range []int{64 << 10, 256 << 10, 1 << 20, 4 << 20} {
		b.Run(fmt.Sprint(n>>10, "KiB"), func(b *testing.B) {
			w, s := benchWorld(b)
			const window = 16
			src, err := w.alloc(0, n)
			if err != nil {
				b.Fatal(err)
			}
			dst, err := w.alloc(1, n)
			if err != nil {
				b.Fatal(err)
			}
			s[1].dest = dst
			regions := make(chan wire.Region, window)
			step := max(1, (256<<10)/n)
			var marks []time.Time
			b.SetBytes(int64(n))
			b.ResetTimer()
			done := make(chan struct{})
			go func() {
				defer close(done)
				for out := 0; s[1].landed < b.N; {
					if s[1].landed >= len(marks)*step {
						marks = append(marks, time.Now())
					}
					if out < b.N && out-s[1].landed < window {
						r, err := w.ranks[1].Expose(0, 7, dst)
						if err != nil {
							panic(err)
						}
						regions <- r
						out++
						continue
					}
					spin(w.ranks[1], s[1])
				}
			}()
			for i := 0; i < b.N; i++ {
				var r wire.Region
				for ok := false; !ok; {
					select {
					case r = <-regions:
						ok = true
					default:
						spin(w.ranks[0], s[0])
					}
				}
				h := dataHeader(7, r)
				h.Seq = uint32(i + 1) // benchWorld sent number 0
				for {
					err := w.ranks[0].SendBulk(1, h, src, 0)
					if err == nil {
						break
					}
					if !errors.Is(err, transport.ErrAgain) {
						b.Fatal(err)
					}
					spin(w.ranks[0], s[0])
				}
			}
			for s[0].sent < b.N {
				spin(w.ranks[0], s[0])
			}
			<-done
			best(b, marks, step, n)
		})
	}
}

// BenchmarkDevicePoll is a Poll that finds nothing.
func BenchmarkDevicePoll(b *testing.B) {
	w, s := benchWorld(b)
	for b.Loop() {
		w.ranks[0].Poll(s[0])
	}
}
