package weft_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weft-hpc/weft"
	"github.com/weft-hpc/weft/collective"
)

// The first two levels of reproducibility, with values whose sums depend on the order: all ranks have the
// same bits, and a second run has them too. The third level is in op_exact_test.go.

// hardValues are floats that cancel, round, overflow and vanish.
var hardValues = []float64{1e308, -1e308, 1.7e308, 1e-320, -1e-320, 5e-324, 1, -1, 1e16, -1e16, 0x1p-53, 0.1, 1. / 3, -0.7,
	1e100, -1e100, math.Copysign(0, -1), 0, 3e38, 1e-45}

// hardSpecials are rarer ones: those that win over all others.
var hardSpecials = []float64{math.Inf(1), math.Inf(-1), math.NaN(), math.Float64frombits(0xfff8dead << 32)}

// counter is a source of numbers that costs nothing to make. (Steele et al.: Fast splittable pseudorandom number
// generators, 2014)
type counter struct{ state uint64 }

func (c *counter) Uint64() uint64 {
	c.state += 0x9e3779b97f4a7c15
	z := c.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// hard is element i of a rank's vector.
func hard(rank, i int) float64 {
	r := rand.New(&counter{uint64(rank)<<32 + uint64(i)})
	if i%17 == 16 && rank == i%3 {
		return hardSpecials[r.IntN(len(hardSpecials))]
	}
	if i%2 == 1 { // near each other, so that every sum rounds
		return r.NormFloat64()
	}
	return hardValues[r.IntN(len(hardValues))] * (1 + float64(r.IntN(1000))*0x1p-52)
}

// reduceAll runs every reduction on hard vectors, by every algorithm and the one that is chosen, and as a
// request and a plan. It returns a hash of the bits of all results on all ranks.
func reduceAll[T weft.Float](ctx context.Context, c *weft.Comm) (uint64, error) {
	h := fnv.New64a()
	n, me := c.Size(), c.Rank()
	for _, count := range []int{1, 700} { // within a slot of the board, and beyond
		send := make([]T, count*n)
		for i := range send {
			send[i] = T(hard(me, i))
		}
		for _, op := range []weft.Op[T]{weft.Sum[T](), weft.Prod[T](), weft.Max[T]()} {
			vector := send[:count]
			try := func(kind collective.Kind, name string, recv []T, everywhere bool, call func(recv []T, opts ...weft.CollOption) error) error {
				var opts []weft.CollOption
				if name != "" {
					alg, err := collective.Lookup(kind, name)
					if err != nil {
						return err
					}
					if !alg.Suits(n, nil, true) {
						return nil
					}
					opts = append(opts, weft.WithAlgorithm(name))
				}
				where := fmt.Sprintf("%v of %d %T, operator %s, by %q", kind, count, send[0], op.Name(), name)
				if err := call(recv, opts...); err != nil {
					return fmt.Errorf("%s: %w", where, err)
				}
				own := counter{}
				for _, x := range recv {
					own.state = own.Uint64() ^ math.Float64bits(float64(x))
				}
				all, err := weft.AllgatherValue(ctx, c, own.Uint64())
				if err != nil {
					return err
				}
				if everywhere && len(slices.Compact(slices.Clone(all))) > 1 {
					return fmt.Errorf("%s: ranks have different bits", where)
				}
				fmt.Fprint(h, all)
				return nil
			}
			for _, kind := range []collective.Kind{collective.KindAllreduce, collective.KindReduce, collective.KindReduceScatterBlock, collective.KindScan} {
				for _, name := range append(collective.Algorithms(kind), "") {
					recv := make([]T, count)
					err := try(kind, name, recv, kind == collective.KindAllreduce, func(recv []T, opts ...weft.CollOption) error {
						switch kind {
						case collective.KindAllreduce:
							return weft.Allreduce(ctx, c, vector, recv, op, opts...)
						case collective.KindReduce:
							return weft.Reduce(ctx, c, vector, recv, op, n/2, opts...)
						case collective.KindReduceScatterBlock:
							return weft.ReduceScatterBlock(ctx, c, send, recv, op, opts...)
						}
						return weft.Scan(ctx, c, vector, recv, op, opts...)
					})
					if err != nil {
						return 0, err
					}
				}
			}
			for form, call := range []func(recv []T, opts ...weft.CollOption) error{
				func(recv []T, opts ...weft.CollOption) error {
					s := c.Scope(ctx)
					weft.Iallreduce(s, c, vector, recv, op, opts...)
					return s.Wait()
				},
				func(recv []T, opts ...weft.CollOption) error {
					p, err := weft.PlanAllreduce(c, vector, recv, op, opts...)
					if err != nil {
						return err
					}
					return p.Run(ctx)
				},
			} {
				want, got := make([]T, count), make([]T, count)
				if err := weft.Allreduce(ctx, c, vector, want, op); err != nil {
					return 0, err
				}
				if err := try(collective.KindAllreduce, "", got, true, call); err != nil {
					return 0, err
				}
				if !sameBits(got, want) {
					return 0, fmt.Errorf("form %d of allreduce of %d %T, operator %s, has other bits than the blocking one", form, count, send[0], op.Name())
				}
			}
		}
	}
	return h.Sum64(), nil
}

func sameBits[T weft.Float](a, b []T) bool {
	return slices.EqualFunc(a, b, func(x, y T) bool { return math.Float64bits(float64(x)) == math.Float64bits(float64(y)) })
}

// The other tests here mean nothing if the order of the values does not show.
func TestHardValuesTellOrdersApart(t *testing.T) {
	differ := 0
	for i := range 100 {
		var up, down float64
		for rank := range 5 {
			up += hard(rank, i)
			down += hard(4-rank, i)
		}
		if !sameBits([]float64{up}, []float64{down}) && up == up && down == down {
			differ++
		}
	}
	if differ < 10 {
		t.Errorf("only %d of 100 sums depend on the order", differ)
	}
}

func TestReductionsHaveTheSameBits(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 7, 8, 13} {
		for way, faults := range map[string][2]weft.Faults{
			"over the board":            {{Seed: 1, Delay: 2}, {Seed: 2, Full: 0.1}},
			"over messages, eager":      {{Seed: 3, Delay: 3, Stream: true}, {Seed: 4, Duplicate: 0.1, Full: 0.1, Stream: true}},
			"over messages, rendezvous": {{Seed: 5, Delay: 1, Eager: 64, Stream: true}, {Seed: 6, Delay: 3, Eager: 64, Stream: true}},
		} {
			t.Run(fmt.Sprintf("%d ranks/%s", n, way), func(t *testing.T) {
				t.Parallel()
				var first [2]uint64
				for run, f := range faults {
					var bits [2]uint64
					err := weft.Local(t.Context(), n, func(ctx context.Context, c *weft.Comm) error {
						wide, err := reduceAll[float64](ctx, c)
						if err != nil {
							return err
						}
						narrow, err := reduceAll[float32](ctx, c)
						if c.Rank() == 0 {
							bits = [2]uint64{wide, narrow}
						}
						return err
					}, weft.WithFaults(f))
					if err != nil {
						t.Fatal(err)
					}
					if run == 0 {
						first = bits
					} else if bits != first {
						t.Errorf("the second run has other bits (float64, float32): %x, the first %x", bits, first)
					}
				}
			})
		}
	}
}

func init() {
	// Two runs in one: processes over real transports, where time decides who comes first.
	programs["same bits"] = func(ctx context.Context, c *weft.Comm) error {
		first, err := reduceAll[float64](ctx, c)
		if err != nil {
			return err
		}
		second, err := reduceAll[float64](ctx, c)
		if err == nil && first != second {
			err = fmt.Errorf("rank %d: the second time other bits than the first", c.Rank())
		}
		return err
	}
}
