package job

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/weft-hpc/weft/internal/batch"
	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/topo"
)

// Site is another host of a job.
type Site struct {
	Name  string // as the batch system, or the user, spells it
	Ranks []int  // ascending
	Index int    // of its first line in the batch system's list
}

// maxRanks bounds what a typing error can make us allocate.
const maxRanks = 1 << 22

// place decides which ranks run where.
func (p *Plan) place(src batch.Source, here func(names []string) int) error {
	spec := p.Spec
	hosts, err := p.hosts(src)
	if err != nil {
		return err
	}
	slots := 0
	for _, h := range hosts {
		slots += h.Slots
	}
	if err := spec.count(slots); err != nil {
		return err
	}
	for i := range spec.Programs {
		p.Size += spec.Programs[i].Ranks
	}
	if len(spec.Without) > 0 && (slots < p.Size && !spec.Crowd || slots == 0) {
		return failf(ExitHostLost, "%s, and without the %s lost (%s) there are %s", count(p.Size, "rank"), form(len(spec.Without), "host that was", "hosts that were"), strings.Join(spec.Without, ", "), count(slots, "slot"))
	}
	if len(hosts) == 0 { // this host, and no batch system that counts
		if err := checkRoom(topo.System, p.Size); err != nil {
			return err
		}
	} else if p.Size > maxRanks {
		return failf(ExitUsage, "%d ranks are more than a job can have, %d", p.Size, maxRanks)
	}
	p.programs = make([]int, 0, p.Size)
	for i := range spec.Programs {
		for range spec.Programs[i].Ranks {
			p.programs = append(p.programs, i)
		}
	}
	if len(hosts) == 0 {
		hosts = []batch.Host{{Name: p.Host, Slots: p.Size}}
		here = func([]string) int { return 0 }
	}
	if err := p.enough(hosts, slots); err != nil {
		return err
	}
	names := make([]string, len(hosts))
	for i, h := range hosts {
		names[i] = h.Name
	}
	me := here(names)
	all := deal(p.Size, hosts, spec.Map == MapNode)
	p.layout = control.MakeLayout(all)
	for i, ranks := range all {
		switch {
		case len(ranks) == 0:
		case i == me:
			p.Local = ranks
			p.Host = hosts[i].Name
		default:
			p.Others = append(p.Others, Site{Name: hosts[i].Name, Ranks: ranks, Index: hosts[i].Index})
		}
	}
	if err := p.nameOutput(); err != nil {
		return err
	}
	if len(p.Others) == 0 {
		return nil
	}
	n := len(p.Others)
	if len(p.Local) > 0 {
		n++
	}
	if spec.Transport == "shm" && n > 1 {
		return failf(ExitUsage, "--transport shm is for one host, and this job has %d; auto uses shared memory inside each", n)
	}
	p.starter, err = chooseStarter(spec.Launcher, p.Batch.System, inPath)
	return err
}

// hosts returns the hosts that the job may use, or none when it is to run here
// and nobody says how many ranks that takes.
func (p *Plan) hosts(src batch.Source) ([]batch.Host, error) {
	spec := p.Spec
	if spec.OneHost {
		return nil, nil
	}
	var wanted []batch.Host
	var err error
	switch {
	case spec.Hosts != "" && spec.HostFile != "":
		return nil, failf(ExitUsage, "--host and --hostfile exclude each other")
	case spec.Hosts != "":
		if wanted, err = batch.HostList(spec.Hosts); err != nil {
			return nil, failf(ExitUsage, "--host: %w", err)
		}
	case spec.HostFile != "":
		b, err := os.ReadFile(spec.HostFile)
		if err == nil {
			wanted, err = batch.Hostfile(spec.HostFile, b)
		}
		if err != nil {
			return nil, failf(ExitUsage, "--hostfile: %w", err)
		}
	}
	p.Batch, err = batch.Find(src)
	if err != nil {
		return nil, failf(ExitSetup, "%w; --one-host does without them", err)
	}
	hosts := wanted
	if p.Batch.System != "" {
		hosts = p.Batch.Hosts
		if wanted != nil {
			if hosts, err = p.Batch.Select(wanted); err != nil {
				return nil, &Error{ExitUsage, err}
			}
		}
	}
	hosts = slices.DeleteFunc(slices.Clone(hosts), func(h batch.Host) bool { return slices.Contains(spec.Without, h.Name) })
	for i := range hosts {
		h := &hosts[i]
		switch n := spec.PerHost; {
		case n > h.Slots && h.Slots > 0 && !spec.Crowd && p.Batch.System != "":
			return nil, failf(ExitUsage, "--ppn %d: host %s has %s (%s); ask the batch system for more, or say --oversubscribe", n, h.Name, count(h.Slots, "slot"), p.Batch.Source)
		case n > 0:
			h.Slots = n
		case h.Slots == 0:
			return nil, failf(ExitUsage, "how many ranks does host %s take? Say %s:N or slots=N there, or --ppn N for all hosts", h.Name, h.Name)
		}
	}
	if hosts == nil && spec.PerHost > 0 {
		return nil, failf(ExitUsage, "--ppn needs hosts: those of a batch job, or --host, or --hostfile")
	}
	return hosts, nil
}

