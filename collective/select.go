package collective

// Thresholds choose between algorithms by the length of the whole vector
// (Shape.Bytes), or of one rank's block where that is said. Each field is the
// longest vector, in bytes, that the algorithm for short ones still gets.
type Thresholds struct {
	// BcastBinomial: binomial up to here, and always on two ranks, where
	// scattering saves nothing.
	BcastBinomial int
	// BcastDoubling: scatter and recursive doubling up to here on a power of two
	// ranks; scatter and ring for what is left, but the tree where a rank's part
	// would be shorter than RingPart.
	BcastDoubling int
	// BcastRing: scatter and ring up to here, the chain above if a rank's part is
	// no shorter than ChainPart.
	BcastRing int
	// RingPart: a vector with fewer bytes for each rank than that goes around no
	// ring, nor in pairs, whatever its length: that would have too many steps.
	RingPart int
	// ChainPart: a vector with fewer bytes for each rank than that does not go
	// along a chain, which would take too long to fill.
	ChainPart int
	// GatherBinomial: gather and scatter by a binomial tree for blocks up to here,
	// straight from and to the root above.
	GatherBinomial int
	// AllgatherBruck: Bruck up to here when the ranks are not a power of two.
	AllgatherBruck int
	// AllgatherDoubling: recursive doubling up to here on a power of two ranks.
	AllgatherDoubling int
	// AllgathervBruck: Bruck up to here, ring above.
	AllgathervBruck int
	// AlltoallBruck: Bruck for blocks up to here, on 8 ranks or more.
	AlltoallBruck int
	// AlltoallPosted: all at once for blocks up to here, in pairs above.
	AlltoallPosted int
	// ReduceBinomial: binomial up to here, recursive halving above.
	ReduceBinomial int
	// ReduceHalving: recursive halving up to here, the chain above if a rank's
	// part is no shorter than ChainPart.
	ReduceHalving int
	// AllreduceDoubling: recursive doubling up to here, recursive halving above.
	AllreduceDoubling int
	// AllreduceHalving: recursive halving up to here when the ranks are not a
	// power of two and the operator commutes, ring above. On a power of two
	// halving sends the same bytes as the ring in fewer steps.
	AllreduceHalving int
	// ReduceScatterHalving: recursive halving up to here, in pairs above, and on
	// two ranks, where there is nothing to halve.
	ReduceScatterHalving int
	// ScanDoubling: doubling up to here, the chain above if a rank's part is no
	// shorter than ChainPart.
	ScanDoubling int
}

// DefaultThresholds returns the choice that the entry points make. The numbers
// are those of MPICH's generic tuning file, but for allreduce, where MPICH
// leaves recursive doubling at 8 bytes and takes twice the steps from there.
func DefaultThresholds() Thresholds { return defaults }

var defaults = Thresholds{
	BcastBinomial:     12 << 10,
	BcastDoubling:     512 << 10,
	BcastRing:         8 << 20,
	RingPart:          8 << 10,
	ChainPart:         64 << 10,
	GatherBinomial:    32 << 10,
	AllgatherBruck:    80 << 10,
	AllgatherDoubling: 512 << 10,
	AllgathervBruck:   80 << 10,
	AlltoallBruck:     256,
	AlltoallPosted:    32 << 10,
	ReduceBinomial:    2 << 10,
	ReduceHalving:     4 << 20,
	AllreduceDoubling: 8 << 10,
	AllreduceHalving:  256 << 10,

	ReduceScatterHalving: 512 << 10,
	ScanDoubling:         64 << 10,
}

// Select returns the algorithm for a call. It depends on its arguments alone,
// so all ranks choose alike.
func (t *Thresholds) Select(k Kind, s Shape, commutative bool) *Algorithm {
	alg, _ := t.Explain(k, s, commutative)
	return alg
}

// Why an algorithm is chosen.
const (
	fewestSteps = "short: the fewest steps count"
	fewestBytes = "long: the fewest bytes count"
	pipelining  = "very long: each rank sends every byte once, and filling the pipeline does not matter"
	manyRanks   = "few bytes for each of many ranks: a ring would have too many steps"
	straight    = "long blocks: nobody passes on what is not its own"
	allAtOnce   = "all messages at once: a slow rank holds up nobody else"
	onePeer     = "long blocks: one peer at a time, so that messages do not share links"
	twoRanks    = "two ranks: one exchange"
	noChoice    = "only the root knows the lengths, so there is nothing to choose by"
	anyLength   = "does not depend on the length"
)

// Explain is Select with the reason in words.
func (t *Thresholds) Explain(k Kind, s Shape, commutative bool) (alg *Algorithm, why string) {
	return t.explain(k, &s, commutative)
}

