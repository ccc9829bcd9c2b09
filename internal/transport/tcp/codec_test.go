package tcp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/wire"
)

func TestCard(t *testing.T) {
	for _, addrs := range [][]netip.AddrPort{
		{netip.MustParseAddrPort("10.0.0.5:1")},
		{netip.MustParseAddrPort("[2001:db8::5]:65535")},
		{netip.MustParseAddrPort("127.0.0.1:77"), netip.MustParseAddrPort("[::1]:77")},
	} {
		b := encodeCard(addrs)
		got, err := decodeCard(b)
		if err != nil || !slices.Equal(got, addrs) {
			t.Errorf("%v became %v, %v", addrs, got, err)
		}
		for n := range b {
			if _, err := decodeCard(b[:n]); err == nil {
				t.Errorf("%d of %d bytes are a card", n, len(b))
			}
		}
		if _, err := decodeCard(append(b, 0)); err == nil {
			t.Error("a card with a byte too many is a card")
		}
		b[2]++
		if _, err := decodeCard(b); err == nil {
			t.Error("a card of another version is a card")
		}
	}
}

func FuzzCard(f *testing.F) {
	f.Add(encodeCard([]netip.AddrPort{netip.MustParseAddrPort("10.0.0.5:1")}))
	f.Add(encodeCard([]netip.AddrPort{netip.MustParseAddrPort("10.0.0.5:9"), netip.MustParseAddrPort("[2001:db8::5]:9")}))
	f.Add([]byte("WT\x01\xff\x01\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		addrs, err := decodeCard(b)
		if err == nil && !bytes.Equal(encodeCard(addrs), b) {
			t.Errorf("%x is read as %v, which is written otherwise", b, addrs)
		}
	})
}

func frame(h wire.Header, payload []byte) []byte {
	b := make([]byte, maxHead, maxHead+len(payload))
	return append(b[:encodeHead(b, &h, len(payload))], payload...)
}

func TestParseFrame(t *testing.T) {
	big := frame(wire.Header{Kind: wire.Data, Flags: wire.HasID | wire.HasBytes}, nil)
	binary.LittleEndian.PutUint64(big, wire.MaxBytes)
	for _, c := range []struct {
		name string
		b    []byte
		ok   bool
	}{
		{"empty frame", frame(wire.Header{Kind: wire.Eager}, nil), true},
		{"limit", frame(wire.Header{Kind: wire.Eager}, make([]byte, 100)), true},
		{"over the limit", frame(wire.Header{Kind: wire.Eager}, make([]byte, 101)), false},
		{"far over the limit", frame(wire.Header{Kind: wire.Eager}, make([]byte, 1000)), false},
		{"data may be long", append(big, make([]byte, maxHead)...), true},
		{"longer than any message", append([]byte{0, 0, 0, 0, 0, 0, 0, 0x50, byte(wire.Version<<4 | uint8(wire.Data))}, make([]byte, maxHead)...), false},
		{"negative length", append(bytes.Repeat([]byte{0xff}, 8), make([]byte, maxHead)...), false},
		{"shorter than a header", append([]byte{23, 0, 0, 0, 0, 0, 0, 0}, make([]byte, maxHead)...), false},
		{"text", []byte("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h wire.Header
			head, n, need, err := parseFrame(c.b, 100, &h)
			if (err == nil) != c.ok || c.ok && (need != 0 || head == 0) {
				t.Errorf("head %d, payload %d, need %d, error %v", head, n, need, err)
			}
		})
	}
}