// count gives a number of ranks to the program that has none: all slots.
func (s *Spec) count(slots int) error {
	missing := -1
	for i := range s.Programs {
		prog := &s.Programs[i]
		switch {
		case prog.Ranks > 0:
			slots -= prog.Ranks
		case missing >= 0:
			return failf(ExitUsage, "how many ranks of %s? Give -n N before it, since %s has no number either", prog.Argv[0], s.Programs[missing].Argv[0])
		default:
			missing = i
		}
	}
	if missing < 0 {
		return nil
	}
	if slots < 1 {
		return failf(ExitUsage, "how many ranks of %s? Give -n N before it", s.Programs[missing].Argv[0])
	}
	s.Programs[missing].Ranks = slots
	return nil
}

// enough refuses more ranks than there are slots, unless that is wanted. Then
// every host gets its share of what is too many.
func (p *Plan) enough(hosts []batch.Host, slots int) error {
	if slots == 0 || p.Size <= slots {
		return nil
	}
	if !p.Spec.Crowd {
		where := "the hosts given have"
		hint := ""
		if p.Batch.System != "" {
			where = fmt.Sprintf("%s job %s has", p.Batch.System, p.Batch.ID)
			hint = " (" + p.Batch.Source + ")"
			for _, note := range p.Batch.Notes {
				hint += "; " + note
			}
		}
		return failf(ExitUsage, "%s, but %s %s on %s%s; ask for fewer, or say --oversubscribe",
			count(p.Size, "rank"), where, count(slots, "slot"), count(len(hosts), "host"), hint)
	}
	times := (p.Size + slots - 1) / slots
	for i := range hosts {
		hosts[i].Slots *= times
	}
	return nil
}

// deal gives each host its ranks, of n in all: full hosts one after the other, or
// one rank to each host in turn.
func deal(n int, hosts []batch.Host, byNode bool) [][]int {
	out := make([][]int, len(hosts))
	for rank := 0; rank < n; {
		before := rank
		for i := range hosts {
			for rank < n && len(out[i]) < hosts[i].Slots {
				out[i] = append(out[i], rank)
				rank++
				if byNode {
					break
				}
			}
		}
		if rank == before {
			panic("job: more ranks than slots")
		}
	}
	return out
}

// findHere returns which of some hosts' names means this one, whose hostname is
// given, or -1: by name, or by an address of this machine. Batch systems often use names
// that hostname does not know, such as those of a second network.
func findHere(hostname string, names []string) int {
	for i, name := range names {
		if name == hostname || name == "localhost" {
			return i
		}
	}
	found := -1
	for i, name := range names {
		if strings.HasPrefix(hostname, name+".") || strings.HasPrefix(name, hostname+".") {
			if found >= 0 { // both a.x and a.y are there: only addresses tell
				found = -1
				break
			}
			found = i
		}
	}
	if found >= 0 {
		return found
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return -1 // without addresses only names count
	}
	ours := make(map[string]bool)
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok {
			ours[n.IP.String()] = true
		}
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	room := make(chan struct{}, 32) // look-ups at a time
	for i, name := range names {
		room <- struct{}{}
		group.Go(func() {
			defer func() { <-room }()
			addrs, err := lookupHost(name)
			if err != nil {
				return // whoever starts its agent will say so
			}
			mu.Lock()
			defer mu.Unlock()
			if slices.ContainsFunc(addrs, func(a string) bool { return ours[a] }) && (found < 0 || i < found) {
				found = i
			}
		})
	}
	group.Wait()
	return found
}
