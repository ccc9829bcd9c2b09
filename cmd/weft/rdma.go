package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/Mellanox/rdmamap"
	"github.com/vishvananda/netlink"

	"github.com/weft-hpc/weft/internal/topo"
	"github.com/weft-hpc/weft/rdma"
)

// rdmaInfo is what a provider's library and the kernel tell of RDMA here.
type rdmaInfo struct {
	Provider string                      `json:"provider"`
	Devices  topo.Fact[[]rdmaInfoDevice] `json:"devices"`
	Netns    topo.Fact[string]           `json:"netns"` // shared: every network namespace sees every device
	Choice   topo.Fact[rdmaChoice]       `json:"choice"`
	Warning  string                      `json:"warning,omitempty"`

	none bool // the system was asked, and has nothing to use
}

// rdmaChoice is the port and the address that a job would get here, and why.
type rdmaChoice struct {
	Device string `json:"device"`
	Port   int    `json:"port"`
	GID    int    `json:"gid_index"`
	Why    string `json:"why"`
}

type rdmaInfoDevice struct {
	Name     string   `json:"name"`
	Driver   string   `json:"driver"`
	Firmware string   `json:"firmware"`
	NUMA     int      `json:"numa"` // -1: not known
	NetDevs  []string `json:"net_devices"`
	Files    []string `json:"files"` // in /dev/infiniband

	// Live counts the objects that all processes together have on the device.
	Live  topo.Fact[map[string]uint64] `json:"live"`
	Ports []rdmaInfoPort               `json:"ports"`
	Error string                       `json:"error,omitempty"` // why it could not be opened
}

type rdmaInfoPort struct {
	Number    int           `json:"number"`
	State     string        `json:"state"`
	LinkLayer string        `json:"link_layer"`
	LID       uint16        `json:"lid"`
	ActiveMTU int           `json:"active_mtu"`
	MaxMTU    int           `json:"max_mtu"`
	Gbit      float64       `json:"gbit"` // 0: not known
	GIDs      []rdmaInfoGID `json:"gids"`
	Error     string        `json:"error,omitempty"`
}

