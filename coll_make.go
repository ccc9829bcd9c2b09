package weft

import (
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/collective"
)

// How the calls of the collectives are made of their arguments, whatever form
// they run in. What is wrong is noted in the call, which then fails where it runs:
// the others must hear of it.

func (c *Comm) newCall(call *collCall, name string, op uint8, el *elem, send, recv []byte) {
	c.mustBeOpen()
	call.name, call.op, call.el, call.send, call.recv, call.raw = name, op, el, send, recv, &noOperator
}

func (c *Comm) barrierCall(call *collCall, opts []CollOption) {
	c.newCall(call, "Barrier", opBarrier, nil, nil, nil)
	call.with(c, opts)
}

func (c *Comm) bcastCall(call *collCall, el *elem, buf []byte, root int, opts []CollOption) {
	c.newCall(call, "Bcast", opBcast, el, nil, buf)
	call.root = root
	call.counts(len(buf))
	call.with(c, opts)
}

func (c *Comm) reduceCall(call *collCall, el *elem, send, recv []byte, op *collective.Op, variant uint16, root int, opts []CollOption) {
	c.newCall(call, "Reduce", opReduce, el, send, recv)
	call.root = root
	call.counts(len(send))
	call.reduces(c, op, variant)
	if root == c.rank {
		call.refuse(c.checkBuffers("Reduce", send, recv, len(send)))
	}
	call.with(c, opts)
}

func (c *Comm) allreduceCall(call *collCall, name string, el *elem, send, recv []byte, op *collective.Op, variant uint16, opts []CollOption) {
	c.newCall(call, name, opAllreduce, el, send, recv)
	call.counts(len(send))
	call.reduces(c, op, variant)
	call.refuse(c.checkBuffers(name, send, recv, len(send)))
	call.with(c, opts)
}

func (c *Comm) scanCall(call *collCall, op uint8, el *elem, send, recv []byte, raw *collective.Op, variant uint16, opts []CollOption) {
	c.newCall(call, collOps[op].name, op, el, send, recv)
	call.counts(len(send))
	call.reduces(c, raw, variant)
	call.refuse(c.checkBuffers(call.name, send, recv, len(send)))
	call.with(c, opts)
}

func (c *Comm) reduceScatterBlockCall(call *collCall, el *elem, send, recv []byte, op *collective.Op, variant uint16, opts []CollOption) {
	c.newCall(call, "ReduceScatterBlock", opReduceScatterBlock, el, send, recv)
	call.counts(len(recv))
	call.reduces(c, op, variant)
	if len(send) != len(recv)*c.size {
		call.refuse(c.countError(call.name, len(recv)*c.size, len(send), "send holds a part for each of the %d ranks, recv one of them", c.size))
	}
	call.refuse(c.checkFront(call.name, send, recv))
	call.with(c, opts)
}

func (c *Comm) reduceScatterCall(call *collCall, el *elem, send, recv []byte, counts []int, op *collective.Op, variant uint16, opts []CollOption) {
	c.newCall(call, "ReduceScatter", opReduceScatter, el, send, recv)
	call.sendCounts.N = counts
	call.reduces(c, op, variant)
	if el.err == nil {
		call.count = joinCount(counts)
		if err := c.checkCounts(call.name, "send", "rank", c.size, call.sendCounts, len(send)/el.size, false); err != nil {
			call.refuse(err)
		} else if total := call.sendCounts.total() * el.size; total != len(send) {
			call.refuse(c.countError(call.name, total, len(send), "send holds as many elements as the counts together"))
		} else if own := counts[c.rank] * el.size; own != len(recv) {
			call.refuse(c.countError(call.name, own, len(recv), "recv holds as many elements as this rank's count"))
		}
	}
	call.refuse(c.checkFront(call.name, send, recv))
	call.with(c, opts)
}

func (c *Comm) gatherCall(call *collCall, el *elem, send, recv []byte, root int, opts []CollOption) {
	c.newCall(call, "Gather", opGather, el, send, recv)
	call.root = root
	call.counts(len(send))
	if root == c.rank {
		call.refuse(c.checkBlocks("Gather", send, recv))
	}
	call.with(c, opts)
}

