package weft_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weft-hpc/weft"
	"github.com/weft-hpc/weft/internal/transport/sim"
)

// windowPrograms are the suite for windows: each runs on worlds of goroutines, in
// every way that a window can work, and as processes on every transport.
var windowPrograms = []struct {
	name  string
	ranks []int
	run   func(ctx context.Context, c *weft.Comm) error
}{
	{"put and get", []int{1, 2, 3, 5, 8}, windowPutGet},
	{"notify", []int{1, 2, 3, 5}, windowNotify},
	{"notify order", []int{2, 3}, windowNotifyOrder},
	{"counter", []int{1, 2, 3, 5, 8}, windowCounter},
	{"lock", []int{1, 2, 3, 5}, windowLock},
	{"ranges", []int{1, 2, 3}, windowRanges},
	{"lengths", []int{1, 2, 3, 5, 8}, windowLengths},
	{"sub-communicators", []int{2, 3, 5, 8}, windowSplit},
	{"many windows", []int{1, 2, 3}, windowMany},
	{"passive", []int{2, 3}, windowPassive},
	{"goroutines", []int{1, 2, 3}, windowGoroutines},
	{"contexts", []int{2, 3}, windowContexts},
	{"make fails", []int{1, 2, 3, 5}, windowMakeFails},
	{"close", []int{1, 2, 3}, windowClose},
	{"random", []int{1, 2, 3, 5, 8}, func(ctx context.Context, c *weft.Comm) error { return windowRandom(ctx, c, 17, 10) }},
}

// windowFabrics are the worlds of goroutines.
var windowFabrics = []struct {
	name, way string
	cfg       sim.Config
	eager     int
}{
	{"direct", "direct:", sim.Config{}, 0},
	{"direct, slow", "direct:", sim.Config{Seed: 7, Delay: 4, Again: 0.2, Duplicate: 0.2}, 0},
	{"remote", "remote:", sim.Config{Remote: true}, 0},
	{"remote, slow", "remote:", sim.Config{Seed: 5, Delay: 5, Again: 0.3, Duplicate: 0.2, Remote: true}, 256},
	{"messages", "messages:", sim.Config{NoMap: true}, 0},
	{"messages, slow", "messages:", sim.Config{Seed: 9, Delay: 4, Again: 0.2, Duplicate: 0.2, NoPull: true, NoMap: true}, 64},
}

func TestWindow(t *testing.T) {
	for _, f := range windowFabrics {
		for _, p := range windowPrograms {
			for _, n := range p.ranks {
				t.Run(fmt.Sprintf("%s/%s/%d", f.name, p.name, n), func(t *testing.T) {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					opts := []weft.Option{weft.WithFaults(weft.Faults{Eager: f.eager}), weft.WithFabric(f.cfg)}
					if err := weft.Local(ctx, n, p.run, opts...); err != nil {
						t.Fatal(err)
					}
				})
			}
		}
	}
}

// TestWindowWay sees to it that the fabrics of these tests make windows work as they should.
func TestWindowWay(t *testing.T) {
	for _, f := range windowFabrics {
		err := weft.Local(context.Background(), 2, func(ctx context.Context, c *weft.Comm) error {
			w, err := weft.NewWindow[int](ctx, c, 1)
			if err != nil {
				return err
			}
			if !strings.HasPrefix(w.Transport(), f.way) {
				err = fmt.Errorf("a window on fabric %q works by %q", f.name, w.Transport())
			}
			return errors.Join(err, w.Close(ctx))
		}, weft.WithFabric(f.cfg))
		if err != nil {
			t.Error(err)
		}
	}
}

// windowRandom does random operations that do not meet, and compares the windows with a plain
// model after each Fence. All ranks draw the same operations, and each does its own.
func windowRandom(ctx context.Context, c *weft.Comm, seed uint64, rounds int) error {
	n, me := c.Size(), c.Rank()
	r := rand.New(rand.NewPCG(seed, 4))
	model := make([][]int64, n)
	for i := range model {
		model[i] = make([]int64, r.IntN(3)*r.IntN(4000))
	}
	w, err := weft.NewWindow[int64](ctx, c, len(model[me]))
	if err != nil {
		return err
	}
	for round := range rounds {
		var later []func() error
		notes := 0
		for target := range n {
			mem := model[target]
			for at := 0; at < len(mem); {
				size := 1 + r.IntN(min(len(mem)-at, 1<<r.IntN(12)))
				here, origin := mem[at:at+size], r.IntN(n)
				offset, value := at, r.Int64()
				switch r.IntN(5) {
				case 0, 1: // put, perhaps with a notification
					notify := r.IntN(3) == 0
					for i := range here {
						here[i] = value + int64(i)
					}
					if notify && target == me {
						notes++
					}
					if origin == me {
						src := slices.Clone(here)
						if notify {
							err = w.PutNotify(ctx, target, offset, src, round)
						} else {
							err = w.Put(ctx, target, offset, src)
						}
					}
				case 2: // get, by several
					for range 1 + r.IntN(2) {
						if r.IntN(n) == me && err == nil {
							want, got := slices.Clone(here), make([]int64, size)
							err = w.Get(ctx, target, offset, got)
							later = append(later, func() error {
								if !slices.Equal(got, want) {
									return fmt.Errorf("get of %d elements at %d of rank %d: %v, not %v", len(got), offset, target, got, want)
								}
								return nil
							})
						}
					}
				case 3: // add, by all
					for who := range n {
						add := r.Int64N(1000)
						if who == me && err == nil {
							_, err = weft.FetchAdd(ctx, w, target, offset, add)
						}
						here[0] += add
					}
				case 4: // swap that fails, then one that succeeds
					if origin == me {
						old, errSwap := weft.CompareSwap(ctx, w, target, offset, here[0]+1, 7)
						if errSwap == nil && old == here[0] {
							old, errSwap = weft.CompareSwap(ctx, w, target, offset, old, value)
						}
						if err = errSwap; err == nil && old != here[0] {
							err = fmt.Errorf("swap found %d, not %d", old, here[0])
						}
					}
					here[0] = value
				}
				if err != nil {
					return fmt.Errorf("round %d: %w", round, err)
				}
				at += size + r.IntN(20)
			}
		}
		for range notes {
			if _, err := w.Notified(ctx, weft.AnySource, round); err != nil {
				return err
			}
		}
		if err := w.Fence(ctx); err != nil {
			return err
		}
		for _, check := range later {
			if err := check(); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
		}
		if !slices.Equal(w.Local(), model[me]) {
			return fmt.Errorf("round %d: rank %d has %v, the model %v", round, me, w.Local(), model[me])
		}
		if err := w.Fence(ctx); err != nil { // everybody has looked
			return err
		}
	}
	return w.Close(ctx)
}

func TestWindowProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "ranks")
		seed := rapid.Uint64().Draw(t, "seed")
		cfg := sim.Config{
			Seed: seed, Delay: rapid.IntRange(0, 6).Draw(t, "delay"), Again: rapid.SampledFrom([]float64{0, 0.1, 0.5}).Draw(t, "again"),
			Duplicate: rapid.SampledFrom([]float64{0, 0.3}).Draw(t, "duplicate"), NoPull: rapid.Bool().Draw(t, "no pull"),
		}
		switch rapid.SampledFrom([]string{"direct", "remote", "messages"}).Draw(t, "way") {
		case "remote":
			cfg.Remote = true
		case "messages":
			cfg.NoMap = true
		}
		eager := rapid.SampledFrom([]int{0, 64, 1000}).Draw(t, "eager")
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err := weft.Local(ctx, n, func(ctx context.Context, c *weft.Comm) error { return windowRandom(ctx, c, seed, 3) },
			weft.WithFaults(weft.Faults{Eager: eager}), weft.WithFabric(cfg))
		if err != nil {
			t.Fatal(err)
		}
	})
}

func init() {
	for _, p := range windowPrograms {
		programs["window: "+p.name] = p.run
	}
	for name, op := range windowLost {
		programs["window dies: "+name] = func(ctx context.Context, c *weft.Comm) error {
			w, err := weft.NewWindow[int64](ctx, c, 100000)
			if err != nil {
				return err
			}
			if err := w.Fence(ctx); err != nil {
				return err
			}
			if c.Rank() == 1 {
				time.Sleep(10 * time.Millisecond)
				return syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			start := time.Now()
			// Main's context ends with the job; this is about the operations.
			err, wrong := until(5*time.Second, 1, func() error { return op(context.WithoutCancel(ctx), w, 1) })
			if wrong != nil {
				fmt.Println("wrong:", wrong)
				return wrong
			}
			fmt.Printf("rank %d saw it after %v\n", c.Rank(), time.Since(start))
			return err
		}
	}
	programs["window idle"] = windowIdle
	programs["window figures"] = windowFigures
	programs["window left open"] = func(ctx context.Context, c *weft.Comm) error {
		_, err := weft.NewWindow[int64](ctx, c, 4)
		return err
	}
}

// TestWindowProcesses runs the suite on real ranks.
func TestWindowProcesses(t *testing.T) {
	for _, transport := range testTransports() {
		for _, way := range []string{"", "messages"} {
			if transport == "tcp" && way != "" {
				continue // that is its way
			}
			run := func(t *testing.T, n int, program string) (string, int) {
				return launch(t, n, transport, program, "-x", waysVariable+"="+way)
			}
			for _, p := range windowPrograms {
				for _, n := range p.ranks {
					if way != "" && n > 3 {
						continue // these are of processes with nothing new in them
					}
					t.Run(fmt.Sprintf("%s %s/%s/%d", transport, way, p.name, n), func(t *testing.T) {
						if out, code := run(t, n, "window: "+p.name); code != 0 {
							t.Errorf("exit code %d; output:\n%s", code, out)
						}
					})
				}
			}
			for name := range windowLost {
				t.Run(fmt.Sprintf("%s %s/dies in %s", transport, way, name), func(t *testing.T) {
					out, code := run(t, 3, "window dies: "+name)
					if code != 128+9 || !strings.Contains(out, "rank 1") || strings.Contains(out, "wrong:") || strings.Count(out, "saw it after") != 2 {
						t.Errorf("exit code %d; output:\n%s", code, out)
					}
				})
			}
			t.Run(fmt.Sprintf("%s %s/idle", transport, way), func(t *testing.T) {
				if out, code := run(t, 2, "window idle"); code != 0 {
					t.Errorf("exit code %d; output:\n%s", code, out)
				}
			})
			t.Run(fmt.Sprintf("%s %s/left open", transport, way), func(t *testing.T) {
				if out, code := run(t, 2, "window left open"); code != 1 || !strings.Contains(out, "Window.Close") {
					t.Errorf("exit code %d; output:\n%s", code, out)
				}
			})
		}
	}
}