func (t *Thresholds) explain(k Kind, s *Shape, commutative bool) (alg *Algorithm, why string) {
	even := s.Ranks&(s.Ranks-1) == 0
	part := s.Bytes // of one rank; not divided where nobody asks
	if k != KindAllreduce && k != KindBarrier && part > 0 {
		part /= s.Ranks
	}
	switch k {
	case KindBcast:
		switch {
		case s.Ranks <= 2:
			return &bcastBinomial, twoRanks
		case s.Bytes <= t.BcastBinomial:
			return &bcastBinomial, fewestSteps
		case even && s.Bytes <= t.BcastDoubling:
			return &bcastScatterDoubling, fewestBytes
		case part < t.RingPart:
			return &bcastTree, manyRanks
		case s.Bytes > t.BcastRing && part >= t.ChainPart:
			return &bcastChain, pipelining
		}
		return &bcastScatterRing, fewestBytes
	case KindGather:
		if part > t.GatherBinomial {
			return &gatherLinear, straight
		}
		return &gatherBinomial, fewestSteps
	case KindScatter:
		if part > t.GatherBinomial {
			return &scatterLinear, straight
		}
		return &scatterBinomial, fewestSteps
	case KindGatherv:
		return &gathervLinear, noChoice
	case KindScatterv:
		return &scattervLinear, noChoice
	case KindAllgather:
		switch {
		case even && (s.Bytes <= t.AllgatherDoubling || part < t.RingPart):
			return &allgatherDoubling, fewestSteps
		case !even && (s.Bytes <= t.AllgatherBruck || part < t.RingPart):
			return &allgatherBruck, fewestSteps
		}
		return &allgatherRing, fewestBytes
	case KindAllgatherv:
		if s.Bytes > t.AllgathervBruck && part >= t.RingPart {
			return &allgathervRing, fewestBytes
		}
		return &allgathervBruck, fewestSteps
	case KindAlltoall:
		switch {
		case part <= t.AlltoallBruck && s.Ranks >= 8:
			return &alltoallBruck, fewestSteps
		case part > t.AlltoallPosted:
			return &alltoallPairwise, onePeer
		}
		return &alltoallPosted, allAtOnce
	case KindAlltoallv:
		return &alltoallvPosted, allAtOnce
	case KindReduce:
		switch {
		case s.Bytes <= t.ReduceBinomial:
			return &reduceBinomial, fewestSteps
		case s.Bytes > t.ReduceHalving && part >= t.ChainPart:
			return &reduceChain, pipelining
		}
		return &reduceHalving, fewestBytes
	case KindAllreduce:
		switch {
		case s.Bytes <= t.AllreduceDoubling:
			return &allreduceDoubling, fewestSteps
		case !even && commutative && s.Bytes > t.AllreduceHalving && s.Bytes >= t.RingPart*s.Ranks:
			return &allreduceRing, fewestBytes
		}
		return &allreduceHalving, fewestBytes
	case KindReduceScatterBlock:
		switch {
		case s.Ranks <= 2:
			return &reduceScatterBlockPairwise, twoRanks
		case s.Bytes > t.ReduceScatterHalving && part >= t.RingPart:
			return &reduceScatterBlockPairwise, onePeer
		}
		return &reduceScatterBlockHalving, fewestSteps
	case KindReduceScatter:
		switch {
		case s.Ranks <= 2:
			return &reduceScatterPairwise, twoRanks
		case s.Bytes > t.ReduceScatterHalving && part >= t.RingPart:
			return &reduceScatterPairwise, onePeer
		}
		return &reduceScatterHalving, fewestSteps
	case KindScan:
		if s.Bytes > t.ScanDoubling && part >= t.ChainPart {
			return &scanChain, pipelining
		}
		return &scanDoubling, fewestSteps
	case KindExscan:
		if s.Bytes > t.ScanDoubling && part >= t.ChainPart {
			return &exscanChain, pipelining
		}
		return &exscanDoubling, fewestSteps
	}
	return registry[k][0], anyLength
}

// Select returns the algorithm that the entry points run for a call.
func Select(k Kind, ranks int, a *Args) *Algorithm {
	s := Shape{Ranks: ranks, Root: a.Root, Elem: a.Op.Size}
	s.Bytes = vectorBytes(k, ranks, a)
	alg, _ := defaults.explain(k, &s, a.Op.Commutative)
	return alg
}

// Explain is Select of a call's shape, with the reason in words.
func Explain(k Kind, s Shape, commutative bool) (alg *Algorithm, why string) {
	return defaults.Explain(k, s, commutative)
}

func run(k Kind, p Peer, a Args) error {
	if err := check(k, p, &a); err != nil {
		return err
	}
	return Select(k, p.Size(), &a).run(whole(p), a)
}

// CrowdedBarrier is Barrier for ranks of which several share a core.
func CrowdedBarrier(p Peer) error { return barrierCentral.run(whole(p), Args{}) }

// Barrier returns when all ranks have called it. (MPI 4.1, 6.3)
func Barrier(p Peer) error {
	return run(KindBarrier, p, Args{})
}

// Bcast copies the root's buf to the buf of every other rank, which has the
// same length. The root's buf is not written. (MPI 4.1, 6.4)
func Bcast(p Peer, buf []byte, root int) error {
	return run(KindBcast, p, Args{Recv: buf, Root: root})
}

