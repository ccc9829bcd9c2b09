package topo

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"
)

// Memory returns the bytes of memory that the machine has, and those that a new
// program can have without swapping.
func (r Root) Memory() (total, available int64, err error) {
	s, err := r.Text("proc/meminfo")
	if err != nil {
		return 0, 0, err
	}
	find := func(name string) int64 {
		for l := range strings.Lines(s) {
			if f := strings.Fields(l); len(f) >= 2 && f[0] == name {
				if n, err := strconv.ParseInt(f[1], 10, 50); err == nil {
					return n << 10
				}
			}
		}
		err = errors.Join(err, fmt.Errorf("topo: no %s in %s", name, r.path("proc/meminfo")))
		return 0
	}
	total, available = find("MemTotal:"), find("MemAvailable:")
	return total, available, err
}

// Unlimited is the value of a limit that is none.
const Unlimited = math.MaxInt64

// Limit returns this process's soft and hard limit of that name, as
// /proc/self/limits spells it: "Max locked memory".
func (r Root) Limit(name string) (soft, hard int64, err error) {
	s, err := r.Text("proc/self/limits")
	if err != nil {
		return 0, 0, err
	}
	for l := range strings.Lines(s) {
		rest, ok := strings.CutPrefix(l, name)
		if f := strings.Fields(rest); ok && len(f) >= 2 {
			soft, err1 := parseLimit(f[0])
			hard, err2 := parseLimit(f[1])
			return soft, hard, errors.Join(err1, err2)
		}
	}
	return 0, 0, fmt.Errorf("topo: no %q in %s", name, r.path("proc/self/limits"))
}

func parseLimit(s string) (int64, error) {
	if s == "unlimited" {
		return Unlimited, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("topo: bad limit %q", s)
	}
	return int64(min(n, math.MaxInt64)), nil
}

// Tasks returns how many processes and threads the kernel has room for: what
// pid_max, threads-max and this process's control groups leave, and the name of
// the tightest of them. What runs already is not taken off.
func (r Root) Tasks() (n int64, which string, err error) {
	n = Unlimited
	lower := func(m int64, name string) {
		if m < n {
			n, which = m, name
		}
	}
	for _, name := range []string{"pid_max", "threads-max"} {
		m, err := r.number("proc/sys/kernel/" + name)
		if err != nil {
			return 0, "", err
		}
		lower(m, "kernel."+name)
	}
	// One that cannot be read is still the kernel's to keep; no job is refused for it.
	if m, file, err := r.limit("pids", "pids.max", "pids.max"); err == nil {
		lower(m, file)
	}
	return n, which, nil
}

// Ptrace answers whether processes of one user may read each other's memory
// with process_vm_readv.
func (r Root) Ptrace() Answer {
	n, err := r.number("proc/sys/kernel/yama/ptrace_scope")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return yes("the kernel has no Yama, so processes of one user may")
	case err != nil:
		return unknown("%v", err)
	case n == 0:
		return yes("kernel.yama.ptrace_scope is 0")
	case n == 1:
		return no("kernel.yama.ptrace_scope is 1: only ancestors and who was named with prctl may; sysctl kernel.yama.ptrace_scope=0 would allow it")
	}
	return no("kernel.yama.ptrace_scope is %d", n)
}

// FormatBytes writes a number of bytes in the largest unit that it has one of.
func FormatBytes(n int64) string {
	if n == Unlimited {
		return "unlimited"
	}
	const units = "KMGTPE"
	f, unit := float64(n), -1
	for f >= 1024 && unit < len(units)-1 {
		f /= 1024
		unit++
	}
	if unit < 0 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%.4g %ciB", f, units[unit])
}
