package tcp

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

var testSecret = []byte("a secret of this test, 32 bytes.")

// end is one rank under test and its sink.
type end struct {
	*Transport
	t       *testing.T
	notices []string
	got     map[int][]uint32 // numbers of frames, by peer
	sizes   map[int]int      // bytes of the last frame, by peer
	down    map[int]error
}

func (e *end) Frame(p int, h *wire.Header, b []byte) {
	e.got[p], e.sizes[p] = append(e.got[p], h.Seq), len(b)
}
func (e *end) Dest(_ int, _ *wire.Header, n int) []byte { return make([]byte, n) }
func (e *end) Landed(p int, h *wire.Header)             { e.got[p] = append(e.got[p], h.Seq) }
func (e *end) Sent(int, uint32)                         {}
func (e *end) PeerDown(p int, err error) {
	if e.down[p] != nil {
		e.t.Errorf("rank %d: peer %d is down twice: %v, then %v", e.cfg.Rank, p, e.down[p], err)
	}
	e.down[p] = err
}

func listenAs(t *testing.T, cfg Config) *end {
	t.Helper()
	e := &end{t: t, got: map[int][]uint32{}, sizes: map[int]int{}, down: map[int]error{}}
	if cfg.Secret == nil {
		cfg.Secret = testSecret
	}
	cfg.Loopback = true
	cfg.Notice = func(line string) { e.notices = append(e.notices, line) }
	tr, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e.Transport = tr
	t.Cleanup(func() {
		if !tr.closed {
			if err := tr.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return e
}

func exchangeCards(t *testing.T, ends ...*end) {
	t.Helper()
	cards := make([][]byte, ends[0].cfg.Size)
	for _, e := range ends {
		cards[e.cfg.Rank] = e.Card()
	}
	for _, e := range ends {
		e.knows(cards...)
	}
}

// knows gives a rank all cards: whenever it asks, the answer is there.
func (e *end) knows(cards ...[]byte) {
	e.FindCards(func(rank int) error {
		e.Found(rank, cards[rank], nil)
		return nil
	})
}

func jobOf(t *testing.T, n int) []*end {
	t.Helper()
	ends := make([]*end, n)
	for r := range ends {
		ends[r] = listenAs(t, Config{Rank: r, Size: n, Job: "job"})
	}
	exchangeCards(t, ends...)
	return ends
}

// until polls until cond holds, asleep in between: a wake-up that is missing
// shows as a test that takes for ever.
func until(t *testing.T, what string, cond func() bool, ends ...*end) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !cond(); {
		n := 0
		for _, e := range ends {
			if !e.closed {
				n += e.Poll(e)
			}
		}
		if n == 0 {
			ends[0].Arm()
			ends[0].Wait(time.Millisecond)
		}
		if time.Now().After(deadline) {
			t.Fatalf("gave up: %s", what)
		}
	}
}

func mustSend(t *testing.T, e *end, to int, seq uint32, n int) {
	t.Helper()
	if err := e.Send(to, &wire.Header{Kind: wire.Eager, Seq: seq}, make([]byte, n)); err != nil {
		t.Fatal(err)
	}
}

// works checks that two ranks can talk, over one connection.
func works(t *testing.T, a, b *end) {
	t.Helper()
	na, nb := len(b.got[a.cfg.Rank]), len(a.got[b.cfg.Rank])
	mustSend(t, a, b.cfg.Rank, 1, 10)
	mustSend(t, b, a.cfg.Rank, 2, 10)
	until(t, "the job does not work any more", func() bool {
		return len(b.got[a.cfg.Rank]) > na && len(a.got[b.cfg.Rank]) > nb
	}, a, b)
}

func dialRaw(t *testing.T, e *end) net.Conn {
	t.Helper()
	addrs, _ := decodeCard(e.Card())
	c, err := net.Dial("tcp", addrs[0].String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// closedBy waits until the other side closes c, and returns what it said.
func closedBy(t *testing.T, c net.Conn, ends ...*end) []byte {
	t.Helper()
	var said []byte
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 1000)
		for {
			n, err := c.Read(b)
			said = append(said, b[:n]...)
			if err != nil {
				return
			}
		}
	}()
	until(t, "a stranger's connection is still open", func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}, ends...)
	return said
}

func says(t *testing.T, notices []string, what string) {
	t.Helper()
	if !strings.Contains(strings.Join(notices, "\n"), what) {
		t.Errorf("no notice says %q: %q", what, notices)
	}
}

// TestStrangers: whatever a foreign client says, it is refused with a notice, and the
// job goes on.
func TestStrangers(t *testing.T) {
	other := newIdentity(0, 2, testSecret, "another job")
	stranger := newIdentity(0, 2, bytes.Repeat([]byte{1}, 32), "job")
	three := newIdentity(0, 3, testSecret, "job")
	insider := newIdentity(0, 2, testSecret, "job")
	old := insider.hello(1)
	old[hello0+1]++
	for _, c := range []struct {
		name  string
		send  []byte
		prove bool // answer the challenge with a proof of stranger
		says  string
	}{
		{"http", []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), false, "no Weft rank"},
		{"one byte", []byte{0}, false, "no Weft rank"},
		{"garbage", bytes.Repeat([]byte{0xff}, 1<<20), false, "no Weft rank"},
		{"frame without handshake", frame(wire.Header{Kind: wire.Eager}, make([]byte, 100)), false, "no Weft rank"},
		{"other version", old, false, "another version"},
		{"other job", other.hello(1), false, "another job"},
		{"other size", three.hello(1), false, "not the rank"},
		{"other rank", insider.hello(0), false, "not the rank"},
		{"wrong secret", stranger.hello(1), true, "rank 0: it does not know this job's secret"},
		{"proof of nothing", append(insider.hello(1), make([]byte, macSize)...), false, "does not know this job's secret"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ends := jobOf(t, 2)
			raw := dialRaw(t, ends[1])
			if c.prove {
				if _, err := raw.Write(c.send); err != nil {
					t.Fatal(err)
				}
				challenge := make([]byte, challengeLen)
				until(t, "no challenge", func() bool {
					_ = raw.SetReadDeadline(time.Now().Add(time.Millisecond))
					n, _ := raw.Read(challenge)
					return n == challengeLen
				}, ends...)
				_ = raw.SetReadDeadline(time.Time{})
				_, _ = raw.Write(stranger.proof(c.send, challenge))
			} else {
				go func() { _, _ = raw.Write(c.send) }() // may be cut short
			}
			said := closedBy(t, raw, ends...)
			if len(said) > challengeLen+verdictSize {
				t.Errorf("a stranger was told %d bytes", len(said))
			}
			says(t, ends[1].notices, c.says)
			if ends[1].Refused() != 1 || ends[1].inPre != 0 {
				t.Errorf("%d refused, %d in a handshake", ends[1].Refused(), ends[1].inPre)
			}
			works(t, ends[0], ends[1])
			if len(ends[1].down)+len(ends[0].down) != 0 {
				t.Error("a stranger brought a rank down")
			}
		})
	}
}

