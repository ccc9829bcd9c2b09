package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Bug reports of other launchers about which hosts and slots a job has: what each was given, and what is right.
// Others are named at the tests of what they are about, and MLSL#14 and az-hop#906 (a name that pbs_tmrsh
// does not know) are the step pbs_tmrsh of make test-cluster.
func TestReportsOfHosts(t *testing.T) {
	files := map[string]string{
		"abab": "a\nb\na\nb\n", "domain": "node2527.golett.gent.vsc\n", "one": "n1\n",
		"workers": "mpi-worker.1.foo.net slots=2\nmpi-worker.2.foo.net slots=2\n",
	}
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	slurm := func(list, tasks string) map[string]string {
		return map[string]string{"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": list, "SLURM_TASKS_PER_NODE": tasks}
	}
	pbs := func(file string) map[string]string {
		return map[string]string{"PBS_JOBID": "7.head", "PBS_NODEFILE": filepath.Join(dir, file)}
	}
	for name, c := range map[string]struct {
		env  map[string]string
		args []string
		code int
		want []string // in the output, or in the error
	}{
		"mpich#2786 leading zeros":          {slurm("host-[001-002]", "1(x2)"), nil, 0, []string{"2 ranks on 2 hosts", "host-001: rank 0\n", "host-002: rank 1\n"}},
		"mpich#3946 a single letter":        {slurm("n", "1"), nil, 0, []string{"n: rank 0\n"}},
		"mpich#3639 a short prefix":         {slurm("c[1-2]", "1(x2)"), nil, 0, []string{"c1: rank 0\n", "c2: rank 1\n"}},
		"mpich#3572 from zero":              {slurm("h[00-03]", "1(x4)"), nil, 0, []string{"4 ranks on 4 hosts", "h00: rank 0\n", "h03: rank 3\n"}},
		"mpich#5653 a dash and digits":      {slurm("gpu-a100-[1-2],login", "1(x3)"), nil, 0, []string{"gpu-a100-1: rank 0\n", "gpu-a100-2: rank 1\n", "login: rank 2\n"}},
		"mpich#2786 a list that has no end": {slurm("host-[001-", "1"), nil, 121, []string{`SLURM_JOB_NODELIST: "host-[001-" has a [ without a ]`}},
		"a suffix":                          {slurm("node[001-003,007]-ib", "2(x4)"), nil, 0, []string{"8 ranks on 4 hosts", "node001-ib: ranks 0-1\n", "node007-ib: ranks 6-7\n"}},
		"mpich#893 hosts in turns":          {pbs("abab"), nil, 0, []string{"4 ranks on 2 hosts", "a: ranks 0-1\n", "b: ranks 2-3\n"}},
		"ompi#4732 names alike":             {nil, []string{"--hostfile", filepath.Join(dir, "workers")}, 0, []string{"4 ranks on 2 hosts", "mpi-worker.1.foo.net: ranks 0-1\n", "mpi-worker.2.foo.net: ranks 2-3\n"}},
		"ompi#2328 another domain":          {pbs("domain"), []string{"--host", "node2527"}, 0, []string{"node2527.golett.gent.vsc: rank 0\n"}},
		"ompi#3133 processors, one slot": {pbs("one"), []string{"-n", "24"}, 2,
			[]string{"24 ranks, but PBS job 7.head has 1 slot on 1 host (PBS_NODEFILE " + filepath.Join(dir, "one") + ")", "24 processors", "mpiprocs=24", "--oversubscribe"}},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(name, "ompi#3133") {
				t.Setenv("NCPUS", "24")
			}
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			r := run1(t, nil, slices.Concat([]string{"--launcher", "fork", "--dry-run"}, c.args, []string{"true"})...)
			if r.code != c.code {
				t.Errorf("exit code %d, want %d", r.code, c.code)
			}
			for _, text := range c.want {
				if !strings.Contains(r.out+r.err, text) {
					t.Errorf("the output lacks %q:\n%s%s", text, r.out, r.err)
				}
			}
		})
	}
}

// mpich#1811: ranks are in the session of their agent, which is the batch system's, for it to count and to kill.
func TestReportOfSessions(t *testing.T) {
	cmd := command(t, on("a:2,b", "sh", "-c", `read pid name state parent group session rest < /proc/$$/stat; echo $session; exec sleep 1000`)...)
	got := numbers(t, scan(t, start(t, cmd), 3))
	want := make(map[int]bool)
	for _, pid := range agents(t, cmd.Process.Pid) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		var state string
		var parent, group, sid int
		if _, err := fmt.Sscan(string(b[strings.LastIndexByte(string(b), ')')+1:]), &state, &parent, &group, &sid); err != nil {
			t.Fatal(err)
		}
		want[sid] = true
	}
	for _, sid := range got {
		if !want[sid] {
			t.Errorf("a rank is in session %d, the agents in %v", sid, slices.Collect(maps.Keys(want)))
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	finish(t, cmd, cmd.Wait())
}

// psij-python#510, ompi#6948: a line that is written in two parts gets one tag.
func TestReportOfTags(t *testing.T) {
	r := run1(t, nil, "-n", "2", "--tag-output", "sh", "-c", `printf ABCD; sleep 0.3; printf 'EFGH\n'`)
	r.want(t, 0)
	got := lines(r.out)
	slices.Sort(got)
	if want := []string{"[0] ABCDEFGH", "[1] ABCDEFGH"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
