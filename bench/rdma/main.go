// Command rdma measures Weft over verbs beside perftest, the yardstick of RDMA,
// on one device of this host, and prints a table of ratios and targets.
//
// A round holds one run of perftest and one block of ours for each row, in
// random order; a ratio is the median over the rounds. bench/rdma.sh builds what
// this needs and runs it, on a machine without a device in a VM with soft-RoCE.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/weft-hpc/weft/bench/contest"
	"github.com/weft-hpc/weft/bench/report"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// A row is one line of the table.
type row struct {
	name   string
	tool   string   // of perftest
	args   []string // of it, beside device, address and size
	column string   // of its output
	block  contest.Block
	unit   string
	ours   func(ns float64) float64 // our nanoseconds in that unit
	limit  float64
	higher bool // more is better
}

func mibPerSecond(bytes int64) func(float64) float64 {
	return func(ns float64) float64 { return float64(bytes) / mib / (ns / 1e9) }
}

func microseconds(ns float64) float64 { return ns / 1e3 }
func millions(ns float64) float64     { return 1e3 / ns }

var rows = []row{
	{"bandwidth 1 MiB arena", "ib_write_bw", []string{"-n", "40"}, "BW average", contest.Block{Test: "bw", Bytes: mib, Window: 16, Memory: "arena"},
		"MiB/s", mibPerSecond(mib), 0.9, true},
	{"bandwidth 64 KiB arena", "ib_write_bw", []string{"-n", "400"}, "BW average", contest.Block{Test: "bw", Bytes: 64 * kib, Window: 64, Memory: "arena"},
		"MiB/s", mibPerSecond(64 * kib), 0.85, true},
	{"bandwidth 1 MiB slice", "ib_write_bw", []string{"-n", "40"}, "BW average", contest.Block{Test: "bw", Bytes: mib, Window: 16, Memory: "slice"},
		"MiB/s", mibPerSecond(mib), 0, true},
	{"latency 8 B", "ib_send_lat", []string{"-n", "3000"}, "t_avg", contest.Block{Test: "latency", Bytes: 8},
		"us", microseconds, 1.3, false},
	{"message rate 8 B", "ib_send_bw", []string{"-n", "20000"}, "MsgRate", contest.Block{Test: "bw", Bytes: 8, Window: 64},
		"M/s", millions, 0.6, true},
}

type options struct {
	weft, weftrun, osu string
	device             string
	rounds             int
	block              time.Duration
	out                string
	only               string
	bind               string
}

func main() {
	var o options
	flag.StringVar(&o.weft, "weft", "bin/weft", "the command weft")
	flag.StringVar(&o.weftrun, "weftrun", "bin/weftrun", "Weft's launcher")
	flag.StringVar(&o.osu, "osu", "bin/bench/osu", "the program of bench/osu")
	flag.StringVar(&o.device, "device", "", "RDMA device (default: the one a job would get)")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of each row")
	flag.DurationVar(&o.block, "block", time.Second, "wanted length of one block of ours")
	flag.StringVar(&o.out, "out", "", "write the results as JSON to this `file`")
	flag.StringVar(&o.bind, "bind-to", "core", "what ranks are bound to, as weftrun takes it")
	flag.StringVar(&o.only, "only", "", "measure only rows whose name contains this `text`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := measure(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "rdma:", err)
		os.Exit(1)
	}
}

// choice is the port and the address that weft info chose.
type choice struct {
	Device string `json:"device"`
	Port   int    `json:"port"`
	GID    int    `json:"gid_index"`
	Why    string `json:"why"`
}

func choose(ctx context.Context, o options) (choice, error) {
	out, err := exec.CommandContext(ctx, o.weft, "info", "--json").Output()
	if err != nil {
		return choice{}, fmt.Errorf("%s info: %w", o.weft, err)
	}
	var info struct {
		Verbs struct {
			Choice struct {
				Value choice
				Error string
			}
		}
	}
	if err := json.Unmarshal(out, &info); err != nil {
		return choice{}, fmt.Errorf("%s info: %w", o.weft, err)
	}
	c := info.Verbs.Choice
	if c.Error != "" {
		return choice{}, errors.New(c.Error)
	}
	if c.Value.Device == "" {
		return choice{}, fmt.Errorf("%s info tells of no RDMA device that a job would get; %s check says what is wrong with those there are", o.weft, o.weft)
	}
	if o.device != "" && o.device != c.Value.Device {
		return choice{}, fmt.Errorf("a job would get %s, not %s; this measures the device that a job gets", c.Value.Device, o.device)
	}
	return c.Value, nil
}

