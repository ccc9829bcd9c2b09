// Command osu is Weft's side of the comparison in bench/compare, and the twin of
// bench/peers/contestant.c: the same orders (bench/peers/serve.h), loops, sizes
// and buffers, through Weft's public API.
//
//	weftrun -n 2 osu DIR
//
// A test that fails ends the job: its ranks would be out of step.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/weft-hpc/weft"
)

const maxWindow = 64

// limits returns the bytes of the buffers that one of so many ranks has: with up to
// eight ranks, recv is enough to gather 4 MiB from each.
func limits(ranks int) (send, recv int) {
	const mib = 1 << 20
	switch {
	case ranks == 2:
		return 16 * mib, 16 * mib
	case ranks <= 8:
		return 4 * mib, 4 * mib * ranks
	}
	return mib, mib
}

// buffers are memory of one kind. Numbers are for reductions, whose results are
// no longer than what is sent.
type buffers struct {
	send, recv       []byte
	sendNum, recvNum []float64
}

// rank is this process in the job.
type rank struct {
	ctx   context.Context
	c     *weft.Comm
	scope *weft.Scope
	kinds map[string]*buffers // by memory
	limit int                 // bytes of what is sent
	sum   weft.Op[float64]
}

func main() {
	weft.Main(func(ctx context.Context, world *weft.Comm) error {
		if len(os.Args) != 2 {
			return errors.New("usage: osu DIR")
		}
		return play(ctx, world, os.Args[1])
	})
}

// play serves the commands for this rank in dir until they end.
func play(ctx context.Context, world *weft.Comm, dir string) error {
	r := &rank{ctx: ctx, c: world, scope: world.Scope(ctx), kinds: map[string]*buffers{}, sum: weft.Sum[float64]()}
	if err := r.allocate(); err != nil {
		return err
	}
	if err := weft.Barrier(ctx, world); err != nil { // hello means: the job is up
		return err
	}
	return r.serve(dir)
}

func (r *rank) allocate() error {
	send, recv := limits(r.c.Size())
	r.limit = send
	slice := &buffers{make([]byte, send), make([]byte, recv), make([]float64, send/8), make([]float64, send/8)}
	arena := &buffers{}
	for p, n := range map[*[]byte]int{&arena.send: send, &arena.recv: recv} {
		b, err := weft.Alloc[byte](r.c.World(), n)
		if err != nil {
			return err
		}
		*p = b.Slice()
	}
	for _, p := range []*[]float64{&arena.sendNum, &arena.recvNum} {
		b, err := weft.Alloc[float64](r.c.World(), send/8)
		if err != nil {
			return err
		}
		*p = b.Slice()
	}
	for _, b := range []*buffers{slice, arena} { // touch every page
		set(b.send, 'a')
		set(b.recv, 'b')
		set(b.sendNum, 1)
		set(b.recvNum, 2)
	}
	r.kinds["slice"], r.kinds["arena"] = slice, arena
	return nil
}

// set fills s, by copies: an element at a time takes long under the race detector.
func set[T any](s []T, v T) {
	s[0] = v
	for n := 1; n < len(s); n *= 2 {
		copy(s[n:], s[:n])
	}
}

func (r *rank) serve(dir string) error {
	s, err := open(dir, r.c.Rank())
	if err != nil {
		return err
	}
	defer s.close()
	var c command
	for {
		if more, err := s.next(&c); !more {
			return err
		}
		if err := r.refuse(&c); err != nil {
			if err := s.answer(0, err); err != nil {
				return err
			}
			continue
		}
		value, err := r.run(&c)
		if err := errors.Join(err, s.answer(value, err)); err != nil {
			return err
		}
	}
}

// refuse says why c cannot be run; all ranks come to the same answer.
func (r *rank) refuse(c *command) error {
	op, _ := collectiveOf(c.test)
	switch {
	case c.bytes < 0 || c.bytes > r.limit || c.window < 1 || c.window > maxWindow || c.iters < 1 || c.warmup < 0:
		return errors.New("command out of range")
	case r.kinds[c.memory] == nil:
		return fmt.Errorf("unknown memory %q", c.memory)
	case c.mode != "osu" && (op == nil && c.mode != "touch" || op != nil && c.mode != "check"):
		return fmt.Errorf("unknown mode %q", c.mode)
	case op != nil:
		return r.refuseCollective(c, op)
	case tests[c.test] == nil:
		return fmt.Errorf("unknown test %q", c.test)
	case r.c.Size() != 2 && c.test != "barrier":
		return fmt.Errorf("%s needs two ranks", c.test)
	}
	return nil
}

var tests = map[string]func(*rank, *command) (float64, error){
	"latency":          (*rank).latency,
	"bw":               (*rank).bandwidth,
	"barrier":          (*rank).barrier,
	"cpu":              (*rank).blocked,
	"allocs_sendrecv":  (*rank).allocsSendrecv,
	"allocs_allreduce": (*rank).allocsAllreduce,
}

func (r *rank) run(c *command) (float64, error) {
	if err := weft.Barrier(r.ctx, r.c); err != nil { // ranks read their commands at different times
		return 0, err
	}
	if test := tests[c.test]; test != nil {
		return test(r, c)
	}
	return r.collective(c)
}

// per is the time since t0 for each of n operations, in nanoseconds.
func per(t0 time.Time, n int) float64 { return float64(time.Since(t0)) / float64(n) }