func (c *Comm) scatterCall(call *collCall, el *elem, send, recv []byte, root int, opts []CollOption) {
	c.newCall(call, "Scatter", opScatter, el, send, recv)
	call.root = root
	call.counts(len(recv))
	if root == c.rank {
		call.refuse(c.checkBlocks("Scatter", recv, send))
	}
	call.with(c, opts)
}

func (c *Comm) allgatherCall(call *collCall, name string, el *elem, send, recv []byte, opts []CollOption) {
	c.newCall(call, name, opAllgather, el, send, recv)
	call.counts(len(send))
	call.refuse(c.checkBlocks(name, send, recv))
	call.with(c, opts)
}

func (c *Comm) alltoallCall(call *collCall, el *elem, send, recv []byte, opts []CollOption) {
	c.newCall(call, "Alltoall", opAlltoall, el, send, recv)
	call.counts(len(send))
	if el.err == nil && len(send)/el.size%c.size != 0 {
		call.refuse(c.countError(call.name, (len(send)/el.size/c.size+1)*c.size*el.size, len(send), "send and recv hold equal parts for each of the %d ranks", c.size))
	}
	call.refuse(c.checkBuffers(call.name, send, recv, len(send)))
	call.with(c, opts)
}

func (c *Comm) gathervCall(call *collCall, el *elem, send, recv []byte, counts Counts, root int, opts []CollOption) {
	c.newCall(call, "Gatherv", opGatherv, el, send, recv)
	call.root = root
	if root == c.rank && el.err == nil {
		call.recvCounts = counts
		call.refuse(c.checkParts(call.name, "recv", counts, el.size, send, recv, true))
	}
	call.with(c, opts)
}

func (c *Comm) scattervCall(call *collCall, el *elem, send, recv []byte, counts Counts, root int, opts []CollOption) {
	c.newCall(call, "Scatterv", opScatterv, el, send, recv)
	call.root = root
	if root == c.rank && el.err == nil {
		call.sendCounts = counts
		call.refuse(c.checkParts(call.name, "send", counts, el.size, recv, send, false))
	}
	call.with(c, opts)
}

func (c *Comm) allgathervCall(call *collCall, el *elem, send, recv []byte, counts Counts, opts []CollOption) {
	c.newCall(call, "Allgatherv", opAllgatherv, el, send, recv)
	call.recvCounts = counts
	if el.err == nil {
		call.count = joinCount(counts.N)
		call.refuse(c.checkParts(call.name, "recv", counts, el.size, send, recv, true))
	}
	call.with(c, opts)
}

func (c *Comm) alltoallvCall(call *collCall, el *elem, send, recv []byte, sendCounts, recvCounts Counts, opts []CollOption) {
	c.newCall(call, "Alltoallv", opAlltoallv, el, send, recv)
	call.sendCounts, call.recvCounts = sendCounts, recvCounts
	if el.err == nil {
		if err := c.checkCounts(call.name, "send", "rank", c.size, sendCounts, len(send)/el.size, false); err != nil {
			call.refuse(err)
		} else if err := c.checkCounts(call.name, "recv", "rank", c.size, recvCounts, len(recv)/el.size, true); err != nil {
			call.refuse(err)
		} else if to, from := sendCounts.N[c.rank], recvCounts.N[c.rank]; to != from {
			call.refuse(c.countError(call.name, from*el.size, to*el.size, "what this rank sends to itself is as long as what it receives from itself"))
		}
	}
	same, partial := overlap(send, recv)
	if partial || same && !(slices.Equal(sendCounts.N, recvCounts.N) && slices.Equal(sendCounts.Displs, recvCounts.Displs)) {
		call.refuse(c.errorf(call.name, ErrOverlap, "in place means the same slice twice, with the same counts and displacements; else give it two separate ones"))
	}
	call.with(c, opts)
}

// countError is the error of a buffer of the wrong length, in bytes.
func (c *Comm) countError(call string, want, got int, hint string, args ...any) error {
	e := c.errorf(call, ErrCount, hint, args...)
	e.Want, e.Got = int64(want), int64(got)
	return e
}

// checkBuffers checks a pair of buffers of which recv holds want bytes.
func (c *Comm) checkBuffers(call string, send, recv []byte, want int) error {
	if len(recv) != want {
		return c.countError(call, want, len(recv), "make recv as long as send")
	}
	if _, partial := overlap(send, recv); partial {
		return c.errorf(call, ErrOverlap, "give it the same slice twice for in place, or two separate ones")
	}
	return nil
}

