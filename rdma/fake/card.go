package fake

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/weft-hpc/weft/rdma"
)

// CardOptions describe a card. The zero value is a RoCE card with the
// addresses that Linux gives one with IPv4.
type CardOptions struct {
	// Soft makes the card as lenient as soft-RoCE: one number for both keys of
	// memory that peers may use, slots that become free by themselves, regions
	// that close under posted work, queue pairs that outlive their CQ, failed sends
	// that are not told to who armed for solicited completions, no retry for ever.
	Soft bool

	// Limits: what is zero gets its value of DefaultLimits; with MaxRetries zero, RNRForever and Atomics do, too.
	// Ports, Solicited and Inspects are the card's own.
	Limits rdma.Limits

	LinkLayer  rdma.LinkLayer
	MTU        rdma.MTU // active; 4096 if zero
	MaxInline  int      // granted at most, whatever is asked for; Limits.MaxInline if zero
	NUMANode   int
	Driver     string // if empty "fake", or "rdma_rxe" of a soft one
	MaxMessage int64  // 1 GiB if zero
	GIDs       []rdma.GIDEntry
	PKeys      []uint16
	Memlock    int64 // limit of registered bytes per device; without limit if zero
}

// DefaultLimits are small, so that tests reach them.
func DefaultLimits() rdma.Limits {
	return rdma.Limits{
		Ports: 1, MaxQPs: 4096, MaxQPWRs: 4096, MaxSGEs: 16, MaxInline: 256, MaxCQs: 256, MaxCQEs: 1 << 16,
		MaxSRQs: 64, MaxSRQWRs: 8192, MaxMRs: 4096, MaxMRBytes: 1 << 36, MaxReads: 16, Atomics: true,
		MaxRetries: 7, RNRForever: true, Solicited: true, Inspects: true,
	}
}

// Card is the hardware behind devices.
type Card struct {
	f       *Fabric
	name    string
	number  int
	opts    CardOptions
	limits  rdma.Limits
	port    rdma.Port
	gids    []rdma.GIDEntry
	pkeys   []uint16
	devices []*device
	qps     map[uint32]*qp
	lkeys   map[uint32]*mr
	rkeys   map[uint32]*mr
	nextQPN uint32
	nextKey uint32

	fatal     bool
	cut       bool
	lose      int
	failCalls []failCall
	failSends []failSend
}

type failCall struct {
	op    rdma.Op
	nth   int
	errno syscall.Errno
}

type failSend struct {
	nth    int
	status rdma.Status
}

// AddCard adds a card, whose name must be new.
func (f *Fabric) AddCard(name string, opts CardOptions) *Card {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.ContainsFunc(f.cards, func(c *Card) bool { return c.name == name }) {
		panic("fake: two cards are named " + name)
	}
	n := len(f.cards) + 1
	c := &Card{f: f, name: name, number: n, opts: opts, limits: withDefaults(opts),
		qps: make(map[uint32]*qp), lkeys: make(map[uint32]*mr), rkeys: make(map[uint32]*mr),
		nextQPN: uint32(f.draw(1<<23)) + 0x100, nextKey: uint32(f.draw(1 << 20))}
	c.port = rdma.Port{Num: 1, State: rdma.PortActive, LinkLayer: rdma.LinkEthernet, MaxMTU: 4096, ActiveMTU: 4096,
		MaxMessage: 1 << 30, Rate: 100}
	if opts.MaxMessage != 0 {
		c.port.MaxMessage = opts.MaxMessage
	}
	if opts.MTU != 0 {
		c.port.ActiveMTU = opts.MTU
	}
	c.gids = roceGIDs(n)
	c.pkeys = []uint16{0xffff}
	if opts.LinkLayer == rdma.LinkInfiniBand {
		c.port.LinkLayer, c.port.LID, c.port.SMLID = rdma.LinkInfiniBand, uint16(n), 1
		c.gids = []rdma.GIDEntry{{GID: rdma.GID{0: 0xfe, 1: 0x80, 15: byte(n)}, Type: rdma.GIDInfiniBand}}
	}
	if opts.GIDs != nil {
		c.gids = slices.Clone(opts.GIDs)
	}
	if opts.PKeys != nil {
		c.pkeys = slices.Clone(opts.PKeys)
	}
	c.port.GIDs, c.port.PKeys = max(16, len(c.gids)), len(c.pkeys)
	f.cards = append(f.cards, c)
	return c
}

// roceGIDs is the table that Linux makes for a RoCE port with one IPv4 address.
func roceGIDs(n int) []rdma.GIDEntry {
	local := rdma.GID{0: 0xfe, 1: 0x80, 8: 2, 11: 0xff, 12: 0xfe, 14: byte(n >> 8), 15: byte(n)}
	v4 := rdma.GID{10: 0xff, 11: 0xff, 12: 10, 13: 77, 14: byte(n >> 8), 15: byte(n)}
	var all []rdma.GIDEntry
	for _, gid := range []rdma.GID{local, v4} {
		for _, t := range []rdma.GIDType{rdma.GIDRoCEv1, rdma.GIDRoCEv2} {
			all = append(all, rdma.GIDEntry{Index: len(all), GID: gid, Type: t, NetDev: fmt.Sprintf("eth%d", n)})
		}
	}
	return all
}

