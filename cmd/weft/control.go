package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weft-hpc/weft/cgo/zmq"
	"github.com/weft-hpc/weft/internal/job"
	"github.com/weft-hpc/weft/internal/plane"
)

func controlCommand() *cobra.Command {
	b := controlBench{Members: 1000, Flooders: 8, Time: 3 * time.Second}
	var names []string
	var asJSON, play bool
	cmd := &cobra.Command{
		Use:   "control",
		Short: "Measure the control planes that weftrun can use to talk to its agents",
		Long: `Measures the control planes, each with its root in this process, as in weftrun, and
its members in a few others, on the loopback interface. A round trip is that of 16 bytes
from the root to a member and back, which does not flood, or does. Members that flood send 16 KiB at a time, with 32 KiB
of credit from the root, as agents send what their ranks write; their process has a low
priority, as in a job they are on other hosts.

zmq is there in a build with -tags zmq.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			job.LeaveProcessors() // as weftrun does, here and as an agent
			if play {
				return playMembers(cmd.InOrStdin(), cmd.OutOrStdout())
			}
			if b.Members < 2 || b.Flooders < 1 || b.Flooders >= b.Members {
				return fmt.Errorf("--members %d --flooders %d: at least one must flood, and one not", b.Members, b.Flooders)
			}
			for _, name := range names {
				if _, err := plane.Lookup(name); err != nil {
					if !cmd.Flags().Changed("plane") {
						fmt.Fprintf(cmd.ErrOrStderr(), "weft: %v\n", err)
						continue
					}
					return err
				}
				r, err := b.run(cmd.Context(), name)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				b.Results = append(b.Results, *r)
			}
			if asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(b)
			}
			return b.print(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.IntVar(&b.Members, "members", b.Members, "members, one for each host of a job")
	f.IntVar(&b.Flooders, "flooders", b.Flooders, "members that flood")
	f.DurationVar(&b.Time, "time", b.Time, "of each of the three measurements of round trips")
	f.StringSliceVar(&names, "plane", []string{plane.TCP, zmq.Name}, "only these")
	f.BoolVar(&asJSON, "json", false, "print JSON, for programs")
	f.BoolVar(&play, "play", false, "be members")
	if err := f.MarkHidden("play"); err != nil {
		panic(err) // it is there
	}
	return cmd
}

// controlBench is a measurement of control planes, and its JSON form.
type controlBench struct {
	Members  int             `json:"members"`
	Flooders int             `json:"flooders"`
	Time     time.Duration   `json:"time_ns"`
	Results  []controlResult `json:"results"`
}

// controlResult is what was measured of one of them.
type controlResult struct {
	Plane       string        `json:"plane"`
	SetUp       time.Duration `json:"set_up_ns"`     // from the first connection to the last
	RootFiles   float64       `json:"root_files"`    // descriptors of a member in the root
	MemberFiles float64       `json:"member_files"`  // and in its own process
	Idle        trips         `json:"idle"`          // round trips
	Flood       trips         `json:"flood"`         // the same while other members flood
	Flooder     trips         `json:"flooder"`       // the same with one that floods
	FloodRate   float64       `json:"flood_bytes_s"` // what these get through
	ToAll       time.Duration `json:"all_ns"`        // a message to each member, and all answers
	Rate        float64       `json:"messages_s"`    // 64 bytes each, from one member
}

// trips are round trips.
type trips struct {
	Count int           `json:"count"`
	P50   time.Duration `json:"p50_ns"`
	P99   time.Duration `json:"p99_ns"`
	Max   time.Duration `json:"max_ns"`
}

func (b *controlBench) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name string, value func(r *controlResult) string) {
		fmt.Fprint(t, name)
		for i := range b.Results {
			fmt.Fprint(t, "\t", value(&b.Results[i]))
		}
		fmt.Fprintln(t)
	}
	took := func(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }
	three := func(x trips) string { return took(x.P50) + " / " + took(x.P99) + " / " + took(x.Max) }
	row("", func(r *controlResult) string { return r.Plane })
	row(fmt.Sprintf("set-up of %d members", b.Members), func(r *controlResult) string { return took(r.SetUp) })
	row("descriptors of a member in the root", func(r *controlResult) string { return fmt.Sprintf("%.2f", r.RootFiles) })
	row("and in its own process", func(r *controlResult) string { return fmt.Sprintf("%.2f", r.MemberFiles) })
	row("round trip, p50 / p99 / max", func(r *controlResult) string { return three(r.Idle) })
	row(fmt.Sprintf("while %d members flood", b.Flooders), func(r *controlResult) string { return three(r.Flood) })
	row("the same with one of those", func(r *controlResult) string { return three(r.Flooder) })
	row("what these get through", func(r *controlResult) string { return fmt.Sprintf("%.0f MB/s", r.FloodRate/1e6) })
	row("to all members and back", func(r *controlResult) string { return took(r.ToAll) })
	row("messages from one member", func(r *controlResult) string { return fmt.Sprintf("%.0f /s", r.Rate) })
	return t.Flush()
}
