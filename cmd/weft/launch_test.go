package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/weft-hpc/weft/internal/job"
)

func TestBenchLaunch(t *testing.T) {
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		cmd := root()
		cmd.SetArgs(append([]string{"bench", "launch"}, args...))
		cmd.SetOut(&out)
		err := cmd.Execute()
		return out.String(), err
	}
	text, err := run("--hosts", "1,40", "--ranks", "3")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"hosts   ", "120", "agents ready", "all joined", "ranks ended", "busiest agent", "cards fetched by ranks"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
	text, err = run("--hosts", "33", "--ranks", "2", "--card", "100", "--json")
	var got []job.Simulated
	if err == nil {
		err = json.Unmarshal([]byte(text), &got)
	}
	if err != nil || len(got) != 1 {
		t.Fatal(text, err)
	}
	s := got[0]
	// One word up each link of the tree, and one down; each card that is fetched from another host crosses weftrun.
	if s.Steps != 2 || s.WireUp.All.Messages != 2*33 || s.WireUp.Launcher.Messages != 32 || s.Cards < 66 || s.Fetch.Launcher.Bytes < 66*100 || s.Fetch.All.Bytes <= s.Fetch.Launcher.Bytes {
		t.Errorf("%+v", s)
	}
	for _, bad := range [][]string{{"--hosts", "0"}, {"--ranks", "0"}, {"--card", "-1"}} {
		if text, err := run(bad...); err == nil {
			t.Errorf("%v: %s", bad, text)
		}
	}
}
