package control

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// adopt makes a file of an inherited descriptor and keeps it from children. A
// socket is made non-blocking, so that closing it ends a read.
func adopt(fd int, name string, socket bool) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("descriptor %d is not open (%w)", fd, err)
	}
	if isSocket := st.Mode&unix.S_IFMT == unix.S_IFSOCK; isSocket != socket {
		return nil, fmt.Errorf("descriptor %d is something else (mode %#o)", fd, st.Mode)
	}
	unix.CloseOnExec(fd)
	if socket {
		if err := unix.SetNonblock(fd, true); err != nil {
			return nil, fmt.Errorf("descriptor %d cannot be made non-blocking (%w)", fd, err)
		}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// pair returns both ends of a new line. Ours is non-blocking; theirs is left as
// a program expects its descriptors.
func pair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("control: cannot make a socket pair: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, fmt.Errorf("control: cannot make a socket non-blocking: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control of a rank"), nil
}

// Pair returns both ends of a new line, for who carries one on by other means: each end is
// for this process itself.
func Pair() (launcher, rank *os.File, err error) {
	launcher, theirs, err := pair()
	if err != nil {
		return nil, nil, err
	}
	if rank, err = Own(theirs); err != nil {
		return nil, nil, errors.Join(err, launcher.Close())
	}
	return launcher, rank, nil
}

// Own returns a rank's end of a line, as Hub.Open made it for another process, in a form that
// this process can use, and closes f.
func Own(f *os.File) (*os.File, error) {
	fd, err := duplicate(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return adopt(fd, "control of a rank", true)
}

// Adopt takes up an inherited socket as a descriptor that no child of this process gets.
func Adopt(fd int, name string) (*os.File, error) { return adopt(fd, name, true) }

// endReading makes reads of a socket end once they have taken what is queued.
func endReading(f *os.File) error { return shutdown(f, unix.SHUT_RD) }

// endWriting makes the other end see the end of what this one says.
func endWriting(f *os.File) error { return shutdown(f, unix.SHUT_WR) }

// hangUp makes both ends see the end of a line whose descriptor stays open.
func hangUp(f *os.File) error { return shutdown(f, unix.SHUT_RDWR) }

func shutdown(f *os.File, how int) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = c.Control(func(fd uintptr) { inner = unix.Shutdown(int(fd), how) })
	if err != nil {
		return err
	}
	return inner
}

// duplicate returns a second descriptor of f and closes f.
func duplicate(f *os.File) (int, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("control: cannot duplicate a descriptor: %w", err)
	}
	return fd, f.Close()
}

// errReset is how a line ends when the peer died with bytes unread.
const errReset = unix.ECONNRESET
