package verbs

import (
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/rdma"
)

// window is memory that was granted to all peers, on rail 0.
type window struct {
	mr  rdma.MR // nil: free
	gen uint32
}

func (w *window) close() error {
	if w.mr == nil {
		return nil
	}
	mr := w.mr
	w.mr = nil
	w.gen = (w.gen + 1) & genMask
	if err := mr.Close(); err != nil && !gone(err) {
		return err
	}
	return nil
}

// Grant implements transport.Remote. A window has a registration of its own, so that its
// key reaches no further and allows no more.
func (t *Transport) Grant(mem []byte, access transport.Access) (wire.Region, error) {
	r := t.rails[0]
	if access&transport.Atomic != 0 && !r.limits.Atomics {
		return wire.Region{}, &rdma.Error{Op: rdma.OpRegisterMemory, Device: r.info.Name, Kind: rdma.ErrUnsupported,
			What: "the device has no atomics, so that FetchAdd and CompareSwap do not work on it", Hint: "use --transport tcp, or a window without atomics"}
	}
	if len(mem) == 0 {
		return wire.Region{Kind: regionWindow<<kindShift | nameMask}, nil
	}
	i := 0
	for i < len(t.windows) && t.windows[i].mr != nil {
		i++
	}
	if i == maxWindows {
		return wire.Region{}, fmt.Errorf("verbs: %d windows are open, there can be no more: close some", i)
	}
	var need rdma.Access
	if access&transport.Readable != 0 {
		need |= rdma.RemoteRead
	}
	if access&transport.Writable != 0 {
		need |= rdma.LocalWrite | rdma.RemoteWrite
	}
	if access&transport.Atomic != 0 {
		need |= rdma.LocalWrite | rdma.RemoteAtomic
	}
	mr, err := r.pd.RegisterMemory(mem, need)
	if err != nil {
		return wire.Region{}, err
	}
	if i == len(t.windows) {
		t.windows = append(t.windows, window{})
	}
	w := &t.windows[i]
	w.mr = mr
	return wire.Region{Kind: regionWindow<<kindShift | w.gen<<indexBits | uint32(i), Key: mr.RKey(), Addr: mr.Addr()}, nil
}

// Withdraw implements transport.Remote.
func (t *Transport) Withdraw(r wire.Region) error {
	if r.Kind == regionWindow<<kindShift|nameMask {
		return nil
	}
	name := r.Kind & nameMask
	i := name & (maxWindows - 1)
	if r.Kind>>kindShift != regionWindow || i >= uint32(len(t.windows)) || t.windows[i].mr == nil || t.windows[i].gen != name>>indexBits {
		return errors.New("verbs: withdraw what was not granted, or was withdrawn before")
	}
	return t.windows[i].close()
}

// remote checks an operation on n bytes of a window, and returns a connection that
// it can start on now.
func (t *Transport) remote(peer int, r wire.Region, off, n uint64) (*conn, error) {
	if r.Kind>>kindShift != regionWindow {
		return nil, fmt.Errorf("verbs: region of kind %d is no window", r.Kind>>kindShift)
	}
	if end := off + n; end < off || r.Addr+end < r.Addr {
		return nil, fmt.Errorf("verbs: %d bytes at offset %d of a window at %#x go beyond all memory", n, off, r.Addr)
	}
	c := t.conns[peer]
	if c == nil || c.state != connUp {
		return nil, t.notUp(peer)
	}
	if c.posting != nil {
		return nil, transport.ErrAgain
	}
	if c.eps[0].room() < 1 {
		t.nudge()
		return nil, transport.ErrAgain
	}
	return c, nil
}

// Put implements transport.Remote. What fits is sent inline.
func (t *Transport) Put(peer int, to wire.Region, off uint64, src []byte, token uint32) error {
	c, err := t.remote(peer, to, off, uint64(len(src)))
	if err != nil {
		return err
	}
	e := c.eps[0]
	c.used = true
	if len(src) > e.inline {
		return t.move(c, transferPut, to, off, src, token)
	}
	wr := t.stage(e, work{kind: workPut, slot: noSlot, token: token}, rdma.Signaled)
	wr.Op, wr.RemoteAddr, wr.RKey = rdma.Write, to.Addr+off, to.Key
	if n := copy(t.scratch, src); n > 0 {
		wr.Inline = t.scratch[:n]
	}
	t.stats.Writes++
	t.stats.WrittenBytes += uint64(len(src))
	return t.flush(e)
}

// Get implements transport.Remote.
func (t *Transport) Get(peer int, from wire.Region, off uint64, dst []byte, token uint32) error {
	c, err := t.remote(peer, from, off, uint64(len(dst)))
	if err != nil {
		return err
	}
	if c.reads == 0 {
		return fmt.Errorf("verbs: the device of %s answers no RDMA READ, which Get needs", t.who(peer))
	}
	c.used = true
	if len(dst) > 0 {
		return t.move(c, transferGet, from, off, dst, token)
	}
	e := c.eps[0]
	wr := t.stage(e, work{kind: workPut, slot: noSlot, token: token}, rdma.Signaled)
	wr.Op = rdma.Write // of nothing
	return t.flush(e)
}

// move starts a Put or a Get that a transfer does.
func (t *Transport) move(c *conn, kind transferKind, r wire.Region, off uint64, mem []byte, token uint32) error {
	x := t.newTransfer(c, kind, mem, token)
	x.remote, x.keys[0] = r.Addr+off, r.Key
	access := rdma.Access(0)
	if kind == transferGet {
		access = rdma.LocalWrite
	}
	x.direct = t.borrow(&x.lease, mem, access, 1)
	c.posting = x
	t.push(c)
	if c.state != connUp {
		return c.err
	}
	return nil
}

// FetchAdd implements transport.Remote.
func (t *Transport) FetchAdd(peer int, at wire.Region, off, add uint64, token uint32) error {
	return t.atomic(peer, at, off, token, rdma.SendWR{Op: rdma.FetchAdd, Add: add})
}

// CompareSwap implements transport.Remote.
func (t *Transport) CompareSwap(peer int, at wire.Region, off, expect, swap uint64, token uint32) error {
	return t.atomic(peer, at, off, token, rdma.SendWR{Op: rdma.CompareSwap, Compare: expect, Swap: swap})
}

func (t *Transport) atomic(peer int, at wire.Region, off uint64, token uint32, op rdma.SendWR) error {
	c, err := t.remote(peer, at, off, 8)
	if err != nil {
		return err
	}
	if (at.Addr+off)%8 != 0 {
		return fmt.Errorf("verbs: atomic on a window at %#x, offset %d: it takes 8 aligned bytes", at.Addr, off)
	}
	cell := take(&t.freeCells)
	if cell == noSlot {
		return transport.ErrAgain
	}
	e := c.eps[0]
	c.used = true
	wr := t.stage(e, work{kind: workAtomic, slot: cell, token: token}, rdma.Signaled)
	t.data(e, wr, addressOf(t.cell(cell)), cellSize, e.rail.pool.LKey())
	wr.Op, wr.Add, wr.Compare, wr.Swap = op.Op, op.Add, op.Compare, op.Swap
	wr.RemoteAddr, wr.RKey = at.Addr+off, at.Key
	t.stats.Atomics++
	return t.flush(e)
}
