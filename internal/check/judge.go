package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/internal/topo"
)

// Judge returns the findings about one host, in a fixed order.
func Judge(f *Facts) []Finding {
	var all []Finding
	for _, c := range []struct {
		name  string
		judge func(*Facts) Finding
	}{
		{"memlock", judgeMemlock},
		{"cgroup memory", judgeCgroup},
		{"/dev/shm", judgeShm},
		{"ptrace", judgePtrace},
		{"libibverbs", judgeLibrary},
		{"RDMA ports", judgePorts},
		{"GIDs", judgeGIDs},
		{"interface", judgeInterface},
		{"open files", judgeFiles},
		{"processes", judgeProcesses},
		{"stack", judgeStack},
		{"core files", judgeCore},
	} {
		finding := c.judge(f)
		finding.Host, finding.Check = f.Host, c.name
		all = append(all, finding)
	}
	return all
}

func fine(format string, args ...any) Finding { return Finding{Text: fmt.Sprintf(format, args...)} }

func problem(fix, format string, args ...any) Finding {
	return Finding{State: Problem, Fix: fix, Text: fmt.Sprintf(format, args...)}
}

// raise is the command that raises a limit for good; whoever starts jobs must log in anew, and a batch
// system's daemon has limits of its own.
func raise(limit, value string) string {
	return fmt.Sprintf("echo '* - %s %s' >>/etc/security/limits.d/weft.conf, or in a batch system's daemon systemctl edit with Limit%s=%s",
		limit, value, strings.ToUpper(limit), strings.Replace(value, "unlimited", "infinity", 1))
}

// arena is the memory that ranks of a host may register, as weftrun gives it out.
func arena(memory int64) int64 { return memory / 2 }

func judgeMemlock(f *Facts) Finding {
	if f.Ports.Absent != "" || f.NoVerbs != "" {
		return fine("does not matter without RDMA")
	}
	l := f.Limits[memlock]
	if m, ok := missing(l); ok {
		return m
	}
	if l.Value.Soft == topo.Unlimited {
		return fine("unlimited")
	}
	if f.Locks.Value {
		return fine("%s, which does not count for this user (CAP_IPC_LOCK)", topo.FormatBytes(l.Value.Soft))
	}
	if m, ok := missing(f.Memory); ok {
		return m
	}
	if l.Value.Soft >= arena(f.Memory.Value) {
		return fine("%s", topo.FormatBytes(l.Value.Soft))
	}
	return problem(raise("memlock", "unlimited"), "%s of locked memory, at most %s, are less than ranks may register (%s): RDMA fails, or copies",
		topo.FormatBytes(l.Value.Soft), topo.FormatBytes(l.Value.Hard), topo.FormatBytes(arena(f.Memory.Value)))
}

func judgeCgroup(f *Facts) Finding {
	if m, ok := missing(f.Cgroup); ok {
		return m
	}
	if m, ok := missing(f.Memory); ok {
		return m
	}
	c := f.Cgroup.Value
	if c.Bytes >= f.Memory.Value {
		return fine("no limit below the memory of the machine")
	}
	if c.Bytes >= arena(f.Memory.Value) {
		return fine("%s of %s (%s)", topo.FormatBytes(c.Bytes), topo.FormatBytes(f.Memory.Value), c.Where)
	}
	return problem(fmt.Sprintf("weftrun --arena %dM", max(c.Bytes/2/f.ranks()>>20, 1)),
		"the job may use %s of %s (%s), and ranks may take %s from shared memory alone: the kernel kills who goes beyond",
		topo.FormatBytes(c.Bytes), topo.FormatBytes(f.Memory.Value), c.Where, topo.FormatBytes(arena(f.Memory.Value)))
}

func judgeShm(f *Facts) Finding {
	if m, ok := missing(f.Shm); ok {
		m.Text += "; Weft does not need it"
		return m
	}
	return fine("%s, %s free; Weft does not need it", topo.FormatBytes(f.Shm.Value.Bytes), topo.FormatBytes(f.Shm.Value.Free))
}

func judgePtrace(f *Facts) Finding {
	switch f.Ptrace.State {
	case topo.Present:
		return fine("%s", f.Ptrace.Why)
	case topo.Unknown:
		return Finding{State: Unknown, Text: f.Ptrace.Why}
	}
	why, _, _ := strings.Cut(f.Ptrace.Why, ";")
	return problem("sysctl -w kernel.yama.ptrace_scope=0", "%s: large messages inside a host are copied twice", why)
}

