package collective

// Model is what messages and work cost, in seconds: LogGP (Alexandrov et al.: LogGP:
// incorporating long messages into the LogP model, 1995) with other parameters inside
// a node than between nodes, where the ranks of a node share one card. All ranks of a
// group have the same one, as they choose algorithms by it.
type Model struct {
	Inside  Link    `json:"inside"`  // a node
	Between Link    `json:"between"` // nodes
	Reduce  float64 `json:"reduce_per_byte_s"`
	Copy    float64 `json:"copy_per_byte_s"`
}

// Link is what a message costs.
type Link struct {
	Latency  float64 `json:"latency_s"`  // L: from one network card to another
	Overhead float64 `json:"overhead_s"` // o: processor time for a message, on each side
	Gap      float64 `json:"gap_s"`      // g: between two messages of one card
	PerByte  float64 `json:"per_byte_s"` // G
	// Rendezvous is the longest message that is sent without asking the receiver,
	// which costs a round trip; 0 if none is asked.
	Rendezvous int `json:"rendezvous_bytes"`
}

// What links cost where nobody has measured them, in round numbers.
var (
	// OneHost is of ranks that share memory.
	OneHost = Link{Latency: 80e-9, Overhead: 60e-9, Gap: 120e-9, PerByte: 0.1e-9, Rendezvous: 16 << 10}
	// Ethernet is of TCP.
	Ethernet = Link{Latency: 8e-6, Overhead: 2e-6, Gap: 3e-6, PerByte: 0.4e-9, Rendezvous: 64 << 10}
	// InfiniBand is of verbs, on cards of 100 Gbit/s.
	InfiniBand = Link{Latency: 800e-9, Overhead: 300e-9, Gap: 100e-9, PerByte: 0.08e-9, Rendezvous: 16 << 10}
)

// NewModel returns a model with the usual speed of processors.
func NewModel(inside, between Link) *Model {
	return &Model{Inside: inside, Between: between, Reduce: 0.05e-9, Copy: 0.05e-9}
}

// Crowded returns the model for ranks of which several share a core: then a message waits
// until its receiver has its turn, and ranks do one after the other what they have to do
// with its bytes.
func (m Model) Crowded() *Model {
	const turn, share = 100e-6, 4
	for _, k := range []*Link{&m.Inside, &m.Between} {
		k.Latency += turn
		k.PerByte *= share
	}
	m.Reduce *= share
	m.Copy *= share
	return &m
}

// times is a product that is rounded. Without the conversion the compiler may fuse it with
// an addition on some processors, and ranks on different ones would choose differently.
func times(n int, t float64) float64 { return float64(float64(n) * t) }

// Asks returns what a message of n bytes costs before it is sent.
func (k *Link) Asks(n int) float64 {
	if k.Rendezvous == 0 || n <= k.Rendezvous {
		return 0
	}
	return 2 * (k.Latency + 2*k.Overhead)
}

// busy is how long a message of n bytes keeps its sender and its receiver, when so many
// ranks of each node send one at once.
func (k *Link) busy(n, share int) float64 {
	wire := times(n, k.PerByte)
	return 2*k.Overhead + k.Asks(n) + wire + times(share-1, max(k.Gap, wire))
}

// port is how long a card takes for a number of messages of n bytes, that processors are
// quick enough to hand to it.
func (k *Link) port(messages, n int) float64 {
	return times(messages, max(k.Gap, times(n, k.PerByte)))
}

// turn is how long the next message has to wait for one of n bytes.
func (k *Link) turn(n, share int) float64 {
	return k.Overhead + k.Asks(n) + times(share, max(k.Gap, times(n, k.PerByte)))
}

// burst is how long a card takes for a number of messages of n bytes.
func (k *Link) burst(messages, n int) float64 {
	return times(messages, max(k.Gap, k.Overhead, times(n, k.PerByte)))
}

// lane is a group of ranks as the times of algorithms see it. They are those of the
// longest chain of messages, worked out in closed form, for a root on rank 0.
type lane struct {
	*Model
	ranks int
	nodes *Topology // of all ranks; nil in a part of an algorithm
	share int       // in a part: 0 inside a node; else every message leaves its node, and so many at once
}

