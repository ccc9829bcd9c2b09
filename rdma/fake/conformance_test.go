package fake_test

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/weft-hpc/weft/rdma"
	"github.com/weft-hpc/weft/rdma/fake"
	"github.com/weft-hpc/weft/rdma/rdmatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ rdma.Provider = (*fake.Fabric)(nil)

// What a card must be able to do for the suite to test it.
var _ interface {
	rdmatest.CallFailer
	rdmatest.SendFailer
	rdmatest.NotificationLoser
	rdmatest.PortSetter
	rdmatest.Cutter
	rdmatest.Killer
} = (*fake.Card)(nil)

// newFabric makes a fabric that must be empty at the end.
func newFabric(t tb, seed uint64) *fake.Fabric {
	f := fake.New(fake.Options{Seed: seed})
	t.Cleanup(func() {
		if err := f.Close(); err != nil && !t.Failed() {
			t.Error(err)
		}
	})
	return f
}

func open(t tb, f *fake.Fabric, name string) rdma.Device {
	t.Helper()
	d, err := f.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	for name, tc := range map[string]struct {
		opts fake.CardOptions
		heap bool // memory of the Go heap, so that the race detector sees it
		one  bool // both ends on one card, which then cannot fail for one end only
	}{
		"RoCE":       {opts: fake.CardOptions{}},
		"soft":       {opts: fake.CardOptions{Soft: true, MTU: 1024}},
		"InfiniBand": {opts: fake.CardOptions{LinkLayer: rdma.LinkInfiniBand, PKeys: []uint16{0x7fff, 0x8001}}, heap: true, one: true},
		"poor": {opts: fake.CardOptions{MTU: 1024, MaxInline: 17, Limits: rdma.Limits{MaxReads: 1, MaxSGEs: 4, MaxQPWRs: 64, MaxInline: 64,
			MaxRetries: 6, Atomics: false}}, heap: true},
	} {
		t.Run(name, func(t *testing.T) {
			seed := uint64(0)
			rdmatest.Run(t, func(t testing.TB) (a, b rdmatest.Endpoint) {
				seed++
				f := newFabric(t, seed)
				var ends [2]rdmatest.Endpoint
				for i := range ends {
					name := fmt.Sprintf("fake%d", i)
					switch {
					case !tc.one:
						ends[i].Faults = f.AddCard(name, tc.opts)
					case i == 0:
						f.AddCard(name, tc.opts)
					default:
						name = "fake0"
					}
					ends[i].Device, ends[i].Port = open(t, f, name), 1
					if tc.heap {
						ends[i].Alloc = func(n int) []byte { return make([]byte, n) }
					}
				}
				return ends[0], ends[1]
			})
		})
	}
}
