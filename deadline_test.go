package weft_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weft-hpc/weft"
)

func init() {
	programs["deadline"] = func(ctx context.Context, world *weft.Comm) error {
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if at, ok := weft.Deadline(context.WithoutCancel(ctx)); ok {
				fmt.Printf("rank %d has %.0f minutes\n", world.Rank(), time.Until(at).Minutes())
				return nil
			}
		}
		return fmt.Errorf("rank %d is told no deadline", world.Rank())
	}
	programs["no deadline"] = func(ctx context.Context, world *weft.Comm) error {
		time.Sleep(200 * time.Millisecond)
		if at, ok := weft.Deadline(ctx); ok {
			return fmt.Errorf("rank %d has until %v", world.Rank(), at)
		}
		return nil
	}
}

func TestDeadline(t *testing.T) {
	if _, ok := weft.Deadline(t.Context()); ok {
		t.Error("a context that is not Main's has a deadline")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// A squeue that answers as the real one did.
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "squeue"), []byte("#!/bin/sh\n[ \"$*\" = '-h -j 17 -o %L' ] && echo 45:00\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	slurm := []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "SLURM_JOB_ID=17", "SLURM_JOB_NODELIST=a,b", "SLURM_TASKS_PER_NODE=1(x2)"}
	for _, c := range []struct {
		program string
		env     []string
		args    []string
		want    int // minutes
	}{
		{"no deadline", nil, nil, 0},
		{"deadline", nil, []string{"--timeout", "20m"}, 20},
		{"deadline", slurm, []string{"--launcher", "fork"}, 45},
		{"deadline", slurm, []string{"--launcher", "fork", "--timeout", "20m"}, 20},
		{"deadline", append(slurm, fmt.Sprintf("SLURM_JOB_END_TIME=%d", time.Now().Add(30*time.Minute).Unix())), []string{"--launcher", "fork"}, 30},
	} {
		cmd := exec.CommandContext(t.Context(), weftrun, append(append(c.args, "-n", "2"), self)...)
		cmd.Env = append(append(os.Environ(), programVariable+"="+c.program), c.env...)
		out, err := cmd.CombinedOutput()
		if err != nil || c.want > 0 && strings.Count(string(out), fmt.Sprintf(" has %d minutes\n", c.want)) != 2 {
			t.Errorf("%s %v: %v, %s, want %d minutes", c.program, c.args, err, out, c.want)
		}
	}
}

func TestRestarts(t *testing.T) {
	for value, want := range map[string]int{"": 0, "0": 0, "3": 3, "-1": 0, "x": 0} {
		if t.Setenv("WEFT_RESTART", value); weft.Restarts() != want {
			t.Errorf("WEFT_RESTART=%q means %d restarts, want %d", value, weft.Restarts(), want)
		}
	}
}
