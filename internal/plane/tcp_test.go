package plane_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/weft-hpc/weft/internal/plane"
	"github.com/weft-hpc/weft/internal/plane/planetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTCP(t *testing.T) {
	w, err := plane.Lookup(plane.TCP)
	if err != nil {
		t.Fatal(err)
	}
	planetest.Run(t, w)
}
