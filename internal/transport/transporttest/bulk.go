package transporttest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

func data(seq, n int) wire.Header {
	return wire.Header{Kind: wire.Data, Flags: wire.HasID | wire.HasBytes, Ctx: 2, Src: 4, Seq: uint32(seq),
		ID: uint32(seq) + 100, Bytes: uint64(n)}
}

// testBulk sends bulk payloads of every interesting length.
func testBulk(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, _ := open(t, newWorld, 2)
	a, b := nodes[0], nodes[1]
	limit := a.MaxEager()
	for i, n := range []int{0, 1, 2, 777, limit - 1, limit, limit + 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, 99_991,
		512<<10 - 1, 512 << 10, 512<<10 + 1, 1<<20 - 1, 1<<20 + 1, 5<<20 + 3, 32 << 20} {
		h := data(i, n)
		p := pattern(n, uint32(i))
		keep := h
		must(t, a.bulk(1, &h, p, uint32(i), b))
		h.ID = 0 // the header is the caller's again
		must(t, until(fmt.Sprintf("bulk of %d bytes has not come", n), func() bool {
			return len(b.got[0]) > 0 && len(a.sent[1]) > 0
		}, a, b))
		e, _ := b.take(0)
		must(t, e.expect(keep, pattern(n, uint32(i)), true))
		if len(a.sent[1]) != 1 || a.sent[1][0] != uint32(i) {
			t.Fatalf("bulk of %d bytes with token %d: Sent reported %v", n, i, a.sent[1])
		}
		a.sent[1] = nil
	}
	if len(b.got[0]) != 0 || b.seen != 18 {
		t.Fatalf("18 bulk payloads made %d reports", b.seen)
	}
}

// testBulkDiscard refuses every other payload: it is read and thrown away.
func testBulkDiscard(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, _ := open(t, newWorld, 2)
	a, b := nodes[0], nodes[1]
	b.dest = func(_ int, h *wire.Header, n int) []byte {
		if h.Seq%2 == 0 {
			return nil
		}
		return make([]byte, n+5) // longer than asked for is allowed
	}
	seq := 0
	for _, n := range []int{0, 1, a.MaxEager(), a.MaxEager() + 1, 700_001} {
		for range 2 {
			h := data(seq, n)
			must(t, a.bulk(1, &h, pattern(n, uint32(seq)), uint32(seq), b))
			seq++
		}
	}
	h := eager(seq)
	must(t, a.send(1, &h, nil, b))
	must(t, until("payloads are missing", func() bool { return len(b.got[0]) >= 6 && len(a.sent[1]) == seq }, a, b))
	for i := 1; i < seq; i += 2 {
		e, _ := b.take(0)
		n := int(e.h.Bytes)
		if len(e.data) < n {
			t.Fatalf("bulk %d has %d bytes", i, len(e.data))
		}
		e.data = e.data[:n]
		must(t, e.expect(data(i, n), pattern(n, uint32(i)), true))
	}
	e, _ := b.take(0)
	must(t, e.expect(h, nil, false))
}

// testBulkOrder alternates Send and SendBulk: what was sent later is reported
// later, and a frame never overtakes a payload (node checks that as well).
func testBulkOrder(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, _ := open(t, newWorld, 2)
	sizes := []int{300_000, 0, 1, 70_000, 5, 1 << 20, 65_536, 0}
	pat := pattern(1<<20, 3)
	a, b := nodes[0], nodes[1]
	seq := 0
	for round := range 4 {
		for _, n := range sizes {
			h := data(seq, n)
			must(t, a.bulk(1, &h, pat[:n], uint32(seq), b))
			seq++
			for i := range round {
				h := eager(seq)
				must(t, a.send(1, &h, pat[:i*1000], b))
				seq++
			}
		}
	}
	must(t, until("frames are missing", func() bool { return len(b.got[0]) == seq && len(a.sent[1]) == 4*len(sizes) }, a, b))
	seq = 0
	slices.Sort(a.sent[1]) // payloads may become free in any order
	for round := range 4 {
		for _, n := range sizes {
			e, _ := b.take(0)
			must(t, e.expect(data(seq, n), pat[:n], true))
			if a.sent[1][0] != uint32(seq) {
				t.Fatalf("Sent reported token %d, want %d", a.sent[1][0], seq)
			}
			a.sent[1] = a.sent[1][1:]
			seq++
			for i := range round {
				e, _ := b.take(0)
				must(t, e.expect(eager(seq), pat[:i*1000], false))
				seq++
			}
		}
	}
}

// testBulkQueue hands over bulk payloads until there is no room. The receiver
// does not poll meanwhile.
func testBulkQueue(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, _ := open(t, newWorld, 2)
	a, b := nodes[0], nodes[1]
	introduce(t, a, b)
	p := pattern(100_001, 9)
	first := data(0, len(p))
	must(t, a.bulk(1, &first, p, 0, b))
	sent := 1
	for ; sent < 300; sent++ {
		h := data(sent, len(p))
		err := a.SendBulk(1, &h, p, uint32(sent))
		if errors.Is(err, transport.ErrAgain) {
			break
		}
		must(t, err)
	}
	must(t, until("payloads are missing", func() bool { return len(b.got[0]) == sent && len(a.sent[1]) == sent }, a, b))
	for i := range sent {
		e, _ := b.take(0)
		must(t, e.expect(data(i, len(p)), p, true))
	}
}

// testBulkBothWays exchanges bulk payloads in both directions at once.
func testBulkBothWays(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, _ := open(t, newWorld, 2)
	p := pattern(3<<20+1, 1)
	parallel(t, nodes, func(d *node) error {
		peer := 1 - d.rank
		for i := range 3 {
			h := data(i, len(p))
			if err := d.bulk(peer, &h, p, uint32(i)); err != nil {
				return err
			}
		}
		err := until("payloads are missing", func() bool { return len(d.got[peer]) == 3 && len(d.sent[peer]) == 3 }, d)
		for i := 0; i < 3 && err == nil; i++ {
			e, _ := d.take(peer)
			err = e.expect(data(i, len(p)), p, true)
		}
		return err
	})
}