func judgeLibrary(f *Facts) Finding {
	if f.NoVerbs != "" {
		return Finding{State: Unsupported, Text: f.NoVerbs}
	}
	m, ok := missing(f.Library)
	if ok && m.State == Absent && len(f.Ports.Value) > 0 {
		return problem("apt-get install -y libibverbs1 ibverbs-providers", "%s, but there is the device %s", m.Text, f.Ports.Value[0].Device)
	}
	if ok {
		return m
	}
	return fine("%s", f.Library.Value)
}

// usable tells whether a port is up.
func (p *Port) usable() bool { return strings.HasSuffix(p.State, "ACTIVE") }

// netDev names the interface on the port in a command.
func (p *Port) netDev() string {
	if p.NetDev != "" {
		return p.NetDev
	}
	return "INTERFACE"
}

func judgePorts(f *Facts) Finding {
	if m, ok := missing(f.Ports); ok {
		return m
	}
	var down []string
	var first *Port
	for i := range f.Ports.Value {
		p := &f.Ports.Value[i]
		if p.usable() {
			continue
		}
		down = append(down, fmt.Sprintf("%s:%d is %s (%s)", p.Device, p.Number, p.State, p.Phys))
		if first == nil {
			first = p
		}
	}
	switch {
	case len(f.Ports.Value) == 0:
		return Finding{State: Unknown, Text: "the devices have no ports"}
	case len(down) == 0:
		return fine("all %d are active", len(f.Ports.Value))
	case len(down) < len(f.Ports.Value):
		return fine("%s; %d others are active", strings.Join(down, ", "), len(f.Ports.Value)-len(down))
	}
	text := strings.Join(down, ", ") + ": no port can be used"
	switch {
	case first.Layer != "InfiniBand":
		return problem(fmt.Sprintf("ip link set %s up", first.netDev()), "%s", text)
	case strings.Contains(first.State, "INIT"):
		return problem("systemctl start opensm, on one host of the network", "%s; the cable is in, and no subnet manager answers", text)
	}
	return problem("ibportstate -D 0 "+fmt.Sprint(first.Number)+" enable", "%s; is there a cable?", text)
}

func judgeGIDs(f *Facts) Finding {
	if m, ok := missing(f.Ports); ok {
		return m
	}
	var lacking, good []string
	var first *Port
	for i := range f.Ports.Value {
		p := &f.Ports.Value[i]
		if !p.usable() {
			continue
		}
		name := fmt.Sprintf("%s:%d", p.Device, p.Number)
		has := slices.ContainsFunc(p.GIDs, func(g GID) bool { return p.Layer == "InfiniBand" || strings.Contains(g.Type, "v2") })
		if has {
			good = append(good, name)
		} else if lacking = append(lacking, name); first == nil {
			first = p
		}
	}
	switch {
	case len(good)+len(lacking) == 0:
		return fine("no port is active")
	case len(lacking) == 0:
		return fine("every active port has one to use")
	}
	return problem("ip addr add ADDRESS/24 dev "+first.netDev(), "%s: no RoCE v2 address, without which nobody is reached by RDMA; its network interface needs an IP address",
		strings.Join(lacking, ", "))
}

func judgeInterface(f *Facts) Finding {
	if m, ok := missing(f.Interface); ok {
		if m.State == Absent {
			name := f.Down
			if name == "" {
				name = "INTERFACE"
			}
			return problem("ip link set "+name+" up", "%s", m.Text)
		}
		return m
	}
	i := f.Interface.Value
	return fine("%s at %s, MTU %d", i.Name, i.Addr, i.MTU)
}

// What a rank needs besides a connection to each other one: its own files, and threads of the runtime.
const (
	ownFiles       = 64
	threadsPerRank = 16
)

func judgeFiles(f *Facts) Finding {
	l := f.Limits[nofile]
	if m, ok := missing(l); ok {
		return m
	}
	need := int64(max(f.Size, 256)) + ownFiles
	if l.Value.Hard >= need {
		return fine("%s", number(l.Value.Hard)) // Go raises the soft one to it
	}
	return problem(raise("nofile", "65536"), "at most %s for a rank, which needs up to %d: one for each other rank, and %d", number(l.Value.Hard), need, ownFiles)
}

