package batch

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// world is a Source made of variables and files.
func world(env map[string]string, files map[string]string) Source {
	return Source{
		Getenv: func(n string) string { return env[n] },
		ReadFile: func(n string) ([]byte, error) {
			if s, ok := files[n]; ok {
				return []byte(s), nil
			}
			return nil, os.ErrNotExist
		},
		Now:     func() time.Time { return time.Unix(1000000, 0).UTC() },
		Changed: func(string) (time.Time, error) { return time.Unix(1000000-600, 0), nil },
	}
}

// vars reads NAME=VALUE words, in which | stands for a blank.
func vars(s string) map[string]string {
	env := make(map[string]string)
	for f := range strings.FieldsSeq(s) {
		name, value, _ := strings.Cut(f, "=")
		env[name] = strings.ReplaceAll(value, "|", " ")
	}
	return env
}

// recorded reads a recorded environment.
func recorded(t *testing.T, name string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	env := make(map[string]string)
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		env[name] = value
	}
	return env
}

func TestRecordedJobs(t *testing.T) {
	nodes, err := os.ReadFile("testdata/openpbs-select2x2+1x4.nodefile")
	if err != nil {
		t.Fatal(err)
	}
	env := recorded(t, "openpbs-select2x2+1x4.env")
	j, err := Find(world(env, map[string]string{env["PBS_NODEFILE"]: string(nodes)}))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&Job{System: "PBS", ID: "0.head", Source: "PBS_NODEFILE " + env["PBS_NODEFILE"], Scratch: "/var/tmp/pbs.0.head",
		Hosts: []Host{{Name: "n1", Slots: 4}, {Name: "n2", Slots: 1, Index: 4}}}, j); d != "" {
		t.Error(d)
	}
	if _, err := Find(world(recorded(t, "openpbs-pbsdsh-task.env"), nil)); err == nil || !strings.Contains(err.Error(), "PBS_NODEFILE is not set") {
		t.Errorf("a task without a node file: %v", err)
	}
	j, err = Find(world(recorded(t, "slurm-22.05-n1-3-ntasks8.env"), nil))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&Job{System: "Slurm", ID: "1", Source: "SLURM_JOB_NODELIST=n[1-3]",
		Hosts: []Host{{Name: "n1", Slots: 4, CPUs: 4}, {Name: "n2", Slots: 3, CPUs: 3, Index: 1}, {Name: "n3", Slots: 1, CPUs: 1, Index: 2}}}, j); d != "" {
		t.Error(d)
	}
}

