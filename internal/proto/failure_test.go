package proto

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-hpc/weft/internal/match"
	"github.com/weft-hpc/weft/internal/wire"
)

// TestRandomFailures adds what may go wrong to a random world: ranks that are
// lost, as their transport or somebody else tells, ranks that leave, and
// communicators that are revoked. Every operation ends, none twice, no buffer is
// touched after its operation has ended, and nothing is left.
func TestRandomFailures(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newRandomWorld(t)
		w.net.log = func(int, string, ...any) {}
		w.net.done = func(_ int, p *Op) {
			op := p.Owner.(*worldOp)
			if op.done {
				w.fail("operation %d is done twice", op.serial)
			}
			op.done = true
			if op.Kind == Mprobe && op.Err == nil {
				w.held = append(w.held, op)
			}
			if op.Kind == Recv { // from here on the buffer is the test's
				for i := range op.Buf {
					op.Buf[i] = 0xee
				}
			}
		}
		ranks := len(w.comms)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]int{0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 5, 5, 5, 6, 7, 7, 8, 9, 9}).Draw(t, "step") {
			case 0:
				w.send(t)
			case 1:
				w.recv(t)
			case 2:
				w.probe(t)
			case 3:
				w.mrecv(t)
			case 4:
				w.cancel(t)
			case 5:
				w.move(t)
			case 6:
				w.step(t)
			case 7:
				at, peer := rapid.IntRange(0, ranks-1).Draw(t, "at"), rapid.IntRange(0, ranks-1).Draw(t, "peer")
				if from, to, ok := w.transfer(); ok && rapid.Bool().Draw(t, "in a transfer") {
					at, peer = from, to
					if rapid.Bool().Draw(t, "receiver") {
						at, peer = to, from
					}
				}
				w.fault(t, at, peer)
			case 9:
				w.startTransfer(t)
			case 8:
				if rapid.Bool().Draw(t, "revoke") {
					r, c := rapid.IntRange(0, ranks-1).Draw(t, "rank"), rapid.IntRange(0, 1).Draw(t, "comm")
					w.net.cores[r].Revoke(w.comms[r][c], &RevokedError{Reason: "test", Cause: ErrRevoked}, "test")
					w.net.act(r)
				}
			}
			if w.err != nil {
				t.Fatal(w.err)
			}
		}
		w.collapse(t)
	})
}

// step does a part of delivering a DATA frame, so that things can happen in
// the middle.
func (w *randomWorld) step(t *rapid.T) {
	for from := range w.net.links {
		for to := range w.net.links[from] {
			l := &w.net.links[from][to]
			if len(l.frames) == 0 || l.landing != nil {
				continue
			}
			if h, _ := l.frames[0].header(); h.Kind == wire.Data && rapid.Bool().Draw(t, "begin") {
				if !w.net.begin(from, to) {
					w.net.sent(from, to)
				}
				return
			}
		}
	}
}

// startTransfer brings a long message so far that its data are under way, if
// nothing speaks against it: otherwise that is rare.
func (w *randomWorld) startTransfer(t *rapid.T) {
	send, recv := w.op(t, Send), w.op(t, Recv)
	recv.comm = send.comm
	recv.Ctx = w.comms[recv.rank][recv.comm].P2P
	send.Peer, recv.Peer = recv.Ctx.rank, send.Ctx.rank
	recv.Tag = match.Any
	send.Buf, recv.Buf = make([]byte, 1000), make([]byte, 1000)
	w.sends, w.recvs = append(w.sends, send), append(w.recvs, recv)
	w.net.cores[send.rank].PostSend(&send.Op)
	w.net.act(send.rank)
	w.net.cores[recv.rank].PostRecv(&recv.Op)
	w.net.act(recv.rank)
	for range 20 {
		if _, _, ok := w.transfer(); ok || !w.move(t) {
			return
		}
	}
}

// transfer finds a link with a DATA frame under way.
func (w *randomWorld) transfer() (from, to int, ok bool) {
	for from := range w.net.links {
		for to := range w.net.links[from] {
			for _, f := range w.net.links[from][to].frames {
				if h, _ := f.header(); h.Kind == wire.Data {
					return from, to, true
				}
			}
		}
	}
	return 0, 0, false
}

// fault makes one rank believe that another is gone.
func (w *randomWorld) fault(t *rapid.T, at, peer int) {
	if at == peer {
		return
	}
	switch rapid.SampledFrom([]string{"lost", "down", "leaves"}).Draw(t, "fault") {
	case "lost":
		w.net.cores[at].Lost(peer, errors.New("test"))
	case "down":
		w.net.down(at, peer, errors.New("test"))
	case "leaves":
		w.net.cores[at].Goodbye(peer)
	}
	w.net.act(at)
}

