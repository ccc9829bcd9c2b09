package weft_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weft-hpc/weft"
)

func windowNotify(ctx context.Context, c *weft.Comm) error {
	n, me := c.Size(), c.Rank()
	right, left := (me+1)%n, (me+n-1)%n
	const largest = 1<<20 + 3
	w, err := weft.NewWindow[byte](ctx, c, largest)
	if err != nil {
		return err
	}
	src := make([]byte, largest)
	for round, size := range append([]int{0}, windowSizes...) {
		for again := range 3 {
			id, seed := round*3+again, round*13+again*5
			fill(src[:size], seed+me)
			if err := w.PutNotify(ctx, right, 0, src[:size], id); err != nil {
				return err
			}
			source := left
			if again == 1 {
				source = weft.AnySource
			}
			from, err := w.Notified(ctx, source, id)
			if err != nil {
				return err
			}
			if from != left {
				return fmt.Errorf("notified by rank %d, not %d", from, left)
			}
			if err := check(w.Local()[:size], seed+left); err != nil {
				return fmt.Errorf("notified of %d bytes: %w", size, err)
			}
			// The left one may put again when it hears that this rank has looked.
			if err := w.PutNotify(ctx, left, 0, nil, weft.MaxNotify); err != nil {
				return err
			}
			if _, err := w.Notified(ctx, right, weft.MaxNotify); err != nil {
				return err
			}
			if err := w.Flush(ctx, right); err != nil {
				return err
			}
		}
	}
	return w.Close(ctx)
}

// A notification tells of all puts before it, large or small.
func windowNotifyOrder(ctx context.Context, c *weft.Comm) error {
	n, me := c.Size(), c.Rank()
	const blocks, size = 40, 9000
	w, err := weft.NewWindow[byte](ctx, c, n*blocks*size)
	if err != nil {
		return err
	}
	for round := range 3 {
		var src [][]byte
		for target := range n {
			for i := range blocks {
				b := make([]byte, []int{1, size, 100, 3000}[i%4])
				fill(b, me+i+round)
				src = append(src, b)
				if err := w.Put(ctx, target, (me*blocks+i)*size, b); err != nil {
					return err
				}
			}
			if err := w.PutNotify(ctx, target, 0, nil, 5); err != nil {
				return err
			}
		}
		seen := make([]bool, n)
		for range n {
			from, err := w.Notified(ctx, weft.AnySource, 5)
			if err != nil {
				return err
			}
			if seen[from] {
				return fmt.Errorf("two notifications of rank %d", from)
			}
			seen[from] = true
			for i := range blocks {
				at := (from*blocks + i) * size
				if err := check(w.Local()[at:at+[]int{1, size, 100, 3000}[i%4]], from+i+round); err != nil {
					return fmt.Errorf("block %d of rank %d in round %d: %w", i, from, round, err)
				}
			}
		}
		if err := w.Fence(ctx); err != nil {
			return err
		}
		_ = src
	}
	return w.Close(ctx)
}

func windowCounter(ctx context.Context, c *weft.Comm) error {
	n, me := c.Size(), c.Rank()
	const each = 300
	w, err := weft.NewWindow[uint64](ctx, c, 3)
	if err != nil {
		return err
	}
	for home := range min(n, 2) {
		mine := make([]uint64, each)
		for i := range mine {
			if mine[i], err = weft.FetchAdd(ctx, w, home, 1, 1); err != nil {
				return err
			}
			if i > 0 && mine[i] <= mine[i-1] {
				return fmt.Errorf("the counter went from %d to %d", mine[i-1], mine[i])
			}
		}
		all := make([]uint64, n*each)
		if err := weft.Allgather(ctx, c, mine, all); err != nil {
			return err
		}
		slices.Sort(all)
		for i, v := range all {
			if v != uint64(i) {
				return fmt.Errorf("value %d of the counter on rank %d is %d", i, home, v)
			}
		}
		if v, err := weft.FetchAdd(ctx, w, home, 1, 0); err != nil || v != uint64(n*each) {
			return fmt.Errorf("the counter is %d at the end (%w)", v, err)
		}
	}
	if err := w.Fence(ctx); err != nil {
		return err
	}
	want := uint64(0)
	if me < 2 {
		want = uint64(n * each)
	}
	if got := w.Local(); got[0] != 0 || got[1] != want || got[2] != 0 {
		return fmt.Errorf("rank %d has %v", me, got)
	}
	return w.Close(ctx)
}

