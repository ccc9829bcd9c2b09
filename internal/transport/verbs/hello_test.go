package verbs

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"

	"github.com/weft-hpc/weft/rdma"
)

func goldenHello() *hello {
	return &hello{kind: sayHello, job: [16]byte{1, 2, 3, 15: 16}, rank: 0x01020304, epoch: 2, segment: 16384, window: 64, conn: 0x05000007,
		rails: []helloRailInfo{
			{link: rdma.LinkEthernet, port: 1, mtu: 4096, gidType: rdma.GIDRoCEv2, lid: 0, reads: 16, qpn: 0x123456, psn: 0xabcdef, maxMessage: 1 << 30,
				gid: rdma.GID{10: 0xff, 11: 0xff, 12: 10, 13: 77, 14: 0, 15: 1}},
			{link: rdma.LinkInfiniBand, port: 2, mtu: 2048, gidType: rdma.GIDInfiniBand, lid: 0x0203, reads: 1, qpn: 1, psn: 2, maxMessage: 1 << 31,
				gid: rdma.GID{0: 0xfe, 1: 0x80, 15: 9}},
		}}
}

// The bytes on the wire: a change here is a change of the protocol's version. Others sent an address through
// htonl (w180112/RDMA-example#3).
const goldenBytes = "57565242" + "0200" + "01" + "02" + "01020300000000000000000000000010" + "04030201" + "02000000" + "00400000" + "40000000" + "07000005" + "00000000" +
	"02010503" + "0000" + "10" + "00" + "56341200" + "efcdab00" + "0000004000000000" + "00000000000000000000ffff0a4d0001" + "0000000000000000" +
	"01020401" + "0302" + "01" + "00" + "01000000" + "02000000" + "0000008000000000" + "fe800000000000000000000000000009" + "0000000000000000"

func TestHelloGolden(t *testing.T) {
	h := goldenHello()
	if got := hex.EncodeToString(h.encode()); got != goldenBytes {
		t.Errorf("encoded\n got %s\nwant %s", got, goldenBytes)
	}
	back, err := decodeHello(h.encode())
	if err != nil || !reflect.DeepEqual(back, h) {
		t.Errorf("decoded %+v, %v", back, err)
	}
	r := &hello{kind: sayReject, rank: 1, epoch: 1, reason: "no \x1b[31m, because"}
	back, err = decodeHello(r.encode())
	if err != nil || back.reason != "no ?[31m, because" {
		t.Errorf("decoded %+v, %v", back, err)
	}
}

func TestPrefixGolden(t *testing.T) {
	p := prefix{kind: prefixBulk, rails: 2, credits: 0x0102, length: 3, seq: 0x04050607, conn: 0x08090a0b}
	b := make([]byte, prefixSize+3)
	p.encode(b)
	if got, want := hex.EncodeToString(b), "020202010300000007060504"+"0b0a0908"+"000000"; got != want {
		t.Errorf("encoded %s, want %s", got, want)
	}
	var back prefix
	if err := decodePrefix(b, &back); err != nil || back != p {
		t.Errorf("decoded %+v, %v", back, err)
	}
	for name, bad := range map[string]func(b []byte) []byte{
		"nothing":        func(b []byte) []byte { return nil },
		"short":          func(b []byte) []byte { return b[:prefixSize-1] },
		"no kind":        func(b []byte) []byte { b[0] = 0; return b },
		"unknown kind":   func(b []byte) []byte { b[0] = byte(maxPrefixKind); return b },
		"longer":         func(b []byte) []byte { return append(b, 0) },
		"cut":            func(b []byte) []byte { return b[:len(b)-1] },
		"no rails":       func(b []byte) []byte { b[1] = 0; return b },
		"too many rails": func(b []byte) []byte { b[1] = maxRails + 1; return b },
		"rails of frame": func(b []byte) []byte { b[0] = byte(prefixFrame); return b },
	} {
		if err := decodePrefix(bad(bytes.Clone(b)), &back); err == nil {
			t.Errorf("%s: decoded %+v", name, back)
		}
	}
}

