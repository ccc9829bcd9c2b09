package check

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weft-hpc/weft/internal/topo"
)

const limits = `Limit                     Soft Limit           Hard Limit           Units
Max stack size            8388608              unlimited            bytes
Max core file size        0                    unlimited            bytes
Max processes             30000                30000                processes
Max open files            1024                 65536                files
Max locked memory         unlimited            unlimited            bytes
`

// good is a machine with everything, an active RoCE port included. Its memory is 16 GiB.
var good = map[string]string{
	"proc/self/limits":                                      limits,
	"proc/self/status":                                      "Name:\tweft\nCapEff:\t0000000000000000\n",
	"proc/self/cgroup":                                      "0::/batch/job7\n",
	"proc/meminfo":                                          "MemTotal:       16777216 kB\nMemAvailable:   8388608 kB\n",
	"proc/sys/kernel/pid_max":                               "4194304\n",
	"proc/sys/kernel/threads-max":                           "100000\n",
	"proc/sys/kernel/yama/ptrace_scope":                     "0\n",
	"sys/fs/cgroup/batch/job7/memory.max":                   "max\n",
	"sys/fs/cgroup/batch/memory.max":                        "max\n",
	"dev/shm/.keep":                                         "",
	"etc/ld.so.cache":                                       "glibc-ld.so.cache1.1\x00libc.so.6\x00/lib/libc.so.6\x00libibverbs.so.1\x00/usr/lib/libibverbs.so.1\x00",
	"sys/class/infiniband/mlx5_0/ports/1/state":             "4: ACTIVE\n",
	"sys/class/infiniband/mlx5_0/ports/1/phys_state":        "5: LinkUp\n",
	"sys/class/infiniband/mlx5_0/ports/1/link_layer":        "Ethernet\n",
	"sys/class/infiniband/mlx5_0/ports/1/gids/0":            "fe80:0000:0000:0000:0000:00ff:fe00:0001\n",
	"sys/class/infiniband/mlx5_0/ports/1/gids/1":            "0000:0000:0000:0000:0000:ffff:0a4d:000b\n",
	"sys/class/infiniband/mlx5_0/ports/1/gids/2":            "0000:0000:0000:0000:0000:0000:0000:0000\n",
	"sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0": "IB/RoCE v1\n",
	"sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/1": "RoCE v2\n",
	"sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/1": "eth0\n",
	"sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0": "eth0\n",
}

// machine writes a tree like good, with changes: name and contents in turn, where "-" removes
// what is below that name.
func machine(t *testing.T, changes ...string) topo.Root {
	t.Helper()
	files := maps.Clone(good)
	for i := 0; i < len(changes); i += 2 {
		if changes[i+1] == "-" {
			maps.DeleteFunc(files, func(name, _ string) bool { return strings.HasPrefix(name, changes[i]) })
		} else {
			files[changes[i]] = changes[i+1]
		}
	}
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return topo.Root(dir)
}

// facts are those of a machine, with what is not read from its files.
func facts(root topo.Root) *Facts {
	f := Gather(root)
	f.Host, f.CPUs = "n1", 4
	f.Interface.Value = Interface{"eth0", "10.0.0.1", 9000}
	return f
}

func limit(name, soft, hard string) string {
	var out strings.Builder
	for line := range strings.Lines(limits) {
		if strings.HasPrefix(line, name) {
			line = fmt.Sprintf("%-25s %-20s %-20s units\n", name, soft, hard)
		}
		out.WriteString(line)
	}
	return out.String()
}

func TestGood(t *testing.T) {
	all := Judge(facts(machine(t)))
	for _, f := range all {
		if f.State != Fine || f.Fix != "" || f.Host != "n1" {
			t.Errorf("%+v", f)
		}
	}
	if Bad(all) || len(all) != 12 {
		t.Errorf("%d findings, bad: %v", len(all), Bad(all))
	}
}

