package job

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-hpc/weft/internal/topo"
)

func machine(t *testing.T, files map[string]string) topo.Root {
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
	return topo.Root(dir)
}

func TestRoom(t *testing.T) {
	files := func(change map[string]string) map[string]string {
		m := map[string]string{
			"proc/self/limits": "Max open files            1024                 4096                 files\n" +
				"Max processes             500                  500                  processes\n",
			"proc/meminfo":                "MemTotal: 9999999 kB\nMemAvailable: 9999999 kB\n",
			"proc/sys/kernel/pid_max":     "32768",
			"proc/sys/kernel/threads-max": "100000",
			"proc/self/cgroup":            "0::/job\n",
			"sys/fs/cgroup/job/pids.max":  "max\n",
		}
		for k, v := range change {
			m[k] = v
		}
		return m
	}
	for _, c := range []struct {
		name   string
		change map[string]string
		most   int
		text   string
	}{
		{"pids.max", map[string]string{"sys/fs/cgroup/job/pids.max": "100"}, 100, "job/pids.max allows 100"},
		{"pid_max", map[string]string{"proc/sys/kernel/pid_max": "300"}, 300, "kernel.pid_max allows 300"},
		{"memory", map[string]string{"proc/meminfo": "MemTotal: 1 kB\nMemAvailable: 20480 kB\n"}, 20, "memory that is free"},
		{"files", map[string]string{"proc/self/limits": "Max open files 10 54 files\nMax processes 500 500 processes\n"}, 10, "limit of open files"},
	} {
		r := machine(t, files(c.change))
		if err := checkRoom(r, c.most); err != nil {
			t.Errorf("%s: %d ranks: %v", c.name, c.most, err)
		}
		err := checkRoom(r, c.most+1)
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != ExitUsage || !strings.Contains(e.Error(), c.text) {
			t.Errorf("%s: %d ranks: %v", c.name, c.most+1, err)
		}
	}
	if err := checkRoom(machine(t, nil), 1); err == nil {
		t.Error("a machine without /proc was taken")
	}
}

func TestBindPlan(t *testing.T) {
	allowed, err := topo.Allowed()
	if err != nil {
		t.Fatal(err)
	}
	flat := machine(t, nil) // every processor a core
	one := machine(t, nil)  // one core of all processors
	siblings := topo.FormatCPUs(allowed)
	for _, cpu := range allowed {
		dir := filepath.Join(string(one), "sys/devices/system/cpu", "cpu"+topo.FormatCPUs([]int{cpu}), "topology")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "thread_siblings_list"), []byte(siblings), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	n := len(allowed)
	for _, c := range []struct {
		name  string
		on    topo.Root
		ranks int
		bind  Bind
		bound bool
		over  bool
		fails bool
	}{
		{"all fit", flat, n, BindDefault, true, false, false},
		{"one too many", flat, n + 1, BindDefault, false, true, false},
		{"one too many, core", flat, n + 1, BindCore, false, true, true},
		{"none", flat, 1, BindNone, false, false, false},
		{"one core", one, 1, BindCore, true, false, false},
		{"one core, two ranks", one, 2, BindCore, false, n < 2, true},
	} {
		p := &Plan{Spec: &Spec{Bind: c.bind}, Host: "h", Ranks: make([]Rank, c.ranks)}
		err := p.bind(c.on)
		if (err != nil) != c.fails {
			t.Errorf("%s: %v", c.name, err)
		}
		if bound := p.Ranks[0].CPUs != nil; bound != c.bound || p.Oversubscribed != c.over {
			t.Errorf("%s: bound %v, oversubscribed %v: %s", c.name, bound, p.Oversubscribed, p.Binding)
		}
	}
	p := &Plan{Spec: &Spec{}, Ranks: make([]Rank, 1)}
	if err := p.bind(one); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(allowed, p.Ranks[0].CPUs); d != "" {
		t.Errorf("a core is all its threads: %s", d)
	}
}

func TestEnvironment(t *testing.T) {
	base := baseEnv([]string{"A=1", "WEFT_RANK=7", "WEFT_CONTROL_FD=3", "B=2", "WEFT_LOG=x"})
	if d := cmp.Diff([]string{"A=1", "B=2", "WEFT_LOG=x"}, base); d != "" {
		t.Error(d)
	}
	got := mergeEnv(base, []string{"B=3", "C=4", "B=5"})
	if d := cmp.Diff([]string{"A=1", "WEFT_LOG=x", "C=4", "B=5"}, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"A=1", "B=2", "WEFT_LOG=x"}, base); d != "" {
		t.Errorf("the base changed: %s", d)
	}
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{"": "''", "a-b": "a-b", "a b": "'a b'", "it's": `'it'\''s'`, "$x": "'$x'", "é": "'é'"} {
		if got := quote(in); got != want {
			t.Errorf("%q became %s, want %s", in, got, want)
		}
	}
}

func TestKeeperIsCareful(t *testing.T) {
	// Nothing here names a group of ours; 0 and 1 would kill this test, or more.
	Keep(strings.NewReader("+0\n+1\n+-5\n-7\n\n+\nnonsense\n+999999999\n+123456789\n-123456789\n+99999999999999999999\n"))
}
