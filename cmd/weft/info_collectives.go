package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/weft-hpc/weft"
	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/board"
)

// collectivesOptions are what the command line of weft info --collectives says.
type collectivesOptions struct {
	show         bool
	ranks, nodes int
	model        string
	between      string
	sizes        []int
	json         bool
}

// collectivesInfo is what runs for the collectives of one group of ranks. Its JSON form is
// for other programs.
type collectivesInfo struct {
	Ranks    int              `json:"ranks"`
	Nodes    int              `json:"nodes"`
	From     string           `json:"model_from"`
	Model    collective.Model `json:"model"`
	Shared   []string         `json:"shared_memory"`        // collectives that go there first
	Hosted   bool             `json:"shared_memory_inside"` // leaders of barrier, allgather and allreduce go there, inside a node
	Choices  []choiceInfo     `json:"choices"`
	chooser  *collective.Chooser
	topology *collective.Topology
}

type choiceInfo struct {
	Collective string   `json:"collective"`
	Size       int      `json:"size_bytes"` // of the vector, or of a block
	Algorithm  string   `json:"algorithm"`
	Seconds    float64  `json:"seconds"`
	Why        string   `json:"why"`
	Forced     []string `json:"can_be_forced"`
}

// collectivesHere tells about the job that this process is a rank of, or of the ranks that the
// options describe. Only rank 0 of a job prints.
func collectivesHere(ctx context.Context, o *collectivesOptions, out io.Writer) (err error) {
	for _, size := range o.sizes {
		if size < 0 {
			return fmt.Errorf("a size of %d bytes", size)
		}
	}
	if o.ranks != 0 {
		return o.described(out)
	}
	w, err := weft.Init(ctx)
	if errors.Is(err, weft.ErrNotLaunched) { // in a job script, say
		return o.described(out)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close(ctx)) }()
	if w.Comm().Size() == 1 {
		return o.described(out)
	}
	node, err := w.Comm().SplitNode(ctx)
	if err != nil {
		return err
	}
	first, err := weft.BcastValue(ctx, node, w.Comm().Rank(), 0)
	if err != nil {
		return err
	}
	nodes, err := weft.AllgatherValue(ctx, w.Comm(), first)
	if err != nil {
		return errors.Join(err, node.Close(ctx))
	}
	shares, err := sharing(ctx, w.Comm(), node)
	if err != nil || w.Comm().Rank() != 0 {
		return errors.Join(err, node.Close(ctx))
	}
	m, from := w.Model()
	return errors.Join(newCollectivesInfo(&m, from, nodes, shares).tell(o, out), node.Close(ctx))
}

// sharing tells whether the ranks of a node map each other's memory, which all nodes of a job do, or none.
func sharing(ctx context.Context, all, node *weft.Comm) (bool, error) {
	p, err := weft.PlanBarrier(node)
	if err != nil {
		return false, err
	}
	n := 0
	if p.Explain().Algorithm == "shared-memory" {
		n = 1
	}
	n, err = weft.AllreduceValue(ctx, all, n, weft.Max[int]()) // some nodes may have one rank
	return n > 0, err
}

// described tells about the ranks that the options describe.
func (o *collectivesOptions) described(out io.Writer) error {
	if o.ranks == 0 {
		o.ranks = runtime.NumCPU()
	}
	if o.ranks < 1 || o.nodes < 1 || o.nodes > o.ranks {
		return fmt.Errorf("-n %d --nodes %d: each node has at least one rank", o.ranks, o.nodes)
	}
	links := map[string]collective.Link{"tcp": collective.Ethernet, "verbs": collective.InfiniBand}
	link, ok := links[o.between]
	if !ok {
		return fmt.Errorf("no transport %q between nodes; there are tcp and verbs", o.between)
	}
	m, from := collective.NewModel(collective.OneHost, link), "default for shm inside a host, "+o.between+" between hosts"
	if o.model != "" {
		b, err := os.ReadFile(o.model)
		if err == nil {
			m, err = collective.ParseModel(b)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", o.model, err)
		}
		from = o.model
	}
	nodes := make([]int, o.ranks)
	for i := range nodes {
		nodes[i] = i * o.nodes / o.ranks
	}
	return newCollectivesInfo(m, from, nodes, true).tell(o, out)
}

func newCollectivesInfo(m *collective.Model, from string, nodes []int, shares bool) *collectivesInfo {
	i := &collectivesInfo{Ranks: len(nodes), From: from, Model: *m, topology: collective.NewTopology(nodes)}
	if shares && i.topology.Most(i.Ranks) <= board.MaxRanks {
		i.topology, i.Hosted = i.topology.Sharing(), i.topology != nil
	}
	i.Nodes = i.topology.Nodes()
	i.chooser = collective.NewChooser(&i.Model, i.Ranks, i.topology)
	return i
}

// fill works out what runs.
func (i *collectivesInfo) fill(sizes []int) {
	for _, kind := range collective.Kinds() {
		if board.Serves(kind) && i.Nodes == 1 && i.Ranks > 1 && i.Ranks <= board.MaxRanks {
			i.Shared = append(i.Shared, kind.String())
		}
		var forced []string
		for _, name := range collective.Algorithms(kind) {
			if alg, err := collective.Lookup(kind, name); err == nil && alg.Suits(i.Ranks, i.topology, true) {
				forced = append(forced, name)
			}
		}
		for n, size := range sizes {
			s := modelShape(kind, i.Ranks, size)
			switch kind {
			case collective.KindBarrier, collective.KindGatherv, collective.KindScatterv, collective.KindAlltoallv:
				if n > 0 { // the length is no part of the choice
					continue
				}
				size, s.Bytes = 0, 0
			}
			alg, why := i.chooser.Explain(kind, s.Bytes, &collective.Op{Commutative: true})
			i.Choices = append(i.Choices, choiceInfo{kind.String(), size, alg.Name, i.chooser.Predict(alg, s.Bytes), why, forced})
		}
	}
}

func (i *collectivesInfo) tell(o *collectivesOptions, out io.Writer) error {
	i.fill(o.sizes)
	if o.json {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(i)
	}
	fmt.Fprintf(out, "ranks %d, nodes %d; model: %s\n", i.Ranks, i.Nodes, i.From)
	fmt.Fprintf(out, "inside a node: %s\nbetween nodes: %s\n", describeModelLink(&i.Model.Inside), describeModelLink(&i.Model.Between))
	if len(i.Shared) > 0 {
		fmt.Fprintf(out, "shared-memory runs these where the data can be reached, and what is below otherwise: %s\n", strings.Join(i.Shared, ", "))
	}
	if i.Hosted {
		fmt.Fprintln(out, "leaders and leaders-... of barrier, allgather and allreduce go over shared memory inside a node, where the data can be reached")
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	last := ""
	for _, c := range i.Choices {
		if c.Collective != last {
			last = c.Collective
			forced := c.Forced
			if slices.Contains(i.Shared, c.Collective) {
				forced = append(slices.Clone(forced), "shared-memory")
			}
			fmt.Fprintf(t, "\n%s; WithAlgorithm takes %s\n", c.Collective, strings.Join(forced, ", "))
		}
		fmt.Fprintf(t, "  %d\t%s\t%s\n", c.Size, c.Algorithm, c.Why)
	}
	return t.Flush()
}
