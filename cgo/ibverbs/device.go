//go:build linux && cgo

package ibverbs

// #cgo noescape weft_next_event
// #cgo nocallback weft_next_event
// #include "shim.h"
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/weft-hpc/weft/rdma"
)

// device is an open device. mu guards the counts and tables below it, and is held
// over no verb; what is counted before its verb keeps parents from being closed.
type device struct {
	p          *Provider
	lib        *C.struct_weft_lib
	ctx        *C.struct_ibv_context
	info       rdma.DeviceInfo
	limits     rdma.Limits
	mode       IO
	eventFD    int
	flushAgain bool // a receive posted in ERROR needs the state to be set again
	fatal      atomic.Bool

	events sync.Mutex // held over NextEvent and the closing of the device

	mu      sync.Mutex
	closed  closed
	count   rdma.Resources
	lastID  uint64
	cqs     map[uint64]*cq
	qps     map[uint64]*qp
	srqs    map[uint64]*srq
	numbers map[uint32]*qp // by QP number
	io      *ioThread      // of Thread; nil until the first channel or CQ
}

// fail explains an errno of the device.
func (d *device) fail(op rdma.Op, qpn uint32, errno syscall.Errno, facts rdma.Facts) error {
	if d.fatal.Load() {
		errno = syscall.EIO
	}
	return rdma.Explain(&rdma.Error{Op: op, Device: d.info.Name, QPN: qpn, Errno: errno}, facts)
}

// refuse is an error of the caller.
func (d *device) refuse(op rdma.Op, qpn uint32, kind error, errno syscall.Errno, format string, args ...any) error {
	return &rdma.Error{Op: op, Device: d.info.Name, QPN: qpn, Kind: kind, Errno: errno, What: fmt.Sprintf(format, args...)}
}

// start is the start of a call on the device. The caller holds mu.
func (d *device) start(op rdma.Op) error {
	if d.closed.Load() {
		return d.isClosed(op)
	}
	return d.lost(op, 0)
}

func (d *device) isClosed(op rdma.Op) error {
	return d.refuse(op, 0, rdma.ErrClosed, 0, "the device was closed")
}

// lost says that the device is gone.
func (d *device) lost(op rdma.Op, qpn uint32) error {
	if !d.fatal.Load() {
		return nil
	}
	return d.fail(op, qpn, syscall.EIO, rdma.Facts{})
}

// add counts n (1 or -1) more of what is counted in *c.
func (d *device) add(c *int, n int) {
	d.mu.Lock()
	*c += n
	d.mu.Unlock()
}

// closing marks *closed, unless that is so already, or users of what is being closed are left.
func (d *device) closing(op rdma.Op, closed *closed, users *int, what string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case closed.Load() || d.closed.Load():
		return d.refuse(op, 0, rdma.ErrClosed, 0, "closed twice")
	case users != nil && *users > 0:
		return d.refuse(op, 0, rdma.ErrBusy, syscall.EBUSY, "%d %s still in use", *users, what)
	}
	closed.Store(true)
	return nil
}

// failedClosing is the end of a close that the device refused: it may be tried again,
// unless the device is lost, where nothing else can be done.
func (d *device) failedClosing(op rdma.Op, qpn uint32, closed *closed, errno C.int) error {
	if errno == 0 || d.fatal.Load() || syscall.Errno(errno) == syscall.EIO {
		return nil
	}
	d.mu.Lock()
	closed.Store(false)
	d.mu.Unlock()
	return d.fail(op, qpn, syscall.Errno(errno), rdma.Facts{})
}

func (d *device) Info() rdma.DeviceInfo { return d.info }
func (d *device) Limits() rdma.Limits   { return d.limits }
func (d *device) EventFD() int          { return d.eventFD }

func (d *device) Resources() rdma.Resources {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.count
}

func (d *device) failPort(op rdma.Op, port int, errno C.int) error {
	return rdma.Locate(d.fail(op, 0, syscall.Errno(errno), rdma.Facts{}), "", port, 0)
}

func (d *device) QueryPort(port int) (rdma.Port, error) {
	if !d.closed.enter() {
		return rdma.Port{}, d.isClosed(rdma.OpQueryPort)
	}
	defer d.closed.leave()
	return d.queryPort(rdma.OpQueryPort, port)
}

