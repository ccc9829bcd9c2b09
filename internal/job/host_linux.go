package job

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/topo"
)

// host starts and signals the ranks of this machine. All its methods belong to
// one goroutine, the supervisor's or the agent's.
type host struct {
	plan    *Plan
	hub     *control.Hub
	notes   *mailbox
	segment *os.File
	sinks   [2]*sink // standard output and error
	streams []*stream
	copying sync.WaitGroup
	typed   *typist     // passes a terminal on to rank 0; nil without one
	keeper  *keeper     // nil until a job has run for a moment
	pids    []int       // by local rank; 0: not started, or ended
	ranks   map[int]int // local rank by pid
	forker  *forker
	stdin0  *os.File                             // of rank 0, where it comes from the launcher's host; else nil
	other   func(pid int, ws syscall.WaitStatus) // hears of children that are no ranks; may be nil
}

// newHost opens everything that all ranks share.
func newHost(plan *Plan, notes *mailbox, sinks [2]*sink) (*host, error) {
	n := len(plan.Ranks)
	if err := plan.outputDirs(); err != nil {
		return nil, err
	}
	h := &host{plan: plan, notes: notes, sinks: sinks, pids: make([]int, n), ranks: make(map[int]int, n)}
	h.hub = control.NewHub(control.Job{Name: plan.Job, Size: plan.Size, Host: plan.Host, LocalRanks: plan.Local, Layout: plan.layout,
		Transport: plan.Spec.Transport, Interface: plan.Spec.Interface, Device: plan.Spec.Device, Arena: plan.Arena, Oversubscribed: plan.Oversubscribed,
		Secret: plan.Secret},
		func(r control.Report) { notes.put(note{report: &r}) })
	if plan.Spec.Segment != nil && n > 0 {
		var err error
		if h.segment, err = plan.Spec.Segment(plan.Job, n, plan.Arena); err != nil {
			return nil, failf(ExitSetup, "shared memory for %s: %w; --transport tcp does without", count(n, "rank"), err)
		}
	}
	h.forker = newForker()
	return h, nil
}

// newSinks returns sinks for our standard output and error.
func newSinks(onError func(error)) [2]*sink {
	out := makeSink(new(sync.Mutex), os.Stdout, isTerminal(1), onError)
	err := makeSink(new(sync.Mutex), os.Stderr, isTerminal(2), onError)
	if sameFile(1, 2) {
		err.lock = out.lock
	}
	return [2]*sink{out, err}
}

// start starts all ranks, or as many as it can.
func (h *host) start() error {
	return h.forker.do(func() error {
		for local := range h.plan.Ranks {
			if err := h.fork(local); err != nil {
				return err
			}
		}
		return nil
	})
}

// fork starts one rank.
func (h *host) fork(local int) error {
	r, rank := &h.plan.Ranks[local], h.plan.Local[local]
	var theirs []*os.File // closed here once the rank has them
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	files := make([]uintptr, 0, 5)
	give := func(f *os.File, err error) error {
		if err != nil {
			return failf(ExitSetup, "rank %d on host %s could not be started: %w", rank, h.plan.Host, err)
		}
		theirs = append(theirs, f)
		files = append(files, f.Fd())
		return nil
	}
	if rank == 0 && h.stdin0 == nil && !isTerminal(0) {
		files = append(files, 0) // our own, so that it is read as it is asked for
	} else if err := give(h.stdin(rank)); err != nil {
		return err
	}
	for i, ext := range []string{"out", "err"} {
		if err := give(h.outlet(rank, i, ext)); err != nil {
			return err
		}
	}
	if err := give(h.hub.Open(rank)); err != nil {
		return err
	}
	env := append(slices.Clone(r.env), h.plan.vars(local)...)
	env = append(env, control.VarControl+"=3", control.VarTerminal+"="+h.terminals())
	if h.segment != nil {
		files = append(files, h.segment.Fd())
		env = append(env, control.VarSegment+"=4")
	}
	if r.CPUs != nil {
		if err := topo.Bind(r.CPUs); err != nil {
			return failf(ExitSetup, "rank %d on host %s: %w; --bind-to none does without", rank, h.plan.Host, err)
		}
	}
	pid, err := syscall.ForkExec(r.Path, r.Program.Argv, &syscall.ProcAttr{Dir: r.Dir, Env: env, Files: files,
		Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}})
	if err != nil {
		return forkError(rank, r, h.plan.Host, err)
	}
	h.pids[local] = pid
	h.ranks[pid] = local
	return nil
}

func forkError(rank int, r *Rank, host string, err error) error {
	code := ExitSetup
	switch {
	case errors.Is(err, syscall.ENOENT):
		code = ExitNotProgram
		err = fmt.Errorf("%w; the file is there, so the interpreter that it names is missing, or it went away just now", err)
	case errors.Is(err, syscall.ENOEXEC):
		code = ExitNotProgram
		err = fmt.Errorf("%w; a script needs a first line such as #!/bin/sh", err)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.ETXTBSY):
		code = ExitNotProgram
	case errors.Is(err, syscall.EAGAIN):
		err = fmt.Errorf("%w; a limit of processes is reached", err)
	}
	return failf(code, "rank %d on host %s: %s could not be started: %w (working directory %s)", rank, host, r.Path, err, r.Dir)
}

// stdin returns the standard input of a rank that does not get our own.
func (h *host) stdin(rank int) (*os.File, error) {
	if rank != 0 {
		return os.Open(os.DevNull)
	}
	if h.stdin0 != nil {
		return h.stdin0, nil
	}
	t, theirs, err := newTypist()
	h.typed = t
	return theirs, err
}

