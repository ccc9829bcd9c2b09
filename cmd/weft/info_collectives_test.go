package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-hpc/weft/collective"
)

func TestInfoCollectives(t *testing.T) {
	out, err := runWeft(t, "info", "--collectives", "-n", "16", "--nodes", "4", "--bytes", "8,1048576")
	for _, want := range []string{"ranks 16, nodes 4", "allreduce; WithAlgorithm takes doubling", "8        leaders", "predicted to take"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%v, no %q in\n%s", err, want, out)
		}
	}
	out, err = runWeft(t, "info", "--collectives", "-n", "4")
	if err != nil || !strings.Contains(out, "shared-memory runs these") {
		t.Errorf("%v\n%s", err, out)
	}
	// By the model of a file, on which bytes cost nothing, a vector of any length goes in the fewest steps.
	model := filepath.Join(t.TempDir(), "model.json")
	k := collective.Link{Latency: 1e-3}
	b, err := json.Marshal(collective.Model{Inside: k, Between: k})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(model, b, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err = runWeft(t, "info", "--collectives", "--json", "-n", "8", "--model", model, "--bytes", "16777216")
	var i collectivesInfo
	if err == nil {
		err = json.Unmarshal([]byte(out), &i)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range i.Choices {
		if c.Collective == "allreduce" && (c.Algorithm != "doubling" || c.Seconds != 3e-3) {
			t.Errorf("%+v", c)
		}
	}
	for _, args := range [][]string{{"-n", "-1"}, {"-n", "2", "--nodes", "3"}, {"-n", "2", "--between", "pigeons"}, {"-n", "2", "--bytes", "-1"}, {"-n", "2", "--model", model + "x"}} {
		if out, err := runWeft(t, append([]string{"info", "--collectives"}, args...)...); err == nil {
			t.Errorf("%v: no error\n%s", args, out)
		}
	}
}

func TestTuneNeedsRanks(t *testing.T) {
	if _, err := runWeft(t, "tune"); err == nil || !strings.Contains(err.Error(), "weftrun") {
		t.Errorf("got %v", err)
	}
}