// queryPort is the start of op, which is about a port. The caller has entered.
func (d *device) queryPort(op rdma.Op, port int) (rdma.Port, error) {
	if err := d.lost(op, 0); err != nil {
		return rdma.Port{}, err
	}
	if port < 1 || port > d.limits.Ports {
		return rdma.Port{}, d.refuse(op, 0, rdma.ErrInvalid, syscall.EINVAL, "port %d does not exist: the device has ports 1 to %d", port, d.limits.Ports)
	}
	var a C.struct_weft_port
	if errno := C.weft_query_port(d.lib, d.ctx, C.int(port), &a); errno != 0 {
		return rdma.Port{}, d.failPort(op, port, errno)
	}
	p := rdma.Port{
		Num: port, State: rdma.PortState(a.state), LinkLayer: rdma.LinkLayer(a.link_layer), MaxMTU: rdma.MTUFromCode(int(a.max_mtu)),
		ActiveMTU: rdma.MTUFromCode(int(a.active_mtu)), MaxMessage: int64(a.max_message), LID: uint16(a.lid), SMLID: uint16(a.sm_lid),
		Rate: rate(int(a.width), int(a.speed)), GIDs: int(a.gids), PKeys: int(a.pkeys), GRHRequired: a.grh != 0,
	}
	if p.LinkLayer == rdma.LinkUnspecified {
		p.LinkLayer = rdma.LinkInfiniBand // of drivers older than RoCE
	}
	return p, nil
}

