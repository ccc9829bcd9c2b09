package topo

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// numbered is a machine of 2 sockets with 2 NUMA nodes of 2 cores each, 2 threads in a core. Its
// processors are numbered as many are: first one thread of each core, sockets in turn.
func numbered(t *testing.T) Root {
	files := make(map[string]string)
	nodes := make(map[int]string)
	for core := range 8 {
		socket := core % 2
		node := 2*socket + core/4
		list := fmt.Sprintf("%d,%d", core, core+8)
		for _, cpu := range []int{core, core + 8} {
			dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/", cpu)
			files[dir+"core_cpus_list"] = list
			files[dir+"physical_package_id"] = fmt.Sprint(socket)
		}
		if nodes[node] != "" {
			nodes[node] += ","
		}
		nodes[node] += list
	}
	for n, list := range nodes {
		files[fmt.Sprintf("sys/devices/system/node/node%d/cpulist", n)] = list
	}
	return machine(t, files)
}

func TestMachine(t *testing.T) {
	all := make([]int, 16)
	for i := range all {
		all[i] = i
	}
	for _, c := range []struct {
		name    string
		on      Root
		allowed []int
		want    []Core
	}{
		{"all", numbered(t), all, []Core{{[]int{0, 8}, 0, 0}, {[]int{2, 10}, 0, 0}, {[]int{4, 12}, 0, 1}, {[]int{6, 14}, 0, 1},
			{[]int{1, 9}, 1, 2}, {[]int{3, 11}, 1, 2}, {[]int{5, 13}, 1, 3}, {[]int{7, 15}, 1, 3}}},
		{"fractional", numbered(t), []int{0, 2, 5}, []Core{{[]int{0}, 0, 0}, {[]int{2}, 0, 0}, {[]int{5}, 1, 3}}},
		{"second threads", numbered(t), []int{8, 13}, []Core{{[]int{8}, 0, 0}, {[]int{13}, 1, 3}}},
		{"one", numbered(t), []int{7}, []Core{{[]int{7}, 1, 3}}},
		{"nothing told", machine(t, nil), []int{0, 2, 5}, []Core{{[]int{0}, 0, 0}, {[]int{2}, 0, 0}, {[]int{5}, 0, 0}}},
		{"a virtual machine", machine(t, map[string]string{"sys/devices/system/cpu/cpu3/topology/physical_package_id": "-1"}), []int{3}, []Core{{[]int{3}, 0, 0}}},
	} {
		got, err := c.on.Machine(c.allowed)
		if d := cmp.Diff(c.want, got); d != "" || err != nil {
			t.Errorf("%s: %v %s", c.name, err, d)
		}
	}
	bad := machine(t, map[string]string{"sys/devices/system/cpu/cpu0/topology/physical_package_id": "zero"})
	if got, err := bad.Machine([]int{0}); err == nil {
		t.Errorf("a bad socket gave %v", got)
	}
}

func TestUsable(t *testing.T) {
	mask := []int{0, 1, 2, 3, 4, 5}
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"no groups", nil, "0-5"},
		{"version 2", map[string]string{"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpuset.cpus.effective": "0,2,5\n"}, "0,2,5"},
		{"version 2 without the controller", map[string]string{"proc/self/cgroup": "0::/job\n"}, "0-5"},
		{"version 1", map[string]string{"proc/self/cgroup": "9:memory:/m\n4:cpuset:/pbs.service/jobid/7.head\n0::/\n",
			"sys/fs/cgroup/cpuset/pbs.service/jobid/7.head/cpuset.effective_cpus": "4-7\n"}, "4-5"},
		{"version 1, mounted with others", map[string]string{"proc/self/cgroup": "4:cpu,cpuset:/a\n", "sys/fs/cgroup/cpuset/a/cpuset.cpus": "1\n"}, "1"},
		{"both", map[string]string{"proc/self/cgroup": "4:cpuset:/a\n0::/b\n", "sys/fs/cgroup/cpuset/a/cpuset.effective_cpus": "1-2\n"}, "1-2"},
		{"wider than the mask", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpuset.cpus.effective": "0-95\n"}, "0-5"},
		{"of somebody else", map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpuset.cpus.effective": "8-9\n"}, "0-5"},
		{"not set", map[string]string{"proc/self/cgroup": "4:cpuset:/a\n", "sys/fs/cgroup/cpuset/a/cpuset.cpus": "\n"}, "0-5"},
	} {
		got, err := machine(t, c.files).Usable(mask)
		if FormatCPUs(got) != c.want || err != nil {
			t.Errorf("%s: %s, %v, want %s", c.name, FormatCPUs(got), err, c.want)
		}
	}
	if !slices.Equal(mask, []int{0, 1, 2, 3, 4, 5}) {
		t.Errorf("the mask became %v", mask)
	}
	bad := machine(t, map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpuset.cpus.effective": "x\n"})
	if got, err := bad.Usable(mask); err == nil {
		t.Errorf("a bad cpuset gave %v", got)
	}
}