// outlet returns where a rank writes its output to.
func (h *host) outlet(rank, which int, ext string) (*os.File, error) {
	if h.plan.Spec.Output != "" {
		return h.plan.openOutput(rank, ext)
	}
	ours, theirs, err := newPipe("output of rank "+strconv.Itoa(rank), true)
	if err != nil {
		return nil, err
	}
	to := h.sinks[which]
	s := &stream{in: ours, to: to}
	if h.plan.Spec.Tag {
		s.tag = tag(rank, to.terminal)
	} else {
		s.eager = h.plan.Size == 1
		s.patch = to.terminal
	}
	h.streams = append(h.streams, s)
	h.copying.Go(func() {
		if err := s.copy(); err != nil {
			h.notes.put(note{say: fmt.Sprintf("rank %d: %v", rank, err)})
		}
	})
	return theirs, nil
}

// terminals says which streams of a rank lead to a terminal unchanged.
func (h *host) terminals() string {
	var names []string
	for i, name := range []string{"stdout", "stderr"} {
		if h.sinks[i].terminal && h.plan.Spec.Output == "" && !h.plan.Spec.Tag {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// tag returns what stands before each line of a rank: coloured, by rank, on a
// terminal whose user has not said no to colours.
func tag(rank int, terminal bool) []byte {
	if !terminal || os.Getenv("NO_COLOR") != "" {
		return fmt.Appendf(nil, "[%d] ", rank)
	}
	return fmt.Appendf(nil, "\x1b[%dm[%d]\x1b[0m ", 31+rank%6, rank)
}

// signal sends a signal to a rank and its process group. Nothing happens when
// the rank has ended.
func (h *host) signal(rank int, sig syscall.Signal) {
	local, ok := slices.BinarySearch(h.plan.Local, rank)
	if !ok || h.pids[local] == 0 {
		return
	}
	pid := h.pids[local]
	// The rank is not reaped, so both numbers are still its own. A rank that has
	// made another group its own is signalled alone.
	if syscall.Kill(-pid, sig) != nil {
		syscall.Kill(pid, sig)
	}
}

// exiting reports whether the kernel is ending a rank's process.
func (h *host) exiting(rank int) bool {
	local, ok := slices.BinarySearch(h.plan.Local, rank)
	if !ok || h.pids[local] == 0 {
		return false
	}
	stat, err := topo.System.Text(fmt.Sprintf("proc/%d/stat", h.pids[local]))
	if err != nil {
		return false
	}
	return exiting(stat)
}

// exiting reads a line of /proc/PID/stat: the first thread is a zombie, whose others are not
// through yet, or its flags have PF_EXITING.
func exiting(stat string) bool {
	const flagsField, pfExiting = 6, 0x4 // the fields behind the name, which may hold anything
	_, rest, _ := strings.Cut(stat[strings.LastIndexByte(stat, ')')+1:], " ")
	fields := strings.Fields(rest)
	if len(fields) <= flagsField {
		return false
	}
	flags, err := strconv.ParseUint(fields[flagsField], 10, 64)
	return err == nil && (flags&pfExiting != 0 || fields[0] == "Z")
}

// reap collects ended children without waiting. It returns false when there are
// no children left.
func (h *host) reap(ended func(rank int, st status)) bool {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil:
			return false
		case pid == 0:
			return true
		}
		if local, ok := h.ranks[pid]; ok {
			delete(h.ranks, pid)
			h.pids[local] = 0
			if h.keeper != nil {
				h.keeper.tell('-', pid)
			}
			ended(h.plan.Local[local], status{pid, ws})
		} else if h.other != nil {
			h.other(pid, ws)
		} // else an orphan
	}
}

// keep starts the keeper, if there are ranks here to look after.
func (h *host) keep() (err error) {
	if len(h.pids) == 0 {
		return nil
	}
	var groups []int
	for _, pid := range h.pids {
		if pid != 0 {
			groups = append(groups, pid)
		}
	}
	h.keeper, err = newKeeper(groups)
	return err
}

// dismissKeeper ends the keeper, if there is one.
func (h *host) dismissKeeper() {
	if h.keeper != nil {
		h.keeper.dismiss()
		h.keeper = nil
	}
}

// sweep ends what the ranks have left behind: orphans, whose parent we are. It
// returns when no process of the job is left here, or with a text for the user
// when some cannot be killed. Spared are children that are no part of it.
func (h *host) sweep(children <-chan os.Signal, spared map[int]*start) string {
	h.dismissKeeper()
	next := time.NewTimer(orphanWait)
	defer next.Stop()
	kill := false
	left := func() []int {
		return slices.DeleteFunc(childPIDs(), func(pid int) bool { return spared[pid] != nil })
	}
	for h.reap(func(int, status) {}) {
		if len(spared) > 0 && len(left()) == 0 {
			return ""
		}
		if kill {
			// Their children become ours in turn, and are found in the next round.
			for _, pid := range left() {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		select {
		case <-children:
		case <-next.C:
			if kill {
				return fmt.Sprintf("processes %v on host %s do not end even by SIGKILL, and are left behind", left(), h.plan.Host)
			}
			kill = true
			next.Reset(giveUpWait)
		}
	}
	return ""
}

// finish passes on what is left of the output. It is called when no process of
// the job is left.
func (h *host) finish() {
	for _, s := range h.streams {
		s.drain()
	}
	h.copying.Wait()
}

// close gives everything back.
func (h *host) close() error {
	h.forker.close()
	if h.typed != nil {
		h.typed.close()
	}
	err := h.hub.Close()
	if h.segment != nil {
		err = errors.Join(err, h.segment.Close())
	}
	return err
}
