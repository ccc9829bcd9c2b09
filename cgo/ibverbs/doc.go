// Package ibverbs is the provider of rdma for real devices: InfiniBand, RoCE
// and soft-RoCE, over libibverbs. Import it for its registration, as
//
//	import _ "github.com/weft-hpc/weft/cgo/ibverbs"
//	p, err := rdma.Lookup(ibverbs.Name)
//
// or make a provider with other options by [New].
//
// # Building and loading
//
// The library is not linked: it is loaded when the provider is asked for
// devices for the first time, so that one binary runs on hosts with and without it.
// WEFT_IBVERBS_LIB names another file to load. The header infiniband/verbs.h
// is needed to build. Without it, without cgo, and on systems other than Linux
// this package builds all the same, and its provider answers that it is not
// built in, and how to build it.
//
// # How Go and C share the work
//
// Go sees flat structures in C memory, which each queue has for itself. A post
// writes its work requests there and hands up to 32 of them to the device with
// one call; a poll takes up to 32 completions with one call. Nothing is
// allocated, no pointer to Go memory is passed, and C never calls into Go.
//
// # Two ways to drive a completion queue
//
// [Direct]: Poll, Arm and Next ask the device, by a call into C each.
//
// [Thread]: one thread in C for each device owns its completion queues. It
// polls them, sleeps on the device's channel when there was nothing for some time, and
// puts completions into a ring in shared memory, which Poll reads without a call.
// Go's scheduler and garbage collector never hold it up, and no signal reaches it. It costs a core while it spins,
// and a change of thread for each completion when it sleeps; a notification that the
// device loses costs it 100 ms.
//
// Options.IO and WEFT_RDMA_IO choose; the default is [DefaultIO], which says why.
//
// # What devices do differently, and is made alike here
//
//   - Soft-RoCE takes 7 retries for ever; Limits say 6.
//   - Soft-RoCE flushes a receive that is posted in the error state only when
//     the state is set again, which is done here.
//   - Segments of length 0 mean 2 GiB to some devices. They are left out.
//   - Segments too many, unknown operations, inline data too long and atomics that
//     are not aligned are refused here, in words, instead of by EINVAL or ENOMEM.
//   - The state of a QP is followed here, so that an error names it.
//   - Calls that a signal interrupted are made again, also for the rest of a batch.
//   - Drivers say an errno as it is, negated, or in errno. Here it is in the error.
//   - A QP that cannot have as much inline data as was asked for gets less.
//
// Close of a queue waits for a post, poll or arm of the same queue that is
// under way; later ones are refused.
package ibverbs
