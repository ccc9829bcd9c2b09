// Package verbs is the transport over RDMA: InfiniBand and RoCE, by reliable
// connections (RC). It passes the suite in transporttest over any rdma.Provider.
//
// # Vocabulary
//
// A rail is one port of one device with all that is made on it: protection domain, CQ, completion
// channel, shared receive queue. Rail 0 carries frames; a payload of a megabyte and more is divided
// among all rails. A connection joins two ranks by one endpoint (a queue pair) for each rail. The
// link is another transport, over which two ranks greet each other before they are
// connected, and which sees dead processes. A receive is a buffer that any peer's next message may
// land in; credits say how many of them a peer may use. An exposure is a buffer that a peer may
// write one payload to, a window one that peers may use as often as they like, and a lease the
// right to use memory with a device until it is given up.
//
// # Connections
//
// They are made on first use; until then everything on a peer returns ErrAgain. Both sides
// do the same, so that it does not matter who begins, or whether both do:
//
//	idle       nothing is there
//	making     a job creates the queue pairs and takes them to INIT
//	greeting   our HELLO is under way with their numbers; the peer's is awaited
//	readying   a job takes them to RTS by the numbers of the peer's HELLO; that may take seconds (ARP)
//	waiting    our READY is under way: the peer may send; its own is awaited
//	probing    an RDMA write of no bytes is under way on each rail; then our UP is, and the peer's is awaited
//	up         the probes of both ends were answered
//	failing    in ERROR; what was posted comes back
//	down       PeerDown was reported
//
// An attempt has a number, the epoch. Whatever goes wrong before the first message
// (an address that does not resolve, a probe without an answer) begins the next epoch with fresh queue
// pairs, a few times. A greeting of a later epoch makes the other side begin again, too;
// one of an earlier epoch is counted and ignored. From the first message on nothing is
// repeated, as it might have been lost. What cannot be (another version, job, kind of network, number
// of rails, size of receives) is refused with the reason, which both ranks report. The MTU is the
// smaller of both ends'. Greetings are authenticated by the link.
//
// The names that ranks give each other for a connection, and work requests, carry a generation, so
// that what comes late from an earlier one is known as such.
//
// # Messages
//
// Everything that needs a receive of the peer starts with a prefix, see prefix.go, and is paid for by
// a credit. Credits come back in the prefix of any message, or when half of them are
// owed in a message of their own. That one costs no credit; there can be two of
// them under way. Every peer's receives are reserved when it is connected, those two included, and so is
// one for each exposure on each rail. So no message ever meets an empty queue. RNR retries would
// repair it at a price, but on soft-RoCE they end the connection soon. For this the pool of receives
// grows by a few with each peer beyond the first twenty or so: memory depends on peers,
// never on messages.
//
// Every posted work request is counted against its send queue and its CQ, silent ones too: when a queue pair
// fails, all of them complete. A send queue never fills up with silent ones, and whoever finds no room
// asks for completions where only silent ones are left.
//
// # Payloads
//
//	Expose registers the buffer            SendBulk: the DATA header as a message,
//	or finds its block's registration  ->  RDMA writes, the last of each rail WRITE_WITH_IMM  ->  Dest, Landed
//
// Where one write does it all, on a connection of one rail, there is no message: the immediate value says so and names
// the exposure, which knows the frame; its number is the one after that of the frame before, since all arrive in order.
//
// Nobody watches memory: the end of a payload is the completion of its last WRITE_WITH_IMM on each
// rail. Messages that come meanwhile, which only happens with several rails, wait in their receives. Without an
// exposure, and where memory cannot be registered, a payload goes through send buffers and
// receives in pieces, so no operation ever waits for a registration that somebody would have to free.
//
// # Memory
//
// Blocks of 64 KiB and more of the arena are registered when they are allocated, one registration
// for each, so a key reaches no further than its block. They are sent without a copy and without a
// registration. Other memory below 256 KiB is copied to or from registered buffers; from there on it is
// pinned and registered for one operation, with no more access than that needs. The order is always:
// the device is done, or its queue pair is drained and closed; deregister; unpin. Go gives free pages of its
// heap back to the kernel also under a registration, so nothing of the heap stays registered longer.
//
// # Failure
//
// The first error of a queue pair other than "flushed" is the cause. It is reported with rank, host, device, GID,
// and what the link knows of the peer's process. Then: Fail, drain by a last work request (the
// beacon), destroy, deregister, unpin, and only then PeerDown. A receiver that sends nothing learns of a
// dead host by keep-alive: an RDMA write of no bytes, after a second (soft-RoCE) or five of silence. When the
// link or the launcher tells of a death, what is in the CQs is delivered first.
//
// # Who drives it
//
// Poll does everything but what may take long: jobs, each a goroutine that ends, create, connect and destroy
// queue pairs, and Poll picks their results up. The clock is looked at every 256
// polls, and the link by the clock and after a Wait that they ended. Wait sleeps on one epoll instance with
// the completion channels, the devices' events, the link and an eventfd.
//
// Registrations of arena blocks have a lock of their own, since the arena is used by any goroutine.
//
// # What it is not
//
// It does not encrypt. Keys of memory are capabilities, which whoever shares the network may guess:
// that is why they reach no further than they must. Unreliable datagrams, DC and XRC are not used, so the number of
// connected peers is limited by what the device has in queue pairs.
package verbs
