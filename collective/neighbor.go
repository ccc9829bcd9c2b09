package collective

// neighborPosted: all messages to and from neighbours at once. Two ranks may be
// neighbours more than once, and a rank its own neighbour: between two ranks the
// first of Sends meets the first of Recvs, and so on, so the callers choose an
// order in which these belong together.
//
//	steps     the most parts that a rank sends or receives
//	messages  a part each, but those to the rank itself; empty ones, too
//	bytes     those of the parts
//	memory    none
//
// MPI 4.1, 8.6.
var neighborPosted = Algorithm{
	Kind: KindNeighbor, Name: "posted",
	run: func(p group, a Args) error {
		rank, own := p.Rank(), 0
		for _, r := range a.Recvs {
			if r.Peer != rank {
				p.PostRecv(r.Buf, r.Peer)
			}
		}
		for _, s := range a.Sends {
			if s.Peer != rank {
				p.PostSend(s.Buf, s.Peer)
				continue
			}
			own = nextOf(a.Recvs, own, rank)
			move(p, a.Recvs[own].Buf, s.Buf)
			own++
		}
		return p.Finish()
	},
}

// nextOf returns where the next part with a peer is, len(parts) if there is none.
func nextOf(parts []Part, from, peer int) int {
	for from < len(parts) && parts[from].Peer != peer {
		from++
	}
	return from
}
