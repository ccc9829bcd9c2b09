package verbs

import (
	"fmt"
	"runtime"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/rdma"
)

// Describe implements transport.Transport: with Config.Read, peers can read arena memory.
func (t *Transport) Describe(buf []byte) (wire.Region, bool) {
	if !t.cfg.Read {
		return wire.Region{}, false
	}
	b := t.memory.use(buf)
	if b == nil {
		return wire.Region{}, false
	}
	key := b.mrs[0].RKey()
	t.memory.done(b)
	return wire.Region{Kind: regionBlock << kindShift, Key: key, Addr: addressOf(buf)}, true
}

// Pull implements transport.Transport: RDMA READs, and a wait for them. Nothing is
// reported meanwhile; what comes is kept for the next Poll. It ends when the device says so, which
// it does within the time it takes to find a dead peer.
func (t *Transport) Pull(peer int, r wire.Region, dst []byte) error {
	if r.Kind != regionBlock<<kindShift {
		return fmt.Errorf("verbs: pull of %d bytes from %s: region of kind %#x is not to be read", len(dst), t.who(peer), r.Kind)
	}
	if r.Addr+uint64(len(dst)) < r.Addr {
		return fmt.Errorf("verbs: pull of %d bytes at %#x from %s: beyond all memory", len(dst), r.Addr, t.who(peer))
	}
	if len(dst) == 0 {
		return nil
	}
	c := t.conn(peer)
	for c.state == connUp && c.posting != nil {
		t.pump()
	}
	switch {
	case c.err != nil:
		return c.err
	case c.state != connUp: // whoever describes memory to this rank is connected with it
		return fmt.Errorf("verbs: pull of %d bytes from %s, which has never sent a message", len(dst), t.who(peer))
	}
	x := t.newTransfer(c, transferGet, dst, 0)
	x.remote, x.keys[0], x.waited = r.Addr, r.Key, true
	x.direct = t.borrow(&x.lease, dst, rdma.LocalWrite, 1)
	c.used = true
	c.posting = x
	t.push(c)
	for !x.over {
		t.pump()
	}
	failed := x.failed
	t.recycleTransfer(x)
	if failed {
		return fmt.Errorf("verbs: pull of %d bytes from %s: %w", len(dst), t.who(peer), c.err)
	}
	return nil
}

// pump makes progress without a sink.
func (t *Transport) pump() {
	n := 0
	t.polls++
	if t.polls&(t.tune.clockEvery-1) == 0 || t.due.Load() != 0 {
		n += t.tend()
	}
	for _, r := range t.rails {
		n += t.pollCQ(r, nil)
	}
	n += t.pushAll()
	n += t.execute(n == 0)
	if n == 0 {
		runtime.Gosched()
	}
}
