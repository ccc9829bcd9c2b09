package weft_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/weft-hpc/weft"
	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/wefttest"
)

// Wrong answers that other libraries gave, by the typed calls in all their forms. The
// same by the algorithms alone is in collective/collectivetest; what concerns ranks
// that disagree (open-mpi/ompi#126, #2427) is TestMismatch and TestMismatchOfMore, and
// halos are TestOpenMPI14430PeriodicHalo.

type matrix [4]int64 // 2x2, modulo a prime

func (a matrix) times(b matrix) matrix {
	const prime = 65521
	return matrix{(a[0]*b[0] + a[1]*b[2]) % prime, (a[0]*b[1] + a[1]*b[3]) % prime, (a[2]*b[0] + a[3]*b[2]) % prime, (a[2]*b[1] + a[3]*b[3]) % prime}
}

// reports runs the reductions in all forms by all algorithms.
func reports[T comparable](t *testing.T, ranks []int, kinds []collective.Kind, f formCase[T], commutative bool, inPlaces ...bool) {
	for _, n := range ranks {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			wefttest.Run(t, n, func(ctx context.Context, c *weft.Comm) error {
				for _, kind := range kinds {
					for _, name := range collective.Algorithms(kind) {
						alg, err := collective.Lookup(kind, name)
						if err != nil {
							return err
						}
						if !alg.Suits(n, nil, commutative) {
							continue
						}
						for root := range n {
							if root > 0 && !kind.Rooted() {
								break
							}
							for _, inPlace := range inPlaces {
								f := f
								f.kind, f.root, f.inPlace = kind, root, inPlace
								fc := f.call(c)
								if err := fc.all(ctx, c, weft.WithAlgorithm(name)); err != nil {
									return fmt.Errorf("%v by %s, root %d, in place %t: %w", kind, name, root, inPlace, err)
								}
							}
						}
					}
				}
				return nil
			})
		})
	}
}

var reductionKinds = []collective.Kind{collective.KindReduce, collective.KindAllreduce, collective.KindReduceScatterBlock,
	collective.KindReduceScatter, collective.KindScan, collective.KindExscan}

// Nonblocking reductions ignored that the operator does not commute, and overwrote
// buffers. https://github.com/open-mpi/ompi/issues/1754
func TestOpenMPI1754NonCommutative(t *testing.T) {
	f := formCase[matrix]{count: 3, op: weft.OpFunc("product", false, matrix.times), fold: matrix.times,
		value: func(rank, i int) matrix { return matrix{int64(rank + 1), int64(i + 2), 3, int64(rank + i)} }}
	reports(t, []int{1, 2, 3, 4, 5, 6, 7, 8, 9}, reductionKinds, f, false, false, true)
}

// In place with fewer elements than ranks, wrong from 4 ranks in two of the
// algorithms of Iallreduce. https://github.com/open-mpi/ompi/issues/9385
func TestOpenMPI9385InPlaceFewerThanRanks(t *testing.T) {
	f := formCase[int64]{count: 2, op: weft.Sum[int64](), fold: func(a, b int64) int64 { return a + b },
		value: func(rank, i int) int64 { return int64(rank*100 + i + 1) }}
	reports(t, []int{4, 5, 7, 8, 13}, reductionKinds, f, true, true)
}

// In place, the result of a reduce-scatter belongs at the front; counts that differ,
// and are zero. https://github.com/mpi-forum/mpi-issues/issues/15
// https://github.com/open-mpi/ompi/pull/13883
func TestMPIForum15ReduceScatterInPlace(t *testing.T) {
	f := formCase[int64]{count: 5, op: weft.Sum[int64](), fold: func(a, b int64) int64 { return a + b },
		value: func(rank, i int) int64 { return int64(rank*100 + i + 1) }}
	reports(t, []int{1, 2, 3, 4, 5, 8}, []collective.Kind{collective.KindReduceScatterBlock, collective.KindReduceScatter}, f, true, true)
}

// Counts of zero on some ranks and on all. https://github.com/open-mpi/ompi/issues/100
// https://github.com/open-mpi/ompi/issues/2324 https://github.com/IBAMR/IBAMR/issues/1656
func TestOpenMPI100ZeroCounts(t *testing.T) {
	for _, count := range []int{0, 1} {
		f := formCase[int64]{count: count, op: weft.Sum[int64](), fold: func(a, b int64) int64 { return a + b },
			value: func(rank, i int) int64 { return int64(rank*100 + i + 1) }}
		reports(t, []int{1, 2, 3, 5}, collective.Kinds()[1:], f, true, false)
	}
}

// An allreduce of floating point gave other bits on other ranks.
// https://github.com/pmodels/mpich/pull/6538 https://github.com/open-mpi/ompi/pull/12258
func TestMPICH6538SameBitsOnAllRanks(t *testing.T) {
	for _, n := range []int{3, 5, 6, 7, 8} {
		wefttest.Run(t, n, func(ctx context.Context, c *weft.Comm) error {
			send, recv := make([]float64, 67), make([]float64, 67)
			for i := range send {
				send[i] = float64(1+c.Rank()*i%7) * []float64{1e300, -1e300, 1, 1e-300, 3e-8}[(c.Rank()+i)%5]
			}
			s := c.Scope(ctx)
			for _, name := range collective.Algorithms(collective.KindAllreduce) {
				alg, err := collective.Lookup(collective.KindAllreduce, name)
				if err != nil {
					return err
				}
				sum := weft.Sum[float64]()
				if alg.NeedsWhole {
					sum = weft.SumExact[float64]()
				}
				for _, form := range []string{"blocking", "nonblocking"} {
					var err error
					if form == "blocking" {
						err = weft.Allreduce(ctx, c, send, recv, sum, weft.WithAlgorithm(name))
					} else {
						weft.Iallreduce(s, c, send, recv, sum, weft.WithAlgorithm(name))
						err = s.Wait()
					}
					if err != nil {
						return err
					}
					all := make([]float64, n*len(recv))
					if err := weft.Allgather(ctx, c, recv, all); err != nil {
						return err
					}
					for i, x := range all {
						if first := all[i%len(recv)]; x != first && !(x != x && first != first) {
							return fmt.Errorf("%s, %s: element %d is %v on rank %d and %v on rank 0", name, form, i%len(recv), x, i/len(recv), first)
						}
					}
				}
			}
			return nil
		})
	}
}
