package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weft-hpc/weft/internal/control"
)

func TestWireUp(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 7, 8, 13} {
		r := run1(t, nil, rank(n, "join")...)
		r.want(t, 0)
		var cards, want []string
		for i := range n {
			cards = append(cards, fmt.Sprint("card ", i))
		}
		for i := range n {
			want = append(want, fmt.Sprintf("rank %d of %d, local %d of %d: %s", i, n, i, n, strings.Join(cards, ", ")))
		}
		got := lines(r.out)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%d ranks said %q", n, got)
		}
	}
}

func TestOrdinaryProgramsRun(t *testing.T) {
	r := run1(t, nil, "-n", "2", "sh", "-c", `echo $WEFT_RANK/$WEFT_SIZE/$WEFT_LOCAL_RANK/$WEFT_LOCAL_SIZE`)
	r.want(t, 0)
	got := lines(r.out)
	slices.Sort(got)
	if !slices.Equal(got, []string{"0/2/0/2", "1/2/1/2"}) {
		t.Errorf("ranks say %q", got)
	}
}

func TestFirstCause(t *testing.T) {
	t.Run("signal", func(t *testing.T) {
		r := run1(t, nil, rank(3, "die")...)
		r.want(t, 137, "weftrun: rank 1 on host ", "ended with signal 9 (killed)", "; 2 other ranks are being stopped\n")
		for _, i := range []int{0, 2} {
			if want := fmt.Sprintf("rank %d heard: rank 1 (pid ", i); !strings.Contains(r.out, want) {
				t.Errorf("stdout lacks %q: %s", want, r.out)
			}
		}
		if n := strings.Count(r.err, "\n"); n != 1 {
			t.Errorf("%d lines for one cause: %s", n, r.err)
		}
	})
	t.Run("abort", func(t *testing.T) {
		r := run1(t, nil, rank(3, "abort")...)
		r.want(t, 42, "rank 1 on host ", "aborted the job with code 42: the input is empty")
		if !strings.Contains(r.out, "rank 0 heard: rank 1 aborted the job with code 42: the input is empty") {
			t.Errorf("rank 0 did not hear of it: %s", r.out)
		}
	})
	t.Run("blame", func(t *testing.T) {
		// Rank 0's abort may come first; the one it misses is the cause all the same.
		r := run1(t, nil, rank(3, "blame")...)
		r.want(t, 137, "weftrun: rank 1 on host ", "signal 9")
	})
	t.Run("leave", func(t *testing.T) {
		run1(t, nil, rank(2, "leave")...).want(t, 1, "rank 1 on host ", "exit status 0 before it had finished")
	})
	t.Run("early", func(t *testing.T) {
		r := run1(t, nil, rank(3, "early", "-x", "EARLY_DIR="+t.TempDir())...)
		r.want(t, 1, "rank 1 on host ", "exit status 0 before it had finished")
		if !strings.Contains(r.out, "not all ranks can join: rank 1 (pid ") {
			t.Errorf("the others do not name the rank: %s", r.out)
		}
	})
	t.Run("stranger", func(t *testing.T) {
		args := append(rank(2, "early"), ":", "-n", "1", "true")
		args[1] = "1" // rank 0 joins, rank 1 is /bin/true
		run1(t, nil, args...).want(t, 1, "rank 1 on host ", "never joined the job, while rank 0 did")
	})
	t.Run("status", func(t *testing.T) {
		run1(t, nil, "-n", "3", "sh", "-c", `[ $WEFT_RANK = 2 ] && exit 5; exec sleep 1000`).
			want(t, 5, "rank 2 on host ", "ended with exit status 5; 2 other ranks are being stopped")
	})
	t.Run("verbose", func(t *testing.T) {
		r := run1(t, nil, rank(3, "die", "--verbose")...)
		r.want(t, 137, "binding ", "then rank 0 on host", "exit status 99")
	})
}

func TestLeave(t *testing.T) {
	r := run1(t, nil, rank(2, "part")...)
	r.want(t, 0)
	if r.out != "rank 1 heard: rank 0 has left\n" {
		t.Errorf("ranks say %q", r.out)
	}
}

func TestThoseWhoStayAreKilled(t *testing.T) {
	r := run1(t, nil, rank(3, "deaf", "--grace", "0.2")...)
	r.want(t, 3, "rank 1 on host ", "exit status 3", "ranks 0, 2 did not end within 200ms and a SIGTERM, and are killed")
}

