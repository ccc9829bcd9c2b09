package collective

import (
	"errors"
	"fmt"
)

// Kind names a collective operation.
type Kind uint8

// The operations, in the order of MPI 4.1 chapter 6, and the exchange between
// the neighbours of a topology (chapter 8).
const (
	KindBarrier Kind = iota + 1
	KindBcast
	KindGather
	KindGatherv
	KindScatter
	KindScatterv
	KindAllgather
	KindAllgatherv
	KindAlltoall
	KindAlltoallv
	KindReduce
	KindAllreduce
	KindReduceScatterBlock
	KindReduceScatter
	KindScan
	KindExscan
	KindNeighbor
)

var kindNames = [...]string{
	KindBarrier: "barrier", KindBcast: "bcast", KindGather: "gather", KindGatherv: "gatherv", KindScatter: "scatter",
	KindScatterv: "scatterv", KindAllgather: "allgather", KindAllgatherv: "allgatherv", KindAlltoall: "alltoall",
	KindAlltoallv: "alltoallv", KindReduce: "reduce", KindAllreduce: "allreduce", KindReduceScatterBlock: "reduce-scatter-block",
	KindReduceScatter: "reduce-scatter", KindScan: "scan", KindExscan: "exscan", KindNeighbor: "neighbor",
}

// Kinds returns every operation that all ranks of a group take part in alike:
// all but KindNeighbor, whose cost depends on the graph.
func Kinds() []Kind {
	var all []Kind
	for k := KindBarrier; k < KindNeighbor; k++ {
		all = append(all, k)
	}
	return all
}

