package weft

import "context"

// Counts says how many elements of a buffer belong to each rank, and where they
// are: the part of rank i has N[i] elements from Displs[i] on. Without Displs the
// parts lie one after the other. Parts may be empty, and with Displs in any order
// and with gaps between them, which stay as they are.
//
// Counts are ErrCount if there is not one for each rank, or a part is not within
// its buffer, and parts to be written that overlap are ErrOverlap.
type Counts struct {
	N, Displs []int
}

// total returns the elements of all parts.
func (c Counts) total() (n int) {
	for _, k := range c.N {
		n += k
	}
	return n
}

// at returns where a part starts.
func (c Counts) at(rank int) (n int) {
	if c.Displs != nil {
		return c.Displs[rank]
	}
	for _, k := range c.N[:rank] {
		n += k
	}
	return n
}

// packed returns the displacements of parts one after the other, in the given
// memory if that is enough.
func (c Counts) packed(displs []int) []int {
	displs = displs[:0]
	n := 0
	for _, k := range c.N {
		displs = append(displs, n)
		n += k
	}
	return displs
}

// joinCount is what ranks compare of counts: their sum in the lower 40 bits, and a
// hash of all of them above.
func joinCount(counts []int) uint64 {
	sum, hash := uint64(0), uint64(14695981039346656037)
	for _, n := range counts {
		sum += uint64(n)
		hash = (hash ^ uint64(n)) * 1099511628211
	}
	return sum&(1<<40-1) | (hash^hash>>24)<<40
}

func splitCount(joined uint64) (sum, hash uint64) { return joined & (1<<40 - 1), joined >> 40 }

// The v forms: collectives whose parts have different lengths. A rank's own part
// of the root's, or of all ranks', counts says how long its buffer is; where only
// one side knows, a message of another length than its receiver expects is
// ErrMismatch there, and ErrTruncated too if it is longer, and names both lengths.

// Gatherv is Gather of parts of different lengths; only the root's counts are
// used. In place at the root: send is its own part of recv. (MPI 4.1, 6.5)
func Gatherv[T any](ctx context.Context, c *Comm, send, recv []T, counts Counts, root int, opts ...CollOption) error {
	var call collCall
	c.gathervCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), counts, root, opts)
	return c.run(ctx, &call)
}

// Scatterv is Scatter of parts of different lengths; only the root's counts are
// used. In place at the root: recv is its own part of send. (MPI 4.1, 6.6)
func Scatterv[T any](ctx context.Context, c *Comm, send, recv []T, counts Counts, root int, opts ...CollOption) error {
	var call collCall
	c.scattervCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), counts, root, opts)
	return c.run(ctx, &call)
}

// Allgatherv is Allgather of parts of different lengths. All ranks give the same
// N; displacements may differ. In place: send is the rank's own part of recv. (MPI
// 4.1, 6.7)
func Allgatherv[T any](ctx context.Context, c *Comm, send, recv []T, counts Counts, opts ...CollOption) error {
	var call collCall
	c.allgathervCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), counts, opts)
	return c.run(ctx, &call)
}

// Alltoallv is Alltoall of parts of different lengths: rank i sends as many
// elements to rank j as rank j receives from rank i. An empty part is a message
// too, which shows whether both agree. In place: send and recv are the same slice,
// with the same counts. (MPI 4.1, 6.8)
func Alltoallv[T any](ctx context.Context, c *Comm, send, recv []T, sendCounts, recvCounts Counts, opts ...CollOption) error {
	var call collCall
	c.alltoallvCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), sendCounts, recvCounts, opts)
	return c.run(ctx, &call)
}
