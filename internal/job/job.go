// Package job runs one job: it plans where ranks go, starts them, looks after
// them until the last has ended, and says how it went.
//
// # Vocabulary
//
// A [Spec] is what the user asked for. A [Plan] is what will be done: each rank
// with its program, place and processors. A host is what starts and signals the
// ranks of one machine. The supervisor decides; a record keeps what is known of
// every rank and names the first cause of a failure.
//
// # Who owns what
//
//	Plan        pure: reads the machine, starts nothing
//	host        processes, pipes, control lines of one machine; tells the
//	            supervisor by putting notes into its mailbox
//	record      pure: notes in, the first failure out
//	supervisor  one goroutine; the only one that reaps or signals, so a process
//	            id that it holds cannot have passed to another process
//
// A host knows nothing of other hosts and decides nothing, so that it can run in
// an agent, on another machine, with the mailbox at the far end of a network.
//
// # Several hosts
//
// A site is a host as the supervisor sees it: a name, and the ranks there. The ranks of
// the launcher's own site are its children; on every other site an [Agent] has them. A
// starter is a way to run a command on another host: ssh, or what the batch system has for that. It
// starts the agents and carries nothing else: an agent connects back over package plane, is given
// its part of the job as an assignment, and from then on says what its host says.
//
//	launcher                             agent
//	starter: weftrun --as-agent ...  ->  reads the secret from its standard input, or a file
//	                                 <-  joins the plane
//	assign   its ranks, environment  ->  plans for its own machine
//	                                 <-  ready, or failed
//	start    when all are ready      ->  starts its ranks
//	                                 <-  reports and ends of ranks, output
//	signals, deaths, credit ...      ->
//	                                 <-  done: no process is left
//
// Cards are exchanged in a tree of sites, below the launcher: a branch is an agent's place in it, with links to
// the agents of its parent and children. What goes there is for control.Exchange to say.
//
// When the link between launcher and agent ends, the agent kills its ranks, and the launcher counts them as
// lost, with their host. There is no way back.
//
// # The end of a job
//
//	running  -> told    a rank failed, aborted or left early; time is up; a signal
//	                    came. Weft programs are told over their lines, others
//	                    get SIGTERM; a signal is just passed on.
//	told     -> warned  after the grace period: SIGTERM for everybody
//	warned   -> killed  one second later: SIGKILL
//
// The launcher ends after the last rank. By then no process is left that any
// rank started: the launcher is the reaper of its orphans, gives them a second,
// and kills them. If the launcher itself is killed, the kernel kills its ranks.
package job

import (
	"fmt"
	"os"
	"time"
)

// Exit codes that the launcher gives on its own account. Otherwise it exits with
// the code of the rank that failed first, or 128 plus the signal that ended it.
const (
	ExitUsage      = 2
	ExitSetup      = 121 // the job could not be started
	ExitHostLost   = 122
	ExitTimeout    = 124
	ExitNotProgram = 126 // a file that cannot be executed
	ExitNoProgram  = 127
)

// Error is a failure with the exit code that goes with it.
type Error struct {
	Code int
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

func failf(code int, format string, args ...any) error {
	return &Error{code, fmt.Errorf(format, args...)}
}

// Spec is what the user asked for.
type Spec struct {
	Programs  []Program
	Map       Map
	Bind      Bind
	Transport string // auto, shm, tcp, verbs
	Interface string
	Device    string        // of RDMA: name[:port], several with commas
	Arena     int64         // bytes of shared memory for each rank; 0: half of the host's memory, divided by its ranks
	Tag       bool          // put [rank] before every line
	OneHost   bool          // run on this host though the batch job has others
	Hosts     string        // of --host, "" for none
	HostFile  string        // "" for none
	PerHost   int           // ranks on a host; 0: as many as it has slots
	Report    bool          // say how ranks are bound
	Crowd     bool          // more ranks than slots are wanted
	Launcher  string        // how agents are started, "" for our choice
	Agent     string        // weftrun on the other hosts, "" for the path of this one
	Control   string        // how we talk to agents: a way of package plane, "" for TCP
	Build     string        // which weftrun this is
	StartTime time.Duration // for all agents to be up; 0: our choice
	Output    string        // pattern of the files for the ranks' output, as OutputPattern gives it; "" for our own
	KeepGoing bool          // a rank that fails does not end the others
	Restarts  int           // how often the job is started again after a failure
	Try       int           // which start this is, from 0
	Without   []string      // hosts that were lost in earlier tries
	Timeout   time.Duration // of all tries; 0: none
	Grace     time.Duration // from a failure to SIGTERM
	Verbose   bool

	// Segment makes the shared memory of a host: a file for n ranks with an arena
	// of that many bytes each. Nil: the ranks have none.
	Segment func(name string, n int, arena int64) (*os.File, error)
}

// Program is one program of a job and the ranks that run it.
type Program struct {
	Ranks int
	Dir   string   // "": the launcher's
	Env   []string // NAME=VALUE, on top of the launcher's
	Argv  []string
}
