package batch

import (
	"fmt"
	"net/netip"
	"strings"
)

// Hostfile reads a list of hosts as any of the usual launchers takes it. Name is
// the file's, for errors. A host whose slots are not told has 0 of them.
//
//	host                         one line for each slot, if it comes again
//	host slots=4 max_slots=8     Open MPI
//	host:4                       MPICH
//	host 4                       LSF
//	n[01-04] slots=4             with ranges
//	# a comment
func Hostfile(name string, b []byte) ([]Host, error) {
	var j Job
	told := make(map[string]string) // how a host's slots were told
	err := eachLine(name, b, func(index int, line string) error {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			return nil
		}
		names, slots, err := hostLine(line)
		if err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		for _, n := range names {
			how := "repeated"
			if slots > 0 {
				how = "counted"
			}
			if before, ok := told[n]; ok && (before != how || how == "counted") {
				return fmt.Errorf("%q: host %s has slots from an earlier line already; give a number once, or one line for each slot", line, n)
			}
			first := told[n] == ""
			told[n] = how
			add := slots
			if slots == 0 && !first {
				// The first line of a host may be its only one, which tells nothing.
				add = 1
				for i := range j.Hosts {
					if j.Hosts[i].Name == n && j.Hosts[i].Slots == 0 {
						add = 2
					}
				}
			}
			if err := j.add(n, add, index); err != nil {
				return fmt.Errorf("%q: %w", line, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(j.Hosts) == 0 {
		return nil, fmt.Errorf("%s has no hosts", name)
	}
	return j.Hosts, nil
}

// hostLine reads one line of a hostfile.
func hostLine(line string) (names []string, slots int, err error) {
	// slots = 4 is slots=4.
	for strings.Contains(line, " =") || strings.Contains(line, "= ") {
		line = strings.ReplaceAll(strings.ReplaceAll(line, " =", "="), "= ", "=")
	}
	f := strings.Fields(line)
	names, slots, err = hostToken(f[0])
	if err != nil {
		return nil, 0, err
	}
	for i, word := range f[1:] {
		key, value, ok := strings.Cut(word, "=")
		n, bad := number(value)
		switch {
		case !ok && i == 0 && len(f) == 2 && slots == 0: // host 4
			if slots, err = number(word); err != nil {
				return nil, 0, err
			}
		case key == "slots" || key == "slot" || key == "cpu" || key == "cpus":
			if slots > 0 {
				return nil, 0, fmt.Errorf("the slots are told twice")
			}
			if bad != nil {
				return nil, 0, bad
			}
			slots = n
		case key == "max_slots" || key == "max-slots":
			if bad != nil {
				return nil, 0, bad
			}
		default:
			return nil, 0, fmt.Errorf("%q is not understood", word)
		}
	}
	return names, slots, nil
}

// hostToken reads host, host:4, host[1-3]:4, or an address. More than one colon
// makes an address, which has slots only in the form [address]:4.
func hostToken(token string) (names []string, slots int, err error) {
	if strings.HasPrefix(token, "[") {
		end := strings.IndexByte(token, ']')
		if end < 0 {
			return nil, 0, fmt.Errorf("%q has a [ without a ]", token)
		}
		addr, err := netip.ParseAddr(token[1:end])
		if err != nil {
			return nil, 0, fmt.Errorf("%q is neither a name nor an address", token)
		}
		if rest := token[end+1:]; rest != "" {
			count, ok := strings.CutPrefix(rest, ":")
			if !ok {
				return nil, 0, fmt.Errorf("%q: %q is not understood", token, rest)
			}
			if slots, err = number(count); err != nil {
				return nil, 0, err
			}
		}
		return []string{addr.String()}, slots, nil
	}
	if strings.Count(token, ":") > 1 {
		if _, err := netip.ParseAddr(token); err != nil {
			return nil, 0, fmt.Errorf("%q is neither a name nor an address", token)
		}
		return []string{token}, 0, nil
	}
	list, count, ok := strings.Cut(token, ":")
	if ok {
		if slots, err = number(count); err != nil {
			return nil, 0, err
		}
	}
	names, err = Expand(list)
	return names, slots, err
}

// HostList reads the argument of --host: names, with slots or ranges, and commas
// between them. A host without a number has one slot for each time it is named;
// with * it has 0, for as many as the host has processors.
func HostList(arg string) ([]Host, error) {
	tokens, err := splitList(arg)
	if err != nil {
		return nil, err
	}
	var j Job
	for i, t := range tokens {
		star := false
		if s, ok := strings.CutSuffix(t, ":*"); ok {
			t, star = s, true
		}
		names, slots, err := hostToken(t)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", arg, err)
		}
		if slots == 0 && !star {
			slots = 1
		}
		for _, n := range names {
			if err := j.add(n, slots, i); err != nil {
				return nil, fmt.Errorf("%q: %w", arg, err)
			}
		}
	}
	if len(j.Hosts) == 0 {
		return nil, fmt.Errorf("%q names no host", arg)
	}
	return j.Hosts, nil
}

// Select returns the wanted hosts of a job, with the job's spelling of their
// names. It may not take hosts or slots that the job does not have. A wanted host
// without slots takes all of its own.
func (j *Job) Select(wanted []Host) ([]Host, error) {
	out := make([]Host, 0, len(wanted))
	for _, w := range wanted {
		i, err := j.find(w.Name)
		if err != nil {
			return nil, err
		}
		h := j.Hosts[i]
		for _, o := range out {
			if o.Name == h.Name {
				return nil, fmt.Errorf("host %s is asked for twice, as %s too", h.Name, w.Name)
			}
		}
		if w.Slots > h.Slots {
			return nil, fmt.Errorf("host %s: %d slots are asked for, and %s job %s has %d there", h.Name, w.Slots, j.System, j.ID, h.Slots)
		}
		if w.Slots > 0 {
			h.Slots = w.Slots
		}
		out = append(out, h)
	}
	return out, nil
}

// find returns the host that a user's name means: its own, or the short form of
// one host's alone.
func (j *Job) find(name string) (int, error) {
	short := -1
	for i, h := range j.Hosts {
		if h.Name == name {
			return i, nil
		}
		if strings.HasPrefix(h.Name, name+".") || strings.HasPrefix(name, h.Name+".") {
			if short >= 0 {
				return 0, fmt.Errorf("host %s may be %s or %s, which both are in %s job %s", name, j.Hosts[short].Name, h.Name, j.System, j.ID)
			}
			short = i
		}
	}
	if short >= 0 {
		return short, nil
	}
	names := make([]string, len(j.Hosts))
	for i, h := range j.Hosts {
		names[i] = h.Name
	}
	return 0, fmt.Errorf("host %s is not in %s job %s, which has %s", name, j.System, j.ID, Compress(names))
}
