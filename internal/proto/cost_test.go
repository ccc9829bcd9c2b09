package proto

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/weft-hpc/weft/internal/match"
	"github.com/weft-hpc/weft/internal/wire"
)

// pair is two cores joined by function calls, for measurements.
type pair struct {
	cores [2]*Core
	comms [2]*Comm
	seq   [2]uint32
	done  int
}

func newPair(window int64, eagerMax int) *pair {
	p := new(pair)
	for r := range p.cores {
		p.cores[r] = New(Config{Rank: r, Size: 2, Window: window})
		p.cores[r].SetLimits(1-r, eagerMax, eagerMax)
		p.comms[r] = p.cores[r].Open(ContextID(0, 1), []int32{0, 1}, r)
	}
	return p
}

// run carries actions out until there are none.
func (p *pair) run() {
	for len(p.cores[0].Out)+len(p.cores[0].Done)+len(p.cores[1].Out)+len(p.cores[1].Done) > 0 {
		for r, c := range p.cores {
			peer := p.cores[1-r]
			for i := range c.Out {
				p.carryOut(r, peer, &c.Out[i])
			}
			p.done += len(c.Done)
			c.Taken()
		}
		// What the actions led to before Taken is not lost: Sent and Pulled come after.
		p.later()
	}
}

func (p *pair) carryOut(r int, peer *Core, a *Action) {
	a.Header.Seq = p.seq[r]
	switch a.Kind {
	case Pull:
		pulled = append(pulled, later{core: p.cores[r], op: a.Op})
		copy(a.Payload, pullSource)
		return
	case SendData:
		buf, err := peer.Dest(r, &a.Header, len(a.Payload))
		if err != nil {
			panic(err)
		}
		copy(buf, a.Payload)
		peer.Landed(r, &a.Header)
		pulled = append(pulled, later{core: p.cores[r], peer: 1 - r, token: a.Header.Reply})
	default:
		if a.Kind == SendCTS {
			a.Payload = nil
		}
		if err := peer.Frame(r, &a.Header, a.Payload); err != nil {
			panic(err)
		}
		if a.Op != nil {
			p.done++
		}
	}
	p.seq[r]++
}

type later struct {
	core  *Core
	op    *Op
	peer  int
	token uint32
}

var (
	pulled     []later
	pullSource []byte
)

func (p *pair) later() {
	for _, l := range pulled {
		if l.op != nil {
			l.core.Pulled(l.op, nil)
		} else {
			l.core.Sent(l.peer, l.token)
		}
	}
	pulled = pulled[:0]
}

// steady is every way in which a message may travel. It allocates nothing once
// the core has seen a few.
var steady = []struct {
	name       string
	bytes      int
	kind       Kind
	unexpected bool
	region     bool
	signed     bool
	self       bool
	src, tag   int32
}{
	{name: "empty"},
	{name: "eager", bytes: 100},
	{name: "eager from any", bytes: 100, src: match.Any, tag: match.Any},
	{name: "eager unexpected", bytes: 100, unexpected: true},
	{name: "eager signed", bytes: 100, signed: true},
	{name: "eager signed unexpected", bytes: 100, signed: true, unexpected: true},
	{name: "synchronous", bytes: 100, kind: Ssend},
	{name: "synchronous unexpected", bytes: 100, kind: Ssend, unexpected: true},
	{name: "rendezvous by data", bytes: 5000},
	{name: "rendezvous by data unexpected", bytes: 5000, unexpected: true},
	{name: "rendezvous by pull", bytes: 5000, region: true},
	{name: "rendezvous by pull unexpected", bytes: 5000, region: true, unexpected: true},
	{name: "self", bytes: 100, self: true},
	{name: "self unexpected", bytes: 100, self: true, unexpected: true},
	{name: "self waiting", bytes: 50_000, self: true, unexpected: true},
}

func TestNoAllocation(t *testing.T) {
	for _, tt := range steady {
		t.Run(tt.name, func(t *testing.T) {
			once, check := exchange(newPair(1<<16, 1024), tt.bytes, max(tt.kind, Send), tt.unexpected, tt.region, tt.signed, tt.self, tt.src, tt.tag)
			for range 2000 { // more than one window, and more than one generation of ids
				once()
			}
			if n := testing.AllocsPerRun(200, once); n != 0 {
				t.Errorf("%v allocations for each message", n)
			}
			check(t)
		})
	}
}