func windowLock(ctx context.Context, c *weft.Comm) error {
	n, me := c.Size(), c.Rank()
	const each = 40
	type cell int64
	w, err := weft.NewWindow[cell](ctx, c, 2)
	if err != nil {
		return err
	}
	home := n - 1
	for range each {
		for {
			old, err := weft.CompareSwap(ctx, w, home, 0, 0, cell(-1-me))
			if err != nil {
				return err
			}
			if old == 0 {
				break
			}
		}
		v := make([]cell, 1)
		if err := errors.Join(w.Get(ctx, home, 1, v), w.Flush(ctx, home)); err != nil {
			return err
		}
		v[0]++
		if err := errors.Join(w.Put(ctx, home, 1, v), w.Flush(ctx, home)); err != nil {
			return err
		}
		if old, err := weft.CompareSwap(ctx, w, home, 0, cell(-1-me), 0); err != nil || old != cell(-1-me) {
			return fmt.Errorf("rank %d had the lock, and found %d in it (%w)", me, old, err)
		}
	}
	if err := w.Fence(ctx); err != nil {
		return err
	}
	if me == home && (w.Local()[0] != 0 || w.Local()[1] != cell(n*each)) {
		return fmt.Errorf("lock and counter are %v, the counter should be %d", w.Local(), n*each)
	}
	return w.Close(ctx)
}

// A rank that computes, and calls nothing, is no obstacle.
func windowPassive(ctx context.Context, c *weft.Comm) error {
	w, err := weft.NewWindow[int64](ctx, c, 200000)
	if err != nil {
		return err
	}
	if c.Rank() == 0 {
		time.Sleep(50 * time.Millisecond) // it has begun
		src, dst := make([]int64, 200000-1), make([]int64, 200000-1)
		for i := range src {
			src[i] = int64(i)
		}
		if err := errors.Join(w.Put(ctx, 1, 1, src), w.Put(ctx, 1, 0, src[:1]), w.Flush(ctx, 1), w.Get(ctx, 1, 1, dst), w.Flush(ctx, 1)); err != nil {
			return err
		}
		if !slices.Equal(src, dst) {
			return errors.New("what was got is not what was put")
		}
		for range 20 {
			if _, err := weft.FetchAdd(ctx, w, 1, 5, 1); err != nil {
				return err
			}
		}
		if err := weft.Send(ctx, c, []byte{1}, 1, 0); err != nil {
			return err
		}
	}
	if c.Rank() == 1 {
		s := c.Scope(ctx)
		stop := weft.Irecv(s, c, make([]byte, 1), 0, 0)
		x := 1.0
	compute:
		for start := time.Now(); ; {
			for range 1000 {
				x += 1 / x
			}
			select {
			case <-stop.Done(): // a look at a channel is no call of weft
				break compute
			default:
			}
			if time.Since(start) > 20*time.Second {
				return fmt.Errorf("nothing moved while this rank computed (%v)", x)
			}
		}
		if err := s.Wait(); err != nil {
			return err
		}
	}
	return w.Close(ctx)
}

