package main

import (
	"github.com/weft-hpc/weft/collective"
)

// machine is a model of a machine, whose nodes have the same number of ranks, node by node.
type machine struct {
	collective.Model
	perNode int
}

// nodes returns the topology of so many ranks.
func (net *machine) nodes(ranks int) *collective.Topology {
	nodes := make([]int, ranks)
	for i := range nodes {
		nodes[i] = i / net.perNode
	}
	return collective.NewTopology(nodes)
}

// link returns what messages between two ranks cost.
func (net *machine) link(a, b int) *collective.Link {
	if a/net.perNode == b/net.perNode {
		return &net.Inside
	}
	return &net.Between
}

// prediction is what one algorithm does in one case.
type prediction struct {
	Collective string  `json:"collective"`
	Algorithm  string  `json:"algorithm"`
	Ranks      int     `json:"ranks"`
	Size       int     `json:"size_bytes"` // of the vector, or of a block
	Steps      int     `json:"steps"`
	Messages   int     `json:"messages"`
	Bytes      int     `json:"bytes"` // of all ranks
	Seconds    float64 `json:"seconds"`
	Formula    float64 `json:"formula_seconds"` // what the choice goes by
	How        string  `json:"how"`             // the time was found: see how
	Chosen     bool    `json:"chosen"`          // by default, for this case
}

// How the time was found.
const (
	byRun     = "run"     // of the schedules of all ranks
	byMirror  = "mirror"  // of one rank's schedule, as all ranks do the same
	byFormula = "formula" // steps and bytes: too many messages to run
)

// Limits of a run: beyond them memory and patience end.
const (
	maxMessages = 2 << 20
	maxSteps    = 12 << 20
	maxVaried   = 4096 // ranks, where each rank looks at the lengths of all blocks
)

// event is a step of a schedule in little room: the bytes, and in the upper bits
// what they are for.
type event struct {
	kind collective.StepKind
	peer int32
	n    int
}

// modelArgs are the arguments of a rank, over memory that nobody touches.
func modelArgs(k collective.Kind, ranks, size int, memory []byte) collective.Args {
	// Send and Recv are apart, or the call would be in place.
	block, whole := memory[len(memory)-size:], memory[:0]
	if blocked(k) {
		whole = memory[:ranks*size]
	}
	a := collective.Args{Send: block, Recv: memory[:size]}
	equal := func() *collective.Blocks {
		b := &collective.Blocks{Counts: make([]int, ranks), Displs: make([]int, ranks), Unit: 1}
		for i := range ranks {
			b.Counts[i], b.Displs[i] = size, i*size
		}
		return b
	}
	switch k {
	case collective.KindGather, collective.KindAllgather:
		a.Recv = whole
	case collective.KindGatherv, collective.KindAllgatherv:
		a.Recv, a.RecvBlocks = whole, equal()
	case collective.KindScatter, collective.KindReduceScatterBlock:
		a.Send, a.Recv = whole, block
	case collective.KindScatterv, collective.KindReduceScatter:
		a.Send, a.Recv, a.SendBlocks = whole, block, equal()
	case collective.KindAlltoall, collective.KindAlltoallv:
		a.Send, a.Recv = whole, memory[len(memory)-ranks*size:]
		if k == collective.KindAlltoallv {
			a.SendBlocks = equal()
			a.RecvBlocks = a.SendBlocks
		}
	}
	if k.Reduces() {
		nothing := func(inout, in []byte) {}
		a.Op = collective.Op{Size: 1, Commutative: true, Left: nothing, Right: nothing}
		if size%8 == 0 {
			a.Op.Size = 8
		}
	}
	return a
}

// blocked says that a rank has a block of the size for each rank.
func blocked(k collective.Kind) bool {
	switch k {
	case collective.KindBarrier, collective.KindBcast, collective.KindReduce, collective.KindAllreduce, collective.KindScan, collective.KindExscan:
		return false
	}
	return true
}

