package wire

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// headers draws valid headers of every kind with every legal set of flags.
// Fields whose extension is absent are zero, so that a header equals its copy.
func headers() *rapid.Generator[Header] {
	return rapid.Custom(func(t *rapid.T) Header {
		h := Header{
			Kind: Kind(rapid.IntRange(1, int(maxKind)).Draw(t, "kind")),
			Ctx:  rapid.Uint32().Draw(t, "ctx"),
			Src:  rapid.Int32().Draw(t, "src"),
			Tag:  rapid.Int32().Draw(t, "tag"),
			Type: rapid.Uint32().Draw(t, "type"),
			Seq:  rapid.Uint32().Draw(t, "seq"),
		}
		h.Flags = need[h.Kind] | Flags(rapid.IntRange(0, int(HasID|HasBytes|HasRegion|HasSig)).Draw(t, "flags"))
		if h.Kind == Eager && rapid.Bool().Draw(t, "sync") {
			h.Flags |= Sync | HasID
		}
		if h.Flags&HasID != 0 {
			h.ID, h.Reply = rapid.Uint32().Draw(t, "id"), rapid.Uint32().Draw(t, "reply")
		}
		if h.Flags&HasBytes != 0 {
			h.Bytes = rapid.Uint64Range(0, MaxBytes).Draw(t, "bytes")
		}
		if h.Flags&HasRegion != 0 {
			h.Region = Region{Kind: rapid.Uint32().Draw(t, "rkind"), Key: rapid.Uint32().Draw(t, "key"), Addr: rapid.Uint64().Draw(t, "addr")}
		}
		if h.Flags&HasSig != 0 {
			h.Sig = Signature{Op: rapid.Uint8().Draw(t, "op"), Variant: rapid.Uint16().Draw(t, "variant"), Root: rapid.Int32().Draw(t, "root"),
				Type: rapid.Uint32().Draw(t, "stype"), Seq: rapid.Uint32().Draw(t, "sseq"), Count: rapid.Uint64().Draw(t, "count")}
		}
		return h
	})
}

// TestRoundTrip encodes and decodes, and cuts the frame at every length.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := headers().Draw(t, "header")
		payload := rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "payload")
		buf := make([]byte, MaxSize)
		for i := range buf {
			buf[i] = 0xee
		}
		n := h.Encode(buf)
		if n != h.Size() || n < BaseSize || n > MaxSize {
			t.Fatalf("Encode wrote %d bytes, Size says %d", n, h.Size())
		}
		for i, b := range buf[n:] {
			if b != 0xee {
				t.Fatalf("Encode of %d bytes wrote beyond itself, at %d", n, n+i)
			}
		}
		frame := append(buf[:n:n], payload...)
		var got Header
		m, err := Decode(frame, &got)
		if err != nil || m != n {
			t.Fatalf("Decode = %d, %v; want %d bytes", m, err, n)
		}
		if d := cmp.Diff(h, got); d != "" {
			t.Fatalf("decoded header differs (-want +got):\n%s", d)
		}
		for cut := range n {
			if m, err := Decode(frame[:cut:cut], &got); err == nil || m != 0 {
				t.Fatalf("Decode of the first %d of %d bytes = %d, %v; want an error", cut, n, m, err)
			}
		}
	})
}

// TestEveryKindAndFlag goes through all first words: what is not listed as
// legal is refused.
func TestEveryKindAndFlag(t *testing.T) {
	b := make([]byte, MaxSize)
	var h Header
	for first := range 256 {
		for flags := range 256 {
			b[0], b[1] = byte(first), byte(flags)
			k, f := Kind(first&0xf), Flags(flags)
			legal := first>>4 == Version && k >= 1 && k <= maxKind && f&^allFlags == 0
			legal = legal && f&need[k] == need[k] && (f&Sync == 0 || k == Eager && f&HasID != 0)
			_, err := Decode(b, &h)
			if legal != (err == nil) {
				t.Fatalf("version %d, %v, flags %#x: error %v, legal %v", first>>4, k, flags, err, legal)
			}
		}
	}
}

// Lengths have 64 bits; others cut those of 4 GiB and more (lci#75).
func TestLayout(t *testing.T) {
	h := Header{Kind: RTS, Flags: HasID | HasBytes | HasRegion | HasSig, Ctx: 0x04030201, Src: -1, Tag: 7, Type: 0x0d0c0b0a, Seq: 9,
		ID: 0x11, Reply: 0x12, Bytes: 1 << 40, Region: Region{Kind: 1, Key: 2, Addr: 3},
		Sig: Signature{Op: 5, Root: -2, Type: 6, Seq: 7, Count: 8}}
	var b [MaxSize]byte
	h.Encode(b[:])
	want := []byte{
		0x12, 0x0f, 0, 0, 1, 2, 3, 4, 0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0x0d, 9, 0, 0, 0,
		0x11, 0, 0, 0, 0x12, 0, 0, 0,
		0, 0, 0, 0, 0, 1, 0, 0,
		1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0,
		5, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 6, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0,
	}
	if d := cmp.Diff(want, b[:]); d != "" {
		t.Errorf("the frame format has changed; raise Version (-want +got):\n%s", d)
	}
}

// TestNoLeftovers decodes over a header that was used before.
func TestNoLeftovers(t *testing.T) {
	full := Header{Kind: RTS, Flags: HasID | HasBytes | HasRegion | HasSig, ID: 1, Reply: 2, Bytes: 3, Region: Region{Key: 4}, Sig: Signature{Op: 5}}
	for k := Eager + 1; k <= maxKind; k++ {
		want := Header{Kind: k, Flags: need[k]}
		var b [MaxSize]byte
		n := want.Encode(b[:])
		got := full
		if _, err := Decode(b[:n], &got); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%v keeps fields of the header before (-want +got):\n%s", k, d)
		}
	}
}

