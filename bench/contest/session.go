package contest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Spec says how to start a contestant.
type Spec struct {
	Name  string
	Ranks int
	Argv  []string // launcher, its flags and the program; "{dir}" becomes the FIFOs' directory
	Env   []string // in addition to this process's environment
}

// Session is a running contestant. It is used by one goroutine.
type Session struct {
	spec  Spec
	dir   string
	cmd   *exec.Cmd
	out   tail
	gone  chan struct{} // closed when the launcher has ended
	exit  error         // valid when gone is closed
	ranks []rank
	err   error // first failure; the session is dead after it

	started time.Time
	before  time.Duration // processor time used before the first block
	busy    time.Duration // wall time spent in blocks
	worked  time.Duration // processor time used in blocks
}

type rank struct {
	in, out *os.File
	lines   *bufio.Reader
	pid     int
	proc    *os.Process // holds a pidfd, so a kill never hits a stranger
	cpus    string
}

// startTimeout bounds the time from the launch to the hello of the last rank.
const startTimeout = 60 * time.Second

// Start launches a contestant and waits until all of its ranks are up.
func Start(ctx context.Context, spec Spec) (*Session, error) {
	s := &Session{spec: spec, gone: make(chan struct{})}
	if err := s.start(ctx); err != nil {
		s.fail(err)
		return nil, s.Close()
	}
	return s, nil
}

func (s *Session) start(ctx context.Context) (err error) {
	if s.dir, err = os.MkdirTemp("", "contest-"); err != nil {
		return err
	}
	for i := range s.spec.Ranks {
		r := rank{}
		if r.in, err = fifo(filepath.Join(s.dir, fmt.Sprintf("%d.in", i))); err != nil {
			return err
		}
		s.ranks = append(s.ranks, r)
		if r.out, err = fifo(filepath.Join(s.dir, fmt.Sprintf("%d.out", i))); err != nil {
			return err
		}
		r.lines = bufio.NewReader(r.out)
		s.ranks[i] = r
	}
	argv := make([]string, len(s.spec.Argv))
	for i, a := range s.spec.Argv {
		argv[i] = strings.ReplaceAll(a, "{dir}", s.dir)
	}
	s.cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	s.cmd.Env = append(os.Environ(), s.spec.Env...)
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	// The job must not outlive this process, however that ends. (Go ends no
	// thread that is not locked, so the parent of the child is this process.)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	s.cmd.Cancel = func() error { return syscall.Kill(-s.cmd.Process.Pid, syscall.SIGTERM) }
	s.cmd.WaitDelay = 5 * time.Second
	if err := s.cmd.Start(); err != nil {
		s.cmd = nil
		return err
	}
	go func() {
		s.exit = s.cmd.Wait()
		close(s.gone)
		for i := range s.ranks { // nobody will answer any more
			s.ranks[i].out.SetReadDeadline(time.Unix(1, 0))
		}
	}()
	for i := range s.ranks {
		line, err := s.read(i, startTimeout)
		if err != nil {
			return fmt.Errorf("rank %d did not come up: %w", i, err)
		}
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != "hello" {
			return fmt.Errorf("rank %d said %q instead of hello", i, line)
		}
		if s.ranks[i].pid, err = strconv.Atoi(f[1]); err != nil {
			return fmt.Errorf("rank %d said hello with a bad pid: %w", i, err)
		}
		if s.ranks[i].proc, err = os.FindProcess(s.ranks[i].pid); err != nil {
			return fmt.Errorf("rank %d said hello with pid %d: %w", i, s.ranks[i].pid, err)
		}
		s.ranks[i].cpus = f[2]
	}
	s.started = time.Now()
	s.before, err = s.cpu()
	return err
}

// fifo makes a FIFO and opens it for reading and writing: so neither side waits
// for the other, and a rank sees the end of its input when this process is gone.
func fifo(path string) (*os.File, error) {
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("mkfifo %s: %w", path, err)
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}

// Name returns the contestant's name.
func (s *Session) Name() string { return s.spec.Name }

// Err returns the failure that ended the session, or nil.
func (s *Session) Err() error { return s.err }

// CPUs returns the processors each rank may use, as the ranks report them.
func (s *Session) CPUs() []string {
	var cpus []string
	for _, r := range s.ranks {
		cpus = append(cpus, r.cpus)
	}
	return cpus
}

// Block is one command of the protocol in bench/peers/serve.h.
type Block struct {
	Test   string
	Bytes  int64
	Iters  int
	Warmup int
	Window int
	Mode   string
	Memory string
}

