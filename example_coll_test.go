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