// exchange returns a function that sends and receives one message, and one
// that checks what came of it.
func exchange(p *pair, size int, kind Kind, unexpected, region, signed, self bool, src, tag int32) (once func(), check func(testing.TB)) {
	to := 1
	if self {
		to = 0
	}
	if src == 0 && tag == 0 {
		tag = 3
	}
	send := &Op{Kind: kind, Ctx: p.comms[0].P2P, Peer: int32(to), Tag: 3, Buf: bytes.Repeat([]byte("weft"), size/4), HasRegion: region, Signed: signed, Sig: wire.Signature{Seq: 1}}
	recv := &Op{Kind: Recv, Ctx: p.comms[to].P2P, Peer: src, Tag: tag, Buf: make([]byte, size/4*4), Signed: signed, Sig: wire.Signature{Seq: 1}}
	pullSource = send.Buf
	messages := 0
	once = func() {
		messages++
		if unexpected {
			p.cores[0].PostSend(send)
			p.run()
		}
		p.cores[to].PostRecv(recv)
		if !unexpected {
			p.cores[0].PostSend(send)
		}
		p.run()
	}
	check = func(t testing.TB) {
		if p.done != 2*messages || send.Err != nil || recv.Err != nil || !bytes.Equal(send.Buf, recv.Buf) {
			t.Errorf("%d of %d operations are done, errors %v and %v, content equal: %v",
				p.done, 2*messages, send.Err, recv.Err, bytes.Equal(send.Buf, recv.Buf))
		}
		for r, c := range p.cores {
			if left := c.leftovers(); len(left) > 0 {
				t.Errorf("rank %d still holds %q", r, left)
			}
		}
	}
	return once, check
}

func BenchmarkMessage(b *testing.B) {
	for _, tt := range steady {
		b.Run(tt.name, func(b *testing.B) {
			once, check := exchange(newPair(1<<16, 1024), tt.bytes, max(tt.kind, Send), tt.unexpected, tt.region, tt.signed, tt.self, tt.src, tt.tag)
			for b.Loop() {
				once()
			}
			check(b)
		})
	}
}

// TestPeerSize bounds what a rank keeps for each peer of the world, whether they
// talk or not: at 10,000 ranks, with 64 ranks on a host, 80 bytes make 51 MB on
// that host, and a few hundred would make as much as a small host's caches.
func TestPeerSize(t *testing.T) {
	if n := reflect.TypeFor[peer]().Size(); n > 80 {
		t.Errorf("a peer takes %d bytes, the limit is 80", n)
	}
	if n := reflect.TypeFor[commSlot]().Size(); n > 32 {
		t.Errorf("a communicator index takes %d bytes, the limit is 32", n)
	}
	// Nothing else is made for each peer, not even by opening a communicator.
	c := New(Config{Rank: 0, Size: 1000, Window: 1024})
	members := make([]int32, 1000)
	for i := range members {
		members[i] = int32(i)
	}
	if n := testing.AllocsPerRun(10, func() { c.Close(c.Open(ContextID(0, 1), members, 0)) }); n > 8 {
		t.Errorf("a communicator of 1000 makes %v allocations", n)
	}
}

// TestCreditFrames counts the frames that carry no message: a steady stream of
// expected messages costs one CREDIT for each half window.
func TestCreditFrames(t *testing.T) {
	const window, size = 10_000, 400
	p := newPair(window, 1024)
	once, check := exchange(p, size, Send, false, false, false, false, 0, 3)
	for range 1000 {
		once()
	}
	check(t)
	if p.seq[0] != 1000 {
		t.Errorf("%d frames for 1000 messages", p.seq[0])
	}
	if most := 1000*(size+messageCost)/(window/2) + 1; p.seq[1] > uint32(most) || p.seq[1] == 0 {
		t.Errorf("%d CREDIT frames, want at most %d", p.seq[1], most)
	}
	if got := p.cores[0].Stats; got.CreditStalls != 0 || got.Eager != 1000 {
		t.Errorf("%d stalls and %d eager messages", got.CreditStalls, got.Eager)
	}
}

// TestHeaderAlias makes sure that a core keeps nothing of a frame: the
// transport uses the memory again.
func TestHeaderAlias(t *testing.T) {
	c := New(Config{Rank: 1, Size: 2, Window: 1024})
	x := c.Open(ContextID(0, 1), []int32{0, 1}, 1).P2P
	payload := []byte("weft")
	h := wire.Header{Kind: wire.Eager, Flags: wire.HasSig, Ctx: ContextID(0, 1), Tag: 1, Sig: wire.Signature{Op: 1, Seq: 1}}
	if err := c.Frame(0, &h, payload); err != nil {
		t.Fatal(err)
	}
	copy(payload, "XXXX")
	h = wire.Header{}
	op := &Op{Kind: Recv, Ctx: x, Peer: 0, Tag: 1, Buf: make([]byte, 4), Signed: true, Sig: wire.Signature{Op: 1, Seq: 1}}
	c.PostRecv(op)
	if string(op.Buf) != "weft" || op.Err != nil {
		t.Errorf("received %q, error %v", op.Buf, op.Err)
	}
}
