package main

import (
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-hpc/weft/internal/job"
	"github.com/weft-hpc/weft/internal/plane"
	"github.com/weft-hpc/weft/rdma"
)

// options is what a command line says.
type options struct {
	spec          job.Spec
	help, version bool
	dryRun        bool
}

// option is a row of the table that parses the command line and prints the help.
type option struct {
	names []string // without dashes: one or two are taken alike, as mpirun's users type them
	arg   string   // "" for none
	local bool     // belongs to one program, and may follow a colon
	help  string
	set   func(o *options, p *job.Program, value string) error
}

const (
	defaultGrace     = 5 * time.Second
	defaultTransport = "auto"
)

var transports = []string{"auto", "shm", "tcp", "verbs"}

var table = []option{
	{[]string{"n", "np"}, "N", true, "start N ranks of the program that follows", func(o *options, p *job.Program, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil {
			return fmt.Errorf("%q is not a number of ranks", v)
		}
		if n < 1 {
			return fmt.Errorf("%d ranks: a program runs on 1 rank or more", n)
		}
		p.Ranks = n
		return nil
	}},
	{[]string{"x", "env"}, "NAME[=VAL]", true, "set a variable for the ranks; without =VAL, insist that it is set here", func(o *options, p *job.Program, v string) error {
		s, err := setting(v)
		p.Env = append(p.Env, s)
		return err
	}},
	{[]string{"wdir"}, "DIR", true, "start the ranks in DIR", func(o *options, p *job.Program, v string) error {
		if v == "" {
			return fmt.Errorf("the directory has no name")
		}
		p.Dir = v
		return nil
	}},
	{[]string{"bind-to"}, "WHAT", false, "bind each rank to a core, a socket, a numa node, or none (core where they fit, else what they are mapped by, else none)", func(o *options, _ *job.Program, v string) error {
		i, err := choice(job.Binds[1:], v)
		o.spec.Bind = job.Bind(i + 1)
		return err
	}},
	{[]string{"report-bindings"}, "", false, "say which processors each rank may use", func(o *options, _ *job.Program, _ string) error {
		o.spec.Report = true
		return nil
	}},
	{[]string{"transport"}, "NAME", false, "how ranks talk: " + strings.Join(transports, ", ") + " (" + defaultTransport + ")", func(o *options, _ *job.Program, v string) error {
		if !slices.Contains(transports, v) {
			return fmt.Errorf("%q is not one of %s", v, strings.Join(transports, ", "))
		}
		o.spec.Transport = v
		return nil
	}},
	{[]string{"interface"}, "NAME|CIDR", false, "network interface for TCP, by name or by its network", func(o *options, _ *job.Program, v string) error {
		if v == "" {
			return fmt.Errorf("the interface has no name")
		}
		o.spec.Interface = v
		return nil
	}},
	{[]string{"device"}, "DEV[:PORT]", false, "RDMA device for verbs, such as mlx5_0:1; several, with commas, share large messages (the nearest and fastest)", func(o *options, _ *job.Program, v string) error {
		for spec := range strings.SplitSeq(v, ",") {
			if _, _, err := rdma.ParseSpec(spec); err != nil {
				return err
			}
		}
		o.spec.Device = v
		return nil
	}},
	{[]string{"arena"}, "SIZE", false, "shared memory for each rank, such as 512M or 4G; it is taken as it is used (half of the host's memory, divided by its ranks)", func(o *options, _ *job.Program, v string) (err error) {
		o.spec.Arena, err = size(v)
		return err
	}},
	{[]string{"H", "host"}, "HOST[:N],...", false, "run on these hosts, with N ranks each; in a batch job, on these of its hosts", func(o *options, _ *job.Program, v string) error {
		if v == "" {
			return fmt.Errorf("the host has no name")
		}
		o.spec.Hosts = v
		return nil
	}},
	{[]string{"hostfile", "machinefile"}, "FILE", false, "the same from a file: lines such as host slots=4, host:4, or n[01-16] slots=4", func(o *options, _ *job.Program, v string) error {
		if v == "" {
			return fmt.Errorf("the file has no name")
		}
		o.spec.HostFile = v
		return nil
	}},
	{[]string{"ppn", "N"}, "N", false, "start N ranks on each host (as many as it has slots)", func(o *options, _ *job.Program, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			return fmt.Errorf("%q is not a number of ranks", v)
		}
		o.spec.PerHost = n
		return nil
	}},
	{[]string{"map-by"}, "WHAT", false, "slot or core: fill one host after the other, core by core; socket or numa: so, but to the sockets or NUMA nodes of a host in turn; node: one rank to each host in turn (slot)", func(o *options, _ *job.Program, v string) error {
		i, err := choice(job.Maps, v)
		o.spec.Map = job.Map(i)
		return err
	}},
	{[]string{"oversubscribe"}, "", false, "start more ranks than the hosts have slots", func(o *options, _ *job.Program, _ string) error {
		o.spec.Crowd = true
		return nil
	}},
	{[]string{"launcher"}, "NAME", false, "how other hosts are reached: " + strings.Join(job.Launchers(), ", ") + "; fork plays them on this one (what the batch system has)", func(o *options, _ *job.Program, v string) error {
		if !slices.Contains(job.Launchers(), v) {
			return fmt.Errorf("%q is not one of %s", v, strings.Join(job.Launchers(), ", "))
		}
		o.spec.Launcher = v
		return nil
	}},
	{[]string{"agent"}, "PATH", false, "weftrun on the other hosts (the path of this one)", func(o *options, _ *job.Program, v string) error {
		if !strings.HasPrefix(v, "/") {
			return fmt.Errorf("%q is not an absolute path", v)
		}
		o.spec.Agent = v
		return nil
	}},
	{[]string{"control"}, "NAME", false, "how weftrun talks to agents on other hosts: tcp; zmq where it is built in (tcp)", func(o *options, _ *job.Program, v string) error {
		if _, err := plane.Lookup(v); err != nil {
			return err
		}
		o.spec.Control = v
		return nil
	}},
	{[]string{"start-timeout"}, "DURATION", false, "give up when other hosts are not ready after this (30s, and a second more for each 50 hosts)", func(o *options, _ *job.Program, v string) (err error) {
		o.spec.StartTime, err = duration(v)
		if err == nil && o.spec.StartTime == 0 {
			err = fmt.Errorf("no host is ready in no time")
		}
		return err
	}},
	{[]string{"one-host"}, "", false, "in a batch job of several hosts, leave all but this one idle", func(o *options, _ *job.Program, _ string) error {
		o.spec.OneHost = true
		return nil
	}},
	{[]string{"tag-output"}, "", false, "put [rank] before every line of output", func(o *options, _ *job.Program, _ string) error {
		o.spec.Tag = true
		return nil
	}},
	{[]string{"output"}, "DIR|PATTERN", false, "write output to DIR/RANK.out and DIR/RANK.err, or to files such as out/{jobid}/{host}-{rank}.{stream}; without {stream}, both streams share a file", func(o *options, _ *job.Program, v string) (err error) {
		o.spec.Output, err = job.OutputPattern(v)
		return err
	}},
	{[]string{"timeout"}, "DURATION", false, "end the job after 90s, 10m, 1h30m, ... (none)", func(o *options, _ *job.Program, v string) (err error) {
		o.spec.Timeout, err = duration(v)
		if err == nil && o.spec.Timeout == 0 {
			err = fmt.Errorf("a job cannot end in no time")
		}
		return err
	}},
	{[]string{"restart"}, "N", false, "when a rank failed or a host was lost, start the whole job again, N times at most; WEFT_RESTART tells ranks how often it was (0)", func(o *options, _ *job.Program, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			return fmt.Errorf("%q is not a number of restarts", v)
		}
		o.spec.Restarts = n
		return nil
	}},
	{[]string{"keep-going"}, "", false, "when a rank fails, let the others go on; who needs that rank gets an error", func(o *options, _ *job.Program, _ string) error {
		o.spec.KeepGoing = true
		return nil
	}},
	{[]string{"grace"}, "DURATION", false, "after a failure, time for ranks to end by themselves (" + defaultGrace.String() + ")", func(o *options, _ *job.Program, v string) (err error) {
		o.spec.Grace, err = duration(v)
		return err
	}},
	{[]string{"dry-run"}, "", false, "print what would be done, and do nothing", func(o *options, _ *job.Program, _ string) error {
		o.dryRun = true
		return nil
	}},
	{[]string{"verbose", "v"}, "", false, "print what is done, and every failure", func(o *options, _ *job.Program, _ string) error {
		o.spec.Verbose = true
		return nil
	}},
	{[]string{"version", "V"}, "", false, "print the version", func(o *options, _ *job.Program, _ string) error {
		o.version = true
		return nil
	}},
	{[]string{"help", "h"}, "", false, "print this", func(o *options, _ *job.Program, _ string) error {
		o.help = true
		return nil
	}},
}

