package tcp

import (
	"net"
	"net/netip"
	"strings"
	"testing"
)

const running = net.FlagUp | net.FlagRunning

func iface(name string, flags net.Flags, addrs ...string) Interface {
	i := Interface{Name: name, Flags: flags}
	for _, a := range addrs {
		i.Addrs = append(i.Addrs, netip.MustParsePrefix(a))
	}
	return i
}

// node is what a compute node with containers looks like: the container bridge
// comes first, and has an address that all nodes have.
var node = []Interface{
	iface("lo", running|net.FlagLoopback, "127.0.0.1/8", "::1/128"),
	iface("docker0", running, "172.17.0.1/16"),
	iface("virbr0", running, "192.168.122.1/24"),
	iface("veth12ab", running, "169.254.3.4/16"),
	iface("br-0123456789ab", running, "172.18.0.1/16"),
	iface("eth0", net.FlagRunning, "10.0.0.5/24"),
	iface("eth1", running, "fe80::1/64"),
	iface("eth2", running, "fe80::2/64", "2001:db8::5/64"),
	iface("tun0", running|net.FlagPointToPoint, "10.8.0.2/32"),
	iface("eno1", running, "fe80::3/64", "2001:db8:1::5/64", "10.1.0.5/16"),
	iface("ib0", running, "10.2.0.5/16"),
	iface("eno2", net.FlagUp, "10.3.0.5/16"),
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		name     string
		list     []Interface
		want     string
		loopback bool
		addr     string // empty: an error
		says     []string
	}{
		{"containers first", node, "", false, "10.1.0.5", []string{"the first of 3", "docker0 (containers", "virbr0 (containers",
			"br-0123456789ab (containers", "eth0 (down)", "eth1 (no address)", "tun0 (point to point)", "eno2 (no carrier)"}},
		{"one host", node, "", true, "127.0.0.1", []string{"this host"}},
		{"one host, but asked", node, "ib0", true, "10.2.0.5", []string{"--interface ib0"}},
		{"by name", node, "ib0", false, "10.2.0.5", []string{"--interface ib0"}},
		{"docker when asked", node, "docker0", false, "172.17.0.1", nil},
		{"link-local when asked", node, "veth12ab", false, "169.254.3.4", nil},
		{"loopback when asked", node, "lo", false, "127.0.0.1", nil},
		{"by prefix", node, "10.2.0.0/16", false, "10.2.0.5", nil},
		{"by sloppy prefix", node, "10.2.9.9/16", false, "10.2.0.5", nil},
		{"by address", node, "10.1.0.5", false, "10.1.0.5", nil},
		{"IPv6 prefix", node, "2001:db8::/64", false, "2001:db8::5", nil},
		{"unknown name", node, "eth9", false, "", []string{"no interface eth9", "ib0 10.2.0.5/16", "docker0", "eth0 10.0.0.5/24 (down)"}},
		{"unknown prefix", node, "10.9.0.0/16", false, "", []string{"no interface 10.9.0.0/16", "ib0 10.2.0.5/16"}},
		{"down", node, "eth0", false, "", []string{"eth0", "is down", "ib0"}},
		{"down by prefix", node, "10.0.0.0/24", false, "", []string{"eth0", "is down"}},
		{"IPv6 link-local only", node, "eth1", false, "", []string{"eth1 has no address", "ib0"}},
		{"IPv6 only", node[7:8], "", false, "2001:db8::5", []string{"only usable"}},
		{"only containers", node[:3], "", false, "", []string{"lo (loopback)", "docker0 (containers", "--interface"}},
		{"nothing", nil, "", false, "", nil},
		{"nothing, by name", nil, "eth0", false, "", []string{"there are: none"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := choose(c.list, c.want, c.loopback)
			said := got.why
			if err != nil {
				said = err.Error()
			}
			if (err != nil) != (c.addr == "") || err == nil && got.addr.String() != c.addr {
				t.Fatalf("chose %v (%s), error %v; want %q", got.addr, got.why, err, c.addr)
			}
			for _, s := range c.says {
				if !strings.Contains(said, s) {
					t.Errorf("%q does not say %q", said, s)
				}
			}
		})
	}
}

func TestSystemInterfaces(t *testing.T) {
	list, err := systemInterfaces()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := choose(list, "127.0.0.0/8", false); err != nil {
		t.Errorf("loopback is not among the interfaces of this host: %v", err)
	}
}
