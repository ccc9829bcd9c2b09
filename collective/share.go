package collective

// Sharer is a Peer whose ranks may reach each other's memory inside a node.
type Sharer interface {
	Peer

	// Share does a phase of the operation among the ranks of this rank's node, by their places there,
	// without messages. False says that nothing was done, on none of them, and that messages are due. a is
	// not used after the call.
	Share(phase Phase, k Kind, a Args) (done bool, err error)
}

// Phase is a part of a node-aware algorithm inside the nodes, of an operation in which all ranks wait for all others:
// barrier, allgather, allreduce. All of these have both phases on every rank, in this order. In a broadcast or a reduction to one rank
// some may run far ahead of the others, and memory that is shared holds them back sooner than messages do.
type Phase uint8

// The phases.
const (
	Up   Phase = iota // before anything goes between nodes
	Down              // after it
	phases
)

// Phases is the number of phases.
const Phases = int(phases)

// Sharing returns the topology with the word that ranks reach each other's memory inside each node, as far as
// algorithms are chosen by it.
func (t *Topology) Sharing() *Topology {
	if t == nil {
		return nil
	}
	shared := *t
	shared.shares = true
	return &shared
}

// share does a phase by alg, among the ranks of this rank's node: over shared memory, if they have it, else by messages.
func (t *Topology) share(p group, phase Phase, alg *Algorithm, a Args) error {
	node := t.inside(p)
	if t == nil || !t.shares || node.Size() == 1 {
		return alg.run(node, a)
	}
	switch s := p.Peer.(type) {
	case *recorder:
		at := len(s.steps)
		s.steps = append(s.steps, Step{Kind: StepShare, Share: alg.Kind, Phase: phase, Peer: int32(a.Root), A: a.Send, B: a.Recv})
		err := alg.run(node, a)
		s.steps[at].Else = len(s.steps) - at - 1
		return err
	case Sharer:
		if done, err := s.Share(phase, alg.Kind, a); done || err != nil {
			return err
		}
	}
	return alg.run(node, a)
}

// inPhases returns the cost inside a node of an algorithm in phases, which is inside where they go by messages.
func inPhases(nodes *Topology, inside func(node Shape) Cost) func(node Shape) Cost {
	if nodes == nil || !nodes.shares {
		return inside
	}
	return func(Shape) Cost { return Cost{} }
}

const (
	besideFlags   = 4 << 10   // up to so many bytes are taken with the word that they are there
	throughBuffer = 256 << 10 // and up to so many can be had whatever memory they are in
)

// inside is the time of a phase of n bytes.
func (l lane) inside(alg *Algorithm, n int) float64 {
	if l.nodes == nil || !l.nodes.shares || n > throughBuffer {
		return alg.time(l.node(), n)
	}
	others := l.nodes.most - 1
	if others == 0 {
		return 0
	}
	wait := l.Inside.Latency + 2*l.Inside.Overhead
	t := wait + l.copy(n)
	if alg.Kind != KindBcast { // one rank looks at all others
		t += times(others-1, l.Inside.Overhead)
	}
	switch {
	case n > besideFlags: // each rank its part, and until nobody touches the memory any more
		t += wait
		if alg.Kind == KindReduce {
			t += l.reduce(n)
		}
	case alg.Kind == KindReduce:
		t += times(others, l.reduce(n))
	default: // out of where it is posted
		t += l.copy(n)
	}
	return t
}
