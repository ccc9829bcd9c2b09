package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/bench/contest"
	"github.com/weft-hpc/weft/bench/report"
)

// paths are the programs that bench/compare.sh builds.
type paths struct {
	weftrun, osu, empty string
	peers               string
	net                 *network
}

func (p paths) peer(name string) string { return p.peers + "/" + name }

// A bencher runs tests and collects rows.
type bencher struct {
	paths
	ctx     context.Context
	rounds  int
	block   time.Duration // wanted length of a block
	timeout time.Duration // of a block
	rng     *rand.Rand
	gauge   *contest.Session // a floor of its own, for placement samples
	rows    []report.Row
	raw     []rawTest
}

// rawTest is what the table was computed from.
type rawTest struct {
	Test      string                `json:"test"`
	Unit      string                `json:"unit"`
	Moved     int                   `json:"rounds_dropped_for_placement"`
	Disturbed int                   `json:"rounds_dropped_for_noise"`
	Unsteady  bool                  `json:"unsteady"`
	Samples   []float64             `json:"placement_ns"`
	Rounds    map[string][]*float64 `json:"rounds"`
}

// noise is the number of cores that other programs may use during a round.
const noise = 0.25

// An entrant is one contestant in one test: its role, and our kind of memory.
type entrant struct {
	role, memory string
}

func (e entrant) String() string { return strings.TrimSuffix(e.role+"-"+e.memory, "-") }

func (t *test) entrants() []entrant {
	var es []entrant
	for _, m := range t.memories {
		es = append(es, entrant{ours, m})
	}
	if !t.alone {
		for _, role := range append([]string{openMPI, mpich}, t.layout.tuned()...) {
			es = append(es, entrant{role: role})
		}
	}
	if t.twin != "" {
		es = append(es, entrant{blocking, t.memories[0]})
	}
	if t.floor != "" || t.start {
		es = append(es, entrant{role: floor})
	}
	return es
}

// tuned are the roles of the peers with flags, those that differ here.
func (l layout) tuned() []string {
	switch {
	case l == pairSHM:
		return []string{openMPIBest, openMPISM, mpichBest}
	case l == pairNet:
		return nil
	}
	return []string{openMPIBest, mpichBest}
}

// run measures t with the contestants of st.
func (b *bencher) run(t *test, st *stable) error {
	block := t.block
	if block == 0 || b.block < block/4 {
		block = b.block
	}
	es := t.entrants()
	entries := make([]contest.Entry, len(es))
	for i, e := range es {
		entry, err := b.entry(t, st, e, block)
		if err != nil {
			entry = contest.Absent(label(e.role, t.layout), err)
		}
		entries[i] = entry
	}
	plan := contest.Plan{Rounds: b.rounds, Rand: b.rng, Drift: 1.5, Sample: b.place, Noise: noise,
		Foreign: func() (time.Duration, error) { return contest.Foreign(append(st.running(), b.gauge)...) }}
	if t.rounds > 0 {
		plan.Rounds = min(b.rounds, t.rounds)
	}
	if t.unsampled {
		plan.Sample = nil
	}
	res, err := contest.Rounds(plan, entries)
	if err != nil {
		return fmt.Errorf("%s: placement sample: %w", t.id(), err)
	}
	series := map[entrant]report.Series{}
	raw := rawTest{Test: t.id(), Unit: t.unit, Moved: res.Moved, Disturbed: res.Disturbed, Unsteady: res.Unsteady, Samples: res.Samples,
		Rounds: map[string][]*float64{}}
	for i, e := range es {
		s := report.Series{Values: res.Values[i], Err: res.Errs[i], Slow: errors.Is(res.Errs[i], contest.ErrSlow)}
		for r, v := range s.Values {
			s.Values[r] = t.convert(v)
		}
		series[e] = s
		raw.Rounds[e.String()] = nullable(s.Values)
	}
	b.raw = append(b.raw, raw)
	b.fill(t, series, res)
	return nil
}

// nullable makes NaN, which JSON lacks, into null.
func nullable(xs []float64) []*float64 {
	ps := make([]*float64, len(xs))
	for i, x := range xs {
		if x == x {
			ps[i] = &xs[i]
		}
	}
	return ps
}

func (b *bencher) fill(t *test, series map[entrant]report.Series, res contest.Result) {
	for _, memory := range t.memories {
		targets := t.targets[memory]
		if len(targets) == 0 {
			targets = []*report.Target{nil}
		}
		for _, target := range targets {
			row := report.Row{Name: t.name, Transport: t.layout.transport, Ranks: t.layout.ranks, Bytes: t.bytes,
				Memory: memory, Unit: t.unit, Higher: t.higher}
			row.Fill(report.Measured{
				Ours:        series[entrant{ours, memory}],
				OpenMPI:     series[entrant{role: openMPI}],
				MPICH:       series[entrant{role: mpich}],
				OpenMPIBest: played(series, openMPIBest, openMPISM),
				MPICHBest:   played(series, mpichBest),
				Blocking:    series[entrant{blocking, memory}],
				Floor:       series[entrant{role: floor}],
			}, target)
			if res.Unsteady {
				row.Notes = append(row.Notes, fmt.Sprintf("%s: other programs disturbed %d rounds and the processors moved in %d, "+
					"so those are counted as well, and no ratio is judged", t.id(), res.Disturbed, res.Moved))
				if target != nil && target.Relative() {
					row.Met = nil
				}
			}
			b.rows = append(b.rows, row)
		}
	}
}

