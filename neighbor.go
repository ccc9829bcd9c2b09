package weft

import (
	"context"
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/collective"
)

// Graph is a communicator whose ranks say themselves who their neighbours are.
// (MPI 4.1, 8.5.4)
type Graph struct {
	*Comm
	sources, destinations []int
	order                 []int
}

// NewGraph returns a communicator of the ranks of c with the neighbours that each
// gives: sources send to this rank in neighbourhood collectives, and it sends to
// destinations. A rank may be there more than once: the first edge from one rank
// to another is the first in the lists of both. Ranks that disagree about an edge
// get ErrMismatch. It is a collective call. (MPI 4.1, 8.5.4)
func NewGraph(ctx context.Context, c *Comm, sources, destinations []int) (*Graph, error) {
	c.mustBeOpen()
	out, in := make([]int64, c.size), make([]int64, c.size)
	mine := make([]int64, c.size) // edges from each rank
	for _, list := range []struct {
		ranks []int
		edges []int64
	}{{sources, mine}, {destinations, out}} {
		for _, r := range list.ranks {
			if r < 0 || r >= c.size {
				return nil, c.refuse(ctx, "NewGraph", c.errorf("NewGraph", fmt.Errorf("%w: neighbour %d", ErrRank, r), "ranks here go from 0 to %d", c.size-1))
			}
			list.edges[r]++
		}
	}
	var call collCall
	c.alltoallCall(&call, elemOf[int64](), bytesOf(out), bytesOf(in), nil)
	call.name = "NewGraph"
	if err := c.run(ctx, &call); err != nil {
		return nil, err
	}
	for r := range in {
		if in[r] != mine[r] {
			e := c.errorf("NewGraph", fmt.Errorf("%w: rank %d has %d edges to this rank, which expects %d", ErrMismatch, r, in[r], mine[r]), "an edge is in destinations of one rank and in sources of the other")
			e.Peer = r
			return nil, c.refuse(ctx, "NewGraph", e)
		}
	}
	d, err := c.Dup(ctx, c.name+"/graph")
	if err != nil {
		return nil, err
	}
	g := &Graph{Comm: d, sources: slices.Clone(sources), destinations: slices.Clone(destinations)}
	for i := range sources {
		g.order = append(g.order, i)
	}
	return g, nil
}

// Neighbors implements Topology.
func (g *Graph) Neighbors() (sources, destinations []int) {
	return slices.Clone(g.sources), slices.Clone(g.destinations)
}

func (g *Graph) base() *Comm     { return g.Comm }
func (g *Graph) receives() []int { return g.order }

// The neighbourhood collectives. Each rank has a part in recv for each of its
// sources, and in send for each of its destinations, in the order of
// Topology.Neighbors. The part of a neighbour that is NoRank is there and left as it
// is. send and recv do not overlap.

// NeighborAllgather sends send to all neighbours, and collects what they send in
// recv. (MPI 4.1, 8.6.1)
func NeighborAllgather[T any](ctx context.Context, t Topology, send, recv []T, opts ...CollOption) error {
	var call collCall
	neighborGather(&call, t, elemOf[T](), bytesOf(send), bytesOf(recv), opts)
	return t.base().run(ctx, &call)
}

// NeighborAllgatherv is NeighborAllgather of parts of different lengths: counts say
// how long what each source sends is. (MPI 4.1, 8.6.1)
func NeighborAllgatherv[T any](ctx context.Context, t Topology, send, recv []T, counts Counts, opts ...CollOption) error {
	var call collCall
	neighborGatherv(&call, t, elemOf[T](), bytesOf(send), bytesOf(recv), counts, opts)
	return t.base().run(ctx, &call)
}

// NeighborAlltoall sends each neighbour its part of send. (MPI 4.1, 8.6.2)
func NeighborAlltoall[T any](ctx context.Context, t Topology, send, recv []T, opts ...CollOption) error {
	var call collCall
	neighborAll(&call, t, elemOf[T](), bytesOf(send), bytesOf(recv), opts)
	return t.base().run(ctx, &call)
}

// NeighborAlltoallv is NeighborAlltoall of parts of different lengths: a count for
// each destination, and one for each source. (MPI 4.1, 8.6.2)
func NeighborAlltoallv[T any](ctx context.Context, t Topology, send, recv []T, sendCounts, recvCounts Counts, opts ...CollOption) error {
	var call collCall
	neighborAllv(&call, t, elemOf[T](), bytesOf(send), bytesOf(recv), sendCounts, recvCounts, opts)
	return t.base().run(ctx, &call)
}

// INeighborAllgather starts a NeighborAllgather.
func INeighborAllgather[T any](s *Scope, t Topology, send, recv []T, opts ...CollOption) *Request {
	var call collCall
	neighborGather(&call, t, elemOf[T](), bytesOf(send), bytesOf(recv), opts)
	return t.base().start(s, &call, nil)
}

// INeighborAllgatherv starts a NeighborAllgatherv.
func INeighborAllgatherv[T any](s *Scope, t Topology, send, recv []T, counts Counts, opts ...CollOption) *Request {
	var call collCall
	neighborGatherv(&call, t, elemOf[T](), bytesOf(send), bytesOf(recv), counts, opts)
	return t.base().start(s, &call, nil)
}

// INeighborAlltoall starts a NeighborAlltoall.
func INeighborAlltoall[T any](s *Scope, t Topology, send, recv []T, opts ...CollOption) *Request {
	var call collCall
	neighborAll(&call, t, elemOf[T](), bytesOf(send), bytesOf(recv), opts)
	return t.base().start(s, &call, nil)
}

