package proto

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-hpc/weft/internal/match"
	"github.com/weft-hpc/weft/internal/wire"
)

// randomWorld posts operations on a few ranks at random, moves frames at random
// and keeps book of what should come of it.
type randomWorld struct {
	net    *network
	comms  [][]*Comm // by rank
	window int64
	posted int
	sends  []*worldOp
	recvs  []*worldOp
	probes []*worldOp
	// arrivals are the receives and Mprobes that got a message, in that order.
	arrivals []*worldOp
	held     []*worldOp // Mprobes whose message is not received yet
	err      error      // found in a callback
}

type worldOp struct {
	Op
	rank     int
	comm     int
	serial   int // order of posting, on its rank
	done     bool
	received *worldOp // the send that came to a receive
	via      *worldOp // the receive of what an Mprobe took
	matched  bool     // a send
}

func newRandomWorld(t *rapid.T) *randomWorld {
	ranks := rapid.IntRange(1, 5).Draw(t, "ranks")
	w := &randomWorld{window: rapid.SampledFrom([]int64{64, 65, 128, 300, 1000, 10000}).Draw(t, "window")}
	eager := rapid.SampledFrom([]int{0, 1, 40, 200}).Draw(t, "eager limit")
	pullMin := rapid.SampledFrom([]int{0, 40, 100, 1000}).Draw(t, "pull minimum")
	w.net = newNetwork(ranks, w.window, eager, pullMin)
	w.net.done = w.finished
	w.net.log = func(rank int, format string, args ...any) {
		if len(format) > 9 && format[:9] == "violation" {
			w.fail("rank %d: "+format, append([]any{rank}, args...)...)
		}
	}
	w.comms = make([][]*Comm, ranks)
	for c := range 2 {
		for r := range ranks {
			// The second communicator has the ranks in the opposite order.
			members := make([]int32, ranks)
			for i := range members {
				members[i] = int32(i)
			}
			rank := r
			if c == 1 {
				slices.Reverse(members)
				rank = ranks - 1 - r
			}
			w.comms[r] = append(w.comms[r], w.net.cores[r].Open(ContextID(c, 1), members, rank))
		}
	}
	return w
}

func (w *randomWorld) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// op makes an operation of a random rank on a random communicator.
func (w *randomWorld) op(t *rapid.T, kind Kind) *worldOp {
	op := &worldOp{rank: rapid.IntRange(0, len(w.comms)-1).Draw(t, "rank"), comm: rapid.IntRange(0, 1).Draw(t, "comm"), serial: w.posted}
	w.posted++
	op.Owner, op.Kind, op.Type = op, kind, 7
	op.Ctx = w.comms[op.rank][op.comm].P2P
	return op
}

func (w *randomWorld) send(t *rapid.T) {
	op := w.op(t, rapid.SampledFrom([]Kind{Send, Ssend}).Draw(t, "kind"))
	op.Peer = rapid.Int32Range(0, int32(len(w.comms))-1).Draw(t, "to")
	op.Tag = rapid.Int32Range(0, 2).Draw(t, "tag")
	op.Buf = make([]byte, rapid.SampledFrom([]int{0, 1, 39, 40, 41, 99, 200, 201, 1000}).Draw(t, "bytes"))
	// The content is the number of the send, as far as there is room, and noise.
	for i := range op.Buf {
		op.Buf[i] = noise(op.serial, i)
	}
	if op.HasRegion = rapid.Bool().Draw(t, "region"); op.HasRegion {
		op.Region.Key = uint32(1e6 + op.serial)
		regions[op.Region.Key] = op.Buf
	}
	w.sends = append(w.sends, op)
	w.net.cores[op.rank].PostSend(&op.Op)
	w.net.act(op.rank)
}

func noise(serial, i int) byte { return byte(serial + 31*i + i*serial>>3) }

// receiver makes a receive or a probe with or without wildcards.
func (w *randomWorld) receiver(t *rapid.T, kind Kind) *worldOp {
	op := w.op(t, kind)
	op.Peer = rapid.Int32Range(match.Any, int32(len(w.comms))-1).Draw(t, "from")
	op.Tag = rapid.Int32Range(match.Any, 2).Draw(t, "tag")
	return op
}

