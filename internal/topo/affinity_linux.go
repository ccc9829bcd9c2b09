package topo

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// maxCPU is how many processors a unix.CPUSet has room for.
const maxCPU = 1024

// Allowed returns the processors that the calling thread may run on, ascending.
// Cpusets, control groups, taskset and batch systems are all in it.
func Allowed() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("topo: cannot tell which processors this process may use: %w", err)
	}
	var cpus []int
	for cpu := range maxCPU {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// Bind makes the calling thread, and what it forks, run on cpus only. The caller
// has locked the thread.
func Bind(cpus []int) error {
	var set unix.CPUSet
	for _, cpu := range cpus {
		if cpu < 0 || cpu >= maxCPU {
			return fmt.Errorf("topo: processor %d, the highest this can bind to is %d", cpu, maxCPU-1)
		}
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("topo: cannot bind to processors %s: %w", FormatCPUs(cpus), err)
	}
	return nil
}

// Space returns the size and the free bytes of the file system at a path.
func (r Root) Space(path string) (size, free int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(r.path(path), &st); err != nil {
		return 0, 0, fmt.Errorf("topo: %s: %w", r.path(path), err)
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize, nil
}