// Each change of the good machine makes one check answer otherwise, and no other.
func TestJudge(t *testing.T) {
	const port, v1 = "sys/class/infiniband/mlx5_0/ports/1/", "proc/self/cgroup"
	for _, c := range []struct {
		name    string
		changes []string
		edit    func(*Facts)
		check   string
		state   State
		text    string
		fix     string
	}{
		{"memlock", []string{"proc/self/limits", limit(memlock, "8388608", "16777216")}, nil,
			"memlock", Problem, "8 MiB of locked memory, at most 16 MiB, are less than ranks may register (8 GiB)", "memlock unlimited' >>/etc/security/limits.d/weft.conf"},
		{"memlock of half the memory", []string{"proc/self/limits", limit(memlock, "8589934592", "8589934592")}, nil, "memlock", Fine, "8 GiB", ""},
		{"memlock of root", []string{"proc/self/limits", limit(memlock, "65536", "65536"), "proc/self/status", "CapEff:\t000001ffffffffff\n"}, nil,
			"memlock", Fine, "CAP_IPC_LOCK", ""},
		{"memlock not told", []string{"proc/self/limits", strings.Replace(limits, "Max locked", "Min locked", 1)}, nil, "memlock", Unknown, `no "Max locked memory"`, ""},
		{"cgroup 2", []string{"sys/fs/cgroup/batch/memory.max", "4294967296\n"}, nil,
			"cgroup memory", Problem, "may use 4 GiB of 16 GiB (/sys/fs/cgroup/batch/memory.max)", "weftrun --arena 512M"},
		{"cgroup 2, enough", []string{"sys/fs/cgroup/batch/memory.max", "12884901888\n"}, nil, "cgroup memory", Fine, "12 GiB of 16 GiB", ""},
		{"cgroup 1", []string{v1, "5:cpu,memory:/job\n0::/\n", "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1073741824\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"}, nil, "cgroup memory", Problem, "/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "--arena 128M"},
		{"cgroup 1, none", []string{v1, "5:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"}, nil, "cgroup memory", Fine, "no limit", ""},
		{"cgroup not told", []string{"sys/fs/cgroup/batch/memory.max", "lots\n"}, nil, "cgroup memory", Unknown, `memory.max holds "lots"`, ""},
		{"cgroups unread", []string{v1, "what\n"}, nil, "cgroup memory", Unknown, `has the line "what"`, ""},
		{"no cgroups", []string{v1, "-"}, nil, "cgroup memory", Fine, "no limit", ""},
		{"no shm", []string{"dev/shm", "-"}, nil, "/dev/shm", Absent, "there is no /dev/shm; Weft does not need it", ""},
		{"ptrace", []string{"proc/sys/kernel/yama/ptrace_scope", "1\n"}, nil, "ptrace", Problem, "kernel.yama.ptrace_scope is 1", "sysctl -w kernel.yama.ptrace_scope=0"},
		{"ptrace not told", []string{"proc/sys/kernel/yama/ptrace_scope", "?\n"}, nil, "ptrace", Unknown, "not a number", ""},
		{"no Yama", []string{"proc/sys/kernel/yama", "-"}, nil, "ptrace", Fine, "no Yama", ""},
		{"no library", []string{"etc/ld.so.cache", "libc.so.6\x00/lib/libc.so.6\x00"}, nil,
			"libibverbs", Problem, "libibverbs.so.1 is not installed, but there is the device mlx5_0", "apt-get install -y libibverbs1"},
		{"library not told", []string{"etc/ld.so.cache", "-"}, nil, "libibverbs", Unknown, "ld.so.cache", ""},
		{"built without", nil, func(f *Facts) { f.NoVerbs = "built without cgo" }, "libibverbs", Unsupported, "built without cgo", ""},
		{"RoCE down", []string{port + "state", "1: DOWN\n", port + "phys_state", "3: Disabled\n"}, nil,
			"RDMA ports", Problem, "mlx5_0:1 is 1: DOWN (3: Disabled): no port can be used", "ip link set eth0 up"},
		{"soft-RoCE down", []string{port + "state", "1: DOWN\n", port + "gids", "-", port + "gids/0", "::\n", "sys/class/infiniband/mlx5_0/parent", "eth7\n"}, nil,
			"RDMA ports", Problem, "no port can be used", "ip link set eth7 up"},
		{"card down", []string{port + "state", "1: DOWN\n", port + "gids", "-", port + "gids/0", "::\n", "sys/class/infiniband/mlx5_0/device/net/ens1/mtu", "1\n"}, nil,
			"RDMA ports", Problem, "no port can be used", "ip link set ens1 up"},
		{"no subnet manager", []string{port + "state", "2: INIT\n", port + "link_layer", "InfiniBand\n"}, nil,
			"RDMA ports", Problem, "no subnet manager answers", "systemctl start opensm"},
		{"no cable", []string{port + "state", "1: DOWN\n", port + "link_layer", "InfiniBand\n"}, nil, "RDMA ports", Problem, "is there a cable?", "ibportstate"},
		{"port not told", []string{port + "phys_state", "-"}, nil, "RDMA ports", Unknown, "phys_state", ""},
		{"only RoCE v1", []string{port + "gid_attrs/types/1", "IB/RoCE v1\n"}, nil, "GIDs", Problem, "mlx5_0:1: no RoCE v2 address", "ip addr add ADDRESS/24 dev eth0"},
		{"InfiniBand", []string{port + "link_layer", "InfiniBand\n", port + "gid_attrs/types/1", "IB/RoCE v1\n"}, nil, "GIDs", Fine, "every active port", ""},
		{"no interface", nil, func(f *Facts) { f.Interface = topo.Fact[Interface]{Absent: "passed over lo (loopback)"} }, "interface", Problem, "passed over lo", "ip link set INTERFACE up"},
		{"interface down", []string{"sys/class/net/ens1/flags", "0x1002\n", "sys/class/net/ens1/mtu", "1500\n", "sys/class/net/ens1/operstate", "down\n"},
			func(f *Facts) { f.Interface = topo.Fact[Interface]{Absent: "passed over ens1 (down)"} }, "interface", Problem, "passed over ens1", "ip link set ens1 up"},
		{"interface not told", nil, func(f *Facts) { f.Interface = topo.Fact[Interface]{Error: "no such device"} }, "interface", Unknown, "no such device", ""},
		{"files", []string{"proc/self/limits", limit(nofile, "64", "256")}, nil, "open files", Problem, "at most 256 for a rank, which needs up to 320", "nofile 65536"},
		{"files of a large job", nil, func(f *Facts) { f.Size = 70000 }, "open files", Problem, "needs up to 70064", "nofile"},
		{"processes", []string{"proc/self/limits", limit(nproc, "50", "50")}, nil, "processes", Problem, "at most 50 processes and threads of this user, and 4 ranks take up to 64", "nproc unlimited"},
		{"threads of the kernel", []string{"proc/sys/kernel/threads-max", "500\n"}, func(f *Facts) { f.Ranks = 64 }, "processes", Problem, "64 ranks take up to 1024", "sysctl -w kernel.threads-max"},
		{"stack", []string{"proc/self/limits", limit(stack, "65536", "65536")}, nil, "stack", Problem, "64 KiB for each thread", "stack 8192"},
		{"core", []string{"proc/self/limits", limit(core, "unlimited", "unlimited")}, nil, "core files", Fine, "up to unlimited", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := facts(machine(t, c.changes...))
			if c.edit != nil {
				c.edit(f)
			}
			found := false
			for _, got := range Judge(f) {
				if got.Check != c.check {
					// A port that is down or not told has no addresses either; without the limits nothing is told.
					if got.State == Problem {
						t.Errorf("beside it: %v", got)
					}
					continue
				}
				found = true
				if got.State != c.state || !strings.Contains(got.Text, c.text) || !strings.Contains(got.Fix, c.fix) || (got.Fix != "") != (c.state == Problem) {
					t.Errorf("got %v", got)
				}
			}
			if !found {
				t.Errorf("there is no check %q", c.check)
			}
		})
	}
}

