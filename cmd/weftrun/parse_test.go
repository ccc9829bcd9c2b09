package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-hpc/weft/internal/job"
)

func TestParse(t *testing.T) {
	t.Setenv("SET", "value")
	defaults := func(p ...job.Program) job.Spec {
		return job.Spec{Programs: p, Transport: "auto", Grace: 5 * time.Second}
	}
	one := job.Program{Ranks: 1, Argv: []string{"p"}}
	with := func(change func(*job.Spec)) job.Spec {
		s := defaults(one)
		change(&s)
		return s
	}
	for _, c := range []struct {
		line string
		want job.Spec
	}{
		{"-n 1 p", defaults(one)},
		{"-np 1 p", defaults(one)},
		{"--np=1 p", defaults(one)},
		{"-n=1 -- p", defaults(one)},
		{"-n 2 -n 1 p", defaults(one)},
		{"-n 2 p -n 3 --timeout x", defaults(job.Program{Ranks: 2, Argv: []string{"p", "-n", "3", "--timeout", "x"}})},
		{"-n 1 -- -p :: a:b", defaults(job.Program{Ranks: 1, Argv: []string{"-p", "::", "a:b"}})},
		{"-n 1 -x SET -env A= --wdir d p", defaults(job.Program{Ranks: 1, Dir: "d", Env: []string{"SET=value", "A="}, Argv: []string{"p"}})},
		{"-n 1 p : -n 3 q r", defaults(one, job.Program{Ranks: 3, Argv: []string{"q", "r"}})},
		{"--bind-to core -n 1 p", with(func(s *job.Spec) { s.Bind = job.BindCore })},
		{"--map-by socket --bind-to numa -n 1 p", with(func(s *job.Spec) { s.Map, s.Bind = job.MapSocket, job.BindNUMA })},
		{"-bind-to none -n 1 p", with(func(s *job.Spec) { s.Bind = job.BindNone })},
		{"--transport tcp --interface eth0 -n 1 p", with(func(s *job.Spec) { s.Transport, s.Interface = "tcp", "eth0" })},
		{"--transport verbs --device mlx5_0:1,mlx5_1 -n 1 p", with(func(s *job.Spec) { s.Transport, s.Device = "verbs", "mlx5_0:1,mlx5_1" })},
		{"--arena 64M -n 1 p", with(func(s *job.Spec) { s.Arena = 64 << 20 })},
		{"--arena 2GiB -n 1 p", with(func(s *job.Spec) { s.Arena = 2 << 30 })},
		{"--arena 4096 -n 1 p", with(func(s *job.Spec) { s.Arena = 4096 })},
		{"-tag-output -v -n 1 p", with(func(s *job.Spec) { s.Tag, s.Verbose = true, true })},
		{"--output d -n 1 p", with(func(s *job.Spec) { s.Output = "d/{rank}.{stream}" })},
		{"--timeout 90 --grace 0 -n 1 p", with(func(s *job.Spec) { s.Timeout, s.Grace = 90*time.Second, 0 })},
		{"--timeout 1h30m --grace 1.5 -n 1 p", with(func(s *job.Spec) { s.Timeout, s.Grace = 90*time.Minute, 1500*time.Millisecond })},
	} {
		o, err := parse(strings.Fields(c.line))
		if err != nil {
			t.Errorf("%s: %v", c.line, err)
			continue
		}
		if d := cmp.Diff(c.want, o.spec); d != "" {
			t.Errorf("%s: %s", c.line, d)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"":                                     "no program to run",
		"-n 2":                                 "no program to run",
		"-n":                                   "-n needs a value",
		"p":                                    "how many ranks of p",
		"-n 0 p":                               "0 ranks",
		"-n -3 p":                              "-3 ranks",
		"-np two p":                            `"two" is not a number`,
		"-n 99999999999999999999 p":            "is not a number",
		"-n 1 p :":                             "no program after the :",
		"-n 1 p : : -n 1 p":                    "no program after the :",
		": -n 1 p":                             "no program to run",
		"-n 1 p : q":                           "how many ranks of q",
		"-n 1 p : --timeout 3 -n 1 q":          "--timeout is for the whole job",
		"--tagoutput -n 1 p":                   "did you mean --tag-output?",
		"--timeuot 5 -n 1 p":                   "did you mean --timeout?",
		"--trans tcp -n 1 p":                   "did you mean --transport?",
		"--restart -1 -n 1 p":                  "not a number of restarts",
		"--restart 1 --keep-going -n 1 p":      "exclude each other",
		"-x WEFT_RESTART=3 -n 1 p":             "WEFT_RESTART is set by weftrun",
		"--ppn 0 -n 1 p":                       "not a number of ranks",
		"--ppn 2 -n 1 p":                       "--ppn needs hosts",
		"--map-by l3 -n 1 p":                   `"l3" is not one of slot, node, core, socket, numa`,
		"--map-by numa --bind-to none -n 1 p":  "exclude each other",
		"--launcher rsh -n 1 p":                "not one of ssh, srun",
		"--control carrier-pigeon -n 1 p":      "there is no control plane \"carrier-pigeon\"; there are: tcp, zmq",
		"--agent weftrun -n 1 p":               "not an absolute path",
		"--host a,,b -n 1 p":                   "comma without a name",
		"--host a --hostfile f -n 1 p":         "exclude each other",
		"--hostfile /no/such/file -n 1 p":      "no such file",
		"--host a,b -n 3 p":                    "3 ranks, but the hosts given have 2 slots on 2 hosts",
		"p : q":                                "how many ranks of q",
		"--host a:*,b -n 3 p":                  "how many ranks does host a take",
		"--host a,b --transport shm -n 2 p":    "--transport shm is for one host",
		"--zzzzzz p":                           "unknown option --zzzzzz; weftrun --help lists them",
		"-x NOT_SET_ANYWHERE -n 1 p":           "NOT_SET_ANYWHERE is not set here",
		"-x =v -n 1 p":                         "names no variable",
		"-x WEFT_RANK=3 -n 1 p":                "WEFT_RANK is set by weftrun",
		"--bind-to board -n 1 p":               `"board" is not one of none, core, socket, numa`,
		"--transport udp -n 1 p":               "auto, shm, tcp, verbs",
		"--arena 0 -n 1 p":                     "not a size",
		"--arena -1M -n 1 p":                   "not a size",
		"--arena 9000000000G -n 1 p":           "not a size",
		"--timeout never -n 1 p":               "not a duration",
		"--timeout 0 -n 1 p":                   "no time",
		"--grace -1 -n 1 p":                    "not a duration",
		"--tag-output=yes -n 1 p":              "takes no value",
		"--tag-output --output d -n 1 p":       "exclude each other",
		"--arena 1G --transport tcp -n 1 p":    "exclude each other",
		"--device rxe0 --transport shm -n 1 p": "exclude each other",
		"--device rxe0:x -n 1 p":               "not the number of a port",
		"--device a,, -n 1 p":                  "names no device",
	} {
		var out, errs bytes.Buffer
		if code := run(strings.Fields(line), &out, &errs); code != 2 || !strings.Contains(errs.String(), want) {
			t.Errorf("%q: exit code %d, %q lacks %q", line, code, errs.String(), want)
		}
	}
}

func TestTooManyRanks(t *testing.T) {
	r := run1(t, nil, "-n", "100000000", "true")
	r.want(t, 2, "100000000 ranks are more than this host can run: ", " allows ", "ask for fewer")
}

func TestHelpIsLaidOut(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run([]string{"--help"}, &out, &errs); code != 0 || errs.Len() > 0 {
		t.Errorf("exit code %d, %s", code, errs.String())
	}
	for i := range table {
		if !strings.Contains(out.String(), "  "+table[i].title()) {
			t.Errorf("--help lacks %s", table[i].title())
		}
	}
	for _, l := range lines(out.String())[1:] {
		if len(l) > 80 || strings.TrimRight(l, " ") != l {
			t.Errorf("badly laid out: %q", l)
		}
	}
	out.Reset()
	if code := run([]string{"--version"}, &out, &errs); code != 0 || !strings.HasPrefix(out.String(), "weftrun ") {
		t.Errorf("exit code %d, %q", code, out.String())
	}
}
