package job

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-hpc/weft/internal/topo"
)

// grid is a machine of so many sockets with NUMA nodes of so many cores each. Threads of a core
// have numbers that are all cores apart.
func grid(sockets, nodes, cores, threads int) []topo.Core {
	var out []topo.Core
	all := sockets * nodes * cores
	for i := range all {
		c := topo.Core{Socket: i / (nodes * cores), Node: i / cores}
		for t := range threads {
			c.CPUs = append(c.CPUs, i+t*all)
		}
		out = append(out, c)
	}
	return out
}

func TestArrange(t *testing.T) {
	big := grid(2, 2, 2, 2)                                                                           // 8 cores, processors 0-15
	fraction := []topo.Core{{CPUs: []int{0}}, {CPUs: []int{2}}, {CPUs: []int{5}, Socket: 1, Node: 1}} // 0,2,5 of something
	one := grid(1, 1, 1, 1)
	for _, c := range []struct {
		name  string
		cores []topo.Core
		n     int
		by    Map
		to    Bind
		want  string // processors of each rank; - is not bound
	}{
		{"default", big, 3, MapSlot, BindDefault, "0,8 1,9 2,10"},
		{"node is slot inside a host", big, 3, MapNode, BindDefault, "0,8 1,9 2,10"},
		{"core is slot", big, 3, MapCore, BindCore, "0,8 1,9 2,10"},
		{"all", big, 8, MapSlot, BindDefault, "0,8 1,9 2,10 3,11 4,12 5,13 6,14 7,15"},
		{"sockets", big, 5, MapSocket, BindDefault, "0,8 4,12 1,9 5,13 2,10"},
		{"nodes", big, 6, MapNUMA, BindDefault, "0,8 2,10 4,12 6,14 1,9 3,11"},
		{"core to socket", big, 2, MapCore, BindSocket, "0-3,8-11 0-3,8-11"},
		{"sockets to sockets", big, 3, MapSocket, BindSocket, "0-3,8-11 4-7,12-15 0-3,8-11"},
		{"nodes to nodes", big, 5, MapNUMA, BindNUMA, "0-1,8-9 2-3,10-11 4-5,12-13 6-7,14-15 0-1,8-9"},
		{"sockets to nodes", big, 6, MapSocket, BindNUMA, "0-1,8-9 4-5,12-13 0-1,8-9 4-5,12-13 2-3,10-11 6-7,14-15"},
		{"nodes to sockets", big, 3, MapNUMA, BindSocket, "0-3,8-11 0-3,8-11 4-7,12-15"},
		{"too many", big, 9, MapSlot, BindDefault, "- - - - - - - - -"},
		{"too many for cores", big, 9, MapCore, BindCore, "error: 9 ranks but 8 cores may be used"},
		{"too many, by socket", big, 9, MapSocket, BindDefault, "0-3,8-11 4-7,12-15 0-3,8-11 4-7,12-15 0-3,8-11 4-7,12-15 0-3,8-11 4-7,12-15 0-3,8-11"},
		{"too many, by node", grid(1, 2, 1, 1), 3, MapNUMA, BindDefault, "0 1 0"},
		{"fraction", fraction, 3, MapSlot, BindDefault, "0 2 5"},
		{"fraction by socket", fraction, 3, MapSocket, BindDefault, "0 5 2"},
		{"fraction to nodes", fraction, 4, MapNUMA, BindNUMA, "0,2 5 0,2 0,2"},
		{"fraction, too many", fraction, 4, MapSlot, BindDefault, "- - - -"},
		{"one", one, 1, MapNUMA, BindCore, "0"},
		{"one, two ranks", one, 2, MapSlot, BindCore, "error: 2 ranks but 1 core may be used"},
		{"one, two ranks to a socket", one, 2, MapCore, BindSocket, "0 0"},
		{"none", one, 3, MapSlot, BindNone, "- - -"},
		{"no rank", one, 0, MapSocket, BindSocket, ""},
	} {
		l, err := arrange(c.cores, c.n, c.by, c.to)
		var got []string
		if err != nil {
			got = []string{"error:", err.Error()}
		}
		for i := range l.of {
			cpus := "-"
			if s := l.cpus(i); s != nil {
				cpus = topo.FormatCPUs(s)
			}
			got = append(got, cpus)
		}
		if d := cmp.Diff(c.want, strings.Join(got, " ")); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

// TestHalfOfEveryCore: a batch system that gives one thread of each core away leaves as many
// cores as there were (ompi#9647, ompi#5266, prrte#1947).
func TestHalfOfEveryCore(t *testing.T) {
	files := make(map[string]string)
	allowed := make([]int, 48)
	for i := range allowed {
		allowed[i] = i
		files[fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/core_cpus_list", i)] = fmt.Sprintf("%d,%d", i, i+48)
	}
	cores, err := machine(t, files).Machine(allowed)
	if err != nil {
		t.Fatal(err)
	}
	l, err := arrange(cores, 48, MapSlot, BindCore)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 48 {
		if got := l.cpus(i); len(got) != 1 || got[0] != i {
			t.Errorf("rank %d is bound to %v", i, got)
		}
	}
}

// TestNearCard: ranks that reach other hosts fill the NUMA node of the card first, where there is room.
func TestNearCard(t *testing.T) {
	const ib = "sys/class/infiniband/mlx5_0/"
	card := map[string]string{ib + "ports/1/state": "4: ACTIVE\n", ib + "device/numa_node": "1\n"}
	cores := func() []topo.Core {
		return []topo.Core{{CPUs: []int{0}}, {CPUs: []int{1}}, {CPUs: []int{2}, Socket: 1, Node: 1}, {CPUs: []int{3}, Socket: 1, Node: 1}}
	}
	for name, c := range map[string]struct {
		files map[string]string
		spec  Spec
		ranks int
		size  int
		first int // processor of rank 0
		why   string
	}{
		"other hosts":         {card, Spec{}, 2, 4, 2, ", near mlx5_0 first"},
		"none but this":       {card, Spec{}, 2, 2, 0, ""},
		"all cores are taken": {card, Spec{}, 4, 8, 0, ""},
		"spread":              {card, Spec{Map: MapNUMA}, 2, 4, 0, ""},
		"over TCP":            {card, Spec{Transport: "tcp"}, 2, 4, 0, ""},
		"no card":             {nil, Spec{}, 2, 4, 0, ""},
	} {
		p := &Plan{Spec: &c.spec, Ranks: make([]Rank, c.ranks), Size: c.size}
		sorted := cores()
		why := p.nearCard(machine(t, c.files), sorted)
		if why != c.why || sorted[0].CPUs[0] != c.first || sorted[1].CPUs[0] != c.first+1 {
			t.Errorf("%s: %q, %v", name, why, sorted)
		}
	}
}
