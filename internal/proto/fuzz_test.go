package proto

import (
	"bytes"
	"errors"
	"testing"

	"github.com/weft-hpc/weft/internal/match"
	"github.com/weft-hpc/weft/internal/wire"
)

// victim is rank 1 of three, in the middle of operations with ranks 0 and 2.
type victim struct {
	*Core
	foe, friend []*Op // operations with rank 0, and with rank 2
	shared      []*Op // from any
}

func newVictim() *victim {
	v := &victim{Core: New(Config{Rank: 1, Size: 3, Window: 512})}
	for p := range 3 {
		v.SetLimits(p, 100, 200)
	}
	world := v.Open(ContextID(0, 1), []int32{0, 1, 2}, 1)
	v.Open(ContextID(1, 5), []int32{1, 2}, 0) // rank 0 is not in it
	v.BeginCollective(world.Coll, wire.Signature{Op: 1, Seq: 1, Count: 1})
	for i, peer := range []int32{0, 2} {
		list := []*[]*Op{&v.foe, &v.friend}[i]
		fill := byte(0x10 + peer)
		for _, op := range []*Op{
			{Kind: Send, Buf: bytes.Repeat([]byte{fill}, 150)},
			{Kind: Ssend, Buf: bytes.Repeat([]byte{fill}, 50)},
			{Kind: Recv, Tag: 1, Buf: make([]byte, 150)},
			{Kind: Recv, Tag: 2, Buf: make([]byte, 150)},
			{Kind: Mprobe, Tag: 3},
		} {
			op.Ctx, op.Peer = world.P2P, peer
			if op.Kind == Send || op.Kind == Ssend {
				v.PostSend(op)
			} else if op.Kind == Recv {
				v.PostRecv(op)
			} else {
				v.PostProbe(op)
			}
			*list = append(*list, op)
		}
	}
	op := &Op{Kind: Recv, Ctx: world.Coll, Peer: match.Any, Tag: match.Any, Buf: make([]byte, 10)}
	v.PostRecv(op)
	v.shared = append(v.shared, op)
	// Rank 2 has offered a message, and waits for the data of its receive.
	for _, h := range []wire.Header{
		{Kind: wire.RTS, Flags: wire.HasID | wire.HasBytes, Ctx: ContextID(0, 1), Src: 2, Tag: 1, ID: 77, Bytes: 150},
		{Kind: wire.RTS, Flags: wire.HasID | wire.HasBytes, Ctx: ContextID(0, 1), Src: 2, Tag: 9, ID: 78, Bytes: 150, Seq: 1},
	} {
		if err := v.Frame(2, &h, nil); err != nil {
			panic(err)
		}
	}
	v.Taken()
	return v
}

// FuzzFrame has rank 0 send anything. The core never panics; what it does
// concerns rank 0 only, and a frame that breaks the protocol is an error.
//
// Each frame is ten bytes of input: kind, flags, context, source and tag, id
// and reply, bytes, payload, sequence, signature, and a spare one.
func FuzzFrame(f *testing.F) {
	for k := wire.Eager; k <= wire.Waiting; k++ {
		f.Add([]byte{byte(k), 3, 0, 0x10, 0x01, 100, 50, 0, 0, 0})
		f.Add([]byte{byte(k), 15, 1, 0x10, 0x10, 150, 150, 0, 1, 0, byte(k), 3, 2, 0x20, 0x02, 0, 0, 0, 0, 0})
	}
	f.Add([]byte{byte(wire.RTS), 3, 0, 0x10, 0x05, 150, 0, 0, 0, 0, byte(wire.Data), 3, 0, 0, 0x04, 150, 150, 0, 0, 0})
	f.Add([]byte{byte(wire.CTS), 3, 0, 0, 0x00, 150, 0, 0, 0, 0, byte(wire.Goodbye), 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		v := newVictim()
		var seq uint32
		gone := false
		for ; len(in) >= 10; in = in[10:] {
			h := wire.Header{
				Kind: wire.Kind(in[0]), Flags: wire.Flags(in[1]) & 0x1f, Type: 0,
				Ctx: []uint32{ContextID(0, 1), ContextID(0, 1) | collective, ContextID(1, 5), ContextID(1, 4),
					ContextID(1, 6), ContextID(0, 0), ContextID(9, 9), ContextID(MaxComms-1, 65535)}[in[2]&7],
				Src: int32(in[3]&0xf) - 1, Tag: int32(in[3]>>4) - 1,
				ID: uint32(in[4]&0xf) | 1<<indexBits, Reply: uint32(in[4] >> 4),
				Bytes: uint64(in[5]),
				Seq:   seq + uint32(int32(int8(in[7]))/64),
				Sig:   wire.Signature{Op: 1, Seq: 1, Count: uint64(in[8])},
			}
			if in[9] > 250 {
				h.ID, h.Bytes = 0, wire.MaxBytes
			}
			if h.Kind == wire.Data && h.Flags&wire.HasID == 0 {
				continue // wire refuses it
			}
			payload := bytes.Repeat([]byte{0x66}, int(in[6]))
			var enc [wire.MaxSize]byte
			if _, err := wire.Decode(enc[:h.Encode(enc[:])], &h); err != nil {
				continue
			}
			if h.Seq == seq {
				seq++
			}
			var err error
			if h.Kind == wire.Data {
				var buf []byte
				if buf, err = v.Dest(0, &h, len(payload)); buf != nil {
					copy(buf, payload)
					v.Landed(0, &h)
				}
			} else {
				err = v.Frame(0, &h, payload)
			}
			if gone && err != nil {
				t.Fatalf("a frame of a rank that is gone is read: %v", err)
			}
			if err != nil {
				v.Lost(0, err)
			}
			gone = v.Core.Gone(0) != nil
			v.check(t)
		}
		v.PeerDown(0, errors.New("the end"))
		v.check(t)
		for _, op := range v.foe {
			if op.state != done {
				t.Fatalf("an operation with rank 0 is %s at the end", stateNames[op.state])
			}
		}
		if bytes := v.Stats.UnexpectedBytes; bytes < 0 || bytes > 512 {
			t.Fatalf("%d unexpected bytes", bytes)
		}
	})
}

// check looks at what came of a frame of rank 0.
func (v *victim) check(t *testing.T) {
	revoked := v.foe[0].Ctx.comm.revoked != nil
	for i := range v.Out {
		a := &v.Out[i]
		switch {
		case a.Peer == 2 && revoked && (a.Header.Kind == wire.Revoke || a.Header.Kind == wire.Cancel || a.Header.Kind == wire.CancelAck || a.Header.Kind == wire.Credit):
			continue
		case a.Peer != 0:
			t.Fatalf("a frame of rank 0 causes a %v frame to rank %d", a.Header.Kind, a.Peer)
		case a.Kind == SendData:
			for _, b := range a.Payload {
				if b != 0x10 {
					t.Fatalf("rank 0 gets the byte %#x, which is not its", b)
				}
			}
			v.Sent(0, a.Header.Reply)
		case a.Kind == Pull:
			v.Pulled(a.Op, nil)
		}
	}
	for _, op := range v.friend {
		if op.state == done && !revoked {
			t.Fatalf("a frame of rank 0 ends an operation with rank 2: %v", op.Err)
		}
		for _, b := range op.Buf {
			if b == 0x66 {
				t.Fatal("a frame of rank 0 gets into a receive from rank 2")
			}
		}
	}
	v.Taken()
}