func TestTimeout(t *testing.T) {
	run1(t, nil, "--timeout", "300ms", "-n", "2", "sleep", "1000").
		want(t, 124, "weftrun: the job ran longer than --timeout 300ms; 2 ranks are being stopped")
	run1(t, nil, "--timeout", "1h", "-n", "2", "true").want(t, 0)
}

func TestProgramsThatCannotRun(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("plain", "text", 0o644)
	write("script", "#!/no/such/interpreter\n", 0o755)
	write("data", "\x7fnothing", 0o755)
	write("here", "#!/bin/sh\nexit 4\n", 0o755)
	for _, c := range []struct {
		prog string
		code int
		say  []string
	}{
		{"no-such-program", 127, []string{`"no-such-program" was not found in PATH=`, "working directory " + dir}},
		{"./nothing", 127, []string{dir + "/nothing", "working directory " + dir}},
		{"./plain", 126, []string{dir + "/plain is not executable", "chmod +x"}},
		{".", 127, []string{`"." was not found`}},
		{"./.", 126, []string{"is a directory"}},
		{"./script", 126, []string{dir + "/script could not be started", "interpreter"}},
		{"./data", 126, []string{"#!/bin/sh"}},
		{"here", 127, []string{"did you mean ./here?"}},
		{"./here", 4, []string{"exit status 4"}},
	} {
		run1(t, nil, "--wdir", dir, "-n", "2", c.prog).want(t, c.code, c.say...)
	}
	run1(t, nil, "--wdir", dir+"/none", "-n", "1", "true").want(t, 121, "--wdir "+dir+"/none")
	run1(t, nil, "--wdir", dir+"/here", "-n", "1", "true").want(t, 121, "not a directory")
	// What was started before the failure is ended at once.
	run1(t, nil, "-n", "1", "sleep", "1000", ":", "-n", "1", "--wdir", dir, "./script").want(t, 126, "rank 1 on host ", "interpreter")
	// One program of two: nothing is started.
	r := run1(t, nil, "-n", "1", "echo", "started", ":", "-n", "1", "./nothing")
	r.want(t, 127, "./nothing")
	if r.out != "" {
		t.Errorf("something was started: %s", r.out)
	}
}

func TestSeveralPrograms(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("FROM_HERE", "here")
	r := run1(t, nil, "-n", "1", "-x", "A=1", "--wdir", dir, "sh", "-c", `echo "$WEFT_RANK $A $B $(pwd) $1"`, "sh", `\:`,
		":", "-n", "2", "-x", "B=2=2", "-x", "FROM_HERE", "sh", "-c", `echo "$WEFT_RANK $A $B $FROM_HERE $1"`, "sh", `\\:`)
	r.want(t, 0)
	got := lines(r.out)
	slices.Sort(got)
	want := []string{"0 1  " + dir + " :", `1  2=2 here \:`, `2  2=2 here \:`}
	if !slices.Equal(got, want) {
		t.Errorf("ranks say %q, want %q", got, want)
	}
}

func TestOutputFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 { // the second job must not leave anything of the first
		r := run1(t, nil, "--output", dir, "-n", "3", "sh", "-c", `echo out $WEFT_RANK; printf "err $WEFT_RANK" >&2`)
		r.want(t, 0)
		if r.out != "" {
			t.Errorf("stdout: %s", r.out)
		}
	}
	for i := range 3 {
		for name, want := range map[string]string{"out": fmt.Sprintf("out %d\n", i), "err": fmt.Sprint("err ", i)} {
			b, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%d.%s", i, name)))
			if string(b) != want || err != nil {
				t.Errorf("%d.%s holds %q, %v", i, name, b, err)
			}
		}
	}
}

func TestOutputPatterns(t *testing.T) {
	dir := t.TempDir()
	r := run1(t, nil, on("a:1,b:2", "--output", dir+"/{host}/{rank}.log", "sh", "-c", `echo out $WEFT_RANK; echo err $WEFT_RANK >&2; echo more`)...)
	r.want(t, 0)
	for name, want := range map[string]string{"a/0": "out 0\nerr 0\nmore\n", "b/1": "out 1\nerr 1\nmore\n", "b/2": "out 2\nerr 2\nmore\n"} {
		if b, err := os.ReadFile(filepath.Join(dir, name+".log")); string(b) != want || err != nil {
			t.Errorf("%s holds %q, %v", name, b, err)
		}
	}
	run1(t, nil, "--output", dir+"/{host}.log", "-n", "2", "true").want(t, 2, "has no {rank}, so all ranks would write to one file")
	run1(t, nil, on("n1:13,n11", "--dry-run", "--output", dir+"/{host}{rank}", "true")...).want(t, 0)
	run1(t, nil, on("n11:3,n1:13", "--map-by", "node", "--output", dir+"/{host}{rank}", "true")...).want(t, 2, "would both write to "+dir+"/n11")
	run1(t, nil, "--output", "/proc/none/{rank}", "-n", "2", "true").want(t, 121, "--output: mkdir /proc/none")
}

