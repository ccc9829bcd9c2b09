package tcp

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of the data path. All sockets are non-blocking, so small ones
// are over at once and need not tell the scheduler; long copies tell it, so that the
// collector need not wait for them. Sending never raises SIGPIPE.
const quick = 32 << 10

func recv(fd int, b []byte) (int, syscall.Errno) {
	if len(b) == 0 {
		return 0, 0
	}
	for {
		var n uintptr
		var e syscall.Errno
		if len(b) <= quick {
			n, _, e = syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
		} else {
			n, _, e = syscall.Syscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
		}
		if e == 0 {
			return int(n), 0
		}
		if e != syscall.EINTR {
			return 0, e
		}
	}
}

func send(fd int, b []byte) (int, syscall.Errno) {
	for {
		n, _, e := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
			unix.MSG_NOSIGNAL, 0, 0)
		if e == 0 {
			return int(n), 0
		}
		if e != syscall.EINTR {
			return 0, e
		}
	}
}

// vector is a list of pieces to send in one call. It is reused, and keeps
// nothing alive between calls.
type vector struct {
	iov   [16]unix.Iovec
	n     int
	bytes int
	msg   unix.Msghdr
}

func (v *vector) full() bool { return v.n == len(v.iov) }

func (v *vector) add(b []byte) {
	if len(b) == 0 {
		return
	}
	v.iov[v.n] = unix.Iovec{Base: &b[0], Len: uint64(len(b))}
	v.n++
	v.bytes += len(b)
}

// send sends the pieces, empties the vector, and returns how many bytes went.
func (v *vector) send(fd int) (n int, e syscall.Errno) {
	for {
		v.msg = unix.Msghdr{Iov: &v.iov[0], Iovlen: uint64(v.n)}
		var r uintptr
		if v.bytes <= quick {
			r, _, e = syscall.RawSyscall(syscall.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&v.msg)), unix.MSG_NOSIGNAL)
		} else {
			r, _, e = syscall.Syscall(syscall.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&v.msg)), unix.MSG_NOSIGNAL)
		}
		if e == syscall.EINTR {
			continue
		}
		if e == 0 {
			n = int(r)
		}
		clear(v.iov[:v.n])
		v.n, v.bytes = 0, 0
		return n, e
	}
}

// ready fills events with what epoll has, without waiting.
func ready(epfd int, events []unix.EpollEvent) int {
	n, _, e := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(epfd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	if e != 0 {
		return 0 // EINTR: the next Poll looks again
	}
	return int(n)
}