// title is an option as it is best typed.
func (o *option) title() string {
	var parts []string
	for _, n := range o.names {
		if len(n) > 2 {
			n = "-" + n
		}
		parts = append(parts, "-"+n)
	}
	t := strings.Join(parts, ", ")
	if o.arg != "" {
		t += " " + o.arg
	}
	return t
}

// choice returns which of some words a value is.
func choice(words []string, v string) (int, error) {
	i := slices.Index(words, v)
	if i < 0 {
		return 0, fmt.Errorf("%q is not one of %s", v, strings.Join(words, ", "))
	}
	return i, nil
}

// duration reads a duration; a bare number is seconds, as users of timeout and
// mpirun expect.
func duration(v string) (time.Duration, error) {
	d, err := time.ParseDuration(v)
	if err != nil {
		d, err = time.ParseDuration(v + "s")
	}
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration such as 90s, 10m or 1h30m", v)
	}
	return d, nil
}

// size reads a number of bytes with an optional K, M, G or T.
func size(v string) (int64, error) {
	digits := strings.TrimSuffix(strings.TrimSuffix(v, "B"), "i")
	shift := 0
	if n := len(digits); n > 0 {
		if i := strings.IndexByte("KMGT", digits[n-1]); i >= 0 {
			digits, shift = digits[:n-1], 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%q is not a size such as 64M or 4G", v)
	}
	return n << shift, nil
}

func version() string {
	v, rev := "(devel)", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		v = info.Main.Version
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				rev = " " + s.Value[:min(12, len(s.Value))]
			}
		}
	}
	return v + rev
}

