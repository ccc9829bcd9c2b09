// Package weft is message passing in the style of MPI. A program is started as
// a number of processes, its ranks, by weftrun; each runs the same code, knows
// its own rank, and exchanges messages with the others:
//
//	weft.Main(func(ctx context.Context, world *weft.Comm) error {
//		sum, err := weft.AllreduceValue(ctx, world, float64(world.Rank()), weft.Sum[float64]())
//		if err != nil {
//			return err
//		}
//		fmt.Println(world.Rank(), "of", world.Size(), "has", sum)
//		return nil
//	})
//
// # Vocabulary
//
// The names are MPI's. A [Comm], a communicator, is a group of ranks with a
// message space of its own. A message has a source, a destination, a tag and a
// slice of elements. Messages from one rank to another with tags that the same
// receive accepts are received in the order they were sent. A collective is a
// call that all ranks of a communicator make.
//
// # Buffers
//
// The length of a slice is the count. Elements are of any type without
// pointers; a message is received into the element type it was sent with, by
// the layout of its memory, or is ErrType. A blocking call owns its buffers until it
// returns, a [Request] until it is done. Ordinary slices work everywhere. A
// large message from memory of [Alloc] is copied once inside a host, straight
// from the sender's memory to the receiver's.
//
// # Reproducible reductions
//
// A sum of floats depends on the order in which it is rounded. There are three levels of
// reproducibility. All ranks get the same bits from a reduction: always. The same
// program, with as many ranks on hosts in the same places, gets the same bits in every run, as no order depends
// on time, unless algorithms are chosen by what was measured at its start (WEFT_MODEL=measure). And the same bits for any number of ranks, however the terms
// are spread over them: from [ExactTotal] and [ExactDot], and from elements of type
// [Exact] with the operator [MergeExact], which do not round before the end; also from
// the operator [SumExact] on floats, if the same values come from more or fewer ranks. Minimum
// and maximum are so by nature, and so are the sums of integers, which wrap.
//
// # Windows
//
// A [Window] is memory of each rank that all others read and write with Put, Get,
// [FetchAdd] and [CompareSwap], while its owner computes. What is started belongs to the window
// until Flush or Fence, and [Window.PutNotify] tells the target that data are there.
//
// # Contexts
//
// Every call that may wait takes a context first. When it ends, an operation that
// has not matched is withdrawn; one that has matched returns when nothing
// touches its buffer any more. A collective that is withdrawn revokes its
// communicator.
//
// # Errors
//
// Calls return an [*Error], which names the operation, the ranks, the sizes, the
// line of the caller and what to change, around one of the Err values of this
// package. They panic only for a nil or closed communicator. When a rank fails,
// operations that need it fail with [ErrRankFailed], and in a program that uses
// [Main] the job ends.
//
// # Goroutines
//
// Any number of goroutines may use a communicator at once; for collectives, one
// at a time: a second one, started while a blocking one runs, gets ErrConcurrent, and
// uses [Comm.Dup]. Messages move
// also while no goroutine is in a call: an I/O goroutine matches and answers
// them.
//
// # What it does not do
//
// Files (MPI-IO), derived datatypes, intercommunicators and dynamic processes
// are left out.
package weft
