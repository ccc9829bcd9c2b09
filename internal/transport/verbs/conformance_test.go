package verbs

import (
	"testing"

	"github.com/weft-hpc/weft/internal/transport/transporttest"
)

// conformance runs the suite of transports over a fabric.
func conformance(t *testing.T, o options) {
	transporttest.Run(t, func(t *testing.T, n int) *transporttest.World {
		return newWorld(t, n, o).suite()
	})
}

func TestConformance(t *testing.T) { conformance(t, options{}) }
