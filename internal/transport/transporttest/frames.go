package transporttest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

func eager(seq int) wire.Header {
	return wire.Header{Kind: wire.Eager, Ctx: 7, Src: 1, Tag: -3, Type: 0xdeadbeef, Seq: uint32(seq)}
}

func testAlone(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, _ := open(t, newWorld, 1)
	d := nodes[0]
	if d.Name() == "" {
		t.Error("the transport has no name")
	}
	if d.MaxEager() < 1024 {
		t.Errorf("MaxEager is %d; small messages need at least 1024", d.MaxEager())
	}
	if n := d.Poll(d); n != 0 || d.seen != 0 {
		t.Errorf("a lonely rank polled %d reports", n)
	}
	if !d.Arm() {
		t.Error("a lonely rank cannot arm")
	}
	d.Disarm()
}

// testHeaders sends every kind with every set of extensions that it may have.
func testHeaders(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, _ := open(t, newWorld, 2)
	a, b := nodes[0], nodes[1]
	need := map[wire.Kind]wire.Flags{wire.RTS: wire.HasID | wire.HasBytes, wire.CTS: wire.HasID | wire.HasBytes,
		wire.FIN: wire.HasID, wire.Cancel: wire.HasID, wire.CancelAck: wire.HasID, wire.Credit: wire.HasBytes, wire.Waiting: wire.HasSig}
	seq := 0
	for kind := wire.Eager; kind <= wire.Waiting; kind++ {
		if kind == wire.Data { // goes by SendBulk, see testBulk
			continue
		}
		for f := wire.Flags(0); f < wire.Sync*2; f++ {
			if f&need[kind] != need[kind] || f&wire.Sync != 0 && (kind != wire.Eager || f&wire.HasID == 0) {
				continue
			}
			seq++
			h := wire.Header{Kind: kind, Flags: f, Ctx: 1 << 31, Src: int32(seq), Tag: -1 << 31, Type: 3, Seq: uint32(seq),
				ID: 1<<32 - 1, Reply: 5, Bytes: wire.MaxBytes, Region: wire.Region{Kind: 8, Key: 9, Addr: 1<<64 - 2},
				Sig: wire.Signature{Op: 255, Root: -1, Type: 77, Seq: 1 << 30, Count: 1<<64 - 1}}
			payload := pattern(seq%5, uint32(seq))
			keep := h
			must(t, a.send(1, &h, payload, b))
			if h != keep {
				t.Fatalf("Send changed the header: %+v, was %+v", h, keep)
			}
			must(t, until("frame has not come", func() bool { return len(b.got[0]) > 0 }, a, b))
			e, _ := b.take(0)
			must(t, e.expect(keep, payload, false))
		}
	}
}

// testSizes sends every interesting length and overwrites the payload at once.
func testSizes(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, _ := open(t, newWorld, 2)
	a, b := nodes[0], nodes[1]
	limit := a.MaxEager()
	var sizes []int
	for n := range 300 {
		sizes = append(sizes, n)
	}
	for n := 512; n < limit; n *= 2 {
		sizes = append(sizes, n-1, n, n+1)
	}
	sizes = append(sizes, limit-1, limit)
	for round, h := range []wire.Header{eager(0), {Kind: wire.Eager,
		Flags: wire.HasID | wire.HasBytes | wire.HasRegion | wire.HasSig | wire.Sync, ID: 3, Bytes: 4, Sig: wire.Signature{Op: 9}}} {
		for _, n := range sizes {
			h.Seq++
			p := pattern(n, uint32(n+round))
			must(t, a.send(1, &h, p, b))
			clear(p)
			must(t, until("frame has not come", func() bool { return len(b.got[0]) > 0 }, a, b))
			e, _ := b.take(0)
			must(t, e.expect(h, pattern(n, uint32(n+round)), false))
		}
	}
	h := eager(0)
	if err := a.Send(1, &h, make([]byte, limit+1)); err == nil || errors.Is(err, transport.ErrAgain) {
		t.Errorf("Send of MaxEager+1 bytes returned %v, want an error that says the limit", err)
	}
}

