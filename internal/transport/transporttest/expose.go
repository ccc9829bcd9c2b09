package transporttest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

// guard is how many bytes around a buffer are checked.
const guard = 64

// memories are the ways to get n bytes on a rank: from the heap, and in reach of its peers.
func memories(w *World) map[string]func(rank, n int) ([]byte, error) {
	m := map[string]func(rank, n int) ([]byte, error){"heap": func(_, n int) ([]byte, error) { return make([]byte, n), nil }}
	if w.Alloc != nil {
		m["alloc"] = w.Alloc
	}
	return m
}

// expose exposes buf of d for one frame of peer, polling d and others while there is no room.
func (d *node) expose(peer int, id uint32, buf []byte, others ...*node) (r wire.Region, err error) {
	err = again(func() (err error) {
		r, err = d.Transport.(transport.Exposer).Expose(peer, id, buf)
		return err
	}, append(others, d)...)
	return r, err
}

// dataTo is the header of a Data frame to an exposed buffer.
func dataTo(seq, n int, r wire.Region) wire.Header {
	h := data(seq, n)
	h.Flags |= wire.HasRegion
	h.Region = r
	return h
}

// expectExposed compares what came to an exposed buffer, and what must be known of its header.
func (e event) expectExposed(h wire.Header, payload []byte) error {
	known := func(h wire.Header) wire.Header {
		return wire.Header{Kind: h.Kind, Flags: wire.HasID | wire.HasBytes, Seq: h.Seq, ID: h.ID, Bytes: h.Bytes}
	}
	e.h = known(e.h)
	return e.expect(known(h), payload, true)
}

// guarded returns n bytes with a guard on both sides, which whole includes.
func guarded(alloc func(rank, n int) ([]byte, error), rank, n int) (buf, whole []byte, err error) {
	if whole, err = alloc(rank, n+2*guard); err != nil {
		return nil, nil, err
	}
	for i := range whole {
		whole[i] = 0xa5
	}
	return whole[guard : guard+n : guard+n], whole, nil
}

func checkGuard(whole []byte) error {
	for i, c := range whole {
		if (i < guard || i >= len(whole)-guard) && c != 0xa5 {
			return fmt.Errorf("byte %d of the %d around the buffer was changed to %#x", i-guard, len(whole)-2*guard, c)
		}
	}
	return nil
}

func exposers(t *testing.T, nodes []*node) bool {
	_, ok := nodes[0].Transport.(transport.Exposer)
	return ok
}

// testExpose writes payloads of every interesting length to exposed buffers, between all
// kinds of memory, with frames before and after them.
func testExpose(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, w := open(t, newWorld, 2)
	if !exposers(t, nodes) {
		return
	}
	a, b := nodes[0], nodes[1]
	seq := 0
	for fromName, from := range memories(w) {
		for toName, to := range memories(w) {
			for _, n := range []int{1, 2, 777, 4095, 4096, 4097, a.MaxEager(), 64<<10 - 1, 64 << 10, 64<<10 + 1, 256<<10 - 1, 256 << 10, 256<<10 + 1,
				1<<20 - 1, 1 << 20, 1<<20 + 1, 5<<20 + 3} {
				src, err := from(0, n+1)
				must(t, err)
				src = src[1 : 1+n] // at an odd address
				fill(src, uint32(seq))
				dst, whole, err := guarded(to, 1, n)
				must(t, err)
				r, err := b.expose(0, uint32(seq+1)+100, dst, a)
				must(t, err)
				b.dest = func(int, *wire.Header, int) []byte { return dst }
				before, h, after := eager(seq), dataTo(seq+1, n, r), eager(seq+2)
				must(t, a.send(1, &before, nil, b))
				must(t, a.bulk(1, &h, src, uint32(seq), b))
				must(t, a.send(1, &after, src[:min(n, 100)], b))
				must(t, until(fmt.Sprintf("%d bytes from %s to %s memory have not come", n, fromName, toName),
					func() bool { return len(b.got[0]) == 3 && len(a.sent[1]) > 0 }, a, b))
				e, _ := b.take(0)
				must(t, e.expect(before, nil, false))
				e, _ = b.take(0)
				if err := errors.Join(e.expectExposed(h, src), checkGuard(whole)); err != nil {
					t.Fatalf("%d bytes from %s to %s memory: %v", n, fromName, toName, err)
				}
				e, _ = b.take(0)
				must(t, e.expect(after, src[:min(n, 100)], false))
				if len(a.sent[1]) != 1 || a.sent[1][0] != uint32(seq) {
					t.Fatalf("Sent reported %v, want %d", a.sent[1], seq)
				}
				a.sent[1] = nil
				seq += 3
			}
		}
	}
}