// rate is what a link carries in Gbit/s, from the codes of its width and speed. They are
// those of InfiniBand, also on Ethernet: the signal without its encoding.
func rate(width, speed int) float64 {
	lanes := map[int]float64{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[width]
	lane := map[int]float64{1: 2, 2: 4, 4: 8, 8: 10, 16: 14.0625 * 64 / 66, 32: 25, 64: 50, 128: 100}[speed]
	return lanes * lane
}

func (d *device) GIDTable(port int) ([]rdma.GIDEntry, error) {
	if !d.closed.enter() {
		return nil, d.isClosed(rdma.OpQueryGIDs)
	}
	defer d.closed.leave()
	p, err := d.queryPort(rdma.OpQueryGIDs, port)
	if err != nil {
		return nil, err
	}
	table, err := d.gids(port, p)
	if err != nil {
		return nil, &rdma.Error{Op: rdma.OpQueryGIDs, Device: d.info.Name, Port: port, Errno: errnoOf(err), Kind: rdma.ErrUnsupported,
			What: err.Error(), Hint: "mount /sys: docker run -v /sys:/sys:ro"}
	}
	if p.LinkLayer == rdma.LinkEthernet && p.State == rdma.PortActive {
		return table, d.tryGIDs(port, table)
	}
	return table, nil
}

// gids asks the kernel for the table, by one call where library and kernel have it, else by a file for each entry,
// of which there may be a thousand.
func (d *device) gids(port int, p rdma.Port) ([]rdma.GIDEntry, error) {
	raw := make([]C.struct_weft_gid, p.GIDs*d.limits.Ports+1)
	var n C.int
	if errno := C.weft_query_gids(d.lib, d.ctx, &raw[0], C.int(len(raw)), &n); errno != 0 {
		return d.p.sysfs.gids(d.info.Name, port, p.GIDs, p.LinkLayer)
	}
	var table []rdma.GIDEntry
	for i := range raw[:n] {
		g := &raw[i]
		if int(g.port) != port {
			continue
		}
		e := rdma.GIDEntry{Index: int(g.index), NetDev: d.p.sysfs.gidNetDev(d.info.Name, port, int(g.index))}
		for j := range e.GID {
			e.GID[j] = byte(g.gid[j])
		}
		if g._type < 3 {
			e.Type = [...]rdma.GIDType{rdma.GIDInfiniBand, rdma.GIDRoCEv1, rdma.GIDRoCEv2}[g._type]
		}
		if !e.GID.IsZero() {
			table = append(table, e)
		}
	}
	return table, nil
}

// tryGIDs makes an address of each GID. Stale ones and those of other network namespaces
// fail, and get their Err.
func (d *device) tryGIDs(port int, table []rdma.GIDEntry) error {
	pd, err := C.weft_alloc_pd(d.lib, d.ctx)
	if pd == nil {
		return d.fail(rdma.OpQueryGIDs, 0, errnoOf(err), rdma.Facts{})
	}
	defer C.weft_dealloc_pd(d.lib, pd)
	for i := range table {
		e := &table[i]
		if e.Err != nil {
			continue
		}
		var gid [16]C.uint8_t
		for j, b := range e.GID {
			gid[j] = C.uint8_t(b)
		}
		if errno := C.weft_try_address(d.lib, pd, C.int(port), C.int(e.Index), &gid[0]); errno != 0 {
			e.Err = fmt.Errorf("ibverbs: the device makes no address of it: %w", syscall.Errno(errno))
		}
	}
	return nil
}

func (d *device) PKeyTable(port int) ([]uint16, error) {
	if !d.closed.enter() {
		return nil, d.isClosed(rdma.OpQueryPKeys)
	}
	defer d.closed.leave()
	p, err := d.queryPort(rdma.OpQueryPKeys, port)
	if err != nil {
		return nil, err
	}
	table := make([]uint16, p.PKeys)
	for i := range table {
		var key C.uint16_t
		if errno := C.weft_query_pkey(d.lib, d.ctx, C.int(port), C.int(i), &key); errno != 0 {
			return nil, d.failPort(rdma.OpQueryPKeys, port, errno)
		}
		table[i] = uint16(key)
	}
	return table, nil
}

// eventTypes has the events of verbs, by their number there.
var eventTypes = [...]rdma.EventType{
	0: rdma.CQError, 1: rdma.QPFatal, 2: rdma.QPRequestError, 3: rdma.QPAccessError, 4: rdma.CommEstablished, 8: rdma.DeviceFatal,
	9: rdma.PortActivated, 10: rdma.PortError, 11: rdma.LIDChange, 12: rdma.PKeyChange, 13: rdma.SMChange, 14: rdma.SRQError,
	15: rdma.SRQLimitReached, 16: rdma.LastWQEReached, 17: rdma.SMChange, 18: rdma.GIDChange,
}

func (d *device) NextEvent() (rdma.Event, bool, error) {
	d.events.Lock()
	defer d.events.Unlock()
	d.mu.Lock()
	closed := d.closed.Load()
	d.mu.Unlock()
	if closed {
		return rdma.Event{}, false, d.isClosed(rdma.OpReadEvent)
	}
	if d.fatal.Load() {
		return rdma.Event{}, false, nil
	}
	var c C.struct_weft_event
	switch errno := syscall.Errno(C.weft_next_event(d.lib, d.ctx, &c)); errno {
	case 0:
	case syscall.EAGAIN:
		return rdma.Event{}, false, nil
	default:
		return rdma.Event{}, false, d.fail(rdma.OpReadEvent, 0, errno, rdma.Facts{})
	}
	e := rdma.Event{Type: rdma.OtherEvent, Port: int(c.port)}
	if i := int(c._type); i < len(eventTypes) && eventTypes[i] != 0 {
		e.Type = eventTypes[i]
	}
	// An id is of one kind of object only, and of none if that was closed just now.
	d.mu.Lock()
	defer d.mu.Unlock()
	id := uint64(c.id)
	if q, ok := d.cqs[id]; ok {
		e.CQ = q
	}
	if q, ok := d.qps[id]; ok {
		e.QP = q
	}
	if s, ok := d.srqs[id]; ok {
		e.SRQ = s
	}
	switch e.Type {
	case rdma.DeviceFatal:
		d.fatal.Store(true)
	case rdma.CQError:
		if q, ok := d.cqs[id]; ok {
			q.overrun.Store(true)
		}
	case rdma.QPFatal, rdma.QPRequestError, rdma.QPAccessError:
		if q, ok := d.qps[id]; ok {
			q.failed()
		}
	}
	return e, true, nil
}

func (d *device) Close() error {
	d.events.Lock()
	defer d.events.Unlock()
	d.mu.Lock()
	if d.closed.Load() {
		d.mu.Unlock()
		return d.refuse(rdma.OpCloseDevice, 0, rdma.ErrClosed, 0, "closed twice")
	}
	if d.count != (rdma.Resources{}) {
		left := d.count
		d.mu.Unlock()
		return d.refuse(rdma.OpCloseDevice, 0, rdma.ErrBusy, syscall.EBUSY, "it still has %v", left)
	}
	d.closed.Store(true)
	d.mu.Unlock()
	d.closed.wait()
	if err := d.stopThread(); err != nil {
		return err
	}
	return d.failedClosing(rdma.OpCloseDevice, 0, &d.closed, C.weft_close(d.lib, d.ctx))
}