// TestFind has the forms that batch systems write, and what must not pass.
func TestFind(t *testing.T) {
	files := map[string]string{
		"chunks":  "n1\r\n n2\nn2 \n\nn1", // two chunks on one host, not next to each other; no newline at the end
		"domains": "mpi-worker.1.foo.net\nmpi-worker.2.foo.net\n",
		"numbers": "28\n29\n",
		"empty":   "\n\n",
		"spaces":  "n1 n2\n",
		"pe":      "node1 4 fast.q@node1 <NULL>\nnode1 2 slow.q@node1 0,0:0,1\nsga 3 all.q@sga UNDEFINED\n",
		"pebad":   "node1 four all.q\n",
		"ranks":   "a\na\nb\n",
	}
	const slurm = "SLURM_JOB_ID=7 "
	for _, c := range []struct{ env, want string }{
		{"", ""},
		{"PBS_JOBID=1 PBS_NODEFILE=chunks", "n1:2 n2:2"},
		{"PBS_JOBID=1 PBS_NODEFILE=domains", "mpi-worker.1.foo.net:1 mpi-worker.2.foo.net:1"},
		{"PBS_JOBID=1 PBS_NODEFILE=numbers PBS_VERSION=TORQUE-6", "28:1 29:1"},
		{"PBS_JOBID=1 PBS_NODEFILE=empty", "error: empty is empty"},
		{"PBS_JOBID=1 PBS_NODEFILE=spaces", `error: spaces:1: "n1 n2" is not the name of a host`},
		{"PBS_JOBID=1 PBS_NODEFILE=missing", "error: file does not exist"},
		{slurm + "SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=2(x2)", "n1:2 n2:2"},
		{slurm + "SLURM_JOB_NODELIST=node[001-003,007]-ib SLURM_TASKS_PER_NODE=2(x4)", "node001-ib:2 node002-ib:2 node003-ib:2 node007-ib:2"},
		{slurm + "SLURM_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=4,1", "n1:4 n2:1"},
		{slurm + "SLURM_JOB_NODELIST=odin001 SLURM_TASKS_PER_NODE=4(x30)", "odin001:4"},
		{slurm + "SLURM_JOB_NODELIST=n[2,1] SLURM_TASKS_PER_NODE=3,1", "n2:3 n1:1"},
		{slurm + "SLURM_JOB_NODELIST=n[1-3] SLURM_TASKS_PER_NODE=4,1", "error: has numbers for 2 nodes, and the job has 3"},
		{slurm + "SLURM_JOB_NODELIST=n[1-3", "error: \"n[1-3\" has a [ without a ]"},
		{slurm + "SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=2(y2)", "error: \"2(y2)\" is not understood"},
		{slurm + "SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=2(x2", "error: a ) is missing"},
		{slurm + "SLURM_JOB_NODELIST=n[1-2]", "error: SLURM_TASKS_PER_NODE is not set"},
		{slurm, "error: SLURM_JOB_NODELIST is not set"},
		{slurm + "SLURM_HET_SIZE=2 SLURM_JOB_NODELIST_HET_GROUP_0=a SLURM_TASKS_PER_NODE_HET_GROUP_0=1 " +
			"SLURM_JOB_NODELIST_HET_GROUP_1=b[1-2] SLURM_TASKS_PER_NODE_HET_GROUP_1=8(x2)", "a:1 b1:8 b2:8"},
		{slurm + "SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=1(x2) SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_STEP_NUM_TASKS=1 " +
			"SLURM_JOB_CPUS_PER_NODE=8(x2) SLURM_CPUS_PER_TASK=2", "n1:4 n2:4"},
		{"JOB_ID=9 PE_HOSTFILE=pe", "node1:6 sga:3"},
		{"JOB_ID=9 PE_HOSTFILE=pebad", `error: pebad:1: "node1 four all.q": slots: "four" is not a number`},
		{"JOB_ID=9 PE_HOSTFILE=spaces", "error: slots"},
		{"LSB_JOBID=3 LSB_MCPU_HOSTS=hostA|4|hostB|3|hostA|1", "hostA:5 hostB:3"},
		{"LSB_JOBID=3 LSB_MCPU_HOSTS=hostA|4|hostB", "error: is not pairs"},
		{"LSB_JOBID=3 LSB_DJOB_RANKFILE=ranks", "a:2 b:1"},
		{"LSB_JOBID=3 LSB_HOSTS=a|a|b", "a:2 b:1"},
		{"LSB_JOBID=3", "error: none of LSB_MCPU_HOSTS"},
	} {
		j, err := Find(world(vars(c.env), files))
		if want, fails := strings.CutPrefix(c.want, "error: "); fails {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want an error with %q", c.env, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.env, err)
			continue
		}
		if got := text(j.Hosts); got != c.want {
			t.Errorf("%s: %s, want %s", c.env, got, c.want)
		}
	}
}

func text(hosts []Host) string {
	var b []string
	for _, h := range hosts {
		b = append(b, h.Name+":"+itoa(h.Slots))
	}
	return strings.Join(b, " ")
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + itoa(n%10)
}

func TestProcessorsWithoutSlots(t *testing.T) {
	j, err := Find(world(vars("PBS_JOBID=1 PBS_NODEFILE=f NCPUS=24"), map[string]string{"f": "n1\n"}))
	if err != nil || len(j.Notes) != 1 || !strings.Contains(j.Notes[0], "mpiprocs=24") {
		t.Errorf("%+v, %v", j, err)
	}
}

func TestExpand(t *testing.T) {
	for list, want := range map[string]string{
		"n[9-11]":                 "n9 n10 n11",
		"n[09-11]":                "n09 n10 n11",
		"a[1-2,4-5,07]":           "a1 a2 a4 a5 a07",
		"rack[0-1]node[2-3]":      "rack0node2 rack0node3 rack1node2 rack1node3",
		"host-[001-002]":          "host-001 host-002",
		"n":                       "n",
		"gpu-a100-[1-2],login":    "gpu-a100-1 gpu-a100-2 login",
		"node1-ib0,node2-ib0":     "node1-ib0 node2-ib0",
		"a[1,1-2]":                "a1 a1 a2",
		"a b\nc,d":                "a b c d",
		"node[001-003,007]-ib":    "node001-ib node002-ib node003-ib node007-ib",
		"x[0-1]c[0-1]n[0]":        "x0c0n0 x0c1n0 x1c0n0 x1c1n0",
		"":                        "error",
		"n[":                      "error",
		"n]":                      "error",
		"n[1-[2]]":                "error",
		"n[]":                     "error",
		"n[1,]":                   "error",
		"n[3-1]":                  "error",
		"n[a-b]":                  "error",
		"n[1-2-3]":                "error",
		"n[1-99999999]":           "error",
		"n[0-999]m[0-999]":        "error",
		"n[1-999999999999999999]": "error",
		"a,,b":                    "error",
		"a;b":                     "error",
		"-oProxyCommand":          "error",
	} {
		names, err := Expand(list)
		if got := strings.Join(names, " "); err != nil && want != "error" || err == nil && got != want {
			t.Errorf("%q: %q, %v; want %q", list, got, err, want)
		}
		if err != nil && list != "" && !strings.Contains(err.Error(), quotedPart(list)) {
			t.Errorf("%q: the error does not show it: %v", list, err)
		}
	}
}

