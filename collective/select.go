package collective

// Thresholds choose between algorithms by the length of the whole vector
// (Shape.Bytes). Each field is the longest vector, in bytes, that the
// algorithm for short ones still gets.
type Thresholds struct {
	// BcastBinomial: binomial up to here, and always on two ranks, where
	// scattering saves nothing.
	BcastBinomial int
	// BcastDoubling: scatter and recursive doubling up to here on a power of two
	// ranks; scatter and ring for what is left.
	BcastDoubling int
	// AllgatherBruck: Bruck up to here when the ranks are not a power of two.
	AllgatherBruck int
	// AllgatherDoubling: recursive doubling up to here on a power of two ranks.
	AllgatherDoubling int
	// ReduceBinomial: binomial up to here, recursive halving above.
	ReduceBinomial int
	// AllreduceDoubling: recursive doubling up to here, recursive halving above.
	AllreduceDoubling int
	// AllreduceHalving: recursive halving up to here when the ranks are not a
	// power of two and the operator commutes, ring above. On a power of two
	// halving sends the same bytes as the ring in fewer steps.
	AllreduceHalving int
}

// DefaultThresholds returns the choice that the entry points make. The numbers
// are those of MPICH's generic tuning file, but for allreduce, where MPICH
// leaves recursive doubling at 8 bytes and takes twice the steps from there.
func DefaultThresholds() Thresholds { return defaults }

var defaults = Thresholds{
	BcastBinomial:     12 << 10,
	BcastDoubling:     512 << 10,
	AllgatherBruck:    80 << 10,
	AllgatherDoubling: 512 << 10,
	ReduceBinomial:    2 << 10,
	AllreduceDoubling: 8 << 10,
	AllreduceHalving:  256 << 10,
}

// Select returns the algorithm for a call. It depends on its arguments alone,
// so all ranks choose alike.
func (t *Thresholds) Select(k Kind, s Shape, commutative bool) *Algorithm {
	even := s.Ranks&(s.Ranks-1) == 0
	switch k {
	case KindBcast:
		switch {
		case s.Bytes <= t.BcastBinomial || s.Ranks <= 2:
			return &bcastBinomial
		case even && s.Bytes <= t.BcastDoubling:
			return &bcastScatterDoubling
		}
		return &bcastScatterRing
	case KindAllgather:
		switch {
		case even && s.Bytes <= t.AllgatherDoubling:
			return &allgatherDoubling
		case !even && s.Bytes <= t.AllgatherBruck:
			return &allgatherBruck
		}
		return &allgatherRing
	case KindReduce:
		if s.Bytes <= t.ReduceBinomial {
			return &reduceBinomial
		}
		return &reduceHalving
	case KindAllreduce:
		switch {
		case s.Bytes <= t.AllreduceDoubling:
			return &allreduceDoubling
		case !even && commutative && s.Bytes > t.AllreduceHalving:
			return &allreduceRing
		}
		return &allreduceHalving
	}
	return registry[k][0]
}

func run(k Kind, p Peer, a Args) error {
	if err := check(k, p, &a); err != nil {
		return err
	}
	return defaults.Select(k, ShapeOf(k, p.Size(), a), a.Op.Commutative).run(p, a)
}

// CrowdedBarrier is Barrier for ranks of which several share a core.
func CrowdedBarrier(p Peer) error { return barrierCentral.run(p, Args{}) }

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
