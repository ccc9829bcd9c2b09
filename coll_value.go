package weft

import (
	"context"
	"fmt"

	"github.com/weft-hpc/weft/collective"
)

// The value forms: collectives of one element from each rank, without buffers.
// The element types are those of the other collectives, not of SendValue.

// AllreduceValue is Allreduce of one value.
func AllreduceValue[T any](ctx context.Context, c *Comm, v T, op Op[T], opts ...CollOption) (T, error) {
	buf := []T{v}
	err := Allreduce(ctx, c, buf, buf, op, opts...)
	return buf[0], err
}

// ReduceValue is Reduce of one value. The other ranks get the zero value.
func ReduceValue[T any](ctx context.Context, c *Comm, v T, op Op[T], root int, opts ...CollOption) (T, error) {
	send, recv := []T{v}, make([]T, 1)
	err := Reduce(ctx, c, send, recv, op, root, opts...)
	if c.rank != root {
		clear(recv)
	}
	return recv[0], err
}

// BcastValue is Bcast of the root's v.
func BcastValue[T any](ctx context.Context, c *Comm, v T, root int, opts ...CollOption) (T, error) {
	buf := []T{v}
	err := Bcast(ctx, c, buf, root, opts...)
	return buf[0], err
}

// GatherValue returns the ranks' values at the root, and nil on the other ranks.
func GatherValue[T any](ctx context.Context, c *Comm, v T, root int, opts ...CollOption) ([]T, error) {
	var all []T
	if c.rank == root {
		all = make([]T, c.size)
	}
	err := Gather(ctx, c, []T{v}, all, root, opts...)
	return all, err
}

// AllgatherValue returns the ranks' values.
func AllgatherValue[T any](ctx context.Context, c *Comm, v T, opts ...CollOption) ([]T, error) {
	all := make([]T, c.size)
	err := Allgather(ctx, c, []T{v}, all, opts...)
	return all, err
}

// ScatterValue returns the rank's own of the root's values.
func ScatterValue[T any](ctx context.Context, c *Comm, values []T, root int, opts ...CollOption) (T, error) {
	one := make([]T, 1)
	err := Scatter(ctx, c, values, one, root, opts...)
	return one[0], err
}

// ScanValue is Scan of one value.
func ScanValue[T any](ctx context.Context, c *Comm, v T, op Op[T], opts ...CollOption) (T, error) {
	buf := []T{v}
	err := Scan(ctx, c, buf, buf, op, opts...)
	return buf[0], err
}

// ExscanValue is Exscan of one value. Rank 0 gets the zero value.
func ExscanValue[T any](ctx context.Context, c *Comm, v T, op Op[T], opts ...CollOption) (T, error) {
	recv := make([]T, 1)
	err := Exscan(ctx, c, []T{v}, recv, op, opts...)
	return recv[0], err
}

// The Append forms tell each other the counts first, by a collective of their own, and
// append what comes to a slice.

// GatherAppend appends the ranks' send, which may have different lengths, to the
// root's dst, in rank order, and returns it with the counts. The other ranks get
// dst and no counts.
func GatherAppend[T any](ctx context.Context, c *Comm, dst, send []T, root int, opts ...CollOption) ([]T, Counts, error) {
	lengths, err := GatherValue(ctx, c, int64(len(send)), root)
	if err != nil {
		return dst, Counts{}, err
	}
	if c.rank != root {
		return dst, Counts{}, Gatherv(ctx, c, send, nil, Counts{}, root, opts...)
	}
	counts, total, bad := countsOf[T](c, "GatherAppend", lengths)
	if bad != nil {
		return dst, Counts{}, c.refuse(ctx, "GatherAppend", bad)
	}
	out := grow(dst, total)
	err = Gatherv(ctx, c, send, out[len(dst):], counts, root, opts...)
	return out, counts, err
}