// Gather collects the ranks' blocks in the root's recv, in rank order. The
// other ranks' recv is ignored. In place at the root: send is its own block of
// recv. (MPI 4.1, 6.5)
func Gather(p Peer, send, recv []byte, root int) error {
	return run(KindGather, p, Args{Send: send, Recv: recv, Root: root})
}

// Scatter hands out the blocks of the root's send in rank order. The other
// ranks' send is ignored. In place at the root: recv is its own block of send.
// (MPI 4.1, 6.6)
func Scatter(p Peer, send, recv []byte, root int) error {
	return run(KindScatter, p, Args{Send: send, Recv: recv, Root: root})
}

// Allgather collects the ranks' blocks in every rank's recv, in rank order. In
// place: send is the rank's own block of recv. (MPI 4.1, 6.7)
func Allgather(p Peer, send, recv []byte) error {
	return run(KindAllgather, p, Args{Send: send, Recv: recv})
}

// Reduce combines the ranks' vectors element by element, in rank order up to
// association, into the root's recv. The other ranks' recv is ignored. In place
// at the root: send and recv are the same slice. (MPI 4.1, 6.9.1)
func Reduce(p Peer, send, recv []byte, op Op, root int) error {
	return run(KindReduce, p, Args{Send: send, Recv: recv, Op: op, Root: root})
}

// Allreduce combines like Reduce into the recv of every rank. All ranks get
// the same bits. In place: send and recv are the same slice. (MPI 4.1, 6.9.6)
func Allreduce(p Peer, send, recv []byte, op Op) error {
	return run(KindAllreduce, p, Args{Send: send, Recv: recv, Op: op})
}

// Gatherv is Gather of blocks of different lengths, which the root knows. The
// others' recv and blocks are ignored. (MPI 4.1, 6.5)
func Gatherv(p Peer, send, recv []byte, blocks *Blocks, root int) error {
	return run(KindGatherv, p, Args{Send: send, Recv: recv, RecvBlocks: blocks, Root: root})
}

// Scatterv is Scatter of blocks of different lengths, which the root knows. The
// others' send and blocks are ignored. (MPI 4.1, 6.6)
func Scatterv(p Peer, send, recv []byte, blocks *Blocks, root int) error {
	return run(KindScatterv, p, Args{Send: send, Recv: recv, SendBlocks: blocks, Root: root})
}

// Allgatherv is Allgather of blocks of different lengths, which all ranks know.
// (MPI 4.1, 6.7)
func Allgatherv(p Peer, send, recv []byte, blocks *Blocks) error {
	return run(KindAllgatherv, p, Args{Send: send, Recv: recv, RecvBlocks: blocks})
}

// Alltoall sends block i of send to rank i and receives block i of recv from it.
// In place: send and recv are the same slice. (MPI 4.1, 6.8)
func Alltoall(p Peer, send, recv []byte) error {
	return run(KindAlltoall, p, Args{Send: send, Recv: recv})
}

// Alltoallv is Alltoall of blocks of different lengths. What rank i sends to rank
// j is as long as what rank j receives from rank i. In place: send and recv are
// the same slice, and its blocks lie in the same places. (MPI 4.1, 6.8)
func Alltoallv(p Peer, send []byte, to *Blocks, recv []byte, from *Blocks) error {
	return run(KindAlltoallv, p, Args{Send: send, Recv: recv, SendBlocks: to, RecvBlocks: from})
}

// ReduceScatterBlock combines the ranks' send in rank order up to association, and
// leaves block i of the result in rank i's recv. In place: recv is the first bytes
// of send. (MPI 4.1, 6.10.1)
func ReduceScatterBlock(p Peer, send, recv []byte, op Op) error {
	return run(KindReduceScatterBlock, p, Args{Send: send, Recv: recv, Op: op})
}

// ReduceScatter is ReduceScatterBlock with blocks of different lengths, without
// gaps, which all ranks know. (MPI 4.1, 6.10.2)
func ReduceScatter(p Peer, send, recv []byte, blocks *Blocks, op Op) error {
	return run(KindReduceScatter, p, Args{Send: send, Recv: recv, SendBlocks: blocks, Op: op})
}

// Scan leaves in each rank's recv the combination of the send of all ranks up to
// it, in rank order up to association. In place: send and recv are the same
// slice. (MPI 4.1, 6.11.1)
func Scan(p Peer, send, recv []byte, op Op) error {
	return run(KindScan, p, Args{Send: send, Recv: recv, Op: op})
}

// Exscan is Scan without the rank's own send. Rank 0's recv is not written. (MPI
// 4.1, 6.11.2)
func Exscan(p Peer, send, recv []byte, op Op) error {
	return run(KindExscan, p, Args{Send: send, Recv: recv, Op: op})
}

// Neighbor sends and receives messages to and from neighbours. Between two ranks
// the first of sends meets the first of recvs, and so on. (MPI 4.1, 8.6)
func Neighbor(p Peer, sends, recvs []Part) error {
	return run(KindNeighbor, p, Args{Neighbors: &Neighbors{sends, recvs}})
}
