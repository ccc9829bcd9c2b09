package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-hpc/weft/internal/tm/tmtest"
)

// pbsJob runs weftrun as the script of a PBS job whose hosts are this machine, under two names that it
// does not take for itself, and returns what the job's file holds.
func pbsJob(t *testing.T, cfg tmtest.Config, env []string, args ...string) (result, *tmtest.Mom) {
	t.Helper()
	dir := t.TempDir()
	cfg.Nodes = []string{"127.0.0.2", "127.0.0.2", "127.0.0.3"}
	cfg.File, cfg.Home = filepath.Join(dir, "nodes"), filepath.Join(dir, "home")
	err := os.Mkdir(cfg.Home, 0o700)
	if err == nil {
		err = os.WriteFile(cfg.File, []byte(strings.Join(cfg.Nodes, "\n")), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.OpenFile(filepath.Join(dir, "job.out"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cfg.Output = out
	m, err := tmtest.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	code, err := m.Script(append([]string{weftrun}, args...), env)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(cfg.Home + "/.weftrun-*"); err != nil || left != nil {
		t.Errorf("left: %q, %v", left, err)
	}
	return result{code: code, out: string(b), err: string(b)}, m
}

func TestTM(t *testing.T) {
	for name, cfg := range map[string]tmtest.Config{"OpenPBS": {}, "PBS Pro 19": {Raw: true}, "Torque": {Torque: true}} {
		t.Run(name, func(t *testing.T) {
			r, m := pbsJob(t, cfg, nil, "-x", "ACT=join", self)
			r.want(t, 0, "rank 0 of 3, local 0 of 2: card 0, card 1, card 2", "rank 2 of 3, local 0 of 1: ")
			if n := m.Spawns(); n != 2 {
				t.Errorf("%d agents for 2 hosts", n)
			}
		})
	}
	t.Run("exit status", func(t *testing.T) {
		r, _ := pbsJob(t, tmtest.Config{}, nil, "sh", "-c", "[ $WEFT_RANK = 2 ] && exit 5; exec sleep 1000")
		r.want(t, 5, "rank 2 on host 127.0.0.3 (pid ", "exit status 5; 2 other ranks")
	})
	t.Run("no secrets for ranks", func(t *testing.T) {
		r, _ := pbsJob(t, tmtest.Config{}, nil, "sh", "-c", "env; echo end")
		r.want(t, 0, "PBS_JOBID=7.head", "end")
		for _, bad := range []string{"WEFT_AGENT_KEY", "PBS_TASKNUM=00000001"} {
			if strings.Contains(r.out, bad) {
				t.Errorf("a rank has %s: %s", bad, r.out)
			}
		}
	})
	t.Run("no agent", func(t *testing.T) {
		r, _ := pbsJob(t, tmtest.Config{}, nil, "--agent", "/no/such/weftrun", "true")
		r.want(t, 121, "no agent on host 127.0.0.", ": its task ended with exit status 254; what it said is in the job's output file")
	})
	t.Run("plan", func(t *testing.T) {
		r, _ := pbsJob(t, tmtest.Config{}, nil, "--dry-run", "true")
		r.want(t, 0, "launcher   tm: the way of PBS\n", "runs     TM_SPAWN 2 ")
	})
}

// TestTMRefuses: the tools of PBS are next, where PBS takes no request from us.
func TestTMRefuses(t *testing.T) {
	tools := t.TempDir()
	if err := os.WriteFile(filepath.Join(tools, "pbsdsh"), []byte("#!/bin/sh\nshift 3\ncd\nexec \"$@\" </dev/null\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := "PATH=" + tools + ":/bin:/usr/bin"
	const closes = " closes the connection without an answer, as it does when it does not know job 7.head or its cookie"
	r, _ := pbsJob(t, tmtest.Config{Refuse: 17012}, []string{path}, "-x", "ACT=join", self)
	r.want(t, 0, "TM error 17012 (rejected by a hook); agents are started by pbsdsh instead\n", "rank 2 of 3, local 0 of 1: ")
	r, _ = pbsJob(t, tmtest.Config{}, []string{path, "PBS_JOBCOOKIE=wrong"}, "-x", "ACT=join", self)
	r.want(t, 0, closes+"; agents are started by pbsdsh instead\n", "rank 2 of 3, local 0 of 1: ")
	r, _ = pbsJob(t, tmtest.Config{}, []string{path, "PBS_MOMPORT=1"}, "-x", "ACT=join", self)
	r.want(t, 0, "connection refused; agents are started by pbsdsh instead\n", "rank 2 of 3, local 0 of 1: ")
	r, m := pbsJob(t, tmtest.Config{}, []string{path}, "--launcher", "pbsdsh", "-x", "ACT=join", self)
	if r.want(t, 0, "rank 2 of 3, local 0 of 1: "); m.Spawns() != 0 {
		t.Error("TM was asked though pbsdsh is wanted")
	}
	r, _ = pbsJob(t, tmtest.Config{}, []string{path, "PBS_JOBCOOKIE=wrong"}, "--launcher", "tm", "true")
	r.want(t, 121, "--launcher tm: tm: the MoM at port ", closes)
	r, _ = pbsJob(t, tmtest.Config{Refuse: 17012}, []string{path}, "--launcher", "tm", "true")
	r.want(t, 121, "--launcher tm: host 127.0.0.", "TM error 17012 (rejected by a hook)")
}
