// Package shm moves frames between the ranks of one host through memory that
// all of them map.
//
// # The segment
//
// There is one segment for each host and job: a memfd that the launcher makes
// with [Create] and that each rank inherits and maps with [Open]. It has no name
// in any file system, so nothing is left of it after any end of the job. Pages
// are made real when they are first needed, with fallocate, so that a host
// without memory is an error with a text and not a SIGBUS. From the front:
//
//	header      what the segment is: magic, version, number of ranks, sizes
//	rank[p]     1 KiB: the doorbell, the attention word and the pull descriptor of rank p
//	lane[i->j]  a ring of 64-byte slots for frames from i to j
//	bulk[i->j]  chunks for payloads that are longer than a frame may be
//	slot[n][p]  pages of rank p that all see, for whom this package does not know
//	arena[p]    memory that rank p allocates from and all ranks may read and write
//
// Ranks are numbered from 0 on the host (their index) and by their rank in the
// world; only this package knows about the former. Untouched lanes, bulk
// chunks and arenas cost no memory.
//
// # Lanes
//
// A lane has one producer and one consumer. A frame takes a run of consecutive
// slots that does not cross the end of the ring: word u64, header, payload.
// Word and short payload share a cache line, so a small frame moves one line.
// The word holds the position of the slot (its count since the beginning, low
// half) and the length and flags of the frame (high half).
//
//	owner     slots                         changes hands when
//	consumer  [tail, head)                  the consumer stores tail, every quarter of the ring
//	producer  [head, tail + ring)           the producer stores the word of the first slot of a run
//
// A run overwrites the words of its inner slots with data, and a later lap must
// not take data for a word. So the producer keeps one free slot before the tail
// and, where a run of several slots was written in the last lap, overwrites the
// word that the consumer will look at next before it publishes. A run that would
// cross the end is preceded by a pad.
//
// The consumer looks at lanes that are active: a producer sets its bit in the
// consumer's set and bumps its attention word the first time it sends. One load
// of the attention word per Poll finds news of any kind that is rare.
//
// # Bulk
//
// A payload of SendBulk that does not fit a frame is announced by a frame in the
// lane and goes through the chunks of the pair, in two copies that overlap. A
// chunk is the sender's while its flag is 0 and the receiver's while it is 1.
// The receiver takes nothing more from the lane until the payload has landed;
// that keeps the order. Both ends work on it in Poll.
//
// # Pulls
//
// Memory in an arena is mapped by everybody: the receiver copies it, once. Other
// memory is read with process_vm_readv where the system allows it, which is
// probed once for each host; where it does not, [Transport.Describe] says that
// the memory has no region, and the payload takes the bulk path. Measured here
// (BenchmarkProcesses) the system call needs half the time of the bulk
// path when the source lies unchanged in a cache, and half the processor time
// always, for it needs one rank only; the bulk path is the faster one for what
// the sender has just written.
//
// # Pulls with two copiers
//
// A rank that pulls much lets the owner of the source help, who writes to the
// puller's arena or, for memory outside of arenas, by process_vm_writev.
// Its pull descriptor, of which it has one because Pull returns when all is done,
// has a claim word: epoch u32, next piece u32.
//
//	closed    next is claimClosed; the puller owns the descriptor and may write it
//	open      both ranks claim pieces with compare-and-swap until none is left
//	draining  nothing is left to claim; the puller waits for the pieces the helper claimed
//	closed    again, when the helper's count of finished pieces shows that it writes no more
//
// A helper reads the descriptor between loading the claim word and swapping it,
// so a successful swap proves that what it read belongs to this epoch. It writes
// only between its claim and its report. A puller that waits for a helper that
// died copies everything again by itself; see [Transport.MarkDown] for why that
// is safe. An owner that does not poll costs the puller nothing.
//
// # Sleeping
//
// The doorbell of a rank is an armed flag and a futex word. Whoever makes
// something visible to a rank checks armed afterwards, and only if it is set
// takes it back and wakes. The rank sets armed, looks at everything once more and
// sleeps. Stores and the following load are sequentially consistent on both
// sides, so one of the two sees the other.
//
// # Trust
//
// A peer may be wrong, though not hostile: whoever can map the segment can
// also stop the process. What is read from shared memory and becomes a length or
// an index is checked; a peer that breaks the rules is reported down.
package shm
