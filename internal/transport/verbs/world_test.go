package verbs

import (
	"fmt"
	"sync"
	"testing"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/transport/tcp"
	"github.com/weft-hpc/weft/internal/transport/transporttest"
	"github.com/weft-hpc/weft/rdma"
	"github.com/weft-hpc/weft/rdma/fake"
)

var secret = []byte("a secret of this test, 32 bytes.")

// world is a set of ranks on a fabric.
type world struct {
	t      testing.TB
	fabric *fake.Fabric
	cards  []*fake.Card // by rank, of rail 0
	ranks  []*Transport
	opens  []*opener
	links  []*tcp.Transport
	dead   []bool

	mu      sync.Mutex
	notices []string
}

// opener remembers the device that a rank opened, so that it can be killed.
type opener struct {
	rdma.Provider
	devices []rdma.Device
}

func (o *opener) Open(name string) (rdma.Device, error) {
	d, err := o.Provider.Open(name)
	if err == nil {
		o.devices = append(o.devices, d)
	}
	return d, err
}

// options of a world.
type options struct {
	seed  uint64
	card  fake.CardOptions
	rails int // cards for each rank; 1 if zero
	cfg   func(rank int, cfg *Config)
	tune  func(*tuning)
	// loud says that notices are expected.
	loud bool
}

// links opens the out-of-band channels.
func openLinks(t testing.TB, n int) []*tcp.Transport {
	t.Helper()
	links := make([]*tcp.Transport, n)
	cards := make([][]byte, n)
	for r := range n {
		tr, err := tcp.Listen(tcp.Config{Rank: r, Size: n, Secret: secret, Job: "test", Loopback: true})
		if err != nil {
			t.Fatal(err)
		}
		links[r], cards[r] = tr, tr.Card()
	}
	for _, tr := range links {
		tr.FindCards(func(rank int) error {
			tr.Found(rank, cards[rank], nil)
			return nil
		})
	}
	return links
}

func newWorld(t *testing.T, n int, o options) *world {
	t.Helper()
	w := &world{t: t, fabric: fake.New(fake.Options{Seed: o.seed}), links: openLinks(t, n), dead: make([]bool, n)}
	rails := max(o.rails, 1)
	for r := range n {
		spec := ""
		for k := range rails {
			name := fmt.Sprintf("fake%d", r)
			if k > 0 {
				name = fmt.Sprintf("fake%d_%d", r, k)
				spec += ","
			}
			card := w.fabric.AddCard(name, o.card)
			spec += name
			if k == 0 {
				w.cards = append(w.cards, card)
			}
		}
		op := &opener{Provider: w.fabric}
		cfg := Config{Rank: r, Size: n, Job: "test", Provider: op, Device: spec, NUMA: -1, Control: w.links[r], ArenaBytes: 256 << 20, tune: o.tune,
			Notice: func(line string) { w.notice(o.loud, line) }}
		if o.cfg != nil {
			o.cfg(r, &cfg)
		}
		tr, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		w.opens = append(w.opens, op)
		w.ranks = append(w.ranks, tr)
	}
	return w
}

func (w *world) notice(expected bool, line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notices = append(w.notices, line)
	if !expected {
		w.t.Error("notice: " + line)
	}
}

// kill ends a rank as the kernel does.
func (w *world) kill(rank int) {
	w.dead[rank] = true
	for _, d := range w.opens[rank].devices {
		w.fabric.Kill(d)
	}
	if err := w.ranks[rank].Close(); err != nil {
		w.t.Logf("Close of a killed rank: %v", err)
	}
}

// close closes the fabric, whose devices must be closed by then.
func (w *world) close() {
	if err := w.fabric.Close(); err != nil {
		w.t.Error(err)
	}
}

func (w *world) suite() *transporttest.World {
	s := &transporttest.World{Kill: w.kill, Close: w.close, Alloc: w.alloc}
	for _, r := range w.ranks {
		s.Ranks = append(s.Ranks, transport.Transport(r))
	}
	return s
}

// alloc returns arena memory that is registered: 64 KiB or more.
func (w *world) alloc(rank, n int) ([]byte, error) {
	b, err := w.ranks[rank].Arena().Alloc(max(n, 64<<10))
	if err != nil {
		return nil, err
	}
	return b[:n], nil
}
