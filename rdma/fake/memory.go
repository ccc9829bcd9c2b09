package fake

import (
	"syscall"

	"github.com/weft-hpc/weft/rdma"
)

type pd struct {
	dev      *device
	card     *Card
	f        *Fabric
	children rdma.Resources
	closed   bool
}

// start is the start of a call on the domain. The caller holds mu.
func (p *pd) start(op rdma.Op, facts rdma.Facts) error {
	if p.closed {
		return p.card.refuse(op, 0, rdma.ErrClosed, 0, "the protection domain was closed")
	}
	return p.dev.start(op, facts)
}

func (p *pd) Close() error {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	if err := p.dev.closing(rdma.OpClosePD, p.closed); err != nil {
		return err
	}
	if p.children != (rdma.Resources{}) {
		return p.card.refuse(rdma.OpClosePD, 0, rdma.ErrBusy, syscall.EBUSY, "it still has %v", p.children)
	}
	p.closed = true
	p.dev.count.PDs--
	return nil
}

// mr is registered memory.
type mr struct {
	pd         *pd
	mem        []byte
	addr       uint64
	access     rdma.Access
	lkey, rkey uint32
	uses       int // posted segments whose completion was not polled
	closed     bool
}

func (p *pd) RegisterMemory(mem []byte, access rdma.Access) (rdma.MR, error) {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	c, d := p.card, p.dev
	facts := rdma.Facts{Bytes: int64(len(mem)), Memlock: -1, Pinned: d.pinned}
	if c.opts.Memlock > 0 {
		facts.Memlock = c.opts.Memlock
	}
	if err := p.start(rdma.OpRegisterMemory, facts); err != nil {
		return nil, err
	}
	if err := access.Check(); err != nil {
		return nil, rdma.Locate(err, c.name, 0, 0)
	}
	switch {
	case len(mem) == 0:
		return nil, c.refuse(rdma.OpRegisterMemory, 0, rdma.ErrInvalid, syscall.EINVAL, "the memory is empty")
	case int64(len(mem)) > c.limits.MaxMRBytes:
		return nil, c.refuse(rdma.OpRegisterMemory, 0, rdma.ErrInvalid, syscall.EINVAL, "%d bytes are more than the device's %d of one region",
			len(mem), c.limits.MaxMRBytes)
	case c.opts.Memlock > 0 && d.pinned+int64(len(mem)) > c.opts.Memlock, d.count.MRs >= c.limits.MaxMRs:
		if d.count.MRs >= c.limits.MaxMRs {
			facts.Memlock = -1
		}
		return nil, c.fail(rdma.OpRegisterMemory, 0, syscall.ENOMEM, facts)
	}
	// Keys go up in steps that never meet: an LKey is even, an RKey odd.
	c.nextKey += 2 + 2*uint32(p.f.draw(100))
	m := &mr{pd: p, mem: mem[:len(mem):len(mem)], addr: address(mem), access: access, lkey: c.nextKey &^ 1, rkey: (c.nextKey ^ 0x5a5a5a) | 1}
	if c.opts.Soft && access&^rdma.LocalWrite != 0 {
		m.rkey = m.lkey
	}
	c.lkeys[m.lkey], c.rkeys[m.rkey] = m, m
	d.pinned += int64(len(mem))
	d.count.MRs++
	p.children.MRs++
	return m, nil
}

func (m *mr) LKey() uint32        { return m.lkey }
func (m *mr) RKey() uint32        { return m.rkey }
func (m *mr) Addr() uint64        { return m.addr }
func (m *mr) Len() int            { return len(m.mem) }
func (m *mr) Access() rdma.Access { return m.access }

func (m *mr) Close() error {
	p := m.pd
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	if err := p.dev.closing(rdma.OpDeregisterMemory, m.closed); err != nil {
		return err
	}
	if !p.card.fatal {
		if err := p.card.call(rdma.OpDeregisterMemory, 0, rdma.Facts{}); err != nil {
			return err
		}
		if m.uses > 0 && !p.card.opts.Soft {
			return &rdma.Error{Op: rdma.OpDeregisterMemory, Device: p.card.name, Kind: rdma.ErrBusy, Errno: syscall.EBUSY,
				What: "posted work requests whose completions were not polled still name the region",
				Hint: "drain the queue pair first"}
		}
	}
	m.remove()
	return nil
}

// remove takes the registration back.
func (m *mr) remove() {
	p := m.pd
	m.closed = true
	delete(p.card.lkeys, m.lkey)
	delete(p.card.rkeys, m.rkey)
	p.dev.pinned -= int64(len(m.mem))
	p.dev.count.MRs--
	p.children.MRs--
	m.mem = nil // who still touches it finds out at once
}

// span is a segment of a posted work request. mr is nil if there was none of
// that key when it was posted.
type span struct {
	mr   *mr
	addr uint64
	n    int
}

// pin notes the segments of a work request, and that their regions are in use.
func (c *Card) pin(spans []span, sgl []rdma.SGE) []span {
	spans = spans[:0]
	for i := range sgl {
		m := c.lkeys[sgl[i].LKey]
		if m != nil {
			m.uses++
		}
		spans = append(spans, span{m, sgl[i].Addr, int(sgl[i].Length)})
	}
	return spans
}

// unpin takes pin back.
func unpin(spans []span) {
	for i := range spans {
		if m := spans[i].mr; m != nil {
			m.uses--
			spans[i].mr = nil
		}
	}
}

// allowed says whether all segments may be used now: registered, in the domain,
// inside the region, and for what is needed.
func allowed(spans []span, p *pd, need rdma.Access) bool {
	for i := range spans {
		s := &spans[i]
		if s.n > 0 && !s.mr.allows(p, s.addr, s.n, need) {
			return false
		}
	}
	return true
}

func (m *mr) allows(p *pd, addr uint64, n int, need rdma.Access) bool {
	if m == nil || m.closed || m.pd != p || m.access&need != need || addr < m.addr {
		return false
	}
	off := addr - m.addr
	return off <= uint64(len(m.mem)) && uint64(n) <= uint64(len(m.mem))-off
}

// bytes is the memory of a span that was checked.
func (s *span) bytes() []byte {
	if s.n == 0 {
		return nil
	}
	off := s.addr - s.mr.addr
	return s.mr.mem[off : off+uint64(s.n)]
}

func total(spans []span) int {
	n := 0
	for i := range spans {
		n += spans[i].n
	}
	return n
}
