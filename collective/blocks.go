package collective

// parts are the blocks of all ranks in a buffer: of one size, one after the other;
// or where a Blocks says; or those of each node together; or of a vector that is cut.
type parts struct {
	size int // of every rank's block, where Blocks is nil
	*Blocks
	nodes *Topology // block i is that of node i
	cut   split     // where it has parts
}

// at returns the bytes of block i.
func (q parts) at(i int) (lo, hi int) {
	switch {
	case q.cut.parts > 0:
		return q.cut.at(i), q.cut.at(i + 1)
	case q.nodes != nil:
		return int(q.nodes.start[i]) * q.size, int(q.nodes.start[i+1]) * q.size
	case q.Blocks == nil:
		return i * q.size, (i + 1) * q.size
	}
	lo = q.Displs[i] * q.Unit
	return lo, lo + q.Counts[i]*q.Unit
}

// one returns block i of a buffer.
func (q parts) one(buf []byte, i int) []byte {
	lo, hi := q.at(i)
	return buf[lo:hi]
}

func (q parts) len(i int) int {
	lo, hi := q.at(i)
	return hi - lo
}

// of returns the bytes of block i.
func (b *Blocks) of(i int) int { return b.Counts[i] * b.Unit }

// window is how many messages each way a rank has in flight at most, where it
// could start them all: more of them make queues longer and nothing faster.
const window = 32
