package ibverbs

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/rdma"
)

// sysfs is what the kernel shows of devices, below a root that is /sys except in tests.
type sysfs string

func (s sysfs) class(device string, rest ...string) string {
	return filepath.Join(append([]string{string(s), "class/infiniband", device}, rest...)...)
}

// read returns the first line of a file, or "".
func (s sysfs) read(path string) string {
	b, _ := os.ReadFile(path)
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line)
}

// devices lists the devices that the kernel has.
func (s sysfs) devices() []string {
	entries, _ := os.ReadDir(s.class(""))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// driver is the kernel driver of a device. Devices in software have none in
// sysfs; of these only soft-RoCE names its network interface as its parent.
func (s sysfs) driver(device string) string {
	if link, err := os.Readlink(s.class(device, "device/driver")); err == nil {
		return filepath.Base(link)
	}
	if s.parent(device) != "" {
		return driverRXE
	}
	return ""
}

const driverRXE = "rdma_rxe"

// parent is the network interface that a device in software is made of.
func (s sysfs) parent(device string) string { return s.read(s.class(device, "parent")) }

// numaNode is the NUMA node of a device, or of what it is made of; -1 if not known.
func (s sysfs) numaNode(device string) int {
	paths := []string{s.class(device, "device/numa_node")}
	if parent := s.parent(device); parent != "" {
		paths = append(paths, filepath.Join(string(s), "class/net", parent, "device/numa_node"))
	}
	for _, path := range paths {
		if n, err := strconv.Atoi(s.read(path)); err == nil {
			return n
		}
	}
	return -1
}

// ports is the number of ports of a device, 0 if not known.
func (s sysfs) ports(device string) int {
	entries, _ := os.ReadDir(s.class(device, "ports"))
	return len(entries)
}

// gidNetDev is the network interface of a GID; empty if not known.
func (s sysfs) gidNetDev(device string, port, index int) string {
	return s.read(s.class(device, "ports", strconv.Itoa(port), "gid_attrs/ndevs", strconv.Itoa(index)))
}

// netdev is the network interface of a GID, or of the port.
func (s sysfs) netdev(device string, port, index int) string {
	return cmp.Or(s.gidNetDev(device, port, index), s.gidNetDev(device, port, 0), s.parent(device))
}

// gids reads the n entries of a port's table that are not empty. Those that cannot be read
// have their Err: in containers the kernel refuses those of other namespaces.
func (s sysfs) gids(device string, port, n int, link rdma.LinkLayer) ([]rdma.GIDEntry, error) {
	dir := s.class(device, "ports", strconv.Itoa(port))
	if _, err := os.Stat(filepath.Join(dir, "gids")); err != nil {
		return nil, err
	}
	var all []rdma.GIDEntry
	for i := range n {
		e := rdma.GIDEntry{Index: i}
		index := strconv.Itoa(i)
		text, err := os.ReadFile(filepath.Join(dir, "gids", index))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			e.GID, err = rdma.ParseGID(strings.TrimSpace(string(text)))
		}
		if err != nil {
			e.Err = err
			all = append(all, e)
			continue
		}
		if e.GID.IsZero() || link == rdma.LinkEthernet && e.GID == (rdma.GID{0: 0xfe, 1: 0x80}) {
			continue // a link-local prefix without an interface is how some kernels write an empty entry
		}
		e.Type, err = s.gidType(dir, index, link)
		e.Err = err
		e.NetDev = s.gidNetDev(device, port, i)
		all = append(all, e)
	}
	return all, nil
}

func (s sysfs) gidType(dir, index string, link rdma.LinkLayer) (rdma.GIDType, error) {
	if link != rdma.LinkEthernet {
		return rdma.GIDInfiniBand, nil // of which there is one kind
	}
	text, err := os.ReadFile(filepath.Join(dir, "gid_attrs/types", index))
	if err != nil {
		return rdma.GIDUnknown, err
	}
	switch t := strings.TrimSpace(string(text)); t {
	case "IB/RoCE v1":
		return rdma.GIDRoCEv1, nil
	case "RoCE v2":
		return rdma.GIDRoCEv2, nil
	default:
		return rdma.GIDUnknown, errors.New("ibverbs: the kernel calls its type " + strconv.Quote(t))
	}
}
