//go:build !zmq || !cgo || !linux

package zmq

import (
	"strings"
	"testing"

	"github.com/weft-hpc/weft/internal/plane"
)

// TestNotBuilt: who asks for what is not there learns how to build it.
func TestNotBuilt(t *testing.T) {
	_, err := plane.Lookup(Name)
	if err == nil || !strings.Contains(err.Error(), "go build -tags zmq") || !strings.Contains(err.Error(), "libzmq3-dev") {
		t.Errorf("%v", err)
	}
}
