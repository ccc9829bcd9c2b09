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

var windowSizes = []int{1, 7, 8, 1023, 1024, 1025, 4097, 16385, 65537, 1<<20 + 3}

func windowPutGet(ctx context.Context, c *weft.Comm) error {
	n, me := c.Size(), c.Rank()
	windowSizes := windowSizes
	if n > 3 {
		windowSizes = windowSizes[:len(windowSizes)-1] // all of them have a part for all, so this grows with the square
	}
	total := 0
	for _, size := range windowSizes {
		total += size + 3
	}
	w, err := weft.NewWindow[byte](ctx, c, n*total)
	if err != nil {
		return err
	}
	if w.Len(me) != n*total || len(w.Local()) != n*total || w.Rank() != me || w.Size() != n {
		return fmt.Errorf("window of %d, %d local, rank %d of %d", w.Len(me), len(w.Local()), w.Rank(), w.Size())
	}
	for i, b := range w.Local() {
		if b != 0 {
			return fmt.Errorf("byte %d is %d at first", i, b)
		}
	}
	if err := w.Fence(ctx); err != nil { // everybody has seen that
		return err
	}
	// Everybody puts a block of each size to everybody, then gets them all back.
	var sources [][]byte
	at := me * total
	for i, size := range windowSizes {
		for target := range n {
			src := make([]byte, size)
			fill(src, me+i*31+target*7)
			if err := w.Put(ctx, target, at, src); err != nil {
				return err
			}
			sources = append(sources, src)
		}
		at += size + 3
	}
	if err := w.Fence(ctx); err != nil {
		return err
	}
	for _, src := range sources {
		clear(src) // it is ours again, and nobody reads it
	}
	at = 0
	for from := range n {
		for i, size := range windowSizes {
			if err := check(w.Local()[at:at+size], from+i*31+me*7); err != nil {
				return fmt.Errorf("put by rank %d: %w", from, err)
			}
			if gap := w.Local()[at+size : at+size+3]; !slices.Equal(gap, make([]byte, 3)) {
				return fmt.Errorf("behind a put of %d bytes by rank %d: %v", size, from, gap)
			}
			at += size + 3
		}
	}
	at = me * total
	for i, size := range windowSizes {
		got := make([][]byte, n)
		for target := range n {
			got[target] = make([]byte, size+1)
			if err := w.Get(ctx, target, at, got[target][:size]); err != nil {
				return err
			}
		}
		for target := range n {
			if i%2 == 0 {
				err = w.Flush(ctx, target)
			} else {
				err = w.FlushAll(ctx)
			}
			if err == nil {
				err = check(got[target][:size], me+i*31+target*7)
			}
			if err != nil || got[target][size] != 0 {
				return fmt.Errorf("get of %d bytes from rank %d: %w; then %d", size, target, err, got[target][size])
			}
		}
		at += size + 3
	}
	// More small ones than may be under way at once.
	const many = 5 * weft.QueueDepth
	src := make([]byte, many)
	fill(src, me)
	if err := w.Fence(ctx); err != nil { // the others have read
		return err
	}
	for i := range many {
		if err := w.Put(ctx, (me+1)%n, me*total+i, src[i:i+1]); err != nil {
			return err
		}
	}
	if err := w.Flush(ctx, (me+1)%n); err != nil {
		return err
	}
	got := make([]byte, many)
	for i := range many {
		if err := w.Get(ctx, (me+1)%n, me*total+i, got[i:i+1]); err != nil {
			return err
		}
	}
	if err := errors.Join(w.FlushAll(ctx), check(got, me)); err != nil {
		return err
	}
	return w.Close(ctx)
}

