package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/weft-hpc/weft/internal/plane"
)

// TestBenchControl runs it as it is, small: the processes that play members are the program itself.
func TestBenchControl(t *testing.T) {
	exe := filepath.Join(t.TempDir(), "weft")
	if out, err := exec.Command("go", "build", "-o", exe, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), exe, "bench", "control", "--members", "40", "--flooders", "2", "--time", "100ms", "--json", "--plane", plane.TCP)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got controlBench
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if len(got.Results) != 1 {
		t.Fatalf("%d results: %s", len(got.Results), out)
	}
	r := got.Results[0]
	if r.Plane != plane.TCP || r.SetUp <= 0 || r.RootFiles < 1 || r.RootFiles > 1.5 || r.MemberFiles < 1 || r.Idle.Count == 0 || r.Idle.P50 > r.Idle.P99 ||
		r.Flood.Count == 0 || r.Flood.P99 > r.Flood.Max || r.Flooder.Count == 0 || r.FloodRate <= 0 || r.ToAll <= 0 || r.Rate <= 0 {
		t.Errorf("%+v", r)
	}
}

func TestBenchControlRefuses(t *testing.T) {
	for _, args := range [][]string{{"--plane", "pigeons"}, {"--members", "1"}, {"--flooders", "1000"}, {"--flooders", "0"}} {
		if out, err := runWeft(t, append([]string{"bench", "control"}, args...)...); err == nil {
			t.Errorf("%v was taken: %s", args, out)
		}
	}
}
