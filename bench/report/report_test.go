package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestValueJSON(t *testing.T) {
	for _, tc := range []struct {
		v    Value
		json string
		text string
	}{
		{Num(1.5), "1.5", "1.5"},
		{Num(0), "0", "0"},
		{Num(12345678), "12345678", "12345678"},
		{Num(0.01234), "0.01234", "0.0123"},
		{Num(123.456), "123.456", "123.5"},
		{Value{}, "null", "-"},
		{Failed(errors.New(`no "mpirun"`)), `"no \"mpirun\""`, "failed"},
		{TooSlow(errors.New("mpich: 2s")), `"too slow: mpich: 2s"`, "too slow"},
		{Num(math.NaN()), `"not a number: NaN"`, "failed"},
		{Num(math.Inf(1)), `"not a number: +Inf"`, "failed"},
	} {
		b, err := json.Marshal(tc.v)
		if err != nil || string(b) != tc.json {
			t.Errorf("%#v marshals to %s, %v; want %s", tc.v, b, err, tc.json)
		}
		var back Value
		if err := json.Unmarshal(b, &back); err != nil || back != tc.v {
			t.Errorf("%s unmarshals to %#v, %v; want %#v", b, back, err, tc.v)
		}
		if tc.v.String() != tc.text {
			t.Errorf("%#v is written %q, want %q", tc.v, tc.v, tc.text)
		}
	}
	var v Value
	if err := json.Unmarshal([]byte("{}"), &v); err == nil {
		t.Error("an object was taken for a value")
	}
}

