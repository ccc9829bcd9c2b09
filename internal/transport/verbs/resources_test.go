package verbs

import (
	"errors"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/rdma/fake"
)

// bulkOnce moves a payload of a to an exposed buffer of b.
func bulkOnce(t *testing.T, a, b *rank, src, dst []byte) {
	t.Helper()
	var region wire.Region
	if err := try(t, func() (err error) { region, err = b.Expose(a.cfg.Rank, 7, dst); return err }, a, b); err != nil {
		t.Fatal(err)
	}
	b.dest = dst
	landed, sent := b.landed[a.cfg.Rank]+1, a.sent[b.cfg.Rank]+1
	if err := try(t, func() error { return a.SendBulk(b.cfg.Rank, dataHeader(7, region), src, 1) }, a, b); err != nil {
		t.Fatal(err)
	}
	poll(t, "a payload", func() bool { return b.landed[a.cfg.Rank] == landed && a.sent[b.cfg.Rank] == sent }, a, b)
}

// TestArenaCostsNothing: payloads between arena memory are neither copied nor registered.
func TestArenaCostsNothing(t *testing.T) {
	w, r := ranksOf(t, 2, options{})
	meet(t, r[0], r[1])
	for _, n := range []int{64 << 10, 100_001, 1 << 20, 5<<20 + 3} {
		src, err := w.alloc(0, n)
		if err != nil {
			t.Fatal(err)
		}
		dst, err := w.alloc(1, n)
		if err != nil {
			t.Fatal(err)
		}
		for i := range src {
			src[i] = byte(i * 31)
		}
		before := [2]Stats{r[0].Stats(), r[1].Stats()}
		mrs := w.opens[0].devices[len(w.opens[0].devices)-1].Resources().MRs
		for range 20 {
			bulkOnce(t, r[0], r[1], src, dst)
		}
		if string(src) != string(dst) {
			t.Fatalf("%d bytes are wrong", n)
		}
		for i := range 2 {
			s := r[i].Stats()
			if s.CopiedIn != before[i].CopiedIn || s.CopiedOut != before[i].CopiedOut || s.Registrations != before[i].Registrations || s.Fallbacks != 0 {
				t.Errorf("%d bytes, rank %d: %+v, before %+v", n, i, s, before[i])
			}
		}
		if got := r[0].Stats().WrittenBytes - before[0].WrittenBytes; got != uint64(20*n) {
			t.Errorf("%d bytes were written for 20 payloads of %d", got, n)
		}
		if after := w.opens[0].devices[len(w.opens[0].devices)-1].Resources().MRs; after != mrs {
			t.Errorf("%d regions, were %d", after, mrs)
		}
	}
}

// TestHeapMemory: small payloads are copied, large ones registered for one operation each. Caches of
// registrations grew without end (openucx/ucx#6264, openucx/ucx#8702, kvcache-ai/Mooncake#3639).
func TestHeapMemory(t *testing.T) {
	w, r := ranksOf(t, 2, options{})
	meet(t, r[0], r[1])
	small, large := make([]byte, 100_000), make([]byte, 256<<10)
	bulkOnce(t, r[0], r[1], small, make([]byte, len(small)))
	if s, d := r[0].Stats(), r[1].Stats(); s.CopiedOut != 100_000 || d.CopiedIn != 100_000 || s.Registrations+d.Registrations != 0 {
		t.Errorf("small: sender %+v, receiver %+v", s, d)
	}
	bulkOnce(t, r[0], r[1], large, make([]byte, len(large)))
	if s, d := r[0].Stats(), r[1].Stats(); s.CopiedOut != 100_000 || d.CopiedIn != 100_000 || s.Registrations != 1 || d.Registrations != 1 {
		t.Errorf("large: sender %+v, receiver %+v", s, d)
	}
	for i := range 2 {
		if mrs := w.opens[i].devices[len(w.opens[i].devices)-1].Resources().MRs; mrs != 2 {
			t.Errorf("rank %d still has %d regions, want those of receives and send buffers", i, mrs)
		}
	}
}