func quotedPart(s string) string { return strings.Trim(s, "\n")[:1] }

func TestCompress(t *testing.T) {
	for names, want := range map[string]string{
		"n1 n2 n3 login":  "n[1-3],login",
		"n09 n10 n11 n12": "n[09-12]",
		"n9 n10":          "n[9-10]",
		"a1":              "a1",
		"a1 a3":           "a[1,3]",
		"a1-ib a2-ib":     "a1-ib,a2-ib",
	} {
		if got := Compress(strings.Fields(names)); got != want {
			t.Errorf("%s: %s, want %s", names, got, want)
		}
	}
}

func TestExpandUndoesCompress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfN(rapid.StringMatching(`[a-c](-?[a-c]|\.[a-c])?[0-9]{0,3}(-ib)?`), 1, 20).Draw(t, "names")
		// Runs, which random names seldom make.
		base := rapid.IntRange(0, 1200).Draw(t, "base")
		for i := range rapid.IntRange(0, 12).Draw(t, "run") {
			names = append(names, "n"+strings.Repeat("0", max(0, 3-len(itoa(base+i))))+itoa(base+i))
		}
		got, err := Expand(Compress(names))
		if err != nil || !slices.Equal(got, names) {
			t.Fatalf("%q became %q, then %q, %v", names, Compress(names), got, err)
		}
	})
}

func TestHostfile(t *testing.T) {
	for file, want := range map[string]string{
		"a slots=4 max_slots=8\nb slots = 2\n": "a:4 b:2",
		"# all\na:4 # fast\nb\n":               "a:4 b:0",
		"a\na\nb\na\n":                         "a:3 b:1x",
		"n[01-02] slots=3":                     "n01:3 n02:3",
		"a 4\r\nb 2\r\n":                       "a:4 b:2",
		"mpi-worker.1.foo.net slots=2\nmpi-worker.2.foo.net slots=2": "mpi-worker.1.foo.net:2 mpi-worker.2.foo.net:2",
		"[fe80::1]:4\nfe80::2\n":                                     "fe80::1:4 fe80::2:0",
		"a slots=4\na\n":                                             "error: f:2: \"a\": host a has slots from an earlier line",
		"a slots=4 slots=4":                                          "error: told twice",
		"a slots=many":                                               "error: \"many\"",
		"a:0":                                                        "error: \"0\"",
		"a binding=user:0":                                           "error: \"binding=user:0\" is not understood",
		"^a":                                                         "error: \"^a\" is not the name of a host",
		"a 4 5":                                                      "error: not understood",
		"":                                                           "error: f has no hosts",
		"a:b:c":                                                      "error: neither a name nor an address",
	} {
		hosts, err := Hostfile("f", []byte(file))
		if frag, fails := strings.CutPrefix(want, "error: "); fails {
			if err == nil || !strings.Contains(err.Error(), frag) {
				t.Errorf("%q: %v, want an error with %q", file, err, frag)
			}
			continue
		}
		if got := text(hosts); err != nil || got != strings.ReplaceAll(want, "b:1x", "b:0") {
			t.Errorf("%q: %s, %v; want %s", file, got, err, want)
		}
	}
}

func TestHostList(t *testing.T) {
	for arg, want := range map[string]string{
		"a,b:4,c:*": "a:1 b:4 c:0",
		"a,a,b":     "a:2 b:1",
		"n[1-3]:2":  "n1:2 n2:2 n3:2",
		"[::1]:4":   "::1:4",
		"a:":        "error",
		"":          "error",
		"a,,b":      "error",
		"a:4:5":     "error",
		"-oX,b":     "error",
	} {
		hosts, err := HostList(arg)
		if got := text(hosts); (err != nil) != (want == "error") || err == nil && got != want {
			t.Errorf("%q: %s, %v; want %s", arg, got, err, want)
		}
	}
}

func TestSelect(t *testing.T) {
	j := &Job{System: "PBS", ID: "5", Hosts: []Host{{Name: "node2527.golett.gent.vsc", Slots: 4}, {Name: "b.x", Slots: 2, Index: 4}, {Name: "b.y", Slots: 2, Index: 6}}}
	for arg, want := range map[string]string{
		"node2527:2":                        "node2527.golett.gent.vsc:2",
		"b.y:*,node2527:*":                  "b.y:2 node2527.golett.gent.vsc:4",
		"b":                                 "error: may be b.x or b.y",
		"node2527:5":                        "error: 5 slots are asked for",
		"c":                                 "error: host c is not in PBS job 5, which has node2527",
		"node2527,node2527.golett.gent.vsc": "error: asked for twice",
	} {
		wanted, err := HostList(arg)
		if err != nil {
			t.Fatal(err)
		}
		got, err := j.Select(wanted)
		if frag, fails := strings.CutPrefix(want, "error: "); fails {
			if err == nil || !strings.Contains(err.Error(), frag) {
				t.Errorf("%s: %v, want %q", arg, err, frag)
			}
		} else if err != nil || text(got) != want {
			t.Errorf("%s: %s, %v; want %s", arg, text(got), err, want)
		}
	}
}

