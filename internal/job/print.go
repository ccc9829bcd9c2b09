package job

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/internal/topo"
)

// Print writes the plan for a reader. It holds no secret.
func (p *Plan) Print(w io.Writer) error {
	var b strings.Builder
	if len(p.Others) == 0 {
		fmt.Fprintf(&b, "job        %s: %s on host %s\n", p.Job, count(p.Size, "rank"), p.Host)
	} else {
		p.printHosts(&b)
	}
	if len(p.Ranks) > 0 {
		fmt.Fprintf(&b, "processors %s (%d)\n", topo.FormatCPUs(p.Allowed), len(p.Allowed))
		fmt.Fprintf(&b, "binding    %s\n", p.Binding)
	}
	fmt.Fprintf(&b, "transport  %s\n", p.Spec.Transport)
	if p.Spec.Output != "" {
		fmt.Fprintf(&b, "output     %s\n", p.Spec.Output)
	}
	if p.Arena > 0 {
		fmt.Fprintf(&b, "arena      %d MiB for each rank, taken as it is used\n", p.Arena>>20)
	}
	if p.Spec.Interface != "" {
		fmt.Fprintf(&b, "interface  %s\n", p.Spec.Interface)
	}
	if p.Spec.Device != "" {
		fmt.Fprintf(&b, "device     %s\n", p.Spec.Device)
	}
	for i, r := range p.Ranks {
		cpus := "any processor"
		if r.CPUs != nil {
			cpus = "processors " + topo.FormatCPUs(r.CPUs)
		}
		fmt.Fprintf(&b, "rank %d on %s, %s\n", p.Local[i], p.Host, cpus)
		fmt.Fprintf(&b, "  runs     %s\n", quoteAll(r.Program.Argv))
		if r.Path != r.Program.Argv[0] {
			fmt.Fprintf(&b, "  found at %s\n", quote(r.Path))
		}
		fmt.Fprintf(&b, "  in       %s\n", quote(r.Dir))
		fmt.Fprintf(&b, "  with     %s\n", quoteAll(append(slices.Clone(r.Program.Env), p.vars(i)...)))
	}
	for _, site := range p.Others {
		for _, rank := range site.Ranks {
			prog := &p.Spec.Programs[p.programs[rank]]
			fmt.Fprintf(&b, "rank %d on %s, processors as its agent finds them\n  runs     %s\n", rank, site.Name, quoteAll(prog.Argv))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printHosts tells of a job on several hosts: what runs where, and how it gets
// there.
func (p *Plan) printHosts(b *strings.Builder) {
	n := len(p.Others)
	if len(p.Local) > 0 {
		n++
	}
	fmt.Fprintf(b, "job        %s: %s on %s\n", p.Job, count(p.Size, "rank"), count(n, "host"))
	if p.Batch != nil && p.Batch.System != "" {
		fmt.Fprintf(b, "batch job  %s %s, hosts from %s\n", p.Batch.System, p.Batch.ID, p.Batch.Source)
	}
	if len(p.Local) > 0 {
		fmt.Fprintf(b, "host       %s, this one: %s\n", p.Host, ranksOf(p.Local))
	}
	for _, s := range p.Others {
		fmt.Fprintf(b, "host       %s: %s\n", s.Name, ranksOf(s.Ranks))
	}
	fmt.Fprintf(b, "launcher   %s: %s\n", p.starter.name, p.starter.why)
	for _, c := range p.starter.commands(p.Others, p.agentArgs("ADDRESS", "FILE")) {
		fmt.Fprintf(b, "  runs     %s\n", quoteAll(c.Argv))
	}
	if len(p.Others) > fanOut && p.starter.tree {
		fmt.Fprintf(b, "           the first %d from here, the rest from there\n", fanOut)
	}
}