func help() string {
	var b strings.Builder
	b.WriteString(`Usage: weftrun [options] [-n N] program [arguments] [: [options] -n N program [arguments]]...

Starts N ranks of a program and waits for them: on this host, or in a batch job
of PBS, Slurm, Grid Engine or LSF on its hosts, where -n may be left out to use
all slots. Options end where the program's name begins. Several programs, with
a : between them, make one job; ranks are numbered in that order. An argument
that is itself a : is written \:.

Options, with their defaults in parentheses:
`)
	printOptions(&b, false)
	b.WriteString("\nOptions of one program; a later program has its own:\n")
	printOptions(&b, true)
	b.WriteString(`
Standard input is rank 0's; the other ranks have none. Lines of output are kept
whole. Where they go to a terminal, ranks find its size in COLUMNS and LINES,
and get SIGWINCH when it changes. The job ends with its last rank: processes
that ranks leave behind are killed a second later.

Exit code:
  0      every rank ended well
  N      of the first rank that failed, or that aborted the job with N
  128+S  signal S ended that rank, or the job
`)
	for _, c := range []struct {
		code int
		text string
	}{
		{job.ExitUsage, "the command line is wrong"},
		{job.ExitSetup, "the job could not be started"},
		{job.ExitHostLost, "a host was lost"},
		{job.ExitTimeout, "the job ran longer than --timeout"},
		{job.ExitNotProgram, "the program cannot be executed"},
		{job.ExitNoProgram, "the program was not found"},
	} {
		fmt.Fprintf(&b, "  %-6d %s\n", c.code, c.text)
	}
	return b.String()
}

func printOptions(b *strings.Builder, local bool) {
	const column, width = 25, 80
	for i := range table {
		o := &table[i]
		if o.local != local {
			continue
		}
		line := fmt.Sprintf("  %-*s", column-2, o.title())
		if len(line) > column {
			b.WriteString(line + "\n")
			line = strings.Repeat(" ", column)
		}
		for word := range strings.FieldsSeq(o.help) {
			if len(line)+1+len(word) > width {
				b.WriteString(line + "\n")
				line = strings.Repeat(" ", column)
			}
			if len(line) > column || !strings.HasSuffix(line, " ") {
				line += " "
			}
			line += word
		}
		b.WriteString(line + "\n")
	}
}
