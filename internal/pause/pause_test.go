package pause_test

import (
	"testing"

	"github.com/weft-hpc/weft/internal/pause"
)

func TestSpinReturns(t *testing.T) {
	for _, n := range []int{-1 << 62, -1, 0, 1, 2, 1000} {
		pause.Spin(n)
	}
	if n := testing.AllocsPerRun(100, func() { pause.Spin(3) }); n != 0 {
		t.Errorf("Spin allocates %v times", n)
	}
}

func BenchmarkSpin(b *testing.B) {
	for b.Loop() {
		pause.Spin(1)
	}
}