// The names are a contract with whoever reads the file.
func TestRowFields(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.json")
	if err := WriteJSON(path, []Row{{Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var rows []map[string]any
	if err := json.Unmarshal(b, &rows); err != nil {
		t.Fatal(err)
	}
	var got []string
	for k := range rows[0] {
		got = append(got, k)
	}
	slices.Sort(got)
	want := []string{"name", "transport", "ranks", "bytes", "memory", "unit", "ours", "openmpi", "mpich", "best_flags",
		"floor", "ratio", "target", "met"}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("fields %v, want %v", got, want)
	}
	if err := WriteJSON(path, nil); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(path); string(b) != "[]\n" {
		t.Errorf("no rows are written as %q, want an empty array", b)
	}
}

func TestTarget(t *testing.T) {
	for _, tc := range []struct {
		t    *Target
		text string
		v    float64
		met  bool
	}{
		{AtMost(0.5, OpenMPI), "<= 0.5 x Open MPI", 0.5, true},
		{AtMost(0.5, OpenMPI), "<= 0.5 x Open MPI", 0.51, false},
		{AtLeast(1.8, Both), ">= 1.8 x the better of both", 1.8, true},
		{AtLeast(1.8, Both), ">= 1.8 x the better of both", 1.79, false},
		{AtMost(1.2, Blocking), "<= 1.2 x our blocking form", 1.2, true},
		{AtMost(0, Nobody), "<= 0", 0, true},
		{AtMost(0, Nobody), "<= 0", 0.001, false},
	} {
		if tc.t.String() != tc.text || tc.t.met(tc.v) != tc.met {
			t.Errorf("%v: met(%v) = %v; want %s, %v", tc.t, tc.v, tc.t.met(tc.v), tc.text, tc.met)
		}
	}
}

func of(xs ...float64) Series { return Series{Values: xs} }

func TestFill(t *testing.T) {
	broken := Series{Values: []float64{math.NaN(), math.NaN(), math.NaN()}, Err: errors.New("mpich: not installed")}
	slow := broken
	slow.Slow = true
	const no, yes, unknown = 0, 1, 2
	for name, tc := range map[string]struct {
		higher                        bool
		m                             Measured
		t                             *Target
		ratio, best, bestFlags, floor float64 // NaN: none
		met                           int
	}{
		"against the better of both": {
			m: Measured{Ours: of(1, 1, 1), OpenMPI: of(4, 4, 4), MPICH: of(2, 2, 2)}, t: AtMost(0.5, Both),
			ratio: 0.5, best: math.NaN(), bestFlags: math.NaN(), floor: math.NaN(), met: yes},
		"more is better": {
			higher: true,
			m:      Measured{Ours: of(6, 6, 6), OpenMPI: of(4, 4, 4), MPICH: of(2, 2, 2)}, t: AtLeast(1.8, Both),
			ratio: 1.5, best: math.NaN(), bestFlags: math.NaN(), floor: math.NaN(), met: no},
		"one peer of two": {
			m: Measured{Ours: of(1, 1, 1), OpenMPI: of(4, 4, 4), MPICH: of(2, 2, 2), OpenMPIBest: []Series{of(3, 3, 3), of(2, 2, 2)},
				MPICHBest: []Series{of(1, 1, 1)}, Floor: of(0.5, 0.5, 0.5)}, t: AtMost(0.5, OpenMPI),
			ratio: 0.25, best: 0.5, bestFlags: 2, floor: 0.5, met: yes},
		"ratios by round": { // the quotient of the medians would be 1
			m: Measured{Ours: of(1, 2, 30), OpenMPI: of(2, 40, 1)}, t: AtMost(0.9, OpenMPI),
			ratio: 0.5, best: math.NaN(), bestFlags: math.NaN(), floor: math.NaN(), met: yes},
		"a limit on ourselves": {
			m: Measured{Ours: of(0.01, 0.01, 0.01), OpenMPI: of(1, 1, 1), MPICH: broken}, t: AtMost(0.05, Nobody),
			ratio: 0.01, best: math.NaN(), bestFlags: math.NaN(), floor: math.NaN(), met: yes},
		"the missing peer might be better": {
			m: Measured{Ours: of(1, 1, 1), OpenMPI: of(4, 4, 4), MPICH: broken}, t: AtMost(0.5, Both),
			ratio: 0.25, best: math.NaN(), bestFlags: math.NaN(), floor: math.NaN(), met: unknown},
		"the missing peer does not matter": {
			m: Measured{Ours: of(1, 1, 1), OpenMPI: of(4, 4, 4), MPICH: broken}, t: AtMost(0.5, OpenMPI),
			ratio: 0.25, best: math.NaN(), bestFlags: math.NaN(), floor: math.NaN(), met: yes},
		"the slow peer is not the better one": {
			m: Measured{Ours: of(1, 1, 1), OpenMPI: of(4, 4, 4), MPICH: slow}, t: AtMost(0.5, Both),
			ratio: 0.25, best: math.NaN(), bestFlags: math.NaN(), floor: math.NaN(), met: yes},
		"all are too slow": {
			m: Measured{Ours: of(1, 1, 1), OpenMPI: slow, MPICH: slow}, t: AtMost(0.5, Both),
			ratio: math.NaN(), best: math.NaN(), bestFlags: math.NaN(), floor: math.NaN(), met: unknown},
		"against our blocking form": {
			m: Measured{Ours: of(3, 3, 3), OpenMPI: of(1, 1, 1), MPICH: broken, Blocking: of(2, 2, 2), OpenMPIBest: []Series{of(6, 6, 6)}},
			t: AtMost(1.2, Blocking), ratio: 1.5, best: 0.5, bestFlags: 6, floor: math.NaN(), met: no},
		"we failed": {
			m: Measured{Ours: broken, OpenMPI: of(4, 4, 4), MPICH: of(1, 1, 1)}, t: AtMost(0.5, Both),
			ratio: math.NaN(), best: math.NaN(), bestFlags: math.NaN(), floor: math.NaN(), met: unknown},
		"no target": {
			m:     Measured{Ours: of(1, 1, 1), OpenMPI: of(4, 4, 4), MPICH: of(2, 2, 2)},
			ratio: 0.5, best: math.NaN(), bestFlags: math.NaN(), floor: math.NaN(), met: unknown},
	} {
		t.Run(name, func(t *testing.T) {
			r := Row{Higher: tc.higher}
			r.Fill(tc.m, tc.t)
			for what, c := range map[string]struct {
				v    Value
				want float64
			}{"ratio": {r.Ratio, tc.ratio}, "ratio to best flags": {r.BestRatio, tc.best}, "best flags": {r.BestFlags, tc.bestFlags}, "floor": {r.Floor, tc.floor}} {
				got, ok := c.v.Get()
				if ok == math.IsNaN(c.want) || ok && math.Abs(got-c.want) > 1e-12 {
					t.Errorf("%s is %v (%v), want %v", what, got, ok, c.want)
				}
			}
			met := unknown
			if r.Met != nil {
				met = map[bool]int{false: no, true: yes}[*r.Met]
			}
			if met != tc.met {
				t.Errorf("met is %d, want %d", met, tc.met)
			}
		})
	}
}

func TestFailuresAreNamed(t *testing.T) {
	var a, b Row
	gone := errors.New("weft: gone")
	a.Fill(Measured{Ours: Series{Err: gone}, OpenMPI: of(1), MPICH: of(1), OpenMPIBest: []Series{{Err: errors.New("best: gone")}},
		MPICHBest: []Series{{Err: errors.New("other: gone")}}}, nil)
	b.Fill(Measured{Ours: Series{Err: gone}}, nil)
	got := Failures([]Row{a, b})
	if len(got) != 2 || got[0] != "weft: gone" || !strings.Contains(got[1], "best: gone") || !strings.Contains(got[1], "other: gone") {
		t.Errorf("failures %q, want ours once and both peers with best flags", got)
	}
	var own Row
	own.Fill(Measured{Ours: of(1), OpenMPI: of(1), MPICH: of(1), Blocking: Series{Err: errors.New("wrong answer")}}, AtMost(1.2, Blocking))
	if got := Failures([]Row{own}); len(got) != 1 || got[0] != "wrong answer" || own.Met != nil {
		t.Errorf("failures %q, met %v: our blocking form failed", got, own.Met)
	}
	var c Row
	c.Fill(Measured{Ours: of(1), OpenMPI: of(1), MPICH: Series{Err: gone, Slow: true}}, nil)
	if got := Failures([]Row{c}); len(got) != 0 {
		t.Errorf("failures %q: who is slow has not failed", got)
	}
}

func TestMarkdown(t *testing.T) {
	good := Row{Name: "osu_latency", Transport: "shm", Ranks: 2, Bytes: 8, Memory: "slice", Unit: "us"}
	good.Fill(Measured{Ours: of(1, 1, 1), OpenMPI: of(2, 2, 2), MPICH: of(3, 3, 3), Floor: of(0.5, 0.5, 0.5)}, AtMost(0.4, Both))
	bad := Row{Name: "osu_bw", Transport: "shm", Ranks: 2, Bytes: 8, Memory: "slice", Unit: "MB/s", Higher: true}
	bad.Fill(Measured{Ours: of(1, 1, 1), OpenMPI: Series{Err: errors.New("no\nmpirun")}, MPICH: of(2, 2, 2)}, AtLeast(1, Both))
	bad.Notes = append(bad.Notes, "moved")
	var b bytes.Buffer
	if err := WriteMarkdown(&b, "Title", "intro\n", []Section{{Title: "Targets", Rows: []Row{good, bad}}, {Title: "None"}}); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, want := range []string{
		"# Title\n\nintro\n\n## Targets\n\n| test |",
		"| osu_latency | shm | 2 | 8 | slice | us | 1 | 2 | 3 | - | 0.5 | 0.5 (0.50..0.50) | - | 2 | <= 0.4 x the better of both | **no** |\n",
		"| osu_bw [1] | shm |", "| failed [2] |", "| could not tell |",
		"## Notes\n\n1. moved\n2. no mpirun\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	if strings.Contains(text, "None") {
		t.Errorf("an empty section was written:\n%s", text)
	}
}

func TestPlot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.png")
	if err := Plot(path, "t", "osu_latency", "shm", nil); !errors.Is(err, ErrNothing) {
		t.Errorf("without rows: %v, want ErrNothing", err)
	}
	row := func(n int64, v float64) Row {
		r := Row{Name: "osu_latency", Transport: "shm", Bytes: n, Memory: "arena", Unit: "us"}
		r.Fill(Measured{Ours: of(v), OpenMPI: of(2 * v), MPICH: Series{Err: errors.New("no")}, Floor: of(0)}, nil)
		return r
	}
	for _, rows := range [][]Row{
		{row(8, 1)}, // one point: an axis of no length
		{row(1<<20, 100), row(0, 1), row(8, 1), row(1024, 3), row(8, 1)},
	} {
		if err := Plot(path, "t", "osu_latency", "shm", rows); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := png.Decode(f); err != nil {
			t.Errorf("%d rows: %v", len(rows), err)
		}
		f.Close()
	}
}

func TestMachine(t *testing.T) {
	m := ThisMachine()
	m.Finish()
	path := filepath.Join(t.TempDir(), "machine.json")
	if err := m.Write(path); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var back Machine
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if back.CPUs < 1 || back.Processor == "" || back.LoadBefore == "" || back.LoadAfter == "" || !back.Time.Equal(m.Time) {
		t.Errorf("incomplete: %s", b)
	}
	if v := Version("no-such-program-at-all"); !strings.HasPrefix(v, "missing: ") {
		t.Errorf("a missing program has version %q", v)
	}
}
