package job

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// typist passes what is typed at a terminal on to rank 0.
//
// Anything but a terminal is rank 0's own standard input, read as it asks for it
// and left alone otherwise. A terminal cannot be given away like that: rank 0
// lives in a process group of its own, so that it can be signalled with all its
// children, and the kernel stops a background group that reads from a terminal.
//
// The typist reads no further ahead than one write: only when rank 0 has taken
// everything so far, and only while the launcher is in the foreground. The pipe
// has room for one page, so that it is writable only when it is empty.
type typist struct {
	pipe  int // write end
	wake  int // eventfd: close was called
	group sync.WaitGroup
}

// newTypist starts a typist and returns the end that rank 0 reads.
func newTypist() (*typist, *os.File, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	fail := func(call string, err error) (*typist, *os.File, error) {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, os.NewSyscallError(call, err)
	}
	if _, err := unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, 1); err != nil { // rounded up to a page
		return fail("fcntl", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return fail("eventfd", err)
	}
	t := &typist{pipe: fds[1], wake: wake}
	t.group.Go(t.run)
	return t, os.NewFile(uintptr(fds[0]), "typed input"), nil
}

// background is how often a typist looks whether it is in the foreground again,
// in milliseconds: nothing tells it.
const background = 250

func (t *typist) run() {
	defer unix.Close(t.pipe)
	buf := make([]byte, 4096)
	for {
		if !t.wait(t.pipe, unix.POLLOUT, -1) {
			return
		}
		if !foreground() {
			if !t.wait(-1, 0, background) {
				return
			}
			continue
		}
		// A pipe that loses its reader shows it in the same poll.
		if !t.wait(0, unix.POLLIN, -1) {
			return
		}
		if !foreground() {
			continue
		}
		n, err := unix.Read(0, buf)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if n <= 0 {
			return // end of input: rank 0 sees it when the pipe closes
		}
		for b := buf[:n]; len(b) > 0; {
			m, err := unix.Write(t.pipe, b)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return
			}
			b = b[m:]
		}
	}
}

// wait waits for an event on fd, and returns false when the typist must end:
// close was called or nobody reads the pipe any more. A time limit, in
// milliseconds, returns true.
func (t *typist) wait(fd int, event int16, limit int) bool {
	fds := []unix.PollFd{
		{Fd: int32(t.wake), Events: unix.POLLIN},
		{Fd: int32(t.pipe)}, // POLLERR needs no asking
		{Fd: int32(fd), Events: event},
	}
	for {
		_, err := unix.Poll(fds, limit)
		if err == unix.EINTR {
			continue
		}
		return err == nil && fds[0].Revents == 0 && fds[1].Revents&unix.POLLERR == 0
	}
}

// foreground tells whether reading from the terminal would not stop us. A
// terminal that does not control this session never would.
func foreground() bool {
	group, err := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	return err != nil || group == unix.Getpgrp()
}

// close ends the typist and waits for it.
func (t *typist) close() {
	var one = [8]byte{1}
	unix.Write(t.wake, one[:]) // can only fail when full, which wakes as well
	t.group.Wait()
	unix.Close(t.wake)
}
