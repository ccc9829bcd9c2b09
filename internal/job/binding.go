package job

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/internal/topo"
)

// Map says how ranks are dealt out: hosts first, then the processors of each.
type Map uint8

const (
	MapSlot   Map = iota // one host after the other; there, core by core
	MapNode              // to the hosts in turn; there, core by core
	MapCore              // as MapSlot
	MapSocket            // one host after the other; there, to the sockets in turn
	MapNUMA              // the same with NUMA nodes
)

// Bind says what ranks are bound to.
type Bind uint8

const (
	BindDefault Bind = iota // core where the ranks fit, else what they are mapped by, if that is more than a core, else none
	BindNone
	BindCore
	BindSocket
	BindNUMA
)

// Maps and Binds have the names of the values, in their order; BindDefault has none.
var (
	Maps  = []string{"slot", "node", "core", "socket", "numa"}
	Binds = []string{"", "none", "core", "socket", "numa"}
)

// layout is where the ranks of one host run.
type layout struct {
	to    Bind // none, core, socket or numa
	cores []topo.Core
	of    []int // by local rank: index of its core
}

// arrange deals n ranks out to cores, as topo gives them. It is pure: each agent does it for the
// cores of its own host, which need not be like those of others. More ranks than cores go round
// again. An error means that what was asked for cannot be.
func arrange(cores []topo.Core, n int, by Map, to Bind) (layout, error) {
	if to == BindDefault {
		switch {
		case n <= len(cores):
			to = BindCore
		case by == MapSocket:
			to = BindSocket
		case by == MapNUMA:
			to = BindNUMA
		default:
			to = BindNone
		}
	}
	if to == BindCore && n > len(cores) || len(cores) == 0 {
		return layout{}, fmt.Errorf("%s but %s may be used", count(n, "rank"), count(len(cores), "core"))
	}
	l := layout{to: to, cores: cores, of: make([]int, 0, n)}
	var parts [][]int // cores that are filled in turn
	for i := range cores {
		if i > 0 && (by != MapSocket && by != MapNUMA || same(cores[i-1], cores[i], by == MapNUMA)) {
			parts[len(parts)-1] = append(parts[len(parts)-1], i)
		} else {
			parts = append(parts, []int{i})
		}
	}
	for len(l.of) < n {
		for turn, full := 0, false; !full; turn++ { // a round in which each core gets one rank
			full = true
			for _, part := range parts {
				if turn < len(part) && len(l.of) < n {
					l.of = append(l.of, part[turn])
					full = false
				}
			}
		}
	}
	return l, nil
}

// same tells whether two cores are on one socket, or on one NUMA node.
func same(a, b topo.Core, node bool) bool {
	return a.Socket == b.Socket && (!node || a.Node == b.Node)
}

// cpus returns the processors that a rank is bound to; nil for no binding.
func (l *layout) cpus(local int) []int {
	own := l.cores[l.of[local]]
	switch l.to {
	case BindCore:
		return own.CPUs
	case BindSocket, BindNUMA:
		var all []int
		for _, c := range l.cores {
			if same(own, c, l.to == BindNUMA) {
				all = append(all, c.CPUs...)
			}
		}
		slices.Sort(all)
		return all
	}
	return nil
}

// names says what a rank is bound to.
func (l *layout) names(local int) string {
	own := l.cores[l.of[local]]
	switch l.to {
	case BindCore:
		return fmt.Sprintf("a core of socket %d, NUMA node %d", own.Socket, own.Node)
	case BindSocket:
		return fmt.Sprintf("socket %d", own.Socket)
	case BindNUMA:
		return fmt.Sprintf("NUMA node %d of socket %d", own.Node, own.Socket)
	}
	return "none"
}

// bind decides on binding.
func (p *Plan) bind(machine topo.Root) error {
	allowed, err := topo.Allowed()
	if err == nil {
		allowed, err = machine.Usable(allowed)
	}
	if err != nil {
		return &Error{ExitSetup, err}
	}
	p.Allowed = allowed
	n := len(p.Ranks)
	p.Oversubscribed = n > len(allowed)
	if p.Spec.Bind == BindNone {
		p.Binding = "none, as asked for"
		return nil
	}
	asked := p.Spec.Bind != BindDefault || p.Spec.Map > MapNode
	cores, err := machine.Machine(allowed)
	switch {
	case err != nil && asked:
		return failf(ExitSetup, "ranks cannot be bound on host %s, as its cores cannot be told: %w; --bind-to none does without", p.Host, err)
	case err != nil:
		p.Binding = fmt.Sprintf("none: the cores of this host could not be told: %v", err)
		return nil
	}
	near := p.nearCard(machine, cores)
	l, err := arrange(cores, n, p.Spec.Map, p.Spec.Bind)
	switch {
	case err != nil:
		return failf(ExitSetup, "--bind-to %s on host %s: %w (processors %s); ask for fewer ranks or --bind-to none", Binds[p.Spec.Bind], p.Host, err, topo.FormatCPUs(allowed))
	case l.to == BindNone:
		p.Binding = fmt.Sprintf("none: %s do not fit %s", count(n, "rank"), count(len(cores), "core"))
		return nil
	}
	for i := range p.Ranks {
		p.Ranks[i].CPUs, p.Ranks[i].bound = l.cpus(i), l.names(i)
	}
	p.Binding = "each rank to a " + Binds[l.to] + near
	return nil
}

// nearCard sorts the cores so that those on the NUMA nodes of the cards come first, where ranks
// reach other hosts and leave cores free, and says so. Elsewhere, and where the kernel does not
// tell or the user has the ranks spread, the order stays.
func (p *Plan) nearCard(machine topo.Root, cores []topo.Core) (why string) {
	if n := len(p.Ranks); p.Size <= n || n >= len(cores) || p.Spec.Map == MapSocket || p.Spec.Map == MapNUMA {
		return ""
	}
	var cards []topo.Card
	if p.Spec.Transport != "tcp" {
		cards, _ = machine.Cards(true) // what cannot be told only costs the order
	}
	if len(cards) == 0 {
		cards, _ = machine.Cards(false)
	}
	far := func(c topo.Core) bool {
		return !slices.ContainsFunc(cards, func(card topo.Card) bool { return card.Node == c.Node })
	}
	if !slices.ContainsFunc(cores, far) || !slices.ContainsFunc(cores, func(c topo.Core) bool { return !far(c) }) {
		return "" // all are as near
	}
	slices.SortStableFunc(cores, func(a, b topo.Core) int {
		switch fa, fb := far(a), far(b); {
		case fa == fb:
			return 0
		case fa:
			return 1
		}
		return -1
	})
	var names []string
	for _, card := range cards {
		names = append(names, card.Name)
	}
	return ", near " + strings.Join(names, " and ") + " first"
}

// bindings tells for each rank of this host where it may run.
func (p *Plan) bindings() []string {
	out := make([]string, len(p.Ranks))
	for i, r := range p.Ranks {
		if r.CPUs == nil {
			out[i] = fmt.Sprintf("rank %d on host %s is not bound: processors %s", p.Local[i], p.Host, topo.FormatCPUs(p.Allowed))
		} else {
			out[i] = fmt.Sprintf("rank %d on host %s is bound to processors %s: %s", p.Local[i], p.Host, topo.FormatCPUs(r.CPUs), r.bound)
		}
	}
	return out
}
