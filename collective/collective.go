// Package collective holds the algorithms of collective operations, one file
// each, over the small Peer interface. It knows nothing of transports,
// communicators or element types: data are bytes, an element is Op.Size bytes
// wide, and operators are functions on byte slices.
package collective

// Peer is one member's view of a group that runs one collective operation. All
// members make the same sequence of calls on it as their algorithm prescribes.
// Messages between two members arrive in the order they were sent.
//
// A Peer is used by one goroutine. Every method returns the first error that
// ended the operation: a peer that failed, ranks that disagree, a cancelled
// context; the algorithm returns it unchanged at once.
type Peer interface {
	Rank() int
	Size() int

	// Send returns when buf may be reused. Like MPI_Send it may wait for the
	// receiver, so two members that send to each other use Sendrecv.
	Send(buf []byte, dst int) error

	// Recv fills buf from the next message of src, which must be exactly as
	// long as buf.
	Recv(buf []byte, src int) error

	// Sendrecv sends and receives at the same time, and cannot deadlock against
	// a peer that does the same.
	Sendrecv(send []byte, dst int, recv []byte, src int) error

	// PostSend and PostRecv start a message and return at once; Finish returns when
	// all that were started since the last Finish are over. None of them waits
	// for another, so any number may cross. In between only these three are
	// called.
	PostSend(buf []byte, dst int)
	PostRecv(buf []byte, src int)
	Finish() error

	// Scratch returns n bytes of working memory, the same memory at each call
	// with the same slot (0..3) during one operation. Contents are undefined.
	Scratch(slot, n int) []byte
}

// Op is a reduction operator on elements of Size bytes.
type Op struct {
	// Size is the width of an element in bytes.
	Size int
	// Commutative operators may be applied in any order of ranks. Others are
	// applied in rank order: ((a0 op a1) op a2) op ... up to association.
	Commutative bool
	// Left computes inout = inout op in, element by element: inout holds the
	// lower ranks. Both have the same length, a multiple of Size.
	Left func(inout, in []byte)
	// Right computes inout = in op inout: inout holds the higher ranks.
	Right func(inout, in []byte)
	// Many, if it is not nil, computes dst = sources[0] op sources[1] op ... from
	// the left in one pass. All have the same length; dst may be one of the sources.
	Many func(dst []byte, sources [][]byte)
	// Whole, if it is not nil, says that the operator needs all operands of an
	// element at once: Left and Right combine two of them, but not what was combined
	// before, and Many is there. Whole sets dst to the combination of operands: vectors
	// of the length of dst in rank order, one after the other, which do not overlap it.
	Whole func(dst, operands []byte)
}
