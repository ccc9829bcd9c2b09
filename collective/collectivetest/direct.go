package collectivetest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weft-hpc/weft/collective"
)

// Direct carries out one collective on n ranks without Peers, and returns the ranks' errors when
// all have returned.
type Direct func(n int, kind collective.Kind, args func(rank int) collective.Args) []error

// RunDirect checks the answers of what runs collectives in another way than an Algorithm. thresholds
// are numbers of bytes at which that way changes; vectors and blocks are tried around them.
func RunDirect(t *testing.T, kinds []collective.Kind, thresholds []int, d Direct) {
	for _, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) {
			for _, ranks := range []int{2, 3, 5, 7, 8, 13} {
				for _, op := range operatorsOf(kind) {
					if ranks > 5 && op.size != matrix.size {
						continue
					}
					all := append([]int{0, 1, 3, ranks - 1, ranks + 1, 4*ranks + 5}, around(kind, thresholds, op.size, ranks)...)
					slices.Sort(all)
					if kind == collective.KindBarrier {
						all = all[:1]
					}
					for _, count := range slices.Compact(all) {
						for _, root := range someRoots(kind, ranks) {
							for _, inPlace := range inPlaces(kind) {
								c := trial{kind: kind, alg: "direct", ranks: ranks, root: root, count: count, op: op, inPlace: inPlace}
								if err := c.runDirect(d); err != nil {
									t.Fatal(err)
								}
							}
						}
					}
				}
			}
		})
	}
}

// operatorsOf returns operators that are applied in the order of ranks.
func operatorsOf(kind collective.Kind) []operator {
	switch {
	case kind == collective.KindBarrier:
		return []operator{sumUint8}
	case kind.Reduces():
		return []operator{sumUint8, affine, sumFloat64, matrix}
	}
	return []operator{sumUint8, matrix}
}

// around returns counts whose vectors are as long as a threshold, or one element shorter or longer.
func around(kind collective.Kind, thresholds []int, size, ranks int) (counts []int) {
	for _, bytes := range thresholds {
		n := bytes / size
		if blocked(kind) {
			n /= ranks
		}
		counts = append(counts, max(n-1, 0), n, n+1)
	}
	return counts
}

func someRoots(kind collective.Kind, ranks int) []int {
	if !kind.Rooted() {
		return []int{0}
	}
	return slices.Compact([]int{0, ranks / 2, ranks - 1})
}

// runDirect is run without Peers.
func (c trial) runDirect(run Direct) error {
	d := c.data()
	calls := make([]rankCall, c.ranks)
	for rank := range calls {
		calls[rank] = c.prepare(d, rank)
	}
	for rank, err := range run(c.ranks, c.kind, func(rank int) collective.Args { return calls[rank].args }) {
		if err != nil {
			return fmt.Errorf("%v: rank %d: %w", c, rank, err)
		}
	}
	var results [][]byte
	for rank, r := range calls {
		if err := c.check(r); err != nil {
			return fmt.Errorf("%v: rank %d: %w", c, rank, err)
		}
		results = append(results, r.args.Recv)
	}
	return c.checkBits(results)
}
