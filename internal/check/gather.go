package check

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/weft-hpc/weft/internal/topo"
)

// Names of limits, as /proc/self/limits has them.
const (
	memlock = "Max locked memory"
	nofile  = "Max open files"
	nproc   = "Max processes"
	stack   = "Max stack size"
	core    = "Max core file size"
)

// Gather reads the facts of the machine below root. What is not read there, the caller adds.
func Gather(root topo.Root) *Facts {
	f := &Facts{Limits: make(map[string]topo.Fact[Limit]), Ptrace: root.Ptrace()}
	for _, name := range []string{memlock, nofile, nproc, stack, core} {
		soft, hard, err := root.Limit(name)
		f.Limits[name] = topo.Known(Limit{soft, hard}, err)
	}
	total, _, err := root.Memory()
	f.Memory = topo.Known(total, err)
	tasks, _, err := root.Tasks()
	f.Tasks = topo.Known(tasks, err)
	f.Locks = topo.Known(mayLock(root))
	bytes, where, err := root.MemoryLimit()
	f.Cgroup = topo.Known(Cgroup{bytes, where}, err)
	f.Shm = shm(root)
	f.Ports = ports(root)
	f.Down = down(root)
	f.Library = library(root)
	return f
}

// mayLock tells whether the process has CAP_IPC_LOCK, for which memlock does not count.
func mayLock(root topo.Root) (bool, error) {
	const ipcLock = 14
	s, err := root.Text("proc/self/status")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(s) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return n>>ipcLock&1 == 1, err
		}
	}
	return false, errors.New("/proc/self/status does not tell capabilities")
}

func shm(root topo.Root) topo.Fact[Space] {
	if _, err := os.Stat(at(root, "dev/shm")); errors.Is(err, fs.ErrNotExist) {
		return topo.Fact[Space]{Absent: "there is no /dev/shm"}
	}
	size, free, err := root.Space("dev/shm")
	return topo.Known(Space{size, free}, err)
}

func at(root topo.Root, name string) string { return filepath.Join(string(root), name) }

// down returns the first interface of a device that is not up.
func down(root topo.Root) string {
	links, err := root.Links()
	if err != nil {
		return ""
	}
	for _, l := range links {
		if !l.Up && !l.Loopback && !l.Virtual {
			return l.Name
		}
	}
	return ""
}

// ports reads the ports of all RDMA devices.
func ports(root topo.Root) topo.Fact[[]Port] {
	answer, devices := root.RDMA()
	switch answer.State {
	case topo.Absent:
		return topo.Fact[[]Port]{Absent: answer.Why}
	case topo.Unknown:
		return topo.Fact[[]Port]{Error: answer.Why}
	}
	var all []Port
	for _, d := range devices {
		dir := "sys/class/infiniband/" + d + "/ports"
		entries, err := os.ReadDir(at(root, dir))
		if err != nil {
			return topo.Fact[[]Port]{Error: err.Error()}
		}
		for _, e := range entries {
			n, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			p, err := port(root, dir+"/"+e.Name())
			if err != nil {
				return topo.Fact[[]Port]{Error: err.Error()}
			}
			p.Device, p.Number = d, n
			if p.NetDev == "" {
				p.NetDev = netDevice(root, d)
			}
			all = append(all, p)
		}
	}
	return topo.Fact[[]Port]{Value: all}
}

// netDevice returns the network interface under a device, if it is told: that of a card's
// function, or the one that a device in software was made on.
func netDevice(root topo.Root, device string) string {
	dir := "sys/class/infiniband/" + device
	if entries, err := os.ReadDir(at(root, dir+"/device/net")); err == nil && len(entries) > 0 {
		return entries[0].Name()
	}
	parent, err := root.Text(dir + "/parent")
	if err != nil {
		return ""
	}
	return parent
}

func port(root topo.Root, dir string) (p Port, err error) {
	for _, v := range []struct {
		file string
		to   *string
	}{{"state", &p.State}, {"phys_state", &p.Phys}, {"link_layer", &p.Layer}} {
		if *v.to, err = root.Text(dir + "/" + v.file); err != nil {
			return p, err
		}
	}
	entries, err := os.ReadDir(at(root, dir+"/gids"))
	if err != nil {
		return p, err
	}
	for _, e := range entries {
		i, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		gid, err := root.Text(dir + "/gids/" + e.Name())
		if err != nil {
			return p, err
		}
		if strings.Trim(gid, "0:") == "" {
			continue // not in use
		}
		g := GID{Index: i, GID: gid}
		if g.Type, err = root.Text(dir + "/gid_attrs/types/" + e.Name()); err != nil {
			if errors.Is(err, syscall.EINVAL) {
				continue // it went meanwhile
			}
			return p, err
		}
		if g.NetDev, err = root.Text(dir + "/gid_attrs/ndevs/" + e.Name()); err != nil {
			g.NetDev = "" // InfiniBand's have none
		}
		if p.NetDev == "" {
			p.NetDev = g.NetDev
		}
		p.GIDs = append(p.GIDs, g)
	}
	slices.SortFunc(p.GIDs, func(a, b GID) int { return a.Index - b.Index })
	return p, nil
}

// library returns the file that the dynamic linker takes for libibverbs, which has its version.
func library(root topo.Root) topo.Fact[string] {
	const name = "libibverbs.so.1"
	cache, err := os.ReadFile(at(root, "etc/ld.so.cache"))
	if err != nil {
		return topo.Fact[string]{Error: err.Error()}
	}
	// The names of libraries and the paths of their files are strings in it, with a zero at the end.
	for s := range strings.SplitSeq(string(cache), "\x00") {
		if i := strings.IndexByte(s, '/'); i >= 0 && path.Base(s) == name {
			file := s[i:]
			if target, err := filepath.EvalSymlinks(at(root, file)); err == nil {
				file = target
			}
			return topo.Fact[string]{Value: path.Base(file)}
		}
	}
	return topo.Fact[string]{Absent: name + " is not installed"}
}
