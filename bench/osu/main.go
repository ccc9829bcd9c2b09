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

const (
	pairLimit  = 16 << 20 // bytes of a buffer with two ranks
	crowdLimit = 1 << 20
	maxWindow  = 64
)

// buffers are memory of one kind. Numbers are for reductions.
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
	limit int
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
	r := &rank{ctx: ctx, c: world, scope: world.Scope(ctx), kinds: map[string]*buffers{}, limit: crowdLimit,
		sum: weft.Sum[float64]()}
	if world.Size() == 2 {
		r.limit = pairLimit
	}
	if err := r.allocate(); err != nil {
		return err
	}
	if err := weft.Barrier(ctx, world); err != nil { // hello means: the job is up
		return err
	}
	return r.serve(dir)
}

func (r *rank) allocate() error {
	slice := &buffers{make([]byte, r.limit), make([]byte, r.limit), make([]float64, r.limit/8), make([]float64, r.limit/8)}
	arena := &buffers{}
	for _, p := range []*[]byte{&arena.send, &arena.recv} {
		b, err := weft.Alloc[byte](r.c.World(), r.limit)
		if err != nil {
			return err
		}
		*p = b.Slice()
	}
	for _, p := range []*[]float64{&arena.sendNum, &arena.recvNum} {
		b, err := weft.Alloc[float64](r.c.World(), r.limit/8)
		if err != nil {
			return err
		}
		*p = b.Slice()
	}
	for _, b := range []*buffers{slice, arena} { // touch every page
		for i := range b.send {
			b.send[i], b.recv[i] = 'a', 'b'
		}
		for i := range b.sendNum {
			b.sendNum[i], b.recvNum[i] = 1, 2
		}
	}
	r.kinds["slice"], r.kinds["arena"] = slice, arena
	return nil
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
	pair := r.c.Size() == 2
	switch {
	case c.bytes < 0 || c.bytes > r.limit || c.window < 1 || c.window > maxWindow || c.iters < 1 || c.warmup < 0:
		return errors.New("command out of range")
	case r.kinds[c.memory] == nil:
		return fmt.Errorf("unknown memory %q", c.memory)
	case c.mode != "osu" && c.mode != "touch":
		return fmt.Errorf("unknown mode %q", c.mode)
	case tests[c.test] == nil:
		return fmt.Errorf("unknown test %q", c.test)
	case !pair && c.test != "barrier" && c.test != "allreduce":
		return fmt.Errorf("%s needs two ranks", c.test)
	}
	return nil
}

var tests = map[string]func(*rank, *command) (float64, error){
	"latency":          (*rank).latency,
	"bw":               (*rank).bandwidth,
	"barrier":          (*rank).barrier,
	"allreduce":        (*rank).allreduce,
	"cpu":              (*rank).blocked,
	"allocs_sendrecv":  (*rank).allocsSendrecv,
	"allocs_allreduce": (*rank).allocsAllreduce,
}

func (r *rank) run(c *command) (float64, error) {
	if err := weft.Barrier(r.ctx, r.c); err != nil { // ranks read their commands at different times
		return 0, err
	}
	return tests[c.test](r, c)
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

func (r *rank) allreduce(c *command) (float64, error) {
	b := r.kinds[c.memory]
	send, recv := b.sendNum[:c.bytes/8], b.recvNum[:c.bytes/8]
	var t0 time.Time
	for i := range c.warmup + c.iters {
		if i == c.warmup {
			t0 = time.Now()
		}
		if err := weft.Allreduce(r.ctx, r.c, send, recv, r.sum); err != nil {
			return 0, err
		}
	}
	ns := per(t0, c.iters)
	for _, v := range recv {
		if v != float64(r.c.Size()) {
			return 0, fmt.Errorf("wrong sum from Allreduce: %v instead of %d", v, r.c.Size())
		}
	}
	return ns, nil
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
