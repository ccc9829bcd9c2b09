package proto

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/match"
	"github.com/weft-hpc/weft/internal/wire"
)

// Patience says when to tell whom one waits for: at the second of the regular times at which it is asked,
// and then at every fourth. Who is told may not have come to the call yet, and forgets.
type Patience uint8

// Over tells whether it is time.
func (p *Patience) Over() bool {
	const first, every = 2, 4
	if *p++; *p == first+every {
		*p = first
	}
	return *p == first
}

// Remind tells the ranks whose messages collectives here have been waiting for since the last time, at
// least, what was called. It is called at regular times, so far apart that most waits are shorter.
func (c *Core) Remind() {
	for i := range c.comms {
		m := c.comms[i].comm
		if m == nil || m.revoked != nil || m.Coll.queue.Receives() == 0 {
			continue
		}
		for rank := range m.members {
			told := false
			m.Coll.queue.EachReceive(int32(rank), func(n *match.Node[*Op]) {
				if op := n.Owner; op.Signed && op.waits.Over() && !told {
					told = true
					c.TellAwaited(m, op.Peer, &op.Sig)
				}
			})
		}
	}
}

// TellAwaited tells a member that a collective here waits for it.
func (c *Core) TellAwaited(m *Comm, rank int32, sig *wire.Signature) {
	if w := m.members[rank]; w != c.rank && c.peers[w].gone == nil {
		h := c.control(w, wire.Waiting, wire.HasSig)
		h.Ctx, h.Src, h.Sig = m.Coll.id, m.Coll.rank, *sig
	}
}

// waitedFor is a Waiting frame. Only a call that is remembered can disagree: one that is over, and was the same,
// has sent what the peer waits for.
func (c *Core) waitedFor(peer int32, h *wire.Header) error {
	x := c.context(h.Ctx)
	if x == nil || x.comm.revoked != nil { // closed, or not open here yet; or the peer hears of it
		return nil
	}
	if !x.speaks(h.Src, peer) {
		return violation(peer, h, fmt.Sprintf("it is not rank %d of the communicator", h.Src))
	}
	if mine, known := x.called(h.Src, h.Sig.Seq); known && mine != h.Sig {
		err := &MismatchError{Mine: mine, Theirs: h.Sig, Rank: h.Src, CallText: c.callText}
		c.Revoke(x.comm, err, err.Error())
	}
	return nil
}

// called returns what this rank called under a number, which a member asks for that has not come further.
func (x *Context) called(member int32, number uint32) (sig wire.Signature, known bool) {
	if x.calls != nil {
		if e := x.entry(number); e.sig.Seq == number {
			return e.sig, true
		}
	}
	if x.comm.Called != nil {
		return x.comm.Called(member, number)
	}
	return sig, false
}
