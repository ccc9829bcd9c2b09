package main

import (
	"bytes"
	"errors"
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

// alive tells whether a process runs; a zombie does not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	return f[0] != "Z" && f[0] != "X"
}

// gone waits for processes to end.
func gone(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		for end := time.Now().Add(20 * time.Second); alive(pid); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("process %d is still there", pid)
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Error(err)
				}
				break
			}
		}
	}
}

func numbers(t *testing.T, lines []string) []int {
	t.Helper()
	var out []int
	for _, l := range lines {
		for f := range strings.FieldsSeq(l) {
			n, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, n)
		}
	}
	return out
}

func shmFiles(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("/dev/shm/*weft*")
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestKilledLauncherLeavesNothing(t *testing.T) {
	before := shmFiles(t)
	for name, args := range map[string][]string{
		"ranks that listen": rank(3, "orphan"),
		"ranks that do not": {"-n", "3", "sh", "-c", "echo $$; exec sleep 1000"},
		"grandchildren":     {"-n", "3", "sh", "-c", "sleep 1000 & echo $$ $!; wait"},
	} {
		cmd := command(t, args...)
		pids := numbers(t, scan(t, start(t, cmd), 3))
		if name == "grandchildren" {
			awaitKeeper(t, cmd.Process.Pid)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if cmd.Wait() == nil {
			t.Errorf("%s: weftrun survived", name)
		}
		gone(t, pids)
	}
	if after := shmFiles(t); !slices.Equal(before, after) {
		t.Errorf("/dev/shm held %q and holds %q", before, after)
	}
}

// parent returns the parent of a process, 0 when it has ended.
func parent(pid string) int {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))[1])
	return n
}

// awaitKeeper waits until weftrun, or an agent that it has started, has the process that looks
// after grandchildren.
func awaitKeeper(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		names, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			b, err := os.ReadFile(name)
			if err != nil || !bytes.HasPrefix(b, []byte(job.KeeperName)) {
				continue
			}
			of := parent(filepath.Base(filepath.Dir(name)))
			if of == pid || overAgents && parent(strconv.Itoa(of)) == pid {
				return
			}
		}
	}
	t.Fatal("weftrun has no keeper")
}

func TestEndedJobLeavesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		code   int
	}{
		"well":          {"sleep 1000 & echo $$ $!", 0},
		"with a status": {"sleep 1000 & echo $$ $!; exit 3", 3},
		"in a session":  {"setsid sh -c 'echo $$; exec sleep 1000' & echo $$", 0},
	} {
		n := 1
		if strings.HasPrefix(c.script, "setsid") {
			n = 2
		}
		cmd := command(t, "-n", "1", "sh", "-c", c.script)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		pids := numbers(t, scan(t, start(t, cmd), n))
		if code := finish(t, cmd, cmd.Wait()); code != c.code {
			t.Errorf("%s: exit code %d, want %d: %s", name, code, c.code, errs.String())
		}
		gone(t, pids)
	}
}

// ompi#8672: ranks get the signal that weftrun gets, once, and time for what they do then.
func TestSignalsReachTheRanks(t *testing.T) {
	// A shell runs its trap when its child ends, so sleep is waited for.
	const script = `trap "echo USR1" USR1; trap "echo USR2" USR2; trap "echo TERM; exit 0" TERM; trap "echo INT; exit 0" INT
		sleep 1000 & echo ready; while :; do wait; done`
	for _, c := range []struct {
		sig  syscall.Signal
		name string
		code int
	}{
		{syscall.SIGUSR1, "USR1", 0}, {syscall.SIGUSR2, "USR2", 0}, {syscall.SIGTERM, "TERM", 143}, {syscall.SIGINT, "INT", 130},
	} {
		cmd := command(t, "-n", "2", "sh", "-c", script)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out := start(t, cmd)
		scan(t, out, 2)
		if err := cmd.Process.Signal(c.sig); err != nil {
			t.Fatal(err)
		}
		if got := scan(t, out, 2); got[0] != c.name || got[1] != c.name {
			t.Errorf("%v made the ranks say %q", c.sig, got)
		}
		if c.code == 0 {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			scan(t, out, 2)
			c.code = 143
		}
		if out.Scan() {
			t.Errorf("after %v the ranks also say %q", c.sig, out.Text())
		}
		if code := finish(t, cmd, cmd.Wait()); code != c.code {
			t.Errorf("%v: exit code %d, want %d", c.sig, code, c.code)
		}
		if want := "ended the job; 2 ranks are being stopped"; !strings.Contains(errs.String(), want) {
			t.Errorf("%v: stderr lacks %q: %s", c.sig, want, errs.String())
		}
	}
}

