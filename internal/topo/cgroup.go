package topo

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// membership is a control group that this process is in.
type membership struct {
	top  string // where the hierarchy is mounted, below the root
	path string // of the group in it
	v2   bool
}

// groups returns the control groups of this process that may have files of a controller: that
// of version 2, and that of version 1 which the controller is on. There are none in
// a kernel without control groups.
func (r Root) groups(controller string) ([]membership, error) {
	text, err := r.Text("proc/self/cgroup")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []membership
	for line := range strings.Lines(text) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(part) != 3:
			return nil, fmt.Errorf("topo: %s has the line %q", r.path("proc/self/cgroup"), strings.TrimSpace(line))
		case part[1] == "":
			all = append(all, membership{"sys/fs/cgroup", path.Clean("/" + part[2]), true})
		case slices.Contains(strings.Split(part[1], ","), controller):
			all = append(all, membership{"sys/fs/cgroup/" + controller, path.Clean("/" + part[2]), false})
		}
	}
	return all, nil
}

// limit returns the least limit among the control groups of this process and those above
// them, and the file that has it; Unlimited if there is none.
func (r Root) limit(controller, fileV2, fileV1 string) (least int64, where string, err error) {
	groups, err := r.groups(controller)
	if err != nil {
		return 0, "", err
	}
	least = Unlimited
	for _, g := range groups {
		file := fileV1
		if g.v2 {
			file = fileV2
		}
		// In a container the path may be one that is not seen in there: then the top counts.
		for dir := g.path; ; dir = path.Dir(dir) {
			name := g.top + path.Join(dir, file)
			// The file is missing at the top, and where the controller is off.
			s, err := r.Text(name)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return 0, "", err
			}
			if err == nil && s != "max" {
				n, err := strconv.ParseUint(s, 10, 64)
				if err != nil {
					return 0, "", fmt.Errorf("topo: %s holds %q, which is not a limit", r.path(name), s)
				}
				if n < uint64(least) && n < 1<<62 { // version 1 says "none" by a number near 2^63
					least, where = int64(n), "/"+name
				}
			}
			if dir == "/" {
				break
			}
		}
	}
	return least, where, nil
}

// MemoryLimit returns how many bytes of memory the control groups of this process leave it,
// and the file that says so; Unlimited if none does.
func (r Root) MemoryLimit() (bytes int64, where string, err error) {
	return r.limit("memory", "memory.max", "memory.limit_in_bytes")
}

// cpuset returns the processors of this process's control group; none when no file tells.
func (r Root) cpuset() ([]int, error) {
	groups, err := r.groups("cpuset")
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		files := []string{g.top + g.path + "/cpuset.effective_cpus", g.top + g.path + "/cpuset.cpus"}
		if g.v2 {
			files = []string{g.top + g.path + "/cpuset.cpus.effective", g.top + "/unified" + g.path + "/cpuset.cpus.effective"}
		}
		for _, file := range files {
			text, err := r.Text(file)
			if errors.Is(err, fs.ErrNotExist) || err == nil && text == "" {
				continue
			}
			if err != nil {
				return nil, err
			}
			return ParseCPUs(text)
		}
	}
	return nil, nil
}