func (w *randomWorld) recv(t *rapid.T) {
	op := w.receiver(t, Recv)
	op.Buf = make([]byte, rapid.SampledFrom([]int{1000, 1000, 1000, 200, 40, 0}).Draw(t, "capacity"))
	w.recvs = append(w.recvs, op)
	w.net.cores[op.rank].PostRecv(&op.Op)
	w.net.act(op.rank)
}

func (w *randomWorld) probe(t *rapid.T) {
	op := w.receiver(t, rapid.SampledFrom([]Kind{Probe, Mprobe}).Draw(t, "kind"))
	w.probes = append(w.probes, op)
	w.net.cores[op.rank].PostProbe(&op.Op)
	w.net.act(op.rank)
}

// mrecv receives a message that an Mprobe holds.
func (w *randomWorld) mrecv(t *rapid.T) {
	if len(w.held) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.held)-1).Draw(t, "held")
	probe := w.held[i]
	w.held = slices.Delete(w.held, i, i+1)
	op := &worldOp{rank: probe.rank, comm: probe.comm}
	op.Owner, op.Kind, op.Type, op.Ctx = op, Recv, 7, probe.Ctx
	op.Peer, op.Tag = probe.Peer, probe.Tag
	op.serial = -1 // its order is the probe's
	probe.via = op
	op.Buf = make([]byte, 1000)
	w.recvs = append(w.recvs, op)
	w.net.cores[op.rank].PostMrecv(&op.Op, probe.Message)
	w.net.act(op.rank)
}

// cancel withdraws any operation.
func (w *randomWorld) cancel(t *rapid.T) {
	all := slices.Concat(w.sends, w.recvs, w.probes)
	if len(all) == 0 {
		return
	}
	op := rapid.SampledFrom(all).Draw(t, "operation")
	if op.done {
		return
	}
	now := w.net.cores[op.rank].Cancel(&op.Op)
	w.net.act(op.rank)
	if now != op.done {
		w.fail("Cancel returned %v, done is %v", now, op.done)
	}
}

// move delivers one frame or carries one pull out; sometimes a frame comes twice.
func (w *randomWorld) move(t *rapid.T) bool {
	type route struct{ from, to int }
	var busy []route
	for from := range w.net.links {
		for to := range w.net.links[from] {
			if len(w.net.links[from][to].frames) > 0 {
				busy = append(busy, route{from, to})
			}
		}
	}
	if len(w.net.pulls) > 0 {
		busy = append(busy, route{-1, -1})
	}
	if len(busy) == 0 {
		return false
	}
	r := busy[0]
	if t != nil {
		r = rapid.SampledFrom(busy).Draw(t, "link")
	}
	if r.from < 0 {
		w.net.pull(nil)
		return true
	}
	w.net.deliver(r.from, r.to)
	if l := &w.net.links[r.from][r.to]; t != nil && rapid.IntRange(0, 4).Draw(t, "again") == 0 {
		var h wire.Header
		if _, err := wire.Decode(l.last, &h); err == nil && h.Kind == wire.Data {
			if dst, err := w.net.cores[r.to].Dest(r.from, &h, int(h.Bytes)); dst != nil || err != nil {
				w.fail("a second DATA frame gets %d bytes and error %v", len(dst), err)
			}
			return true
		}
		w.net.receive(r.from, r.to, l.last)
	}
	return true
}

// finished books the end of an operation.
func (w *randomWorld) finished(_ int, p *Op) {
	op := p.Owner.(*worldOp)
	if op.done {
		w.fail("operation %d is done twice", op.serial)
	}
	op.done = true
	switch {
	case errors.Is(op.Err, ErrCanceled):
	case op.Kind == Mprobe:
		w.held = append(w.held, op)
		w.arrivals = append(w.arrivals, op)
	case op.Kind == Recv:
		w.arrived(op)
	case op.Err != nil:
		w.fail("operation %d ends with %v", op.serial, op.Err)
	}
}

