package weft

// The nonblocking collectives. Each starts the collective whose name it has without
// the I, and returns at once; the scope or the request tells when it is done. Until
// then the buffers must be left alone, those that are sent may be read. Several
// may be in progress on one communicator, and a blocking one beside them: all ranks
// start all of them in the same order. The engine advances them, in the call of
// whichever goroutine makes progress, or of its own when the program computes.
// When a request's scope ends first, or it is canceled, the communicator is
// revoked. (MPI 4.1, 6.12)

// Ibarrier starts a Barrier.
func Ibarrier(s *Scope, c *Comm, opts ...CollOption) *Request {
	if r := c.startAgain(s, &plainCall{op: opBarrier}, opts); r != nil {
		return r
	}
	var call collCall
	c.barrierCall(&call, opts)
	return c.start(s, &call, nil)
}

// Ibcast starts a Bcast.
func Ibcast[T any](s *Scope, c *Comm, buf []T, root int, opts ...CollOption) *Request {
	p := plainCall{op: opBcast, el: elemOf[T](), recv: bytesOf(buf), root: root}
	if r := c.startAgain(s, &p, opts); r != nil {
		return r
	}
	var call collCall
	c.bcastCall(&call, p.el, p.recv, root, opts)
	return c.start(s, &call, nil)
}

// Ireduce starts a Reduce.
func Ireduce[T any](s *Scope, c *Comm, send, recv []T, op Op[T], root int, opts ...CollOption) *Request {
	p := plainCall{op: opReduce, el: elemOf[T](), send: bytesOf(send), recv: bytesOf(recv), raw: op.raw, variant: op.variant, root: root}
	if r := c.startAgain(s, &p, opts); r != nil {
		return r
	}
	var call collCall
	c.reduceCall(&call, p.el, p.send, p.recv, op.raw, op.variant, root, opts)
	return c.start(s, &call, nil)
}

// Iallreduce starts an Allreduce.
func Iallreduce[T any](s *Scope, c *Comm, send, recv []T, op Op[T], opts ...CollOption) *Request {
	p := plainCall{op: opAllreduce, el: elemOf[T](), send: bytesOf(send), recv: bytesOf(recv), raw: op.raw, variant: op.variant}
	if r := c.startAgain(s, &p, opts); r != nil {
		return r
	}
	var call collCall
	c.allreduceCall(&call, "Allreduce", p.el, p.send, p.recv, op.raw, op.variant, opts)
	return c.start(s, &call, nil)
}

// IreduceScatterBlock starts a ReduceScatterBlock.
func IreduceScatterBlock[T any](s *Scope, c *Comm, send, recv []T, op Op[T], opts ...CollOption) *Request {
	p := plainCall{op: opReduceScatterBlock, el: elemOf[T](), send: bytesOf(send), recv: bytesOf(recv), raw: op.raw, variant: op.variant}
	if r := c.startAgain(s, &p, opts); r != nil {
		return r
	}
	var call collCall
	c.reduceScatterBlockCall(&call, p.el, p.send, p.recv, op.raw, op.variant, opts)
	return c.start(s, &call, nil)
}

// IreduceScatter starts a ReduceScatter. counts may be changed when it returns.
func IreduceScatter[T any](s *Scope, c *Comm, send, recv []T, counts []int, op Op[T], opts ...CollOption) *Request {
	var call collCall
	c.reduceScatterCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), counts, op.raw, op.variant, opts)
	return c.start(s, &call, nil)
}

// Iscan starts a Scan.
func Iscan[T any](s *Scope, c *Comm, send, recv []T, op Op[T], opts ...CollOption) *Request {
	p := plainCall{op: opScan, el: elemOf[T](), send: bytesOf(send), recv: bytesOf(recv), raw: op.raw, variant: op.variant}
	if r := c.startAgain(s, &p, opts); r != nil {
		return r
	}
	var call collCall
	c.scanCall(&call, opScan, p.el, p.send, p.recv, op.raw, op.variant, opts)
	return c.start(s, &call, nil)
}

