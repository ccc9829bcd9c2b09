package rdma

import (
	"fmt"
	"net/netip"
)

// Port is the state of a port at the time of the question.
type Port struct {
	Num        int
	State      PortState
	LinkLayer  LinkLayer
	MaxMTU     MTU
	ActiveMTU  MTU
	MaxMessage int64  // bytes of one work request
	LID        uint16 // 0 on Ethernet, and on InfiniBand without a subnet manager
	SMLID      uint16
	Rate       float64 // Gbit/s, after the encoding of the wire; 0 if not known
	GIDs       int     // length of the GID table
	PKeys      int     // length of the partition key table

	// GRHRequired says that peers must be addressed by GID also on InfiniBand.
	GRHRequired bool
}

// PortState is the logical state of a port; the numbers are those of verbs.
type PortState uint8

// States of a port.
const (
	PortNop PortState = iota
	PortDown
	PortInit // the link is there, no subnet manager has configured it
	PortArmed
	PortActive
	PortActiveDefer
)

var portStates = [...]string{"unknown", "down", "init", "armed", "active", "active (deferred)"}

func (s PortState) String() string { return name(portStates[:], int(s), "port state") }

// LinkLayer is what carries a port's packets; the numbers are those of verbs.
type LinkLayer uint8

// Link layers. Some old drivers do not say; theirs is InfiniBand.
const (
	LinkUnspecified LinkLayer = iota
	LinkInfiniBand
	LinkEthernet
)

var linkLayers = [...]string{"unspecified", "InfiniBand", "Ethernet"}

func (l LinkLayer) String() string { return name(linkLayers[:], int(l), "link layer") }

// MTU is a path's largest payload of one packet, in bytes: 256, 512, 1024, 2048 or 4096.
type MTU int

// Code is the number of an MTU on the wire, from 1 to 5; 0 for one that does not exist.
func (m MTU) Code() int {
	for code := 1; code <= 5; code++ {
		if m == 128<<code {
			return code
		}
	}
	return 0
}

// MTUFromCode is the inverse of Code. It is 0 for a code that does not exist.
func MTUFromCode(code int) MTU {
	if code < 1 || code > 5 {
		return 0
	}
	return 128 << code
}

// PathMTU is what both ends of a connection must use: the smaller of their
// active MTUs. Ends that differ hang or fail at the first large message.
func PathMTU(a, b MTU) MTU { return min(a, b) }

// GID is an address of a port: 16 bytes in the form of an IPv6 address.
type GID [16]byte

// Addr is the GID as an address; a mapped IPv4 address is returned as IPv4.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsZero reports an empty entry.
func (g GID) IsZero() bool { return g == GID{} }

// SubnetPrefix is the upper half, which on InfiniBand names the subnet.
func (g GID) SubnetPrefix() uint64 {
	var p uint64
	for _, b := range g[:8] {
		p = p<<8 | uint64(b)
	}
	return p
}

// DefaultSubnetPrefix is the prefix of a subnet that nobody has given one. Two
// separate subnets that both have it cannot be told apart.
const DefaultSubnetPrefix = 0xfe80 << 48

// String is the notation of IPv6, with ::ffff: before a mapped IPv4 address.
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// ParseGID reads an IPv6 address, or an IPv4 address as one that is mapped.
func ParseGID(s string) (GID, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return GID{}, fmt.Errorf("rdma: %q is not a GID: it is written as an IPv6 address, as in fe80::1 or ::ffff:10.0.0.1", s)
	}
	return a.As16(), nil
}

// GIDType says which packets an address of a GID table makes.
type GIDType uint8

// Types of GID. RoCE version 1 stays inside one Ethernet; version 2 is UDP over IP.
const (
	GIDUnknown GIDType = iota
	GIDInfiniBand
	GIDRoCEv1
	GIDRoCEv2
)

var gidTypes = [...]string{"unknown", "IB", "RoCE v1", "RoCE v2"}

func (t GIDType) String() string { return name(gidTypes[:], int(t), "GID type") }

// GIDEntry is one entry of a port's GID table.
type GIDEntry struct {
	Index  int
	GID    GID
	Type   GIDType
	NetDev string // the network interface of a RoCE address; empty if not known

	// Err says that the entry could not be read, or that the device cannot use it. That happens
	// in containers for entries of other network namespaces, and is no reason to give up.
	Err error
}

func (e GIDEntry) String() string {
	s := fmt.Sprintf("%d:", e.Index)
	if e.Err == nil || !e.GID.IsZero() {
		s += fmt.Sprintf(" %v %v", e.GID, e.Type)
		if e.NetDev != "" {
			s += " on " + e.NetDev
		}
	}
	if e.Err != nil {
		s += fmt.Sprintf(" unusable (%v)", e.Err)
	}
	return s
}

// name names value i of an enumeration.
func name(names []string, i int, kind string) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s %d", kind, i)
}