func (b Block) String() string {
	return fmt.Sprintf("%s %d %d %d %d %s %s", b.Test, b.Bytes, b.Iters, b.Warmup, max(b.Window, 1),
		orElse(b.Mode, "osu"), orElse(b.Memory, "slice"))
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// Do runs one block on all ranks and returns the value of each. Any failure
// ends the session: ranks that answered and ranks that did not are out of step.
func (s *Session) Do(b Block, timeout time.Duration) ([]float64, error) {
	if s.err != nil {
		return nil, s.err
	}
	cpu0, err := s.cpu()
	if err != nil {
		return nil, s.fail(err)
	}
	t0 := time.Now()
	line := b.String() + "\n"
	for i := range s.ranks {
		if _, err := s.ranks[i].in.WriteString(line); err != nil {
			return nil, s.fail(fmt.Errorf("rank %d: command %q: %w", i, b, err))
		}
	}
	values := make([]float64, len(s.ranks))
	var refused error
	for i := range s.ranks {
		answer, err := s.read(i, timeout)
		if err != nil {
			return nil, s.fail(fmt.Errorf("rank %d: command %q: %w", i, b, err))
		}
		verb, rest, _ := strings.Cut(answer, " ")
		switch values[i], err = strconv.ParseFloat(rest, 64); {
		case verb == "err":
			refused = fmt.Errorf("rank %d: command %q: %s", i, b, rest)
		case verb != "ok" || err != nil:
			return nil, s.fail(fmt.Errorf("rank %d: command %q: bad answer %q", i, b, answer))
		}
	}
	s.busy += time.Since(t0)
	cpu1, err := s.cpu()
	if err != nil {
		return nil, s.fail(err)
	}
	s.worked += cpu1 - cpu0
	return values, refused
}

func (s *Session) read(i int, timeout time.Duration) (string, error) {
	r := &s.ranks[i]
	r.out.SetReadDeadline(time.Now().Add(timeout))
	select {
	case <-s.gone: // its own deadline may have come before ours
		r.out.SetReadDeadline(time.Unix(1, 0))
	default:
	}
	line, err := r.lines.ReadString('\n')
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return strings.TrimSpace(line), err
	}
	select {
	case <-s.gone:
		return "", fmt.Errorf("the job ended: %v%s", s.exit, s.out.quote())
	default:
		return "", fmt.Errorf("no answer in %v%s", timeout, s.out.quote())
	}
}

// fail records the first failure; Close then kills the job.
func (s *Session) fail(err error) error {
	if s.err == nil {
		s.err = fmt.Errorf("%s: %w", s.spec.Name, err)
	}
	return s.err
}

// Idle returns the processor time, in cores, that the ranks used while other
// contestants had their turn.
func (s *Session) Idle() (float64, error) {
	if s.err != nil {
		return 0, s.err
	}
	total, err := s.cpu()
	if err != nil {
		return 0, s.fail(err)
	}
	idle := time.Since(s.started) - s.busy
	return max(0, (total-s.before-s.worked).Seconds()/idle.Seconds()), nil
}

// cpu is the processor time used by all ranks. The kernel counts in ticks of
// 10 ms, which is enough for sums.
func (s *Session) cpu() (time.Duration, error) {
	var ticks int64
	for i, r := range s.ranks {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.pid))
		if err != nil {
			return 0, fmt.Errorf("rank %d is gone: %w%s", i, err, s.out.quote())
		}
		// The command's name may hold anything; fields are counted after it.
		f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
		if len(f) < 13 {
			return 0, fmt.Errorf("rank %d: /proc/%d/stat has %d fields", i, r.pid, len(f))
		}
		for _, field := range f[11:13] { // user and system time
			n, err := strconv.ParseInt(string(field), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("rank %d: /proc/%d/stat: %w", i, r.pid, err)
			}
			ticks += n
		}
	}
	return time.Duration(ticks) * (time.Second / userHZ), nil
}

// userHZ is the unit of times in /proc/PID/stat; Linux fixes it for user space.
const userHZ = 100

// Close ends the contestant and returns its first failure, if any. The ranks see
// the end of their input; a job that then does not end by itself, with an exit
// status of 0, has failed too. Closing again does nothing more.
func (s *Session) Close() error {
	for _, r := range s.ranks {
		if r.in != nil {
			r.in.Close()
		}
	}
	if s.cmd != nil {
		if s.err != nil {
			syscall.Kill(-s.cmd.Process.Pid, syscall.SIGTERM)
		}
		for _, step := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			if s.ended(5 * time.Second) {
				break
			}
			syscall.Kill(-s.cmd.Process.Pid, step)
		}
		<-s.gone
		if s.exit != nil {
			s.fail(fmt.Errorf("did not end in good order: %w%s", s.exit, s.out.quote()))
		}
	}
	for _, r := range s.ranks {
		if r.proc != nil {
			if s.err != nil { // launchers give ranks process groups of their own
				r.proc.Kill()
			}
			r.proc.Release()
		}
		if r.out != nil {
			r.out.Close()
		}
	}
	if s.dir != "" {
		os.RemoveAll(s.dir)
	}
	return s.err
}

func (s *Session) ended(within time.Duration) bool {
	select {
	case <-s.gone:
		return true
	case <-time.After(within):
		return false
	}
}

// tail keeps the end of a job's output for error messages.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailSize = 1024

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > tailSize {
		t.b = append(t.b[:0], t.b[len(t.b)-tailSize:]...)
	}
	return len(p), nil
}

func (t *tail) quote() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(string(t.b))
	if text == "" {
		return ""
	}
	return "; its output ends: " + text
}
