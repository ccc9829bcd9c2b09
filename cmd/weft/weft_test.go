package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/weft-hpc/weft/internal/topo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func runWeft(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := root()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.Execute()
	return out.String(), err
}

func TestInfo(t *testing.T) {
	out, err := runWeft(t, "info")
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"host ", host, "processors ", "cores ", "memory ", "/dev/shm ", "memlock ",
		"transport shm ", "transport tcp ", "transport verbs ", "interface lo ", "between ranks of this host: ", "binding: up to "} {
		if !strings.Contains(out, want) {
			t.Errorf("weft info lacks %q:\n%s", want, out)
		}
	}
}

func TestInfoAsJSON(t *testing.T) {
	out, err := runWeft(t, "info", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Memory     struct{ Value struct{ Bytes int64 } }
		CPUs       struct{ Value []int }
		Transports []struct{ Name, State, Why string }
		Choice     []string
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if got.Memory.Value.Bytes <= 0 || len(got.CPUs.Value) == 0 || len(got.Choice) == 0 {
		t.Errorf("%+v", got)
	}
	if len(got.Transports) != 3 || got.Transports[0].Name != "shm" || got.Transports[0].State != "present" || got.Transports[0].Why == "" {
		t.Errorf("transports: %+v", got.Transports)
	}
}

func TestInfoOfAMachineThatTellsNothing(t *testing.T) {
	i := gather(topo.Root(t.TempDir()))
	if i.Memory.Error == "" || i.Memlock.Error == "" || i.DevShm.Error == "" || i.Host.Error == "" {
		t.Errorf("facts without a source: %+v", i)
	}
	var b bytes.Buffer
	if err := i.print(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"memory                unknown (open ", "RDMA devices          unknown (", "NUMA nodes            the kernel tells of none"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("lacks %q:\n%s", want, b.String())
		}
	}
}

func TestInfoOfAnotherMachine(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"proc/sys/kernel/hostname":                "n1\n",
		"proc/meminfo":                            "MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\n",
		"sys/class/infiniband/mlx5_0/node_type":   "1",
		"sys/class/net/ib0/flags":                 "0x1003",
		"sys/class/net/ib0/mtu":                   "2044",
		"sys/class/net/ib0/speed":                 "100000",
		"sys/class/net/ib0/device/numa_node":      "1",
		"sys/devices/system/node/node0/cpulist":   "0-3",
		"proc/sys/kernel/yama/ptrace_scope":       "1",
		"sys/devices/system/node/node1/cpulist":   "4-7",
		"sys/devices/system/node/has_cpu":         "0-1",
		"sys/devices/system/node/node0/distances": "10",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if err := gather(topo.Root(dir)).print(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"n1\n", "2 GiB, 1 GiB available", "present (mlx5_0 in ", "up, 100000 Mbit/s, MTU 2044, NUMA node 1",
		"0 with processors 0-3; 1 with processors 4-7", "absent (kernel.yama.ptrace_scope is 1"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("lacks %q:\n%s", want, b.String())
		}
	}
}

func TestChoices(t *testing.T) {
	yes, no := topo.Answer{State: topo.Present, Why: "w"}, topo.Answer{State: topo.Absent, Why: "no memory"}
	i := new(info)
	if c := i.choices(yes, yes, no); !strings.Contains(c[0], "shm, as it works") || !strings.Contains(c[1], "tcp, as verbs is absent (no memory)") {
		t.Error(c)
	}
	if c := i.choices(no, no, yes); !strings.Contains(c[1], "verbs on w") || !strings.Contains(c[0], "nothing, as shm is absent (no memory) and tcp absent") {
		t.Error(c)
	}
}

func TestVersion(t *testing.T) {
	if out, err := runWeft(t, "version"); err != nil || !strings.HasPrefix(out, "weft ") || !strings.Contains(out, "linux/") {
		t.Errorf("%q, %v", out, err)
	}
}

func TestRefuses(t *testing.T) {
	for _, args := range [][]string{{"inof"}, {"info", "more"}, {"version", "--json"}} {
		if out, err := runWeft(t, args...); err == nil || out != "" {
			t.Errorf("%q: %q, %v", args, out, err)
		}
	}
}

type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, errors.New("closed") }

func TestInfoReportsAFailedWrite(t *testing.T) {
	if err := new(info).print(closed{}); err == nil {
		t.Error("a failed write was not reported")
	}
}