func TestTimeLeft(t *testing.T) {
	answers := func(out string, err error) func(string, ...string) (string, error) {
		return func(string, ...string) (string, error) { return out, err }
	}
	for _, c := range []struct {
		system, env string
		run         func(string, ...string) (string, error)
		want        string
	}{
		{"Slurm", "SLURM_JOB_END_TIME=1000300", nil, "5m0s, says SLURM_JOB_END_TIME"},
		{"Slurm", "SLURM_JOB_END_TIME=soon", nil, "could not tell: SLURM_JOB_END_TIME=\"soon\" is not a time"},
		{"Slurm", "", answers("5:00\n", nil), "5m0s, says squeue"},
		{"Slurm", "", answers("1-02:03:04\n", nil), "26h3m4s, says squeue"},
		{"Slurm", "", answers("UNLIMITED\n", nil), "no limit, says squeue"},
		{"Slurm", "", answers("INVALID\n", nil), "could not tell: squeue: \"INVALID\" is not a time such as 5:00 or 1-02:03:04"},
		{"Slurm", "", answers("", errors.New("no controller")), "could not tell: squeue: no controller"},
		{"Slurm", "", nil, "could not tell: squeue was not asked"},
		{"Torque", "PBS_WALLTIME=3600 PBS_NODEFILE=f", nil, "50m0s, says PBS_WALLTIME and the age of PBS_NODEFILE"},
		{"PBS", "", answers("Job Id: 1\n    Resource_List.walltime = 01:00:00\n    resources_used.walltime = 00:10:00\n", nil), "50m0s, says qstat"},
		{"PBS", "", answers("    Resource_List.walltime = 01:00:00\n    stime = Mon Jan 12 13:36:40 1970\n", nil), "50m0s, says qstat"},
		{"PBS", "", answers("    Resource_List.select = 1:ncpus=1\n", nil), "no limit, says qstat"},
		{"PBS", "", answers("    Resource_List.walltime = 01:00:00\n", nil), "could not tell: qstat says neither resources_used.walltime nor stime"},
		{"LSF", "", nil, "could not tell: LSF does not say it in a way that weftrun knows"},
		{"", "", nil, "could not tell: this is not a batch job"},
	} {
		src := world(vars(c.env), nil)
		src.Run = c.run
		if got := (&Job{System: c.system, ID: "1"}).TimeLeft(src).String(); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.system, c.env, got, c.want)
		}
	}
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"n[1-3,07],login", "rack[0-1]node[2-3]-ib", "[", "n[1-", "a,,b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		names, err := Expand(list)
		if err != nil {
			return
		}
		if len(names) == 0 || len(names) > maxNames {
			t.Fatalf("%d names", len(names))
		}
		again, err := Expand(Compress(names))
		if err != nil || !slices.Equal(names, again) {
			t.Fatalf("%q: %q became %q, %v", list, names, again, err)
		}
	})
}

func FuzzHostfile(f *testing.F) {
	f.Add("a slots=4\nb:2\n[::1]:3\nc 4\n")
	f.Fuzz(func(t *testing.T, text string) {
		hosts, err := Hostfile("f", []byte(text))
		if err == nil && len(hosts) == 0 {
			t.Fatal("no hosts and no error")
		}
		for _, h := range hosts {
			if checkName(h.Name) != nil || h.Slots < 0 {
				t.Fatalf("host %+v", h)
			}
		}
		_, _ = HostList(text)
	})
}

func FuzzSystems(f *testing.F) {
	f.Add("n[1-2]", "2(x2)", "n1 2 q UNDEFINED\n", "a 1 b 2")
	f.Fuzz(func(t *testing.T, list, tasks, file, pairs string) {
		for _, env := range []map[string]string{
			{"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": list, "SLURM_TASKS_PER_NODE": tasks},
			{"PBS_JOBID": "1", "PBS_NODEFILE": "f"}, {"PE_HOSTFILE": "f"}, {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": pairs},
		} {
			j, err := Find(world(env, map[string]string{"f": file}))
			if err == nil && (len(j.Hosts) == 0 || j.Slots() < 1) {
				t.Fatalf("%v: %+v", env, j)
			}
		}
	})
}
