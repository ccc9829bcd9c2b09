// Command compare measures Weft beside Debian's Open MPI and MPICH on this
// machine, and writes a table of ratios and targets to bench/out:
//
//	compare.json         the rows
//	compare.md           the same to read, with the machine and the reservations
//	performance.md       the table alone, as --page puts it into docs/performance.md
//	compare-rounds.json  every value of every round that the rows come from
//	compare-*.png        latency and bandwidth over message size
//	machine.json         where and how it was measured
//
// bench/compare.sh builds what this needs and runs it. A contestant that cannot
// run is in the table with the reason, and makes the exit status 1. Tests that --without
// leaves out are in no table, but in a note, and do not.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/bench/contest"
	"github.com/weft-hpc/weft/bench/report"
)

type options struct {
	paths
	quick, strict bool
	group         string
	without       string // a transport
	only          *regexp.Regexp
	page          string
	rounds        int
	block         time.Duration
	timeout       time.Duration
	out           string
	seed          uint64
}

func main() {
	opts, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := compare(ctx, opts); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("compare", flag.ContinueOnError)
	only := ""
	f.BoolVar(&o.quick, "quick", false, "few rounds of the rows with a target: does it run at all?")
	f.BoolVar(&o.strict, "strict", false, "fail when a target is missed")
	f.StringVar(&o.group, "group", "", "measure the tests of `one` group: "+strings.Join(groups, ", "))
	f.StringVar(&o.without, "without", "", "leave out the tests over one `transport`: "+strings.Join(transports, ", ")+" (netns needs root)")
	f.StringVar(&o.page, "page", "", "put the table into this Markdown `file`, between its lines "+pageBegin+" and "+pageEnd)
	f.StringVar(&only, "only", "", "measure tests whose name/transport/ranks/bytes matches this `regexp`")
	f.IntVar(&o.rounds, "rounds", 0, "rounds of each test (default 15; 3 with --quick)")
	f.DurationVar(&o.block, "block", 0, "wanted length of one contestant's block (default 100ms; 10ms with --quick)")
	f.DurationVar(&o.timeout, "timeout", 30*time.Second, "give up on a contestant that does not answer for this long")
	f.StringVar(&o.out, "out", "bench/out", "`directory` of the results")
	f.Uint64Var(&o.seed, "seed", 0, "seed for the order of turns (default: from the clock)")
	f.StringVar(&o.weftrun, "weftrun", "bin/weftrun", "Weft's launcher")
	f.StringVar(&o.osu, "osu", "bin/bench/osu", "the program of bench/osu")
	f.StringVar(&o.empty, "empty", "bin/bench/empty", "the program of bench/osu/empty")
	f.StringVar(&o.peers, "peers", "bench/peers/bin", "`directory` of the built bench/peers")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	var err error
	if o.only, err = regexp.Compile(only); err != nil {
		return o, fmt.Errorf("--only: %w", err)
	}
	if o.group != "" && !slices.Contains(groups, o.group) {
		return o, fmt.Errorf("--group %s: there are %s", o.group, strings.Join(groups, ", "))
	}
	if o.without != "" && !slices.Contains(transports, o.without) {
		return o, fmt.Errorf("--without %s: there are %s", o.without, strings.Join(transports, ", "))
	}
	if o.rounds < 0 || o.block < 0 {
		return o, errors.New("--rounds and --block must not be negative")
	}
	if o.rounds == 0 {
		o.rounds = pick(o.quick, 3, 15)
	}
	if o.block == 0 {
		o.block = pick(o.quick, 10*time.Millisecond, 100*time.Millisecond)
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	return o, nil
}

// groups are the kinds of tests.
var groups = []string{"p2p", "coll", "start"}

// transports are those of the tests.
var transports = []string{pairSHM.transport, pairTCP.transport, pairNet.transport}

func pick[T any](cond bool, yes, no T) T {
	if cond {
		return yes
	}
	return no
}

func compare(ctx context.Context, o options) (err error) {
	tests, leftOut := chosen(&o)
	if len(tests) == 0 {
		return fmt.Errorf("no test matches --group %q --only %q --without %q", o.group, o.only, o.without)
	}
	if os.Geteuid() != 0 && slices.ContainsFunc(tests, func(t test) bool { return t.layout == pairNet }) {
		fmt.Fprintln(os.Stderr, "compare: the rows of netns need root, so they will have no values, and the exit status will be 1; "+withoutNetns)
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	m := report.ThisMachine()
	m.Peers["openmpi"] = report.Version("mpirun.openmpi", "--version")
	m.Peers["mpich"] = report.Version("mpichversion")
	m.Notes = append(m.Notes, fmt.Sprintf("%d rounds, blocks of %v, seed %d", o.rounds, o.block, o.seed))
	if leftOut > 0 {
		m.Notes = append(m.Notes, fmt.Sprintf("%d tests over %s were left out, as asked (--without)", leftOut, o.without))
	}

	o.net = &network{}
	defer func() { err = errors.Join(err, o.net.down()) }()
	foreign, err := contest.Foreign()
	if err != nil {
		return err
	}
	begin := time.Now()
	b := &bencher{paths: o.paths, ctx: ctx, rounds: o.rounds, block: o.block, timeout: o.timeout,
		rng: rand.New(rand.NewPCG(o.seed, 0))}
	if b.gauge, err = contest.Start(ctx, b.server(floor, pairSHM)); err != nil {
		return fmt.Errorf("cannot sample the placement of the processors (run bench/compare.sh, which builds the programs): %w", err)
	}
	defer b.gauge.Close()

	var st *stable
	for i := range tests {
		t := &tests[i]
		if st == nil || st.layout != t.layout {
			if st != nil {
				st.close()
				m.Runs = append(m.Runs, st.runs...)
			}
			st = newStable(ctx, o.paths, t.layout)
		}
		before := len(b.rows)
		t0 := time.Now()
		err := b.run(t, st)
		if ctx.Err() != nil {
			st.close()
			return context.Cause(ctx)
		}
		if err != nil {
			st.close()
			return err
		}
		fmt.Printf("[%d/%d] %s (%.1f s)\n", i+1, len(tests), t.id(), time.Since(t0).Seconds())
		for _, r := range b.rows[before:] {
			fmt.Println("   ", summary(r))
		}
	}
	st.close()
	m.Runs = append(m.Runs, st.runs...)
	b.gauge.Close()
	after, err := contest.Foreign()
	if err != nil {
		return err
	}
	m.Foreign = max(0, (after-foreign).Seconds()/time.Since(begin).Seconds())
	return finish(b, &m, o)
}

// chosen returns the tests that the options want, and how many of these --without leaves out.
func chosen(o *options) (tests []test, leftOut int) {
	for _, t := range table() {
		switch {
		case o.quick && !t.key, o.group != "" && t.group != o.group, !o.only.MatchString(t.id()):
		case t.layout.transport == o.without:
			leftOut++
		default:
			tests = append(tests, t)
		}
	}
	return tests, leftOut
}

func summary(r report.Row) string {
	s := fmt.Sprintf("%-5s ours %s, Open MPI %s, MPICH %s, best flags %s, floor %s %s", r.Memory, r.Ours, r.OpenMPI, r.MPICH,
		r.BestFlags, r.Floor, r.Unit)
	if _, ok := r.Ratio.Get(); ok {
		s += fmt.Sprintf("; ratio %s (%.2f..%.2f)", r.Ratio, r.Low, r.High)
	}
	if r.Target != "" {
		s += fmt.Sprintf("; target %s: %s", r.Target, pick(r.Met == nil, "could not tell", pick(r.Met != nil && *r.Met, "met", "MISSED")))
	}
	return s
}

// finish writes the results, and fails if they are not complete.
func finish(b *bencher, m *report.Machine, o options) error {
	m.Finish()
	if m.Foreign > 0.1 {
		m.Notes = append(m.Notes, fmt.Sprintf("other programs used %.2f cores during the run", m.Foreign))
	}
	var failures []string
	for _, run := range m.Runs {
		if run.Error != "" {
			failures = append(failures, run.Error)
		}
		if run.Idle > 0.02 {
			m.Notes = append(m.Notes, fmt.Sprintf("%s used %.3f cores while others had their turn", run.Name, run.Idle))
		}
	}
	at := func(name string) string { return filepath.Join(o.out, name) }
	err := errors.Join(
		report.WriteJSON(at("compare.json"), b.rows),
		m.Write(at("machine.json")),
		writeRounds(at("compare-rounds.json"), b.raw),
		writeMarkdown(at("compare.md"), b, m),
		writePage(at("performance.md"), o.page, b.rows, m),
		draw(at("compare-latency.png"), "One-way latency, shared memory, two ranks", "osu_latency", b.rows),
		draw(at("compare-bandwidth.png"), "Bandwidth, window 64, shared memory, two ranks", "osu_bw", b.rows),
	)
	if err != nil {
		return err
	}
	for _, why := range report.Failures(b.rows) {
		if !slices.Contains(failures, why) {
			failures = append(failures, why)
		}
	}
	missed := 0
	for _, r := range b.rows {
		if r.Met != nil && !*r.Met {
			missed++
		}
	}
	for _, n := range m.Notes {
		fmt.Println("note:", n)
	}
	fmt.Printf("%d rows, %d targets missed; see %s\n", len(b.rows), missed, at("compare.md"))
	if len(failures) > 0 {
		return fmt.Errorf("contestants failed:\n  %s", strings.Join(failures, "\n  "))
	}
	if o.strict && missed > 0 {
		return fmt.Errorf("%d targets missed", missed)
	}
	return nil
}

func writeRounds(path string, raw []rawTest) error {
	b, err := json.Marshal(raw)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// draw plots what there is; a run with --only may leave nothing to plot.
func draw(path, title, name string, rows []report.Row) error {
	err := report.Plot(path, title, name, "shm", rows)
	if errors.Is(err, report.ErrNothing) {
		fmt.Printf("%s: not drawn, no rows for it\n", path)
		os.Remove(path) // one of an earlier run would mislead
		return nil
	}
	return err
}
