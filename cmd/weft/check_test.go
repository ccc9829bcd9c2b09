package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/weft-hpc/weft/internal/check"
	"github.com/weft-hpc/weft/internal/control"
)

// What weft check says of this host, whatever that is, is whole.
func TestCheckHere(t *testing.T) {
	t.Setenv("SLURM_JOB_ID", "")
	t.Setenv("PMI_FD", "")
	var out bytes.Buffer
	cmd := root()
	cmd.SetArgs([]string{"check", "--json"})
	cmd.SetOut(&out)
	failed := cmd.Execute()
	var got struct {
		Host     string
		Problem  bool
		Findings []struct{ Host, Check, State, Text, Fix string }
		Facts    struct{ Build string }
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v, of %s", err, out.Bytes())
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if got.Host != host || len(got.Findings) != 12 || !strings.HasPrefix(got.Facts.Build, "weft ") {
		t.Errorf("got %+v", got)
	}
	problem := false
	for _, f := range got.Findings {
		problem = problem || f.State == "problem"
		if f.Host != host || f.Check == "" || f.Text == "" || (f.State == "problem") != (f.Fix != "") {
			t.Errorf("%+v", f)
		}
	}
	if problem != got.Problem || (failed == errProblems) != problem || failed != nil && failed != errProblems {
		t.Errorf("problem: %v, reported %v, error %v", problem, got.Problem, failed)
	}
}

func TestReport(t *testing.T) {
	facts := &check.Facts{Host: "n1"}
	good := []check.Finding{{Host: "n1", Check: "a", Text: "well"}, {Host: "n1", Check: "b", State: check.Absent, Text: "not here"}}
	bad := append(good, check.Finding{Host: "n1", Check: "c", State: check.Problem, Text: "ill", Fix: "mend"},
		check.Finding{Host: "n1", Check: "d", State: check.Unknown, Text: "no"}, check.Finding{Host: "n1", Check: "e", State: check.Unsupported, Text: "never"})
	for _, c := range []struct {
		o    checkOptions
		all  []check.Finding
		want string
		err  error
	}{
		{checkOptions{}, good, "n1: b: absent: not here\nn1: 2 checks: 1 fine, 1 absent\n", nil},
		{checkOptions{all: true}, good[:1], "n1: a: fine: well\nn1: 1 checks: 1 fine\n", nil},
		{checkOptions{}, bad[2:], "n1: c: problem: ill; fix: mend\nn1: d: could not tell: no\nn1: e: unsupported: never\n" +
			"n1: 3 checks: 0 fine, 1 problem, 1 unsupported, 1 could not tell\n", errProblems},
	} {
		var out bytes.Buffer
		if err := report(&out, &c.o, facts, c.all); err != c.err || out.String() != c.want {
			t.Errorf("got %v and\n%swant\n%s", err, out.String(), c.want)
		}
	}
}

// TestCheckWithoutARank: in a job that goes on, a rank that died keeps nobody waiting, and is named.
func TestCheckWithoutARank(t *testing.T) {
	var hub *control.Hub
	var card []byte
	hub = control.NewHub(control.Job{Name: "j", Host: "n1", Size: 2, LocalRanks: []int{0}, Layout: control.Layout{{0, 1, 1}}, Transport: "tcp", Secret: control.NewSecret()}, func(r control.Report) {
		var err error
		switch {
		case r.Kind == control.Joined:
			card = r.Card
			err = hub.All(control.Lack{})
		case r.Kind == control.Asked && r.Of == 0:
			err = hub.Card(0, 0, card)
		case r.Kind == control.Asked:
			err = hub.Died(1, 122, "is gone: host n2 was lost", true)
		case r.Kind == control.Goodbye:
			err = hub.Release()
		}
		if err != nil {
			t.Error(err)
		}
	})
	defer hub.Close()
	line, err := hub.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	if line, err = control.Own(line); err != nil {
		t.Fatal(err)
	}
	client, err := control.Dial(line, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := (&checkJob{client: client}).check(t.Context(), &checkOptions{}, &out); err != nil && err != errProblems {
		t.Error(err)
	}
	if want := "all hosts: rank 1: could not tell: no word of its host: rank 1 is gone: host n2 was lost\n"; !strings.Contains(out.String(), want) {
		t.Errorf("got %s, want %s", out.String(), want)
	}
}

func TestCheckHostsNeedsWeftrun(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	cmd := root()
	cmd.SetArgs([]string{"check", "--host", "n1"})
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "weftrun is neither beside ") {
		t.Errorf("got %v", err)
	}
}
