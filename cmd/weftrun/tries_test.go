package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/weft-hpc/weft/internal/control"
)

func init() {
	// Rank 1 dies; the others hear of it, and leave in good order all the same.
	acts["survive"] = func(c *control.Client) int {
		return afterJoinElse(c, die, func() int {
			events := make(chan control.Event, 10)
			c.Watch(func(e control.Event) { events <- e })
			e := <-events
			if err := leaveJob(c); err != nil {
				fmt.Println(err)
				return 1
			}
			fmt.Printf("rank %d did without rank %d: %v\n", c.Env().Rank, e.Rank, e.GoesOn)
			return 0
		})
	}
	// Rank 1 aborts, as Main does for an error; the others finish.
	acts["fail"] = func(c *control.Client) int {
		return afterJoinElse(c, func() int {
			if err := c.Abort(42, "the input is empty", -1); err != nil {
				fmt.Println(err)
			}
			return 42
		}, func() int {
			if err := leaveJob(c); err != nil {
				fmt.Println(err)
				return 1
			}
			return 0
		})
	}
}

func TestRestart(t *testing.T) {
	const untilTwo = `echo try $WEFT_RESTART; [ $WEFT_RESTART = 2 ] || { [ $WEFT_RANK = 1 ] && exit 7; exec sleep 1000; }`
	t.Run("until it works", func(t *testing.T) {
		r := run1(t, nil, "--restart", "3", "-n", "3", "sh", "-c", untilTwo)
		r.want(t, 0, "rank 1 on host ", "exit status 7; 2 other ranks are being stopped", "started again, restart 1 of 3\n", "started again, restart 2 of 3\n")
		if n := strings.Count(r.out, "try 2\n"); n != 3 {
			t.Errorf("%d ranks in the last try: %s", n, r.out)
		}
	})
	t.Run("as often as allowed", func(t *testing.T) {
		run1(t, nil, "--restart", "1", "-n", "3", "sh", "-c", untilTwo).
			want(t, 7, "restart 1 of 1\n", "the job failed 2 times, which is as often as --restart 1 allows\n")
	})
	t.Run("Weft programs", func(t *testing.T) {
		run1(t, nil, rank(3, "die", "--restart", "1")...).want(t, 137, "restart 1 of 1\n", "failed 2 times")
	})
	t.Run("not after a signal", func(t *testing.T) {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			cmd := command(t, "--restart", "5", "-n", "2", "sh", "-c", "echo up; exec sleep 1000")
			var errs strings.Builder
			cmd.Stderr = &errs
			scan(t, start(t, cmd), 2)
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if code := finish(t, cmd, cmd.Wait()); code != 128+int(sig) || strings.Contains(errs.String(), "again") {
				t.Errorf("%v: exit code %d: %s", sig, code, errs.String())
			}
		}
	})
	t.Run("not after the time", func(t *testing.T) {
		r := run1(t, nil, "--restart", "1000", "--timeout", "1s", "-n", "2", "sh", "-c", "sleep 0.2; exit 3")
		r.want(t, 124, "restart 1 of 1000", "ran longer than --timeout 1s")
		if strings.Contains(r.err, "restart 20 ") {
			t.Errorf("the time begins anew: %s", r.err)
		}
	})
	t.Run("not of what cannot start", func(t *testing.T) {
		r := run1(t, nil, "--restart", "5", "-n", "2", "no-such-program")
		r.want(t, 127, "not found")
		if strings.Contains(r.err, "again") {
			t.Error(r.err)
		}
	})
	t.Run("what it reads and writes", func(t *testing.T) {
		dir := t.TempDir()
		in := filepath.Join(dir, "in")
		if err := os.WriteFile(in, []byte("the input\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(in)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r := run1(t, f, "--restart", "1", "--output", dir, "-n", "1", "sh", "-c", "echo $WEFT_RESTART; cat; exit 4")
		r.want(t, 4, "restart 1 of 1\n")
		if b, err := os.ReadFile(filepath.Join(dir, "0.out")); string(b) != "0\nthe input\n1\nthe input\n" || err != nil {
			t.Errorf("both tries wrote %q, %v", b, err)
		}
		r = run1(t, strings.NewReader("one\n"), "--restart", "1", "-n", "1", "sh", "-c", "cat; exit 4")
		r.want(t, 4, "restart 1 of 1; standard input is a pipe, of which it finds what was not read\n")
	})
}

// TestRestartWithoutAHost: an agent is killed; its host is left out where enough is left.
func TestRestartWithoutAHost(t *testing.T) {
	const script = `[ $WEFT_RESTART = 0 ] && { [ $WEFT_RANK = 2 ] && kill -9 $PPID; exec sleep 1000; }; echo rank $WEFT_RANK of $WEFT_SIZE`
	r := run1(t, nil, on("a:2,b:2,c:2", "--restart", "2", "-n", "4", "--report-bindings", "sh", "-c", script)...)
	r.want(t, 0, "weftrun: host b was lost, with ranks 2-3: ", "the job is started again, restart 1 of 2, without b\n", "rank 3 on host c ")
	got := lines(r.out)
	slices.Sort(got)
	if want := []string{"rank 0 of 4", "rank 1 of 4", "rank 2 of 4", "rank 3 of 4"}; !slices.Equal(got, want) {
		t.Errorf("ranks say %q", got)
	}
	run1(t, nil, on("a:2,b:2", "--restart", "2", "sh", "-c", script)...).
		want(t, 122, "host b was lost", "the job is not started again: 4 ranks, and without the host that was lost (b) there are 2 slots\n")
}

func TestKeepGoing(t *testing.T) {
	t.Run("ordinary programs", func(t *testing.T) {
		r := run1(t, nil, "--keep-going", "-n", "4", "sh", "-c",
			`case $WEFT_RANK in 1) exit 5;; 2) sleep 0.3; kill -9 $$;; *) sleep 0.6; echo done;; esac`)
		r.want(t, 5, "rank 1 on host ", "exit status 5; the others go on\n", "rank 2 on host ", "signal 9 (killed), which is often the kernel when memory runs out; the others go on\n",
			"weftrun: 2 of 4 ranks failed:\n    rank 1 on host ")
		if r.out != "done\ndone\n" {
			t.Errorf("the others say %q", r.out)
		}
	})
	t.Run("death", func(t *testing.T) {
		r := run1(t, nil, rank(4, "survive", "--keep-going")...)
		r.want(t, 137, "rank 1 on host ", "; the others go on\n", "1 of 4 ranks failed:\n")
		got := lines(r.out)
		slices.Sort(got)
		if want := []string{"rank 0 did without rank 1: true", "rank 2 did without rank 1: true", "rank 3 did without rank 1: true"}; !slices.Equal(got, want) {
			t.Errorf("ranks say %q", got)
		}
	})
	t.Run("error", func(t *testing.T) {
		run1(t, nil, rank(3, "fail", "--keep-going")...).want(t, 42, "rank 1 on host ", "failed with code 42: the input is empty; the others go on\n", "1 of 3 ranks failed:\n")
	})
	t.Run("one for the other", func(t *testing.T) {
		r := run1(t, nil, rank(3, "dominoes", "--keep-going")...)
		r.want(t, 137, "rank 2 on host ", "failed with code 5: a long story about rank 1; the others go on\n", "2 of 3 ranks failed:\n")
		if !strings.HasPrefix(r.out, "rank 1 (pid ") || !strings.HasSuffix(r.out, "\nrank 2 failed with code 5, as it had lost another rank\n") {
			t.Errorf("rank 0 heard %q", r.out)
		}
	})
	t.Run("those who cannot", func(t *testing.T) {
		// Without rank 1 nobody can join: all fail, each by itself.
		r := run1(t, nil, rank(3, "early", "--keep-going", "-x", "EARLY_DIR="+t.TempDir())...)
		r.want(t, 1, "3 of 3 ranks failed:\n")
		if n := strings.Count(r.out, "not all ranks can join: rank 1 (pid "); n != 2 {
			t.Errorf("ranks say %q", r.out)
		}
	})
	t.Run("all is well", func(t *testing.T) {
		run1(t, nil, "--keep-going", "-n", "3", "true").want(t, 0)
	})
	t.Run("time", func(t *testing.T) {
		run1(t, nil, "--keep-going", "--timeout", "500ms", "-n", "2", "sleep", "1000").want(t, 124, "ran longer than --timeout 500ms; 2 ranks are being stopped\n")
		run1(t, nil, "--keep-going", "--timeout", "500ms", "-n", "2", "sh", "-c", "[ $WEFT_RANK = 1 ] && exit 6; exec sleep 1000").
			want(t, 6, "exit status 6; the others go on\n", "ran longer than --timeout 500ms; 1 rank is being stopped\n", "1 of 2 ranks failed:\n")
	})
	t.Run("signal", func(t *testing.T) {
		cmd := command(t, "--keep-going", "-n", "2", "sh", "-c", "echo up; exec sleep 1000")
		scan(t, start(t, cmd), 2)
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if code := finish(t, cmd, cmd.Wait()); code != 143 {
			t.Errorf("exit code %d", code)
		}
	})
}

// TestKeepGoingWithoutAHost: an agent is killed; ranks on other hosts hear of each of its ranks.
func TestKeepGoingWithoutAHost(t *testing.T) {
	r := run1(t, nil, on("a:2,b:2", "--keep-going", "sh", "-c", `case $WEFT_RANK in 2) kill -9 $PPID; exec sleep 1000;; 3) exec sleep 1000;; *) sleep 1; echo done;; esac`)...)
	r.want(t, 122, "host b was lost, with ranks 2-3: ", "; the others go on\n", "2 of 4 ranks failed:\n    host b was lost")
	if r.out != "done\ndone\n" {
		t.Errorf("the others say %q", r.out)
	}
}
