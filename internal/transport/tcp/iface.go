package tcp

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Interface is a network interface of this host, as far as the choice of one
// needs it.
type Interface struct {
	Name  string
	Flags net.Flags
	Addrs []netip.Prefix
}

// systemInterfaces lists the interfaces of this host in the kernel's order.
func systemInterfaces() ([]Interface, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("tcp: list network interfaces: %w", err)
	}
	var out []Interface
	for _, ni := range list {
		addrs, err := ni.Addrs()
		if err != nil {
			return nil, fmt.Errorf("tcp: list addresses of %s: %w", ni.Name, err)
		}
		i := Interface{Name: ni.Name, Flags: ni.Flags}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				i.Addrs = append(i.Addrs, netip.PrefixFrom(p.Addr().Unmap(), p.Bits()))
			}
		}
		out = append(out, i)
	}
	return out, nil
}

// virtual lists prefixes of names of interfaces that lead to containers and
// virtual machines of this host only. Their addresses are often the same on all
// hosts, so a rank that announces one is reached by nobody, or by the wrong rank.
var virtual = []string{"docker", "br-", "virbr", "veth", "vnet", "cni", "flannel", "cali", "podman", "lxcbr", "lxdbr", "tap", "dummy"}

// choice is the address to listen at, and why.
type choice struct {
	name string
	addr netip.Addr
	why  string
}

// choose picks the address that peers shall dial. want is the name of an
// interface, an address or a CIDR prefix; empty leaves the choice to us.
func choose(list []Interface, want string, loopback bool) (choice, error) {
	if want != "" {
		return chooseNamed(list, want)
	}
	if loopback {
		return choice{"lo", netip.AddrFrom4([4]byte{127, 0, 0, 1}), "all ranks are on this host"}, nil
	}
	var found []choice
	var passed []string
	for _, i := range list {
		addr, no := usable(i)
		if no != "" {
			passed = append(passed, i.Name+" ("+no+")")
			continue
		}
		found = append(found, choice{name: i.Name, addr: addr})
	}
	if len(found) == 0 {
		return choice{}, fmt.Errorf("tcp: no network interface to reach other hosts by: passed over %s; name one with --interface",
			strings.Join(passed, ", "))
	}
	c := found[0]
	for _, other := range found { // IPv4 first: it is there on all hosts more often
		if other.addr.Is4() {
			c = other
			break
		}
	}
	c.why = "the only usable interface"
	if len(found) > 1 {
		c.why = fmt.Sprintf("the first of %d usable interfaces (--interface names another)", len(found))
	}
	if len(passed) > 0 {
		c.why += "; passed over " + strings.Join(passed, ", ")
	}
	return c, nil
}

// Choose returns the interface by which a rank with that wish, or none, would reach ranks
// on other hosts, and the address that these would dial.
func Choose(want string) (name string, addr netip.Addr, err error) {
	list, err := systemInterfaces()
	if err != nil {
		return "", addr, err
	}
	c, err := choose(list, want, false)
	return c.name, c.addr, err
}

// usable returns the address of an interface that nobody named, or why not.
func usable(i Interface) (addr netip.Addr, no string) {
	switch {
	case i.Flags&net.FlagLoopback != 0:
		return addr, "loopback"
	case i.Flags&net.FlagUp == 0:
		return addr, "down"
	case i.Flags&net.FlagRunning == 0:
		return addr, "no carrier"
	case i.Flags&net.FlagPointToPoint != 0:
		return addr, "point to point"
	}
	for _, p := range virtual {
		if strings.HasPrefix(i.Name, p) {
			return addr, "containers or virtual machines"
		}
	}
	if addr = firstAddr(i, func(a netip.Addr) bool { return !a.IsLinkLocalUnicast() }); !addr.IsValid() {
		return addr, "no address"
	}
	return addr, ""
}

// firstAddr returns the first IPv4 address that ok admits, else the first IPv6
// one. Link-local IPv6 addresses mean nothing without a zone, which differs from host to host.
func firstAddr(i Interface, ok func(netip.Addr) bool) (first netip.Addr) {
	for _, p := range i.Addrs {
		a := p.Addr()
		switch {
		case a.Is6() && a.IsLinkLocalUnicast() || a.IsUnspecified() || a.IsMulticast() || !ok(a):
		case a.Is4():
			return a
		case !first.IsValid():
			first = a
		}
	}
	return first
}

// chooseNamed obeys a wish, or says what else there is.
func chooseNamed(list []Interface, want string) (choice, error) {
	prefix, err := netip.ParsePrefix(want)
	if err != nil {
		if a, err := netip.ParseAddr(want); err == nil {
			prefix = netip.PrefixFrom(a, a.BitLen())
		}
	}
	for _, i := range list {
		var addr netip.Addr
		switch {
		case prefix.IsValid():
			addr = firstAddr(i, prefix.Masked().Contains)
			if !addr.IsValid() {
				continue
			}
		case i.Name == want:
			addr = firstAddr(i, func(netip.Addr) bool { return true })
		default:
			continue
		}
		if i.Flags&net.FlagUp == 0 {
			return choice{}, fmt.Errorf("tcp: interface %s, which --interface %s means, is down; there are: %s", i.Name, want, candidates(list))
		}
		if !addr.IsValid() {
			return choice{}, fmt.Errorf("tcp: interface %s has no address to listen at; there are: %s", i.Name, candidates(list))
		}
		return choice{i.Name, addr, "--interface " + want}, nil
	}
	return choice{}, fmt.Errorf("tcp: this host has no interface %s; there are: %s", want, candidates(list))
}

// candidates lists all interfaces for an error.
func candidates(list []Interface) string {
	var out []string
	for _, i := range list {
		s := i.Name
		for _, p := range i.Addrs {
			s += " " + p.String()
		}
		if i.Flags&net.FlagUp == 0 {
			s += " (down)"
		}
		out = append(out, s)
	}
	if out == nil {
		return "none"
	}
	return strings.Join(out, ", ")
}
