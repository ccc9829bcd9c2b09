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

// fact is a value, or why there is none.
type fact[T any] struct {
	Value T      `json:"value"`
	Error string `json:"error,omitempty"` // could not tell, and why
}

func known[T any](v T, err error) fact[T] {
	if err != nil {
		return fact[T]{v, err.Error()}
	}
	return fact[T]{Value: v}
}

// text returns the value as format prints it.
func (f fact[T]) text(format func(T) string) string {
	if f.Error != "" {
		return "unknown (" + f.Error + ")"
	}
	return format(f.Value)
}

// info is what weft info tells. Its JSON form is for other programs: fields are
// added, and never change their meaning.
type info struct {
	Version   string            `json:"version"`
	Host      fact[string]      `json:"host"`
	Kernel    fact[string]      `json:"kernel"`
	CPUs      fact[[]int]       `json:"cpus"`  // that we may use
	Cores     fact[[][]int]     `json:"cores"` // of these
	NUMA      fact[[]topo.Node] `json:"numa"`
	LastCache fact[cache]       `json:"last_cache"`
	Memory    fact[memory]      `json:"memory"`
	DevShm    fact[memory]      `json:"dev_shm"`
	Memlock   fact[limit]       `json:"memlock"`
	Links     fact[[]topo.Link] `json:"links"`
	Ptrace    topo.Answer       `json:"ptrace"`
	RDMA      topo.Answer       `json:"rdma"`

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
	i.Host = known(machine.Text("proc/sys/kernel/hostname"))
	i.Kernel = known(machine.Text("proc/sys/kernel/osrelease"))
	i.CPUs = known(topo.Allowed())
	if len(i.CPUs.Value) > 0 {
		i.Cores = known(machine.Cores(i.CPUs.Value, -1))
		size, shared, err := machine.LastCache(i.CPUs.Value[0])
		i.LastCache = known(cache{size, shared}, err)
	} else {
		i.Cores.Error, i.LastCache.Error = i.CPUs.Error, i.CPUs.Error
	}
	i.NUMA = known(machine.Nodes())
	total, available, err := machine.Memory()
	i.Memory = known(memory{total, available}, err)
	total, available, err = machine.Space("dev/shm")
	i.DevShm = known(memory{total, available}, err)
	soft, hard, err := machine.Limit("Max locked memory")
	i.Memlock = known(limit{soft, hard}, err)
	i.Links = known(machine.Links())
	i.Ptrace = machine.Ptrace()
	i.RDMA, _ = machine.RDMA()
	return i
}

func (i *info) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, text string) { fmt.Fprintf(t, "%s\t%s\n", name, text) }
	row("version", i.Version)
	row("host", i.Host.text(plain))
	row("kernel", i.Kernel.text(plain))
	row("processors", i.CPUs.text(func(c []int) string { return fmt.Sprintf("%d may be used: %s", len(c), topo.FormatCPUs(c)) }))
	row("cores", i.Cores.text(func(c [][]int) string { return fmt.Sprint(len(c)) }))
	row("NUMA nodes", i.NUMA.text(func(nodes []topo.Node) string {
		if len(nodes) == 0 {
			return "the kernel tells of none"
		}
		var parts []string
		for _, n := range nodes {
			parts = append(parts, fmt.Sprintf("%d with processors %s", n.ID, topo.FormatCPUs(n.CPUs)))
		}
		return strings.Join(parts, "; ")
	}))
	row("last cache", i.LastCache.text(func(c cache) string {
		if c.Bytes == 0 {
			return "the kernel does not tell"
		}
		return fmt.Sprintf("%s, shared by processors %s", topo.FormatBytes(c.Bytes), topo.FormatCPUs(c.Shared))
	}))
	row("memory", i.Memory.text(func(m memory) string {
		return fmt.Sprintf("%s, %s available", topo.FormatBytes(m.Bytes), topo.FormatBytes(m.Available))
	}))
	row("/dev/shm", i.DevShm.text(func(m memory) string {
		return fmt.Sprintf("%s, %s free (Weft does not need it)", topo.FormatBytes(m.Bytes), topo.FormatBytes(m.Available))
	}))
	row("memlock", i.Memlock.text(func(l limit) string {
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
