package tcp_test

import (
	"testing"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/transport/tcp"
	"github.com/weft-hpc/weft/internal/transport/transporttest"
)

var secret = []byte("a secret of this test, 32 bytes.")

// newWorld makes a world whose ranks ask for cards, which come from another goroutine.
func newWorld(t *testing.T, n int) *transporttest.World {
	t.Helper()
	ranks := make([]*tcp.Transport, n)
	cards := make([][]byte, n)
	w := &transporttest.World{}
	for r := range n {
		tr, err := tcp.Listen(tcp.Config{Rank: r, Size: n, Secret: secret, Job: "test", Loopback: true, Notice: func(line string) { t.Error(line) }})
		if err != nil {
			t.Fatal(err)
		}
		ranks[r], cards[r] = tr, tr.Card()
		w.Ranks = append(w.Ranks, transport.Transport(tr))
	}
	w.Kill = func(rank int) {
		if err := ranks[rank].Close(); err != nil {
			t.Error(err)
		}
	}
	for _, tr := range ranks {
		tr.FindCards(func(rank int) error {
			go tr.Found(rank, cards[rank], nil)
			return nil
		})
	}
	return w
}

func TestConformance(t *testing.T) { transporttest.Run(t, newWorld) }
