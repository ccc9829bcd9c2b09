package collective

// Node-aware algorithms are made of others in two groups: the ranks of one node, and
// the leaders, one of each node, which are the only ones whose messages leave it. A
// root leads its node, so nothing is passed on to it in the end. N is the number of nodes,
// and q that of the ranks on each. See Karonis et al.: Exploiting hierarchy in parallel
// computer networks to optimize collective operation performance, 2000; Luo et al.:
// HAN: a hierarchical autotuned collective communication framework, 2020.
//
// The Steps of the formulas are those of nodes of one size. Where they differ, a small
// node's leader is ready before the others, so Cost counts them on the schedules.

// nodesCost is the cost of an algorithm of parts: those inside every node, and that
// between.
func nodesCost(s Shape, run func(p group, a Args) error, inside func(node Shape) Cost, between Cost) Cost {
	c := between
	c.Between = between.Bytes
	for n := range s.Nodes.Nodes() {
		node := s
		node.Nodes = nil
		if s.Nodes != nil {
			node.Ranks, node.Root = s.Nodes.of(n), 0
			if s.Nodes.Node(s.Root) == n {
				node.Root = int(s.Nodes.place[s.Root])
			}
		}
		in := inside(node)
		c.Messages += in.Messages
		c.Bytes += in.Bytes
		if n == 0 {
			c.Steps += in.Steps
		}
	}
	if !s.Nodes.equal() {
		c.Steps = stepsOf(s, run)
	}
	return c
}

// leadersShape is the shape of what the leaders do.
func leadersShape(s Shape) Shape {
	s.Ranks, s.Root, s.Nodes = s.Nodes.Nodes(), s.Nodes.Node(s.Root), nil
	return s
}

// byNodes makes an algorithm in which the same part runs inside every node and between the
// leaders, whichever comes first.
func byNodes(kind Kind, name string, part Algorithm, run func(p group, a Args) error) Algorithm {
	return Algorithm{
		Kind: kind, Name: name, NodeAware: true,
		Cost: func(s Shape) Cost { return nodesCost(s, run, part.Cost, part.Cost(leadersShape(s))) },
		time: func(l lane, n int) float64 { return part.time(l.node(), n) + part.time(l.leaders(), n) },
		run:  run,
	}
}

// and adds the cost of what comes after.
func (c Cost) and(d Cost) Cost {
	c.Steps += d.Steps
	c.Messages += d.Messages
	c.Bytes += d.Bytes
	return c
}

// stepsOf counts the steps of an algorithm whose messages do not depend on the length
// of the vector, on the schedules of all ranks.
func stepsOf(s Shape, run func(p group, a Args) error) int {
	nothing := func(inout, in []byte) {}
	a := Args{Root: s.Root, Nodes: s.Nodes, Op: Op{Size: 1, Commutative: true, Left: nothing, Right: nothing}}
	type place struct {
		steps []int32 // a rank sent to, or ^ a rank received from, or wait
		clock int
		sends int
		dues  []int32
		stops int32 // the rank whose message it waits for
	}
	const wait = -1 << 31
	type pair struct{ src, dst int32 }
	ranks := make([]place, s.Ranks)
	stamps := make(map[pair][]int)
	ready := make([]int32, 0, s.Ranks)
	for r := range ranks {
		sched := Schedule{rank: r, size: s.Ranks}
		if run(whole((*recorder)(&sched)), a) != nil {
			return 0 // a recorder makes no errors
		}
		for i := range sched.steps {
			switch step := &sched.steps[i]; step.Kind {
			case StepSend:
				ranks[r].steps = append(ranks[r].steps, step.Peer)
			case StepRecv:
				ranks[r].steps = append(ranks[r].steps, ^step.Peer)
			case StepWait:
				ranks[r].steps = append(ranks[r].steps, wait)
			}
		}
		ranks[r].stops = -1
		ready = append(ready, int32(r))
	}
	longest := 0
	for len(ready) > 0 {
		me := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		r := &ranks[me]
		r.stops = -1
		for len(r.steps) > 0 && r.stops < 0 {
			switch step := r.steps[0]; {
			case step >= 0:
				r.sends++
				to := pair{me, step}
				stamps[to] = append(stamps[to], r.clock+r.sends)
				if ranks[step].stops == me {
					ranks[step].stops = -1
					ready = append(ready, step)
				}
			case step != wait:
				r.dues = append(r.dues, ^step)
			default:
				for _, src := range r.dues {
					if len(stamps[pair{src, me}]) == 0 {
						r.stops = src
					}
				}
				if r.stops >= 0 {
					continue
				}
				in := r.clock
				for _, src := range r.dues {
					q := stamps[pair{src, me}]
					in = max(in+1, q[0])
					stamps[pair{src, me}] = q[1:]
				}
				r.clock = max(r.clock+r.sends, in)
				r.sends, r.dues = 0, r.dues[:0]
				longest = max(longest, r.clock)
			}
			r.steps = r.steps[1:]
		}
	}
	return longest
}
