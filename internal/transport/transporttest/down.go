package transporttest

import (
	"errors"
	"testing"

	"github.com/weft-hpc/weft/internal/transport"
)

// kill ends a rank; the suite must not close its transport again.
func kill(w *World, d *node) {
	w.Kill(d.rank)
	d.Transport = nil
}

// testPeerDown: a death is reported once, to everybody, and harms nobody else.
func testPeerDown(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, w := open(t, newWorld, 3)
	seq := 0
	exchange := func(alive []*node) {
		t.Helper()
		seq++
		for _, d := range alive {
			for _, peer := range alive {
				if d == peer {
					continue
				}
				h := eager(seq)
				must(t, d.send(peer.rank, &h, []byte("hello"), alive...))
				must(t, until("frame has not come", func() bool { return len(peer.got[d.rank]) > 0 }, alive...))
				e, _ := peer.take(d.rank)
				must(t, e.expect(h, []byte("hello"), false))
			}
		}
	}
	exchange(nodes)
	kill(w, nodes[2])
	alive := nodes[:2]
	must(t, until("the death of rank 2 was not reported", func() bool { return alive[0].down[2] != nil && alive[1].down[2] != nil }, alive...))
	for _, d := range alive {
		h := eager(0)
		if err := d.Send(2, &h, nil); err == nil || errors.Is(err, transport.ErrAgain) {
			t.Errorf("rank %d: Send to a dead rank: %v", d.rank, err)
		}
		b := data(0, 100_000)
		if err := d.SendBulk(2, &b, make([]byte, 100_000), 1); err == nil || errors.Is(err, transport.ErrAgain) {
			t.Errorf("rank %d: SendBulk to a dead rank: %v", d.rank, err)
		}
	}
	for range 50 {
		exchange(alive)
	}
	for _, d := range alive { // node complains about a second report
		if len(d.sent[2]) != 0 {
			t.Errorf("rank %d: refused bulk payloads were reported as sent: %v", d.rank, d.sent[2])
		}
		if d.down[1-d.rank] != nil {
			t.Errorf("rank %d: peer %d lives but was reported down: %v", d.rank, 1-d.rank, d.down[1-d.rank])
		}
	}
}

// testMarkDown: the launcher tells of the death of a rank that this one has never
// had to do with. It ends a Wait, is reported once, and final.
func testMarkDown(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, w := open(t, newWorld, 2)
	d := nodes[0]
	kill(w, nodes[1])
	killed := errors.New("killed by signal 9")
	if d.Arm() {
		go d.MarkDown(1, killed)
		d.Wait(patience)
		d.Disarm()
	} else { // the transport knows already
		d.MarkDown(1, killed)
	}
	d.MarkDown(1, killed) // node complains about a second report
	must(t, until("the death was not reported", func() bool { return d.down[1] != nil }, d))
	d.MarkDown(1, killed)
	for range 100 {
		if _, err := d.poll(); err != nil {
			t.Fatal(err)
		}
	}
	h := eager(0)
	if err := d.Send(1, &h, nil); err == nil || errors.Is(err, transport.ErrAgain) {
		t.Errorf("Send to a dead rank: %v", err)
	}
}

// testPeerDownInBulk: either end of a bulk transfer dies. The survivor is told,
// and nothing is reported for that transfer afterwards.
func testPeerDownInBulk(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	for _, name := range []string{"sender", "receiver"} {
		t.Run(name, func(t *testing.T) {
			nodes, w := open(t, newWorld, 2)
			a, b := nodes[0], nodes[1]
			p := pattern(32<<20, 2)
			h := data(0, len(p))
			must(t, a.bulk(1, &h, p, 3, b))
			must(t, until("the payload has not started", func() bool { return b.into[0] != nil || len(b.got[0]) > 0 }, a, b))
			dead, alive := a, b
			if name == "receiver" {
				dead, alive = b, a
			}
			kill(w, dead)
			must(t, until("the death was not reported", func() bool { return alive.down[dead.rank] != nil }, alive))
			seen := alive.seen
			for range 100 {
				_, err := alive.poll()
				must(t, err)
			}
			if alive.seen != seen {
				t.Error("reports from a peer that is down")
			}
		})
	}
}

func testPeerDownEndsWait(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, w := open(t, newWorld, 2)
	a, b := nodes[0], nodes[1]
	h := eager(0)
	must(t, a.send(1, &h, nil, b))
	must(t, until("frame has not come", func() bool { return len(b.got[0]) > 0 }, a, b))
	done := make(chan error)
	go func() { done <- untilAsleep(func() bool { return b.down[0] != nil }, b) }()
	kill(w, a)
	must(t, <-done)
}
