package verbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/rdma"
)

// raw has a send any bytes to its peer as a message: what a broken or hostile process might.
func raw(t *testing.T, a *rank, peer int, b []byte) {
	t.Helper()
	c := a.conns[peer]
	id := a.takeSend()
	copy(a.sendBuffer(id), b)
	wr := a.stage(c.eps[0], work{kind: workSlot, slot: id, n: len(b)}, rdma.Signaled)
	wr.Op = rdma.Send
	if len(b) > 0 {
		a.data(c.eps[0], wr, addressOf(a.sendBuffer(id)), len(b), c.eps[0].rail.pool.LKey())
	}
	if err := a.flush(c.eps[0]); err != nil {
		t.Fatal(err)
	}
}

// rawImm has a end a payload that nobody announced.
func rawImm(t *testing.T, a *rank, peer int, imm uint32) {
	t.Helper()
	c := a.conns[peer]
	wr := a.stage(c.eps[0], work{kind: workPlain, slot: noSlot}, rdma.Signaled)
	wr.Op, wr.Imm = rdma.WriteImm, imm
	if err := a.flush(c.eps[0]); err != nil {
		t.Fatal(err)
	}
}

// TestHostileMessages: whatever a peer sends ends at worst the connection with it.
func TestHostileMessages(t *testing.T) {
	message := func(a *rank, p prefix, body []byte) []byte {
		c := a.conns[1]
		p.length = uint32(len(body))
		if p.seq == 0 {
			p.seq = c.sendSeq
		}
		if p.credits == 0 {
			p.credits = c.returned
		}
		if p.conn == 0 {
			p.conn = c.remote
		}
		b := make([]byte, prefixSize+len(body))
		p.encode(b)
		copy(b[prefixSize:], body)
		return b
	}
	frame := func(h wire.Header) []byte {
		b := make([]byte, wire.MaxSize)
		return b[:h.Encode(b)]
	}
	le := binary.LittleEndian
	first := func(n uint64, h wire.Header, data int) []byte {
		return append(append(le.AppendUint64(nil, n), frame(h)...), make([]byte, data)...)
	}
	bulk := func(name uint32, n uint64, h wire.Header) []byte {
		return append(le.AppendUint64(le.AppendUint32(nil, name), n), frame(h)...)
	}
	data := *dataHeader(7, wire.Region{})
	for name, attack := range map[string]func(t *testing.T, a *rank, exposed uint32){
		"nothing": func(t *testing.T, a *rank, _ uint32) { raw(t, a, 1, nil) },
		"noise":   func(t *testing.T, a *rank, _ uint32) { raw(t, a, 1, []byte("0123456789abcdefghijklmnop")) },
		"another connection": func(t *testing.T, a *rank, _ uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixFrame, conn: 0xff0001}, frame(*eager(0))))
		},
		"a lost message": func(t *testing.T, a *rank, _ uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixFrame, seq: 99}, frame(*eager(0))))
		},
		"invented credits": func(t *testing.T, a *rank, _ uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixCredit, credits: 3000}, nil))
		},
		"no header": func(t *testing.T, a *rank, _ uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixFrame}, []byte{1, 2, 3}))
		},
		"lonely DATA": func(t *testing.T, a *rank, _ uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixFrame}, frame(data)))
		},
		"next without first": func(t *testing.T, a *rank, _ uint32) { raw(t, a, 1, message(a, prefix{kind: prefixNext}, []byte{1})) },
		"more than announced": func(t *testing.T, a *rank, _ uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixFirst}, first(10, data, 11)))
		},
		"huge payload": func(t *testing.T, a *rank, _ uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixFirst}, first(1<<63, data, 11)))
		},
		"first of no DATA": func(t *testing.T, a *rank, _ uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixFirst}, first(10, *eager(0), 1)))
		},
		"short first": func(t *testing.T, a *rank, _ uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixFirst}, []byte{1, 2}))
		},
		"short announcement": func(t *testing.T, a *rank, _ uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixBulk, rails: 1}, []byte{1, 2}))
		},
		"no such exposure": func(t *testing.T, a *rank, e uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixBulk, rails: 1}, bulk(e+1, 10, data)))
		},
		"exposure of before": func(t *testing.T, a *rank, e uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixBulk, rails: 1}, bulk(e+1<<indexBits, 10, data)))
		},
		"more than exposed": func(t *testing.T, a *rank, e uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixBulk, rails: 1}, bulk(e, 1<<20+1, data)))
		},
		"nothing to an exposure": func(t *testing.T, a *rank, e uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixBulk, rails: 1}, bulk(e, 0, data)))
		},
		"another frame": func(t *testing.T, a *rank, e uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixBulk, rails: 1}, bulk(e, 10, *dataHeader(8, wire.Region{}))))
		},
		"rails that are not": func(t *testing.T, a *rank, e uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixBulk, rails: 3}, bulk(e, 10, data)))
		},
		"two announcements": func(t *testing.T, a *rank, e uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixBulk, rails: 1}, bulk(e, 10, data)))
			a.conns[1].sendSeq++
			raw(t, a, 1, message(a, prefix{kind: prefixBulk, rails: 1}, bulk(e, 10, data)))
			rawImm(t, a, 1, e)
			rawImm(t, a, 1, e)
		},
		"whole payload of nothing": func(t *testing.T, a *rank, e uint32) { rawImm(t, a, 1, e|immWhole) },
		"whole payload that was announced": func(t *testing.T, a *rank, e uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixBulk, rails: 1}, bulk(e, 10, data)))
			rawImm(t, a, 1, e|immWhole)
		},
		"whole payload for another": func(t *testing.T, a *rank, e uint32) { rawImm(t, a, 1, e+1|immWhole) },
		"end of another kind":       func(t *testing.T, a *rank, e uint32) { rawImm(t, a, 1, e|8*immWhole) },
		"end of nothing":            func(t *testing.T, a *rank, e uint32) { rawImm(t, a, 1, 0xffffffff) },
		"end of another":            func(t *testing.T, a *rank, e uint32) { rawImm(t, a, 1, e+1) },
		"keys of other rails": func(t *testing.T, a *rank, _ uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixKeys}, make([]byte, 12)))
		},
		"keys of no rails": func(t *testing.T, a *rank, _ uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixKeys}, make([]byte, 3)))
		},
		"frame of other version": func(t *testing.T, a *rank, _ uint32) {
			raw(t, a, 1, message(a, prefix{kind: prefixFrame}, make([]byte, 24)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, r := ranksOf(t, 3, options{tune: quick})
			meet(t, r[0], r[1])
			meet(t, r[2], r[1])
			mem, err := w.alloc(1, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			region, err := r[1].Expose(0, 7, mem)
			if err != nil {
				t.Fatal(err)
			}
			r[1].dest = mem
			attack(t, r[0], region.Kind&nameMask)
			poll(t, "the attacked one reports it", func() bool { return r[1].down[0] != nil }, r...)
			contains(t, r[1].down[0], "rank 0", "sent what is not a message")
			if r[1].landed[0] > 0 && name != "two announcements" {
				t.Error("a payload was reported")
			}
			meet(t, r[2], r[1])
		})
	}
}

