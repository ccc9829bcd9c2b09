package verbs

import (
	"os"
	"testing"

	"github.com/weft-hpc/weft/cgo/ibverbs"
	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/transport/transporttest"
	"github.com/weft-hpc/weft/rdma"
)

// realSpec is the device to test on, or several with commas between them. Without it only the fake
// provider is tested. With it, a device that is not there is a failure.
func realSpec(t testing.TB) string {
	t.Helper()
	spec := os.Getenv("WEFT_RDMA_DEVICE")
	if spec == "" {
		t.Skip("no RDMA device named: set WEFT_RDMA_DEVICE=rxe0 to test on it, as make test-rdma does")
	}
	return spec
}

// realWorld is a world on a real device, all ranks on the same one.
func realWorld(t testing.TB, n int, o options) *world {
	t.Helper()
	spec := realSpec(t)
	provider, err := rdma.Lookup(ibverbs.Name)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, links: openLinks(t, n), dead: make([]bool, n)}
	for r := range n {
		cfg := Config{Rank: r, Size: n, Job: "test", Provider: provider, Device: spec, NUMA: -1, Control: w.links[r], ArenaBytes: 256 << 20, tune: o.tune,
			Notice: func(line string) { w.notice(o.loud, line) }}
		if o.cfg != nil {
			o.cfg(r, &cfg)
		}
		tr, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		w.ranks = append(w.ranks, tr)
	}
	return w
}

func realConformance(t *testing.T, o options) {
	realSpec(t)
	transporttest.Run(t, func(t *testing.T, n int) *transporttest.World {
		w := realWorld(t, n, o)
		s := &transporttest.World{Alloc: w.alloc, Kill: func(rank int) {
			if err := w.ranks[rank].Close(); err != nil {
				t.Error(err)
			}
		}}
		for _, r := range w.ranks {
			s.Ranks = append(s.Ranks, transport.Transport(r))
		}
		return s
	})
}

func TestDeviceConformance(t *testing.T) { realConformance(t, options{tune: sleepLong}) }

func TestDeviceConformanceRead(t *testing.T) {
	realConformance(t, options{cfg: func(_ int, cfg *Config) { cfg.Read = true }})
}
