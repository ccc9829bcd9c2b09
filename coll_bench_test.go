package weft_test

import (
	"context"
	"testing"

	"github.com/weft-hpc/weft"
)

// BenchmarkShort is what the calls of short collectives cost by themselves: one goroutine calls
// them for both ranks, in an order in which nobody has to wait, so no cache line travels. A result is of two calls.
func BenchmarkShort(b *testing.B) {
	for _, bench := range []struct {
		name       string
		order      [2]int // whose call comes first
		call       func(ctx context.Context, c *weft.Comm, send, recv []float64, sum weft.Op[float64]) error
		sends, all int // in elements
	}{
		{"Bcast", [2]int{0, 1}, func(ctx context.Context, c *weft.Comm, _, recv []float64, _ weft.Op[float64]) error {
			return weft.Bcast(ctx, c, recv, 0)
		}, 1, 1},
		{"Scatter", [2]int{0, 1}, func(ctx context.Context, c *weft.Comm, send, recv []float64, _ weft.Op[float64]) error {
			return weft.Scatter(ctx, c, send, recv, 0)
		}, 2, 1},
		{"Gather", [2]int{1, 0}, func(ctx context.Context, c *weft.Comm, send, recv []float64, _ weft.Op[float64]) error {
			return weft.Gather(ctx, c, send, recv, 0)
		}, 1, 2},
		{"Reduce", [2]int{1, 0}, func(ctx context.Context, c *weft.Comm, send, recv []float64, sum weft.Op[float64]) error {
			return weft.Reduce(ctx, c, send, recv, sum, 0)
		}, 1, 1},
		{"Scan", [2]int{0, 1}, func(ctx context.Context, c *weft.Comm, send, recv []float64, sum weft.Op[float64]) error {
			return weft.Scan(ctx, c, send, recv, sum)
		}, 1, 1},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			second, done := make(chan *weft.Comm), make(chan bool)
			err := weft.Local(context.Background(), 2, func(ctx context.Context, c *weft.Comm) error {
				if c.Rank() == 1 {
					second <- c
					<-done
					return nil
				}
				defer close(done)
				comms := [2]*weft.Comm{c, <-second}
				first, last := comms[bench.order[0]], comms[bench.order[1]]
				send, recv, sum := make([]float64, bench.sends), make([]float64, bench.all), weft.Sum[float64]()
				for b.Loop() {
					if err := bench.call(ctx, first, send, recv, sum); err != nil {
						return err
					}
					if err := bench.call(ctx, last, send, recv, sum); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}