// testExposeMany exposes as much as there is room for, and uses it in another order.
func testExposeMany(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, w := open(t, newWorld, 2)
	if !exposers(t, nodes) {
		return
	}
	a, b := nodes[0], nodes[1]
	introduce(t, a, b)
	alloc := w.Alloc
	if alloc == nil {
		alloc = memories(w)["heap"]
	}
	const n = 70_000
	bufs := map[uint32][]byte{}
	b.dest = func(_ int, h *wire.Header, _ int) []byte { return bufs[h.ID] }
	seq := 0
	for range 4 {
		type target struct {
			id uint32
			r  wire.Region
		}
		var open []target
		for len(open) < 1000 {
			buf, err := alloc(1, n)
			must(t, err)
			id := uint32(seq+len(open)) + 100
			r, err := b.Transport.(transport.Exposer).Expose(0, id, buf)
			if errors.Is(err, transport.ErrAgain) {
				break
			}
			must(t, err)
			bufs[id] = buf
			open = append(open, target{id, r})
		}
		if len(open) == 0 {
			t.Fatal("no room to expose a single buffer")
		}
		slices.Reverse(open)
		for i, o := range open {
			h := dataTo(int(o.id)-100, n-i, o.r) // less than was exposed is allowed
			must(t, a.bulk(1, &h, pattern(n-i, o.id), o.id, b))
		}
		must(t, until("payloads are missing", func() bool { return len(b.got[0]) == len(open) && len(a.sent[1]) == len(open) }, a, b))
		for i, o := range open {
			e, _ := b.take(0)
			e.data = e.data[:n-i]
			must(t, e.expectExposed(dataTo(int(o.id)-100, n-i, o.r), pattern(n-i, o.id)))
		}
		a.sent[1] = nil
		seq += len(open)
	}
}

// testExposeBothWays has all ranks write to each other, small frames in between.
func testExposeBothWays(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	const ranks, rounds = 3, 12
	nodes, w := open(t, newWorld, ranks)
	if !exposers(t, nodes) {
		return
	}
	size := func(i int) int { return []int{100, 70_001, 300_007, 1_200_000}[i%4] }
	mem := memories(w)
	bufs := make([][][]byte, ranks)         // of each rank, by peer and round
	regions := make([][]wire.Region, ranks) // by rank and peer
	for _, d := range nodes {
		bufs[d.rank], regions[d.rank] = make([][]byte, ranks*rounds), make([]wire.Region, ranks)
		for peer := range ranks {
			for i := range rounds {
				kind := "heap"
				if mem["alloc"] != nil && i%2 == 0 {
					kind = "alloc"
				}
				buf, err := mem[kind](d.rank, size(i))
				must(t, err)
				bufs[d.rank][peer*rounds+i] = buf
			}
			if peer == d.rank {
				continue
			}
			introduce(t, d, nodes[peer])
		}
	}
	for _, d := range nodes {
		d.dest = func(peer int, h *wire.Header, _ int) []byte { return bufs[d.rank][peer*rounds+int(h.ID)-100] }
	}
	for i := range rounds {
		n := size(i)
		for _, d := range nodes {
			for peer := range ranks {
				if peer != d.rank {
					r, err := d.expose(peer, uint32(i)+100, bufs[d.rank][peer*rounds+i], nodes...)
					must(t, err)
					regions[d.rank][peer] = r
				}
			}
		}
		parallel(t, nodes, func(d *node) error {
			p := pattern(n, uint32(i+100*d.rank))
			for j := 1; j < ranks; j++ {
				peer := (d.rank + j) % ranks
				h, f := dataTo(i, n, regions[peer][d.rank]), eager(i)
				if err := errors.Join(d.bulk(peer, &h, p, uint32(i)), d.send(peer, &f, p[:50])); err != nil {
					return err
				}
			}
			for j := 1; j < ranks; j++ {
				peer := (d.rank + j) % ranks
				if err := until("frames are missing", func() bool { return len(d.got[peer]) == 2 && len(d.sent[peer]) == i+1 }, d); err != nil {
					return err
				}
				p := pattern(n, uint32(i+100*peer))
				e, _ := d.take(peer)
				f, _ := d.take(peer)
				if err := errors.Join(e.expectExposed(dataTo(i, n, regions[d.rank][peer]), p), f.expect(eager(i), p[:50], false)); err != nil {
					return fmt.Errorf("rank %d from %d, round %d: %w", d.rank, peer, i, err)
				}
			}
			return nil
		})
	}
}

// testExposePeerDown: a peer dies while it may write, or writes. After PeerDown
// nothing changes in the buffer any more, and nothing is reported.
func testExposePeerDown(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	for _, kind := range []string{"heap", "alloc"} {
		for _, dead := range []string{"sender, before", "sender, meanwhile", "receiver"} {
			t.Run(kind+", "+dead, func(t *testing.T) {
				nodes, w := open(t, newWorld, 2)
				alloc := memories(w)[kind]
				if !exposers(t, nodes) || alloc == nil {
					return
				}
				a, b := nodes[0], nodes[1]
				introduce(t, a, b)
				src, err := alloc(0, 24<<20)
				must(t, err)
				fill(src, 3)
				dst, err := alloc(1, len(src))
				must(t, err)
				r, err := b.expose(0, 107, dst, a)
				must(t, err)
				b.dest = func(int, *wire.Header, int) []byte { return dst }
				if dead != "sender, before" {
					h := dataTo(7, len(src), r)
					must(t, a.bulk(1, &h, src, 7, b))
				}
				if dead == "receiver" {
					kill(w, b)
					must(t, until("the death was not reported", func() bool { return a.down[1] != nil || len(a.sent[1]) > 0 }, a))
					return
				}
				kill(w, a)
				must(t, until("the death was not reported", func() bool { return b.down[0] != nil }, b))
				if len(b.got[0]) > 0 { // it had come before
					return
				}
				fill(dst, 9)
				seen := b.seen
				for range 200 {
					_, err := b.poll()
					must(t, err)
				}
				if err := same(dst, pattern(len(dst), 9)); err != nil || b.seen != seen {
					t.Errorf("after PeerDown: %d reports, buffer: %v", b.seen-seen, err)
				}
			})
		}
	}
}
