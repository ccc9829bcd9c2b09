// Command mesh has every rank exchange messages of many sizes with every other
// and checks each byte, then a few collectives. It prints one line for each rank. The
// cluster's tests run it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/weft-hpc/weft"
)

func main() {
	hold := flag.Duration("hold", 0, "afterwards, wait this long")
	busy := flag.Bool("busy", false, "begin anew, until the job is ended")
	flag.Parse()
	weft.Main(func(ctx context.Context, world *weft.Comm) error {
		for {
			if err := mesh(ctx, world, *hold); err != nil || !*busy {
				return err
			}
		}
	})
}

var sizes = []int{0, 1, 100, 4 << 10, 17_000, 65_537, 1 << 20}

func mesh(ctx context.Context, world *weft.Comm, hold time.Duration) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	me, n := world.Rank(), world.Size()
	for step := 1; step < n; step++ {
		to, from := (me+step)%n, (me-step+n)%n
		for tag, size := range sizes {
			out, in := make([]byte, size), make([]byte, size)
			fill(out, me, to, tag)
			if _, err := weft.Sendrecv(ctx, world, out, to, tag, in, from, tag); err != nil {
				return err
			}
			want := make([]byte, size)
			fill(want, from, me, tag)
			if string(want) != string(in) {
				return fmt.Errorf("rank %d got another message of %d bytes from rank %d than it sent", me, size, from)
			}
		}
	}
	sum, err := weft.AllreduceValue(ctx, world, float64(me+1), weft.Sum[float64]())
	if err != nil {
		return err
	}
	if want := float64(n * (n + 1) / 2); sum != want {
		return fmt.Errorf("rank %d: the sum of all is %v, not %v", me, sum, want)
	}
	long, total := make([]float64, 100_000), make([]float64, 100_000)
	for i := range long {
		long[i] = float64(me * i)
	}
	if err := weft.Allreduce(ctx, world, long, total, weft.Sum[float64]()); err != nil {
		return err
	}
	for i, v := range total {
		if want := float64(n * (n - 1) / 2 * i); v != want {
			return fmt.Errorf("rank %d: element %d of the sum is %v, not %v", me, i, v, want)
		}
	}
	fmt.Printf("rank %d of %d on %s is right\n", me, n, host)
	if hold > 0 {
		select {
		case <-time.After(hold):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// fill fills b with what one rank sends another.
func fill(b []byte, from, to, tag int) {
	x := uint32(from*1_000_003 + to*10_007 + tag + 1)
	for i := range b {
		x = x*1_664_525 + 1_013_904_223
		b[i] = byte(x >> 24)
	}
}
