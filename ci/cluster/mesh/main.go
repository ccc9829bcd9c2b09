// Command mesh has every rank exchange messages of many sizes with every other
// and checks each byte, then has collectives, of all lengths those that are made for several hosts. It prints one line for each rank. The
// cluster's tests run it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/weft-hpc/weft"
)

func main() {
	hold := flag.Duration("hold", 0, "afterwards, wait this long")
	deadline := flag.Bool("deadline", false, "afterwards, say how much time the job has left")
	busy := flag.Bool("busy", false, "begin anew, until the job is ended")
	lose := flag.Int("lose", -1, "afterwards this rank is killed, and the others do without: for weftrun --keep-going")
	flag.Parse()
	weft.Main(func(ctx context.Context, world *weft.Comm) error {
		for {
			if err := mesh(ctx, world, *hold); err != nil {
				return err
			}
			if *lose >= 0 {
				return without(ctx, world, *lose)
			}
			if *deadline {
				return tellDeadline(ctx, world)
			}
			if !*busy {
				return nil
			}
		}
	})
}

// tellDeadline waits until the batch system has told when the job ends.
func tellDeadline(ctx context.Context, world *weft.Comm) error {
	for range 100 {
		if at, ok := weft.Deadline(ctx); ok {
			fmt.Printf("rank %d has %d minutes left\n", world.Rank(), int(time.Until(at).Minutes()))
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("rank %d is not told when the job ends", world.Rank())
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
	if err := together(ctx, world); err != nil {
		return err
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

// together has collectives by the algorithms for several hosts, on memory that the ranks of a host map and on other.
func together(ctx context.Context, world *weft.Comm) error {
	const most = 40_000
	n, me := world.Size(), world.Rank()
	mapped, err := weft.Alloc[int64](world.World(), (n+2)*most)
	if err != nil {
		return err
	}
	s := world.Scope(ctx)
	for _, memory := range [][]int64{mapped.Slice(), make([]int64, (n+2)*most)} {
		for i, length := range []int{1, 500, 5000, most} {
			algorithm := weft.WithAlgorithm([]string{"leaders", "leaders-halving"}[i/2])
			copies := weft.WithAlgorithm([]string{"leaders", "leaders-ring"}[i/2])
			root := (i + 1) % n
			send, recv, all := memory[:length], memory[length:2*length], memory[2*length:(n+2)*length]
			for _, call := range []struct {
				name  string
				block func() error
				start func()
				got   []int64
				want  func(j int) int
			}{
				{"allreduce", func() error { return weft.Allreduce(ctx, world, send, recv, weft.Sum[int64](), algorithm) },
					func() { weft.Iallreduce(s, world, send, recv, weft.Sum[int64](), algorithm) }, recv, func(j int) int { return n*j + n*(n-1)/2 }},
				{"reduce", func() error { return weft.Reduce(ctx, world, send, recv, weft.Max[int64](), root, algorithm) },
					func() { weft.Ireduce(s, world, send, recv, weft.Max[int64](), root, algorithm) }, recv, func(j int) int { return j + n - 1 }},
				{"allgather", func() error { return weft.Allgather(ctx, world, send, all, copies) },
					func() { weft.Iallgather(s, world, send, all, copies) }, all, func(j int) int { return j%length + j/length }},
				{"bcast", func() error { return weft.Bcast(ctx, world, send, root, copies) },
					func() { weft.Ibcast(s, world, send, root, copies) }, send, func(j int) int { return j + root }},
			} {
				for _, form := range []func() error{call.block, func() error { call.start(); return s.Wait() }} {
					for j := range send {
						send[j] = int64(j + me)
					}
					clear(memory[length : (n+2)*length])
					if err := errors.Join(form(), weft.Barrier(ctx, world, weft.WithAlgorithm("leaders"))); err != nil {
						return err
					}
					for j, got := range call.got {
						if want := call.want(j); got != int64(want) && (call.name != "reduce" || me == root) {
							return fmt.Errorf("rank %d: %s of %d: element %d is %d, not %d", me, call.name, length, j, got, want)
						}
					}
				}
			}
		}
	}
	return mapped.Free()
}

// without has all ranks but one, which dies, see that it is gone, and then exchange messages.
func without(ctx context.Context, world *weft.Comm, lost int) error {
	me := world.Rank()
	// Until all are through with what they do together, they need it.
	if me == lost {
		for range world.Size() - 1 {
			if _, err := weft.Recv(ctx, world, make([]byte, 1), weft.AnySource, 2); err != nil {
				return err
			}
		}
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	if err := weft.Send(ctx, world, []byte{1}, lost, 2); err != nil {
		return err
	}
	if _, err := weft.Recv(ctx, world, make([]byte, 1), lost, 0); !errors.Is(err, weft.ErrRankFailed) {
		return fmt.Errorf("rank %d received from rank %d, which is dead: %w", me, lost, err)
	}
	for peer := range world.Size() {
		if peer == me || peer == lost {
			continue
		}
		out, in := []int{me}, []int{-1}
		if _, err := weft.Sendrecv(ctx, world, out, peer, 1, in, peer, 1); err != nil {
			return err
		}
		if in[0] != peer {
			return fmt.Errorf("rank %d got %d from rank %d", me, in[0], peer)
		}
	}
	fmt.Printf("rank %d does without rank %d\n", me, lost)
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