// result is a row as it was measured.
type result struct {
	Name     string       `json:"name"`
	Unit     string       `json:"unit"`
	Tool     string       `json:"tool"`
	Ours     report.Value `json:"ours"`
	Perftest report.Value `json:"perftest"`
	Ratio    report.Value `json:"ratio"`
	Low      float64      `json:"low"`
	High     float64      `json:"high"`
	Target   string       `json:"target,omitempty"`
	Met      string       `json:"met,omitempty"`
}

func measure(ctx context.Context, o options) error {
	if o.rounds < 1 {
		return fmt.Errorf("--rounds %d: there must be 1 or more", o.rounds)
	}
	c, err := choose(ctx, o)
	if err != nil {
		return err
	}
	m := report.ThisMachine()
	fmt.Printf("%s, %d processors, Linux %s, %s\n%s:%d: %s\n", m.Processor, m.CPUs, m.Kernel, m.Go, c.Device, c.Port, c.Why)
	s, err := contest.Start(ctx, contest.Spec{Name: "weft", Ranks: 2,
		Argv: []string{o.weftrun, "-n", "2", "--transport", "verbs", "--device", c.Device, "--bind-to", o.bind, o.osu, "{dir}"}})
	if err != nil {
		return err
	}
	defer s.Close()
	var results []result
	for _, r := range rows {
		if !strings.Contains(r.name, o.only) {
			continue
		}
		res, err := r.measure(ctx, o, c, s)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		results = append(results, res)
	}
	if err := s.Close(); err != nil {
		return err
	}
	if len(results) == 0 {
		return fmt.Errorf("no row has %q in its name", o.only)
	}
	return show(results, o)
}

const timeout = 2 * time.Minute

func (r *row) measure(ctx context.Context, o options, c choice, s *contest.Session) (result, error) {
	res := result{Name: r.name, Unit: r.unit, Tool: r.tool}
	ours, err := contest.Turn(s, r.block, o.block, 0, timeout)
	if err != nil {
		return res, err
	}
	var mine, theirs []float64
	for range o.rounds {
		turns := []func() error{
			func() error {
				ns, err := ours.Run()
				mine = append(mine, r.ours(ns))
				return err
			},
			func() error {
				v, err := perftest(ctx, c, r)
				theirs = append(theirs, v)
				return err
			},
		}
		rand.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
		for _, turn := range turns {
			if err := turn(); err != nil {
				return res, err
			}
		}
	}
	ratios := report.Ratios(mine, theirs)
	res.Low, res.High = report.Interval(ratios)
	ratio := report.Median(ratios)
	res.Ours, res.Perftest, res.Ratio = report.Num(report.Median(mine)), report.Num(report.Median(theirs)), report.Num(ratio)
	if r.limit > 0 {
		met := ratio <= r.limit
		res.Target = fmt.Sprintf("<= %g", r.limit)
		if r.higher {
			met = ratio >= r.limit
			res.Target = fmt.Sprintf(">= %g", r.limit)
		}
		res.Met = map[bool]string{true: "met", false: "MISSED"}[met]
	}
	return res, nil
}

func show(results []result, o options) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\tWeft\tperftest\tunit\tratio\t95 %%\ttarget\t\t\n")
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%v\t%v\t%s\t%v\t%.2f..%.2f\t%s\t%s\t%s\n", r.Name, r.Ours, r.Perftest, r.Unit, r.Ratio, r.Low, r.High, r.Target, r.Met, r.Tool)
	}
	if err := w.Flush(); err != nil || o.out == "" {
		return err
	}
	b, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.out, append(b, '\n'), 0o644)
}
