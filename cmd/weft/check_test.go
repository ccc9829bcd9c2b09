package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/weft-hpc/weft/internal/check"
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

func TestCheckHostsNeedsWeftrun(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	cmd := root()
	cmd.SetArgs([]string{"check", "--host", "n1"})
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "weftrun is neither beside ") {
		t.Errorf("got %v", err)
	}
}
