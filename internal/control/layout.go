package control

import (
	"errors"
	"slices"
)

// Layout says which ranks are on one host, for all ranks in turn: triples of a host, how many ranks
// follow each other on it, and on how many more hosts it goes on like that. So it stays small where ranks fill
// alike hosts one after the other, or are dealt out to them in turn.
type Layout [][3]int

var errLayout = errors.New("control: a layout that does not fit the world; install the same weftrun on all hosts")

// MakeLayout returns the layout of ranks that are 0 and up, given those of each host.
func MakeLayout(hosts [][]int) Layout {
	size := 0
	for _, ranks := range hosts {
		size += len(ranks)
	}
	hostOf := make([]int, size)
	for host, ranks := range hosts {
		for _, rank := range ranks {
			hostOf[rank] = host
		}
	}
	var out Layout
	for first := 0; first < len(hostOf); {
		n := 1
		for first+n < len(hostOf) && hostOf[first+n] == hostOf[first] {
			n++
		}
		host := hostOf[first]
		if k := len(out) - 1; k >= 0 && out[k][1] == n && out[k][0]+1+out[k][2] == host {
			out[k][2]++
		} else {
			out = append(out, [3]int{host, n, 0})
		}
		first += n
	}
	return out
}

// Nodes returns for each rank the lowest rank of its host, or nil if all are on one.
func (l Layout) Nodes(size int) ([]int, error) {
	nodes := make([]int, 0, size)
	lowest := make(map[int]int) // by host
	for _, x := range l {
		host, n, more := x[0], x[1], x[2]
		if host < 0 || n < 1 || more < 0 || n > size || more > size || (more+1)*n > size-len(nodes) {
			return nil, errLayout
		}
		for h := host; h <= host+more; h++ {
			first, ok := lowest[h]
			if !ok {
				first = len(nodes)
				lowest[h] = first
			}
			nodes = append(nodes, slices.Repeat([]int{first}, n)...)
		}
	}
	switch {
	case len(nodes) != size:
		return nil, errLayout
	case len(lowest) <= 1:
		return nil, nil
	}
	return nodes, nil
}