// Without RDMA, what only RDMA needs is no problem (ucx#8746), and its absence is told as such.
func TestNoDevice(t *testing.T) {
	f := facts(machine(t, "sys/class/infiniband", "-", "sys/class/net/.keep", "", "proc/self/limits", limit(memlock, "65536", "65536"), "etc/ld.so.cache", "x"))
	got := make(map[string]State)
	for _, g := range Judge(f) {
		got[g.Check] = g.State
	}
	for check, want := range map[string]State{"memlock": Fine, "RDMA ports": Absent, "GIDs": Absent, "libibverbs": Absent} {
		if got[check] != want {
			t.Errorf("%s: %v, want %v", check, got[check], want)
		}
	}
	// Without a /sys it cannot be told whether there is one.
	for _, g := range Judge(facts(machine(t, "sys/", "-"))) {
		if g.Check == "RDMA ports" && g.State != Unknown {
			t.Errorf("without /sys: %v", g)
		}
	}
}

func TestLibraryVersion(t *testing.T) {
	root := machine(t, "usr/lib/libibverbs.so.1.14.44.0", "")
	if err := os.Symlink("libibverbs.so.1.14.44.0", filepath.Join(string(root), "usr/lib/libibverbs.so.1")); err != nil {
		t.Fatal(err)
	}
	if got := Gather(root).Library.Value; got != "libibverbs.so.1.14.44.0" {
		t.Errorf("got %q", got)
	}
}

