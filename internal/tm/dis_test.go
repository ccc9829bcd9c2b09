package tm

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestIntegers(t *testing.T) {
	for n, want := range map[int64]string{0: "+0", 9: "+9", 10: "2+10", 123: "3+123", -1: "-1", -12: "2-12", 536870913: "9+536870913", 1234567890: "210+1234567890"} {
		if got := string(appendInt(nil, n)); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
	if got := string(appendString(nil, "")); got != "+0" {
		t.Errorf("nothing is %q", got)
	}
	for _, bad := range []string{"", "+", "x", "+x", "2+1", "2+", "1+1", "0+", "22+10", "99+1", "3", "219+1234567890123456789", "--1"} {
		if n, err := readInt(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was taken for %d", bad, n)
		}
	}
	for _, bad := range []string{"-1", "3+100abc", "6+123456", "2"} {
		if s, err := readString(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was taken for %q", bad, s)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(-999_999_999_999_999_999, 999_999_999_999_999_999).Draw(t, "n")
		s := rapid.StringN(-1, -1, 1000).Draw(t, "s")
		r := bytes.NewReader(appendString(appendInt(nil, n), s))
		if got, err := readInt(r); got != n || err != nil {
			t.Fatalf("%d became %d, %v", n, got, err)
		}
		if got, err := readString(r); got != s || err != nil || r.Len() != 0 {
			t.Fatalf("%q became %q, %v, %d bytes left", s, got, err, r.Len())
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("+2+2+0+49+536870913"))
	f.Add([]byte("62.head"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		if n, err := readInt(r); err == nil {
			if used := b[:len(b)-r.Len()]; len(used) < len(appendInt(nil, n)) {
				t.Errorf("%q is %d in fewer bytes than it takes", used, n)
			}
		}
		_, _ = readString(bytes.NewReader(b))
	})
}
