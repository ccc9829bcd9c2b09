package collectivetest

import (
	"fmt"
	"testing"

	"github.com/weft-hpc/weft/collective"
)

// reports are wrong answers that other libraries gave.
func reports(t *testing.T, w World) {
	// Reductions ignored that the operator does not commute, and overwrote
	// buffers. https://github.com/open-mpi/ompi/issues/1754
	t.Run("OpenMPI1754NonCommutative", func(t *testing.T) {
		for ranks := 1; ranks <= 9; ranks++ {
			reductions(ranks, false, func(kind collective.Kind, alg string, root int) {
				for _, inPlace := range []bool{false, true} {
					mustRun(t, w, trial{kind: kind, alg: alg, ranks: ranks, root: root, count: 5, op: matrix, inPlace: inPlace})
				}
			})
		}
	})

	// In place with fewer elements than ranks, wrong from 4 ranks in two of the
	// algorithms. https://github.com/open-mpi/ompi/issues/9385
	t.Run("OpenMPI9385InPlaceFewerThanRanks", func(t *testing.T) {
		for _, ranks := range []int{3, 4, 5, 6, 7, 8, 9, 13, 16} {
			reductions(ranks, true, func(kind collective.Kind, alg string, root int) {
				mustRun(t, w, trial{kind: kind, alg: alg, ranks: ranks, root: root, count: 2, op: sumUint8, inPlace: true})
			})
		}
	})

	// An allreduce of floating point gave other bits on other ranks.
	// https://github.com/pmodels/mpich/pull/6538
	// https://github.com/open-mpi/ompi/pull/12258
	t.Run("MPICH6538SameBitsOnAllRanks", func(t *testing.T) {
		for _, ranks := range rankCounts {
			reductions(ranks, true, func(kind collective.Kind, alg string, root int) {
				if kind != collective.KindAllreduce {
					return
				}
				for _, op := range []operator{sumFloat64, sumNaN} {
					for _, inPlace := range []bool{false, true} {
						mustRun(t, w, trial{kind: kind, alg: alg, ranks: ranks, root: root, count: 67, op: op, inPlace: inPlace})
					}
				}
			})
		}
	})

	// In place, the result of a reduce-scatter belongs at the front; staging that was
	// sized to one share was read past its end, with counts that differ.
	// https://github.com/mpi-forum/mpi-issues/issues/15
	// https://github.com/open-mpi/ompi/pull/13883
	t.Run("MPIForum15ReduceScatterInPlace", func(t *testing.T) {
		for _, kind := range []collective.Kind{collective.KindReduceScatterBlock, collective.KindReduceScatter} {
			for _, alg := range append(collective.Algorithms(kind), "") {
				for ranks := 1; ranks <= 9; ranks++ {
					for _, count := range []int{0, 1, 2, 7} {
						mustRun(t, w, trial{kind: kind, alg: alg, ranks: ranks, count: count, op: plain(kind, alg), inPlace: true})
					}
				}
			}
		}
	})

	// A null dereference and reads past the end where counts are zero.
	// https://github.com/open-mpi/ompi/issues/100
	// https://github.com/open-mpi/ompi/issues/2324
	// https://github.com/IBAMR/IBAMR/issues/1656
	t.Run("OpenMPI100ZeroCounts", func(t *testing.T) {
		for _, ranks := range []int{1, 2, 3, 5, 8, 13} {
			for _, kind := range collective.Kinds() {
				for _, alg := range append(collective.Algorithms(kind), "") {
					if !suits(kind, alg, ranks, true) {
						continue
					}
					for _, root := range roots(kind, ranks) {
						// Buffers of even ranks are nil, of odd ones empty.
						mustRun(t, w, trial{kind: kind, alg: alg, ranks: ranks, root: root, op: sumUint8})
					}
					allNil(t, w, kind, alg, ranks)
				}
			}
		}
	})
}

// reductions calls fn for every reduction, algorithm (the entry point too) and
// root.
func reductions(ranks int, commutative bool, fn func(kind collective.Kind, alg string, root int)) {
	for _, kind := range collective.Kinds() {
		if !kind.Reduces() {
			continue
		}
		for _, alg := range append(collective.Algorithms(kind), "") {
			if !suits(kind, alg, ranks, commutative) {
				continue
			}
			for _, root := range roots(kind, ranks) {
				fn(kind, alg, root)
			}
		}
	}
}

func suits(kind collective.Kind, name string, ranks int, commutative bool) bool {
	if name == "" {
		return true
	}
	alg, err := collective.Lookup(kind, name)
	if err != nil {
		panic(fmt.Sprintf("collectivetest: registered name: %v", err))
	}
	return alg.Suits(ranks, nil, commutative)
}

func allNil(t *testing.T, w World, kind collective.Kind, alg string, ranks int) {
	t.Helper()
	c := trial{kind: kind, alg: alg, ranks: ranks, op: sumUint8}
	for rank, err := range w(ranks, func(p collective.Peer) error {
		none := &collective.Blocks{Counts: make([]int, ranks), Displs: make([]int, ranks), Unit: 1}
		return c.call(p, collective.Args{Op: c.op.op(), SendBlocks: none, RecvBlocks: none})
	}) {
		if err != nil {
			t.Fatalf("%v with nil buffers: rank %d: %v", c, rank, err)
		}
	}
}
