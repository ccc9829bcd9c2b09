package collective

// The entry points choose by this model: ranks that are connected by TCP.
var entryModel = NewModel(Ethernet, Ethernet)

func run(k Kind, p Peer, a Args) error {
	if err := check(k, p, &a); err != nil {
		return err
	}
	c := Chooser{model: entryModel, ranks: p.Size()}
	bytes := sampleOf(classOf(vectorBytes(k, c.ranks, &a)))
	return registry[k][c.best(k, bytes, demandOf(&a.Op, c.ranks))].run(whole(p), a)
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
