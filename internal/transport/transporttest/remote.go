package transporttest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

const allAccess = transport.Readable | transport.Writable | transport.Atomic

// remotes opens a world whose transports are Remotes and have memory to grant; nil if they are not.
func remotes(t *testing.T, newWorld func(t *testing.T, n int) *World, n int) ([]*node, *World) {
	nodes, w := open(t, newWorld, n)
	if _, ok := nodes[0].Transport.(transport.Remote); !ok || w.Alloc == nil {
		return nil, nil
	}
	return nodes, w
}

func (d *node) remote() transport.Remote { return d.Transport.(transport.Remote) }

// one starts an operation and waits for its end; it returns the old value.
func (d *node) one(peer int, token uint32, op func() error, others ...*node) (uint64, error) {
	all := append(others, d)
	if err := again(op, all...); err != nil {
		return 0, err
	}
	if err := until("the operation has not ended", func() bool { return len(d.done[peer]) > 0 || d.down[peer] != nil }, all...); err != nil {
		return 0, err
	}
	if len(d.done[peer]) == 0 {
		return 0, d.down[peer]
	}
	r := d.done[peer][0]
	d.done[peer] = d.done[peer][1:]
	if r.token != token || len(d.done[peer]) > 0 {
		return 0, fmt.Errorf("token %d is done, want %d, and %d more", r.token, token, len(d.done[peer]))
	}
	return r.old, nil
}

func testRemotePutGet(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, w := remotes(t, newWorld, 3)
	if nodes == nil {
		return
	}
	const size = 3<<20 + 100
	d := nodes[0]
	token := uint32(0)
	for _, owner := range nodes { // the first is the rank itself
		window, whole, err := guarded(w.Alloc, owner.rank, size)
		must(t, err)
		r, err := owner.remote().Grant(window, allAccess)
		must(t, err)
		for kind, alloc := range memories(w) {
			for _, n := range []int{0, 1, 7, 8, 100, 4096, 16 << 10, 16<<10 + 1, 100_000, 256 << 10, 1<<20 + 1, size} {
				off := (size - n) / 3
				src, err := alloc(0, n)
				must(t, err)
				fill(src, token)
				token++
				_, err = d.one(owner.rank, token, func() error { return d.remote().Put(owner.rank, r, uint64(off), src, token) }, nodes...)
				must(t, err)
				if err := errors.Join(same(window[off:off+n], src), checkGuard(whole)); err != nil {
					t.Fatalf("put of %d bytes of %s memory to rank %d: %v", n, kind, owner.rank, err)
				}
				fill(window[off:off+n], token+77)
				dst, around, err := guarded(alloc, 0, n)
				must(t, err)
				token++
				_, err = d.one(owner.rank, token, func() error { return d.remote().Get(owner.rank, r, uint64(off), dst, token) }, nodes...)
				must(t, err)
				if err := errors.Join(same(dst, window[off:off+n]), checkGuard(around)); err != nil {
					t.Fatalf("get of %d bytes to %s memory from rank %d: %v", n, kind, owner.rank, err)
				}
			}
		}
		must(t, owner.remote().Withdraw(r))
	}
}

// testRemoteOrder: a frame that is sent after a Put finds it done.
func testRemoteOrder(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, w := remotes(t, newWorld, 2)
	if nodes == nil {
		return
	}
	a, b := nodes[0], nodes[1]
	window, err := w.Alloc(1, 1<<20)
	must(t, err)
	r, err := b.remote().Grant(window, transport.Writable)
	must(t, err)
	for i := range 200 {
		n := []int{8, 100, 30_000, 1 << 20}[i%4]
		src := pattern(n, uint32(i))
		must(t, again(func() error { return a.remote().Put(1, r, 0, src, uint32(i)) }, a, b))
		h := eager(i)
		must(t, a.send(1, &h, nil, b))
		must(t, until("frame has not come", func() bool { return len(b.got[0]) > 0 }, a, b))
		b.take(0)
		if err := same(window[:n], src); err != nil {
			t.Fatalf("put %d: %v", i, err)
		}
		must(t, until("the put is not done", func() bool { return len(a.done[1]) > i }, a, b))
	}
}

