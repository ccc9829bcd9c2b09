//go:build cgo

package ibverbs

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/rdma"
)

// conventions are the ways of verbs to say an errno, as in testdata/standin.c.
var conventions = []string{"positive", "negative", "minus one"}

// buildStandin builds the library of testdata/standin.c.
func buildStandin(t testing.TB) string {
	t.Helper()
	notBuiltIn(t)
	return buildLibrary(t, "testdata/standin.c")
}

// withStandin runs a test on a library of its own for each way to drive queues, and each convention.
func withStandin(t *testing.T, test func(t *testing.T, s *standin, io IO)) {
	built := buildStandin(t)
	for _, io := range modes {
		for i, c := range conventions {
			t.Run(io.String()+"/"+c, func(t *testing.T) {
				s := newStandin(t, built)
				s.convention.Store(uint32(i))
				test(t, s, io)
			})
		}
	}
}

// call is one call of the library. It is loaded by then.
func (s *standin) call(name string) *standinCall {
	for i := range s.calls {
		if s.calls[i].String() == name {
			return &s.calls[i]
		}
	}
	panic("standin.c has no " + name)
}

func (s *standin) open(t testing.TB, io IO) *device {
	t.Helper()
	p := New(Options{Library: s.file, IO: io, Spin: -1})
	p.sysfs = sysfsWith(t, nil)
	dev, err := p.Open("standin0")
	if err != nil {
		t.Fatal(err)
	}
	return dev.(*device)
}

// itself is an end on the device that is connected to itself.
func (s *standin) itself(t testing.TB, d *device) *end {
	t.Helper()
	e := newEnd(t, d, 1, 64)
	e.init()
	e.connect(e)
	return e
}

// raise has the device report an event.
func raise(t testing.TB, d *device, number uint64) {
	t.Helper()
	if _, err := unix.Write(d.EventFD(), binary.NativeEndian.AppendUint64(nil, number+1)); err != nil {
		t.Fatal(err)
	}
}

const deviceFatal, portActive = 8, 9 // numbers of verbs

// finish closes all and wants nothing left, here and in the library.
func (s *standin) finish(t testing.TB, d *device, e *end) {
	t.Helper()
	e.close()
	if left := d.Resources(); left != (rdma.Resources{}) {
		t.Errorf("left open: %v", left)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if n := s.objects.Load(); n != 0 {
		t.Errorf("the library has %d objects left", n)
	}
}

// inTime fails a test that hangs, with the stacks.
func inTime(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
		t.Fatalf("%s hangs", what)
	}
}

// until waits for a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

func readable(t testing.TB, fd int) bool {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		switch err {
		case nil:
			return n > 0
		case unix.EINTR: // as it is when the runtime wants the processor
		default:
			t.Fatal(err)
		}
	}
}

func descriptors(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// ioThreads are the ids of the threads of devices.
func ioThreads(t testing.TB) (ids []int) {
	t.Helper()
	names, err := filepath.Glob("/proc/self/task/*/comm")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		comm, err := os.ReadFile(name)
		if id, bad := strconv.Atoi(strings.Split(name, "/")[4]); err == nil && bad == nil && string(comm) == "weft-rdma\n" {
			ids = append(ids, id)
		}
	}
	return ids
}

// threads are the ids of the threads of this library's devices. A test that failed before may have left others.
func (s *standin) threads(t testing.TB) []int {
	t.Helper()
	return slices.DeleteFunc(ioThreads(t), func(id int) bool { return slices.Contains(s.others, id) })
}

// asleep waits until the thread of the device sleeps, with the queue armed.
func (s *standin) asleep(t testing.TB, armed uint32) {
	t.Helper()
	until(t, "the thread arms the queue and sleeps", func() bool {
		ids := s.threads(t)
		if len(ids) != 1 || s.call("req_notify_cq").calls.Load() < armed {
			return false
		}
		status, err := processStatus(fmt.Sprintf("/proc/self/task/%d/status", ids[0]))
		return err == nil && strings.HasPrefix(status["State"], "S")
	})
}

func sends(n int) []rdma.SendWR {
	wrs := make([]rdma.SendWR, n)
	for i := range wrs {
		wrs[i] = rdma.SendWR{ID: uint64(i), Flags: rdma.Signaled}
	}
	return wrs
}

// wantIDs wants completions of requests from..to-1, and of no other.
func (e *end) wantIDs(from, to int) {
	e.t.Helper()
	for i := from; i < to; i++ {
		if wc := e.success(); wc.ID != uint64(i) {
			e.t.Fatalf("completion of request %d; want %d", wc.ID, i)
		}
	}
	if n, err := e.cq.Poll(e.wcs[:]); n > 0 || err != nil || e.i != e.n {
		e.t.Fatalf("%d more completions, %v", n+e.n-e.i, err)
	}
}