// TestPortScan: connections that say nothing are counted, closed in time when they
// stay, and crowd out no rank.
func TestPortScan(t *testing.T) {
	ends := []*end{listenAs(t, Config{Rank: 0, Size: 2, Job: "job"}), listenAs(t, Config{Rank: 1, Size: 2, Job: "job", tick: 100 * time.Millisecond})}
	exchangeCards(t, ends...)
	for range 5 {
		_ = dialRaw(t, ends[1]).Close()
	}
	until(t, "scans are not counted", func() bool { return ends[1].Refused() == 5 }, ends...)
	if len(ends[1].notices) != 0 {
		t.Errorf("scans made notices: %q", ends[1].notices)
	}
	var open []net.Conn
	for range 100 { // more than the table of handshakes takes
		open = append(open, dialRaw(t, ends[1]))
	}
	works(t, ends[0], ends[1])
	for _, c := range open {
		closedBy(t, c, ends...)
	}
	says(t, ends[1].notices, "too many connections")
	says(t, ends[1].notices, "only counted")
	if len(ends[1].notices) != maxNotices+1 || ends[1].Refused() != 105 {
		t.Errorf("%d notices of %d refusals", len(ends[1].notices), ends[1].Refused())
	}
	works(t, ends[0], ends[1])
}

// TestHalfOpen: a connection that stops within its handshake ends in time.
func TestHalfOpen(t *testing.T) {
	e := listenAs(t, Config{Rank: 1, Size: 2, Job: "job", tick: 10 * time.Millisecond})
	raw := dialRaw(t, e)
	insider := newIdentity(0, 2, testSecret, "job")
	if _, err := raw.Write(insider.hello(1)); err != nil {
		t.Fatal(err)
	}
	closedBy(t, raw, e)
	says(t, e.notices, "rank 0: it took too long, waiting for its proof")
	if e.inPre != 0 || e.ticking {
		t.Errorf("%d in a handshake, ticking %v", e.inPre, e.ticking)
	}
}

