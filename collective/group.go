package collective

// group is the Peer that algorithms run on: the caller's, or some ranks of it under
// numbers of their own, so that a part of an algorithm can be another one.
type group struct {
	Peer
	// members are the ranks by their numbers, nil for all ranks under their own;
	// but the one numbered at is standIn.
	members     []int32
	at, standIn int
	me          int
}

// whole returns the group of all ranks.
func whole(p Peer) group { return group{Peer: p, me: p.Rank()} }

func (g group) Rank() int { return g.me }

func (g group) Size() int {
	if g.members == nil {
		return g.Peer.Size()
	}
	return len(g.members)
}

// rank returns the caller's rank of a member.
func (g group) rank(i int) int {
	switch {
	case g.members == nil:
		return i
	case i == g.at:
		return g.standIn
	}
	return int(g.members[i])
}

func (g group) Send(buf []byte, dst int) error { return g.Peer.Send(buf, g.rank(dst)) }
func (g group) Recv(buf []byte, src int) error { return g.Peer.Recv(buf, g.rank(src)) }
func (g group) PostSend(buf []byte, dst int)   { g.Peer.PostSend(buf, g.rank(dst)) }
func (g group) PostRecv(buf []byte, src int)   { g.Peer.PostRecv(buf, g.rank(src)) }

func (g group) Sendrecv(send []byte, dst int, recv []byte, src int) error {
	return g.Peer.Sendrecv(send, g.rank(dst), recv, g.rank(src))
}
