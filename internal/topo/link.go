package topo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Link is a network interface as the kernel sees it.
type Link struct {
	Name     string `json:"name"`
	Up       bool   `json:"up"`
	Loopback bool   `json:"loopback"`
	Virtual  bool   `json:"virtual"` // no device behind it: bridges, tunnels, veth
	MTU      int64  `json:"mtu"`
	Mbit     int64  `json:"mbit"` // 0: the driver does not tell
	NUMA     int64  `json:"numa"` // -1: none or not told
}

// Links returns the network interfaces by name.
func (r Root) Links() ([]Link, error) {
	const dir = "sys/class/net"
	names, err := r.list(dir)
	if err != nil {
		return nil, err
	}
	var links []Link
	for _, name := range names {
		at := dir + "/" + name + "/"
		flags, err := r.Text(at + "flags")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			continue // it has gone meanwhile, or is the file bonding_masters
		}
		if err != nil {
			return nil, err
		}
		f, err := strconv.ParseUint(strings.TrimPrefix(flags, "0x"), 16, 64)
		if err != nil {
			return nil, fmt.Errorf("topo: %s holds %q, which are no flags", r.path(at+"flags"), flags)
		}
		l := Link{Name: name, Loopback: f&0x8 != 0, NUMA: -1}
		// An interface whose driver does not report a state is as good as its
		// administrative flag; "unknown" is what loopback says.
		state, err := r.Text(at + "operstate")
		l.Up = f&0x1 != 0 && (err != nil || state == "up" || state == "unknown")
		l.MTU, err = r.number(at + "mtu")
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone, too
		}
		if err != nil {
			return nil, err
		}
		if speed, err := r.number(at + "speed"); err == nil && speed > 0 { // EINVAL when down, -1 when unknown
			l.Mbit = speed
		}
		if node, err := r.number(at + "device/numa_node"); err == nil {
			l.NUMA = node
		}
		if target, err := os.Readlink(r.path(at)); err == nil {
			l.Virtual = strings.Contains(filepath.ToSlash(target), "/virtual/")
		}
		links = append(links, l)
	}
	return links, nil
}

// RDMA answers whether there are RDMA devices, and names them.
func (r Root) RDMA() (Answer, []string) {
	const dir = "sys/class/infiniband"
	names, err := r.list(dir)
	switch {
	case err != nil:
		return unknown("%v", err), nil
	case len(names) > 0:
		return yes("%s in /%s", strings.Join(names, ", "), dir), names
	}
	if _, err := os.Stat(r.path("sys/class")); errors.Is(err, fs.ErrNotExist) {
		return unknown("there is no /sys here"), nil
	}
	return no("no device in /%s", dir), nil
}

// Card is a network card: an RDMA device, or a network interface.
type Card struct {
	Name string
	Node int // of NUMA
}

// Cards returns the cards that may reach other hosts and of which the kernel tells the NUMA
// node: RDMA devices with an active port if rdma, else interfaces that are up.
func (r Root) Cards(rdma bool) ([]Card, error) {
	var cards []Card
	if !rdma {
		links, err := r.Links()
		for _, l := range links {
			if l.Up && !l.Loopback && l.NUMA >= 0 {
				cards = append(cards, Card{l.Name, int(l.NUMA)})
			}
		}
		return cards, err
	}
	const dir = "sys/class/infiniband"
	devices, err := r.list(dir)
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		ports, err := r.list(dir + "/" + d + "/ports")
		if err != nil {
			return nil, err
		}
		active := slices.ContainsFunc(ports, func(port string) bool {
			state, err := r.Text(dir + "/" + d + "/ports/" + port + "/state") // such as "4: ACTIVE"
			return err == nil && strings.HasSuffix(state, "ACTIVE")
		})
		// A device in software has no node, nor has one a machine without NUMA.
		if node, err := r.number(dir + "/" + d + "/device/numa_node"); active && err == nil && node >= 0 {
			cards = append(cards, Card{d, int(node)})
		}
	}
	return cards, nil
}
