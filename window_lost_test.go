package weft_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weft-hpc/weft"
)

// until repeats an operation until it fails, and checks that its error names the lost rank.
func until(limit time.Duration, lost int, f func() error) (err, wrong error) {
	start := time.Now()
	for err == nil && time.Since(start) < limit {
		err = f()
	}
	if !errors.Is(err, weft.ErrRankFailed) || !strings.Contains(err.Error(), fmt.Sprintf("rank %d", lost)) {
		return err, fmt.Errorf("after %v with rank %d dead: %v", time.Since(start), lost, err)
	}
	return err, nil
}

// windowLost are loops that a rank's death has to end.
var windowLost = map[string]func(ctx context.Context, w *weft.Window[int64], target int) error{
	"put": func(ctx context.Context, w *weft.Window[int64], target int) error {
		return errors.Join(w.Put(ctx, target, w.Rank()*30000, make([]int64, 10)), w.Flush(ctx, target))
	},
	"large put": func(ctx context.Context, w *weft.Window[int64], target int) error {
		return errors.Join(w.Put(ctx, target, w.Rank()*30000, make([]int64, 30000)), w.Flush(ctx, target))
	},
	"get": func(ctx context.Context, w *weft.Window[int64], target int) error {
		return errors.Join(w.Get(ctx, target, 0, make([]int64, 100000)), w.FlushAll(ctx))
	},
	"add": func(ctx context.Context, w *weft.Window[int64], target int) error {
		_, err := weft.FetchAdd(ctx, w, target, 1, 1)
		return err
	},
	"swap": func(ctx context.Context, w *weft.Window[int64], target int) error {
		_, err := weft.CompareSwap(ctx, w, target, 0, 1, 2)
		return err
	},
	"notified": func(ctx context.Context, w *weft.Window[int64], target int) error {
		_, err := w.Notified(ctx, target, 1)
		return err
	},
	"notify": func(ctx context.Context, w *weft.Window[int64], target int) error {
		return errors.Join(w.PutNotify(ctx, target, w.Rank()*30000, make([]int64, 10), 1), w.Flush(ctx, target))
	},
	"fence": func(ctx context.Context, w *weft.Window[int64], target int) error { return w.Fence(ctx) },
}

func TestWindowRankDies(t *testing.T) {
	for _, f := range windowFabrics {
		for name, op := range windowLost {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				windowRankDies(t, name, op, func(ctx context.Context, kill *func(int), fn func(ctx context.Context, c *weft.Comm) error) error {
					return weft.Local(ctx, 3, fn, weft.WithKill(func(f func(int)) { *kill = f }), weft.WithFaults(weft.Faults{Eager: f.eager}), weft.WithFabric(f.cfg))
				})
			})
		}
	}
	for name, op := range windowLost {
		t.Run("verbs/"+name, func(t *testing.T) {
			windowRankDies(t, name, op, func(ctx context.Context, kill *func(int), fn func(ctx context.Context, c *weft.Comm) error) error {
				return verbsWorld(t, 3, kill, fn)
			})
		})
	}
}

// windowRankDies has rank 1 of three die while the others repeat an operation on its window.
func windowRankDies(t *testing.T, name string, op func(ctx context.Context, w *weft.Window[int64], target int) error,
	run func(ctx context.Context, kill *func(int), fn func(ctx context.Context, c *weft.Comm) error) error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	const n, lost = 3, 1
	var kill func(int)
	var begun, paired, over sync.WaitGroup // of those that live
	begun.Add(n - 1)
	paired.Add(n - 1)
	over.Add(n - 1)
	var checked atomic.Int32
	err := run(ctx, &kill, func(_ context.Context, c *weft.Comm) error {
		w, err := weft.NewWindow[int64](ctx, c, 100000)
		if err != nil {
			return err
		}
		if c.Rank() == lost {
			begun.Wait()
			time.Sleep(10 * time.Millisecond)
			kill(lost)
			over.Wait()
			return errors.New("as planned")
		}
		defer over.Done()
		begun.Done()
		_, wrong := until(5*time.Second, lost, func() error { return op(ctx, w, lost) })
		if wrong != nil {
			t.Error(wrong)
		}
		if name != "fence" && wrong == nil { // a Fence that fails revokes the window's communicator
			if err := windowPair(ctx, w, 2-c.Rank()); err != nil {
				t.Errorf("the two that live: %v", err)
			}
		}
		paired.Done()
		paired.Wait() // Close revokes it too
		if err := w.Close(ctx); err == nil {
			t.Error("Close without a rank succeeded")
		}
		checked.Add(1)
		return nil
	})
	if checked.Load() != n-1 {
		t.Fatalf("%d of %d ranks saw the death: %v", checked.Load(), n-1, err)
	}
}

// windowPair checks that two ranks still reach each other's windows.
func windowPair(ctx context.Context, w *weft.Window[int64], other int) error {
	me := w.Rank()
	at := 5 + me*1000
	v, got := make([]int64, 1000), make([]int64, 1000)
	for i := range v {
		v[i] = int64(i + me)
	}
	if err := errors.Join(w.Put(ctx, other, at, v), w.Flush(ctx, other), w.Get(ctx, other, at, got), w.Flush(ctx, other)); err != nil {
		return err
	}
	if !slices.Equal(v, got) {
		return errors.New("what was got is not what was put")
	}
	for range 3 {
		if _, err := weft.FetchAdd(ctx, w, other, 4, 1); err != nil {
			return err
		}
	}
	if err := w.PutNotify(ctx, other, at, v, 8); err != nil {
		return err
	}
	if _, err := w.Notified(ctx, other, 8); err != nil {
		return err
	}
	if first := w.Local()[5+other*1000]; first != int64(other) {
		return fmt.Errorf("notified of %d", first)
	}
	return nil
}

// A rank that leaves something open is an error, and none that the others wait for.
func TestWindowLeftOpen(t *testing.T) {
	for _, pending := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err := weft.Local(ctx, 3, func(ctx context.Context, c *weft.Comm) error {
			if pending {
				if c.Rank() == 1 {
					weft.Irecv(c.Scope(ctx), c, make([]byte, 1), 0, 0)
				}
				return nil
			}
			_, err := weft.NewWindow[int64](ctx, c, 4)
			return err
		})
		want := "Window.Close"
		if pending {
			want = "Scope.Wait"
		}
		if !errors.Is(err, weft.ErrPending) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
	}
}
