package rdmatest

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// readable waits until fd is readable, at most for d.
func readable(fd int, d time.Duration) (bool, error) {
	deadline := time.Now().Add(d)
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		left := max(0, time.Until(deadline))
		n, err := unix.Poll(fds, int((left+time.Millisecond-1)/time.Millisecond))
		if err == unix.EINTR {
			continue
		}
		return n > 0 && fds[0].Revents&unix.POLLIN != 0, err
	}
}

// mapMemory maps n bytes outside the Go heap.
func mapMemory(t testing.TB, n int) (b []byte, free func()) {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	return b, func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	}
}