// TestDialFails: who cannot be reached is down, with the reason.
func TestDialFails(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	go func() {
		for c, err := web.Accept(); err == nil; c, err = web.Accept() {
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = c.Close()
		}
	}()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	cardOf := func(l net.Listener) []byte {
		return encodeCard([]netip.AddrPort{netip.MustParseAddrPort(l.Addr().String())})
	}
	two := func(cfg Config) *end {
		cfg.Rank, cfg.Size = 1, 2
		return listenAs(t, cfg)
	}
	wrongSecret := two(Config{Job: "job", Secret: bytes.Repeat([]byte{9}, 32)})
	wrongJob := two(Config{Job: "other job"})
	wrongRank := listenAs(t, Config{Rank: 2, Size: 3, Job: "job"})
	for _, c := range []struct {
		name, says string
		card       []byte
		other      *end
	}{
		{"nobody there", "nobody listens there", cardOf(closed), nil},
		{"mute", "waiting for its challenge", cardOf(mute), nil},
		{"no rank", "no Weft rank", cardOf(web), nil},
		{"wrong secret", "secret differs", wrongSecret.Card(), wrongSecret},
		{"wrong job", "another job", wrongJob.Card(), wrongJob},
		{"wrong rank", "another rank", wrongRank.Card(), wrongRank},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := listenAs(t, Config{Rank: 0, Size: 2, Job: "job", tick: 60 * time.Millisecond})
			e.knows(nil, c.card)
			ends := []*end{e}
			if c.other != nil {
				ends = append(ends, c.other)
			}
			if err := e.Send(1, &wire.Header{Kind: wire.Eager}, nil); err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("Send: %v", err)
			}
			until(t, "no PeerDown", func() bool { return e.down[1] != nil }, ends...)
			if !strings.Contains(e.down[1].Error(), c.says) {
				t.Errorf("%v does not say %q", e.down[1], c.says)
			}
			err := e.Send(1, &wire.Header{Kind: wire.Eager}, nil)
			if err == nil || err == transport.ErrAgain {
				t.Errorf("Send to a rank that is down: %v", err)
			}
			if e.inPre != 0 || e.ticking {
				t.Errorf("%d in a handshake, ticking %v", e.inPre, e.ticking)
			}
		})
	}
}

// TestSecondAddress: the next address of a card is tried when one fails.
func TestSecondAddress(t *testing.T) {
	ends := jobOf(t, 2)
	addrs, _ := decodeCard(ends[1].Card())
	// The same port where nobody listens, and where nobody may.
	card := encodeCard([]netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("127.9.9.9"), addrs[0].Port()), addrs[0]})
	ends[0].knows(nil, card)
	works(t, ends[0], ends[1])
}

// TestCrossing: ranks that dial each other at once end with one connection and
// every frame in order, whoever is polled first.
func TestCrossing(t *testing.T) {
	for n := 2; n <= 5; n++ {
		for order := range 6 {
			t.Run(fmt.Sprintf("%d ranks, order %d", n, order), func(t *testing.T) {
				ends := jobOf(t, n)
				for _, a := range ends {
					for _, b := range ends {
						if a != b {
							mustSend(t, a, b.cfg.Rank, 0, 10)
							mustSend(t, a, b.cfg.Rank, 1, maxEager)
						}
					}
				}
				for i := range order { // let some run ahead
					ends[i%n].Poll(ends[i%n])
					ends[i%n].ahead = true
				}
				all := func() bool {
					for _, a := range ends {
						for r := range ends {
							if r != a.cfg.Rank && len(a.got[r]) < 2 {
								return false
							}
						}
					}
					return true
				}
				until(t, "frames are missing", all, ends...)
				until(t, "handshakes go on", func() bool {
					for _, a := range ends {
						if a.inPre != 0 {
							return false
						}
					}
					return true
				}, ends...)
				for _, a := range ends {
					if len(a.up) != n-1 || a.expect != 0 || len(a.notices) != 0 || len(a.down) != 0 {
						t.Errorf("rank %d: %d connections, expects %d dials, notices %q, down %v", a.cfg.Rank, len(a.up), a.expect, a.notices, a.down)
					}
					for r, got := range a.got {
						if len(got) != 2 || got[0] != 0 || got[1] != 1 {
							t.Errorf("rank %d got %v from %d", a.cfg.Rank, got, r)
						}
					}
				}
			})
		}
	}
}