// arrived books what a receive got.
func (w *randomWorld) arrived(op *worldOp) {
	n := min(int(op.Status.Bytes), len(op.Buf))
	var cut error
	if int(op.Status.Bytes) > n {
		cut = ErrTruncated
	}
	if op.Err != cut {
		w.fail("receive %d of %d bytes into %d ends with %v", op.serial, op.Status.Bytes, len(op.Buf), op.Err)
	}
	if op.Peer != match.Any && op.Peer != op.Status.Source || op.Tag != match.Any && op.Tag != op.Status.Tag {
		w.fail("receive %d from %d with tag %d got one from %d with tag %d", op.serial, op.Peer, op.Tag, op.Status.Source, op.Status.Tag)
	}
	if op.serial >= 0 {
		w.arrivals = append(w.arrivals, op)
	}
}

// resolve finds the send of each receive. One that says nothing of its content
// is, of those that are left, the first with its envelope.
func (w *randomWorld) resolve() {
	for i, op := range w.arrivals {
		if op.Kind == Mprobe {
			w.arrivals[i] = op.via
		}
	}
	for _, op := range w.arrivals {
		if min(int(op.Status.Bytes), len(op.Buf)) > 0 {
			w.resolveOne(op)
		}
	}
	for _, op := range w.arrivals {
		if min(int(op.Status.Bytes), len(op.Buf)) == 0 {
			w.resolveOne(op)
		}
	}
}

func (w *randomWorld) resolveOne(op *worldOp) {
	from := int(op.Ctx.comm.members[op.Status.Source])
	n := min(int(op.Status.Bytes), len(op.Buf))
	for _, s := range w.sends {
		if s.matched || s.rank != from || s.comm != op.comm || s.Tag != op.Status.Tag || len(s.Buf) != int(op.Status.Bytes) ||
			int(s.Ctx.comm.members[s.Peer]) != op.rank {
			continue
		}
		if s.done && errors.Is(s.Err, ErrCanceled) || string(s.Buf[:n]) != string(op.Buf[:n]) {
			continue
		}
		s.matched, op.received = true, s
		return
	}
	w.fail("receive %d has %d bytes from %d that nobody sent, or that were received before", op.serial, op.Status.Bytes, from)
}

// invariants holds at any time.
func (w *randomWorld) invariants() {
	for r, c := range w.net.cores {
		var held int64
		for p := range c.peers {
			peer := &c.peers[p]
			if peer.credit < 0 || peer.credit > w.window || peer.owed < 0 || peer.room < 0 || peer.room+peer.owed > w.window {
				w.fail("rank %d, peer %d: credit %d, room %d, owed %d of %d", r, p, peer.credit, peer.room, peer.owed, w.window)
			}
			held += w.window - peer.room - peer.owed
			if (peer.queue.head == nil) != (peer.queue.tail == nil) {
				w.fail("rank %d, peer %d: broken queue", r, p)
			}
			if peer.queue.head != nil && peer.credit >= messageCost {
				w.fail("rank %d: a send to %d waits with %d bytes of credit", r, p, peer.credit)
			}
		}
		if c.Stats.UnexpectedBytes < 0 || c.Stats.UnexpectedBytes > w.window*int64(len(c.peers)) {
			w.fail("rank %d holds %d unexpected bytes", r, c.Stats.UnexpectedBytes)
		}
		if own := &c.peers[r]; held+w.window-own.credit < c.Stats.UnexpectedBytes {
			w.fail("rank %d holds %d unexpected bytes, and %d are paid for", r, c.Stats.UnexpectedBytes, held)
		}
	}
}

// order checks that messages of one sender to one receiver were received in the
// order of sending as far as receives could match both: for any two receives
// posted in order, whose messages each would have matched, they did not cross.
func (w *randomWorld) order(t *rapid.T) {
	fits := func(r *worldOp, s *worldOp) bool {
		src := int32(slices.Index(r.Ctx.comm.members, int32(s.rank)))
		return (r.Peer == match.Any || r.Peer == src) && (r.Tag == match.Any || r.Tag == s.Tag)
	}
	for i, a := range w.recvs {
		for _, b := range w.recvs[i+1:] {
			if a.received == nil || b.received == nil || a.serial < 0 || b.serial < 0 || a.rank != b.rank || a.comm != b.comm {
				continue
			}
			x, y := a.received, b.received
			if x.rank == y.rank && fits(a, y) && fits(b, x) && x.serial > y.serial {
				t.Fatalf("receives %d and %d got messages %d and %d from rank %d in the wrong order", a.serial, b.serial, x.serial, y.serial, x.rank)
			}
		}
	}
}

