package topo

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// ParseCPUs reads the kernel's list format, such as 0-3,8,10-11. The result is
// ascending.
func ParseCPUs(s string) ([]int, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return nil, nil
	}
	var cpus []int
	for part := range strings.SplitSeq(s, ",") {
		low, high, ranged := strings.Cut(part, "-")
		if !ranged {
			high = low
		}
		a, err := strconv.ParseUint(low, 10, 20)
		b, err2 := strconv.ParseUint(high, 10, 20)
		if err != nil || err2 != nil || b < a {
			return nil, fmt.Errorf("topo: bad processor list %q at %q", s, part)
		}
		for c := a; c <= b; c++ {
			cpus = append(cpus, int(c))
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}

// FormatCPUs writes ascending numbers in the kernel's list format.
func FormatCPUs(cpus []int) string {
	var b []byte
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		if len(b) > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(cpus[i]), 10)
		if j > i {
			b = append(b, '-')
			b = strconv.AppendInt(b, int64(cpus[j]), 10)
		}
		i = j + 1
	}
	return string(b)
}

// Cores groups the processors that a process may use by core: each element holds
// the hardware threads of one core that are in allowed. A core counts when one of
// its threads is allowed. Where the kernel does not tell, each processor is a core of
// its own.
func (r Root) Cores(allowed []int) ([][]int, error) {
	var cores [][]int
	seen := make(map[int]bool)
	for _, cpu := range allowed {
		if seen[cpu] {
			continue
		}
		threads, err := r.threads(cpu)
		if err != nil {
			return nil, err
		}
		var core []int
		for _, t := range threads {
			if _, ok := slices.BinarySearch(allowed, t); ok && !seen[t] {
				core = append(core, t)
				seen[t] = true
			}
		}
		if len(core) > 0 {
			cores = append(cores, core)
		}
	}
	return cores, nil
}

// threads returns the hardware threads of cpu's core, cpu among them.
func (r Root) threads(cpu int) ([]int, error) {
	dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/", cpu)
	s, err := r.Text(dir + "core_cpus_list")
	if errors.Is(err, fs.ErrNotExist) {
		s, err = r.Text(dir + "thread_siblings_list") // before Linux 5.0
	}
	if errors.Is(err, fs.ErrNotExist) {
		return []int{cpu}, nil
	}
	if err != nil {
		return nil, err
	}
	threads, err := ParseCPUs(s)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(threads, cpu) {
		return []int{cpu}, nil // a sandbox that invents its topology
	}
	return threads, nil
}

// Node is a NUMA node.
type Node struct {
	ID   int   `json:"id"`
	CPUs []int `json:"cpus"`
}

// Nodes returns the NUMA nodes; none where the kernel knows of none.
func (r Root) Nodes() ([]Node, error) {
	const dir = "sys/devices/system/node"
	names, err := r.list(dir)
	if err != nil {
		return nil, err
	}
	var nodes []Node
	for _, name := range names {
		id, err := strconv.Atoi(strings.TrimPrefix(name, "node"))
		if err != nil || !strings.HasPrefix(name, "node") {
			continue
		}
		s, err := r.Text(dir + "/" + name + "/cpulist")
		if err != nil {
			return nil, err
		}
		cpus, err := ParseCPUs(s)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, Node{id, cpus})
	}
	slices.SortFunc(nodes, func(a, b Node) int { return a.ID - b.ID })
	return nodes, nil
}

// OwnNode returns the NUMA node that holds all processors which this process may
// use, and -1 if none does or it cannot be told.
func (r Root) OwnNode() int {
	cpus, err := Allowed()
	if err != nil || len(cpus) == 0 {
		return -1
	}
	nodes, _ := r.Nodes()
	for _, n := range nodes {
		if !slices.ContainsFunc(cpus, func(c int) bool { return !slices.Contains(n.CPUs, c) }) {
			return n.ID
		}
	}
	return -1
}

// LastCache returns the size in bytes of the largest cache that cpu can use, and
// the processors that share it. Size 0: the kernel does not tell.
func (r Root) LastCache(cpu int) (size int64, shared []int, err error) {
	dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/cache", cpu)
	names, err := r.list(dir)
	if err != nil {
		return 0, nil, err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "index") {
			continue
		}
		s, err := r.Text(dir + "/" + name + "/size")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, nil, err
		}
		n, err := parseSize(s)
		if err != nil {
			return 0, nil, err
		}
		if n <= size {
			continue
		}
		list, err := r.Text(dir + "/" + name + "/shared_cpu_list")
		if err != nil {
			return 0, nil, err
		}
		if shared, err = ParseCPUs(list); err != nil {
			return 0, nil, err
		}
		size = n
	}
	return size, shared, nil
}

// Caches returns how many bytes the last caches of all processors hold together, if all are like cpu's. 0: the
// kernel does not tell.
func (r Root) Caches(cpu int) (int64, error) {
	size, shared, err := r.LastCache(cpu)
	if err != nil || len(shared) == 0 {
		return 0, err
	}
	text, err := r.Text("sys/devices/system/cpu/online")
	if err != nil {
		return 0, err
	}
	online, err := ParseCPUs(text)
	if err != nil {
		return 0, err
	}
	return size * int64(max(len(online)/len(shared), 1)), nil
}

// parseSize reads the kernel's 32K or 16M.
func parseSize(s string) (int64, error) {
	digits, unit := s, int64(1)
	switch {
	case strings.HasSuffix(s, "K"):
		digits, unit = s[:len(s)-1], 1<<10
	case strings.HasSuffix(s, "M"):
		digits, unit = s[:len(s)-1], 1<<20
	case strings.HasSuffix(s, "G"):
		digits, unit = s[:len(s)-1], 1<<30
	}
	n, err := strconv.ParseInt(digits, 10, 40)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("topo: bad size %q", s)
	}
	return n * unit, nil
}