// TestPromiseBroken: a rank that answers "crossed" and never dials is down in time.
func TestPromiseBroken(t *testing.T) {
	e := listenAs(t, Config{Rank: 1, Size: 2, Job: "job", tick: 150 * time.Millisecond})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	liar := newIdentity(0, 2, testSecret, "job")
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		hello, proof := make([]byte, helloSize), make([]byte, macSize)
		_, _ = c.Read(hello)
		challenge := liar.challenge(accepted)
		_, _ = c.Write(challenge)
		_, _ = c.Read(proof)
		_, _ = c.Write(liar.verdict(hello, challenge, crossed))
	}()
	e.knows(encodeCard([]netip.AddrPort{netip.MustParseAddrPort(l.Addr().String())}), nil)
	mustSend(t, e, 0, 0, 0)
	until(t, "no PeerDown", func() bool { return e.down[0] != nil }, e)
	if !strings.Contains(e.down[0].Error(), "promised") || e.expect != 0 || e.ticking {
		t.Errorf("%v; expects %d, ticking %v", e.down[0], e.expect, e.ticking)
	}
}

// insiderConn connects to e as rank 0 of 2, past the handshake.
func insiderConn(t *testing.T, e *end) (net.Conn, verdict) {
	t.Helper()
	raw := dialRaw(t, e)
	id := newIdentity(0, 2, testSecret, "job")
	hello := id.hello(1)
	_, _ = raw.Write(hello)
	read := func(n int) []byte {
		b := make([]byte, n)
		have := 0
		until(t, "no answer in a handshake", func() bool {
			_ = raw.SetReadDeadline(time.Now().Add(time.Millisecond))
			k, _ := raw.Read(b[have:])
			have += k
			return have == n
		}, e)
		_ = raw.SetReadDeadline(time.Time{})
		return b
	}
	challenge := read(challengeLen)
	_, _ = raw.Write(id.proof(hello, challenge))
	return raw, verdict(read(verdictSize)[0])
}

// TestDuplicateRank: the second process that is rank 0 is refused, the first stays.
func TestDuplicateRank(t *testing.T) {
	e := listenAs(t, Config{Rank: 1, Size: 2, Job: "job"})
	first, v := insiderConn(t, e)
	if v != accepted {
		t.Fatalf("verdict %v", v)
	}
	_, v = insiderConn(t, e)
	if v != duplicate {
		t.Errorf("verdict on the second rank 0: %v", v)
	}
	says(t, e.notices, "rank 0: there is a connection with that rank already")
	_, _ = first.Write(frame(wire.Header{Kind: wire.Eager, Seq: 5}, nil))
	until(t, "the first rank 0 does not work any more", func() bool { return len(e.got[0]) == 1 }, e)
	_ = first.Close()
	until(t, "no PeerDown", func() bool { return e.down[0] != nil }, e)
	if _, v = insiderConn(t, e); v != gone {
		t.Errorf("verdict on a rank 0 that was down: %v", v)
	}
}