func testRemoteAtomics(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	const ranks, rounds = 4, 50
	nodes, w := remotes(t, newWorld, ranks)
	if nodes == nil {
		return
	}
	window, err := w.Alloc(0, 64)
	must(t, err)
	clear(window)
	r, err := nodes[0].remote().Grant(window, allAccess)
	must(t, err)
	parallel(t, nodes, func(d *node) error { // the owner as well
		for i := range rounds {
			if _, err := d.one(0, 1, func() error { return d.remote().FetchAdd(0, r, 8, uint64(d.rank)+1, 1) }); err != nil {
				return err
			}
			for seen := uint64(0); ; { // count up by compare and swap
				old, err := d.one(0, uint32(i), func() error { return d.remote().CompareSwap(0, r, 16, seen, seen+1, uint32(i)) })
				if err != nil {
					return err
				}
				if old == seen {
					break
				}
				seen = old
			}
		}
		return nil
	})
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(window[8*i:]) }
	if word(1) != rounds*ranks*(ranks+1)/2 || word(2) != rounds*ranks || word(0) != 0 || word(3) != 0 {
		t.Errorf("the window holds %d %d %d %d", word(0), word(1), word(2), word(3))
	}
}

// testRemoteBounds: what makes no sense is refused at once, and harms nobody.
func testRemoteBounds(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, w := remotes(t, newWorld, 2)
	if nodes == nil {
		return
	}
	a, b := nodes[0], nodes[1]
	introduce(t, a, b)
	window, err := w.Alloc(1, 4096)
	must(t, err)
	r, err := b.remote().Grant(window, allAccess)
	must(t, err)
	for name, err := range map[string]error{
		"unaligned atomic":    a.remote().FetchAdd(1, r, 4, 1, 1),
		"unaligned swap":      a.remote().CompareSwap(1, r, 1, 1, 1, 1),
		"overflow of offset":  a.remote().Put(1, r, 1<<64-4, make([]byte, 8), 1),
		"overflow of address": a.remote().Get(1, r, 1<<64-1-r.Addr, make([]byte, 8), 1),
		"another region":      a.remote().Put(1, wire.Region{Kind: r.Kind ^ 1<<31, Key: r.Key, Addr: r.Addr}, 0, make([]byte, 8), 1),
		"withdraw of another": b.remote().Withdraw(wire.Region{Kind: r.Kind + 1, Key: r.Key, Addr: r.Addr}),
	} {
		if err == nil || errors.Is(err, transport.ErrAgain) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = a.one(1, 5, func() error { return a.remote().Put(1, r, 4088, make([]byte, 8), 5) }, b)
	must(t, err)
	must(t, b.remote().Withdraw(r))
	if err := b.remote().Withdraw(r); err == nil {
		t.Error("a window was withdrawn twice")
	}
	fill(window, 1)
	if _, err := a.one(1, 6, func() error { return a.remote().Put(1, r, 0, make([]byte, 8), 6) }, b); err == nil {
		t.Error("a put to a window that was withdrawn succeeded")
	}
	must(t, same(window, pattern(len(window), 1)))
}

// testRemotePeerDown: the owner dies. What was under way ends with PeerDown.
func testRemotePeerDown(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	nodes, w := remotes(t, newWorld, 2)
	if nodes == nil {
		return
	}
	a, b := nodes[0], nodes[1]
	window, err := w.Alloc(1, 8<<20)
	must(t, err)
	r, err := b.remote().Grant(window, allAccess)
	must(t, err)
	mem, err := w.Alloc(0, 8<<20)
	must(t, err)
	_, err = a.one(1, 1, func() error { return a.remote().Put(1, r, 0, mem, 1) }, b)
	must(t, err)
	must(t, again(func() error { return a.remote().Get(1, r, 0, mem, 2) }, a, b))
	kill(w, b)
	must(t, until("the death was not reported", func() bool { return a.down[1] != nil }, a))
	fill(mem, 4)
	for range 100 {
		_, err := a.poll()
		must(t, err)
	}
	must(t, same(mem, pattern(len(mem), 4)))
	if err := a.remote().Get(1, r, 0, mem, 3); err == nil || errors.Is(err, transport.ErrAgain) {
		t.Errorf("Get from a dead rank: %v", err)
	}
}