func TestCompare(t *testing.T) {
	three := func(edit func(all []*Facts)) []Finding {
		var all []*Facts
		for _, h := range []string{"n1", "n2", "n3"} {
			all = append(all, &Facts{Host: h, Build: "weft 1", Library: topo.Fact[string]{Value: "libibverbs.so.1.14"},
				Interface: topo.Fact[Interface]{Value: Interface{"eth0", "10.0.0.1", 1500}}})
		}
		if edit != nil {
			edit(all)
		}
		return Compare(all)
	}
	for _, f := range three(nil) {
		if f.State != Fine {
			t.Errorf("%v", f)
		}
	}
	for _, c := range []struct {
		edit func([]*Facts)
		want Finding
	}{
		{func(all []*Facts) { all[1].Interface.Value.MTU = 9000 }, Finding{"n2", "MTU", Problem, "eth0 has 9000, and others 1500", "ip link set eth0 mtu 1500"}},
		{func(all []*Facts) { all[2].Build = "weft 2" }, Finding{"all hosts", "builds", Problem, "weft 1 on n1, n2; weft 2 on n3", "install one build"}},
		{func(all []*Facts) { all[0].Library.Value = "libibverbs.so.1.9" }, Finding{"all hosts", "libibverbs", Fine, "versions differ", ""}},
		{func(all []*Facts) {
			for _, f := range all {
				f.Library, f.Interface = topo.Fact[string]{Absent: "none"}, topo.Fact[Interface]{Error: "?"}
			}
		}, Finding{"all hosts", "MTU", Unknown, "no host told", ""}},
	} {
		all := three(c.edit)
		if !slices.ContainsFunc(all, func(f Finding) bool {
			return f.Host == c.want.Host && f.Check == c.want.Check && f.State == c.want.State && strings.Contains(f.Text, c.want.Text) && strings.Contains(f.Fix, c.want.Fix)
		}) {
			t.Errorf("want %v in %v", c.want, all)
		}
		if Bad(all) != (c.want.State == Problem) {
			t.Errorf("bad: %v, of %v", Bad(all), all)
		}
	}
}

func TestFindingIsALine(t *testing.T) {
	f := Finding{"n1", "ptrace", Problem, "text", "sysctl x"}
	if got := f.String(); got != "n1: ptrace: problem: text; fix: sysctl x" {
		t.Errorf("got %q", got)
	}
	b, err := json.Marshal(f)
	if err != nil || string(b) != `{"host":"n1","check":"ptrace","state":"problem","text":"text","fix":"sysctl x"}` {
		t.Errorf("got %s, %v", b, err)
	}
}
