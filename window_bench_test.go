package weft_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weft-hpc/weft"
)

func BenchmarkWindow(b *testing.B) {
	for _, f := range windowFabrics {
		if f.cfg.Seed != 0 {
			continue
		}
		bench := func(name string, bytes int64, length int, op func(ctx context.Context, w *weft.Window[int64], buf []int64) error) {
			b.Run(f.name+"/"+name, func(b *testing.B) {
				b.SetBytes(bytes)
				b.ReportAllocs()
				err := weft.Local(context.Background(), 2, func(ctx context.Context, c *weft.Comm) error {
					w, err := weft.NewWindow[int64](ctx, c, length)
					if err != nil {
						return err
					}
					buf := make([]int64, length)
					if c.Rank() == 0 {
						b.ResetTimer()
						for range b.N {
							if err := op(ctx, w, buf); err != nil {
								return err
							}
						}
						if err := w.FlushAll(ctx); err != nil {
							return err
						}
						b.StopTimer()
					}
					return w.Close(ctx)
				}, weft.WithFabric(f.cfg))
				if err != nil {
					b.Fatal(err)
				}
			})
		}
		bench("Put8", 8, 1, func(ctx context.Context, w *weft.Window[int64], buf []int64) error { return w.Put(ctx, 1, 0, buf) })
		bench("Put1M", 1<<20, 1<<17, func(ctx context.Context, w *weft.Window[int64], buf []int64) error { return w.Put(ctx, 1, 0, buf) })
		bench("Get8", 8, 1, func(ctx context.Context, w *weft.Window[int64], buf []int64) error {
			return errors.Join(w.Get(ctx, 1, 0, buf), w.Flush(ctx, 1))
		})
		bench("FetchAdd", 8, 1, func(ctx context.Context, w *weft.Window[int64], _ []int64) error {
			_, err := weft.FetchAdd(ctx, w, 1, 0, 1)
			return err
		})
	}
}

// BenchmarkWindowProcesses is about real ranks. Each transport is one run, which prints its own
// figures.
func BenchmarkWindowProcesses(b *testing.B) {
	for _, transport := range testTransports() {
		for _, way := range []string{"", "messages"} {
			if transport == "tcp" && way != "" {
				continue
			}
			b.Run(transport+" "+way, func(b *testing.B) {
				for range b.N {
					out, code := launch(b, 2, transport, "window figures", "-x", waysVariable+"="+way)
					if code != 0 {
						b.Fatalf("exit code %d; output:\n%s", code, out)
					}
					for line := range strings.Lines(out) {
						var figure string
						var ns float64
						if n, _ := fmt.Sscan(line, &figure, &ns); n == 2 {
							b.ReportMetric(ns, figure+"-ns")
						}
					}
					b.ReportMetric(0, "ns/op")
				}
			})
		}
	}
}

// windowFigures measures from rank 0, while rank 1 waits or computes.
func windowFigures(ctx context.Context, c *weft.Comm) error {
	w, err := weft.NewWindow[int64](ctx, c, 1<<17)
	if err != nil {
		return err
	}
	buf := make([]int64, 1<<17)
	measure := func(name string, budget time.Duration, op func() error, last func() error) error {
		for range 100 { // warm
			if err := op(); err != nil {
				return err
			}
		}
		n := 0
		start := time.Now()
		for time.Since(start) < budget {
			for range 32 {
				if err := op(); err != nil {
					return err
				}
			}
			n += 32
		}
		if err := last(); err != nil {
			return err
		}
		fmt.Println(name, float64(time.Since(start).Nanoseconds())/float64(n))
		return nil
	}
	flush := func() error { return w.Flush(ctx, 1) }
	none := func() error { return nil }
	const budget = 300 * time.Millisecond
	if c.Rank() == 0 {
		for _, f := range []struct {
			name string
			op   func() error
			last func() error
		}{
			{"put-8B", func() error { return w.Put(ctx, 1, 0, buf[:1]) }, flush},
			{"put-8B-flush", func() error { return errors.Join(w.Put(ctx, 1, 0, buf[:1]), w.Flush(ctx, 1)) }, none},
			{"put-1MiB", func() error { return w.Put(ctx, 1, 0, buf) }, flush},
			{"get-8B-flush", func() error { return errors.Join(w.Get(ctx, 1, 0, buf[:1]), w.Flush(ctx, 1)) }, none},
			{"get-1MiB", func() error { return w.Get(ctx, 1, 0, buf) }, flush},
			{"fetch-add", func() error { _, err := weft.FetchAdd(ctx, w, 1, 0, 1); return err }, none},
		} {
			if err := measure(f.name, budget, f.op, f.last); err != nil {
				return err
			}
		}
	}
	if err := w.Fence(ctx); err != nil {
		return err
	}
	const rounds = 20000
	start := time.Now()
	for range rounds {
		if c.Rank() == 0 {
			err = w.PutNotify(ctx, 1, 0, buf[:1], 0)
		}
		if err == nil {
			_, err = w.Notified(ctx, 1-c.Rank(), 0)
		}
		if err == nil && c.Rank() == 1 {
			err = w.PutNotify(ctx, 0, 0, buf[:1], 0)
		}
		if err != nil {
			return err
		}
	}
	if c.Rank() == 0 {
		fmt.Println("notify-one-way", float64(time.Since(start).Nanoseconds())/rounds/2)
	}
	// What an open window costs the messages beside it.
	for _, name := range []string{"send-one-way-window-open", "send-one-way"} {
		start := time.Now()
		for range rounds {
			if c.Rank() == 0 {
				err = weft.Send(ctx, c, buf[:1], 1, 0)
			}
			if err == nil {
				_, err = weft.Recv(ctx, c, buf[:1], 1-c.Rank(), 0)
			}
			if err == nil && c.Rank() == 1 {
				err = weft.Send(ctx, c, buf[:1], 0, 0)
			}
			if err != nil {
				return err
			}
		}
		if c.Rank() == 0 {
			fmt.Println(name, float64(time.Since(start).Nanoseconds())/rounds/2)
		}
		if name == "send-one-way-window-open" {
			if err := w.Close(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// windowIdle checks that an open window costs no processor time.
func windowIdle(ctx context.Context, c *weft.Comm) error {
	w, err := weft.NewWindow[int64](ctx, c, 1)
	if err != nil {
		return err
	}
	time.Sleep(50 * time.Millisecond)
	if c.Rank() == 0 {
		time.Sleep(time.Second)
		if err := w.PutNotify(ctx, 1, 0, []int64{1}, 0); err != nil {
			return err
		}
		return w.Close(ctx)
	}
	before := processorTime()
	if _, err := w.Notified(ctx, 0, 0); err != nil {
		return err
	}
	if used := processorTime() - before; used > idleLimit() {
		return fmt.Errorf("one second in Notified took %v of processor time", used)
	}
	return w.Close(ctx)
}
