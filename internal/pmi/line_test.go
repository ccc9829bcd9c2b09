package pmi

import (
	"maps"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	f, err := parse("cmd=get_result rc=0 msg=all is well value=a=b\n")
	want := fields{"cmd": "get_result", "rc": "0", "msg": "all is well", "value": "a=b"}
	if err != nil || !maps.Equal(f, want) {
		t.Errorf("got %v, %v", f, err)
	}
	for _, bad := range []string{"", "\n", "rc=0", "cmd=", "cmd=x y", "cmd=x =y", "cmd=x a=1 a=2"} {
		if f, err := parse(bad); err == nil {
			t.Errorf("%q: got %v, want an error", bad, f)
		}
	}
}

func TestFormat(t *testing.T) {
	if s, err := format("put", "key", "k", "value", ""); s != "cmd=put key=k value=\n" || err != nil {
		t.Errorf("got %q, %v", s, err)
	}
	for _, bad := range []string{"a b", "a\nb", "a\u00a0b", strings.Repeat("x", maxLine)} {
		if _, err := format("put", "value", bad); err == nil {
			t.Errorf("a value of %d bytes went", len(bad))
		}
	}
}

func TestFrames(t *testing.T) {
	f, err := parseFrame("cmd=kvs-get-response;flag=TRUE;value=a;;b=c;;;rc=0;")
	want := fields{"cmd": "kvs-get-response", "flag": "TRUE", "value": "a;b=c;", "rc": "0"}
	if err != nil || !maps.Equal(f, want) {
		t.Errorf("got %v, %v", f, err)
	}
	for _, bad := range []string{"", ";", "rc=0;", "cmd=;", "cmd=x;y;", "cmd=x;=y;", "cmd=x;a=1;a=2;"} {
		if f, err := parseFrame(bad); err == nil {
			t.Errorf("%q: got %v, want an error", bad, f)
		}
	}
	if s, err := formatFrame("kvs-put", "key", "k", "value", "x;"); s != "    28cmd=kvs-put;key=k;value=x;;;" || err != nil {
		t.Errorf("got %q, %v", s, err)
	}
	for _, bad := range []string{"a b", strings.Repeat("x", maxLine)} {
		if _, err := formatFrame("kvs-put", "value", bad); err == nil {
			t.Errorf("a value of %d bytes went", len(bad))
		}
	}
}

// What is formatted is parsed to the same, and nothing that comes makes the parser panic.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"cmd=a", "cmd=get_result rc=-1 msg=no such key value=x", "cmd=a b=c=d e=", "=", "cmd", " \t"} {
		f.Add(s, "v")
	}
	f.Fuzz(func(t *testing.T, line, value string) {
		got, err := parse(line)
		if f, err := parseFrame(line); (err == nil) != (f != nil) || err == nil && f["cmd"] == "" {
			t.Fatalf("%q: %v, %v", line, f, err)
		}
		if (err == nil) != (got != nil) || err == nil && got["cmd"] == "" {
			t.Fatalf("%q: %v, %v", line, got, err)
		}
		out, err := format("put", "value", value)
		if err != nil {
			return
		}
		back, err := parse(strings.TrimSuffix(out, "\n"))
		if err != nil || back["value"] != value || len(back) != 2 {
			t.Fatalf("%q came back as %v, %v", out, back, err)
		}
		if out, err = formatFrame("put", "value", value); err != nil {
			t.Fatal(err)
		}
		body, err := readFrame(strings.NewReader(out))
		if err == nil {
			back, err = parseFrame(body)
		}
		if err != nil || back["value"] != value || len(back) != 2 {
			t.Fatalf("%q came back as %v, %v", out, back, err)
		}
	})
}
