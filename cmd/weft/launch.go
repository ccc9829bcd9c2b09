package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weft-hpc/weft/internal/job"
	"github.com/weft-hpc/weft/internal/topo"
)

func launchCommand() *cobra.Command {
	hosts, ranks, card := []int{1, 10, 100, 1000}, 64, 64
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "launch",
		Short: "Measure what the start of a job on many hosts costs weftrun",
		Long: `Runs weftrun's own side of jobs on many hosts, with connections and encryption as they
are. The agents of the hosts are goroutines of this process; they have no ranks, and
say what agents say when ranks come up, join the job, leave it and end. So what ranks
and hosts take for themselves is not in these times, and all agents share this
machine's processors with weftrun.

The wire-up is what ranks wait for before they can begin: until all know that all have
joined, which hosts tell each other in a tree. Cards, in which ranks tell where they can be
reached, are fetched when a connection is made. Here each rank fetches those of the ranks a
power of two away, as a barrier or a sum over all ranks needs them, all at once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ranks < 1 || card < 0 {
				return fmt.Errorf("%d ranks on a host, with cards of %d bytes: neither can be", ranks, card)
			}
			var all []*job.Simulated
			for _, n := range hosts {
				if n < 1 {
					return fmt.Errorf("a job on %d hosts", n)
				}
				s, err := (&job.Simulation{Hosts: n, Ranks: ranks, Card: card}).Run()
				if err != nil {
					return err
				}
				all = append(all, s)
			}
			if asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(all)
			}
			return printLaunches(cmd.OutOrStdout(), all)
		},
	}
	f := cmd.Flags()
	f.IntSliceVar(&hosts, "hosts", hosts, "numbers of hosts")
	f.IntVar(&ranks, "ranks", ranks, "ranks on each host")
	f.IntVar(&card, "card", card, "bytes of a rank's card")
	f.BoolVar(&asJSON, "json", false, "print JSON, for programs")
	return cmd
}

// printLaunches prints a column for each job.
func printLaunches(out io.Writer, all []*job.Simulated) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, cell func(s *job.Simulated) string) {
		fmt.Fprintf(w, "%s\t", name)
		for _, s := range all {
			fmt.Fprintf(w, "%s\t", cell(s))
		}
		fmt.Fprintln(w)
	}
	row("hosts", func(s *job.Simulated) string { return fmt.Sprint(s.Hosts) })
	row("ranks", func(s *job.Simulated) string { return fmt.Sprint(s.Ranks) })
	for i := range all[0].Phases {
		row(all[0].Phases[i].Name, func(s *job.Simulated) string { return s.Phases[i].Took.Round(10 * time.Microsecond).String() })
	}
	row("all", func(s *job.Simulated) string {
		var sum time.Duration
		for _, p := range s.Phases {
			sum += p.Took
		}
		return sum.Round(10 * time.Microsecond).String()
	})
	row("steps of the wire-up, up and down", func(s *job.Simulated) string { return fmt.Sprint(2 * s.Steps) })
	exchanged := func(name string, of func(s *job.Simulated) *job.Exchanged) {
		traffic := func(t job.Traffic) string { return fmt.Sprintf("%d, %s", t.Messages, topo.FormatBytes(t.Bytes)) }
		row(name+" by weftrun: messages, bytes", func(s *job.Simulated) string { return traffic(of(s).Launcher) })
		row("by the busiest agent", func(s *job.Simulated) string { return traffic(of(s).Most) })
		row("by all", func(s *job.Simulated) string { return traffic(of(s).All) })
	}
	exchanged("wire-up: sent", func(s *job.Simulated) *job.Exchanged { return &s.WireUp })
	row("cards fetched by ranks", func(s *job.Simulated) string { return fmt.Sprint(s.Cards) })
	exchanged("for that: sent", func(s *job.Simulated) *job.Exchanged { return &s.Fetch })
	return w.Flush()
}