// leaving returns how many ranks of a node send to another one at a distance, of the levels
// that a topology has for such messages.
func (l lane) leaving(levels func(t *Topology) []int32, dist int) int {
	if l.nodes == nil {
		return l.share
	}
	return int(levels(l.nodes)[log2(dist)])
}

func rings(t *Topology) []int32 { return t.ring }
func mates(t *Topology) []int32 { return t.pair }
func trees(t *Topology) []int32 { return t.tree }

// most is the largest number of ranks of a node.
func (l lane) most() int {
	if l.nodes == nil {
		return max(l.share, 1)
	}
	return l.nodes.most
}

// hop is a message from start to end.
func (l lane) hop(n, share int) float64 {
	inside := l.Inside.Latency + l.Inside.busy(n, 1)
	if share == 0 {
		return inside
	}
	t := l.Between.Latency + l.Between.busy(n, share)
	if l.nodes != nil && l.nodes.most > 1 {
		return max(t, inside) // others send inside meanwhile
	}
	return t
}

// exchange: ranks whose numbers differ in one bit exchange n bytes.
func (l lane) exchange(dist, n int) float64 { return l.hop(n, l.leaving(mates, dist)) }

// shift: every rank sends n bytes to the rank dist above or below it.
func (l lane) shift(dist, n int) float64 { return l.hop(n, l.leaving(rings, dist)) }

// stage is what each segment of n bytes adds to a pipeline of neighbours.
func (l lane) stage(n int) float64 {
	share := l.leaving(rings, 1)
	switch {
	case share == 0:
		return l.Inside.busy(n, 1)
	case l.nodes != nil && l.nodes.most > 1:
		return max(l.Inside.busy(n, 1), l.Between.busy(n, share))
	}
	return l.Between.busy(n, share)
}

// along: n bytes go from each rank to the next one, through all but one. So many times they
// leave a node.
func (l lane) along(n, next int) float64 {
	if l.nodes == nil && l.share > 0 {
		next = l.ranks - 1
	}
	return times(next, l.hop(n, max(l.leaving(rings, 1), 1))) + times(l.ranks-1-next, l.hop(n, 0))
}

// pairs: every rank exchanges n bytes with each other one, in steps.
func (l lane) pairs(n int) float64 {
	share := l.share
	if q := l.most(); l.nodes != nil {
		share = (q*(l.ranks-q) + l.ranks - 2) / (l.ranks - 1)
	}
	return times(l.ranks-1, l.hop(n, share))
}

// posted: every rank exchanges n bytes with each other one, up to window of them at once.
func (l lane) posted(n int) float64 {
	steps := l.ranks - 1
	if steps == 0 {
		return 0
	}
	rounds := (steps + window - 1) / window
	k, cross := &l.Inside, 0 // messages that leave a node
	if q := l.most(); l.share > 0 || l.nodes != nil {
		k = &l.Between
		if cross = q * (l.ranks - q); l.share > 0 {
			cross = q * steps
		}
	}
	card := max(l.Inside.port(steps-cross/l.most(), n), l.Between.port(cross, n))
	return times(rounds, k.Latency+k.Asks(n)) + max(times(2*steps, k.Overhead), card)
}

// fan: one rank receives n bytes from each other one, or sends them.
func (l lane) fan(n int) float64 {
	others := l.ranks - 1
	near, asks := others, l.Inside.Asks(n)
	t := l.Inside.Latency + l.Inside.Overhead
	switch {
	case l.nodes != nil:
		near = l.nodes.most - 1
		t, asks = l.Between.Latency+l.Between.Overhead, l.Between.Asks(n)
	case l.share > 0:
		near = 0
		t, asks = l.Between.Latency+l.Between.Overhead, l.Between.Asks(n)
	}
	rounds := (others + window - 1) / window
	return t + times(rounds, asks) + l.Inside.burst(near, n) + l.Between.burst(others-near, n)
}

func (l lane) reduce(n int) float64 { return times(n, l.Reduce) }
func (l lane) copy(n int) float64   { return times(n, l.Copy) }

// node returns the part inside the largest node, leaders that of one rank of each.
func (l lane) node() lane    { return lane{Model: l.Model, ranks: l.nodes.Most(l.ranks)} }
func (l lane) leaders() lane { return l.columns(1) }

