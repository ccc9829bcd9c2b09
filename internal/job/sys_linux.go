package job

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mayExecute returns nil when this process may execute a file.
func mayExecute(path string) error {
	return unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
}

// mayExceedProcesses tells whether the limit of processes does not bind us.
func mayExceedProcesses() bool { return os.Geteuid() == 0 }

// adoptOrphans makes this process the parent of the orphans among its
// descendants, so that none can outlive the job.
func adoptOrphans() error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
}

// raiseMemlock lets ranks lock as much memory as the system lets anybody: RDMA
// needs it, and the soft limit is small nearly everywhere. What the hard limit
// forbids is for who needs it to complain of.
func raiseMemlock() error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	l.Cur = l.Max
	return os.NewSyscallError("setrlimit", unix.Setrlimit(unix.RLIMIT_MEMLOCK, &l))
}

// isTerminal tells whether a file is a terminal.
func isTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

// windowSize is the size of the terminal that our output goes to, as variables of an environment: ranks, which
// write into pipes, have no other way to ask for it.
func windowSize() []string {
	for _, fd := range []int{1, 2} {
		if w, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err == nil && w.Col > 0 && w.Row > 0 {
			return []string{fmt.Sprintf("COLUMNS=%d", w.Col), fmt.Sprintf("LINES=%d", w.Row)}
		}
	}
	return nil
}

// sameFile tells whether two descriptors lead to one file, so that their writers
// must take turns.
func sameFile(a, b int) bool {
	var sa, sb unix.Stat_t
	if unix.Fstat(a, &sa) != nil || unix.Fstat(b, &sb) != nil {
		return false
	}
	return sa.Dev == sb.Dev && sa.Ino == sb.Ino
}

// newPipe returns a pipe whose end on our side works with deadlines and whose
// other end is what a program expects.
func newPipe(name string, ourEndReads bool) (ours, theirs *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	our, their := fds[0], fds[1]
	if !ourEndReads {
		our, their = their, our
	}
	if err := unix.SetNonblock(our, true); err != nil {
		unix.Close(our)
		unix.Close(their)
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(our), name), os.NewFile(uintptr(their), name), nil
}

// childPIDs returns the processes whose parent this process is. They stay what
// they are until they are reaped.
func childPIDs() []int {
	names, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		panic(err) // a bad pattern
	}
	self := strconv.Itoa(os.Getpid())
	var pids []int
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // has ended
		}
		// pid (name, which may hold anything) state parent ...
		_, rest, _ := strings.Cut(string(b[max(0, strings.LastIndexByte(string(b), ')')):]), " ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == self {
			if pid, err := strconv.Atoi(strings.Split(name, "/")[2]); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