func modelShape(k collective.Kind, ranks, size int) collective.Shape {
	s := collective.Shape{Ranks: ranks, Bytes: size}
	if k.Reduces() {
		s.Elem = 1
		if size%8 == 0 {
			s.Elem = 8
		}
	}
	if k == collective.KindBarrier {
		s.Bytes = 0
	}
	if blocked(k) {
		s.Bytes, s.Own = ranks*size, size
		if k == collective.KindAlltoallv {
			s.Bytes, s.Own = ranks*ranks*size, ranks*size
		}
		if k == collective.KindReduceScatter || k == collective.KindAllgatherv {
			s.Counts = make([]int, ranks)
			for i := range s.Counts {
				s.Counts[i] = size
			}
		}
	}
	return s
}

// predict runs an algorithm on the model.
func (net *machine) predict(alg *collective.Algorithm, ranks, size int) (prediction, error) {
	s := modelShape(alg.Kind, ranks, size)
	s.Nodes = net.nodes(ranks)
	cost := alg.Cost(s)
	p := prediction{Collective: alg.Kind.String(), Algorithm: alg.Name, Ranks: ranks, Size: size,
		Steps: cost.Steps, Messages: cost.Messages, Bytes: cost.Bytes}
	choice := s.Bytes
	switch alg.Kind { // where nobody knows the bytes, they are no part of the choice
	case collective.KindGatherv, collective.KindScatterv, collective.KindAlltoallv:
		choice = 0
	}
	chooser := collective.NewChooser(&net.Model, ranks, s.Nodes)
	chosen, _ := chooser.Explain(alg.Kind, choice, &collective.Op{Commutative: true})
	p.Chosen = chosen == alg
	if alg.Kind == collective.KindAlltoallv {
		s.Bytes /= ranks // of one rank
	}
	p.How, p.Formula = byFormula, chooser.Predict(alg, s.Bytes)
	p.Seconds = p.Formula
	// Blocks are all treated alike, so short ones do, and their bytes are multiplied.
	unit, scale := size, 1
	for _, least := range []int{64, 8, 1} { // a cache line, an element
		if blocked(alg.Kind) && size > least && size%least == 0 {
			unit, scale = least, size/least
			break
		}
	}
	vector := unit
	if blocked(alg.Kind) {
		vector *= ranks
	}
	memory := make([]byte, vector+unit+1)
	args := modelArgs(alg.Kind, ranks, unit, memory)
	args.Nodes = s.Nodes
	var sched collective.Schedule
	record := func(rank int) ([]event, int, error) {
		if err := sched.Record(alg, rank, ranks, args); err != nil {
			return nil, 0, err
		}
		return compact(sched.Steps(), scale), len(sched.Steps()), nil
	}
	sample, steps, err := record(ranks / 2)
	if err != nil {
		return p, err
	}
	varied := ranks > maxVaried && (alg.Kind == collective.KindAllgatherv || alg.Kind == collective.KindReduceScatter || alg.Kind == collective.KindAlltoallv)
	if cost.Messages > maxMessages || steps > maxSteps/ranks || varied {
		if t, ok := net.mirror(sample); ok && net.perNode == 1 {
			p.Seconds, p.How = t, byMirror
		}
		return p, nil
	}
	all := make([][]event, ranks)
	for rank := range all {
		if all[rank], _, err = record(rank); err != nil {
			return p, err
		}
	}
	p.Seconds, err = net.run(all)
	p.How = byRun
	return p, err
}

// compact turns steps into events, local work between two messages into one, and
// multiplies their bytes.
func compact(steps []collective.Step, scale int) []event {
	var out []event
	for i := range steps {
		step := &steps[i]
		kind := step.Kind
		if kind == collective.StepRight {
			kind = collective.StepLeft
		}
		if local := kind == collective.StepCopy || kind == collective.StepLeft; local && len(out) > 0 && out[len(out)-1].kind == kind {
			out[len(out)-1].n += len(step.A) * scale
			continue
		}
		out = append(out, event{kind, step.Peer, len(step.A) * scale})
	}
	return out
}