func (r *rank) latency(c *command) (float64, error) {
	b := r.kinds[c.memory]
	send, recv := b.send[:c.bytes], b.recv[:c.bytes]
	touch, peer := c.mode == "touch", 1-r.c.Rank()
	var t0 time.Time
	bad := 0
	for i := range c.warmup + c.iters {
		if i == c.warmup {
			t0 = time.Now()
		}
		if r.c.Rank() == 0 {
			if touch {
				fill(send, uint64(i))
			}
			if err := weft.Send(r.ctx, r.c, send, peer, 1); err != nil {
				return 0, err
			}
			if _, err := weft.Recv(r.ctx, r.c, recv, peer, 1); err != nil {
				return 0, err
			}
			if touch {
				bad += check(recv, uint64(i)+1)
			}
			continue
		}
		if _, err := weft.Recv(r.ctx, r.c, recv, peer, 1); err != nil {
			return 0, err
		}
		if touch {
			bad += check(recv, uint64(i))
			fill(send, uint64(i)+1)
		}
		if err := weft.Send(r.ctx, r.c, send, peer, 1); err != nil {
			return 0, err
		}
	}
	return per(t0, 2*c.iters), wrong(bad)
}

func (r *rank) bandwidth(c *command) (float64, error) {
	b := r.kinds[c.memory]
	send, recv := b.send[:c.bytes], b.recv[:c.bytes]
	touch := c.mode == "touch"
	ack := make([]byte, 4)
	var t0 time.Time
	bad := 0
	for i := range c.warmup + c.iters {
		if i == c.warmup {
			t0 = time.Now()
		}
		if r.c.Rank() == 0 {
			if touch {
				fill(send, uint64(i))
			}
			for range c.window {
				weft.Isend(r.scope, r.c, send, 1, 100)
			}
			if err := r.scope.Wait(); err != nil {
				return 0, err
			}
			if _, err := weft.Recv(r.ctx, r.c, ack, 1, 101); err != nil {
				return 0, err
			}
			continue
		}
		for range c.window {
			weft.Irecv(r.scope, r.c, recv, 0, 100)
		}
		if err := r.scope.Wait(); err != nil {
			return 0, err
		}
		if touch {
			bad += check(recv, uint64(i))
		}
		if err := weft.Send(r.ctx, r.c, ack, 0, 101); err != nil {
			return 0, err
		}
	}
	return per(t0, c.iters*c.window), wrong(bad)
}

func (r *rank) barrier(c *command) (float64, error) {
	var t0 time.Time
	for i := range c.warmup + c.iters {
		if i == c.warmup {
			t0 = time.Now()
		}
		if err := weft.Barrier(r.ctx, r.c); err != nil {
			return 0, err
		}
	}
	return per(t0, c.iters), nil
}

// blocked returns the cores that rank 0 uses while it waits a second in Recv.
func (r *rank) blocked(*command) (float64, error) {
	b := make([]byte, 8)
	if r.c.Rank() == 1 {
		time.Sleep(time.Second)
		return 0, weft.Send(r.ctx, r.c, b, 0, 2)
	}
	t0, c0 := time.Now(), cpuTime()
	_, err := weft.Recv(r.ctx, r.c, b, 1, 2)
	return float64(cpuTime()-c0) / float64(time.Since(t0)), err
}

// cpuTime is the processor time that this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // only a bad argument makes it fail
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// allocations counts what this process allocates, in all of its goroutines, for
// one iteration of body.
func allocations(c *command, body func() error) (float64, error) {
	var before, after runtime.MemStats
	for i := range c.warmup + c.iters {
		if i == c.warmup {
			runtime.ReadMemStats(&before)
		}
		if err := body(); err != nil {
			return 0, err
		}
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(c.iters), nil
}

// allocsSendrecv counts for one Send and one Recv.
func (r *rank) allocsSendrecv(c *command) (float64, error) {
	b := r.kinds[c.memory]
	send, recv, peer := b.send[:c.bytes], b.recv[:c.bytes], 1-r.c.Rank()
	return allocations(c, func() error {
		if r.c.Rank() == 0 {
			if err := weft.Send(r.ctx, r.c, send, peer, 3); err != nil {
				return err
			}
			_, err := weft.Recv(r.ctx, r.c, recv, peer, 3)
			return err
		}
		if _, err := weft.Recv(r.ctx, r.c, recv, peer, 3); err != nil {
			return err
		}
		return weft.Send(r.ctx, r.c, send, peer, 3)
	})
}

func (r *rank) allocsAllreduce(c *command) (float64, error) {
	b := r.kinds[c.memory]
	send, recv := b.sendNum[:c.bytes/8], b.recvNum[:c.bytes/8]
	return allocations(c, func() error { return weft.Allreduce(r.ctx, r.c, send, recv, r.sum) })
}

// fill writes one word into every cache line of b, different for each seed.
func fill(b []byte, seed uint64) {
	if len(b) < 8 {
		for i := range b {
			b[i] = byte(seed)
		}
	}
	for i := 0; i+8 <= len(b); i += 64 {
		binary.LittleEndian.PutUint64(b[i:], seed+uint64(i))
	}
}

// check reads what fill wrote and returns the number of words that differ.
func check(b []byte, seed uint64) int {
	bad := 0
	if len(b) < 8 {
		for _, v := range b {
			if v != byte(seed) {
				bad++
			}
		}
	}
	for i := 0; i+8 <= len(b); i += 64 {
		if binary.LittleEndian.Uint64(b[i:]) != seed+uint64(i) {
			bad++
		}
	}
	return bad
}

func wrong(words int) error {
	if words == 0 {
		return nil
	}
	return fmt.Errorf("%d words arrived wrong", words)
}
