package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/weft-hpc/weft/internal/topo"
)

func infoCommand() *cobra.Command {
	var asJSON bool
	o := collectivesOptions{sizes: []int{8, 1 << 10, 16 << 10, 256 << 10, 4 << 20}}
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Say what this machine offers, and what Weft would make of it",
		Long: `Says what this machine offers to Weft, what would be chosen here, and why.

An answer is present, absent, or unknown: unknown means that it could not be
told, and why.

With --collectives it says by which algorithm each collective runs, how long the model
predicts that to take, and why it is that one:

  weft info --collectives -n 64 --nodes 4   on 64 ranks of 4 hosts
  weftrun -n 8 weft info --collectives      on the ranks of this job, as they are

The size is that of the vector, or of one rank's block where each rank has one for each
other. Times are for operators that commute, as Sum does.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.show {
				o.json = asJSON
				return collectivesHere(cmd.Context(), &o, cmd.OutOrStdout())
			}
			i := gather(topo.System)
			i.probe()
			if asJSON {
				e := json.NewEncoder(cmd.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(i)
			}
			return i.print(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.BoolVar(&asJSON, "json", false, "print JSON, for programs")
	f.BoolVar(&o.show, "collectives", false, "say which algorithms collectives run by")
	f.IntVarP(&o.ranks, "ranks", "n", 0, "with --collectives: on so many ranks (default: those of the job, or one for each processor)")
	f.IntVar(&o.nodes, "nodes", 1, "with --collectives: on so many hosts")
	f.StringVar(&o.between, "between", "tcp", "with --collectives: the transport between hosts, tcp or verbs")
	f.StringVar(&o.model, "model", "", "with --collectives: by the model in this `FILE`, which weft tune has written")
	f.IntSliceVar(&o.sizes, "bytes", o.sizes, "with --collectives: sizes in bytes")
	return cmd
}

// textOf returns a fact as format prints it.
func textOf[T any](f topo.Fact[T], format func(T) string) string {
	switch {
	case f.Error != "":
		return "unknown (" + f.Error + ")"
	case f.Absent != "":
		return "absent (" + f.Absent + ")"
	}
	return format(f.Value)
}

// info is what weft info tells. Its JSON form is for other programs: fields are
// added, and never change their meaning.
type info struct {
	Version   string                 `json:"version"`
	Host      topo.Fact[string]      `json:"host"`
	Kernel    topo.Fact[string]      `json:"kernel"`
	CPUs      topo.Fact[[]int]       `json:"cpus"`  // that we may use
	Cores     topo.Fact[[][]int]     `json:"cores"` // of these
	NUMA      topo.Fact[[]topo.Node] `json:"numa"`
	LastCache topo.Fact[cache]       `json:"last_cache"`
	Memory    topo.Fact[memory]      `json:"memory"`
	DevShm    topo.Fact[memory]      `json:"dev_shm"`
	Memlock   topo.Fact[limit]       `json:"memlock"`
	Links     topo.Fact[[]topo.Link] `json:"links"`
	Ptrace    topo.Answer            `json:"ptrace"`
	RDMA      topo.Answer            `json:"rdma"`

	Verbs      *rdmaInfo       `json:"verbs,omitempty"` // what the RDMA library tells
	Transports []transportInfo `json:"transports"`
	Choice     []string        `json:"choice"` // what a job would get here, and why
}

type cache struct {
	Bytes  int64 `json:"bytes"`
	Shared []int `json:"shared_by"`
}

type memory struct {
	Bytes     int64 `json:"bytes"`
	Available int64 `json:"available"`
}

type limit struct {
	Soft int64 `json:"soft"`
	Hard int64 `json:"hard"`
}

// transportInfo is a transport of this build and whether it works here.
type transportInfo struct {
	Name string `json:"name"`
	topo.Answer
}

// gather reads what the kernel tells. The processors that we may use are this
// process's own, whatever the root.
func gather(machine topo.Root) *info {
	i := &info{Version: version()}
	i.Host = topo.Known(machine.Text("proc/sys/kernel/hostname"))
	i.Kernel = topo.Known(machine.Text("proc/sys/kernel/osrelease"))
	i.CPUs = topo.Known(topo.Allowed())
	if len(i.CPUs.Value) > 0 {
		i.Cores = topo.Known(machine.Cores(i.CPUs.Value))
		size, shared, err := machine.LastCache(i.CPUs.Value[0])
		i.LastCache = topo.Known(cache{size, shared}, err)
	} else {
		i.Cores.Error, i.LastCache.Error = i.CPUs.Error, i.CPUs.Error
	}
	i.NUMA = topo.Known(machine.Nodes())
	total, available, err := machine.Memory()
	i.Memory = topo.Known(memory{total, available}, err)
	total, available, err = machine.Space("dev/shm")
	i.DevShm = topo.Known(memory{total, available}, err)
	soft, hard, err := machine.Limit("Max locked memory")
	i.Memlock = topo.Known(limit{soft, hard}, err)
	i.Links = topo.Known(machine.Links())
	i.Ptrace = machine.Ptrace()
	i.RDMA, _ = machine.RDMA()
	return i
}

func (i *info) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, text string) { fmt.Fprintf(t, "%s\t%s\n", name, text) }
	row("version", i.Version)
	row("host", textOf(i.Host, plain))
	row("kernel", textOf(i.Kernel, plain))
	row("processors", textOf(i.CPUs, func(c []int) string { return fmt.Sprintf("%d may be used: %s", len(c), topo.FormatCPUs(c)) }))
	row("cores", textOf(i.Cores, func(c [][]int) string { return fmt.Sprint(len(c)) }))
	row("NUMA nodes", textOf(i.NUMA, func(nodes []topo.Node) string {
		if len(nodes) == 0 {
			return "the kernel tells of none"
		}
		var parts []string
		for _, n := range nodes {
			parts = append(parts, fmt.Sprintf("%d with processors %s", n.ID, topo.FormatCPUs(n.CPUs)))
		}
		return strings.Join(parts, "; ")
	}))
	row("last cache", textOf(i.LastCache, func(c cache) string {
		if c.Bytes == 0 {
			return "the kernel does not tell"
		}
		return fmt.Sprintf("%s, shared by processors %s", topo.FormatBytes(c.Bytes), topo.FormatCPUs(c.Shared))
	}))
	row("memory", textOf(i.Memory, func(m memory) string {
		return fmt.Sprintf("%s, %s available", topo.FormatBytes(m.Bytes), topo.FormatBytes(m.Available))
	}))
	row("/dev/shm", textOf(i.DevShm, func(m memory) string {
		return fmt.Sprintf("%s, %s free (Weft does not need it)", topo.FormatBytes(m.Bytes), topo.FormatBytes(m.Available))
	}))
	row("memlock", textOf(i.Memlock, func(l limit) string {
		return fmt.Sprintf("%s, at most %s", topo.FormatBytes(l.Soft), topo.FormatBytes(l.Hard))
	}))
	row("read a peer's memory", i.Ptrace.String())
	row("RDMA devices", i.RDMA.String())
	if i.Verbs != nil {
		i.Verbs.rows(row)
	}
	if i.Links.Error != "" {
		row("interfaces", "unknown ("+i.Links.Error+")")
	}
	for _, l := range i.Links.Value {
		row("interface "+l.Name, describeLink(l))
	}
	for _, tr := range i.Transports {
		row("transport "+tr.Name, tr.Answer.String())
	}
	for _, c := range i.Choice {
		row("choice", c)
	}
	return t.Flush()
}

func plain(s string) string { return s }

func describeLink(l topo.Link) string {
	parts := []string{"down"}
	if l.Up {
		parts[0] = "up"
	}
	if l.Mbit > 0 {
		parts = append(parts, fmt.Sprintf("%d Mbit/s", l.Mbit))
	}
	parts = append(parts, fmt.Sprintf("MTU %d", l.MTU))
	if l.NUMA >= 0 {
		parts = append(parts, fmt.Sprintf("NUMA node %d", l.NUMA))
	}
	if l.Loopback {
		parts = append(parts, "loopback")
	} else if l.Virtual {
		parts = append(parts, "virtual")
	}
	return strings.Join(parts, ", ")
}
