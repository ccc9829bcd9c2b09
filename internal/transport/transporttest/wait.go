package transporttest

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/transport"
)

// A Wait that lasted this long although there was a reason to end it is a lost
// wake-up: the waits below are given longer.
const lost = patience / 4

// sleep arms and waits once, and says when a wake-up was lost. The caller
// knows that something is bound to happen.
func (d *node) sleep() error {
	if !d.Arm() {
		return nil
	}
	start := time.Now()
	d.Wait(patience)
	d.Disarm()
	if took := time.Since(start); took > lost {
		return fmt.Errorf("rank %d: slept %v: a wake-up was lost", d.rank, took)
	}
	return nil
}

// untilAsleep is until for one rank that sleeps while nothing happens.
func untilAsleep(cond func() bool, d *node) error {
	for !cond() {
		n, err := d.poll()
		if err == nil && n == 0 && !cond() {
			err = d.sleep()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// testArmPending: whoever arms with a frame waiting finds out.
func testArmPending(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, _ := open(t, newWorld, 2)
	a, b := nodes[0], nodes[1]
	introduce(t, a, b)
	for i := range 200 {
		h := eager(i)
		must(t, a.send(1, &h, nil))
		for len(b.got[0]) == 0 {
			_, err := a.poll()
			must(t, err)
			must(t, b.sleep())
			_, err = b.poll()
			must(t, err)
		}
		b.take(0)
	}
	if !b.Arm() {
		t.Error("Arm found something in an idle world")
	}
	b.Disarm()
}

func testWakeBeforeWait(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, _ := open(t, newWorld, 2)
	d := nodes[0]
	for name, before := range map[string]func(){
		"Wake":             func() { d.Wake() },
		"Arm, Wake":        func() { d.Arm(); d.Wake() },
		"Wake, Arm":        func() { d.Wake(); d.Arm() },
		"Wake, Wake":       func() { d.Wake(); d.Wake() },
		"Arm, Wake, again": func() { d.Arm(); d.Disarm(); d.Arm(); d.Wake() },
	} {
		before()
		start := time.Now()
		d.Wait(patience)
		if took := time.Since(start); took > lost {
			t.Errorf("%s, Wait: slept %v", name, took)
		}
		d.Disarm()
	}
}

func testWakeDuringWait(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, _ := open(t, newWorld, 1)
	d := nodes[0]
	for _, waiters := range []int{1, 3} {
		const rounds = 500
		var stage atomic.Int64
		var wg sync.WaitGroup
		acks := make(chan struct{}, waiters)
		for range waiters {
			wg.Go(func() {
				for i := int64(1); i <= rounds; i++ {
					for stage.Load() < i {
						d.Wait(patience)
					}
					acks <- struct{}{}
				}
			})
		}
		start := time.Now()
		for range rounds {
			stage.Add(1)
			d.Wake()
			for range waiters {
				if waiters == 1 {
					<-acks
					continue
				}
				// A waiter that comes while another one sleeps is not owed this Wake.
				for acked := false; !acked; {
					select {
					case <-acks:
						acked = true
					case <-time.After(time.Millisecond):
						d.Wake()
					}
				}
			}
		}
		wg.Wait()
		if took := time.Since(start); took > lost {
			t.Errorf("%d waiters, %d rounds took %v: wake-ups were lost", waiters, rounds, took)
		}
	}
}

func testWaitTimeout(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, _ := open(t, newWorld, 2)
	d := nodes[0]
	for _, wait := range []time.Duration{-time.Second, 0, 1, time.Microsecond, 3 * time.Millisecond} {
		for _, arm := range []bool{false, true} {
			start := time.Now()
			if arm && !d.Arm() {
				t.Error("Arm found something in an idle world")
			}
			d.Wait(wait)
			d.Disarm()
			if took := time.Since(start); took > lost {
				t.Errorf("Wait(%v) took %v", wait, took)
			}
		}
	}
}

// testWaitIsIdle: waiting costs no processor time.
func testWaitIsIdle(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, _ := open(t, newWorld, 2)
	d := nodes[0]
	runtime.LockOSThread() // what others use, the collector above all, is not counted
	defer runtime.UnlockOSThread()
	const total = 200 * time.Millisecond
	var used time.Duration
	for range 10 { // but this thread may help the collector
		before := cpuTime(t)
		for start := time.Now(); time.Since(start) < total; {
			d.Arm()
			d.Wait(total / 4)
			d.Disarm()
		}
		if used = cpuTime(t) - before; used < total/10 {
			return
		}
	}
	t.Errorf("%v of Wait used %v of processor time, in the last of ten tries", total, used)
}

// cpuTime is what the calling thread has used.
func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// testNoLostWakeup plays ping-pong between ranks that sleep, with a varying
// delay before they do so, to hit the moment between the last look and the sleep.
func testNoLostWakeup(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	const rounds = 2000
	nodes, _ := open(t, newWorld, 2)
	parallel(t, nodes, func(d *node) error {
		peer := 1 - d.rank
		for i := range rounds {
			for turn := range 2 {
				if turn == d.rank {
					h := eager(i)
					if err := d.send(peer, &h, nil); err != nil {
						return err
					}
					continue
				}
				for range i % 37 * (d.rank + 1) {
					if _, err := d.poll(); err != nil {
						return err
					}
				}
				if err := untilAsleep(func() bool { return len(d.got[peer]) > 0 }, d); err != nil {
					return fmt.Errorf("round %d: %w", i, err)
				}
				e, _ := d.take(peer)
				if err := e.expect(eager(i), nil, false); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// testNoLostRoom: a sender without room sleeps until there is some, a receiver
// sleeps until there is something to receive.
func testNoLostRoom(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	const frames = 20_000
	nodes, _ := open(t, newWorld, 2)
	size := min(900, nodes[0].MaxEager())
	p := pattern(size, 1)
	parallel(t, nodes, func(d *node) error {
		if d.rank == 1 {
			for got := 0; got < frames; {
				if err := untilAsleep(func() bool { return len(d.got[0]) > 0 }, d); err != nil {
					return err
				}
				for e, ok := d.take(0); ok; e, ok = d.take(0) {
					if err := e.expect(eager(got), p, false); err != nil {
						return err
					}
					got++
				}
			}
			return nil
		}
		for i := range frames {
			h := eager(i)
			var err error
			for err = d.Send(1, &h, p); errors.Is(err, transport.ErrAgain); err = d.Send(1, &h, p) {
				n, err := d.poll()
				if err == nil && n == 0 {
					err = d.sleep()
				}
				if err != nil {
					return fmt.Errorf("frame %d: %w", i, err)
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// testBulkWhileSleeping: a bulk payload moves although both ends sleep whenever
// they have nothing to do.
func testBulkWhileSleeping(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, _ := open(t, newWorld, 2)
	p := pattern(3<<20+5, 1)
	parallel(t, nodes, func(d *node) error {
		peer := 1 - d.rank
		for i := range 5 {
			if d.rank == 0 {
				h := data(i, len(p))
				if err := d.bulk(1, &h, p, uint32(i)); err != nil {
					return err
				}
			}
			if err := untilAsleep(func() bool { return len(d.sent[peer]) > i || len(d.got[peer]) > i }, d); err != nil {
				return err
			}
		}
		for i := range d.got[peer] {
			if err := d.got[peer][i].expect(data(i, len(p)), p, true); err != nil {
				return err
			}
		}
		return nil
	})
}

func testCloseEndsWait(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, w := open(t, newWorld, 2)
	d := nodes[0]
	tr := d.Transport
	var wg sync.WaitGroup
	start := time.Now()
	for i := range 3 {
		wg.Go(func() {
			for range i { // one goes in at once, others come later
				tr.Wait(time.Millisecond)
			}
			tr.Wait(patience)
		})
	}
	tr.Wait(5 * time.Millisecond)
	shut(t, w, nodes)
	wg.Wait()
	if took := time.Since(start); took > lost {
		t.Errorf("Wait went on for %v after Close", took)
	}
}
