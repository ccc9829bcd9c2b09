// Package zmq is the control plane over ZeroMQ, beside the one over TCP that package plane has
// itself. It is built with
//
//	go build -tags zmq
//
// which needs cgo and the headers of libzmq (Debian: libzmq3-dev). Without them it is there all the same,
// and tells how to build it. Import it for its registration, as [Name].
//
// # Vocabulary
//
// The root has a ROUTER, each member a DEALER. A conn is one connection as the root sees it: ZeroMQ gives it an
// address that no other connection gets, so a member that connects again is a stranger until it says hello. A line is
// one end of an established link: it numbers records, gives and takes credit, and knows how long the peer may be silent.
//
// # Who proves what
//
// CURVE, with key pairs that both ends derive from the job's secret and name. The root's public key is never sent, so
// who can begin a handshake knows the secret already; that the member has its pair is asked for as well, in the
// root's answer to ZeroMQ's ZAP. What CURVE does not see, a record that is missing, the numbers of records do.
//
// # Records
//
// A ZeroMQ message is a record: what it is, its number, and up to 64 KiB. A frame is one record or several.
//
//	member -> root  hello    version, digest of the build, name
//	root -> member  verdict  accepted, or why not
//	both ways       last, more, beat, hold, bye, grant
//	root -> member  gone     you were given up, and why
//
// # States
//
// ZeroMQ hides connections: it connects again, and queues meanwhile. Neither is wanted here. A monitor on each socket tells
// what happens to its connections, and that becomes a state:
//
//	connecting  until the handshake is over
//	refused     the handshake failed, or nothing answered
//	up          the handshake succeeded
//	lost        the connection ended
//
// There is no way back from refused and lost.
//
// # Who waits for whom
//
// Each socket belongs to one goroutine, since ZeroMQ's are for one thread at a time. It never waits inside of ZeroMQ: the descriptor that
// ZeroMQ signals is in Go's poller, and a deadline in the past wakes the goroutine for anything else, so that nothing
// polls and no thread is held.
//
// Data is sent on credit, which the peer gives back when its handler has taken the frame. So ZeroMQ's own queues, which drop or
// wait when they are full, never are; if one is, the link ends with an error. A peer that does not take its frames holds up nobody: what
// waits for it is bounded as package plane says, then it is down.
//
// # What it does not do
//
// The number of strangers in a handshake is not bounded, as ZeroMQ accepts whoever comes; each is sent away after
// plane.HandshakeWait. A record that was changed on the way ends the link, but where ZeroMQ then just stops to read, the root
// finds out by the silence. It cannot close a connection that was accepted: a member that was given up is told so, and closes it.
package zmq

// Name is what the plane is registered as.
const Name = "zmq"
