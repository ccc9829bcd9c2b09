package verbs

import (
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/transport/transporttest"
	"github.com/weft-hpc/weft/rdma"
	"github.com/weft-hpc/weft/rdma/fake"
)

// conformance runs the suite of transports over a fabric.
func conformance(t *testing.T, o options) {
	transporttest.Run(t, func(t *testing.T, n int) *transporttest.World {
		return newWorld(t, n, o).suite()
	})
}

// sleepLong shows a lost wake-up that the clock would hide (apache/brpc#3415), and a message without a receive
// that a repetition would (ydb-platform/nbs#5790).
func sleepLong(u *tuning) { u.nap, u.rnrRetries = time.Hour, 0 }

func TestConformance(t *testing.T) { conformance(t, options{tune: sleepLong}) }

// TestConformanceRails divides large payloads between two rails, and has receivers read by RDMA READ.
func TestConformanceRails(t *testing.T) {
	conformance(t, options{seed: 2, rails: 2, tune: func(u *tuning) { sleepLong(u); u.split = 64 << 10; u.chunk = 64 << 10 },
		cfg: func(_ int, cfg *Config) { cfg.Read = true }})
}

// TestConformanceTiny has queues that are always full, on a lenient InfiniBand card that takes nothing
// inline and short messages only (pytorch/gloo#474, ROCm/mori#409), and where a full partition key is not the first
// (NVIDIA/nvshmem#82). A CQ that overran would fail everybody (ofiwg/libfabric#4913, ROCm/TransferBench#239).
func TestConformanceTiny(t *testing.T) {
	conformance(t, options{seed: 4, card: fake.CardOptions{Soft: true, MaxMessage: 10_000, LinkLayer: rdma.LinkInfiniBand, PKeys: []uint16{0x7fff, 0x8001}}, tune: tiny})
}

// tiny makes every queue as small as it can be.
func tiny(u *tuning) {
	u.receives, u.exposures, u.sends, u.sq, u.window, u.minWindow, u.inline, u.interval, u.rnrRetries = 8, 2, 8, 4, 2, 1, 0, 3, 0
	u.maxRecvs = 8 + 7*4
	u.cq = u.maxRecvs + 8*2*reserved + 6
}
