package collective

import (
	"errors"
	"fmt"
)

// Kind names a collective operation.
type Kind uint8

// The operations, in the order of MPI 4.1 chapter 6.
const (
	KindBarrier Kind = iota + 1
	KindBcast
	KindGather
	KindScatter
	KindAllgather
	KindReduce
	KindAllreduce
)

// Kinds returns every operation of the package.
func Kinds() []Kind {
	return []Kind{KindBarrier, KindBcast, KindGather, KindScatter, KindAllgather, KindReduce, KindAllreduce}
}

func (k Kind) String() string {
	switch k {
	case KindBarrier:
		return "barrier"
	case KindBcast:
		return "bcast"
	case KindGather:
		return "gather"
	case KindScatter:
		return "scatter"
	case KindAllgather:
		return "allgather"
	case KindReduce:
		return "reduce"
	case KindAllreduce:
		return "allreduce"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Rooted operations have a root rank.
func (k Kind) Rooted() bool {
	return k == KindBcast || k == KindGather || k == KindScatter || k == KindReduce
}

// Reduces says whether the operation takes an Op.
func (k Kind) Reduces() bool { return k == KindReduce || k == KindAllreduce }

// Args are the arguments of one call on one rank. What an operation does not
// use is left zero; b is the block of one rank.
//
//	             Send                Recv                    Op  Root
//	barrier      -                   -                       -   -
//	bcast        -                   the buffer, every rank  -   yes
//	gather       b                   P*b at the root         -   yes
//	scatter      P*b at the root     b                       -   yes
//	allgather    b                   P*b                     -   -
//	reduce       S                   S at the root           yes yes
//	allreduce    S                   S                       yes -
//
// Send and Recv may be the same slice, or Send may be the rank's own block of
// Recv (gather at the root, allgather), or Recv the rank's own block of Send
// (scatter at the root): the operation is then in place. Any other overlap
// gives wrong results and is for the caller to refuse. Send is never written
// unless the call is in place.
type Args struct {
	Send, Recv []byte
	Op         Op
	Root       int
}

// Shape is what all ranks know about a call before it starts, and all that an
// algorithm's choice and its cost depend on.
type Shape struct {
	Ranks int
	Root  int
	// Bytes is the length of the whole vector, the S of the formulas: the
	// buffer of bcast and of the reductions, all P blocks together of gather,
	// scatter and allgather.
	Bytes int
	// Elem is the width of an element of a reduction, 0 for other operations.
	Elem int
}

// Cost is what a call sends. The conformance suite counts it.
type Cost struct {
	// Steps is the length of the longest chain of messages, when each rank
	// sends at most one message and receives at most one in a step.
	Steps int
	// Messages and Bytes are totals over all ranks.
	Messages, Bytes int
}

// Algorithm is one way to run one operation.
//
// How algorithms are written: an algorithm is straight-line code over a Peer.
// Which calls it makes depends on its rank, its Args' lengths, whether the call
// is in place, the Root and the Op's attributes, and never on what the buffers
// hold. It reaches data only by the methods of Peer, by the Op and by move. So a
// Peer that writes calls down instead of making them turns any algorithm into
// a list of sends, receives, copies and combinations that can be kept and
// advanced by somebody else.
type Algorithm struct {
	Kind Kind
	Name string
	// NeedsCommutative algorithms do not keep rank order.
	NeedsCommutative bool
	// NeedsPowerOfTwo algorithms run on 1, 2, 4, 8 ... ranks only.
	NeedsPowerOfTwo bool
	// Cost is exact for every shape that the algorithm suits.
	Cost func(s Shape) Cost

	run func(p Peer, a Args) error
}

// registry holds every algorithm. The first of a kind suits every call.
var registry = [...][]*Algorithm{
	KindBarrier:   {&barrierDissemination, &barrierCentral},
	KindBcast:     {&bcastBinomial, &bcastScatterRing, &bcastScatterDoubling},
	KindGather:    {&gatherBinomial},
	KindScatter:   {&scatterBinomial},
	KindAllgather: {&allgatherBruck, &allgatherDoubling, &allgatherRing},
	KindReduce:    {&reduceBinomial, &reduceHalving},
	KindAllreduce: {&allreduceDoubling, &allreduceHalving, &allreduceRing},
}

// Algorithms returns the names of the algorithms of an operation.
func Algorithms(k Kind) []string {
	var names []string
	for _, alg := range of(k) {
		names = append(names, alg.Name)
	}
	return names
}

// ErrUnsuited is returned for an algorithm that cannot run the call that it
// was named for.
var ErrUnsuited = errors.New("collective: algorithm does not suit the call")

// Lookup finds an algorithm by name.
func Lookup(k Kind, name string) (*Algorithm, error) {
	for _, alg := range of(k) {
		if alg.Name == name {
			return alg, nil
		}
	}
	return nil, fmt.Errorf("collective: %v has no algorithm %q, it has %q", k, name, Algorithms(k))
}

func of(k Kind) []*Algorithm {
	if int(k) >= len(registry) {
		return nil
	}
	return registry[k]
}

// Suits says whether the algorithm can run on that many ranks, with that kind
// of operator.
func (alg *Algorithm) Suits(ranks int, commutative bool) bool {
	return (!alg.NeedsPowerOfTwo || ranks&(ranks-1) == 0) &&
		(!alg.NeedsCommutative || commutative)
}

// Run runs the algorithm. All ranks run the same one.
func (alg *Algorithm) Run(p Peer, a Args) error {
	if err := check(alg.Kind, p, &a); err != nil {
		return err
	}
	if !alg.Suits(p.Size(), a.Op.Commutative) {
		return fmt.Errorf("%w: %v %q on %d ranks, commutative operator: %t; use one of %q",
			ErrUnsuited, alg.Kind, alg.Name, p.Size(), a.Op.Commutative, Algorithms(alg.Kind))
	}
	return alg.run(p, a)
}

// check refuses arguments that do not fit together. They are the fault of the
// caller on this rank; disagreement between ranks is for the Peer to find.
func check(k Kind, p Peer, a *Args) error {
	rank, size := p.Rank(), p.Size()
	if k.Rooted() && (a.Root < 0 || a.Root >= size) {
		return fmt.Errorf("collective: %v on rank %d: root %d is not one of the %d ranks", k, rank, a.Root, size)
	}
	send, recv := len(a.Send), len(a.Recv)
	switch k {
	case KindGather:
		if rank == a.Root && recv != size*send {
			return fmt.Errorf("collective: gather at root %d: recv has %d bytes, %d ranks send %d each", rank, recv, size, send)
		}
	case KindScatter:
		if rank == a.Root && send != size*recv {
			return fmt.Errorf("collective: scatter at root %d: send has %d bytes, %d ranks receive %d each", rank, send, size, recv)
		}
	case KindAllgather:
		if recv != size*send {
			return fmt.Errorf("collective: allgather on rank %d: recv has %d bytes, %d ranks send %d each", rank, recv, size, send)
		}
	case KindReduce, KindAllreduce:
		if (k == KindAllreduce || rank == a.Root) && send != recv {
			return fmt.Errorf("collective: %v on rank %d: send has %d bytes, recv %d", k, rank, send, recv)
		}
		if a.Op.Size <= 0 || send%a.Op.Size != 0 || a.Op.Left == nil || a.Op.Right == nil {
			return fmt.Errorf("collective: %v on rank %d: %d bytes are not elements of an operator of size %d with Left and Right",
				k, rank, send, a.Op.Size)
		}
	}
	return nil
}

// ShapeOf returns the shape of a call.
func ShapeOf(k Kind, ranks int, a Args) Shape {
	s := Shape{Ranks: ranks, Root: a.Root, Elem: a.Op.Size}
	switch k {
	case KindBcast:
		s.Bytes = len(a.Recv)
	case KindGather, KindAllgather:
		s.Bytes = ranks * len(a.Send)
	case KindScatter:
		s.Bytes = ranks * len(a.Recv)
	case KindReduce, KindAllreduce:
		s.Bytes = len(a.Send)
	}
	return s
}