func judgeProcesses(f *Facts) Finding {
	l := f.Limits[nproc]
	if m, ok := missing(l); ok {
		return m
	}
	if m, ok := missing(f.Tasks); ok {
		return m
	}
	need := f.ranks() * threadsPerRank
	if have := l.Value.Soft; have < need && !f.Locks.Value { // who may lock may do all, mostly
		return problem(raise("nproc", "unlimited"), "at most %s processes and threads of this user, and %d ranks take up to %d", number(have), f.ranks(), need)
	}
	if have := f.Tasks.Value; have < need {
		return problem("sysctl -w kernel.threads-max=1000000 kernel.pid_max=1000000", "the kernel or the control group allows %s processes and threads, and %d ranks take up to %d", number(have), f.ranks(), need)
	}
	return fine("%s for this user", number(l.Value.Soft))
}

func judgeStack(f *Facts) Finding {
	const least = 512 << 10
	l := f.Limits[stack]
	if m, ok := missing(l); ok {
		return m
	}
	if l.Value.Soft < least {
		return problem(raise("stack", "8192"), "%s for each thread of C code, which may need %s", topo.FormatBytes(l.Value.Soft), topo.FormatBytes(least))
	}
	return fine("%s", topo.FormatBytes(l.Value.Soft))
}

func judgeCore(f *Facts) Finding {
	l := f.Limits[core]
	if m, ok := missing(l); ok {
		return m
	}
	if l.Value.Soft == 0 {
		return fine("none are written (ulimit -c unlimited, to look into crashes)")
	}
	return fine("up to %s", topo.FormatBytes(l.Value.Soft))
}

// Compare returns what does not fit together among hosts, each the facts of one.
func Compare(all []*Facts) []Finding {
	var out []Finding
	add := func(host, check string, f Finding) {
		f.Host, f.Check = host, check
		out = append(out, f)
	}
	builds, libraries, mtus := map[string][]string{}, map[string][]string{}, map[string][]string{}
	least := int64(topo.Unlimited)
	for _, f := range all {
		builds[f.Build] = append(builds[f.Build], f.Host)
		if f.Library.Value != "" {
			libraries[f.Library.Value] = append(libraries[f.Library.Value], f.Host)
		}
		if i := f.Interface.Value; i.MTU > 0 {
			mtus[fmt.Sprint(i.MTU)] = append(mtus[fmt.Sprint(i.MTU)], f.Host)
			least = min(least, i.MTU)
		}
	}
	const every = "all hosts"
	if len(builds) > 1 {
		add(every, "builds", problem("install one build of weft, weftrun and the program on all of them", "builds of weft differ: %s", group(builds)))
	} else {
		add(every, "builds", fine("%s", all[0].Build))
	}
	switch len(libraries) {
	case 0:
		add(every, "libibverbs", Finding{State: Absent, Text: "no host has it, or told"})
	case 1:
		add(every, "libibverbs", fine("%s", group(libraries)))
	default:
		add(every, "libibverbs", fine("versions differ, which does no harm as a rule: %s", group(libraries)))
	}
	switch {
	case len(mtus) == 0:
		add(every, "MTU", Finding{State: Unknown, Text: "no host told that of its interface"})
	case len(mtus) == 1:
		add(every, "MTU", fine("%s", group(mtus)))
	default:
		for _, f := range all {
			if i := f.Interface.Value; i.MTU > least {
				add(f.Host, "MTU", problem(fmt.Sprintf("ip link set %s mtu %d", i.Name, least),
					"%s has %d, and others %d: what is longer may be lost on the way, and large messages hang then", i.Name, i.MTU, least))
			}
		}
	}
	return out
}

// group says which hosts have what: "a on n1, n2; b on n3".
func group(hosts map[string][]string) string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(hosts)) {
		names := hosts[what]
		const most = 8
		text := strings.Join(names[:min(len(names), most)], ", ")
		if len(names) > most {
			text += fmt.Sprintf(" and %d more", len(names)-most)
		}
		parts = append(parts, what+" on "+text)
	}
	return strings.Join(parts, "; ")
}

// Bad tells whether one of the findings is a problem.
func Bad(all []Finding) bool {
	return slices.ContainsFunc(all, func(f Finding) bool { return f.State == Problem })
}

func number(n int64) string {
	if n == topo.Unlimited {
		return "unlimited"
	}
	return fmt.Sprint(n)
}
