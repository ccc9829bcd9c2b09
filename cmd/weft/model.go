package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weft-hpc/weft/collective"
)

func benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure, or work out, how fast things are",
	}
	cmd.AddCommand(controlCommand(), launchCommand(), modelCommand())
	return cmd
}

func modelCommand() *cobra.Command {
	m := modelRun{ranks: []int{64, 1024, 4096, 65536}, sizes: []int{8, 64 << 10, 1 << 20}}
	m.net.perNode = 1
	var inside, between linkFlags
	var reduce, copying float64
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "model",
		Short: "Work out how the collectives grow with the ranks, on a model of a network",
		Long: `Runs the algorithms of the collectives, as they are, on a LogGP model of a network,
and says for each how many steps, messages and bytes it takes, and how long.

The size is that of the vector, or of one rank's block where each rank has one for
each other. A star marks the algorithm that is chosen for that case. Times are of a
run of all ranks' schedules; "m" behind one says that one rank's was run, because
all do the same, and "~" that it is from the formula that algorithms are chosen by,
because there are too many messages to run. The model has no contention but in the
cards: each node has one, and each rank has one for messages inside its node.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if inside.gigabytes <= 0 || between.gigabytes <= 0 || reduce <= 0 || copying <= 0 || m.net.perNode < 1 {
				return fmt.Errorf("bandwidths and ranks of a node are more than nothing: --bandwidth %g --inside-bandwidth %g --reduce %g --copy %g --per-node %d",
					between.gigabytes, inside.gigabytes, reduce, copying, m.net.perNode)
			}
			m.net.Model = collective.Model{Inside: inside.link(), Between: between.link(), Reduce: 1e-9 / reduce, Copy: 1e-9 / copying}
			all, err := m.predictions()
			if err != nil {
				return err
			}
			if asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(struct {
					Model       collective.Model `json:"model"`
					PerNode     int              `json:"per_node"`
					Predictions []prediction     `json:"predictions"`
				}{m.net.Model, m.net.perNode, all})
			}
			return m.print(cmd.OutOrStdout(), all)
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&m.ranks, "ranks", m.ranks, "numbers of ranks")
	f.IntSliceVar(&m.sizes, "bytes", m.sizes, "sizes of the vector or block, in bytes")
	f.StringSliceVar(&m.names, "collective", nil, "only these, for example allreduce,bcast")
	f.IntVar(&m.net.perNode, "per-node", 1, "ranks on each node")
	f.DurationVar(&between.latency, "latency", time.Microsecond, "from one network card to another")
	f.DurationVar(&between.overhead, "overhead", 300*time.Nanosecond, "processor time for a message, on each side")
	f.DurationVar(&between.gap, "gap", 100*time.Nanosecond, "between two messages of one card")
	f.Float64Var(&between.gigabytes, "bandwidth", 12.5, "of a card, each way, in GB/s")
	f.DurationVar(&inside.latency, "inside-latency", 200*time.Nanosecond, "latency inside a node")
	f.DurationVar(&inside.overhead, "inside-overhead", 150*time.Nanosecond, "overhead inside a node")
	f.DurationVar(&inside.gap, "inside-gap", 100*time.Nanosecond, "gap inside a node")
	f.Float64Var(&inside.gigabytes, "inside-bandwidth", 8, "of a rank inside a node, in GB/s")
	f.Float64Var(&reduce, "reduce", 10, "operands combined, in GB/s")
	f.Float64Var(&copying, "copy", 10, "bytes copied inside a rank, in GB/s")
	f.BoolVar(&asJSON, "json", false, "print JSON, for programs")
	return cmd
}

// linkFlags are the parameters of a link as they are given.
type linkFlags struct {
	latency, overhead, gap time.Duration
	gigabytes              float64
}

func (l *linkFlags) link() collective.Link {
	return collective.Link{Latency: l.latency.Seconds(), Overhead: l.overhead.Seconds(), Gap: l.gap.Seconds(), PerByte: 1e-9 / l.gigabytes}
}

type modelRun struct {
	net          machine
	ranks, sizes []int
	names        []string
}

// predictions works out all cases.
func (m *modelRun) predictions() ([]prediction, error) {
	var known []string
	for _, kind := range collective.Kinds() {
		known = append(known, kind.String())
	}
	for _, name := range m.names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("no collective %q, there are %s", name, strings.Join(known, ", "))
		}
	}
	var all []prediction
	for _, kind := range collective.Kinds() {
		if len(m.names) > 0 && !slices.Contains(m.names, kind.String()) {
			continue
		}
		for _, size := range m.sizes {
			if size < 0 {
				return nil, fmt.Errorf("a size of %d bytes", size)
			}
			if kind == collective.KindBarrier {
				if size != m.sizes[0] {
					continue
				}
				size = 0
			}
			for _, ranks := range m.ranks {
				if ranks < 1 {
					return nil, fmt.Errorf("%d ranks", ranks)
				}
				for _, name := range collective.Algorithms(kind) {
					alg, err := collective.Lookup(kind, name)
					if err != nil {
						return nil, err
					}
					if !alg.Suits(ranks, m.net.nodes(ranks), true) {
						continue
					}
					p, err := m.net.predict(alg, ranks, size)
					if err != nil {
						return nil, fmt.Errorf("%v by %s on %d ranks: %w", kind, name, ranks, err)
					}
					all = append(all, p)
				}
			}
		}
	}
	return all, nil
}

// print prints a table for each collective.
func (m *modelRun) print(w io.Writer, all []prediction) error {
	fmt.Fprintf(w, "between nodes: %s\n", describeModelLink(&m.net.Between))
	if m.net.perNode > 1 {
		fmt.Fprintf(w, "inside a node of %d ranks: %s\n", m.net.perNode, describeModelLink(&m.net.Inside))
	}
	fmt.Fprintf(w, "reduction %.3g GB/s, copy %.3g GB/s\n", 1e-9/m.net.Reduce, 1e-9/m.net.Copy)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	last := ""
	for _, p := range all {
		if p.Collective != last {
			last = p.Collective
			fmt.Fprintf(t, "\n%s\t\t\t\t\t\t\t\n", p.Collective)
			fmt.Fprint(t, "size\tranks\talgorithm\t\tsteps\tmessages\tbytes\ttime\t\n")
		}
		star, mark := "", ""
		if p.Chosen {
			star = "*"
		}
		switch p.How {
		case byMirror:
			mark = "m"
		case byFormula:
			mark = "~"
		}
		fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%d\t%d\t%d\t%v%s\t\n", p.Size, p.Ranks, p.Algorithm, star, p.Steps, p.Messages, p.Bytes, seconds(p.Seconds), mark)
	}
	return t.Flush()
}

func describeModelLink(k *collective.Link) string {
	s := fmt.Sprintf("latency %v, overhead %v, gap %v, %.3g GB/s", seconds(k.Latency), seconds(k.Overhead), seconds(k.Gap), 1e-9/k.PerByte)
	if k.Rendezvous > 0 {
		s += fmt.Sprintf(", above %d bytes the receiver is asked", k.Rendezvous)
	}
	return s
}

// seconds rounds to what can be read.
func seconds(s float64) time.Duration {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d > time.Second:
		return d.Round(time.Millisecond)
	case d > time.Millisecond:
		return d.Round(time.Microsecond)
	case d > 10*time.Microsecond:
		return d.Round(100 * time.Nanosecond)
	}
	return d.Round(10 * time.Nanosecond)
}
