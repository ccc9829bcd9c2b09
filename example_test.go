package weft_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/weft-hpc/weft"
)

// Three ranks, here goroutines of one process. With Main in place of Local the
// same function runs as processes, under weftrun.
func Example() {
	err := weft.Local(context.Background(), 3, func(ctx context.Context, world *weft.Comm) error {
		sum, err := weft.AllreduceValue(ctx, world, world.Rank()+1, weft.Sum[int]())
		if err != nil {
			return err
		}
		if world.Rank() == 0 {
			fmt.Println("the sum is", sum)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: the sum is 6
}

func ExampleSend() {
	err := weft.Local(context.Background(), 2, func(ctx context.Context, world *weft.Comm) error {
		const tag = 7
		if world.Rank() == 0 {
			return weft.Send(ctx, world, []float64{1, 2, 3}, 1, tag)
		}
		buf := make([]float64, 10)
		st, err := weft.Recv(ctx, world, buf, 0, tag)
		if err != nil {
			return err
		}
		fmt.Println(buf[:st.Count], "from rank", st.Source)
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: [1 2 3] from rank 0
}

// A program that saves its state goes on from there when weftrun --restart has started it
// again.
func ExampleRestarts() {
	step := 0
	if weft.Restarts() > 0 {
		step = 100 // as saved
	}
	fmt.Println("start at step", step)
	// Output: start at step 0
}

func ExampleRecvAppend() {
	err := weft.Local(context.Background(), 2, func(ctx context.Context, world *weft.Comm) error {
		if world.Rank() == 0 {
			return weft.Send(ctx, world, []byte("of any length"), 1, 0)
		}
		text, _, err := weft.RecvAppend(ctx, world, []byte("a message "), weft.AnySource, weft.AnyTag)
		fmt.Printf("%s\n", text)
		return err
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: a message of any length
}

// Each rank sends to the next one while it receives from the one before.
func ExampleScope() {
	err := weft.Local(context.Background(), 4, func(ctx context.Context, world *weft.Comm) error {
		n, me := world.Size(), world.Rank()
		in := make([]int, 1)
		s := world.Scope(ctx)
		weft.Irecv(s, world, in, (me+n-1)%n, 0)
		weft.Isend(s, world, []int{me * me}, (me+1)%n, 0)
		// Here is time to compute; the messages move meanwhile.
		if err := s.Wait(); err != nil {
			return err
		}
		if me == 0 {
			fmt.Println("rank 0 got", in[0])
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: rank 0 got 9
}

// Work is handed to whoever asks next, and results come in any order.
func ExampleMessages() {
	err := weft.Local(context.Background(), 3, func(ctx context.Context, world *weft.Comm) error {
		const result = 1
		if world.Rank() > 0 {
			return weft.Send(ctx, world, []int{10 * world.Rank()}, 0, result)
		}
		sum, left := 0, world.Size()-1
		for m, err := range weft.Messages[int](ctx, world, weft.AnySource, result) {
			if err != nil {
				return err
			}
			sum += m.Data[0]
			if left--; left == 0 {
				break
			}
		}
		fmt.Println("all together:", sum)
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: all together: 30
}

func ExampleError() {
	err := weft.Local(context.Background(), 2, func(ctx context.Context, world *weft.Comm) error {
		if world.Rank() == 1 {
			return weft.Send(ctx, world, make([]float32, 276), 0, 7)
		}
		_, err := weft.Recv(ctx, world, make([]float32, 272), 1, 7)
		if e, ok := errors.AsType[*weft.Error](err); ok && errors.Is(err, weft.ErrTruncated) {
			fmt.Printf("%s from rank %d, tag %d: %d bytes, room for %d\n", e.Op, e.Peer, e.Tag, e.Got, e.Want)
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: Recv from rank 1, tag 7: 1104 bytes, room for 1088
}

// The rows of a matrix are split by parity of the rank; each half has its own
// collectives.
func ExampleComm_Split() {
	err := weft.Local(context.Background(), 4, func(ctx context.Context, world *weft.Comm) error {
		half, err := world.Split(ctx, world.Rank()%2, world.Rank())
		if err != nil {
			return err
		}
		most, err := weft.AllreduceValue(ctx, half, world.Rank(), weft.Max[int]())
		if err != nil {
			return err
		}
		if world.Rank() == 0 {
			fmt.Println("of", half.Size(), "even ranks the last is", most)
		}
		return half.Close(ctx)
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: of 2 even ranks the last is 2
}

// An operator of one's own, which need not be commutative: here the composition
// of the maps x -> A*x + B.
func ExampleOpFunc() {
	type affine struct{ A, B int64 }
	compose := weft.OpFunc("compose", false, func(f, g affine) affine {
		return affine{f.A * g.A, f.A*g.B + f.B}
	})
	err := weft.Local(context.Background(), 3, func(ctx context.Context, world *weft.Comm) error {
		f, err := weft.AllreduceValue(ctx, world, affine{2, int64(world.Rank())}, compose)
		if world.Rank() == 0 {
			fmt.Printf("x -> %d*x + %d\n", f.A, f.B)
		}
		return err
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: x -> 8*x + 10
}

func ExampleSendValue() {
	type result struct {
		Name string
		Bins map[string]int
	}
	err := weft.Local(context.Background(), 2, func(ctx context.Context, world *weft.Comm) error {
		if world.Rank() == 1 {
			return weft.SendValue(ctx, world, result{"run 3", map[string]int{"hits": 42}}, 0, 0)
		}
		r, _, err := weft.RecvValue[result](ctx, world, 1, 0)
		fmt.Println(r.Name, "has", r.Bins["hits"], "hits")
		return err
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: run 3 has 42 hits
}

// Rank 0 hands out work by a counter in its window, and collects the results in it,
// without a call of its own until all is done.
func ExampleWindow() {
	const tasks = 10
	err := weft.Local(context.Background(), 3, func(ctx context.Context, world *weft.Comm) error {
		mine := 0 // elements of this rank
		if world.Rank() == 0 {
			mine = 1 + tasks
		}
		w, err := weft.NewWindow[int64](ctx, world, mine)
		if err != nil {
			return err
		}
		results := make([]int64, tasks)
		for world.Rank() > 0 {
			task, err := weft.FetchAdd(ctx, w, 0, 0, 1)
			if err != nil {
				return err
			}
			if task >= tasks {
				break
			}
			results[task] = task * task
			// Until Flush or Fence this element belongs to the window.
			if err := w.Put(ctx, 0, 1+int(task), results[task:task+1]); err != nil {
				return err
			}
		}
		if err := w.Fence(ctx); err != nil {
			return err
		}
		if world.Rank() == 0 {
			fmt.Println(w.Local()[1:])
		}
		return w.Close(ctx)
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: [0 1 4 9 16 25 36 49 64 81]
}

// A ring of notifications: who is notified finds the data there.
func ExampleWindow_PutNotify() {
	err := weft.Local(context.Background(), 4, func(ctx context.Context, world *weft.Comm) error {
		w, err := weft.NewWindow[int64](ctx, world, 1)
		if err != nil {
			return err
		}
		next := (world.Rank() + 1) % world.Size()
		if world.Rank() > 0 {
			if _, err := w.Notified(ctx, world.Rank()-1, 0); err != nil {
				return err
			}
		}
		sum := []int64{w.Local()[0] + int64(world.Rank())}
		if err := w.PutNotify(ctx, next, 0, sum, 0); err != nil {
			return err
		}
		if world.Rank() == 0 {
			if _, err := w.Notified(ctx, world.Size()-1, 0); err != nil {
				return err
			}
			fmt.Println("the sum is", w.Local()[0])
		}
		return w.Close(ctx)
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output: the sum is 6
}
