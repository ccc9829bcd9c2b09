// Package board has the collectives of ranks that map each other's memory: what a rank
// has to say stands in memory that all of them read, and large data are copied once, from where
// they are to where they belong. No message is sent.
//
// # Posts
//
// Each rank of a communicator has a [SlotSize] slot, which it writes and all read. It holds an incarnation,
// which tells slots of this communicator from what an earlier one left there, or a later one posts while
// some ranks have not heard yet that this one has failed, two counters, 64 posts, and two areas for what
// does not fit into a post. The collectives of a communicator are numbered; number n uses post n%64:
//
//	word       u64: n<<3 | phase, stored last
//	hash       u64: of the incarnation and what the rank called up to here, so that ranks that disagree find out
//	signature  24 bytes: what it called
//	flags      u64
//	payload    what the rank gives, if that is short; else where it is
//
// All of it and a payload of 16 bytes are one cache line. The phases of a number only grow:
//
//	posted   the post can be read
//	done     this rank touches nobody's memory for this number any more
//	quit     this rank has given up, and wants its memory back
//
// A post is written over when nobody reads it any more: a rank posts n when the first counter of all
// ranks has come to n-64. It says which collectives a rank has ended, and moves every 32nd one, so
// that the line that it is in seldom travels. A rank that has nothing to wait for, as the root of a
// broadcast, may be dozens of collectives ahead. The second counter says the same of the areas, each time
// one was used: there a rank is two ahead at most. Runs of one rank end in their order.
//
// # Disagreement
//
// Whoever takes a post compares its hash with that of its own calls. Ranks that take nothing of each
// other compare theirs before they move the first counter: each has posted, and then looks, so the one
// that comes second sees both, and all calls since the counter moved last still stand in the posts. The first
// that differs is the error's.
//
// # Short and long
//
// Up to [Short] bytes go in the posts: one wait, for those whose payload it takes. Longer ones
// stay where they are, if peers can map that memory, or go through a buffer that they can:
//
//	posted  ->  who needs it reads and writes the others' memory  ->  done  ->  whose memory was touched waits for all
//
// Reductions are cut into one part for each rank, which reads that part of all vectors and writes
// it to all results: every byte is reduced once, on one rank, in the order of ranks, so all get
// the same bits. What only moves, and is more in all than the host's caches hold, is copied past them.
// Where some rank's memory is out of reach all ranks see it in the posts, and
// the collective goes by messages: Run.Next reports Messages.
//
// # Giving up
//
// A run that fails (its context ended, a rank died, an operator panicked) must not return while a
// peer may still touch its memory. It stores quit, and then waits for those that have posted the same call and
// are not done (Run.Quiet). Whoever comes later sees quit before it touches anything: a rank posts, and
// then looks at the words of others; one of the two stores comes first. Whoever goes by messages is done.
//
// # Owners
//
// A Board belongs to one rank. Runs are started in the same order on all ranks. A Run is used
// by one goroutine at a time, and so, through the order of their ends, is all that they share. Nothing here
// waits: whoever calls Next does, until Met.
package board
