package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/weft-hpc/weft/bench/contest"
	"github.com/weft-hpc/weft/bench/report"
)

// Roles of contestants in a row of the table. bench/compare.sh builds their
// programs.
const (
	ours        = "weft"
	openMPI     = "openmpi"
	mpich       = "mpich"
	openMPIBest = "openmpi-best"
	openMPISM   = "openmpi-sm"
	mpichBest   = "mpich-best"
	floor       = "floor"
	blocking    = "weft-blocking" // what a nonblocking collective is compared with; no session of its own
)

// The flags with which each peer was best on the machine that the comparison
// was written on. Open MPI's own copies through shared memory in big pieces beat
// its default, process_vm_readv, at 64 KiB and more; coll/sm beats coll/tuned for
// short collectives and loses for long ones, so that is a contestant of its own. For
// MPICH nothing beat the default by more than the noise, so these flags only
// keep UCX from trying other transports. coll/han and coll/adapt beat nothing on
// one host.
var (
	openMPIBestFlags = []string{
		"--mca", "btl_vader_eager_limit", "32768",
		"--mca", "btl_vader_max_send_size", "262144",
		"--mca", "btl_vader_single_copy_mechanism", "none",
	}
	openMPISMFlags = []string{"--mca", "coll_sm_priority", "100"}
	// On fewer processors than ranks coll/sm is several times slower, and the
	// linear barrier is best.
	openMPICrowdFlags = append(slices.Clone(openMPIBestFlags),
		"--mca", "coll_tuned_use_dynamic_rules", "1",
		"--mca", "coll_tuned_barrier_algorithm", "1",
	)
	mpichBestEnv = []string{"UCX_TLS=posix,self,cma"}

	openMPITCPFlags     = []string{"--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"}
	openMPITCPBestFlags = append(slices.Clone(openMPITCPFlags),
		"--mca", "btl_tcp_sndbuf", "4194304", "--mca", "btl_tcp_rcvbuf", "4194304")
	mpichTCPEnv     = []string{"UCX_TLS=tcp,self", "UCX_NET_DEVICES=lo"}
	mpichTCPBestEnv = append(slices.Clone(mpichTCPEnv), "UCX_TCP_SNDBUF=4m", "UCX_TCP_RCVBUF=4m")
)

// A layout is how ranks are started: how many, where, over what.
type layout struct {
	ranks     int
	transport string // shm; tcp through the loopback; netns: TCP between two namespaces
	pinned    bool   // one processor for each rank
}

var (
	pairSHM = layout{ranks: 2, transport: "shm", pinned: true}
	pairTCP = layout{ranks: 2, transport: "tcp", pinned: true}
	pairNet = layout{ranks: 2, transport: "netns", pinned: true}
	crowd   = layout{ranks: 16, transport: "shm"}
)

// few are more ranks than the usual two, which share processors where there are not
// as many.
func few(ranks int) layout { return layout{ranks: ranks, transport: "shm"} }

// label names a contestant in messages and in machine.json.
func label(role string, l layout) string {
	return fmt.Sprintf("%s (%d ranks, %s)", role, l.ranks, l.transport)
}

// spec is the command that starts role's ranks; argv is the rank's program.
func (p paths) spec(role string, l layout, argv ...string) contest.Spec {
	n := fmt.Sprint(l.ranks)
	s := contest.Spec{Name: label(role, l), Ranks: l.ranks}
	if l == pairNet {
		p.net.spec(&s, role, p.weftrun, argv)
		return s
	}
	switch role {
	case ours:
		s.Argv = []string{p.weftrun, "-n", n}
		s.Argv = append(s.Argv, weftrunFlags(l)...)
	case openMPI, openMPIBest, openMPISM:
		s.Argv = []string{"mpirun.openmpi", "-np", n}
		if os.Geteuid() == 0 {
			s.Argv = append(s.Argv, "--allow-run-as-root")
		}
		if l.pinned {
			s.Argv = append(s.Argv, "--bind-to", "core")
		} else {
			s.Argv = append(s.Argv, "--oversubscribe", "--bind-to", "none")
		}
		switch {
		case l.transport == "tcp" && role == openMPIBest:
			s.Argv = append(s.Argv, openMPITCPBestFlags...)
		case l.transport == "tcp":
			s.Argv = append(s.Argv, openMPITCPFlags...)
		case role == openMPIBest && !l.pinned:
			s.Argv = append(s.Argv, openMPICrowdFlags...)
		case role == openMPIBest:
			s.Argv = append(s.Argv, openMPIBestFlags...)
		case role == openMPISM:
			s.Argv = append(s.Argv, openMPISMFlags...)
		}
	case mpich, mpichBest:
		s.Argv = []string{"mpiexec.hydra", "-n", n}
		if l.pinned {
			s.Argv = append(s.Argv, "-bind-to", "core")
		}
		switch {
		case l.transport == "tcp" && role == mpichBest:
			s.Env = mpichTCPBestEnv
		case l.transport == "tcp":
			s.Env = mpichTCPEnv
		case role == mpichBest:
			s.Env = mpichBestEnv
		}
	}
	s.Argv = append(s.Argv, argv...)
	return s
}

