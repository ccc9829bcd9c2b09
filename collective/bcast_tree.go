package collective

// bcastTree: segments go down a binary tree. Numbered from the root, rank v has
// the children 2v+1 and 2v+2. For long vectors on many ranks: the depth is
// logarithmic, but an inner rank sends each byte twice.
//
//	steps     2K - 1 at the root's first child and 2K at its second; each level
//	          down adds 2 for a first child and 3 for a second (1 and 2 if K is
//	          1), and 1 for an only one; the longest of the ways
//	messages  (P-1) K, K segments (see segments)
//	bytes     (P-1) S
//	memory    none
//
// Pjesivac-Grbovic et al. 2007; MPI 4.1, 6.4.
var bcastTree = Algorithm{
	Kind: KindBcast, Name: "tree",
	Cost: func(s Shape) Cost {
		k := treeSegments(s.Bytes, s.Ranks).parts
		if s.Ranks == 1 {
			return Cost{}
		}
		c := Cost{Messages: (s.Ranks - 1) * k, Bytes: (s.Ranks - 1) * s.Bytes}
		for v := 1; v < s.Ranks; v++ {
			c.Steps = max(c.Steps, bcastTreeStep(v, s.Ranks, k))
		}
		return c
	},
	time: func(l lane, n int) float64 {
		if l.ranks == 1 {
			return 0
		}
		s := treeSegments(n, l.ranks)
		n = s.longest()
		depth := log2(l.ranks+1) - 1
		stage := l.Inside.busy(n, 2) + l.Inside.Overhead
		cross, share := 0, 2
		switch {
		case l.nodes != nil:
			cross, share = l.nodes.down, l.nodes.fork
		case l.share > 0:
			cross, share = depth, 2*l.share
		}
		if cross > 0 {
			stage = max(stage, l.Between.busy(n, share)+l.Between.Overhead)
		}
		return times(depth-cross, l.hop(n, 0)+l.Inside.turn(n, 1)) + times(cross, l.Between.Latency+l.Between.busy(n, share)) + times(s.parts-1, stage)
	},
	run: func(p group, a Args) error {
		size := p.Size()
		s := treeSegments(len(a.Recv), size)
		v := (p.Rank() - a.Root + size) % size
		peer := func(v int) int { return (v + a.Root) % size }
		first, second := 2*v+1, 2*v+2
		for i := range s.parts + 1 {
			gives, takes := first < size && i > 0, v > 0 && i < s.parts
			var out, in []byte
			if gives {
				out = s.of(a.Recv, i-1, i)
			}
			if takes {
				in = s.of(a.Recv, i, i+1)
			}
			if err := exchange(p, gives, out, peer(first), takes, in, peer((v-1)/2)); err != nil {
				return err
			}
			if i > 0 && second < size {
				if err := p.Send(out, peer(second)); err != nil {
					return err
				}
			}
		}
		return nil
	},
}

// treeSegments cuts a vector for the tree, where an inner rank takes two turns for
// a segment.
func treeSegments(bytes, ranks int) split { return segments(bytes, 64, 3*log2(ranks)/2) }

// bcastTreeStep returns when the rank numbered v has received the last of k
// segments.
func bcastTreeStep(v, size, k int) int {
	parent, second := (v-1)/2, v%2 == 0
	two := 2*parent+2 < size // the parent has two children
	switch {
	case parent == 0 && v > 0 && !two:
		return k
	case parent == 0 && second:
		return 2 * k
	case parent == 0:
		return 2*k - 1
	}
	t := bcastTreeStep(parent, size, k)
	switch {
	case !two:
		return t + 1
	case k == 1 && second:
		return t + 2
	case k == 1:
		return t + 1
	case second:
		return t + 3
	}
	return t + 2
}