// FuzzParseFrame: no input makes the parser read out of bounds or ask for more than a
// buffer holds, and what it accepts is the same when it comes byte by byte.
func FuzzParseFrame(f *testing.F) {
	f.Add(frame(wire.Header{Kind: wire.Eager, Tag: 4}, []byte("hello")))
	f.Add(frame(wire.Header{Kind: wire.RTS, Flags: wire.HasID | wire.HasBytes | wire.HasSig}, nil))
	f.Add(frame(wire.Header{Kind: wire.Data, Flags: wire.HasID | wire.HasBytes}, make([]byte, 300)))
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 200
		var h, again wire.Header
		head, n, need, err := parseFrame(b, limit, &h)
		switch {
		case err != nil:
			return
		case need > 0:
			if need <= len(b) && len(b) > prefixSize || need > maxHead+limit {
				t.Fatalf("needs %d bytes with %d at hand", need, len(b))
			}
			return
		case head > len(b) || h.Kind != wire.Data && (n > limit || head+int(n) > len(b)):
			t.Fatalf("frame of %d+%d bytes in %d", head, n, len(b))
		}
		for have := 0; ; {
			head2, n2, need, err := parseFrame(b[:have], limit, &again)
			if err != nil {
				t.Fatalf("an error with %d bytes only: %v", have, err)
			}
			if need == 0 {
				if head2 != head || n2 != n || again != h {
					t.Fatal("another frame when it comes in pieces")
				}
				return
			}
			if need <= have {
				t.Fatalf("needs %d bytes, has %d", need, have)
			}
			have = min(need, len(b))
		}
	})
}

// TestHandshakeMessages: a proof holds for its own job, nonces, ranks and side only.
func TestHandshakeMessages(t *testing.T) {
	key := bytes.Repeat([]byte{7}, 32)
	a, b := newIdentity(0, 3, key, "j"), newIdentity(2, 3, key, "j")
	hello := a.hello(2)
	if from, v := b.readHello(hello); from != 0 || v != accepted {
		t.Fatalf("hello is read as from %d, %v", from, v)
	}
	challenge := b.challenge(accepted)
	proof := a.proof(hello, challenge)
	if a.readChallenge(challenge) != nil || !b.checkProof(hello, challenge, proof) {
		t.Fatal("a good proof is refused")
	}
	for name, ok := range map[string]bool{
		"replayed":     b.checkProof(hello, b.challenge(accepted), proof),
		"other hello":  b.checkProof(a.hello(2), challenge, proof),
		"other job":    func() bool { o := newIdentity(2, 3, key, "k"); return o.checkProof(hello, challenge, proof) }(),
		"other secret": func() bool { o := newIdentity(2, 3, key[1:], "j"); return o.checkProof(hello, challenge, proof) }(),
		"reflected":    b.checkProof(hello, challenge, b.verdict(hello, challenge, accepted)[4:]),
		"empty":        b.checkProof(hello, challenge, nil),
	} {
		if ok {
			t.Errorf("a proof is accepted although it is %s", name)
		}
	}
	for v := range numVerdicts {
		msg := b.verdict(hello, challenge, v)
		if _, err := a.readVerdict(hello, challenge, msg); (err == nil) != (v <= crossed) {
			t.Errorf("verdict %v is read as %v", v, err)
		}
		msg[0] ^= 1
		if _, err := a.readVerdict(hello, challenge, msg); err == nil {
			t.Errorf("verdict %v turned into %v is believed", v, verdict(msg[0]))
		}
	}
	for i := range hello[:helloSize-nonceSize] {
		bad := bytes.Clone(hello)
		bad[i] ^= 0x80
		if _, v := b.readHello(bad); v == accepted && checkMagic(bad) {
			t.Errorf("hello with byte %d changed is accepted", i)
		}
	}
}

func TestCountQuiet(t *testing.T) {
	steps := []struct {
		info unix.TCPInfo
		want int
	}{
		{unix.TCPInfo{Last_ack_recv: 60_000}, 0},             // idle: keepalive's business
		{unix.TCPInfo{Last_ack_recv: 60_000, Unacked: 1}, 1}, // sent a moment ago after a long silence
		{unix.TCPInfo{Last_ack_recv: 2, Unacked: 9}, 0},      // acknowledged
		{unix.TCPInfo{Last_ack_recv: 1000, Unacked: 9}, 1},
		{unix.TCPInfo{Last_ack_recv: 2000, Unacked: 9}, 2},
		{unix.TCPInfo{Last_ack_recv: 3000, Probes: 1}, 3}, // a closed window, and no answer to the probe
		{unix.TCPInfo{Last_ack_recv: 4000}, 0},            // a closed window, and the probe was answered
	}
	n := 0
	for i, s := range steps {
		if n = countQuiet(n, &s.info); n != s.want {
			t.Fatalf("step %d: %d quiet ticks, want %d", i, n, s.want)
		}
	}
}