// TestKeyAfterUse: the key of a buffer opens nothing once the payload has landed, of memory
// of the heap, and once the block is freed, of the arena (ofi-cray/libfabric-cray#1000).
func TestKeyAfterUse(t *testing.T) {
	for _, kind := range []string{"heap", "arena"} {
		t.Run(kind, func(t *testing.T) {
			w, r := ranksOf(t, 2, options{tune: quick})
			meet(t, r[0], r[1])
			mem := make([]byte, 1<<20)
			if kind == "arena" {
				var err error
				if mem, err = w.alloc(1, 1<<20); err != nil {
					t.Fatal(err)
				}
			}
			region, err := r[1].Expose(0, 7, mem)
			if err != nil {
				t.Fatal(err)
			}
			r[1].dest = mem
			if err := r[0].SendBulk(1, dataHeader(7, region), make([]byte, 1<<20), 1); err != nil {
				t.Fatal(err)
			}
			poll(t, "the payload", func() bool { return r[1].landed[0] == 1 && r[0].sent[1] == 1 }, r...)
			if kind == "arena" {
				if err := r[1].Arena().Free(mem); err != nil {
					t.Fatal(err)
				}
			}
			for i := range mem {
				mem[i] = 0x5a
			}
			// The peer writes once more.
			x := r[0].newTransfer(r[0].conns[1], transferPut, make([]byte, 1000), 2)
			x.remote, x.keys[0] = region.Addr, region.Key
			r[0].conns[1].posting = x
			r[0].push(r[0].conns[1])
			poll(t, "both are told", func() bool { return r[0].down[1] != nil && r[1].down[0] != nil }, r...)
			contains(t, r[0].down[1], "REM_ACCESS_ERR", "not registered any more")
			for i, c := range mem {
				if c != 0x5a {
					t.Fatalf("byte %d was changed", i)
				}
			}
		})
	}
}

// TestLateWrite: a peer that is taken for dead goes on writing. What has landed when PeerDown says so is all that
// lands, whatever the buffer is used for then (meta-pytorch/monarch#3804, ydb-platform/nbs#5708, aws/aws-ofi-nccl#921).
func TestLateWrite(t *testing.T) {
	for _, kind := range []string{"heap", "arena"} {
		t.Run(kind, func(t *testing.T) {
			w, r := ranksOf(t, 2, options{tune: quick})
			meet(t, r[0], r[1])
			src, mem := make([]byte, 8<<20), make([]byte, 8<<20)
			if kind == "arena" {
				var err error
				if mem, err = w.alloc(1, len(mem)); err != nil {
					t.Fatal(err)
				}
			}
			for i := range src {
				src[i] = 0x77
			}
			region, err := r[1].Expose(0, 7, mem)
			if err != nil {
				t.Fatal(err)
			}
			r[1].dest = mem
			w.fabric.Hold()
			if err := r[0].SendBulk(1, dataHeader(7, region), src, 1); err != nil {
				t.Fatal(err)
			}
			for w.fabric.Step(1) > 0 && bytes.IndexByte(mem, 0x77) < 0 {
			}
			r[1].MarkDown(0, errors.New("taken for dead"))
			poll(t, "its death", func() bool { w.fabric.Step(1); return r[1].down[0] != nil }, r[1])
			if n := bytes.Count(mem, []byte{0x77}); n == 0 || n == len(mem) {
				t.Fatalf("%d of %d bytes had landed: this test wants some", n, len(mem))
			}
			for i := range mem {
				mem[i] = 0x5a
			}
			for w.fabric.Step(100) > 0 {
			}
			if n := bytes.Count(mem, []byte{0x5a}); n != len(mem) {
				t.Fatalf("%d bytes were written to memory that is the program's again", len(mem)-n)
			}
			w.fabric.Resume()
			poll(t, "the end of the other side", func() bool { return r[0].down[1] != nil }, r...)
		})
	}
}