func TestErrors(t *testing.T) {
	frame := func(h Header, change func(b []byte)) []byte {
		var b [MaxSize]byte
		n := h.Encode(b[:])
		if change != nil {
			change(b[:n])
		}
		return b[:n]
	}
	for _, tt := range []struct {
		name  string
		frame []byte
		want  string
	}{
		{"empty", nil, "wire: frame of 0 bytes is shorter than a header (24)"},
		{"short", make([]byte, 23), "wire: frame of 23 bytes is shorter than a header (24)"},
		{"version 0", make([]byte, 24), "wire: frame of version 0, this build speaks 1; start all ranks from one build"},
		{"version 2", frame(Header{Kind: Eager}, func(b []byte) { b[0] = 0x21 }), "wire: frame of version 2, this build speaks 1; start all ranks from one build"},
		{"kind 0", frame(Header{}, nil), "wire: unknown frame kind 0"},
		{"kind 12", frame(Header{Kind: maxKind + 1}, nil), "wire: unknown frame kind 12"},
		{"kind 15", frame(Header{Kind: 15}, nil), "wire: unknown frame kind 15"},
		{"flag", frame(Header{Kind: Revoke, Flags: 0x20}, nil), "wire: REVOKE frame with unknown flags 0x20"},
		{"byte 2", frame(Header{Kind: Eager}, func(b []byte) { b[2] = 1 }), "wire: EAGER frame with unknown flags 0x100"},
		{"byte 3", frame(Header{Kind: Eager}, func(b []byte) { b[3] = 0x80 }), "wire: EAGER frame with unknown flags 0x800000"},
		{"lacks", frame(Header{Kind: RTS, Flags: HasID}, nil), "wire: RTS frame lacks an extension: flags 0x1, needs 0x3"},
		{"sync without id", frame(Header{Kind: Eager, Flags: Sync}, nil), "wire: EAGER frame with the sync flag and flags 0x10"},
		{"sync FIN", frame(Header{Kind: FIN, Flags: Sync | HasID}, nil), "wire: FIN frame with the sync flag and flags 0x11"},
		{"cut", frame(Header{Kind: CTS, Flags: HasID | HasBytes}, nil)[:39], "wire: CTS frame of 39 bytes, its header needs 40"},
		{"too long", frame(Header{Kind: CTS, Flags: HasID | HasBytes, Bytes: MaxBytes + 1}, nil), "wire: CTS frame of 4611686018427387905 bytes, the limit is 4611686018427387904"},
		{"longest", frame(Header{Kind: Credit, Flags: HasBytes, Bytes: math.MaxUint64}, nil), "wire: CREDIT frame of 18446744073709551615 bytes, the limit is 4611686018427387904"},
		{"signature", frame(Header{Kind: Eager, Flags: HasSig}, func(b []byte) { b[25] = 1 }), "wire: EAGER frame with a bad signature 0x100"},
	} {
		var h Header
		n, err := Decode(tt.frame, &h)
		if err == nil || err.Error() != tt.want || n != 0 {
			t.Errorf("%s: Decode = %d, %v; want 0, %s", tt.name, n, err, tt.want)
		}
	}
}

func TestKindNames(t *testing.T) {
	seen := map[string]bool{}
	for k := Eager; k <= maxKind; k++ {
		if s := k.String(); seen[s] || s != strings.ToUpper(s) {
			t.Errorf("kind %d is called %q", k, s)
		} else {
			seen[s] = true
		}
	}
	if got := (maxKind + 1).String(); got != "kind 12" {
		t.Errorf("an unknown kind is called %q", got)
	}
}

func TestNoAllocation(t *testing.T) {
	for _, h := range []Header{
		{Kind: Eager},
		{Kind: RTS, Flags: HasID | HasBytes | HasRegion | HasSig, Bytes: 1},
	} {
		var b [MaxSize]byte
		var got Header
		if n := testing.AllocsPerRun(100, func() {
			n := h.Encode(b[:])
			if _, err := Decode(b[:n], &got); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%v: %v allocations for each frame", h.Kind, n)
		}
	}
}

// FuzzDecode feeds anything to Decode: it never panics, and what it accepts is
// encoded to the same bytes again.
func FuzzDecode(f *testing.F) {
	for k := Eager; k <= maxKind; k++ {
		for _, extra := range []Flags{0, HasSig, HasRegion | HasSig} {
			h := Header{Kind: k, Flags: need[k] | extra, Src: 1, Tag: 2, Bytes: 3}
			var b [MaxSize]byte
			f.Add(b[:h.Encode(b[:])])
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var h, again Header
		n, err := Decode(in, &h)
		if err != nil {
			return
		}
		var out [MaxSize]byte
		if m := h.Encode(out[:]); m != n || string(out[:m]) != string(in[:n]) {
			t.Fatalf("% x\ndecoded and encoded is\n% x", in[:n], out[:m])
		}
		if m, err := Decode(out[:n], &again); err != nil || m != n || again != h {
			t.Fatalf("decoded again: %d, %v, %+v; want %+v", m, err, again, h)
		}
	})
}

func BenchmarkEncodeDecode(b *testing.B) {
	h := Header{Kind: Eager, Src: 1, Tag: 2}
	var buf [MaxSize]byte
	var got Header
	for b.Loop() {
		n := h.Encode(buf[:])
		if _, err := Decode(buf[:n], &got); err != nil {
			b.Fatal(err)
		}
	}
}
