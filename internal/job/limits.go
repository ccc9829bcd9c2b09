package job

import (
	"runtime"

	"github.com/weft-hpc/weft/internal/topo"
)

// LeaveProcessors has this process run on half of the processors that it may use, and on four at most. Who passes a flood
// of output on would take all there are, from ranks and from who takes its messages: on two cores one in a
// hundred small ones waited three times as long for that (weft bench control), and little more was passed on.
func LeaveProcessors() { runtime.GOMAXPROCS(min(4, max(1, runtime.NumCPU()/2))) }

// What the smallest of ranks takes. Real ones take more; these only tell what is
// impossible.
const (
	filesPerRank  = 3 // line, standard output, standard error
	filesOfOurOwn = 24
	bytesPerRank  = 1 << 20
)

// checkRoom refuses a number of ranks that this host cannot run, and says which
// limit is in the way.
func checkRoom(machine topo.Root, n int) error {
	type limit struct {
		ranks int64
		text  string
		raise string
	}
	var least limit
	least.ranks = topo.Unlimited
	lower := func(l limit) {
		if l.ranks < least.ranks {
			least = l
		}
	}
	_, files, err := machine.Limit("Max open files") // the hard one: Go raises the soft one to it
	if err != nil {
		return &Error{ExitSetup, err}
	}
	lower(limit{(files - filesOfOurOwn) / filesPerRank, "the limit of open files, at 3 for each rank,", "ulimit -Hn"})
	tasks, which, err := machine.Tasks()
	if err != nil {
		return &Error{ExitSetup, err}
	}
	lower(limit{tasks, which, "that"})
	if !mayExceedProcesses() {
		procs, _, err := machine.Limit("Max processes")
		if err != nil {
			return &Error{ExitSetup, err}
		}
		lower(limit{procs, "the limit of processes for this user", "ulimit -u"})
	}
	_, available, err := machine.Memory()
	if err != nil {
		return &Error{ExitSetup, err}
	}
	lower(limit{available / bytesPerRank, "the memory that is free, at 1 MiB or more for each rank,", "that"})
	if int64(n) > least.ranks {
		return failf(ExitUsage, "%d ranks are more than this host can run: %s allows %d; ask for fewer, or raise %s",
			n, least.text, least.ranks, least.raise)
	}
	return nil
}