func TestSecondInterruptKills(t *testing.T) {
	cmd := command(t, rank(2, "stubborn", "--grace", "1h")...)
	out := start(t, cmd)
	pids := numbers(t, scan(t, out, 2))
	for i := range 2 {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			scan(t, out, 2)
		}
	}
	if out.Scan() {
		t.Errorf("ranks also say %q", out.Text())
	}
	if code := finish(t, cmd, cmd.Wait()); code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
	gone(t, pids)
}

func TestIgnoredSignalsStayIgnored(t *testing.T) {
	own, err := exec.Command("grep", "SigIgn", "/proc/self/status").Output() // what this test's parent ignores
	if err != nil {
		t.Fatal(err)
	}
	r := run1(t, nil, "-n", "1", "sh", "-c", `grep SigIgn /proc/self/status`)
	r.want(t, 0)
	if r.out != string(own) {
		t.Errorf("ranks start with other ignored signals than without weftrun: %s, not %s", r.out, own)
	}
	cmd := command(t, "-n", "1", "sh", "-c", `kill -HUP $PPID; grep SigIgn /proc/self/status`)
	cmd.Args = append([]string{"nohup"}, cmd.Args...)
	nohup := command(t)
	cmd.Path, cmd.Args[1] = "/usr/bin/nohup", nohup.Path
	out, err := cmd.Output()
	if err != nil || !bytes.HasSuffix(bytes.TrimSpace(out), []byte("1")) { // SIGHUP is the lowest bit
		t.Errorf("under nohup: %v: %s", err, out)
	}
}

// ompi-release#531, ompi#526, ompi#4577: Ctrl-Z stops ranks and launcher, and they go on together.
func TestStopAndContinue(t *testing.T) {
	cmd := command(t, "-n", "2", "sh", "-c", `echo $$; exec sleep 1000`)
	pids := append(numbers(t, scan(t, start(t, cmd), 2)), cmd.Process.Pid)
	stopped := func(want bool) {
		t.Helper()
		for _, pid := range pids {
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
				b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
				if err != nil {
					t.Fatal(err)
				}
				if (strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))[0] == "T") == want {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("process %d stopped: %v", pid, !want)
				}
			}
		}
	}
	signal := func(s syscall.Signal) {
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGTSTP)
	stopped(true)
	signal(syscall.SIGCONT)
	stopped(false)
	signal(syscall.SIGTERM)
	if code := finish(t, cmd, cmd.Wait()); code != 143 {
		t.Errorf("exit code %d, want 143", code)
	}
}

func TestStoppedRanksAreEnded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	r := run1(t, nil, "-n", "2", "sh", "-c", `
		if [ $WEFT_RANK = 0 ]; then echo $$ > $0.new; mv $0.new $0; kill -STOP $$; exit 7; fi
		until [ -e $0 ]; do :; done
		until grep -q 'State:.T' /proc/$(cat $0)/status; do :; done
		exit 6`, file)
	r.want(t, 6, "rank 1 on host ")
}

func TestSecretIsNowhereToBeSeen(t *testing.T) {
	cmd := command(t, rank(2, "orphan")...)
	pids := numbers(t, scan(t, start(t, cmd), 2))
	for _, pid := range append(pids, cmd.Process.Pid) {
		for _, file := range []string{"cmdline", "environ"} {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
			if err != nil {
				t.Fatal(err)
			}
			for _, word := range []string{"SECRET", "KEY="} {
				if bytes.Contains(bytes.ToUpper(b), []byte("WEFT_"+word)) {
					t.Errorf("%s of %d: %q", file, pid, b)
				}
			}
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	gone(t, pids)
}