// collapse moves what can be moved, then has every transport give every peer
// up.
func (w *randomWorld) collapse(t *rapid.T) {
	for w.move(nil) {
	}
	for at := range w.comms {
		for peer := range w.comms {
			if at != peer {
				w.net.down(at, peer, errors.New("the end"))
			}
		}
	}
	for _, probe := range w.held {
		w.drain(probe.rank, probe.comm, probe)
	}
	for r, c := range w.net.cores {
		for len(w.net.pulls) > 0 {
			w.net.pull(nil)
		}
		for i, m := range w.comms[r] {
			for _, op := range slices.Concat(w.recvs, w.probes) {
				if op.done || op.rank != r || op.comm != i {
					continue
				}
				// A rank may still send to itself.
				if len(w.comms) > 1 && (op.Peer < 0 || m.members[op.Peer] != int32(r)) {
					t.Fatalf("receive %d from %d waits for nobody", op.serial, op.Peer)
				}
				if !c.Cancel(&op.Op) {
					t.Fatalf("receive %d cannot be withdrawn", op.serial)
				}
				w.net.act(r)
			}
			m.P2P.queue.EachMessage(func(n *match.Node[*Message]) {
				if n.Owner.offer {
					t.Fatalf("rank %d keeps an offer of rank %d, which is gone", r, n.Owner.peer)
				}
			})
			if n := c.Close(m); n > 0 {
				t.Fatalf("rank %d has %d operations on communicator %d", r, n, i)
			}
			w.net.act(r)
		}
	}
	for _, op := range slices.Concat(w.sends, w.recvs, w.probes) {
		if !op.done {
			t.Fatalf("operation %d of rank %d is not done, state %s", op.serial, op.rank, stateNames[op.state])
		}
		for i, b := range op.Buf {
			if op.Kind == Recv && b != 0xee {
				t.Fatalf("the buffer of receive %d was written to at %d after its end", op.serial, i)
			}
		}
	}
	for r, c := range w.net.cores {
		for _, left := range c.leftovers() {
			if len(left) < 4 || left[:4] != "peer" {
				t.Fatalf("rank %d still holds %s", r, left)
			}
		}
	}
	if w.err != nil {
		t.Fatal(w.err)
	}
}

// TestDataTwice has a peer send the data of a message twice, the second time
// while the first are arriving.
func TestDataTwice(t *testing.T) {
	n := newNetwork(2, 1000, 0, 0)
	comm := n.cores[1].Open(ContextID(0, 1), []int32{0, 1}, 1)
	op := &Op{Kind: Recv, Ctx: comm.P2P, Peer: 0, Tag: 1, Buf: make([]byte, 100)}
	c := n.cores[1]
	c.PostRecv(op)
	rts := wire.Header{Kind: wire.RTS, Flags: wire.HasID | wire.HasBytes, Ctx: ContextID(0, 1), Tag: 1, ID: 5, Bytes: 100}
	if err := c.Frame(0, &rts, nil); err != nil || len(c.Out) != 1 {
		t.Fatalf("RTS: %v, %d actions", err, len(c.Out))
	}
	data := wire.Header{Kind: wire.Data, Flags: wire.HasID | wire.HasBytes, ID: c.Out[0].Header.Reply, Bytes: 100, Seq: 1}
	if buf, err := c.Dest(0, &data, 100); err != nil || len(buf) != 100 {
		t.Fatalf("DATA: %v", err)
	}
	data.Seq++
	if buf, err := c.Dest(0, &data, 100); err == nil || buf != nil {
		t.Fatalf("the second DATA frame got %d bytes of the same buffer", len(buf))
	}
	c.Lost(0, errors.New("test"))
	if len(c.Done) != 0 {
		t.Fatal("the receive is done while its data are arriving")
	}
	c.Landed(0, &data)
	if len(c.Done) != 1 || op.Err != nil {
		t.Fatalf("%d operations are done, error %v", len(c.Done), op.Err)
	}
}

// TestTakenBack withdraws an eager send whose frame no transport took: its
// credit comes back and lets the next go.
func TestTakenBack(t *testing.T) {
	c := New(Config{Rank: 0, Size: 2, Window: 164})
	c.SetLimits(1, 200, 200)
	x := c.Open(ContextID(0, 1), []int32{0, 1}, 0).P2P
	a := &Op{Kind: Send, Ctx: x, Peer: 1, Buf: make([]byte, 100)}
	b := &Op{Kind: Send, Ctx: x, Peer: 1, Buf: make([]byte, 100)}
	c.PostSend(a)
	c.PostSend(b)
	if len(c.Out) != 1 || len(c.Done) != 0 {
		t.Fatalf("%d actions and %d done, want one frame", len(c.Out), len(c.Done))
	}
	c.Taken()
	c.TakenBack(a)
	if len(c.Done) != 1 || c.Done[0] != a || a.Err != ErrCanceled {
		t.Fatalf("done %v, error %v", c.Done, a.Err)
	}
	if len(c.Out) != 1 || c.Out[0].Op != b {
		t.Fatal("the next send does not go")
	}
}

