package collective

import "fmt"

// check refuses arguments that do not fit together. They are the fault of the
// caller on this rank; disagreement between ranks is for the Peer to find.
func check(k Kind, p Peer, a *Args) error {
	rank, size := p.Rank(), p.Size()
	if k.Rooted() && (a.Root < 0 || a.Root >= size) {
		return fmt.Errorf("collective: %v on rank %d: root %d is not one of the %d ranks", k, rank, a.Root, size)
	}
	if a.Nodes != nil && len(a.Nodes.node) != size {
		return fmt.Errorf("collective: %v on rank %d: the topology is of %d ranks, and there are %d", k, rank, len(a.Nodes.node), size)
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
	case KindAlltoall:
		if send != recv || send%size != 0 {
			return fmt.Errorf("collective: alltoall on rank %d: send has %d bytes and recv %d, which are not equal blocks for %d ranks", rank, send, recv, size)
		}
	case KindReduceScatterBlock:
		if send != size*recv {
			return fmt.Errorf("collective: reduce-scatter-block on rank %d: send has %d bytes, %d ranks receive %d each", rank, send, size, recv)
		}
	case KindReduce, KindAllreduce, KindScan, KindExscan:
		if (k != KindReduce || rank == a.Root) && send != recv {
			return fmt.Errorf("collective: %v on rank %d: send has %d bytes, recv %d", k, rank, send, recv)
		}
	}
	if a.SendBlocks != nil || a.RecvBlocks != nil || a.Neighbors != nil || k.lengths() {
		if err := checkBlocks(k, rank, size, a); err != nil {
			return err
		}
	}
	if k.Reduces() && (a.Op.Size <= 0 || send%a.Op.Size != 0 || a.Op.Left == nil || a.Op.Right == nil) {
		return fmt.Errorf("collective: %v on rank %d: %d bytes are not elements of an operator of size %d with Left and Right",
			k, rank, send, a.Op.Size)
	}
	return nil
}

// checkBlocks checks the blocks of the forms that have them.
func checkBlocks(k Kind, rank, size int, a *Args) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("collective: %v on rank %d: "+format, append([]any{k, rank}, args...)...)
	}
	fits := func(b *Blocks, buf []byte) error {
		if b == nil || len(b.Counts) != size || len(b.Displs) != size || b.Unit <= 0 {
			return bad("there is no block for each of the %d ranks", size)
		}
		units := len(buf) / b.Unit
		for i, n := range b.Counts {
			if at := b.Displs[i]; n < 0 || at < 0 || at > units || n > units-at {
				return bad("block %d, of %d units from %d on, is outside of %d units", i, n, at, units)
			}
		}
		return nil
	}
	own := func(b *Blocks, n int) error {
		if want := b.Counts[rank] * b.Unit; n != want {
			return bad("the rank's own block has %d bytes, its buffer %d", want, n)
		}
		return nil
	}
	switch {
	case k == KindGatherv && rank == a.Root, k == KindAllgatherv:
		if err := fits(a.RecvBlocks, a.Recv); err != nil {
			return err
		}
		return own(a.RecvBlocks, len(a.Send))
	case k == KindScatterv && rank == a.Root:
		if err := fits(a.SendBlocks, a.Send); err != nil {
			return err
		}
		return own(a.SendBlocks, len(a.Recv))
	case k == KindAlltoallv:
		if err := fits(a.SendBlocks, a.Send); err != nil {
			return err
		}
		if err := fits(a.RecvBlocks, a.Recv); err != nil {
			return err
		}
		if to, from := a.SendBlocks.of(rank), a.RecvBlocks.of(rank); to != from {
			return bad("it sends %d bytes to itself and receives %d", to, from)
		}
	case k == KindReduceScatter:
		if err := fits(a.SendBlocks, a.Send); err != nil {
			return err
		}
		if err := own(a.SendBlocks, len(a.Recv)); err != nil {
			return err
		}
		end := 0
		for i, n := range a.SendBlocks.Counts {
			if a.SendBlocks.Displs[i] != end {
				return bad("block %d does not start where the one before ends", i)
			}
			end += n
		}
		if end*a.SendBlocks.Unit != len(a.Send) {
			return bad("the blocks have %d bytes together, send %d", end*a.SendBlocks.Unit, len(a.Send))
		}
	case k == KindNeighbor:
		if a.Neighbors == nil {
			return bad("there are no neighbours, not even an empty list")
		}
		for _, parts := range [][]Part{a.Sends, a.Recvs} {
			for _, part := range parts {
				if part.Peer < 0 || part.Peer >= size {
					return bad("neighbour %d is not one of the %d ranks", part.Peer, size)
				}
			}
		}
		for out, in := 0, 0; ; out, in = out+1, in+1 {
			out, in = nextOf(a.Sends, out, rank), nextOf(a.Recvs, in, rank)
			switch {
			case out == len(a.Sends) && in == len(a.Recvs):
				return nil
			case out == len(a.Sends) || in == len(a.Recvs):
				return bad("it does not send itself as many messages as it receives from itself")
			case len(a.Sends[out].Buf) != len(a.Recvs[in].Buf):
				return bad("it sends %d bytes to itself and receives %d", len(a.Sends[out].Buf), len(a.Recvs[in].Buf))
			}
		}
	}
	return nil
}

// ShapeOf returns the shape of a call, as far as this rank knows it.
func ShapeOf(k Kind, ranks int, a Args) Shape {
	return Shape{Ranks: ranks, Root: a.Root, Elem: a.Op.Size, Nodes: a.Nodes, Bytes: vectorBytes(k, ranks, &a)}
}

// vectorBytes returns the bytes of a shape.
func vectorBytes(k Kind, ranks int, a *Args) (n int) {
	switch k {
	case KindBcast:
		return len(a.Recv)
	case KindGather, KindAllgather:
		return ranks * len(a.Send)
	case KindScatter:
		return ranks * len(a.Recv)
	case KindAlltoall, KindReduce, KindAllreduce, KindReduceScatterBlock, KindReduceScatter, KindScan, KindExscan:
		return len(a.Send)
	case KindAllgatherv:
		for _, c := range a.RecvBlocks.Counts {
			n += c * a.RecvBlocks.Unit
		}
	}
	return n
}