// INeighborAlltoallv starts a NeighborAlltoallv.
func INeighborAlltoallv[T any](s *Scope, t Topology, send, recv []T, sendCounts, recvCounts Counts, opts ...CollOption) *Request {
	var call collCall
	neighborAllv(&call, t, elemOf[T](), bytesOf(send), bytesOf(recv), sendCounts, recvCounts, opts)
	return t.base().start(s, &call, nil)
}

// PlanNeighborAllgather plans a NeighborAllgather.
func PlanNeighborAllgather[T any](t Topology, send, recv []T, opts ...CollOption) (*Plan[T], error) {
	var call collCall
	neighborGather(&call, t, elemOf[T](), bytesOf(send), bytesOf(recv), opts)
	return plan[T](t.base(), &call)
}

// PlanNeighborAllgatherv plans a NeighborAllgatherv.
func PlanNeighborAllgatherv[T any](t Topology, send, recv []T, counts Counts, opts ...CollOption) (*Plan[T], error) {
	var call collCall
	neighborGatherv(&call, t, elemOf[T](), bytesOf(send), bytesOf(recv), counts, opts)
	return plan[T](t.base(), &call)
}

// PlanNeighborAlltoall plans a NeighborAlltoall.
func PlanNeighborAlltoall[T any](t Topology, send, recv []T, opts ...CollOption) (*Plan[T], error) {
	var call collCall
	neighborAll(&call, t, elemOf[T](), bytesOf(send), bytesOf(recv), opts)
	return plan[T](t.base(), &call)
}

// PlanNeighborAlltoallv plans a NeighborAlltoallv.
func PlanNeighborAlltoallv[T any](t Topology, send, recv []T, sendCounts, recvCounts Counts, opts ...CollOption) (*Plan[T], error) {
	var call collCall
	neighborAllv(&call, t, elemOf[T](), bytesOf(send), bytesOf(recv), sendCounts, recvCounts, opts)
	return plan[T](t.base(), &call)
}

func neighborGather(call *collCall, t Topology, el *elem, send, recv []byte, opts []CollOption) {
	neighborCall(call, t, opNeighborAllgather, el, send, recv, func() (to, from func(i int) []byte) {
		call.counts(len(send))
		from = equalParts(call, t.base(), recv, "source", len(t.receives()), len(send))
		return func(int) []byte { return send }, from
	}, opts)
}

func neighborAll(call *collCall, t Topology, el *elem, send, recv []byte, opts []CollOption) {
	neighborCall(call, t, opNeighborAlltoall, el, send, recv, func() (to, from func(i int) []byte) {
		sources, destinations := t.Neighbors()
		part := 0
		switch {
		case len(destinations) > 0:
			part = len(send) / el.size / len(destinations) * el.size
		case len(sources) > 0:
			part = len(recv) / el.size / len(sources) * el.size
		}
		call.counts(part)
		to = equalParts(call, t.base(), send, "destination", len(destinations), part)
		from = equalParts(call, t.base(), recv, "source", len(sources), part)
		return to, from
	}, opts)
}

func neighborGatherv(call *collCall, t Topology, el *elem, send, recv []byte, counts Counts, opts []CollOption) {
	neighborCall(call, t, opNeighborAllgatherv, el, send, recv, func() (to, from func(i int) []byte) {
		call.refuse(t.base().checkCounts(call.name, "recv", "source", len(t.receives()), counts, len(recv)/el.size, true))
		return func(int) []byte { return send }, countedParts(recv, counts, el.size)
	}, opts)
}

func neighborAllv(call *collCall, t Topology, el *elem, send, recv []byte, sendCounts, recvCounts Counts, opts []CollOption) {
	neighborCall(call, t, opNeighborAlltoallv, el, send, recv, func() (to, from func(i int) []byte) {
		_, destinations := t.Neighbors()
		call.refuse(t.base().checkCounts(call.name, "send", "destination", len(destinations), sendCounts, len(send)/el.size, false))
		call.refuse(t.base().checkCounts(call.name, "recv", "source", len(t.receives()), recvCounts, len(recv)/el.size, true))
		return countedParts(send, sendCounts, el.size), countedParts(recv, recvCounts, el.size)
	}, opts)
}

// neighborCall makes the call of a neighbourhood collective. parts checks the
// buffers and returns what goes to destination i and comes from source i.
func neighborCall(call *collCall, t Topology, op uint8, el *elem, send, recv []byte, parts func() (to, from func(i int) []byte), opts []CollOption) {
	c := t.base()
	c.newCall(call, collOps[op].name, op, el, nil, nil)
	call.neighbors = new(collective.Neighbors)
	if el.err != nil {
		return
	}
	to, from := parts()
	if same, partial := overlap(send, recv); same || partial {
		call.refuse(c.errorf(call.name, ErrOverlap, "neighbourhood collectives are not in place: give it two separate slices"))
	}
	if call.bad != nil {
		return
	}
	sources, destinations := t.Neighbors()
	for i, r := range destinations {
		if r != NoRank {
			call.send1(r, to(i))
		}
	}
	for _, i := range t.receives() {
		if sources[i] != NoRank {
			call.recv1(sources[i], from(i))
		}
	}
	call.with(c, opts)
}

// equalParts checks that a buffer holds n parts of so many bytes.
func equalParts(call *collCall, c *Comm, buf []byte, whose string, n, part int) func(i int) []byte {
	if len(buf) != n*part {
		call.refuse(c.countError(call.name, n*part, len(buf), "the buffer holds a part for each %s, %d of one length", whose, n))
	}
	return func(i int) []byte { return buf[i*part:][:part] }
}

func countedParts(buf []byte, counts Counts, unit int) func(i int) []byte {
	return func(i int) []byte { return buf[counts.at(i)*unit:][:counts.N[i]*unit] }
}
