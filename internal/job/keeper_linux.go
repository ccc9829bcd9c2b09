package job

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"
)

// A keeper is a second process of the launcher that outlives it when it is
// killed. The kernel kills the ranks then, but not what these have started, and
// the keeper kills that: the process groups of the ranks that were running. It
// learns of the launcher's end from a pipe that closes, through which it is told
// of groups that are gone before, whose numbers may mean others by now.
//
// It is started when a job has run for a moment, so that a short one does not
// wait for it.
type keeper struct {
	pid  int
	pipe *os.File // the groups: +NUMBER or -NUMBER, one to a line
}

// KeeperName is what the launcher calls itself (argv[0]) in a keeper.
const KeeperName = "weftrun: keeper"

const keeperDelay = 100 * time.Millisecond

// newKeeper starts a keeper for the process groups of some ranks.
func newKeeper(groups []int) (*keeper, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	ours, theirs, err := newPipe("keeper", false)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	k := &keeper{pipe: ours}
	for _, g := range groups { // before it is there: else it knows of none for a moment
		k.tell('+', g)
	}
	// A group of its own, which the terminal does not interrupt; not a session,
	// by which batch systems find what belongs to a job.
	k.pid, err = syscall.ForkExec("/proc/self/exe", []string{KeeperName}, &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{theirs.Fd(), null.Fd(), null.Fd()}, Sys: &syscall.SysProcAttr{Setpgid: true}})
	if err != nil {
		ours.Close()
		return nil, os.NewSyscallError("fork", err)
	}
	return k, nil
}

// tell passes a group on. A keeper that does not listen has been killed, and is
// no use any more.
func (k *keeper) tell(sign byte, group int) {
	k.pipe.SetWriteDeadline(time.Now().Add(time.Second))
	k.pipe.Write(append(strconv.AppendInt([]byte{sign}, int64(group), 10), '\n'))
}

// dismiss ends the keeper, which is reaped as any other child.
func (k *keeper) dismiss() {
	syscall.Kill(k.pid, syscall.SIGKILL)
	k.pipe.Close()
}

// Keep is the keeper's life. It reads groups, and kills those that are left
// when the input ends.
func Keep(in io.Reader) {
	groups := make(map[int]bool)
	for s := bufio.NewScanner(in); s.Scan(); {
		line := s.Text()
		if len(line) < 2 {
			continue
		}
		g, err := strconv.Atoi(line[1:])
		if err != nil || g < 2 { // 0 and 1 would mean our own group, and everybody
			continue
		}
		if line[0] == '+' {
			groups[g] = true
		} else {
			delete(groups, g)
		}
	}
	for g := range groups {
		syscall.Kill(-g, syscall.SIGKILL) // fails when nobody is left
	}
}