// TestNotSent drops a DATA frame whose peer was lost before any transport had
// it: the send ends with the loss, also after PeerDown has ended it.
func TestNotSent(t *testing.T) {
	for _, down := range []bool{false, true} {
		c := New(Config{Rank: 0, Size: 2, Window: 1000})
		x := c.Open(ContextID(0, 1), []int32{0, 1}, 0).P2P
		op := &Op{Kind: Send, Ctx: x, Peer: 1, Buf: make([]byte, 100)}
		c.PostSend(op)
		id := c.Out[0].Header.ID
		if err := c.Frame(1, &wire.Header{Kind: wire.CTS, Flags: wire.HasID | wire.HasBytes, ID: id, Reply: 9, Bytes: 100}, nil); err != nil {
			t.Fatal(err)
		}
		c.Lost(1, errors.New("test"))
		if len(c.Done) != 0 {
			t.Fatal("the send is done while a transport may have its payload")
		}
		if down {
			c.PeerDown(1, errors.New("test"))
		}
		c.NotSent(1, id)
		if len(c.Done) != 1 || !errors.Is(op.Err, ErrPeerLost) || LostRank(op.Err) != 1 {
			t.Fatalf("%d are done, error %v", len(c.Done), op.Err)
		}
	}
}

// TestWrongUse panics for what only a mistake of this library can cause.
func TestWrongUse(t *testing.T) {
	c := New(Config{Rank: 0, Size: 1, Window: 64})
	c.Open(ContextID(3, 1), []int32{0}, 0)
	for name, f := range map[string]func(){
		"a window too small": func() { New(Config{Size: 1, Window: 63}) },
		"an index in use":    func() { c.Open(ContextID(3, 2), []int32{0}, 0) },
		"Sent":               func() { c.Sent(0, 1) },
		"Landed":             func() { c.Landed(0, &wire.Header{}) },
		"TakenBack":          func() { c.TakenBack(&Op{Kind: Recv}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s does not panic", name)
				}
			}()
			f()
		}()
	}
}

// TestFreeIndexes opens and closes communicators beyond the wrap of their
// generations, as package weft does.
func TestFreeIndexes(t *testing.T) {
	c := New(Config{Rank: 0, Size: 1, Window: 64})
	mask := make([]uint64, MaxComms/64)
	seen := map[string]bool{}
	world := c.Open(ContextID(0, 1), []int32{0}, 0)
	for i := range uint64(70_000) {
		newest := c.FreeIndexes(mask)
		if newest != i+1 {
			t.Fatalf("the newest generation is %d after %d", newest, i+1)
		}
		if mask[0]&1 != 0 || mask[0]&2 == 0 || mask[len(mask)-1] != ^uint64(0) {
			t.Fatalf("free indexes %#x", mask[0])
		}
		id := ContextID(1, uint16(newest+1))
		if c.closed(id) {
			t.Fatalf("generation %d counts as closed before it is opened", newest+1)
		}
		m := c.Open(id, []int32{0}, 0)
		if c.Close(m) != 0 || !c.closed(id) || c.context(id) != nil {
			t.Fatalf("generation %d does not count as closed", newest+1)
		}
		seen[fmt.Sprint(id)] = true
	}
	if len(seen) != 1<<16 {
		t.Errorf("%d different ids were given", len(seen))
	}
	if n := c.Close(world); n != 0 {
		t.Errorf("%d operations are left", n)
	}
}

// A communicator that is revoked because a rank is lost says which, to ranks that have not
// heard of the loss themselves; who blames a rank that does not exist breaks the protocol.
func TestRevokedNamesTheLost(t *testing.T) {
	n := newNetwork(3, 1024, 256, 512)
	var worlds []*Comm
	for r, c := range n.cores {
		worlds = append(worlds, c.Open(ContextID(0, 1), []int32{0, 1, 2}, r))
	}
	n.cores[0].Lost(1, errors.New("killed by signal 9"))
	n.cores[0].Revoke(worlds[0], n.cores[0].Gone(1), "rank 1 failed")
	n.act(0)
	forged := bytes.Clone(n.links[0][2].frames[0].bytes)
	n.deliver(0, 2)
	err := worlds[2].Err()
	if !errors.Is(err, ErrRevoked) || !errors.Is(err, ErrPeerLost) || LostRank(err) != 1 {
		t.Errorf("rank 2 has %v, for the loss of rank %d", err, LostRank(err))
	}
	for _, blamed := range []uint64{0, 4} {
		var h wire.Header
		size, err := wire.Decode(forged, &h)
		if err != nil {
			t.Fatal(err)
		}
		c := New(Config{Rank: 2, Size: 3, Window: 1024})
		c.Open(ContextID(0, 1), []int32{0, 1, 2}, 2)
		h.Bytes = blamed
		if err := c.Frame(0, &h, forged[size:]); err == nil {
			t.Errorf("a frame that blames rank %d of 3 is taken", int64(blamed)-1)
		}
	}
}
