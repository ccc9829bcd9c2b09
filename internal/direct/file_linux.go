package direct

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/control"
)

// maxInvitation bounds the file.
const maxInvitation = 64 << 10

// How a step without a manager meets, and what to do where that does not work.
const (
	byFile  = "the ranks of a step meet by a file in the home directory"
	without = "srun --mpi=pmi2 does without"
)

// writeInvitation writes a file that is whole as soon as it has its name, and that nobody
// else can read. One that a dead job has left is replaced.
func writeInvitation(name string, b []byte) error {
	part := fmt.Sprintf("%s.%d", name, os.Getpid())
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		_, err = f.Write(b)
		err = errors.Join(err, f.Close())
		if err == nil {
			err = os.Rename(part, name)
		}
		if err != nil {
			err = errors.Join(err, os.Remove(part))
		}
	}
	if err != nil {
		return fmt.Errorf("%s, but %w; %s", byFile, err, without)
	}
	return nil
}

// readInvitation reads the file, if it is this user's alone.
func readInvitation(name string) (*invitation, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if owner := st.Sys().(*syscall.Stat_t).Uid; !st.Mode().IsRegular() || st.Mode().Perm() != 0o600 || int(owner) != os.Geteuid() {
		return nil, fmt.Errorf("%w: %s is of user %d, mode %v; it must be a file of user %d, mode -rw-------", errInvitation, name, owner, st.Mode(), os.Geteuid())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxInvitation))
	if err != nil {
		return nil, err
	}
	return parseInvitation(b)
}

func removeInvitation(name string) error {
	if err := os.Remove(name); err != nil {
		return fmt.Errorf("the file with the job's secret stays: %w", err)
	}
	return nil
}

// line takes up the manager's descriptor.
func (sys *System) line(fd int) (*os.File, error) {
	if sys.adopt != nil {
		return sys.adopt(fd)
	}
	return control.Adopt(fd, "process manager")
}
