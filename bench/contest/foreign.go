package contest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Foreign returns the processor time used so far by programs that have no part
// in the contest: all that the machine was busy with, less this process, the
// children that it has waited for, and the ranks of the given sessions. Only
// differences mean anything, and they are good to some 50 ms: the kernel counts in ticks
// of 10 ms for each process.
func Foreign(sessions ...*Session) (time.Duration, error) {
	total, err := busy()
	if err != nil {
		return 0, err
	}
	total -= used(syscall.RUSAGE_SELF) + used(syscall.RUSAGE_CHILDREN)
	for _, s := range sessions {
		if s == nil || s.err != nil {
			continue
		}
		own, err := s.cpu()
		if err != nil {
			continue // it has just died, which its next block will report
		}
		total -= own
	}
	return total, nil
}

// busy is the time that all processors together were not idle.
func busy() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	f := strings.Fields(line) // cpu user nice system idle iowait irq softirq ...
	if len(f) < 8 || f[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	var ticks int64
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / userHZ), nil
}

func used(who int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		panic(err) // only a bad argument makes it fail
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