// testOrder streams mixed sizes through one pair in both directions at once.
func testOrder(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	const frames = 3000
	nodes, _ := open(t, newWorld, 2)
	limit := nodes[0].MaxEager()
	size := func(i int) int {
		switch {
		case i%97 == 0:
			return limit
		case i%31 == 0:
			return i * 7919 % limit
		}
		return i * 13 % 120
	}
	pat := pattern(limit, 5)
	parallel(t, nodes, func(d *node) error {
		peer := 1 - d.rank
		got := 0
		check := func() error {
			for {
				e, ok := d.take(peer)
				if !ok {
					return nil
				}
				if err := e.expect(eager(got), pat[:size(got)], false); err != nil {
					return fmt.Errorf("rank %d, frame %d: %w", d.rank, got, err)
				}
				got++
			}
		}
		for i := range frames {
			h := eager(i)
			if err := errors.Join(d.send(peer, &h, pat[:size(i)]), check()); err != nil {
				return err
			}
		}
		for got < frames {
			if err := errors.Join(until("frames are missing", func() bool { return len(d.got[peer]) > 0 }, d), check()); err != nil {
				return err
			}
		}
		return nil
	})
}

// testBackPressure fills the path to a rank that does not poll, finds ErrAgain
// within bounded memory, then loses nothing.
func testBackPressure(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, _ := open(t, newWorld, 2)
	a, b := nodes[0], nodes[1]
	introduce(t, a, b)
	for round := range 3 {
		p := pattern([]int{a.MaxEager(), 8, 1000}[round], uint32(round))
		first := eager(0)
		must(t, a.send(1, &first, p, b)) // room from before comes once b polls
		sent := 1
		for ; ; sent++ {
			h := eager(sent)
			err := a.Send(1, &h, p)
			if errors.Is(err, transport.ErrAgain) {
				// A transport over sockets may need a Poll to move on.
				if _, err := a.poll(); err != nil {
					t.Fatal(err)
				}
				if err = a.Send(1, &h, p); errors.Is(err, transport.ErrAgain) {
					break
				}
			}
			must(t, err)
			if sent*(len(p)+24) > 1<<28 {
				t.Fatal("256 MiB went to a rank that does not poll: there is no back-pressure")
			}
		}
		h := eager(sent)
		must(t, a.send(1, &h, p, b)) // room comes once b polls
		must(t, until("frames are missing", func() bool { return len(b.got[0]) > sent }, a, b))
		for i := range sent + 1 {
			e, _ := b.take(0)
			must(t, e.expect(eager(i), p, false))
		}
		if _, ok := b.take(0); ok {
			t.Fatal("a refused frame was sent all the same")
		}
	}
}

// testAllToAll has every rank send to every other at once, small and bulk mixed.
func testAllToAll(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	for _, n := range []int{1, 2, 3, 5, 8} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			const frames = 120
			nodes, _ := open(t, newWorld, n)
			limit := nodes[0].MaxEager()
			kind := func(i int) (size int, bulk bool) {
				if i%40 == 7 {
					return 200_000 + i, true
				}
				return i * 511 % min(limit, 3000), false
			}
			pat := pattern(201_000, 11)
			parallel(t, nodes, func(d *node) error {
				for i := range frames {
					for j := 1; j < n; j++ {
						peer := (d.rank + j) % n
						size, bulk := kind(i)
						h := eager(i)
						var err error
						if bulk {
							h = data(i, size)
							err = d.bulk(peer, &h, pat[i:i+size], uint32(i))
						} else {
							err = d.send(peer, &h, pat[i:i+size])
						}
						if err != nil {
							return fmt.Errorf("rank %d to %d, frame %d: %w", d.rank, peer, i, err)
						}
					}
				}
				for j := 1; j < n; j++ {
					peer := (d.rank + j) % n
					if err := until("frames are missing", func() bool { return len(d.got[peer]) >= frames && len(d.sent[peer]) >= 3 }, d); err != nil {
						return err
					}
					for i := range frames {
						e, _ := d.take(peer)
						size, bulk := kind(i)
						h := eager(i)
						if bulk {
							h = data(i, size)
						}
						if err := e.expect(h, pat[i:i+size], bulk); err != nil {
							return fmt.Errorf("rank %d from %d, frame %d: %w", d.rank, peer, i, err)
						}
					}
				}
				return nil
			})
		})
	}
}