// Iexscan starts an Exscan.
func Iexscan[T any](s *Scope, c *Comm, send, recv []T, op Op[T], opts ...CollOption) *Request {
	p := plainCall{op: opExscan, el: elemOf[T](), send: bytesOf(send), recv: bytesOf(recv), raw: op.raw, variant: op.variant}
	if r := c.startAgain(s, &p, opts); r != nil {
		return r
	}
	var call collCall
	c.scanCall(&call, opExscan, p.el, p.send, p.recv, op.raw, op.variant, opts)
	return c.start(s, &call, nil)
}

// Igather starts a Gather.
func Igather[T any](s *Scope, c *Comm, send, recv []T, root int, opts ...CollOption) *Request {
	p := plainCall{op: opGather, el: elemOf[T](), send: bytesOf(send), recv: bytesOf(recv), root: root}
	if r := c.startAgain(s, &p, opts); r != nil {
		return r
	}
	var call collCall
	c.gatherCall(&call, p.el, p.send, p.recv, root, opts)
	return c.start(s, &call, nil)
}

// Igatherv starts a Gatherv. counts may be changed when it returns.
func Igatherv[T any](s *Scope, c *Comm, send, recv []T, counts Counts, root int, opts ...CollOption) *Request {
	var call collCall
	c.gathervCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), counts, root, opts)
	return c.start(s, &call, nil)
}

// Iscatter starts a Scatter.
func Iscatter[T any](s *Scope, c *Comm, send, recv []T, root int, opts ...CollOption) *Request {
	p := plainCall{op: opScatter, el: elemOf[T](), send: bytesOf(send), recv: bytesOf(recv), root: root}
	if r := c.startAgain(s, &p, opts); r != nil {
		return r
	}
	var call collCall
	c.scatterCall(&call, p.el, p.send, p.recv, root, opts)
	return c.start(s, &call, nil)
}

// Iscatterv starts a Scatterv. counts may be changed when it returns.
func Iscatterv[T any](s *Scope, c *Comm, send, recv []T, counts Counts, root int, opts ...CollOption) *Request {
	var call collCall
	c.scattervCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), counts, root, opts)
	return c.start(s, &call, nil)
}

// Iallgather starts an Allgather.
func Iallgather[T any](s *Scope, c *Comm, send, recv []T, opts ...CollOption) *Request {
	p := plainCall{op: opAllgather, el: elemOf[T](), send: bytesOf(send), recv: bytesOf(recv)}
	if r := c.startAgain(s, &p, opts); r != nil {
		return r
	}
	var call collCall
	c.allgatherCall(&call, "Allgather", p.el, p.send, p.recv, opts)
	return c.start(s, &call, nil)
}

// Iallgatherv starts an Allgatherv. counts may be changed when it returns.
func Iallgatherv[T any](s *Scope, c *Comm, send, recv []T, counts Counts, opts ...CollOption) *Request {
	var call collCall
	c.allgathervCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), counts, opts)
	return c.start(s, &call, nil)
}

// Ialltoall starts an Alltoall.
func Ialltoall[T any](s *Scope, c *Comm, send, recv []T, opts ...CollOption) *Request {
	p := plainCall{op: opAlltoall, el: elemOf[T](), send: bytesOf(send), recv: bytesOf(recv)}
	if r := c.startAgain(s, &p, opts); r != nil {
		return r
	}
	var call collCall
	c.alltoallCall(&call, p.el, p.send, p.recv, opts)
	return c.start(s, &call, nil)
}

// Ialltoallv starts an Alltoallv. The counts may be changed when it returns.
func Ialltoallv[T any](s *Scope, c *Comm, send, recv []T, sendCounts, recvCounts Counts, opts ...CollOption) *Request {
	var call collCall
	c.alltoallvCall(&call, elemOf[T](), bytesOf(send), bytesOf(recv), sendCounts, recvCounts, opts)
	return c.start(s, &call, nil)
}