// TestBrokenStream: an insider that stops within a frame, or sends what is none,
// is down once, with the reason, after what was whole is delivered.
func TestBrokenStream(t *testing.T) {
	whole := frame(wire.Header{Kind: wire.Eager, Seq: 9}, []byte("whole"))
	bulk := frame(wire.Header{Kind: wire.Data, Flags: wire.HasID | wire.HasBytes}, make([]byte, 1<<20))
	for _, c := range []struct {
		name, says string
		b          []byte
		close      bool
	}{
		{"clean end", "closed the connection: ", nil, true},
		{"in a prefix", "middle of a frame", whole[:3], true},
		{"in a header", "middle of a frame", whole[:20], true},
		{"in a payload", "middle of a frame", whole[:len(whole)-1], true},
		{"in a bulk payload", "middle of a frame", bulk[:len(bulk)-1], true},
		{"after a bulk header", "middle of a frame", bulk[:48], true},
		{"garbage", "not a frame", bytes.Repeat([]byte{0xee}, 4096), false},
		{"zero", "not a frame", make([]byte, 64), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := listenAs(t, Config{Rank: 1, Size: 2, Job: "job"})
			raw, _ := insiderConn(t, e)
			go func() {
				_, _ = raw.Write(append(bytes.Clone(whole), c.b...))
				if c.close {
					_ = raw.Close()
				}
			}()
			until(t, "no PeerDown", func() bool { return e.down[0] != nil }, e)
			if !strings.Contains(e.down[0].Error(), c.says) {
				t.Errorf("%v does not say %q", e.down[0], c.says)
			}
			if len(e.got[0]) != 1 || e.got[0][0] != 9 {
				t.Errorf("got frames %v", e.got[0])
			}
			if len(e.up) != 0 || e.ticking || len(e.freeIn) != 1 {
				t.Errorf("%d connections, ticking %v, %d free buffers", len(e.up), e.ticking, len(e.freeIn))
			}
		})
	}
}

// TestDribble: frames that come byte by byte are the same frames.
func TestDribble(t *testing.T) {
	e := listenAs(t, Config{Rank: 1, Size: 2, Job: "job"})
	raw, _ := insiderConn(t, e)
	var stream []byte
	stream = append(stream, frame(wire.Header{Kind: wire.Eager, Seq: 1}, []byte("hello"))...)
	stream = append(stream, frame(wire.Header{Kind: wire.Data, Flags: wire.HasID | wire.HasBytes, Seq: 2}, []byte("data"))...)
	stream = append(stream, frame(wire.Header{Kind: wire.Data, Flags: wire.HasID | wire.HasBytes, Seq: 3}, nil)...)
	stream = append(stream, frame(wire.Header{Kind: wire.Goodbye, Seq: 4}, nil)...)
	for i := range stream {
		if _, err := raw.Write(stream[i : i+1]); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			e.Poll(e)
		}
	}
	until(t, "frames are missing", func() bool { return len(e.got[0]) == 4 }, e)
	if got := fmt.Sprint(e.got[0]); got != "[1 2 3 4]" {
		t.Error(got)
	}
}

// TestGoodbyeBeforeDown: what a peer said before it closed is delivered, also when
// our own write finds the connection closed first.
func TestGoodbyeBeforeDown(t *testing.T) {
	ends := jobOf(t, 2)
	a, b := ends[0], ends[1]
	works(t, a, b)
	mustSend(t, b, 0, 77, 100)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	h := wire.Header{Kind: wire.Eager}
	for a.Send(1, &h, make([]byte, 1000)) == nil { // until the reset is there
	}
	until(t, "no PeerDown", func() bool { return a.down[1] != nil }, a)
	if got := a.got[1]; got[len(got)-1] != 77 {
		t.Errorf("the last frame is lost: %v", got)
	}
}

// TestConfig: mistakes are told at Listen, and a rank that cannot ask for cards sends nothing.
func TestConfig(t *testing.T) {
	for _, c := range []Config{
		{Size: 0, Secret: testSecret}, {Rank: 2, Size: 2, Secret: testSecret}, {Rank: -1, Size: 2, Secret: testSecret},
		{Size: 1, Secret: []byte("short")}, {Size: 1, Secret: testSecret, Interface: "no-such-interface"},
		{Size: 1, Secret: testSecret, Interfaces: func() ([]Interface, error) { return nil, os.ErrPermission }},
	} {
		if tr, err := Listen(c); err == nil {
			t.Errorf("%+v is taken", c)
			_ = tr.Close()
		}
	}
	e := listenAs(t, Config{Rank: 0, Size: 2})
	if !strings.Contains(e.About(), "127.0.0.1:") || !strings.Contains(e.About(), "this host") {
		t.Errorf("About says %q", e.About())
	}
	if err := e.Send(1, &wire.Header{Kind: wire.Eager}, nil); err == nil || err == transport.ErrAgain {
		t.Errorf("Send before FindCards: %v", err)
	}
	e.knows(nil, nil)
	if err := e.Send(0, &wire.Header{Kind: wire.Eager}, nil); err == nil {
		t.Error("a rank sends to itself")
	}
}
