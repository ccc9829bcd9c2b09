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

// Bind says what ranks are bound to.
type Bind uint8

const (
	BindDefault Bind = iota // core where the ranks fit, else none
	BindNone
	BindCore
)

// Spec is what the user asked for.
type Spec struct {
	Programs  []Program
	Bind      Bind
	Transport string // auto, shm, tcp, verbs
	Interface string
	Device    string        // of RDMA: name[:port], several with commas
	Arena     int64         // bytes of shared memory for each rank; 0: half of the host's memory, divided by its ranks
	Tag       bool          // put [rank] before every line
	OneHost   bool          // run on this host though the batch job has others
	Output    string        // directory for the ranks' output, "" for our own
	Timeout   time.Duration // 0: none
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
