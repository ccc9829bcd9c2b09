package weft_test

import (
	"context"
	"fmt"

	"github.com/weft-hpc/weft"
)

// Rank 0 has read the parameters, and all need them.
func ExampleBcast() {
	err := weft.Local(context.Background(), 3, func(ctx context.Context, world *weft.Comm) error {
		params := make([]float64, 2)
		if world.Rank() == 0 {
			params = []float64{0.5, 100}
		}
		if err := weft.Bcast(ctx, world, params, 0); err != nil {
			return err
		}
		if world.Rank() == 2 {
			fmt.Println(params)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [0.5 100]
	// <nil>
}

// The largest element of each place, on rank 0; the others need no room for it.
func ExampleReduce() {
	err := weft.Local(context.Background(), 3, func(ctx context.Context, world *weft.Comm) error {
		mine := []int{world.Rank(), -world.Rank()}
		var most []int
		if world.Rank() == 0 {
			most = make([]int, 2)
		}
		if err := weft.Reduce(ctx, world, mine, most, weft.Max[int](), 0); err != nil {
			return err
		}
		if world.Rank() == 0 {
			fmt.Println(most)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [2 0]
	// <nil>
}

// In place: the same slice twice.
func ExampleAllreduce() {
	err := weft.Local(context.Background(), 4, func(ctx context.Context, world *weft.Comm) error {
		v := []float64{1, float64(world.Rank())}
		if err := weft.Allreduce(ctx, world, v, v, weft.Sum[float64]()); err != nil {
			return err
		}
		if world.Rank() == 3 {
			fmt.Println(v)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [4 6]
	// <nil>
}

// Each rank needs its own part of a sum, of which rank 1 has most.
func ExampleReduceScatter() {
	err := weft.Local(context.Background(), 2, func(ctx context.Context, world *weft.Comm) error {
		counts := []int{1, 3}
		part := make([]int, counts[world.Rank()])
		if err := weft.ReduceScatter(ctx, world, []int{1, 2, 3, 4}, part, counts, weft.Sum[int]()); err != nil {
			return err
		}
		if world.Rank() == 1 {
			fmt.Println(part)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [4 6 8]
	// <nil>
}

// Where the elements of each rank begin, if they are numbered through.
func ExampleExscanValue() {
	err := weft.Local(context.Background(), 3, func(ctx context.Context, world *weft.Comm) error {
		elements := 10 * (world.Rank() + 1)
		first, err := weft.ExscanValue(ctx, world, elements, weft.Sum[int]())
		if err != nil {
			return err
		}
		if world.Rank() == 2 {
			fmt.Println("from", first)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// from 30
	// <nil>
}

// Rank 0 hands out parts of different lengths, with a gap between them.
func ExampleScatterv() {
	err := weft.Local(context.Background(), 2, func(ctx context.Context, world *weft.Comm) error {
		part := make([]int, 1+world.Rank())
		var all []int
		var counts weft.Counts
		if world.Rank() == 0 {
			all = []int{1, 0, 2, 3}
			counts = weft.Counts{N: []int{1, 2}, Displs: []int{0, 2}}
		}
		if err := weft.Scatterv(ctx, world, all, part, counts, 0); err != nil {
			return err
		}
		if world.Rank() == 1 {
			fmt.Println(part)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [2 3]
	// <nil>
}

// Rank 0 collects what the others have, without knowing how much that is.
func ExampleGatherAppend() {
	err := weft.Local(context.Background(), 3, func(ctx context.Context, world *weft.Comm) error {
		mine := make([]int, world.Rank())
		for i := range mine {
			mine[i] = world.Rank()
		}
		all, counts, err := weft.GatherAppend(ctx, world, nil, mine, 0)
		if err != nil {
			return err
		}
		if world.Rank() == 0 {
			fmt.Println(all, counts.N)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [1 2 2] [0 1 2]
	// <nil>
}

// Every rank's block, on all ranks.
func ExampleAllgather() {
	err := weft.Local(context.Background(), 3, func(ctx context.Context, world *weft.Comm) error {
		all := make([]byte, 6)
		if err := weft.Allgather(ctx, world, []byte{'a' + byte(world.Rank()), '.'}, all); err != nil {
			return err
		}
		if world.Rank() == 1 {
			fmt.Printf("%s\n", all)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// a.b.c.
	// <nil>
}

// A matrix with a row on each rank is transposed.
func ExampleAlltoall() {
	err := weft.Local(context.Background(), 3, func(ctx context.Context, world *weft.Comm) error {
		row, column := make([]int, 3), make([]int, 3)
		for i := range row {
			row[i] = 10*world.Rank() + i
		}
		if err := weft.Alltoall(ctx, world, row, column); err != nil {
			return err
		}
		if world.Rank() == 1 {
			fmt.Println(column)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [1 11 21]
	// <nil>
}

// Which rank has the smallest value.
func ExampleMinLoc() {
	err := weft.Local(context.Background(), 3, func(ctx context.Context, world *weft.Comm) error {
		mine := weft.Loc[float64]{Value: []float64{3, 1, 2}[world.Rank()], Index: int64(world.Rank())}
		least, err := weft.AllreduceValue(ctx, world, mine, weft.MinLoc[float64]())
		if err != nil {
			return err
		}
		if world.Rank() == 0 {
			fmt.Println(least.Value, "on rank", least.Index)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// 1 on rank 1
	// <nil>
}

// A rank sends to those that it names, and they name it.
func ExampleNewGraph() {
	err := weft.Local(context.Background(), 3, func(ctx context.Context, world *weft.Comm) error {
		// 0 sends to 1 and 2.
		var sources, destinations []int
		if world.Rank() == 0 {
			destinations = []int{1, 2}
		} else {
			sources = []int{0}
		}
		g, err := weft.NewGraph(ctx, world, sources, destinations)
		if err != nil {
			return err
		}
		got := make([]int, len(sources))
		if err := weft.NeighborAlltoall(ctx, g, []int{7, 8}[:len(destinations)], got); err != nil {
			return err
		}
		if world.Rank() == 2 {
			fmt.Println(got)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// [8]
	// <nil>
}

// An algorithm that is asked for, and what a plan tells of it.
func ExampleWithAlgorithm() {
	err := weft.Local(context.Background(), 4, func(ctx context.Context, world *weft.Comm) error {
		v := make([]float64, 8)
		plan, err := weft.PlanAllreduce(world, v, v, weft.Sum[float64](), weft.WithAlgorithm("ring"))
		if err != nil {
			return err
		}
		if err := plan.Run(ctx); err != nil {
			return err
		}
		if world.Rank() == 0 {
			e := plan.Explain()
			fmt.Println(e.Algorithm, e.Why, e.Steps, e.Messages)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// ring as asked 6 24
	// <nil>
}

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
