package fake

import (
	"slices"
	"syscall"

	"github.com/weft-hpc/weft/rdma"
)

// device is a card that a process has opened.
type device struct {
	card   *Card
	f      *Fabric
	count  rdma.Resources
	pinned int64
	events []rdma.Event
	signal signal
	closed bool // or killed

	channels []*channel
}

func (c *Card) open() (rdma.Device, error) {
	if err := c.call(rdma.OpOpenDevice, 0, rdma.Facts{Wanted: c.name}); err != nil {
		return nil, err
	}
	d := &device{card: c, f: c.f}
	if err := d.signal.open(); err != nil {
		return nil, c.fail(rdma.OpOpenDevice, 0, err.(syscall.Errno), rdma.Facts{})
	}
	c.devices = append(c.devices, d)
	return d, nil
}

// start is the start of a call on the device. The caller holds mu.
func (d *device) start(op rdma.Op, facts rdma.Facts) error {
	if d.closed {
		return d.card.refuse(op, 0, rdma.ErrClosed, 0, "the device was closed")
	}
	return d.card.call(op, 0, facts)
}

// closing is the start of a call that closes something of the device.
func (d *device) closing(op rdma.Op, closed bool) error {
	if closed || d.closed {
		return d.card.refuse(op, 0, rdma.ErrClosed, 0, "closed twice")
	}
	return nil
}

func (d *device) busy(op rdma.Op, by string, n int) error {
	return d.card.refuse(op, 0, rdma.ErrBusy, syscall.EBUSY, "%d %s still in use", n, by)
}

func (d *device) Info() rdma.DeviceInfo { return d.card.info() }
func (d *device) Limits() rdma.Limits   { return d.card.limits }
func (d *device) EventFD() int          { return d.signal.fd }

func (d *device) QueryPort(port int) (rdma.Port, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if err := d.portCall(rdma.OpQueryPort, port); err != nil {
		return rdma.Port{}, err
	}
	return d.card.port, nil
}

func (d *device) GIDTable(port int) ([]rdma.GIDEntry, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if err := d.portCall(rdma.OpQueryGIDs, port); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(d.card.gids), func(e rdma.GIDEntry) bool { return e.Err == nil && e.GID.IsZero() }), nil
}

func (d *device) PKeyTable(port int) ([]uint16, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if err := d.portCall(rdma.OpQueryPKeys, port); err != nil {
		return nil, err
	}
	return slices.Clone(d.card.pkeys), nil
}

func (d *device) portCall(op rdma.Op, port int) error {
	if err := d.start(op, rdma.Facts{}); err != nil {
		return err
	}
	if port != 1 {
		return d.card.refuse(op, 0, rdma.ErrInvalid, syscall.EINVAL, "port %d does not exist: there is port 1", port)
	}
	return nil
}

func (d *device) AllocPD() (rdma.PD, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if err := d.start(rdma.OpAllocPD, rdma.Facts{}); err != nil {
		return nil, err
	}
	d.count.PDs++
	return &pd{dev: d, card: d.card, f: d.f}, nil
}

func (d *device) Resources() rdma.Resources {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	return d.count
}

// event queues an asynchronous event. Of a lost device there are no others.
func (d *device) event(e rdma.Event) {
	if d.card.fatal {
		return
	}
	d.events = append(d.events, e)
	d.signal.raise()
}

func (d *device) NextEvent() (rdma.Event, bool, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if d.closed {
		return rdma.Event{}, false, d.start(rdma.OpReadEvent, rdma.Facts{})
	}
	if len(d.events) == 0 {
		return rdma.Event{}, false, nil
	}
	e := d.events[0]
	d.events = slices.Delete(d.events, 0, 1)
	if e.Type == rdma.DeviceFatal {
		d.events = nil
	}
	if len(d.events) == 0 {
		d.signal.lower()
	}
	return e, true, nil
}

// Kill ends the process that opened d, as the kernel does it: everything it has is gone
// at once, and its memory is not touched any more. All calls give ErrClosed from now on.
// Peers see no answer.
func (f *Fabric) Kill(d rdma.Device) {
	f.mu.Lock()
	defer f.mu.Unlock()
	dead := d.(*device)
	if dead.closed {
		return
	}
	c := dead.card
	for _, q := range c.qps {
		if q.dev == dead {
			q.remove()
		}
	}
	for _, m := range c.lkeys {
		if m.pd.dev == dead {
			m.remove()
		}
	}
	for _, ch := range dead.channels {
		ch.closed = true
		check(ch.signal.close())
	}
	check(dead.signal.close())
	dead.count = rdma.Resources{}
	dead.forget()
}

// check is for what cannot fail.
func check(err error) {
	if err != nil {
		panic("fake: " + err.Error())
	}
}

// forget takes the device from its card.
func (d *device) forget() {
	d.closed = true
	d.card.devices = slices.DeleteFunc(d.card.devices, func(x *device) bool { return x == d })
}

func (d *device) Close() error {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if err := d.closing(rdma.OpCloseDevice, d.closed); err != nil {
		return err
	}
	if d.count != (rdma.Resources{}) {
		return d.card.refuse(rdma.OpCloseDevice, 0, rdma.ErrBusy, syscall.EBUSY, "it still has %v", d.count)
	}
	d.forget()
	check(d.signal.close())
	return nil
}