// weftrunFlags puts Weft's ranks where the peers' ranks are.
func weftrunFlags(l layout) []string {
	var flags []string
	if l.transport == "tcp" {
		flags = append(flags, "--transport", "tcp")
	}
	if l.pinned {
		return append(flags, "--bind-to", "core")
	}
	return append(flags, "--bind-to", "none")
}

// server is the spec of role's long-lived contestant.
func (p paths) server(role string, l layout) contest.Spec {
	switch role {
	case ours:
		return p.spec(role, l, p.osu, "{dir}")
	case openMPI, openMPIBest, openMPISM:
		return p.spec(role, l, p.peer("contestant-openmpi"), "{dir}")
	case mpich, mpichBest:
		return p.spec(role, l, p.peer("contestant-mpich"), "{dir}")
	}
	s := contest.Spec{Name: label(role, l), Ranks: l.ranks, Argv: []string{p.peer("floor"), "{dir}", fmt.Sprint(l.ranks)}}
	if l.pinned {
		s.Argv = append(s.Argv, "pin")
	}
	return s
}

// A stable keeps the contestants of one layout, starts them when a test first
// needs them, and again after a failure, so that a test that fails costs no other.
type stable struct {
	paths
	layout
	ctx      context.Context
	sessions map[string]*contest.Session
	starts   map[string]int
	broken   map[string]error // contestants given up
	runs     []report.Run
}

const maxStarts = 3

func newStable(ctx context.Context, p paths, l layout) *stable {
	return &stable{paths: p, layout: l, ctx: ctx, sessions: map[string]*contest.Session{},
		starts: map[string]int{}, broken: map[string]error{}}
}

func (st *stable) get(role string) (*contest.Session, error) {
	if s := st.sessions[role]; s != nil && s.Err() == nil {
		return s, nil
	}
	last := st.retire(role)
	if err := st.broken[role]; err != nil {
		return nil, err
	}
	if st.starts[role] == maxStarts {
		st.broken[role] = fmt.Errorf("given up after %d starts: %w", maxStarts, last)
		return nil, st.broken[role]
	}
	st.starts[role]++
	if st.layout == pairNet {
		if st.broken[role] = st.net.up(); st.broken[role] != nil {
			return nil, st.broken[role]
		}
	}
	spec := st.server(role, st.layout)
	s, err := contest.Start(st.ctx, spec)
	if err != nil {
		// What does not come up once will not come up for the next test.
		st.broken[role] = err
		st.runs = append(st.runs, report.Run{Name: spec.Name, Command: spec.Argv, Env: spec.Env, Error: err.Error()})
		return nil, err
	}
	st.sessions[role] = s
	return s, nil
}

func (st *stable) running() []*contest.Session {
	return slices.Collect(maps.Values(st.sessions))
}

// retire ends role's session and notes how it behaved.
func (st *stable) retire(role string) error {
	s := st.sessions[role]
	if s == nil {
		return nil
	}
	delete(st.sessions, role)
	spec := st.server(role, st.layout)
	run := report.Run{Name: spec.Name, Command: spec.Argv, Env: spec.Env, CPUs: s.CPUs()}
	if idle, err := s.Idle(); err == nil {
		run.Idle = idle
	}
	err := s.Close()
	if err != nil {
		run.Error = err.Error()
	}
	st.runs = append(st.runs, run)
	return err
}

// close ends all contestants. Their failures were reported where they happened.
func (st *stable) close() {
	for _, role := range slices.Sorted(maps.Keys(st.sessions)) {
		st.retire(role)
	}
}

// shared reports ranks of one contestant that may run on the same processor
// though they should be pinned apart, or nil.
func shared(l layout, s *contest.Session) error {
	if !l.pinned {
		return nil
	}
	cpus := s.CPUs()
	if slices.Contains(cpus[1:], cpus[0]) {
		return fmt.Errorf("%s: its ranks are not pinned to different processors: %v", s.Name(), cpus)
	}
	return nil
}
