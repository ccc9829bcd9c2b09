package topo

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// machine writes a tree of files and returns it as a root.
func machine(t *testing.T, files map[string]string) Root {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Root(dir)
}

func TestCPULists(t *testing.T) {
	for in, want := range map[string][]int{"": nil, "\n": nil, "0": {0}, "0-3,8": {0, 1, 2, 3, 8}, "3,1-2": {1, 2, 3}, "1,1": {1}} {
		got, err := ParseCPUs(in)
		if err != nil {
			t.Error(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q: %s", in, d)
		}
	}
	for _, in := range []string{"a", "1-", "-1", "3-1", "1,,2", "0-99999999", "1:2"} {
		if got, err := ParseCPUs(in); err == nil {
			t.Errorf("%q was taken for %v", in, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		cpus := rapid.SliceOfDistinct(rapid.IntRange(0, 1<<19), rapid.ID[int]).Draw(t, "cpus")
		slices.Sort(cpus)
		got, err := ParseCPUs(FormatCPUs(cpus))
		if err != nil || !slices.Equal(got, cpus) {
			t.Fatalf("%v became %q became %v, %v", cpus, FormatCPUs(cpus), got, err)
		}
	})
}

// hyper is a machine of 4 cores, cpu i and i+4 being one.
func hyper(t *testing.T) Root {
	files := make(map[string]string)
	for i, list := range []string{"0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"} {
		files["sys/devices/system/cpu/cpu"+string(rune('0'+i))+"/topology/core_cpus_list"] = list + "\n"
	}
	return machine(t, files)
}

func TestCores(t *testing.T) {
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	for _, c := range []struct {
		name    string
		allowed []int
		cores   [][]int
	}{
		{"whole machine", all, [][]int{{0, 4}, {1, 5}, {2, 6}, {3, 7}}},
		{"none", nil, nil},
		{"one thread of each core", []int{0, 1, 2, 3}, [][]int{{0}, {1}, {2}, {3}}},
		{"the other thread", []int{4, 5}, [][]int{{4}, {5}}},
		{"a hole", []int{1, 3, 5}, [][]int{{1, 5}, {3}}},
	} {
		got, err := hyper(t).Cores(c.allowed)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if d := cmp.Diff(c.cores, got); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
	got, err := machine(t, nil).Cores([]int{0, 7})
	if d := cmp.Diff([][]int{{0}, {7}}, got); d != "" || err != nil {
		t.Errorf("without /sys: %s %v", d, err)
	}
	bad := machine(t, map[string]string{"sys/devices/system/cpu/cpu0/topology/core_cpus_list": "zero"})
	if got, err := bad.Cores([]int{0}); err == nil {
		t.Errorf("a bad list gave %v", got)
	}
}

func TestNodesAndCaches(t *testing.T) {
	r := machine(t, map[string]string{
		"sys/devices/system/node/node10/cpulist":                     "4-5",
		"sys/devices/system/node/node2/cpulist":                      "0-3",
		"sys/devices/system/node/possible":                           "0-10",
		"sys/devices/system/cpu/online":                              "0-8",
		"sys/devices/system/cpu/cpu0/cache/index0/size":              "32K",
		"sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_list":   "0",
		"sys/devices/system/cpu/cpu0/cache/index3/size":              "16M",
		"sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list":   "0-3",
		"sys/devices/system/cpu/cpu0/cache/uevent":                   "",
		"sys/devices/system/cpu/cpu1/cache/index0/shared_cpu_list":   "1",
		"sys/devices/system/cpu/cpu1/cache/index0/coherency_line":    "64",
		"sys/devices/system/cpu/cpu2/cache/index0/size":              "big",
		"sys/devices/system/cpu/cpu2/cache/index0/shared_cpu_list":   "2",
		"sys/devices/system/cpu/cpu2/cache/index0/coherency_line_sz": "64",
	})
	nodes, err := r.Nodes()
	if d := cmp.Diff([]Node{{2, []int{0, 1, 2, 3}}, {10, []int{4, 5}}}, nodes); d != "" || err != nil {
		t.Error(d, err)
	}
	size, shared, err := r.LastCache(0)
	if size != 16<<20 || len(shared) != 4 || err != nil {
		t.Errorf("last cache: %d shared by %v, %v", size, shared, err)
	}
	if all, err := r.Caches(0); all != 32<<20 || err != nil {
		t.Errorf("all last caches: %d, %v", all, err)
	}
	if all, err := r.Caches(1); all != 0 || err != nil {
		t.Errorf("all caches without a size: %d, %v", all, err)
	}
	if size, _, err := r.LastCache(1); size != 0 || err != nil {
		t.Errorf("a cache without a size: %d, %v", size, err)
	}
	if size, _, err := r.LastCache(2); err == nil {
		t.Errorf("a bad size was read as %d", size)
	}
}

func TestMemoryAndLimits(t *testing.T) {
	r := machine(t, map[string]string{
		"proc/meminfo":                      "MemTotal:       1024 kB\nMemFree:  1 kB\nMemAvailable:    512 kB\n",
		"proc/self/limits":                  "Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         8388608              unlimited            bytes\n",
		"proc/sys/kernel/pid_max":           "32768\n",
		"proc/sys/kernel/threads-max":       "1000\n",
		"proc/self/cgroup":                  "5:cpu,pids:/job/step\n0::/\n",
		"sys/fs/cgroup/pids/job/pids.max":   "100\n",
		"proc/sys/kernel/yama/ptrace_scope": "1\n",
	})
	total, available, err := r.Memory()
	if total != 1<<20 || available != 512<<10 || err != nil {
		t.Errorf("memory %d, %d, %v", total, available, err)
	}
	soft, hard, err := r.Limit("Max locked memory")
	if soft != 8<<20 || hard != Unlimited || err != nil {
		t.Errorf("limit %d, %d, %v", soft, hard, err)
	}
	if _, _, err := r.Limit("Max patience"); err == nil {
		t.Error("an unknown limit was found")
	}
	n, which, err := r.Tasks()
	if n != 100 || which != "/sys/fs/cgroup/pids/job/pids.max" || err != nil {
		t.Errorf("tasks %d by %s, %v", n, which, err)
	}
	if a := r.Ptrace(); a.State != Absent {
		t.Errorf("ptrace: %v", a)
	}
	if _, _, err := machine(t, map[string]string{"proc/meminfo": "MemTotal: 5 kB\n"}).Memory(); err == nil {
		t.Error("a meminfo without MemAvailable was taken")
	}
}

// Limits hold for the groups below, in both versions and also where controllers share a hierarchy.
func TestControlGroups(t *testing.T) {
	const cgroup, v1 = "proc/self/cgroup", "sys/fs/cgroup/memory/"
	for _, c := range []struct {
		name  string
		files map[string]string
		bytes int64
		where string
	}{
		{"no control groups", nil, Unlimited, ""},
		{"no limit", map[string]string{cgroup: "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, Unlimited, ""},
		{"above", map[string]string{cgroup: "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "5\n"}, 5, "/sys/fs/cgroup/a/memory.max"},
		{"at the top", map[string]string{cgroup: "0::/not/here\n", "sys/fs/cgroup/memory.max": "6\n"}, 6, "/sys/fs/cgroup/memory.max"},
		{"version 1", map[string]string{cgroup: "3:cpu,memory:/a\n0::/\n", v1 + "a/memory.limit_in_bytes": "7\n", v1 + "memory.limit_in_bytes": "9223372036854771712\n"},
			7, "/" + v1 + "a/memory.limit_in_bytes"},
	} {
		bytes, where, err := machine(t, c.files).MemoryLimit()
		if bytes != c.bytes || where != c.where || err != nil {
			t.Errorf("%s: %d by %q, %v; want %d by %q", c.name, bytes, where, err, c.bytes, c.where)
		}
	}
	for text, want := range map[string]string{"what\n": "has the line \"what\"", "0::/\n": "holds \"lots\""} {
		r := machine(t, map[string]string{cgroup: text, "sys/fs/cgroup/memory.max": "lots\n"})
		if _, _, err := r.MemoryLimit(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// Nothing that is in the kernel's files makes the readers panic, and a limit that is found is
// not below zero.
func FuzzMemoryLimit(f *testing.F) {
	f.Add("0::/a/b\n", "123\n")
	f.Add("5:memory:/../..\n0::/\n", "max\n")
	f.Add("::::", "-1")
	f.Fuzz(func(t *testing.T, groups, limit string) {
		r := machine(t, map[string]string{"proc/self/cgroup": groups, "sys/fs/cgroup/batch/memory.max": limit})
		if bytes, where, err := r.MemoryLimit(); err == nil && bytes < 0 {
			t.Fatalf("%q: %d by %q", groups, bytes, where)
		}
	})
}

func TestThreeAnswers(t *testing.T) {
	file := machine(t, map[string]string{"proc/sys/kernel/yama/ptrace_scope": "odd", "sys/class/infiniband": "a file"})
	if a := file.Ptrace(); a.State != Unknown {
		t.Errorf("a strange ptrace_scope: %v", a)
	}
	if a, _ := file.RDMA(); a.State != Unknown {
		t.Errorf("a strange /sys/class/infiniband: %v", a)
	}
	empty := machine(t, nil)
	if a := empty.Ptrace(); a.State != Present {
		t.Errorf("no Yama: %v", a)
	}
	if a, _ := empty.RDMA(); a.State != Unknown {
		t.Errorf("no /sys: %v", a)
	}
	if a, _ := machine(t, map[string]string{"sys/class/net/lo/mtu": "1"}).RDMA(); a.State != Absent {
		t.Errorf("no devices: %v", a)
	}
	a, names := machine(t, map[string]string{"sys/class/infiniband/mlx5_0/node_type": "1"}).RDMA()
	if a.State != Present || len(names) != 1 {
		t.Errorf("one device: %v %v", a, names)
	}
}

func TestLinks(t *testing.T) {
	r := machine(t, map[string]string{
		"sys/class/net/eth0/flags": "0x1003\n", "sys/class/net/eth0/operstate": "up\n", "sys/class/net/eth0/mtu": "9000\n",
		"sys/class/net/eth0/speed": "100000\n", "sys/class/net/eth0/device/numa_node": "1\n",
		"sys/class/net/eth1/flags": "0x1003\n", "sys/class/net/eth1/operstate": "down\n", "sys/class/net/eth1/mtu": "1500\n",
		"sys/class/net/eth1/speed": "-1\n",
		"sys/class/net/lo/flags":   "0x9\n", "sys/class/net/lo/operstate": "unknown\n", "sys/class/net/lo/mtu": "65536\n",
		"sys/class/net/bonding_masters": "\n",
	})
	got, err := r.Links()
	want := []Link{
		{Name: "eth0", Up: true, MTU: 9000, Mbit: 100000, NUMA: 1},
		{Name: "eth1", MTU: 1500, NUMA: -1},
		{Name: "lo", Up: true, Loopback: true, MTU: 65536, NUMA: -1},
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(d, err)
	}
}

func TestCards(t *testing.T) {
	const net, ib = "sys/class/net/", "sys/class/infiniband/"
	up := func(name, node string) map[string]string {
		return map[string]string{net + name + "/flags": "0x1003\n", net + name + "/operstate": "up\n", net + name + "/mtu": "1500\n", net + name + "/device/numa_node": node + "\n"}
	}
	files := map[string]string{
		net + "lo/flags": "0x9\n", net + "lo/operstate": "unknown\n", net + "lo/mtu": "65536\n",
		ib + "mlx5_0/ports/1/state": "1: DOWN\n", ib + "mlx5_0/device/numa_node": "0\n",
		ib + "mlx5_1/ports/1/state": "1: DOWN\n", ib + "mlx5_1/ports/2/state": "4: ACTIVE\n", ib + "mlx5_1/device/numa_node": "1\n",
		ib + "rxe0/ports/1/state": "4: ACTIVE\n",
	}
	for _, more := range []map[string]string{up("eth0", "1"), up("eth1", "-1")} {
		maps.Copy(files, more)
	}
	r := machine(t, files)
	for rdma, want := range map[bool][]Card{true: {{"mlx5_1", 1}}, false: {{"eth0", 1}}} {
		got, err := r.Cards(rdma)
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("rdma %t: %s %v", rdma, d, err)
		}
	}
	if cards, err := machine(t, nil).Cards(true); len(cards) != 0 || err != nil {
		t.Errorf("no devices: %v, %v", cards, err)
	}
}

func TestThisMachine(t *testing.T) {
	cpus, err := Allowed()
	if err != nil || len(cpus) == 0 {
		t.Fatalf("allowed processors: %v, %v", cpus, err)
	}
	if cores, err := System.Cores(cpus); err != nil || len(cores) == 0 || len(cores) > len(cpus) {
		t.Errorf("cores of %v: %v, %v", cpus, cores, err)
	}
	if total, available, err := System.Memory(); err != nil || available <= 0 || total < available {
		t.Errorf("memory %d, %d, %v", total, available, err)
	}
	if n, which, err := System.Tasks(); err != nil || n <= 0 || which == "" {
		t.Errorf("tasks %d by %q, %v", n, which, err)
	}
	if size, free, err := System.Space("/"); err != nil || size < free {
		t.Errorf("space %d, %d, %v", size, free, err)
	}
	if _, err := System.Links(); err != nil {
		t.Error(err)
	}
}

func TestFormatBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1023: "1023 bytes", 1024: "1 KiB", 1536: "1.5 KiB", 8 << 20: "8 MiB", Unlimited: "unlimited"} {
		if got := FormatBytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
