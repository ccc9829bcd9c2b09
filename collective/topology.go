package collective

import "slices"

// Topology says which ranks of a group share a node. It is made once for a group, the
// same on all its ranks, and not changed. A nil one says that all share one.
type Topology struct {
	node    []int32 // of each rank, numbered in the order of their first ranks
	place   []int32 // of each rank among those of its node
	ranks   []int32 // by node, those of one in order
	start   []int32 // node n has ranks[start[n]:start[n+1]]
	columns []int32 // the first rank of each node, then the second of each, as far as all have one
	most    int     // ranks of a node
	leaving
	ordered bool // ranks are numbered node by node
	shares  bool // see Sharing
}

// NewTopology makes one of a number for each rank, which is the same for ranks of one
// node. It returns nil if all are.
func NewTopology(nodes []int) *Topology {
	t := &Topology{node: make([]int32, len(nodes)), place: make([]int32, len(nodes)), ordered: true}
	number := make(map[int]int32)
	var count []int32 // ranks of each node
	for r, n := range nodes {
		dense, ok := number[n]
		if !ok {
			dense = int32(len(count))
			number[n] = dense
			count = append(count, 0)
		}
		t.node[r], t.place[r] = dense, count[dense]
		count[dense]++
		t.ordered = t.ordered && (r == 0 || t.node[r-1] <= dense)
	}
	if len(count) < 2 {
		return nil
	}
	t.most = int(slices.Max(count))
	t.start = make([]int32, len(count)+1)
	for n, c := range count {
		t.start[n+1] = t.start[n] + c
	}
	t.ranks = make([]int32, len(nodes))
	for r, n := range t.node {
		t.ranks[t.start[n]+t.place[r]] = int32(r)
	}
	for i := range slices.Min(count) {
		for n := range count {
			t.columns = append(t.columns, t.ranks[t.start[n]+i])
		}
	}
	t.count()
	return t
}

// A Topology knows what messages leave its nodes, for predictions: of each distance 1, 2, 4 ...
// how many ranks of one node send to another one, on the node where that are most.
type leaving struct {
	ring []int32 // when every rank sends to the one that far above it
	pair []int32 // when ranks exchange whose numbers differ in that bit
	tree []int32 // at that level of a binomial tree
	deep int     // the most on a way down that tree
	fork int     // from the ranks of a node to their children in a binary tree, on the node that sends most
	down int     // the most on a way down the binary tree
	next int     // of all messages from each rank to the next one, up to the last rank
	loop int     // of those and that from the last rank to the first, if it does not stay
}

// count fills in what leaves the nodes.
func (t *Topology) count() {
	size := len(t.node)
	sending := make([]int32, t.Nodes())
	most := func(levels *[]int32, to func(r int) int) {
		clear(sending)
		for r, n := range t.node {
			if dst := to(r); dst >= 0 && dst < size && t.node[dst] != n {
				sending[n]++
			}
		}
		*levels = append(*levels, slices.Max(sending))
	}
	for dist := 1; dist < size; dist <<= 1 {
		most(&t.ring, func(r int) int { return (r + dist) % size })
		most(&t.pair, func(r int) int { return r ^ dist })
		most(&t.tree, func(r int) int {
			if r%(2*dist) > 0 {
				return -1
			}
			return r + dist
		})
	}
	clear(sending)
	forks := make([]int, size)
	for r := 1; r < size; r++ {
		parent := (r - 1) / 2
		forks[r] = forks[parent]
		if t.node[parent] != t.node[r] {
			forks[r]++
			sending[t.node[parent]]++
		}
		t.down = max(t.down, forks[r])
	}
	t.fork = int(slices.Max(sending))
	ways := make([]int, size)
	for r := 1; r < size; r++ {
		parent := r & (r - 1)
		ways[r] = ways[parent]
		if t.node[parent] != t.node[r] {
			ways[r]++
		}
		t.deep = max(t.deep, ways[r])
		if t.node[r-1] != t.node[r] {
			t.next++
		}
	}
	t.loop = t.next
	if t.node[0] != t.node[size-1] {
		t.loop++
	}
}

var nothing leaving // of a single node

// out returns what leaves the nodes.
func (t *Topology) out() *leaving {
	if t == nil {
		return &nothing
	}
	return &t.leaving
}

// Nodes returns the number of nodes.
func (t *Topology) Nodes() int {
	if t == nil {
		return 1
	}
	return len(t.start) - 1
}

// Most returns the largest number of ranks on one node, of so many ranks.
func (t *Topology) Most(ranks int) int {
	if t == nil {
		return ranks
	}
	return t.most
}

// Node returns the node of a rank. Nodes are numbered in the order of their first
// ranks.
func (t *Topology) Node(rank int) int {
	if t == nil {
		return 0
	}
	return int(t.node[rank])
}

// of returns the number of ranks on a node.
func (t *Topology) of(node int) int { return int(t.start[node+1] - t.start[node]) }

// equal says that all nodes have the same number of ranks.
func (t *Topology) equal() bool { return t == nil || len(t.columns) == len(t.ranks) }

// keepsOrder says that ranks are in order when they are taken node by node.
func (t *Topology) keepsOrder() bool { return t == nil || t.ordered }

// inside returns the ranks on this rank's node.
func (t *Topology) inside(p group) group {
	if t == nil {
		return p
	}
	members, me := t.Mates(p.me)
	return group{Peer: p.Peer, members: members, at: -1, me: me}
}

// Mates returns the ranks on a rank's node, and which of them it is. The topology is not nil.
func (t *Topology) Mates(rank int) (ranks []int32, place int) {
	n := t.node[rank]
	return t.ranks[t.start[n]:t.start[n+1]], int(t.place[rank])
}

// column returns the ranks that have this rank's place on their nodes, in the order
// of the nodes. All nodes have that place.
func (t *Topology) column(p group) group {
	if t == nil {
		return group{Peer: p.Peer, members: alone, standIn: p.me}
	}
	nodes, place := t.Nodes(), int(t.place[p.me])
	return group{Peer: p.Peer, members: t.columns[place*nodes : (place+1)*nodes], at: -1, me: int(t.node[p.me])}
}

// alone are the members of a group of one.
var alone = []int32{0}

// leads says whether this rank leads its node: the root leads its own, the first
// rank any other.
func (t *Topology) leads(p group, root int) bool {
	if p.me == root || t == nil {
		return p.me == root
	}
	return t.place[p.me] == 0 && t.node[p.me] != t.node[root]
}

// leader returns the place on this rank's node of the one that leads it.
func (t *Topology) leader(p group, root int) int {
	switch {
	case t == nil:
		return root
	case t.node[p.me] == t.node[root]:
		return int(t.place[root])
	}
	return 0
}

// leaders returns the ranks that lead their nodes, in the order of the nodes, on one
// of them.
func (t *Topology) leaders(p group, root int) group {
	if t == nil {
		return group{Peer: p.Peer, members: alone, standIn: p.me}
	}
	return group{Peer: p.Peer, members: t.columns[:t.Nodes()], at: int(t.node[root]), standIn: root, me: int(t.node[p.me])}
}