func TestHelloRefuses(t *testing.T) {
	good := goldenHello().encode()
	for name, bad := range map[string]func(b []byte) []byte{
		"nothing":          func(b []byte) []byte { return nil },
		"short":            func(b []byte) []byte { return b[:helloHead-1] },
		"magic":            func(b []byte) []byte { b[0]++; return b },
		"version":          func(b []byte) []byte { b[4]++; return b },
		"kind":             func(b []byte) []byte { b[6] = 9; return b },
		"no rails":         func(b []byte) []byte { b[7] = 0; return b[:helloHead] },
		"five rails":       func(b []byte) []byte { b[7] = 5; return append(b, make([]byte, 3*helloRail)...) },
		"fewer rails":      func(b []byte) []byte { b[7] = 1; return b },
		"a byte more":      func(b []byte) []byte { return append(b, 0) },
		"epoch 0":          func(b []byte) []byte { b[28] = 0; return b },
		"reserved":         func(b []byte) []byte { b[44] = 1; return b },
		"no window":        func(b []byte) []byte { copy(b[36:40], make([]byte, 4)); return b },
		"huge window":      func(b []byte) []byte { b[39] = 1; return b },
		"tiny receives":    func(b []byte) []byte { copy(b[32:36], []byte{8, 0, 0, 0}); return b },
		"MTU":              func(b []byte) []byte { b[helloHead+2] = 6; return b },
		"link layer":       func(b []byte) []byte { b[helloHead] = 7; return b },
		"GID type":         func(b []byte) []byte { b[helloHead+3] = 7; return b },
		"QP number":        func(b []byte) []byte { b[helloHead+11] = 1; return b },
		"PSN":              func(b []byte) []byte { b[helloHead+15] = 1; return b },
		"no messages":      func(b []byte) []byte { copy(b[helloHead+16:], make([]byte, 8)); return b },
		"reserved of rail": func(b []byte) []byte { b[helloHead+47] = 1; return b },
		"ready with rails": func(b []byte) []byte { b[6] = byte(sayReady); return b },
		"long reason": func(b []byte) []byte {
			b[6], b[7] = byte(sayReject), 0
			return append(b[:helloHead], make([]byte, maxReason+1)...)
		},
	} {
		if h, err := decodeHello(bad(bytes.Clone(good))); err == nil {
			t.Errorf("%s: decoded %+v", name, h)
		} else if name == "version" && !strings.Contains(err.Error(), "start all ranks from one build") {
			t.Errorf("another version: %v", err)
		}
	}
}

func FuzzHello(f *testing.F) {
	f.Add(goldenHello().encode())
	f.Add((&hello{kind: sayReady, epoch: 1}).encode())
	f.Add((&hello{kind: sayReject, epoch: 1, reason: "because"}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHello(b)
		if err != nil {
			return
		}
		if len(h.rails) > maxRails || len(h.reason) > maxReason {
			t.Fatalf("%d rails, reason of %d bytes", len(h.rails), len(h.reason))
		}
		// What is accepted is the same when it is said again; only a reason was cleaned.
		again, err := decodeHello(h.encode())
		if err != nil || !reflect.DeepEqual(again, h) {
			t.Fatalf("%+v\nbecame %+v, %v", h, again, err)
		}
	})
}

func FuzzPrefix(f *testing.F) {
	b := make([]byte, prefixSize+3)
	(&prefix{kind: prefixFrame, length: 3}).encode(b)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var p prefix
		if decodePrefix(b, &p) != nil {
			return
		}
		again := make([]byte, len(b))
		copy(again[prefixSize:], b[prefixSize:])
		p.encode(again)
		if !bytes.Equal(again, b) {
			t.Fatalf("%x became %x", b, again)
		}
	})
}