// checkBlocks checks a rank's block and the whole of all blocks.
func (c *Comm) checkBlocks(call string, block, whole []byte) error {
	if len(whole) != len(block)*c.size {
		return c.countError(call, len(block)*c.size, len(whole), "the longer buffer holds %d times the shorter one, a part for each rank", c.size)
	}
	return c.checkOwn(call, block, whole, whole[c.rank*len(block):][:len(block)])
}

// checkOwn checks a rank's block, which may be its own part of the whole.
func (c *Comm) checkOwn(call string, block, whole, own []byte) error {
	if same, _ := overlap(block, own); same {
		return nil
	}
	if same, partial := overlap(block, whole); same || partial {
		return c.errorf(call, ErrOverlap, "in place means the rank's own part of the longer buffer")
	}
	return nil
}

// checkFront checks the buffers of a reduce-scatter.
func (c *Comm) checkFront(call string, send, recv []byte) error {
	if len(recv) <= len(send) {
		if same, _ := overlap(send[:len(recv)], recv); same {
			return nil
		}
	}
	if _, partial := overlap(send, recv); partial {
		return c.errorf(call, ErrOverlap, "in place means that recv is the first part of send")
	}
	return nil
}

// checkParts checks a rank's block and the whole of all parts.
func (c *Comm) checkParts(call, buffer string, counts Counts, unit int, block, whole []byte, written bool) error {
	if err := c.checkCounts(call, buffer, "rank", c.size, counts, len(whole)/unit, written); err != nil {
		return err
	}
	lo, n := counts.at(c.rank), counts.N[c.rank]
	if n*unit != len(block) {
		return c.countError(call, n*unit, len(block), "the shorter buffer holds as many elements as this rank's count")
	}
	return c.checkOwn(call, block, whole, whole[lo*unit:(lo+n)*unit])
}

// checkCounts checks counts and displacements of n ranks, sources or destinations
// against a buffer of so many elements. Parts that are written must not overlap.
func (c *Comm) checkCounts(call, buffer, whose string, n int, counts Counts, elements int, written bool) error {
	bad := func(err error, format string, args ...any) error {
		return c.errorf(call, fmt.Errorf("%w: %s", err, fmt.Sprintf(format, args...)), "give one count for each of the %d %ss, and displacements for all or none; both in elements of %s", n, whose, buffer)
	}
	if len(counts.N) != n {
		return bad(ErrCount, "%d counts for %d %ss", len(counts.N), n, whose)
	}
	if counts.Displs != nil && len(counts.Displs) != n {
		return bad(ErrCount, "%d displacements for %d %ss", len(counts.Displs), n, whose)
	}
	next, ordered := 0, true
	for i, n := range counts.N {
		lo := next
		if counts.Displs != nil {
			lo = counts.Displs[i]
		}
		if n < 0 || lo < 0 || lo > elements || n > elements-lo {
			return bad(ErrCount, "the part of %s %d, %d elements from %d on, is not within the %d of %s", whose, i, n, lo, elements, buffer)
		}
		if n > 0 {
			ordered = ordered && lo >= next
			next = lo + n
		}
	}
	if !written || ordered {
		return nil
	}
	byPlace := make([]int, 0, n)
	for i, n := range counts.N {
		if n > 0 {
			byPlace = append(byPlace, i)
		}
	}
	slices.SortFunc(byPlace, func(a, b int) int { return counts.Displs[a] - counts.Displs[b] })
	for k := 1; k < len(byPlace); k++ {
		a, b := byPlace[k-1], byPlace[k]
		if counts.Displs[a]+counts.N[a] > counts.Displs[b] {
			return bad(ErrOverlap, "the parts of %ss %d and %d in %s", whose, a, b, buffer)
		}
	}
	return nil
}

// send1 and recv1 add a message to or from one rank.
func (call *collCall) send1(dst int, buf []byte) {
	call.neighbors.Sends = append(call.neighbors.Sends, collective.Part{Peer: dst, Buf: buf})
}

func (call *collCall) recv1(src int, buf []byte) {
	call.neighbors.Recvs = append(call.neighbors.Recvs, collective.Part{Peer: src, Buf: buf})
}
