//go:build cgo

package ibverbs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/rdma"
)

// Every second call of the library is interrupted, by a signal as it were: go#9785, cilium/ebpf#853. Nobody
// notices: each is made again, and a batch of which a part was posted goes on from there.
// ibv_fork_init, which broke huge pages and children, is not called at all (Mooncake#3845, rdma-core#1222): that
// would end the process.
func TestInterruptedCalls(t *testing.T) {
	withStandin(t, func(t *testing.T, s *standin, io IO) {
		before := descriptors(t)
		s.interrupt.Store(1)
		s.stopAt.Store(5)
		d := s.open(t, io)
		ok := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		_, err := d.PKeyTable(1)
		ok(err)
		e := s.itself(t, d)

		const n = 100
		for from := 0; from < n; from += 10 { // each an Arm, a notification and its acknowledgement
			ok(e.cq.Arm(false))
			wrs := sends(n)[from : from+10]
			count, err := e.qp.PostSend(wrs)
			if ok(err); count != len(wrs) {
				t.Fatalf("%d of %d posted", count, len(wrs))
			}
			e.wantIDs(from, from+10)
			until(t, "a notification", func() bool { return readable(t, e.ch.FD()) })
			q, more, err := e.ch.Next()
			if ok(err); !more || q != e.cq {
				t.Fatalf("notified: %v of %v", more, q)
			}
		}
		_, more, err := e.ch.Next()
		if ok(err); more {
			t.Error("one notification too many")
		}
		posted := uint32(n)
		post := func(q interface {
			PostRecv([]rdma.RecvWR) (int, error)
		}) {
			count, err := q.PostRecv(make([]rdma.RecvWR, 70))
			if posted += 70; err != nil || count != 70 || s.posted.Load() != posted {
				t.Fatalf("%d of 70 posted, %d in all, want %d: %v", count, s.posted.Load(), posted, err)
			}
		}
		post(e.qp)
		srq, err := e.pd.CreateSRQ(rdma.SRQOptions{MaxWRs: 128, MaxSGEs: 1})
		ok(err)
		post(srq)
		ok(srq.SetLimit(3))
		ok(srq.Close())
		raise(t, d, portActive)
		event, more, err := d.NextEvent()
		if ok(err); !more || event.Type != rdma.PortActivated {
			t.Errorf("%v, %v", event, more)
		}
		if state, err := e.qp.State(); err != nil || state != rdma.StateRTS {
			t.Errorf("%v, %v", state, err)
		}
		s.finish(t, d, e)
		for i := range s.calls {
			if c := &s.calls[i]; c.interrupted.Load() == 0 {
				t.Errorf("%v was not interrupted, in %d calls", c, c.calls.Load())
			}
		}
		if ids := s.threads(t); len(ids) > 0 {
			t.Errorf("threads left: %v", ids)
		}
		if after := descriptors(t); after != before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
}

// A post that fails at a request says how many are under way, whatever the driver's way to say why: mlx5 returned -1 and
// errno, others a number of either sign (libfabric#824). Nothing is lost, and nothing posted twice (lci#24).
func TestFailedPost(t *testing.T) {
	const bad = 37 // in the second batch
	withStandin(t, func(t *testing.T, s *standin, io IO) {
		d := s.open(t, io)
		e := s.itself(t, d)
		srq, err := e.pd.CreateSRQ(rdma.SRQOptions{MaxWRs: 128, MaxSGEs: 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			call, op, full string
			n              int
			post           func(from int) (int, error)
		}{
			{"post_send", "post send on standin0 qp 0x000001", "the queue of 255 work requests is full", 60,
				func(from int) (int, error) { return e.qp.PostSend(sends(60)[from:]) }},
			{"post_recv", "post receive on standin0 qp 0x000001", "the queue of 511 work requests is full", 60,
				func(from int) (int, error) { return e.qp.PostRecv(make([]rdma.RecvWR, 60)[from:]) }},
			{"post_srq_recv", "post receive on standin0", "the queue of 128 work requests is full", 60,
				func(from int) (int, error) { return srq.PostRecv(make([]rdma.RecvWR, 60)[from:]) }},
		} {
			c := s.call(tc.call)
			s.posted.Store(0)
			s.stopAt.Store(bad)
			c.fails.Store(uint32(syscall.ENOMEM))
			n, err := tc.post(0)
			wantError(t, err, rdma.ErrQueueFull, tc.op, tc.full, "ENOMEM", "poll completions")
			if n != bad-1 || s.posted.Load() != bad-1 {
				t.Errorf("%s: said %d, posted %d; want %d", tc.call, n, s.posted.Load(), bad-1)
			}
			s.stopAt.Store(1) // the first request already
			c.fails.Store(uint32(syscall.EIO))
			n, err = tc.post(bad - 1)
			wantError(t, err, rdma.ErrDeviceFatal, tc.op, "the device was lost or reset", "EIO", "see dmesg")
			if n != 0 || s.posted.Load() != bad-1 {
				t.Errorf("%s: said %d; %d posted in all, want %d", tc.call, n, s.posted.Load(), bad-1)
			}
			c.fails.Store(0)
			if n, err = tc.post(bad - 1); n != tc.n-(bad-1) || err != nil || s.posted.Load() != uint32(tc.n) {
				t.Errorf("%s: the rest: said %d, %v; posted %d", tc.call, n, err, s.posted.Load())
			}
		}
		e.wantIDs(0, 60)
		if err := srq.Close(); err != nil {
			t.Error(err)
		}
		s.finish(t, d, e)
	})
}

// The device is lost. That is told once; then nobody asks for events any more (libvma#828: that hung), each call says
// what happened, and everything can be closed.
func TestDeviceFatal(t *testing.T) {
	for _, told := range []bool{true, false} { // false: the calls are the first to find out
		t.Run(fmt.Sprintf("told %v", told), func(t *testing.T) {
			withStandin(t, func(t *testing.T, s *standin, io IO) { deviceFatalOf(t, s, io, told) })
		})
	}
}

func deviceFatalOf(t *testing.T, s *standin, io IO, told bool) {
	before := descriptors(t)
	d := s.open(t, io)
	e := s.itself(t, d)
	srq, err := e.pd.CreateSRQ(rdma.SRQOptions{MaxWRs: 128, MaxSGEs: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.cq.Arm(false); err != nil {
		t.Fatal(err)
	}
	if told {
		raise(t, d, deviceFatal)
		if ev, more, err := d.NextEvent(); ev.Type != rdma.DeviceFatal || !more || err != nil {
			t.Fatalf("%v, %v, %v", ev, more, err)
		}
	}
	s.fatal.Store(1)
	if told {
		asked := s.call("get_async_event").calls.Load()
		for range 3 {
			if ev, more, err := d.NextEvent(); more || err != nil {
				t.Errorf("after the last event: %v, %v", ev, err)
			}
		}
		if n := s.call("get_async_event").calls.Load(); n != asked {
			t.Errorf("it was asked %d times for events after the last", n-asked)
		}
	}
	result := func(_ any, err error) error { return err }
	for _, tc := range []struct {
		where string
		call  func() error
	}{
		{"post send on standin0 qp 0x000001", func() error { return result(e.qp.PostSend(sends(1))) }},
		{"post receive on standin0 qp 0x000001", func() error { return result(e.qp.PostRecv(make([]rdma.RecvWR, 1))) }},
		{"post receive on standin0", func() error { return result(srq.PostRecv(make([]rdma.RecvWR, 1))) }},
		{"query QP on standin0 qp 0x000001", func() error { return result(e.qp.State()) }},
		{"modify QP to ERROR on standin0 qp 0x000001", e.qp.Fail},
		{"modify QP to RESET on standin0 qp 0x000001", e.qp.Reset},
		{"query port on standin0", func() error { return result(d.QueryPort(1)) }},
		{"allocate PD on standin0", func() error { return result(d.AllocPD()) }},
		{"register memory on standin0", func() error { return result(e.pd.RegisterMemory(e.mem, rdma.LocalWrite)) }},
		{"create CQ on standin0", func() error { return result(d.CreateCQ(8, nil)) }},
		{"create SRQ on standin0", func() error { return result(e.pd.CreateSRQ(rdma.SRQOptions{MaxWRs: 1})) }},
		{"create QP on standin0", func() error { return result(e.pd.CreateQP(rdma.QPOptions{SendCQ: e.cq, RecvCQ: e.cq})) }},
		{"modify SRQ on standin0", func() error { return srq.SetLimit(1) }},
	} {
		wantError(t, tc.call(), rdma.ErrDeviceFatal, "rdma: "+tc.where, "the device was lost or reset", "EIO", "see dmesg, then start the job again")
	}
	if !told { // the thread finds out by itself, as soon as something wakes it
		until(t, "an error of Poll", func() bool {
			_, err := e.cq.Poll(e.wcs[:])
			return err != nil
		})
	}
	_, err = e.cq.Poll(e.wcs[:])
	wantError(t, err, rdma.ErrDeviceFatal, "poll CQ on standin0", "see dmesg, then start the job again")

	inTime(t, "closing a lost device", func() {
		if err := srq.Close(); err != nil {
			t.Error(err)
		}
		e.close()
		if left := d.Resources(); left != (rdma.Resources{}) {
			t.Errorf("left open: %v", left)
		}
		if io == Thread {
			s.wantIdle(t, d)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	if ids := s.threads(t); len(ids) > 0 {
		t.Errorf("threads left: %v", ids)
	}
	// The library closed neither the device nor the channel.
	if after := descriptors(t); after != before+2 {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// wantIdle wants the thread to leave CQs alone: they are closed, and what it had of them is free.
func (s *standin) wantIdle(t *testing.T, d *device) {
	polls := s.call("poll_cq").calls.Load()
	for range 2 { // when it hears the second ring, it has done everything for the first
		ringBell(d.io.bell)
		until(t, "the thread hears its bell", func() bool { return !readable(t, d.io.bell) })
	}
	if n := s.call("poll_cq").calls.Load() - polls; n > 0 {
		t.Errorf("the thread polled %d times when all CQs were closed", n)
	}
}

// A CQ that cannot be polled is an error for who polls, and who waits hears of it.
func TestFailedPoll(t *testing.T) {
	withStandin(t, func(t *testing.T, s *standin, io IO) {
		d := s.open(t, io)
		e := s.itself(t, d)
		if err := e.cq.Arm(false); err != nil {
			t.Fatal(err)
		}
		what := "the driver cannot read the CQ: it returned -2"
		if conventions[s.convention.Load()] == "minus one" {
			what = "it returned -1"
		}
		s.call("poll_cq").fails.Store(uint32(syscall.EINVAL))
		e.post(sends(1)...)
		until(t, "the end of the wait", func() bool { return readable(t, e.ch.FD()) })
		if q, more, err := e.ch.Next(); q != e.cq || !more || err != nil {
			t.Errorf("%v, %v, %v", q, more, err)
		}
		for range 2 {
			_, err := e.cq.Poll(e.wcs[:])
			wantError(t, err, rdma.ErrDeviceFatal, "poll CQ on standin0", what, "see dmesg")
		}
		s.finish(t, d, e)
	})
}

// A CQ that cannot be armed would keep who waits asleep for ever (brpc#3415).
func TestFailedArm(t *testing.T) {
	withStandin(t, func(t *testing.T, s *standin, io IO) {
		d := s.open(t, io)
		s.call("req_notify_cq").fails.Store(uint32(syscall.EIO))
		e := s.itself(t, d)
		err := e.cq.Arm(false)
		if io == Thread { // which arms by itself, and then says so as soon as it knows
			until(t, "the end of the wait", func() bool { return readable(t, e.ch.FD()) })
			_, err = e.cq.Poll(e.wcs[:])
		}
		wantError(t, err, rdma.ErrDeviceFatal, "arm CQ on standin0", "the device was lost or reset", "EIO", "see dmesg")
		if io == Direct { // it is not taken for armed
			s.call("req_notify_cq").fails.Store(0)
			if err := e.cq.Arm(true); err != nil {
				t.Error(err)
			}
			e.post(sends(1)...)
			if !readable(t, e.ch.FD()) {
				t.Error("no notification came after the second Arm")
			}
		}
		s.finish(t, d, e)
	})
}

// A notification that the device loses is no reason to sleep for ever, and the next one comes
// again (brpc#3415, libfabric#796, perftest#137).
func TestLostNotification(t *testing.T) {
	withStandin(t, func(t *testing.T, s *standin, io IO) {
		d := s.open(t, io)
		e := s.itself(t, d)
		for round := range 3 {
			if err := e.cq.Arm(false); err != nil {
				t.Fatal(err)
			}
			armed := s.call("req_notify_cq").calls.Load()
			if io == Thread {
				s.asleep(t, uint32(1+round))
			}
			s.lose.Store(1)
			e.post(sends(1)...)
			if s.lose.Load() != 0 {
				t.Fatal("no notification was lost: the queue was not armed")
			}
			e.wantIDs(0, 1)
			if io == Thread {
				until(t, "the thread tells who waits", func() bool { return readable(t, e.ch.FD()) })
				until(t, "the thread arms again", func() bool { return s.call("req_notify_cq").calls.Load() > armed })
				if _, more, err := e.ch.Next(); !more || err != nil {
					t.Fatal(more, err)
				}
			} else if readable(t, e.ch.FD()) {
				t.Error("the notification was not lost")
			}
		}
		if io == Thread {
			s.asleep(t, 4)
		}
		if err := e.cq.Arm(false); err != nil {
			t.Fatal(err)
		}
		e.post(sends(1)...)
		e.wantIDs(0, 1)
		if s.notified.Load() != 1 {
			t.Errorf("%d notifications; want 1", s.notified.Load())
		}
		until(t, "a notification", func() bool { return readable(t, e.ch.FD()) })
		if _, more, err := e.ch.Next(); !more || err != nil {
			t.Error(more, err)
		}
		s.finish(t, d, e)
	})
}

// No signal reaches the thread, as it has them all blocked: a handler that finds no
// goroutine there ended whole programs (silkworm#1940). Transfers go on in a storm of signals, and under a
// profiler (go#9785, cilium/ebpf#853; a poll loop of gordma was halved by them).
func TestSignals(t *testing.T) {
	built := buildStandin(t)
	for _, io := range modes {
		t.Run(io.String(), func(t *testing.T) {
			s := newStandin(t, built)
			d := s.open(t, io)
			e := s.itself(t, d)
			ids := s.threads(t)
			if len(ids) != map[IO]int{Direct: 0, Thread: 1}[io] {
				t.Fatalf("threads: %v", ids)
			}
			for _, id := range ids {
				wantSignalsBlocked(t, id)
			}
			var profile bytes.Buffer
			if err := pprof.StartCPUProfile(&profile); err != nil {
				t.Fatal(err)
			}
			defer pprof.StopCPUProfile()
			heard := make(chan os.Signal, 1)
			signal.Notify(heard, unix.SIGUSR1, unix.SIGINT)
			defer signal.Stop(heard)
			var stop atomic.Bool
			var storms atomic.Int32
			done := make(chan error)
			go func() {
				for ; !stop.Load(); storms.Add(1) {
					for _, sig := range []unix.Signal{unix.SIGURG, unix.SIGPROF, unix.SIGUSR1, unix.SIGINT, unix.SIGCHLD} {
						err := unix.Kill(os.Getpid(), sig)
						for _, id := range ids {
							err = errors.Join(err, unix.Tgkill(os.Getpid(), id, sig))
						}
						if err != nil {
							done <- err
							return
						}
					}
				}
				done <- nil
			}()
			for i := 0; i < 200 || storms.Load() < 200; i++ {
				if err := e.cq.Arm(false); err != nil {
					t.Fatal(err)
				}
				e.post(sends(20)...)
				e.wantIDs(0, 20)
				until(t, "a notification", func() bool { return readable(t, e.ch.FD()) })
				if _, more, err := e.ch.Next(); !more || err != nil {
					t.Fatal(more, err)
				}
			}
			stop.Store(true)
			if err := <-done; err != nil {
				t.Error(err)
			}
			<-heard
			s.finish(t, d, e)
		})
	}
}

// wantSignalsBlocked: all but those that nobody can block, and those of the C library.
func wantSignalsBlocked(t *testing.T, thread int) {
	t.Helper()
	status, err := processStatus(fmt.Sprintf("/proc/self/task/%d/status", thread))
	if err != nil {
		t.Fatal(err)
	}
	blocked, err := strconv.ParseUint(status["SigBlk"], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	for sig := 1; sig <= 64; sig++ {
		switch {
		case sig == int(unix.SIGKILL) || sig == int(unix.SIGSTOP) || sig >= 32 && sig <= 34:
		case blocked&(1<<(sig-1)) == 0:
			t.Errorf("signal %d (%v) is not blocked in the thread", sig, syscall.Signal(sig))
		}
	}
}

// What cannot be made leaves nothing behind, and what could not be closed is closed by the second Close.
func TestFailedCalls(t *testing.T) {
	withStandin(t, func(t *testing.T, s *standin, io IO) {
		d := s.open(t, io)
		before := descriptors(t)
		s.call("create_comp_channel").fails.Store(uint32(syscall.ENOSPC))
		var err error
		if io == Thread { // whose channel it is
			_, err = d.CreateCQ(8, nil)
		} else {
			_, err = d.CreateCompChannel()
		}
		wantError(t, err, rdma.ErrResources, "on standin0: device or kernel are out of such objects", "ENOSPC", "rdma resource")
		s.call("create_comp_channel").fails.Store(0)
		if after := descriptors(t); after != before || len(s.threads(t)) > 0 || d.Resources() != (rdma.Resources{}) {
			t.Errorf("left: %d descriptors more, threads %v, %v", after-before, s.threads(t), d.Resources())
		}

		caps := rdma.QPCaps{MaxSendWRs: 1, MaxRecvWRs: 1}
		e := s.itself(t, d)
		type closer interface{ Close() error }
		for _, tc := range []struct {
			create, destroy string
			what            string
			make            func() (closer, error)
		}{
			{"alloc_pd", "dealloc_pd", "PD", func() (closer, error) { return d.AllocPD() }},
			{"reg_mr", "dereg_mr", "register", func() (closer, error) { return e.pd.RegisterMemory(e.mem, 0) }},
			{"create_cq", "destroy_cq", "CQ", func() (closer, error) { return d.CreateCQ(8, e.ch) }},
			{"create_srq", "destroy_srq", "SRQ", func() (closer, error) { return e.pd.CreateSRQ(rdma.SRQOptions{MaxWRs: 1, MaxSGEs: 1}) }},
			{"create_qp", "destroy_qp", "QP", func() (closer, error) { return e.pd.CreateQP(rdma.QPOptions{SendCQ: e.cq, RecvCQ: e.cq, Caps: caps}) }},
		} {
			objects, count := s.objects.Load(), d.Resources()
			s.call(tc.create).fails.Store(uint32(syscall.ENOSPC))
			if x, err := tc.make(); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), tc.what) {
				t.Errorf("%s: %v, %v", tc.create, x, err)
			}
			s.call(tc.create).fails.Store(0)
			if s.objects.Load() != objects || d.Resources() != count {
				t.Errorf("%s left something: %d objects, %v; before %d, %v", tc.create, s.objects.Load(), d.Resources(), objects, count)
			}
			x, err := tc.make()
			if err != nil {
				t.Fatal(err)
			}
			s.call(tc.destroy).fails.Store(uint32(syscall.EBUSY))
			wantError(t, x.Close(), rdma.ErrBusy, tc.what, "on standin0", "still in use", "EBUSY", "rdma resource")
			s.call(tc.destroy).fails.Store(0)
			if err := x.Close(); err != nil {
				t.Errorf("%s, again: %v", tc.destroy, err)
			}
			if s.objects.Load() != objects || d.Resources() != count {
				t.Errorf("%s: %d objects, %v; before %d, %v", tc.destroy, s.objects.Load(), d.Resources(), objects, count)
			}
		}
		if err := e.qp.Reset(); err != nil {
			t.Error(err)
		}
		s.call("modify_qp").fails.Store(uint32(syscall.EINVAL))
		wantError(t, e.qp.Init(rdma.InitAttr{Port: 1, PKeyIndex: 3}), rdma.ErrInvalid,
			"modify QP to INIT on standin0 qp 0x000001: the device does not take port 1 with partition key index 3 (EINVAL); weft info")
		s.finish(t, d, e)
	})
}

// A device that somebody asks about its port is closed when he has his answer.
func TestCloseDuringQuery(t *testing.T) {
	s := newStandin(t, buildStandin(t))
	d := s.open(t, Direct)
	s.slow.Store(100)
	for name, query := range map[string]func() error{
		"QueryPort": func() error { _, err := d.QueryPort(1); return err },
		"GIDTable":  func() error { _, err := d.GIDTable(1); return err },
		"PKeyTable": func() error { _, err := d.PKeyTable(1); return err },
	} {
		before := s.call("query_port").calls.Load()
		answer := make(chan error)
		go func() { answer <- query() }()
		until(t, name+" asks", func() bool { return s.call("query_port").calls.Load() > before })
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := <-answer; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		wantError(t, query(), rdma.ErrClosed, "on standin0: the device was closed")
		d = s.open(t, Direct)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