// settle receives all that is left, and checks that nothing remains.
func (w *randomWorld) settle(t *rapid.T) {
	for w.move(nil) {
	}
	for _, op := range slices.Concat(w.recvs, w.probes) {
		if !op.done {
			w.net.cores[op.rank].Cancel(&op.Op)
			w.net.act(op.rank)
		}
	}
	for range 2*len(w.sends) + 1 {
		for w.move(nil) {
		}
		for len(w.held) > 0 {
			probe := w.held[0]
			w.held = w.held[1:]
			w.drain(probe.rank, probe.comm, probe)
		}
		for r, comms := range w.comms {
			for c, m := range comms {
				for m.P2P.queue.Messages() > 0 {
					w.drain(r, c, nil)
				}
			}
		}
	}
	w.resolve()
	if w.err != nil {
		t.Fatal(w.err)
	}
	for _, s := range w.sends {
		switch canceled := errors.Is(s.Err, ErrCanceled); {
		case !s.done:
			t.Fatalf("send %d is not done", s.serial)
		case canceled == s.matched:
			t.Fatalf("send %d: withdrawn %v, received %v", s.serial, canceled, s.matched)
		}
	}
	for _, r := range w.recvs {
		if !r.done {
			t.Fatalf("receive %d is not done", r.serial)
		}
	}
	for r, c := range w.net.cores {
		if left := c.leftovers(); len(left) > 0 {
			t.Fatalf("rank %d still holds %q", r, left)
		}
		for p := range c.peers {
			if got := c.peers[p].credit + w.net.cores[p].peers[r].owed; p != r && got != w.window {
				t.Fatalf("rank %d has credit for %d bytes at %d, of %d", r, got, p, w.window)
			}
			if got := c.peers[p].room + c.peers[p].owed; got != w.window {
				t.Fatalf("rank %d has room for %d bytes from %d, of %d", r, got, p, w.window)
			}
		}
		if got := c.peers[r].credit; got != w.window {
			t.Fatalf("rank %d has credit for %d bytes with itself, of %d", r, got, w.window)
		}
		for m, i := c.free.list, 0; i < len(m); i++ {
			if m[i].local != nil || len(m[i].data) != 0 || m[i].node.Queued() || slices.Contains(m[i+1:], m[i]) {
				t.Fatalf("rank %d: the pool of messages is broken", r)
			}
		}
	}
}

// drain receives one message, which a probe may hold, with a receive that takes
// anything.
func (w *randomWorld) drain(rank, comm int, probe *worldOp) {
	op := &worldOp{rank: rank, comm: comm, serial: w.posted}
	w.posted++
	op.Owner, op.Kind, op.Type, op.Ctx = op, Recv, 7, w.comms[rank][comm].P2P
	op.Peer, op.Tag, op.Buf = match.Any, match.Any, make([]byte, 1000)
	w.recvs = append(w.recvs, op)
	if probe != nil {
		op.serial, probe.via = -1, op
		w.net.cores[rank].PostMrecv(&op.Op, probe.Message)
	} else {
		w.net.cores[rank].PostRecv(&op.Op)
	}
	w.net.act(rank)
}

// TestRandomWorlds lets anything happen that may happen while no rank fails:
// each message is received once, in order, with its content, or is withdrawn;
// and nothing is left afterwards.
func TestRandomWorlds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newRandomWorld(t)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]int{0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 5, 5, 5, 5}).Draw(t, "step") {
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
			}
			w.invariants()
			if w.err != nil {
				t.Fatal(w.err)
			}
		}
		w.settle(t)
		w.order(t)
		if w.err != nil {
			t.Fatal(w.err)
		}
	})
}
