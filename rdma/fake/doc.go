// Package fake is a provider of rdma in pure Go: a fabric of devices in one
// process that keeps the contract to the letter, is stricter than hardware
// where hardware lets mistakes pass, and fails on demand. It is for tests.
//
// A [Fabric] joins [Card]s. A card is the hardware: it has a port, addresses,
// queue pair numbers and keys. Devices opened on a card are what processes
// hold. All devices of a fabric reach each other, as long as nobody cuts a link.
//
// # Stricter than hardware
//
//   - LKey and RKey differ, and neither is ever used again.
//   - Bounds, access and protection domain of memory are checked to the byte, on
//     every packet.
//   - Payload arrives in packets in any order, the last first, and inside a packet in
//     cache lines in any order, the last first.
//   - An RDMA READ and an atomic get their result late: what was posted after
//     them without Fence overtakes it. Sends and writes complete some time after
//     they arrived.
//   - Queues have the size that was asked for, not one more. Slots become
//     free when completions are polled.
//   - A CQ that overruns is dead, with all its queue pairs.
//   - Completions with an error have garbage in the fields that mean nothing.
//   - A region that posted work names cannot be closed.
//   - LastWQEReached is never sent.
//   - Completions of a QP that was closed or reset without a drain are lost, or
//     come afterwards, by chance.
//   - Ends with different MTUs pass small messages and fail at the first that
//     is larger; ends with different PSNs never hear each other.
//   - A lost device completes nothing any more.
//
// CardOptions.Soft takes back what soft-RoCE cannot keep.
//
// # Faults
//
// [Card.FailCall], [Card.FailSend], [Card.LoseNotifications], [Card.SetPort], [Card.Cut],
// [Card.Fatal], [Card.SetGIDs], [Fabric.Kill], and the limits of CardOptions.
//
// # Time and chance
//
// One goroutine, the wire, moves everything; it ends with [Fabric.Close]. Polling
// an empty CQ moves things too, so that a loop that polls does not wait for
// a scheduler. Which queue pair moves next is drawn from Options.Seed. Between
// [Fabric.Hold] and [Fabric.Resume] only [Fabric.Step] moves things: with
// one goroutine a run is then a function of the seed. Timers run in real time.
//
// # What it is not
//
// It is not fast, and not a model of time on a wire. One lock serves the whole
// fabric; by this the race detector sees memory passed through the fabric as synchronised.
// Memory may be any memory here, also on the Go heap, so that the detector sees it.
package fake