// columns returns a part of one rank of each node, while so many of them are at work.
func (l lane) columns(share int) lane {
	return lane{Model: l.Model, ranks: l.nodes.Nodes(), share: share}
}

// The times of what several algorithms have in common.

// folded adds what the ranks beyond the largest power of two cost: they hand over
// n bytes, which are combined, and are handed back bytes.
func (l lane) folded(n, back int) float64 {
	if l.ranks == floor2(l.ranks) {
		return 0
	}
	t := l.exchange(1, n) + l.reduce(n)
	if back >= 0 {
		t += l.exchange(1, back)
	}
	return t
}

// halves: vectors of n bytes are halved again and again, and combined.
func (l lane) halves(n int) (t float64) {
	for dist := 1; dist < floor2(l.ranks); dist <<= 1 {
		n /= 2
		t += l.exchange(dist, n) + l.reduce(n)
	}
	return t
}

// unhalved: the halves of a vector of n bytes are put together again.
func (l lane) unhalved(n int) (t float64) {
	for dist := 1; dist < floor2(l.ranks); dist <<= 1 {
		n /= 2
		t += l.exchange(dist, n)
	}
	return t
}

// levels: at distances 1, 2, 4 ... below end messages of so many bytes are sent. On the
// longest way at most so many of them leave a node, and of those over less than a node
// one, where ranks are numbered node by node; the others only take their turn.
func (l lane) levels(leaving func(t *Topology) []int32, most, end int, bytes func(dist int) int) (t float64) {
	near := most
	if l.nodes != nil && l.nodes.ordered {
		near = 1
	}
	for dist := floor2(max(end-1, 1)); dist > 0 && dist < end; dist >>= 1 {
		n, share := bytes(dist), l.leaving(leaving, dist)
		if l.nodes != nil && share > 0 {
			if dist < l.nodes.most {
				near--
			}
			if most--; most < 0 || near < 0 {
				t += max(l.hop(n, 0), l.Between.turn(n, share))
				continue
			}
		}
		t += l.hop(n, share)
	}
	return t
}

// collected: blocks of n bytes come together, twice as many at each step.
func (l lane) collected(n int) float64 {
	return l.levels(rings, l.nodes.out().loop, l.ranks, func(dist int) int { return n * min(dist, l.ranks-dist) })
}

// grown: blocks of n bytes go up or down a binomial tree.
func (l lane) grown(n int) float64 {
	return l.levels(trees, l.nodes.out().deep, l.ranks, func(dist int) int { return n * min(dist, l.ranks-dist) })
}

// down: n bytes go down a binomial tree, or up. No way goes through all levels unless the
// ranks are a power of two.
func (l lane) down(n int) float64 {
	q := floor2(l.ranks)
	t := l.levels(trees, l.nodes.out().deep, q, func(int) int { return n })
	if q < l.ranks {
		if share := l.leaving(trees, q); share > 0 {
			return t + l.Between.turn(n, share)
		}
		t += l.Inside.turn(n, 1)
	}
	return t
}

// prefixes: everyone sends n bytes twice as far at each step, and combines them. No way
// goes through all steps unless the ranks are a power of two.
func (l lane) prefixes(n, works int) float64 {
	q := floor2(l.ranks)
	t := l.levels(rings, l.nodes.out().next, q, func(int) int { return n }) + times(works*log2(q), l.reduce(n))
	if q < l.ranks {
		t += l.stage(n) + l.reduce(n)
	}
	return t
}

// around: each rank passes on n bytes to the next one, until each has had all. That takes
// as long as one has to go, or as the slowest has to pass on all.
func (l lane) around(n int) float64 {
	return max(l.along(n, min(l.nodes.out().loop, l.ranks-1)), times(l.ranks-1, l.stage(n)))
}

// piped: segments go along all ranks. work is what a rank does with one.
func (l lane) piped(s split, work float64) float64 {
	if l.ranks == 1 {
		return 0
	}
	n := s.longest()
	return l.along(n, l.nodes.out().next) + times(l.ranks-1, work) + times(s.parts-1, l.stage(n)+work)
}

// each returns a rank's part of n bytes.
func (l lane) each(n int) int { return (n + l.ranks - 1) / l.ranks }
