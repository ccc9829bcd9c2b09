package ibverbs_test

import (
	"strings"
	"testing"
)

// wantText wants an error to have all parts.
func wantText(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%v\ndoes not say %q", err, p)
		}
	}
}
