package weft_test

import (
	"context"
	"fmt"

	"github.com/weft-hpc/weft"
)

// A sum that goes on while the program computes something else.
func ExampleIallreduce() {
	err := weft.Local(context.Background(), 4, func(ctx context.Context, world *weft.Comm) error {
		mine, total := []float64{float64(world.Rank())}, make([]float64, 1)
		s := world.Scope(ctx)
		weft.Iallreduce(s, world, mine, total, weft.Sum[float64]())
		// ... something else ...
		if err := s.Wait(); err != nil {
			return err
		}
		if world.Rank() == 0 {
			fmt.Println(total[0])
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// 6
	// <nil>
}

// A sum that has the same bits however its terms are spread over the ranks: here the
// large ones cancel, and a sum of float64 would lose the others.
func ExampleExactTotal() {
	terms := []float64{1, 1e100, 1, -1e100}
	for _, ranks := range []int{1, 2, 4} {
		err := weft.Local(context.Background(), ranks, func(ctx context.Context, world *weft.Comm) error {
			each := len(terms) / ranks
			part := terms[world.Rank()*each:][:each]
			total, err := weft.ExactTotal(ctx, world, part)
			if err == nil && world.Rank() == 0 {
				fmt.Println(ranks, "ranks:", total)
			}
			return err
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// 1 ranks: 2
	// 2 ranks: 2
	// 4 ranks: 2
}

// Two sums in one message: the mean and the square of the norm of a vector whose parts
// are on the ranks.
func ExampleExact() {
	err := weft.Local(context.Background(), 3, func(ctx context.Context, world *weft.Comm) error {
		part := []float64{0.5, float64(world.Rank())}
		sums := make([]weft.Exact[float64], 2)
		sums[0].Add(part...)
		if err := sums[1].AddDot(part, part); err != nil {
			return err
		}
		if err := weft.Allreduce(ctx, world, sums, sums, weft.MergeExact[float64]()); err != nil {
			return err
		}
		if world.Rank() == 0 {
			fmt.Println(sums[0].Value()/6, sums[1].Value())
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// 0.75 5.75
	// <nil>
}

// A collective on the same buffers in each step of a loop.
func ExamplePlan() {
	err := weft.Local(context.Background(), 4, func(ctx context.Context, world *weft.Comm) error {
		v := []int{1}
		plan, err := weft.PlanAllreduce(world, v, v, weft.Sum[int]())
		if err != nil {
			return err
		}
		for range 3 {
			if err := plan.Run(ctx); err != nil {
				return err
			}
		}
		if world.Rank() == 0 {
			fmt.Println(v[0])
			fmt.Println(plan.Explain().Algorithm)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// 64
	// shared-memory
	// <nil>
}

// Ranks that send each other as much as they like.
func ExampleExchange() {
	err := weft.Local(context.Background(), 3, func(ctx context.Context, world *weft.Comm) error {
		to := make([][]int, world.Size())
		for i := range to {
			to[i] = make([]int, world.Rank()) // rank 0 sends nothing, rank 2 two elements to each
		}
		from, err := weft.Exchange(ctx, world, to)
		if err != nil {
			return err
		}
		if world.Rank() == 0 {
			fmt.Println(from)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [[] [0] [0 0]]
	// <nil>
}

// The neighbours on a ring of three ranks tell each other their numbers.
func ExampleNeighborAllgather() {
	err := weft.Local(context.Background(), 3, func(ctx context.Context, world *weft.Comm) error {
		ring, err := weft.NewCart(ctx, world, []int{3}, []bool{true}, false)
		if err != nil {
			return err
		}
		around := make([]int, 2)
		if err := weft.NeighborAllgather(ctx, ring, []int{ring.Rank()}, around); err != nil {
			return err
		}
		if ring.Rank() == 0 {
			fmt.Println(around)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [2 1]
	// <nil>
}
