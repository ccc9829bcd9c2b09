// Package tcp is the transport over TCP: the fallback between hosts without
// InfiniBand. It passes the suite in transporttest.
//
// # Vocabulary
//
// A card says where a rank listens. A rank dials a peer on its first Send to it, and asks
// for its card then (FindCards). A
// connection is up when both ends have proved that they know the job's secret;
// it then carries a stream of frames, each behind a u64 with its length.
//
// # Who drives it
//
// Nothing here has a goroutine. All sockets are non-blocking and belong to one
// epoll instance; Poll does what they are ready for, Wait sleeps on it. A timer
// in the same epoll ticks once a second while there is a connection, for
// handshakes that take too long and peers that no longer answer. Go's own
// network poller is not used, since it would wake a goroutine where the engine
// is polling already.
//
// Up to two connections are read directly, and epoll is asked at every 16th Poll;
// with more of them it says which. An idle Poll is one or two system calls.
//
// # Connections
//
// At most one connection joins two ranks. It is dialed by whoever sends first.
// When both dial at once, the dial of the lower rank stands:
//
//	the lower rank, while it dials, answers the other's proof with "crossed";
//	the higher rank then waits for the lower rank's dial, and accepts it
//	whenever it comes, giving up its own;
//	a dial that was given up may reach the lower rank when its own is up
//	already, once for a connection, and is answered "crossed" as well.
//
// No frame is lost by that: frames wait in the peer's output until a connection
// is up, and a connection that is given up never was.
//
// States of a peer: idle (never used), dialing (a dial is under way, or expected from the
// other side after "crossed", or its card was asked for), up, failed (PeerDown is due), down (PeerDown was reported).
// They only move forward. There is no second connection after a failure.
//
// # The handshake
//
// See handshake.go. Before it is over nothing is read past its fixed-size
// messages, and nothing a stranger sends can disturb the job: the connection is
// closed, counted, and reported by Config.Notice. It authenticates; it does not
// encrypt, and frames carry no MAC of their own.
//
// # Memory
//
// Buffers come from two pools. A connection holds an input buffer only while a frame is
// partly read, a peer an output buffer only while the socket takes no more. So
// an idle connection costs two small structures and what the kernel takes.
//
// Payloads of Data frames go from the user's memory to the socket, and from the socket to
// where Sink.Dest says, without a copy, except the first few KiB that come along
// with the header. Sizes of socket buffers are left to the kernel, which tunes
// them better than a constant can. One connection for each pair carries all sizes.
// Several might be faster for large messages on a network of more than 10 Gb/s;
// that was not measured, and loopback, where the processors are the limit, cannot show it.
//
// # Failure
//
// A closed or reset connection is PeerDown. A host that vanishes is found within
// about ten seconds: by keepalive when the connection is idle, and when data are under
// way by the tick, which asks the kernel whether anything was acknowledged.
// TCP_USER_TIMEOUT would do that more simply, but it also ends connections to a
// process that is merely stopped, as batch systems do to suspend a job.
package tcp
