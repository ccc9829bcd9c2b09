package weft_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weft-hpc/weft"
	"github.com/weft-hpc/weft/internal/transport/sim"
)

// A request that no rank of this library sends ends the window, names who sent it, and touches
// nothing.
func TestWindowBadRequests(t *testing.T) {
	const put, putData, get, add, swap, flush = 1, 2, 3, 4, 5, 6
	const bytes, answer = 80, weft.TagAnswer
	for name, request := range map[string][]byte{
		"short":                make([]byte, 10),
		"too long":             make([]byte, 5000),
		"no kind":              weft.WindowRequest(0, answer, 0, 8, 1, 0),
		"unknown kind":         weft.WindowRequest(99, answer, 0, 8, 1, 0),
		"put beyond the end":   append(weft.WindowRequest(put, 0, bytes-7, 8, 1, 0), make([]byte, 8)...),
		"put far away":         append(weft.WindowRequest(put, 0, ^uint64(0)-3, 8, 1, 0), make([]byte, 8)...),
		"put of too little":    append(weft.WindowRequest(put, 0, 0, 8, 1, 0), make([]byte, 7)...),
		"put of too much":      append(weft.WindowRequest(put, 0, 0, 8, 1, 0), make([]byte, 9)...),
		"put out of order":     append(weft.WindowRequest(put, 0, 0, 8, 2, 0), make([]byte, 8)...),
		"large put too large":  weft.WindowRequest(putData, 0, 8, bytes, 1, 0),
		"large put with data":  append(weft.WindowRequest(putData, 0, 0, 8, 1, 0), make([]byte, 8)...),
		"get beyond the end":   weft.WindowRequest(get, answer, bytes, 1, 0, 0),
		"get of everything":    weft.WindowRequest(get, answer, 0, ^uint64(0), 0, 0),
		"get answered wrongly": weft.WindowRequest(get, 7, 0, 8, 0, 0),
		"add beyond the end":   weft.WindowRequest(add, answer, bytes, 8, 1, 0),
		"add in between":       weft.WindowRequest(add, answer, 4, 8, 1, 0),
		"swap of four bytes":   weft.WindowRequest(swap, answer, 0, 4, 1, 0),
		"flush of the future":  weft.WindowRequest(flush, answer, 0, 0, 3, 0),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			err := weft.Local(ctx, 2, func(ctx context.Context, c *weft.Comm) error {
				w, err := weft.NewWindow[int64](ctx, c, bytes/8)
				if err != nil {
					return err
				}
				if c.Rank() == 1 {
					if err := weft.AskBadly(ctx, w, 0, request); err != nil && !errors.Is(err, weft.ErrRevoked) {
						return err
					}
				}
				_, err = w.Notified(ctx, 1-c.Rank(), 0) // nobody notifies: only the end of the window ends this
				if err == nil || !strings.Contains(err.Error(), "rank 1 sent rank 0 a bad request") {
					return fmt.Errorf("Notified after a bad request: %v", err)
				}
				for i, v := range w.Local() {
					if v != 0 {
						return fmt.Errorf("element %d is %d", i, v)
					}
				}
				if err := w.Close(ctx); err == nil {
					return errors.New("Close after a bad request succeeded")
				}
				return weft.Barrier(ctx, c) // the communicator is none the worse
			}, weft.WithFabric(sim.Config{NoMap: true}))
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Operations of the usual kind allocate nothing, in any way to work.
func TestWindowAllocations(t *testing.T) {
	if raceEnabled {
		t.Log("the race detector allocates; the same test runs without it")
		return
	}
	for _, f := range windowFabrics {
		if f.cfg.Seed != 0 {
			continue // its faults cost memory of the fabric
		}
		err := weft.Local(context.Background(), 2, func(ctx context.Context, c *weft.Comm) error {
			w, err := weft.NewWindow[int64](ctx, c, 1000)
			if err != nil {
				return err
			}
			if c.Rank() == 1 {
				return w.Close(ctx)
			}
			buf := make([]int64, 100)
			var failed error
			note := func(err error) {
				if failed == nil {
					failed = err
				}
			}
			for name, op := range map[string]func(){
				"Put":         func() { note(w.Put(ctx, 1, 0, buf)) },
				"Put, Flush":  func() { note(w.Put(ctx, 1, 0, buf)); note(w.Flush(ctx, 1)) },
				"Get, Flush":  func() { note(w.Get(ctx, 1, 0, buf)); note(w.Flush(ctx, 1)) },
				"FetchAdd":    func() { _, err := weft.FetchAdd(ctx, w, 1, 0, 1); note(err) },
				"CompareSwap": func() { _, err := weft.CompareSwap(ctx, w, 1, 0, 1, 1); note(err) },
			} {
				op() // makes what is made once
				for range 200 {
					op()
				}
				if n := testing.AllocsPerRun(300, op); n >= 1 {
					t.Errorf("%s: %s allocates %v times", f.name, name, n)
				}
			}
			if failed != nil {
				return failed
			}
			return w.Close(ctx)
		}, weft.WithFabric(f.cfg))
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Windows leave no goroutine behind, whether they were closed or not.
func TestWindowLeaks(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, f := range windowFabrics {
		err := weft.Local(context.Background(), 3, windowNotifyOrder, weft.WithFabric(f.cfg))
		if err != nil {
			t.Error(err)
		}
		err = weft.Local(context.Background(), 3, func(ctx context.Context, c *weft.Comm) error {
			w, err := weft.NewWindow[int64](ctx, c, 1000)
			if err != nil {
				return err
			}
			if c.Rank() == 1 {
				return errors.New("as planned")
			}
			w.Put(ctx, 1, c.Rank()*300, make([]int64, 300)) // whether it arrives is of no interest
			_, err = w.Notified(ctx, 1, 0)
			return err
		}, weft.WithFabric(f.cfg))
		if err == nil || !strings.Contains(err.Error(), "as planned") {
			t.Error(err)
		}
	}
}
