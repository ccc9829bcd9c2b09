package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/job"
)

// Jobs on several hosts, which the launcher named fork plays on this one: real
// agents, real connections, and ranks that are not weftrun's own children. The tests in
// ci/cluster do it on hosts that are more than names.

// TestTheSameUnderAgents runs the other tests of this package with all ranks
// under agents. What they say of weftrun must hold there too.
func TestTheSameUnderAgents(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes as long as all the others: run it without -short")
	}
	// These are about one host, or have hosts of their own: which processors it has, what a plan for it looks like,
	// and the descriptors and ignored signals that ranks get from weftrun itself.
	const other = "TestWireUp|TestOrdinaryProgramsRun|TestBinding|TestDryRun|TestTooManyRanks|TestIgnoredSignalsStayIgnored|" +
		"TestTheSameUnderAgents|TestAgents|TestReportsOfHosts|TestReportOfSessions|TestParse|TestHelp|TestRestartWithoutAHost|TestTM"
	cmd := exec.CommandContext(t.Context(), self, "-test.skip", other, "-test.v", "-test.timeout", "5m")
	cmd.Env = append(os.Environ(), "OVER_AGENTS=1")
	out, err := cmd.CombinedOutput()
	passed := bytes.Count(out, []byte("\n--- PASS: "))
	if err != nil || passed < 25 {
		t.Errorf("%d passed, %v\n%s", passed, err, out)
	}
}

// on returns a command line for hosts of this machine.
func on(hosts string, args ...string) []string {
	return append([]string{"--launcher", "fork", "--host", hosts}, args...)
}

func TestAgentsWireUp(t *testing.T) {
	r := run1(t, nil, on("a:2,b:1,c:3", "-x", "ACT=join", self)...)
	r.want(t, 0)
	got := lines(r.out)
	slices.Sort(got)
	const cards = "card 0, card 1, card 2, card 3, card 4, card 5"
	want := []string{
		"rank 0 of 6, local 0 of 2: " + cards, "rank 1 of 6, local 1 of 2: " + cards, "rank 2 of 6, local 0 of 1: " + cards,
		"rank 3 of 6, local 0 of 3: " + cards, "rank 4 of 6, local 1 of 3: " + cards, "rank 5 of 6, local 2 of 3: " + cards,
	}
	if !slices.Equal(got, want) {
		t.Errorf("ranks say %q", got)
	}
}

// TestAgentsInATree: above 32 hosts, some exchange cards through others, or through weftrun when these are lost.
func TestAgentsInATree(t *testing.T) {
	var hosts, cards []string
	for i := range 36 {
		hosts, cards = append(hosts, fmt.Sprintf("h%d:1", i)), append(cards, fmt.Sprint("card ", i))
	}
	r := run1(t, nil, on(strings.Join(hosts, ","), "-x", "ACT=join", self)...)
	r.want(t, 0)
	got := lines(r.out)
	for i := range hosts {
		if want := fmt.Sprintf("rank %d of 36, local 0 of 1: %s", i, strings.Join(cards, ", ")); !slices.Contains(got, want) {
			t.Errorf("stdout lacks %q: %s", want, r.out)
		}
	}
	for _, c := range []struct {
		act  string
		code int
		says []string
	}{
		{"adopted", 122, []string{"host h0 was lost", "host h35 exchanges cards with weftrun itself from here on, not with host h0: "}},
		{"outlived", 3, []string{"rank 0 on host h0 (pid "}},
	} {
		r = run1(t, nil, on(strings.Join(hosts, ","), "--keep-going", "--verbose", "-x", "ACT="+c.act, self)...)
		r.want(t, c.code, c.says...)
		if got := strings.Count(r.out, "done\n"); got != 35 {
			t.Errorf("%s: %d ranks are done, want 35: %s", c.act, got, r.out)
		}
	}
}