func TestBinding(t *testing.T) {
	const show = `grep Cpus_allowed_list /proc/self/status`
	none := run1(t, nil, "-n", "1", "--bind-to", "none", "sh", "-c", show)
	none.want(t, 0)
	core := run1(t, nil, "-n", "1", "sh", "-c", show)
	core.want(t, 0)
	plan := run1(t, nil, "-n", "1", "--dry-run", "true")
	plan.want(t, 0)
	cpus := strings.Fields(core.out)[1]
	run1(t, nil, "-n", "1", "--report-bindings", "true").want(t, 0, "rank 0 on host ", "is bound to processors "+cpus+": a core of socket ")
	run1(t, nil, "-n", "1", "--report-bindings", "--bind-to", "none", "true").want(t, 0, "rank 0 on host ", "is not bound: processors "+strings.Fields(none.out)[1]+"\n")
	if !strings.Contains(plan.out, "rank 0 on ") || !strings.Contains(plan.out, ", processors "+cpus+"\n") {
		t.Errorf("rank 0 ran on %s; the plan was\n%s", cpus, plan.out)
	}
	if !strings.Contains(plan.out, "processors "+strings.Fields(none.out)[1]+" (") {
		t.Errorf("unbound ranks ran on %s; the plan was\n%s", none.out, plan.out)
	}
	plan = run1(t, nil, "-n", "2000", "--dry-run", "true")
	plan.want(t, 0)
	if !strings.Contains(plan.out, "binding    none: 2000 ranks do not fit ") {
		t.Errorf("the plan does not say that nothing is bound:\n%s", plan.out[:500])
	}
	run1(t, nil, "-n", "2000", "--bind-to", "core", "true").want(t, 121, "--bind-to core on host ", "2000 ranks but ", "--bind-to none")
}

func TestDryRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "made")
	r := run1(t, nil, "--dry-run", "-n", "2", "-x", "A=b c", "touch", file, "it's")
	r.want(t, 0)
	for _, want := range []string{"touch " + file + ` 'it'\''s'`, "'A=b c'", "WEFT_RANK=1", "in       "} {
		if !strings.Contains(r.out, want) {
			t.Errorf("the plan lacks %q:\n%s", want, r.out)
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the program was run")
	}
}

func TestRanksKeepTheirSecretsFromChildren(t *testing.T) {
	for _, transport := range []string{"auto", "shm", "tcp"} {
		r := run1(t, nil, rank(1, "fds", "--transport", transport)...)
		r.want(t, 0)
		for _, bad := range []string{"socket:", "memfd"} {
			if strings.Contains(r.out, bad) {
				t.Errorf("a child of a rank has %s: %s", bad, r.out)
			}
		}
		for _, name := range control.Vars() {
			if strings.Contains(r.out, "\n"+name+"=") {
				t.Errorf("a child of a rank has %s", name)
			}
		}
		if got := strings.Contains(r.out, "no segment"); got != (transport == "tcp") {
			t.Errorf("%s: no segment: %v", transport, got)
		}
	}
}

func TestALauncherInsideALauncher(t *testing.T) {
	r := run1(t, nil, "-n", "1", "sh", "-c", `exec "$0" "$@"`, weftrun, "-n", "2", "-x", "ACT=join", self)
	r.want(t, 0)
	if n := strings.Count(r.out, " of 2, local"); n != 2 {
		t.Errorf("the inner ranks said %q", r.out)
	}
}

func TestTwoProgramsInOneRank(t *testing.T) {
	r := run1(t, nil, append(append([]string{"-n", "1", "-x", "ACT=join", "sh", "-c"}, `"$0"; "$0"`), self)...)
	r.want(t, 1, "rank 0 on host ", "exit status 1")
	if !strings.Contains(r.out, "rank 0 of 1,") || !strings.Contains(r.out, "did a script start two") {
		t.Errorf("the second program says %q", r.out)
	}
}

func TestLimits(t *testing.T) {
	r := run1(t, nil, "-n", "1", "sh", "-c", "ulimit -Sl; ulimit -Hl")
	r.want(t, 0)
	if l := lines(r.out); len(l) != 2 || l[0] != l[1] {
		t.Errorf("ranks may lock %q", l)
	}
}
