package plane_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/weft-hpc/weft/internal/plane"
	"github.com/weft-hpc/weft/internal/plane/planetest"
)

func TestMain(m *testing.M) {
	planetest.Play(plane.TCP)
	goleak.VerifyTestMain(m)
}

func TestTCP(t *testing.T) { planetest.Run(t, plane.TCP) }
