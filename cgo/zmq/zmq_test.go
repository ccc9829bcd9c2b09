//go:build zmq && cgo && linux

package zmq

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/weft-hpc/weft/internal/plane"
	"github.com/weft-hpc/weft/internal/plane/planetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPlane(t *testing.T) {
	w, err := plane.Lookup(Name)
	if err != nil {
		t.Fatal(err)
	}
	planetest.Run(t, w)
}
