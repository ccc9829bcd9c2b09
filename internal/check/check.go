// Package check finds what would stop or slow a job, before there is one.
//
// # Vocabulary
//
// The facts of a host are what was read there; the judgements are pure functions of facts, of
// one host or of several. A finding is the answer of one check. A probe is a connection
// from one host to another, the only thing here that is done and not read.
//
// # Answers
//
// Fine and Problem speak for themselves. Absent: what the check is about is not there, an RDMA
// device for instance, and was looked for. Unsupported: this build or kernel cannot have
// it. Unknown: it could not be told, and why. None of the last three is a problem by itself.
//
// # What it does not do
//
// It changes nothing on a host: a problem comes with the command that does.
package check

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/topo"
)

// State is the kind of an answer.
type State uint8

const (
	Fine State = iota
	Problem
	Absent
	Unsupported
	Unknown
)

var stateNames = [...]string{"fine", "problem", "absent", "unsupported", "could not tell"}

func (s State) String() string { return stateNames[s] }

// MarshalText makes a State readable in JSON.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is the answer of one check on one host.
type Finding struct {
	Host  string `json:"host"`
	Check string `json:"check"`
	State State  `json:"state"`
	Text  string `json:"text"`
	Fix   string `json:"fix,omitempty"` // a command
}

// String returns the finding as a line.
func (f Finding) String() string {
	s := fmt.Sprintf("%s: %s: %v: %s", f.Host, f.Check, f.State, f.Text)
	if f.Fix != "" {
		s += "; fix: " + f.Fix
	}
	return s
}

// missing returns the finding of a fact without a value.
func missing[T any](f topo.Fact[T]) (Finding, bool) {
	switch {
	case f.Error != "":
		return Finding{State: Unknown, Text: f.Error}, true
	case f.Absent != "":
		return Finding{State: Absent, Text: f.Absent}, true
	}
	return Finding{}, false
}

// Limit is a limit of a process.
type Limit struct{ Soft, Hard int64 }

// Cgroup is the least limit of memory among a process's control groups.
type Cgroup struct {
	Bytes int64  // topo.Unlimited: none
	Where string // the file
}

// Space is a file system.
type Space struct{ Bytes, Free int64 }

// Interface is the one by which ranks would reach other hosts.
type Interface struct {
	Name, Addr string
	MTU        int64
}

// Port is a port of an RDMA device.
type Port struct {
	Device string
	Number int
	State  string // as the kernel says: "4: ACTIVE"
	Phys   string // "5: LinkUp"
	Layer  string // "InfiniBand" or "Ethernet"
	NetDev string // the network interface on it; "" for none, or not told
	GIDs   []GID
}

// GID is an address of a port that is in use.
type GID struct {
	Index             int
	GID, Type, NetDev string
}

// Facts are those of one host.
type Facts struct {
	Host      string
	Build     string // of weft
	NoVerbs   string // why this build cannot use RDMA; "" if it can
	Ranks     int    // of the job on this host; 0: there is no job
	Size      int    // ranks of the job
	CPUs      int
	Memory    topo.Fact[int64]
	Locks     topo.Fact[bool] // this process may lock any memory
	Limits    map[string]topo.Fact[Limit]
	Tasks     topo.Fact[int64]
	Cgroup    topo.Fact[Cgroup]
	Shm       topo.Fact[Space]
	Ptrace    topo.Answer
	Ports     topo.Fact[[]Port]
	Library   topo.Fact[string] // the file of libibverbs
	Interface topo.Fact[Interface]
	Down      string // an interface that could be used if it were up
}

// ranks is how many ranks to reckon with on this host.
func (f *Facts) ranks() int64 {
	if f.Ranks > 0 {
		return int64(f.Ranks)
	}
	return int64(max(f.CPUs, 1))
}