// TestMemoryIsFlat: what a connection costs does not depend on how much went over it.
func TestMemoryIsFlat(t *testing.T) {
	w, r := ranksOf(t, 4, options{tune: func(u *tuning) { u.receives = 64 }})
	for i := 1; i < 4; i++ {
		meet(t, r[0], r[i])
	}
	load := func() Stats {
		for i := range 3000 {
			peer := 1 + i%3
			if err := try(t, func() error { return r[0].Send(peer, eager(i), make([]byte, i%3000)) }, r...); err != nil {
				t.Fatal(err)
			}
		}
		src, err := w.alloc(0, 200_000)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 30 {
			bulkOnce(t, r[0], r[1+i%3], src, make([]byte, 300_000))
		}
		if err := r[0].Arena().Free(src); err != nil {
			t.Fatal(err)
		}
		return r[0].Stats()
	}
	first := load()
	for range 3 {
		s := load()
		if s.PeerBytes != first.PeerBytes || s.Receives != first.Receives || s.ReceiveBytes != first.ReceiveBytes || s.SendBytes != first.SendBytes {
			t.Fatalf("%+v\nafter %+v", s, first)
		}
	}
	if first.Peers != 3 || first.PeerBytes == 0 || first.PeerBytes/first.Peers > 16<<10 {
		t.Errorf("%d bytes for %d peers", first.PeerBytes, first.Peers)
	}
	t.Logf("%d bytes of Go memory and 1/%d of %d bytes of receives for each peer", first.PeerBytes/first.Peers, first.Peers, first.ReceiveBytes)
}

// TestKeepAlive is only for connections where nothing else is under way.
func TestKeepAlive(t *testing.T) {
	_, r := ranksOf(t, 2, options{tune: func(u *tuning) { quick(u); u.keepAlive = 100 * time.Millisecond }})
	meet(t, r[0], r[1])
	start := time.Now()
	for r[0].Stats().KeepAlives < 3 && time.Since(start) < 30*time.Second {
		r[0].Poll(r[0])
		r[1].Poll(r[1])
		time.Sleep(time.Millisecond)
	}
	// A machine that is busy may be late with them; nobody may be early.
	if n, most := r[0].Stats().KeepAlives, uint64(time.Since(start)/(100*time.Millisecond))+1; n < 3 || n > most {
		t.Errorf("%d keep-alives in %v, every 100 ms", n, time.Since(start))
	}
}

// TestManyPeers: more peers than the receives of the start are for. Nobody ever finds none, which
// would be fatal here: RNR is not retried (ofiwg/libfabric#5907, openucx/ucx#10505).
func TestManyPeers(t *testing.T) {
	const n = 24
	w, r := ranksOf(t, n, options{tune: func(u *tuning) {
		u.receives, u.exposures, u.window, u.minWindow, u.rnrRetries = 16, 4, 4, 2, 0
	}})
	for i := 1; i < n; i++ {
		if err := try(t, func() error { return r[i].Send(0, eager(0), nil) }, r...); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 { // rank 0 does not poll: all fill what they have
		for k := 1; k < n; k++ {
			_ = r[k].Send(0, eager(i), make([]byte, 1000))
			r[k].Poll(r[k])
		}
	}
	for range 100 {
		for k := 1; k < n; k++ {
			r[k].Poll(r[k])
		}
	}
	poll(t, "everything", func() bool {
		for k := 1; k < n; k++ {
			if r[0].frames[k] < 2 {
				return false
			}
		}
		return true
	}, r...)
	for i, x := range r {
		if len(x.down) > 0 {
			t.Fatalf("rank %d: %v", i, x.down)
		}
	}
	t.Logf("%d receives for %d peers", w.ranks[0].Stats().Receives, n-1)
}

// TestSignaling: a send queue of 4 takes any number of messages, although hardly any of them asks for
// a completion (spdk/spdk#3195, uccl-project/uccl#267).
func TestSignaling(t *testing.T) {
	_, r := ranksOf(t, 2, options{card: fake.CardOptions{}, tune: func(u *tuning) { u.sq = 4; u.interval = 100 }})
	meet(t, r[0], r[1])
	for i := range 20_000 {
		if err := try(t, func() error { return r[0].Send(1, eager(i), nil) }, r...); err != nil {
			t.Fatal(err)
		}
	}
	poll(t, "frames", func() bool { return r[1].frames[0] == 20_001 }, r...)
}

// TestWindow: a rank that has few peers lets each of them use more receives, of those that it has anyway.
func TestWindow(t *testing.T) {
	for ranks, want := range map[int]int{2: 64, 3: 47, 5: 23, 9: 23} {
		_, r := ranksOf(t, ranks, options{tune: func(u *tuning) { u.receives, u.exposures = 160, 64 }})
		poll(t, "a connection", func() bool { return !errors.Is(r[0].Send(1, eager(0), nil), transport.ErrAgain) }, r...)
		if got := r[0].conns[1].window; got != want {
			t.Errorf("%d ranks: the first peer may use %d receives, want %d", ranks, got, want)
		}
		if got := r[0].Stats().Receives; got != r[0].tune.receives {
			t.Errorf("%d ranks: %d receives, want the %d of the start", ranks, got, r[0].tune.receives)
		}
	}
}
