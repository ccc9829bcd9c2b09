// Package rdma says in Go terms what an RDMA device does: the verbs of
// InfiniBand and RoCE, without C. It holds the interfaces, their contracts, the
// choice of device, port, GID and partition key, and the texts of the errors.
// Providers do the work: cgo/ibverbs on real devices, [rdma/fake] in pure Go.
// Every provider passes the suite in rdma/rdmatest, which is the contract
// where this text leaves a doubt.
//
// # Vocabulary
//
//   - [Provider]: a way to reach devices. [Device]: an opened device with one
//     or more [Port]s. [GID]: an address of a port; a port has a table of them.
//   - [PD], protection domain: memory and queues work together only inside one.
//   - [MR], memory region: registered memory. Its LKey names it in work
//     requests of this process; its RKey is the capability for peers. They are
//     different numbers, also where some device makes them equal.
//   - [QP], queue pair: one end of a reliable connection (RC), with a send
//     queue and a receive queue. [SRQ]: a receive queue that QPs share.
//   - Work request: [SendWR] and [RecvWR], what is posted. [WC], work
//     completion: what comes back, through a [CQ], completion queue.
//   - [CompChannel]: where a CQ that was armed announces that it has something.
//   - Event: what happens to a port, device or queue outside any work request.
//   - Drained: all that was posted to a QP has completed.
//
// # Ownership and lifetime
//
// What a provider creates belongs to the caller, who closes it, children
// before parents:
//
//	Open -> AllocPD -> RegisterMemory -> CreateCompChannel -> CreateCQ -> CreateSRQ -> CreateQP
//	  -> QP.Init -> (post receives, exchange numbers) -> QP.ReadyToReceive -> QP.ReadyToSend
//
//	stop posting -> QP.Fail -> drain -> QP.Close -> SRQ.Close -> MR.Close
//	  -> free the memory -> CQ.Close -> CompChannel.Close -> PD.Close -> Device.Close
//
// Close of a parent that has live children is refused with [ErrBusy], and
// says what is left. Close twice is refused with [ErrClosed].
//
// Memory that is registered lives outside the Go heap, in an mmap of the
// caller's, and stays mapped until MR.Close has returned. Go's runtime gives
// free pages of its heap back to the kernel also under a registration: the
// device then writes to pages that the process no longer sees, without an error.
//
// A buffer named in a work request belongs to the device until its completion
// was polled, or until its QP was put into the error state and drained. The
// work requests themselves, their slices included, are the caller's again when
// Post returns; so is the data of [SendWR].Inline.
//
// # Concurrency
//
// Posting to one QP or SRQ, and polling one CQ, is for one goroutine at a time.
// Different objects may be used at once; everything else may be called from
// any goroutine. Post, Poll and Arm neither wait nor allocate.
//
// # Completions
//
// Success of a work request without [Signaled] makes no completion; an error always does.
// A completion of a send queue also tells that everything posted before it to
// the same queue is done. A slot of a send queue becomes free when a completion
// is polled for it or for a later one, so some must be signaled, or the queue
// stays full for good. Completions that can come at once must fit their CQ:
// one that does not is the end of the CQ, and on most devices of all its QPs ([CQError]).
//
// In a WC with an error only ID, Status, QPN and Vendor mean something.
//
// Data is where it belongs when its completion was polled, and not before:
// bytes arrive in any order, the last one possibly first. The target of an
// RDMA WRITE learns of it by [WriteImm] or by a later send; watching memory is wrong.
// What one QP sends or writes arrives in the order it was posted. What was
// posted after an RDMA READ or an atomic may overtake its result, unless it has [Fence].
//
// # Waiting without a lost wake-up
//
// A notification is sent once, for the first completion after Arm. Those
// that are in the CQ already send none. So:
//
//	poll until empty -> Arm -> poll again
//	  found something: handle it, start over
//	  still empty: wait until the channel's FD is readable -> Next until false -> start over
//
// # Errors
//
// The first error of a QP puts it into the error state: everything else
// that is posted or was posted completes with [StatusFlushed], in order. So the end
// is known by posting one last request to each queue and waiting for its
// completion ([QP.Fail]). No other sign of the end is reliable: there are
// devices that never send [LastWQEReached].
//
// Every error of a provider is an [*Error] with op, device, port, QP number,
// cause, errno, and where one command or change fixes it, that. [Explain] holds
// the texts, for all providers.
//
// # What is not here
//
// Unreliable and datagram queue pairs, XRC, DC, connection management by
// rdma_cm (and so iWARP), multicast, memory windows, on-demand paging,
// registration caches. The addresses and numbers that two ends need of each other go
// over a connection that the caller has already.
package rdma
