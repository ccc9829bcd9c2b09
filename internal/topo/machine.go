package topo

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// Core is what may be used of one core: some of its hardware threads, and where it is.
type Core struct {
	CPUs   []int // ascending
	Socket int
	Node   int // of NUMA
}

// Machine returns the cores of which some threads are in allowed, each with those,
// by socket, NUMA node and first thread. Where the kernel tells nothing of a processor, it
// is a core of its own on socket 0 and node 0.
func (r Root) Machine(allowed []int) ([]Core, error) {
	threads, err := r.Cores(allowed)
	if err != nil {
		return nil, err
	}
	nodes, err := r.Nodes()
	if err != nil {
		return nil, err
	}
	nodeOf := make(map[int]int)
	for _, n := range nodes {
		for _, cpu := range n.CPUs {
			nodeOf[cpu] = n.ID
		}
	}
	cores := make([]Core, len(threads))
	for i, t := range threads {
		socket, err := r.number(fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/physical_package_id", t[0]))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		cores[i] = Core{CPUs: t, Socket: int(max(socket, 0)), Node: nodeOf[t[0]]} // -1 is what some virtual machines say
	}
	slices.SortStableFunc(cores, func(a, b Core) int {
		switch {
		case a.Socket != b.Socket:
			return a.Socket - b.Socket
		case a.Node != b.Node:
			return a.Node - b.Node
		}
		return a.CPUs[0] - b.CPUs[0]
	})
	return cores, nil
}

// Usable returns those processors of an affinity mask that the control group of this process
// has, in version 2 or 1. The kernel keeps masks within cpusets, but a batch system may shrink the
// cpuset of a process that is there already, and then the mask may lag behind. Where no file
// tells of a cpuset, or it has nothing in common with the mask and so is about
// somebody else, as in a container, the mask stands.
func (r Root) Usable(mask []int) ([]int, error) {
	set, err := r.cpuset()
	if err != nil {
		return nil, err
	}
	both := slices.DeleteFunc(slices.Clone(mask), func(cpu int) bool {
		_, ok := slices.BinarySearch(set, cpu)
		return !ok
	})
	if len(both) == 0 {
		return mask, nil
	}
	return both, nil
}