// played are the series of those of the roles that took part.
func played(series map[entrant]report.Series, roles ...string) []report.Series {
	var all []report.Series
	for _, role := range roles {
		if s, ok := series[entrant{role: role}]; ok {
			all = append(all, s)
		}
	}
	return all
}

// place samples where the two processors are: the time a flag takes from one to
// the other. The least of three short samples, for a stranger that gets a time
// slice has not moved the processors.
func (b *bencher) place() (float64, error) {
	var least float64
	for i := range 3 {
		v, err := b.gauge.Do(contest.Block{Test: "latency", Bytes: 8, Iters: 3000, Warmup: 100}, b.timeout)
		if err != nil {
			return 0, err
		}
		if least = min(least, v[0]); i == 0 {
			least = v[0]
		}
	}
	return least, nil
}

func (b *bencher) entry(t *test, st *stable, e entrant, block time.Duration) (contest.Entry, error) {
	if t.start {
		return b.starter(t, e)
	}
	role, command := e.role, t.command
	switch role {
	case blocking:
		role, command = ours, t.twin
	case floor:
		command = t.floor
	}
	s, err := st.get(role)
	if err != nil {
		return contest.Entry{}, err
	}
	if err := shared(t.layout, s); err != nil {
		return contest.Entry{}, err
	}
	cmd := contest.Block{Test: command, Bytes: t.bytes, Window: t.window, Mode: t.mode, Memory: e.memory}
	if t.checked && role != floor {
		check := cmd
		check.Mode, check.Iters = "check", 2
		if _, err := s.Do(check, b.timeout); err != nil {
			return contest.Entry{}, err
		}
	}
	if fixed := fixedIters[t.command]; fixed > 0 {
		cmd.Iters, cmd.Warmup = fixed, min(fixed-1, 1000)
		return contest.Fixed(s, cmd, b.timeout), nil
	}
	return contest.Turn(s, cmd, block, t.most, b.timeout)
}

// fixedIters are the tests whose length is not a matter of time.
var fixedIters = map[string]int{"cpu": 1, "allocs_sendrecv": 100_000, "allocs_allreduce": 100_000}

// starter times a whole run of an empty program, from fork to exit.
func (b *bencher) starter(t *test, e entrant) (contest.Entry, error) {
	var spec contest.Spec
	procs := 1
	switch e.role {
	case ours:
		spec = b.spec(e.role, t.layout, b.empty)
	case openMPI, openMPIBest, openMPISM:
		spec = b.spec(e.role, t.layout, b.peer("empty-openmpi"))
	case mpich, mpichBest:
		spec = b.spec(e.role, t.layout, b.peer("empty-mpich"))
	case floor: // as many bare processes
		spec, procs = contest.Spec{Argv: []string{b.peer("nothing")}}, t.layout.ranks
	default:
		return contest.Entry{}, fmt.Errorf("%s has no empty program", e.role)
	}
	run := func() (float64, error) {
		t0 := time.Now()
		if err := b.launch(spec, procs); err != nil {
			return 0, fmt.Errorf("%s: %w", label(e.role, t.layout), err)
		}
		return float64(time.Since(t0)), nil
	}
	_, err := run() // reads the programs from disk once
	return contest.Entry{Name: e.role, Run: run}, err
}

func (b *bencher) launch(spec contest.Spec, procs int) error {
	ctx, cancel := context.WithTimeout(b.ctx, b.timeout)
	defer cancel()
	cmds := make([]*exec.Cmd, procs)
	outs := make([]strings.Builder, procs)
	var first error
	for i := range cmds {
		c := exec.CommandContext(ctx, spec.Argv[0], spec.Argv[1:]...)
		c.Env = append(os.Environ(), spec.Env...)
		c.Stdout, c.Stderr = &outs[i], &outs[i]
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGTERM) }
		c.WaitDelay = 5 * time.Second
		if err := c.Start(); err != nil {
			first = err
			break
		}
		cmds[i] = c
	}
	for i, c := range cmds {
		if c == nil {
			continue
		}
		if err := c.Wait(); err != nil && first == nil {
			first = fmt.Errorf("%w: %s", err, strings.TrimSpace(outs[i].String()))
		}
	}
	return first
}

// targets are the rows that have one.
func (b *bencher) targets() []report.Row {
	return slices.DeleteFunc(slices.Clone(b.rows), func(r report.Row) bool { return r.Target == "" })
}