func windowRanges(ctx context.Context, c *weft.Comm) error {
	n, me := c.Size(), c.Rank()
	const length = 10
	w, err := weft.NewWindow[int64](ctx, c, length+me)
	if err != nil {
		return err
	}
	target := n - 1
	has := length + target
	const huge = int(^uint(0) >> 1)
	for _, at := range []struct{ offset, count int }{{-1, 1}, {0, has + 1}, {has, 1}, {has + 1, 0}, {1, has}, {huge, 1}, {huge - 1, 3}, {-huge - 1, 2}, {huge/8 + 1, 1}} {
		for call, f := range map[string]func() error{
			"Put":       func() error { return w.Put(ctx, target, at.offset, make([]int64, at.count)) },
			"Get":       func() error { return w.Get(ctx, target, at.offset, make([]int64, at.count)) },
			"PutNotify": func() error { return w.PutNotify(ctx, target, at.offset, make([]int64, at.count), 0) },
			"FetchAdd":  func() error { _, err := weft.FetchAdd(ctx, w, target, at.offset, 1); return err },
		} {
			if call == "FetchAdd" && at.offset >= 0 && at.offset < has {
				continue
			}
			err := f()
			e, ok := errors.AsType[*weft.Error](err)
			if !errors.Is(err, weft.ErrRange) || !ok || e.Op != call || e.Peer != target || !strings.Contains(e.CallSite, "window_programs_test.go") ||
				!strings.Contains(err.Error(), w.Name()) || !strings.Contains(err.Error(), fmt.Sprintf("offset %d, and rank %d has %d", at.offset, target, has)) {
				return fmt.Errorf("%s of %d elements at %d: %v", call, at.count, at.offset, err)
			}
		}
	}
	for _, rank := range []int{n, -1, -3} {
		_, errAdd := weft.FetchAdd(ctx, w, rank, 0, 1)
		_, errSwap := weft.CompareSwap(ctx, w, rank, 0, 0, 1)
		for _, err := range []error{w.Put(ctx, rank, 0, nil), w.Get(ctx, rank, 0, nil), w.PutNotify(ctx, rank, 0, nil, 0), w.Flush(ctx, rank), errAdd, errSwap} {
			if !errors.Is(err, weft.ErrRank) {
				return fmt.Errorf("rank %d: %v", rank, err)
			}
		}
	}
	for _, id := range []int{-1, weft.MaxNotify + 1} {
		_, err := w.Notified(ctx, 0, id)
		if !errors.Is(err, weft.ErrTag) || !errors.Is(w.PutNotify(ctx, 0, 0, nil, id), weft.ErrTag) {
			return fmt.Errorf("id %d: %v", id, err)
		}
	}
	if _, err := w.Notified(ctx, n, 0); !errors.Is(err, weft.ErrRank) {
		return fmt.Errorf("notified by rank %d: %v", n, err)
	}
	// Nobody, and nothing.
	if from, err := w.Notified(ctx, weft.NoRank, 0); err != nil || from != weft.NoRank {
		return fmt.Errorf("notified by nobody: %d, %v", from, err)
	}
	if _, err := weft.FetchAdd(ctx, w, weft.NoRank, 0, 1); !errors.Is(err, weft.ErrRank) {
		return fmt.Errorf("atomic on nobody: %v", err)
	}
	one := make([]int64, 1)
	if err := errors.Join(w.Put(ctx, weft.NoRank, 99, one), w.Get(ctx, weft.NoRank, 99, one), w.PutNotify(ctx, weft.NoRank, 99, one, 0), w.Flush(ctx, weft.NoRank),
		w.Put(ctx, target, has, nil), w.Get(ctx, target, has, nil), w.Put(ctx, target, 0, nil)); err != nil {
		return err
	}
	// None of all that has touched anything.
	if err := w.Fence(ctx); err != nil {
		return err
	}
	for i, v := range w.Local() {
		if v != 0 {
			return fmt.Errorf("element %d is %d", i, v)
		}
	}
	return w.Close(ctx)
}

