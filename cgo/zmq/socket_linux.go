//go:build zmq && cgo

package zmq

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pebbe/zmq4"
	"golang.org/x/sys/unix"
)

// socket is a ZeroMQ socket and a way to sleep until something happens to it. It
// belongs to one goroutine; others may call rouse.
type socket struct {
	*zmq4.Socket
	file   *os.File // the descriptor that ZeroMQ signals, in Go's poller
	raw    syscall.RawConn
	roused atomic.Bool
}

func newSocket(ctx *zmq4.Context, kind zmq4.Type) (*socket, error) {
	z, err := ctx.NewSocket(kind)
	if err != nil {
		return nil, err
	}
	s := &socket{Socket: z}
	fd, err := z.GetFd()
	if err == nil {
		fd, err = dup(fd) // closing a file closes its descriptor, and this one is ZeroMQ's
	}
	if err == nil {
		s.file = os.NewFile(uintptr(fd), "zmq")
		s.raw, err = s.file.SyscallConn()
	}
	if err == nil {
		err = s.file.SetReadDeadline(time.Time{}) // is it in the poller?
	}
	if err == nil {
		err = z.SetLinger(0)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func dup(fd int) (int, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return n, os.NewSyscallError("fcntl", err)
}

// sleep returns when there may be something to receive, after rouse, or at that time. The descriptor is signalled on
// changes only, so it asks ZeroMQ before it waits.
func (s *socket) sleep(until time.Time) error {
	if err := s.file.SetReadDeadline(until); err != nil {
		return err
	}
	asked := false
	var state zmq4.State
	var bad error
	err := s.raw.Read(func(uintptr) bool {
		if asked || s.roused.Load() {
			return true
		}
		asked = true
		state, bad = s.GetEvents()
		return bad != nil || state&zmq4.POLLIN != 0
	})
	s.roused.Store(false)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return errors.Join(err, bad)
}

var past = time.Unix(1, 0)

// rouse ends a sleep, or the next one.
func (s *socket) rouse() {
	if !s.roused.Swap(true) {
		_ = s.file.SetReadDeadline(past) // fails once it is closed: then nobody sleeps
	}
}

// again tells that a call would have had to wait.
func again(err error) bool { return zmq4.AsErrno(err) == zmq4.Errno(syscall.EAGAIN) }

func (s *socket) close() error {
	var err error
	if s.file != nil {
		err = s.file.Close()
	}
	return errors.Join(err, s.Socket.Close())
}
