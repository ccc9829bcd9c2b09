package collective

// Node-aware algorithms are made of others in two groups: the ranks of one node, and
// the leaders, one of each node, which are the only ones whose messages leave it. A
// root leads its node, so nothing is passed on to it in the end. N is the number of nodes,
// and q that of the ranks on each. See Karonis et al.: Exploiting hierarchy in parallel
// computer networks to optimize collective operation performance, 2000; Luo et al.:
// HAN: a hierarchical autotuned collective communication framework, 2020.
//
// The formulas are those of messages everywhere. Where the ranks of a node share memory (Sharer), what barrier, allgather and allreduce
// do inside it takes none.
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
	c := stepCount{ranks: make([]stepRank, s.Ranks), sent: make(map[pair][]int)}
	for r := range c.ranks {
		sched := Schedule{rank: r, size: s.Ranks}
		if run(whole((*recorder)(&sched)), a) != nil {
			return 0 // a recorder makes no errors
		}
		for i := 0; i < len(sched.steps); i++ {
			switch step := &sched.steps[i]; step.Kind {
			case StepShare:
				i += step.Else
			case StepSend, StepRecv, StepWait:
				c.ranks[r].steps = append(c.ranks[r].steps, stepTo{step.Kind, step.Peer})
			}
		}
		c.ranks[r].stops = -1
		c.ready = append(c.ready, int32(r))
	}
	for len(c.ready) > 0 {
		me := c.ready[len(c.ready)-1]
		c.ready = c.ready[:len(c.ready)-1]
		c.advance(me)
	}
	return c.longest
}

// stepCount plays schedules, with a clock on each rank that counts the messages that came before.
type stepCount struct {
	ranks   []stepRank
	sent    map[pair][]int // the clocks of messages that have not been received
	ready   []int32        // ranks that can go on
	longest int
}

type pair struct{ src, dst int32 }

type stepRank struct {
	steps []stepTo // still to come
	clock int
	sends int     // since the last wait
	dues  []int32 // ranks that it receives from until the next one
	stops int32   // the rank whose message it waits for, or -1
}

type stepTo struct {
	kind StepKind
	peer int32
}

// advance goes on with a rank until it has to wait for a message that was not sent yet.
func (c *stepCount) advance(me int32) {
	r := &c.ranks[me]
	for ; len(r.steps) > 0; r.steps = r.steps[1:] {
		switch step := r.steps[0]; step.kind {
		case StepSend:
			r.sends++
			to := pair{me, step.peer}
			c.sent[to] = append(c.sent[to], r.clock+r.sends)
			if c.ranks[step.peer].stops == me {
				c.ranks[step.peer].stops = -1
				c.ready = append(c.ready, step.peer)
			}
		case StepRecv:
			r.dues = append(r.dues, step.peer)
		default:
			for _, src := range r.dues {
				if len(c.sent[pair{src, me}]) == 0 {
					r.stops = src
					return
				}
			}
			in := r.clock
			for _, src := range r.dues {
				clocks := c.sent[pair{src, me}]
				in = max(in+1, clocks[0])
				c.sent[pair{src, me}] = clocks[1:]
			}
			r.clock = max(r.clock+r.sends, in)
			r.sends, r.dues = 0, r.dues[:0]
			c.longest = max(c.longest, r.clock)
		}
	}
}