// AllgatherAppend appends the ranks' send, which may have different lengths, to
// every rank's dst, in rank order, and returns it with the counts.
func AllgatherAppend[T any](ctx context.Context, c *Comm, dst, send []T, opts ...CollOption) ([]T, Counts, error) {
	lengths, err := AllgatherValue(ctx, c, int64(len(send)))
	if err != nil {
		return dst, Counts{}, err
	}
	counts, total, bad := countsOf[T](c, "AllgatherAppend", lengths)
	if bad != nil {
		return dst, Counts{}, c.refuse(ctx, "AllgatherAppend", bad)
	}
	out := grow(dst, total)
	err = Allgatherv(ctx, c, send, out[len(dst):], counts, opts...)
	return out, counts, err
}

// ScatterAppend appends the rank's own part of the root's send to dst. Only the
// root's counts are used.
func ScatterAppend[T any](ctx context.Context, c *Comm, dst, send []T, counts Counts, root int, opts ...CollOption) ([]T, error) {
	var lengths []int64
	if c.rank == root {
		el := elemOf[T]()
		if el.err == nil {
			if err := c.checkCounts("ScatterAppend", "send", "rank", c.size, counts, len(send), false); err != nil {
				return dst, c.refuse(ctx, "ScatterAppend", err)
			}
		}
		for _, n := range counts.N {
			lengths = append(lengths, int64(n))
		}
	}
	n, err := ScatterValue(ctx, c, lengths, root)
	if err != nil {
		return dst, err
	}
	_, total, bad := countsOf[T](c, "ScatterAppend", []int64{n})
	if bad != nil {
		return dst, c.refuse(ctx, "ScatterAppend", bad)
	}
	out := grow(dst, total)
	return out, Scatterv(ctx, c, send, out[len(dst):], counts, root, opts...)
}

// Exchange sends to[i] to rank i, and returns what each rank sent here: from[i]
// came from rank i. The ranks need not know how much comes; they tell each other
// first. It is Alltoallv for slices that are apart. (MPI 4.1, 6.8: MPI_Alltoallw)
func Exchange[T any](ctx context.Context, c *Comm, to [][]T, opts ...CollOption) (from [][]T, err error) {
	c.mustBeOpen()
	if len(to) != c.size {
		return nil, c.refuse(ctx, "Exchange", c.errorf("Exchange", fmt.Errorf("%w: %d slices for %d ranks", ErrCount, len(to), c.size), "give a slice for each rank, which may be empty or nil"))
	}
	out, in := make([]int64, c.size), make([]int64, c.size)
	for i, s := range to {
		out[i] = int64(len(s))
	}
	if err := Alltoall(ctx, c, out, in); err != nil {
		return nil, err
	}
	_, total, bad := countsOf[T](c, "Exchange", in)
	if bad != nil {
		return nil, c.refuse(ctx, "Exchange", bad)
	}
	call := collCall{neighbors: new(collective.Neighbors)}
	c.newCall(&call, "Exchange", opExchange, elemOf[T](), nil, nil)
	all := make([]T, total)
	from = make([][]T, c.size)
	for i, n := range in {
		from[i], all = all[:n:n], all[n:]
	}
	// Each rank starts with the one above it, so that not all send to the same one.
	for k := range c.size {
		dst, src := (c.rank+k)%c.size, (c.rank-k+c.size)%c.size
		call.send1(dst, bytesOf(to[dst]))
		call.recv1(src, bytesOf(from[src]))
	}
	call.with(c, opts)
	return from, c.run(ctx, &call)
}

// countsOf turns lengths that ranks have told into counts, and their sum.
func countsOf[T any](c *Comm, call string, lengths []int64) (counts Counts, total int, bad error) {
	limit := int64(maxBytes)
	if el := elemOf[T](); el.size > 0 {
		limit /= int64(el.size)
	}
	left := limit
	for i, n := range lengths {
		if n < 0 || n > left {
			return counts, 0, c.errorf(call, fmt.Errorf("%w: rank %d announces %d elements", ErrMemory, i, n), "no more than %d fit into memory", limit)
		}
		left -= n
		counts.N = append(counts.N, int(n))
	}
	return counts, int(limit - left), nil
}

// grow returns dst with n more elements.
func grow[T any](dst []T, n int) []T {
	if cap(dst)-len(dst) >= n {
		return dst[:len(dst)+n]
	}
	out := make([]T, len(dst)+n)
	copy(out, dst)
	return out
}