func windowLengths(ctx context.Context, c *weft.Comm) error {
	n, me := c.Size(), c.Rank()
	type odd struct{ A, B, C byte }
	for _, length := range []func(rank int) int{
		func(int) int { return 0 },
		func(r int) int { return r },
		func(r int) int { return (n - 1 - r) * 1000 },
	} {
		w, err := weft.NewWindow[odd](ctx, c, length(me))
		if err != nil {
			return err
		}
		for target := range n {
			if w.Len(target) != length(target) {
				return fmt.Errorf("rank %d has %d elements, should be %d", target, w.Len(target), length(target))
			}
		}
		// Element i of each rank is written by rank i%n.
		for target := range n {
			for i := me; i < length(target); i += n {
				if err := w.Put(ctx, target, i, []odd{{byte(target), byte(i), byte(i >> 8)}}); err != nil {
					return err
				}
			}
		}
		if err := w.Fence(ctx); err != nil {
			return err
		}
		for i, v := range w.Local() {
			if v != (odd{byte(me), byte(i), byte(i >> 8)}) {
				return fmt.Errorf("element %d is %v", i, v)
			}
		}
		if err := w.Close(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Ranks of a window are its communicator's.
func windowSplit(ctx context.Context, c *weft.Comm) error {
	half, err := c.Split(ctx, c.Rank()%2, -c.Rank()) // backwards
	if err != nil {
		return err
	}
	w, err := weft.NewWindow[int64](ctx, half, c.Size())
	if err != nil {
		return err
	}
	for target := range half.Size() {
		if err := w.PutNotify(ctx, target, half.Rank(), []int64{int64(100*c.Rank() + target)}, half.Rank()); err != nil {
			return err
		}
	}
	for range half.Size() {
		if _, err := weft.FetchAdd(ctx, w, half.Size()-1-half.Rank(), c.Size()-1, 1000000); err != nil {
			return err
		}
	}
	for source := range half.Size() {
		if from, err := w.Notified(ctx, weft.AnySource, source); err != nil || from != source {
			return fmt.Errorf("notified by rank %d of the half, not %d: %v", from, source, err)
		}
		// Backwards: rank r here is so many in the world.
		world := c.Rank() + 2*(half.Rank()-source)
		want := int64(100*world + half.Rank())
		if source == c.Size()-1 {
			continue
		}
		if got := w.Local()[source]; got != want {
			return fmt.Errorf("rank %d of the half put %d to rank %d, not %d", source, got, half.Rank(), want)
		}
	}
	if err := w.Fence(ctx); err != nil {
		return err
	}
	if got := w.Local()[c.Size()-1]; got != int64(half.Size()*1000000) && half.Size() < c.Size() {
		return fmt.Errorf("the counter is %d", got)
	}
	return errors.Join(w.Close(ctx), half.Close(ctx))
}

func windowMany(ctx context.Context, c *weft.Comm) error {
	n, me := c.Size(), c.Rank()
	const windows = 30
	var all []*weft.Window[int32]
	names := map[string]bool{}
	for i := range windows {
		w, err := weft.NewWindow[int32](ctx, c, 10*i+1)
		if err != nil {
			return err
		}
		names[w.Name()] = true
		all = append(all, w)
	}
	if len(names) != windows {
		return fmt.Errorf("%d windows have %d names", windows, len(names))
	}
	for i, w := range all {
		if err := w.PutNotify(ctx, (me+1)%n, 10*i, []int32{int32(1000*me + i)}, i); err != nil {
			return err
		}
	}
	for i, w := range slices.Backward(all) {
		if _, err := w.Notified(ctx, weft.AnySource, i); err != nil {
			return err
		}
		if got, want := w.Local()[10*i], int32(1000*((me+n-1)%n)+i); got != want {
			return fmt.Errorf("window %d has %d, not %d", i, got, want)
		}
		if i%2 == 0 {
			if err := w.Close(ctx); err != nil {
				return err
			}
		}
	}
	for i, w := range all {
		if i%2 == 1 {
			if err := w.Close(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func windowMakeFails(ctx context.Context, c *weft.Comm) error {
	n, last := c.Size(), c.Size()-1
	for _, test := range []struct {
		make func() error
		want error
		text string
	}{
		{func() error {
			count := 3
			if c.Rank() == last {
				count = -1
			}
			_, err := weft.NewWindow[int64](ctx, c, count)
			return err
		}, weft.ErrCount, "-1 elements"},
		{func() error {
			count := 3
			if c.Rank() == last {
				count = 1 << 60
			}
			_, err := weft.NewWindow[int64](ctx, c, count)
			return err
		}, weft.ErrMemory, "1152921504606846976"},
		{func() error {
			_, err := weft.NewWindow[*int](ctx, c, 1)
			return err
		}, weft.ErrElemType, "*int"},
	} {
		err := test.make()
		if !errors.Is(err, test.want) {
			return fmt.Errorf("%v", err)
		}
		if c.Rank() == last && !strings.Contains(err.Error(), test.text) {
			return fmt.Errorf("%v", err)
		}
		if e, ok := errors.AsType[*weft.Error](err); !ok || c.Rank() != last && test.text != "*int" && e.Peer != last {
			return fmt.Errorf("error of rank %d does not name rank %d: %v", c.Rank(), last, err)
		}
		if err := weft.Barrier(ctx, c); err != nil {
			return fmt.Errorf("after that: %w", err)
		}
	}
	if n == 1 {
		return nil
	}
	var err error
	if c.Rank() == last {
		_, err = weft.NewWindow[float32](ctx, c, 4)
	} else {
		_, err = weft.NewWindow[int64](ctx, c, 4)
	}
	if !errors.Is(err, weft.ErrMismatch) || !strings.Contains(err.Error(), "float32") || !strings.Contains(err.Error(), "int") {
		return fmt.Errorf("windows of two types: %v", err)
	}
	w, err := weft.NewWindow[int64](ctx, c, 4) // the communicator is usable
	if err != nil {
		return err
	}
	return w.Close(ctx)
}

func windowClose(ctx context.Context, c *weft.Comm) error {
	w, err := weft.NewWindow[int64](ctx, c, 4)
	if err != nil {
		return err
	}
	var waits sync.WaitGroup
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	waits.Go(func() { w.Notified(inner, weft.AnySource, 1) })
	time.Sleep(20 * time.Millisecond)
	if err := w.Close(ctx); !errors.Is(err, weft.ErrPending) || !strings.Contains(err.Error(), "Notified") {
		return fmt.Errorf("Close while Notified waits: %v", err)
	}
	cancel()
	waits.Wait()
	// Puts that nobody flushed are done all the same.
	if err := w.Put(ctx, (c.Rank()+1)%c.Size(), 0, []int64{1}); err != nil {
		return err
	}
	if err := w.PutNotify(ctx, (c.Rank()+1)%c.Size(), 0, nil, 9); err != nil { // never waited for
		return err
	}
	if err := w.Close(ctx); err != nil {
		return err
	}
	if w.Local() != nil {
		return errors.New("Local after Close")
	}
	_, errNotified := w.Notified(ctx, 0, 0)
	_, errAdd := weft.FetchAdd(ctx, w, 0, 0, 1)
	for i, err := range []error{w.Close(ctx), w.Put(ctx, 0, 0, nil), w.Get(ctx, 0, 0, nil), w.PutNotify(ctx, 0, 0, nil, 0), w.Flush(ctx, 0), w.FlushAll(ctx), w.Fence(ctx), errNotified, errAdd} {
		if !errors.Is(err, weft.ErrArgument) || !strings.Contains(err.Error(), "closed") {
			return fmt.Errorf("call %d on a closed window: %v", i, err)
		}
	}
	return nil
}