type rdmaInfoGID struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`
	Type   string `json:"type"`
	NetDev string `json:"net_device,omitempty"`
	Error  string `json:"error,omitempty"`
	text   string // all of it
}

// gatherRDMA asks the provider for its devices, opens each, and chooses as a job
// would for a process near the processors cpus.
func gatherRDMA(p rdma.Provider, numa int) *rdmaInfo {
	r := &rdmaInfo{Provider: p.Name()}
	r.Netns = topo.Known(netlink.RdmaSystemGetNetnsMode())
	list, err := p.Devices()
	if err != nil {
		r.Devices.Error, r.Choice.Error = err.Error(), err.Error()
		r.none = errors.Is(err, rdma.ErrNoDevice) || errors.Is(err, rdma.ErrUnsupported)
		return r
	}
	live, liveErr := liveObjects()
	interfaces := netDevices()
	var all []rdma.Candidate
	tables := map[string][]rdma.GIDEntry{} // by device:port
	for _, d := range list {
		out := rdmaInfoDevice{Name: d.Name, Driver: d.Driver, Firmware: d.Firmware, NUMA: d.NUMANode,
			NetDevs: interfaces[d.Name], Files: rdmamap.GetRdmaCharDevices(d.Name), Live: topo.Known(live[d.Name], liveErr)}
		candidates, err := openPorts(p, d, &out, tables)
		if err != nil {
			out.Error = err.Error()
		}
		all = append(all, candidates...)
		r.Devices.Value = append(r.Devices.Value, out)
	}
	r.Choice = topo.Known(chooseRDMA(all, tables, numa))
	r.none = true // if there is no choice
	r.Warning = rdma.SubnetClash(all)
	return r
}

func openPorts(p rdma.Provider, d rdma.DeviceInfo, out *rdmaInfoDevice, tables map[string][]rdma.GIDEntry) (all []rdma.Candidate, err error) {
	dev, err := p.Open(d.Name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	for n := 1; n <= dev.Limits().Ports; n++ {
		port, err := dev.QueryPort(n)
		if err != nil {
			out.Ports = append(out.Ports, rdmaInfoPort{Number: n, Error: err.Error()})
			continue
		}
		row := rdmaInfoPort{Number: n, State: port.State.String(), LinkLayer: port.LinkLayer.String(), LID: port.LID,
			ActiveMTU: int(port.ActiveMTU), MaxMTU: int(port.MaxMTU), Gbit: port.Rate}
		gids, err := dev.GIDTable(n)
		if err != nil {
			row.Error = err.Error()
		}
		c := rdma.Candidate{Device: dev.Info(), Port: port}
		for _, g := range gids {
			e := rdmaInfoGID{Index: g.Index, GID: g.GID.String(), Type: g.Type.String(), NetDev: g.NetDev, text: g.String()}
			if g.Err != nil {
				e.Error = g.Err.Error()
			} else if c.Subnet == 0 && port.LinkLayer == rdma.LinkInfiniBand {
				c.Subnet = g.GID.SubnetPrefix()
			}
			row.GIDs = append(row.GIDs, e)
		}
		tables[c.String()] = gids
		out.Ports = append(out.Ports, row)
		all = append(all, c)
	}
	return all, nil
}

func chooseRDMA(all []rdma.Candidate, tables map[string][]rdma.GIDEntry, numa int) (rdmaChoice, error) {
	c, why, err := rdma.ChoosePort(all, "", numa)
	if err != nil {
		return rdmaChoice{}, err
	}
	g, err := rdma.ChooseGID(c.Device.Name, c.Port, tables[c.String()], rdma.GIDWish{})
	if err != nil {
		return rdmaChoice{}, err
	}
	return rdmaChoice{Device: c.Device.Name, Port: c.Port.Num, GID: g.Index, Why: why + "; " + g.GIDEntry.String() + ": " + g.Reason}, nil
}

// liveObjects counts what all processes have on each device, as the kernel tells.
func liveObjects() (map[string]map[string]uint64, error) {
	list, err := netlink.RdmaResourceList()
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	live := make(map[string]map[string]uint64)
	for _, r := range list {
		live[r.Name] = r.RdmaResourceSummaryEntries
	}
	return live, nil
}

// netDevices maps RDMA devices to the network interfaces on top of them.
func netDevices() map[string][]string {
	names := make(map[string][]string)
	links, err := netlink.LinkList()
	if err != nil {
		return names // weft info says what the interfaces are, and why not, in rows of its own
	}
	for _, l := range links {
		if dev, err := rdmamap.GetRdmaDeviceForNetdevice(l.Attrs().Name); err == nil && dev != "" {
			names[dev] = append(names[dev], l.Attrs().Name)
		}
	}
	return names
}

// rows returns the lines that weft info prints of RDMA.
func (r *rdmaInfo) rows(row func(name, text string)) {
	for _, d := range r.Devices.Value {
		row("RDMA device "+d.Name, d.describe())
		if d.Error != "" {
			row("  not usable", d.Error)
		}
		for _, p := range d.Ports {
			row(fmt.Sprintf("  port %d", p.Number), p.describe())
			for _, g := range p.GIDs {
				row("  GID", g.text)
			}
		}
	}
	if r.Warning != "" {
		row("RDMA warning", r.Warning)
	}
	if c := r.Choice.Value; r.Choice.Error == "" { // else the row of the transport says why
		row("RDMA choice", fmt.Sprintf("%s:%d with GID %d: %s", c.Device, c.Port, c.GID, c.Why))
	}
}

func (d *rdmaInfoDevice) describe() string {
	parts := []string{orUnknown("driver ", d.Driver), orUnknown("firmware ", d.Firmware)}
	if d.NUMA >= 0 {
		parts = append(parts, fmt.Sprintf("NUMA node %d", d.NUMA))
	} else {
		parts = append(parts, "NUMA node not known")
	}
	if len(d.NetDevs) > 0 {
		parts = append(parts, "interfaces "+strings.Join(d.NetDevs, " "))
	}
	parts = append(parts, "in use by all processes: "+textOf(d.Live, func(live map[string]uint64) string {
		var counts []string
		for name, n := range live {
			counts = append(counts, fmt.Sprintf("%s %d", name, n))
		}
		slices.Sort(counts)
		return strings.Join(counts, ", ")
	}))
	return strings.Join(parts, ", ")
}

func (p *rdmaInfoPort) describe() string {
	if p.State == "" {
		return "unknown (" + p.Error + ")"
	}
	s := fmt.Sprintf("%s, %s, MTU %d of %d", p.State, p.LinkLayer, p.ActiveMTU, p.MaxMTU)
	if p.Gbit > 0 {
		s += fmt.Sprintf(", %g Gbit/s", p.Gbit)
	}
	if p.LinkLayer == rdma.LinkInfiniBand.String() {
		s += fmt.Sprintf(", LID %d", p.LID)
	}
	if p.Error != "" {
		s += ", GIDs unknown (" + p.Error + ")"
	}
	return s
}

func orUnknown(what, value string) string {
	if value == "" {
		return what + "not known"
	}
	return what + value
}

// verbsAnswer says whether the verbs transport would work.
func (r *rdmaInfo) verbsAnswer() topo.Answer {
	switch {
	case r.Choice.Error == "":
	case r.none:
		return topo.Answer{State: topo.Absent, Why: r.Choice.Error}
	default:
		return topo.Answer{State: topo.Unknown, Why: r.Choice.Error}
	}
	c := r.Choice.Value
	return topo.Answer{State: topo.Present, Why: fmt.Sprintf("%s:%d with GID %d", c.Device, c.Port, c.GID)}
}
