package fake

import "golang.org/x/sys/unix"

// signal is a file descriptor that is readable between raise and lower.
type signal struct {
	fd int
	up bool
}

func (s *signal) open() (err error) {
	s.fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return err
}

// raise and lower cannot fail: the counter of an eventfd that is only ever 0 or
// 1 neither overflows nor runs dry. The signal may be closed already.
func (s *signal) raise() {
	if !s.up && s.fd >= 0 {
		one := [8]byte{0: 1, 7: 1} // not zero in either byte order
		if _, err := unix.Write(s.fd, one[:]); err != nil {
			panic("fake: eventfd: " + err.Error())
		}
		s.up = true
	}
}

func (s *signal) lower() {
	if s.up {
		var n [8]byte
		if _, err := unix.Read(s.fd, n[:]); err != nil {
			panic("fake: eventfd: " + err.Error())
		}
		s.up = false
	}
}

func (s *signal) close() error {
	fd := s.fd
	s.fd, s.up = -1, false
	return unix.Close(fd)
}