func (k Kind) String() string {
	if k >= KindBarrier && int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Rooted operations have a root rank.
func (k Kind) Rooted() bool {
	switch k {
	case KindBcast, KindGather, KindGatherv, KindScatter, KindScatterv, KindReduce:
		return true
	}
	return false
}

// lengths says whether blocks have lengths of their own.
func (k Kind) lengths() bool {
	switch k {
	case KindGatherv, KindScatterv, KindAllgatherv, KindAlltoallv, KindReduceScatter, KindNeighbor:
		return true
	}
	return false
}

// Reduces says whether the operation takes an Op.
func (k Kind) Reduces() bool { return k >= KindReduce && k <= KindExscan }

// Blocks says where the blocks of the ranks lie in a buffer: block i has
// Counts[i] units and starts at unit Displs[i]. Both have an element for each
// rank. Blocks may be empty, and have gaps between them.
type Blocks struct {
	Counts, Displs []int
	Unit           int // bytes
}

// Part is a message of one rank to or from a neighbour, which may be the rank
// itself.
type Part struct {
	Peer int
	Buf  []byte
}

// Args are the arguments of one call on one rank. What an operation does not
// use is left zero; b is the block of one rank, or b_i where they differ.
//
//	                      Send                  Recv                    Op  Root  Blocks
//	barrier               -                     -                       -   -
//	bcast                 -                     the buffer, every rank  -   yes
//	gather                b                     P*b at the root         -   yes
//	gatherv               b_i                   all b_i at the root     -   yes   of Recv, at the root
//	scatter               P*b at the root       b                       -   yes
//	scatterv              all b_i at the root   b_i                     -   yes   of Send, at the root
//	allgather             b                     P*b                     -   -
//	allgatherv            b_i                   all b_i                 -   -     of Recv
//	alltoall              P*b                   P*b                     -   -
//	alltoallv             all b_ij              all b_ji                -   -     of Send and of Recv
//	reduce                S                     S at the root           yes yes
//	allreduce             S                     S                       yes -
//	reduce-scatter-block  P*b                   b                       yes -
//	reduce-scatter        all b_i               b_i                     yes -     of Send, without gaps
//	scan                  S                     S                       yes -
//	exscan                S                     S                       yes -
//	neighbor              -                     -                       -   -     Neighbors
//
// Send and Recv may be the same slice, or Send may be the rank's own block of
// Recv (gather at the root, allgather), or Recv the rank's own block of Send
// (scatter at the root) or the first bytes of Send (both forms of
// reduce-scatter): the operation is then in place. alltoallv is so only if every
// block of Send lies where that of Recv does. Any other overlap
// gives wrong results and is for the caller to refuse. Send is never written
// unless the call is in place.
type Args struct {
	Send, Recv             []byte
	SendBlocks, RecvBlocks *Blocks
	Op                     Op
	Root                   int
	Nodes                  *Topology // which ranks share a node, for algorithms that are NodeAware
	*Neighbors
}

// Neighbors are the messages of one rank to and from its neighbours.
type Neighbors struct{ Sends, Recvs []Part }

// Shape is what an algorithm's cost depends on. Ranks, Root, Bytes, Elem and
// Counts are known to all ranks before the call starts, and the choice between
// algorithms depends on them alone; where all ranks do not know Bytes, it is
// no part of the choice.
type Shape struct {
	Ranks int
	Root  int
	// Bytes is the length of the whole vector, the S of the formulas: the
	// buffer of bcast and of the reductions, all P blocks together of gather,
	// scatter and allgather, and the P blocks that one rank sends in alltoall.
	// gatherv, scatterv: all blocks together, which only the root knows.
	// alltoallv: all blocks of all ranks, which nobody knows.
	Bytes int
	// Elem is the width of an element of a reduction, 0 for other operations.
	Elem int
	// Counts are the bytes of the ranks' blocks for allgatherv and
	// reduce-scatter.
	Counts []int
	// Own are the bytes of the blocks that stay with their rank: the root's
	// for gatherv and scatterv, all ranks' together for alltoallv.
	Own int
	// Nodes says which ranks share a node.
	Nodes *Topology
}

// Cost is what a call sends. The conformance suite counts it.
type Cost struct {
	// Steps is the length of the longest chain of messages, when each rank
	// sends at most one message and receives at most one in a step.
	Steps int
	// Messages and Bytes are totals over all ranks.
	Messages, Bytes int
	// Between are those of the bytes that go from one node to another. Only algorithms
	// that are NodeAware count them.
	Between int
}

// Algorithm is one way to run one operation.
//
// How algorithms are written: an algorithm is straight-line code over a Peer.
// Which calls it makes depends on its rank, its Args' lengths, whether the call
// is in place, the Root and the Op's attributes, and never on what the buffers
// hold. It reaches data only by the methods of Peer, by the Op and by move. So a
// Peer that writes calls down instead of making them turns any algorithm into
// a list of sends, receives, copies and combinations that can be kept and
// advanced by somebody else.
type Algorithm struct {
	Kind Kind
	Name string
	// NeedsCommutative algorithms do not keep rank order.
	NeedsCommutative bool
	// NeedsWhole algorithms are for operators that have Op.Whole, and for no others.
	NeedsWhole bool
	// NeedsPowerOfTwo algorithms run on 1, 2, 4, 8 ... ranks only.
	NeedsPowerOfTwo bool
	// NeedsEqualNodes algorithms run where all nodes have the same number of ranks.
	NeedsEqualNodes bool
	// NodeAware algorithms are made of two others: one inside the nodes, one between
	// them. They run on any Topology, also none; operands of a reduction stay in order
	// where ranks are numbered node by node.
	NodeAware bool
	// Cost is exact for every shape that the algorithm suits. KindNeighbor has
	// none.
	Cost func(s Shape) Cost

	// time predicts the time of a vector of n bytes. It does not know the root.
	time func(l lane, n int) float64

	run func(p group, a Args) error
}

// registry holds every algorithm. The first of a kind suits every call whose operator
// has no Whole.
var registry = [...][]*Algorithm{
	KindBarrier:            {&barrierDissemination, &barrierCentral, &barrierLeaders},
	KindBcast:              {&bcastBinomial, &bcastScatterRing, &bcastScatterDoubling, &bcastChain, &bcastTree, &bcastLeaders, &bcastLeadersRing},
	KindGather:             {&gatherBinomial, &gatherLinear},
	KindGatherv:            {&gathervLinear},
	KindScatter:            {&scatterBinomial, &scatterLinear},
	KindScatterv:           {&scattervLinear},
	KindAllgather:          {&allgatherBruck, &allgatherDoubling, &allgatherRing, &allgatherLeaders, &allgatherLeadersRing},
	KindAllgatherv:         {&allgathervBruck, &allgathervRing},
	KindAlltoall:           {&alltoallPosted, &alltoallBruck, &alltoallPairwise},
	KindAlltoallv:          {&alltoallvPosted, &alltoallvPairwise},
	KindReduce:             {&reduceBinomial, &reduceHalving, &reduceChain, &reduceLeaders, &reduceLeadersHalving, &reduceGather, &reduceExchange},
	KindAllreduce:          {&allreduceDoubling, &allreduceHalving, &allreduceRing, &allreduceLeaders, &allreduceLeadersHalving, &allreduceSlices, &allreduceGather, &allreduceExchange},
	KindReduceScatterBlock: {&reduceScatterBlockHalving, &reduceScatterBlockPairwise, &reduceScatterBlockRing, &reduceScatterBlockExchange},
	KindReduceScatter:      {&reduceScatterHalving, &reduceScatterPairwise, &reduceScatterRing, &reduceScatterExchange},
	KindScan:               {&scanDoubling, &scanChain, &scanGather, &scanExchange},
	KindExscan:             {&exscanDoubling, &exscanChain, &exscanGather, &exscanExchange},
	KindNeighbor:           {&neighborPosted},
}

// Algorithms returns the names of the algorithms of an operation.
func Algorithms(k Kind) []string {
	var names []string
	for _, alg := range of(k) {
		names = append(names, alg.Name)
	}
	return names
}

// ErrUnsuited is returned for an algorithm that cannot run the call that it
// was named for.
var ErrUnsuited = errors.New("collective: algorithm does not suit the call")

// Lookup finds an algorithm by name.
func Lookup(k Kind, name string) (*Algorithm, error) {
	for _, alg := range of(k) {
		if alg.Name == name {
			return alg, nil
		}
	}
	return nil, fmt.Errorf("collective: %v has no algorithm %q, it has %q", k, name, Algorithms(k))
}

func of(k Kind) []*Algorithm {
	if int(k) >= len(registry) {
		return nil
	}
	return registry[k]
}

// Suits says whether the algorithm can run on that many ranks on those nodes, with
// that kind of operator, which has no Whole.
func (alg *Algorithm) Suits(ranks int, nodes *Topology, commutative bool) bool {
	return !alg.NeedsWhole && (!alg.NeedsPowerOfTwo || ranks&(ranks-1) == 0) &&
		(!alg.NeedsEqualNodes || nodes.equal()) &&
		(commutative || !alg.NeedsCommutative && !(alg.NodeAware && alg.Kind.Reduces() && !nodes.keepsOrder()))
}

// SuitsOp is Suits for a given operator, or for none. An operator that has Whole may have any
// algorithm on two ranks, where there are but two operands.
func (alg *Algorithm) SuitsOp(ranks int, nodes *Topology, op *Op) bool {
	if op.Whole != nil && (ranks > 2 || alg.NeedsWhole) {
		return alg.NeedsWhole
	}
	return alg.Suits(ranks, nodes, op.Commutative || op.Left == nil)
}

// Run runs the algorithm. All ranks run the same one.
func (alg *Algorithm) Run(p Peer, a Args) error {
	if err := check(alg.Kind, p, &a); err != nil {
		return err
	}
	if !alg.SuitsOp(p.Size(), a.Nodes, &a.Op) {
		return fmt.Errorf("%w: %v %q on %d ranks of %d nodes, commutative operator: %t, one that needs all operands at once: %t; use one of %q",
			ErrUnsuited, alg.Kind, alg.Name, p.Size(), a.Nodes.Nodes(), a.Op.Commutative, a.Op.Whole != nil, Algorithms(alg.Kind))
	}
	return alg.run(whole(p), a)
}
