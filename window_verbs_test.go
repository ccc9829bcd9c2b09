package weft_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weft-hpc/weft"
	"github.com/weft-hpc/weft/internal/arena"
	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/transport/tcp"
	"github.com/weft-hpc/weft/internal/transport/verbs"
	"github.com/weft-hpc/weft/rdma"
	"github.com/weft-hpc/weft/rdma/fake"
)

// verbsWorld runs fn on ranks that are goroutines with a card each, of the provider that is
// stricter than hardware. It sets kill, if that is not nil, to what ends a rank as its process's death
// would.
func verbsWorld(t *testing.T, n int, kill *func(int), fn func(ctx context.Context, c *weft.Comm) error) error {
	t.Helper()
	fabric := fake.New(fake.Options{Seed: 11})
	links := make([]*tcp.Transport, n)
	cards := make([][]byte, n)
	for r := range n {
		l, err := tcp.Listen(tcp.Config{Rank: r, Size: n, Secret: []byte("a secret of this test, 32 bytes."), Job: "test", Loopback: true})
		if err != nil {
			t.Fatal(err)
		}
		links[r], cards[r] = l, l.Card()
	}
	ts, arenas, opened := make([]transport.Transport, n), make([]*arena.Arena, n), make([]*opener, n)
	for r, l := range links {
		l.FindCards(func(rank int) error {
			l.Found(rank, cards[rank], nil)
			return nil
		})
		name := fmt.Sprintf("fake%d", r)
		fabric.AddCard(name, fake.CardOptions{})
		opened[r] = &opener{Provider: fabric}
		v, err := verbs.Open(verbs.Config{Rank: r, Size: n, Job: "test", Provider: opened[r], Device: name, NUMA: -1, Control: l, ArenaBytes: 256 << 20, Notice: func(line string) { t.Error("notice: " + line) }})
		if err != nil {
			t.Fatal(err)
		}
		ts[r], arenas[r] = v, v.Arena()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	end := func(rank int) {
		for _, d := range opened[rank].devices {
			fabric.Kill(d)
		}
		for r := range n {
			if r != rank {
				ts[r].MarkDown(rank, errors.New("it was killed")) // as the launcher tells
			}
		}
	}
	if kill != nil {
		*kill = end
	}
	err := weft.LocalOver(ctx, ts, arenas, end, fn)
	return errors.Join(err, fabric.Close())
}

// opener remembers the devices that were opened.
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

func TestWindowVerbs(t *testing.T) {
	for _, p := range windowPrograms {
		for _, n := range p.ranks {
			if n > 5 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", p.name, n), func(t *testing.T) {
				if err := verbsWorld(t, n, nil, p.run); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
	t.Run("way", func(t *testing.T) {
		err := verbsWorld(t, 2, nil, func(ctx context.Context, c *weft.Comm) error {
			w, err := weft.NewWindow[int](ctx, c, 1)
			if err != nil {
				return err
			}
			if !strings.HasPrefix(w.Transport(), "remote:") {
				return fmt.Errorf("a window over verbs works by %q", w.Transport())
			}
			return w.Close(ctx)
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}