// TestAgentsBesideUs: this host has ranks too, which are weftrun's own.
func TestAgentsBesideUs(t *testing.T) {
	me, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	r := run1(t, nil, on("a:1,"+me+":2", rank(3, "die")...)...)
	r.want(t, 137, "weftrun: rank 1 on host "+me+" (pid ", "; 2 other ranks are being stopped\n")
	for _, i := range []int{0, 2} {
		if want := fmt.Sprintf("rank %d heard: rank 1 (pid ", i); !strings.Contains(r.out, want) {
			t.Errorf("stdout lacks %q: %s", want, r.out)
		}
	}
	r = run1(t, strings.NewReader("typed\n"), on(me+",a", "-n", "2", "sh", "-c", `[ $WEFT_RANK = 0 ] && exec cat; echo $PPID`)...)
	r.want(t, 0)
	if !strings.Contains(r.out, "typed\n") {
		t.Errorf("ranks say %q", r.out)
	}
}

func TestAgentsMapping(t *testing.T) {
	nodes := filepath.Join(t.TempDir(), "nodes")
	if err := os.WriteFile(nodes, []byte("x1\nx1\nx2\nx1\nx3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	hostfile := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hostfile, []byte("y[1-2] slots=2 # two of them\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PBS_JOBID", "7.head")
	t.Setenv("PBS_NODEFILE", nodes)
	show := func(options ...string) []string {
		return append(append([]string{"--launcher", "fork", "--dry-run"}, options...), "true")
	}
	for _, c := range []struct {
		args []string
		code int
		want []string
	}{
		{show(), 0, []string{"5 ranks on 3 hosts", "PBS 7.head, hosts from PBS_NODEFILE " + nodes, "x1: ranks 0-2\n", "x2: rank 3\n", "x3: rank 4\n"}},
		{show("-n", "2"), 0, []string{"2 ranks on 1 host", "x1: ranks 0-1\n"}},
		{show("--map-by", "node"), 0, []string{"x1: ranks 0,3-4\n", "x2: rank 1\n", "x3: rank 2\n"}},
		{show("--ppn", "1"), 0, []string{"x1: rank 0\n", "x2: rank 1\n", "x3: rank 2\n"}},
		{show("--host", "x2,x1:2"), 0, []string{"x2: rank 0\n", "x1: ranks 1-2\n"}},
		{show("-n", "6"), 2, []string{"6 ranks, but PBS job 7.head has 5 slots on 3 hosts (PBS_NODEFILE ", "--oversubscribe"}},
		{show("-n", "6", "--oversubscribe"), 0, []string{"x1: ranks 0-5\n"}},
		{show("--host", "x9"), 2, []string{"host x9 is not in PBS job 7.head, which has x[1-3]"}},
		{show("--host", "x2:4"), 2, []string{"4 slots are asked for, and PBS job 7.head has 1 there"}},
		{show("--ppn", "2"), 2, []string{"host x2 has 1 slot"}},
		{show("--hostfile", hostfile), 2, []string{"host y1 is not in PBS job"}},
		{show("-n", "1", "--one-host"), 0, []string{"1 rank on host "}},
	} {
		r := run1(t, nil, c.args...)
		if r.code != c.code {
			t.Errorf("%q: exit code %d: %s", c.args, r.code, r.err)
		}
		for _, w := range c.want {
			if !strings.Contains(r.out+r.err, w) {
				t.Errorf("%q lacks %q:\n%s%s", c.args, w, r.out, r.err)
			}
		}
	}
	t.Setenv("PBS_JOBID", "")
	r := run1(t, nil, show("--hostfile", hostfile)...)
	if r.code != 0 || !strings.Contains(r.out, "y1: ranks 0-1\n") || !strings.Contains(r.out, "y2: ranks 2-3\n") {
		t.Errorf("%d: %s%s", r.code, r.out, r.err)
	}
}

// TestAgentsEnvironment: ranks on other hosts find directory, umask and variables of
// this one, and not what belongs to it alone.
func TestAgentsEnvironment(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("FROM_HERE", "two words; and $more")
	t.Setenv("DISPLAY", "here:0")
	t.Setenv("PBS_NODENUM", "0")
	cmd := command(t, on("a", "-x", "EXTRA=1", "sh", "-c", `pwd; umask; echo "$FROM_HERE|$EXTRA|$WEFT_JOB" | sed 's/weft-.*/JOB/'; env | grep -c '^SECRET'; ps -o sid= -p $$`)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PWD="+dir)
	old := syscall.Umask(0o027)
	out, err := cmd.CombinedOutput()
	syscall.Umask(old)
	got := lines(string(out))
	sid, _, _ := syscall.Syscall(syscall.SYS_GETSID, 0, 0, 0)
	want := []string{dir, "0027", "two words; and $more|1|JOB", "0", strconv.Itoa(int(sid))}
	for i := range got {
		got[i] = strings.TrimSpace(got[i])
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("a rank says %q, %v; want %q (the last is the session: batch systems kill and count by it)", got, err, want)
	}
	// A directory that is only here.
	r := run1(t, nil, on("a", "--wdir", dir+"/none", "-n", "1", "true")...)
	r.want(t, 121, "host a: --wdir "+dir+"/none")
	run1(t, nil, on("a", "-n", "1", "./no-such-program")...).want(t, 127, "host a: program \"./no-such-program\" was not found")
}

func TestAgentsBindings(t *testing.T) {
	run1(t, nil, on("a,b", "--report-bindings", "true")...).want(t, 0, "weftrun: rank 0 on host a is not bound", "weftrun: rank 1 on host b is not bound")
}

func TestAgentsTellTheTime(t *testing.T) {
	run1(t, nil, on("a,b", "--verbose", "true")...).want(t, 0, "weftrun: host a: rank 0, ", "weftrun: 2 agents: commands run after ", "all ready after ")
}

func TestAgentsStdin(t *testing.T) {
	data := make([]byte, big)
	for i := range data {
		data[i] = byte(i * i >> 7)
	}
	r := run1(t, bytes.NewReader(data), on("a,b", "sh", "-c", `[ $WEFT_RANK = 0 ] && exec sha256sum; cat`)...)
	r.want(t, 0)
	if want := fmt.Sprintf("%x  -\n", sha256.Sum256(data)); r.out != want {
		t.Errorf("rank 0 read %q", r.out)
	}
	// A rank 0 that does not read holds up nothing.
	run1(t, bytes.NewReader(data), on("a,b", "true")...).want(t, 0)
}

// TestAgentsLines: lines of ranks on different hosts stay whole.
func TestAgentsLines(t *testing.T) {
	const script = `i=0; while [ $i -lt 300 ]; do printf "$WEFT_RANK-begin "; printf "%s " a b c; echo end; i=$((i+1)); done`
	r := run1(t, nil, on("a:2,b:2,c", "sh", "-c", script)...)
	r.want(t, 0)
	count := map[string]int{}
	for _, l := range lines(r.out) {
		count[l]++
	}
	for i := range 5 {
		if n := count[fmt.Sprintf("%d-begin a b c end", i)]; n != 300 {
			t.Errorf("rank %d has %d whole lines of 300", i, n)
		}
	}
	// Lines longer than any buffer, from two hosts at once.
	r = run1(t, nil, on("a,b", "sh", "-c", `head -c 300000 /dev/zero | tr '\0' $WEFT_RANK; echo`)...)
	r.want(t, 0)
	got := lines(r.out)
	slices.Sort(got)
	if len(got) != 2 || got[0] != strings.Repeat("0", 300000) || got[1] != strings.Repeat("1", 300000) {
		t.Errorf("%d lines of %d bytes in all", len(got), len(r.out))
	}
}

func TestAgentsFirstCause(t *testing.T) {
	r := run1(t, nil, on("a,b,c", rank(3, "die")...)...)
	r.want(t, 137, "weftrun: rank 1 on host b (pid ", "ended with signal 9 (killed)", "; 2 other ranks are being stopped\n")
	if !strings.Contains(r.out, "rank 2 heard: rank 1 (pid ") {
		t.Errorf("rank 2 on another host was not told: %s", r.out)
	}
	run1(t, nil, on("a,b,c", rank(3, "abort")...)...).want(t, 42, "rank 1 on host b aborted the job with code 42: the input is empty")
	run1(t, nil, on("a,b,c", rank(3, "blame")...)...).want(t, 137, "weftrun: rank 1 on host b", "signal 9")
	run1(t, nil, on("a,b,c", "sh", "-c", `[ $WEFT_RANK = 2 ] && exit 5; exec sleep 1000`)...).want(t, 5, "rank 2 on host c (pid ", "exit status 5")
}

// agents returns the process ids of weftrun's agents, by host.
func agents(t *testing.T, launcher int) map[string]int {
	t.Helper()
	out := make(map[string]int)
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	mark := fmt.Sprintf("weft-%d-", launcher)
	for _, name := range names {
		b, err := os.ReadFile(name)
		f := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
		if err != nil || len(f) != 6 || f[1] != job.AgentFlag || !strings.HasPrefix(f[2], mark) {
			continue
		}
		if out[f[5]], err = strconv.Atoi(strings.Split(name, "/")[2]); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestAgentsKilledLauncherLeavesNothing(t *testing.T) {
	for name, args := range map[string][]string{
		"ranks that listen": on("a,b,c", rank(3, "orphan")...),
		"ranks that do not": on("a,b,c", "sh", "-c", `trap "" TERM; echo $$; while :; do sleep 1; done`),
		"grandchildren":     on("a,b,c", "sh", "-c", "setsid sleep 1000 & echo $$ $!; wait"),
	} {
		cmd := command(t, args...)
		pids := numbers(t, scan(t, start(t, cmd), 3))
		for _, pid := range agents(t, cmd.Process.Pid) {
			pids = append(pids, pid)
		}
		if len(pids) < 6 {
			t.Fatalf("%s: processes %v", name, pids)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if cmd.Wait() == nil {
			t.Errorf("%s: weftrun survived", name)
		}
		gone(t, pids)
	}
}

func TestAgentsKilledAgentIsNamed(t *testing.T) {
	cmd := command(t, on("a,b,c:2", "sh", "-c", "sleep 1000 & echo $$ $!; wait")...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	pids := numbers(t, scan(t, start(t, cmd), 4))
	all := agents(t, cmd.Process.Pid)
	for _, pid := range all {
		pids = append(pids, pid)
		awaitKeeper(t, pid)
	}
	began := time.Now()
	if err := syscall.Kill(all["c"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := finish(t, cmd, cmd.Wait()); code != job.ExitHostLost {
		t.Errorf("exit code %d", code)
	}
	if want := "weftrun: host c was lost, with ranks 2-3: "; !strings.Contains(errs.String(), want) {
		t.Errorf("stderr lacks %q: %s", want, errs.String())
	}
	if d := time.Since(began); d > 12*time.Second {
		t.Errorf("it took %v", d)
	}
	gone(t, pids)
}

// TestAgentsThatHang: an agent that is stopped is given up.
func TestAgentsThatHang(t *testing.T) {
	cmd := command(t, on("a,b", rank(2, "orphan")...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	pids := numbers(t, scan(t, start(t, cmd), 2))
	b := agents(t, cmd.Process.Pid)["b"]
	began := time.Now()
	if err := syscall.Kill(b, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	code := finish(t, cmd, cmd.Wait())
	d := time.Since(began)
	if code != job.ExitHostLost || !strings.Contains(errs.String(), "host b was lost, with rank 1: nothing was heard from it") {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
	t.Logf("an agent that hangs was given up after %v", d.Round(time.Millisecond))
	if d > 20*time.Second {
		t.Errorf("it took %v", d)
	}
	// Where it is, nothing can be done about it; as a child of weftrun's, played by fork, it is gone.
	gone(t, append(pids, b))
}

func TestAgentsThatDoNotStart(t *testing.T) {
	dir := t.TempDir()
	script := func(text string) string {
		name := filepath.Join(dir, "agent")
		if err := os.WriteFile(name, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		return name
	}
	run1(t, nil, on("a,b", "--agent", "/no/such/weftrun", "true")...).want(t, 121, "/no/such/weftrun could not be run")
	run1(t, nil, on("a,b", "--agent", script("echo Permission denied >&2; exit 255\n"), "true")...).
		want(t, 121, "no agent on host ", "exit status 255: Permission denied")
	run1(t, nil, on("a,b", "--start-timeout", "1s", "--agent", script(`for h; do :; done; [ $h = a ] && exec `+weftrun+` "$@"; exec sleep 1000`), "true")...).
		want(t, 121, "not all agents are ready after 1s: no word from b; --start-timeout")
	// A shell that says something at every start.
	r := run1(t, nil, on("a,b", "--agent", script("echo Welcome; echo to the cluster >&2; exec "+weftrun+` "$@"`), "echo", "x")...)
	r.want(t, 0)
	if r.out != "x\nx\n" {
		t.Errorf("ranks say %q", r.out)
	}
	// One that eats the secret.
	run1(t, nil, on("a,b", "--agent", script("head -c 70 > /dev/null; exec "+weftrun+` "$@"`), "true")...).want(t, 121, "no agent on host ", "login script")
}

func TestAgentsInterruptedStart(t *testing.T) {
	name := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(name, []byte("#!/bin/sh\necho $$ >> "+name+".pid; exec sleep 1000\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, on("a", "--agent", name, "true")...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid []int
	for end := time.Now().Add(20 * time.Second); pid == nil && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if b, err := os.ReadFile(name + ".pid"); err == nil && len(b) > 1 {
			pid = numbers(t, lines(string(b)))
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := finish(t, cmd, cmd.Wait()); code != 130 || !strings.Contains(errs.String(), "before its ranks were started") {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
	gone(t, pid)
}

// TestAgentsSecret: the agents' secret is in no command line and no environment.
func TestAgentsSecret(t *testing.T) {
	cmd := command(t, on("a,b", rank(2, "orphan")...)...)
	ranks := numbers(t, scan(t, start(t, cmd), 2))
	all := agents(t, cmd.Process.Pid)
	if len(all) != 2 {
		t.Fatalf("agents %v", all)
	}
	for _, pid := range all {
		for _, file := range []string{"cmdline", "environ"} {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
			if err != nil {
				t.Fatal(err)
			}
			for word := range strings.FieldsFuncSeq(string(b), func(r rune) bool { return !strings.ContainsRune("0123456789abcdefABCDEF", r) }) {
				if len(word) == 64 {
					t.Errorf("%s of agent %d holds what looks like a secret: %q", file, pid, b)
				}
			}
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	finish(t, cmd, cmd.Wait())
	gone(t, ranks)
}

// TestAgentsSameSignal: a signal that the batch system sends to agents and ranks
// arrives once, though weftrun has it too and passes it on (ompi#3998).
func TestAgentsSameSignal(t *testing.T) {
	const script = `n=0; trap 'n=$((n+1))' USR1; trap 'echo caught $n; exit 0' USR2; echo $$; while :; do sleep 0.05; done`
	cmd := command(t, on("a", "sh", "-c", script)...)
	out := start(t, cmd)
	pid := numbers(t, scan(t, out, 1))[0]
	for _, p := range []int{agents(t, cmd.Process.Pid)["a"], pid} {
		if err := syscall.Kill(p, syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(200 * time.Millisecond) // the shell runs its trap
	for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2} {
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	if got := scan(t, out, 1)[0]; got != "caught 1" {
		t.Errorf("the rank %s", got)
	}
	finish(t, cmd, cmd.Wait())
}

// TestAgentsTree: with many hosts agents start agents.
func TestAgentsTree(t *testing.T) {
	for _, n := range []int{33, 70, 200} {
		if testing.Short() && n > 70 {
			continue
		}
		began := time.Now()
		r := run1(t, nil, on(fmt.Sprintf("h[1-%d]", n), "-n", strconv.Itoa(n), "sh", "-c", "echo $WEFT_RANK")...)
		r.want(t, 0)
		got := lines(r.out)
		if len(got) != n {
			t.Errorf("%d hosts: %d ranks say something", n, len(got))
		}
		t.Logf("%d hosts: %v", n, time.Since(began).Round(time.Millisecond))
	}
}