func windowGoroutines(ctx context.Context, c *weft.Comm) error {
	n, me := c.Size(), c.Rank()
	const goroutines, rounds, block = 6, 30, 64
	w, err := weft.NewWindow[int64](ctx, c, 1+n*goroutines*block)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	errs := make([]error, goroutines)
	for g := range goroutines {
		all.Go(func() {
			errs[g] = func() error {
				at := 1 + (me*goroutines+g)*block
				src, dst := make([]int64, block), make([]int64, block)
				for round := range rounds {
					target := (me + g + round) % n
					for i := range src {
						src[i] = int64(round*1000000 + me*10000 + g*100 + i)
					}
					size := 1 + (g+round)%block
					if err := errors.Join(w.Put(ctx, target, at, src[:size]), w.Flush(ctx, target),
						w.Get(ctx, target, at, dst[:size]), w.FlushAll(ctx)); err != nil {
						return err
					}
					if !slices.Equal(src[:size], dst[:size]) {
						return fmt.Errorf("goroutine %d in round %d put %v and got %v", g, round, src[:size], dst[:size])
					}
					if _, err := weft.FetchAdd(ctx, w, (g+round)%n, 0, 1); err != nil {
						return err
					}
					// A goroutine notifies its like on the next rank.
					if err := w.PutNotify(ctx, (me+1)%n, 0, nil, g); err != nil {
						return err
					}
					if _, err := w.Notified(ctx, (me+n-1)%n, g); err != nil {
						return err
					}
				}
				return nil
			}()
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := w.Fence(ctx); err != nil {
		return err
	}
	sum, err := weft.AllreduceValue(ctx, c, w.Local()[0], weft.Sum[int64]())
	if err != nil || sum != int64(n*goroutines*rounds) {
		return fmt.Errorf("the counters add up to %d, not %d: %w", sum, n*goroutines*rounds, err)
	}
	return w.Close(ctx)
}

func windowContexts(ctx context.Context, c *weft.Comm) error {
	n, me := c.Size(), c.Rank()
	w, err := weft.NewWindow[int64](ctx, c, 100000)
	if err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := w.Notified(short, weft.AnySource, 3); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("Notified with 20 ms: %v", err)
	}
	// Nothing of what a call with a context that has ended leaves behind is lost.
	src := make([]int64, 100000-1)
	for i := range src {
		src[i] = int64(me + i)
	}
	over, end := context.WithCancelCause(ctx)
	end(errors.New("enough"))
	if err := w.Put(ctx, (me+1)%n, 1, src); err != nil {
		return err
	}
	if err := w.Flush(over, (me+1)%n); err != nil && !strings.Contains(err.Error(), "enough") {
		return fmt.Errorf("Flush with a context that has ended: %v", err)
	}
	added := int64(0)
	switch old, err := weft.FetchAdd(over, w, (me+1)%n, 0, 1); {
	case err == nil && old != 0:
		return fmt.Errorf("FetchAdd found %d", old)
	case err == nil:
		added = 1
	case !strings.Contains(err.Error(), "enough"):
		return fmt.Errorf("FetchAdd with a context that has ended: %v", err)
	}
	if err := w.Fence(ctx); err != nil {
		return err
	}
	for i, v := range w.Local()[1:] {
		if v != int64((me+n-1)%n+i) {
			return fmt.Errorf("element %d is %d", i, v)
		}
	}
	if v := w.Local()[0]; v < added || v > 1 {
		return fmt.Errorf("the counter is %d", v)
	}
	if err := w.Fence(ctx); err != nil { // everybody has looked
		return err
	}
	// A notification whose data are not there yet is not lost either.
	for round := range 5 {
		if err := w.PutNotify(ctx, (me+1)%n, 1, src, 3); err != nil {
			return err
		}
		for tries := 0; ; tries++ {
			short, cancel := context.WithTimeout(ctx, time.Duration(tries)*20*time.Microsecond)
			_, err := w.Notified(short, weft.AnySource, 3)
			cancel()
			if err == nil {
				break
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("Notified in round %d: %v", round, err)
			}
		}
		for i, v := range w.Local()[1:] {
			if v != int64((me+n-1)%n+i) {
				return fmt.Errorf("element %d is %d in round %d", i, v, round)
			}
		}
		clear(w.Local()[1:])
		if err := w.Fence(ctx); err != nil {
			return err
		}
	}
	if err := w.PutNotify(ctx, (me+1)%n, 0, nil, 3); err != nil {
		return err
	}
	if from, err := w.Notified(ctx, weft.AnySource, 3); err != nil || from != (me+n-1)%n {
		return fmt.Errorf("notified by %d: %v", from, err)
	}
	return w.Close(ctx)
}