func withDefaults(opts CardOptions) rdma.Limits {
	l, d := opts.Limits, DefaultLimits()
	for _, p := range []struct{ v, d *int }{{&l.MaxQPs, &d.MaxQPs}, {&l.MaxQPWRs, &d.MaxQPWRs}, {&l.MaxSGEs, &d.MaxSGEs},
		{&l.MaxInline, &d.MaxInline}, {&l.MaxCQs, &d.MaxCQs}, {&l.MaxCQEs, &d.MaxCQEs}, {&l.MaxSRQs, &d.MaxSRQs}, {&l.MaxSRQWRs, &d.MaxSRQWRs},
		{&l.MaxMRs, &d.MaxMRs}, {&l.MaxReads, &d.MaxReads}} {
		if *p.v == 0 {
			*p.v = *p.d
		}
	}
	if l.MaxMRBytes == 0 {
		l.MaxMRBytes = d.MaxMRBytes
	}
	if l.MaxRetries == 0 { // no device has none: these limits were not given
		l.MaxRetries, l.RNRForever, l.Atomics = d.MaxRetries, d.RNRForever, d.Atomics
	}
	l.Ports, l.Solicited, l.Inspects = 1, true, !opts.Soft
	if opts.Soft {
		l.MaxRetries, l.RNRForever = min(6, l.MaxRetries), false
	}
	return l
}

func (c *Card) info() rdma.DeviceInfo {
	driver := c.opts.Driver
	switch {
	case driver != "":
	case c.opts.Soft:
		driver = "rdma_rxe"
	default:
		driver = "fake"
	}
	return rdma.DeviceInfo{Name: c.name, Provider: c.f.Name(), Driver: driver, NodeGUID: 0x0200_0000_0000_0000 + uint64(c.number),
		NUMANode: c.opts.NUMANode, Ports: 1}
}

// FailCall makes the nth next call of op, 1 is the next, on any device of the card fail with errno.
func (c *Card) FailCall(op rdma.Op, nth int, errno syscall.Errno) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.failCalls = append(c.failCalls, failCall{op, nth, errno})
}

// FailSend makes the nth next work request, 1 is the next, that the card starts to
// transmit end with status.
func (c *Card) FailSend(status rdma.Status, nth int) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.failSends = append(c.failSends, failSend{nth, status})
}

// LoseNotifications makes the next n notifications of armed CQs disappear, as some
// hardware did. The completions are in the CQ.
func (c *Card) LoseNotifications(n int) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.lose = n
}

// SetPort takes the port down or brings it back, with the event for it.
func (c *Card) SetPort(up bool) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if up == (c.port.State == rdma.PortActive) {
		return
	}
	c.port.State = rdma.PortDown
	event := rdma.PortError
	if up {
		c.port.State, event = rdma.PortActive, rdma.PortActivated
	}
	c.tell(rdma.Event{Type: event, Port: 1})
}

// Cut drops every packet from and to the card, or stops to do so. The port does not notice.
func (c *Card) Cut(cut bool) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.cut = cut
}

// Fatal loses the device: nothing works any more but closing, and nothing that
// is posted ever completes. Peers see no answer.
func (c *Card) Fatal() {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.tell(rdma.Event{Type: rdma.DeviceFatal})
	c.fatal = true
	for _, q := range c.qps {
		c.f.forget(q)
	}
}

// SetGIDs changes the table of addresses, with the event for it. Queue pairs
// that use an address which is gone lose their connection.
func (c *Card) SetGIDs(gids []rdma.GIDEntry) {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.gids = slices.Clone(gids)
	c.tell(rdma.Event{Type: rdma.GIDChange, Port: 1})
}

// tell gives an event to all devices of the card.
func (c *Card) tell(e rdma.Event) {
	for _, d := range c.devices {
		d.event(e)
	}
}

// call is the start of every call that asks the hardware: it fails when the device
// is lost, or when it was told to.
func (c *Card) call(op rdma.Op, qpn uint32, facts rdma.Facts) error {
	if c.fatal {
		return rdma.Explain(&rdma.Error{Op: op, Device: c.name, QPN: qpn, Kind: rdma.ErrDeviceFatal, Errno: syscall.EIO}, rdma.Facts{})
	}
	for i := range c.failCalls {
		fc := &c.failCalls[i]
		if fc.op != op {
			continue
		}
		if fc.nth--; fc.nth > 0 {
			continue
		}
		errno := fc.errno
		c.failCalls = slices.Delete(c.failCalls, i, i+1)
		return c.fail(op, qpn, errno, facts)
	}
	return nil
}

// fail explains an errno of the hardware.
func (c *Card) fail(op rdma.Op, qpn uint32, errno syscall.Errno, facts rdma.Facts) error {
	return rdma.Explain(&rdma.Error{Op: op, Device: c.name, QPN: qpn, Errno: errno}, facts)
}

// refuse is an error of the caller.
func (c *Card) refuse(op rdma.Op, qpn uint32, kind error, errno syscall.Errno, format string, args ...any) error {
	return &rdma.Error{Op: op, Device: c.name, QPN: qpn, Kind: kind, Errno: errno, What: fmt.Sprintf(format, args...)}
}

// sendFault says how the work request that starts now is told to end.
func (c *Card) sendFault() (status rdma.Status) {
	for i := 0; i < len(c.failSends); i++ {
		if c.failSends[i].nth--; c.failSends[i].nth <= 0 {
			status = c.failSends[i].status
			c.failSends = slices.Delete(c.failSends, i, i+1)
			i--
		}
	}
	return status
}

// dark says that no packet passes.
func (c *Card) dark() bool { return c.fatal || c.cut || c.port.State != rdma.PortActive }
