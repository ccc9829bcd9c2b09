//go:build zmq && cgo && linux

package zmq

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/weft-hpc/weft/internal/plane/planetest"
)

func TestMain(m *testing.M) {
	planetest.Play(Name)
	goleak.VerifyTestMain(m)
}

func TestPlane(t *testing.T) { planetest.Run(t, Name) }
