// Package tmtest is a MoM for tests: what PBS would do for one job, without PBS. It is made after a
// recorded OpenPBS, and strict: it reads requests with a decoder of its own, which takes no
// number in another form than PBS writes it, and closes the connection for anything else, as it
// does for a wrong cookie.
//
// Tasks are as PBS starts them: each in a session of its own, in the home directory, with an empty standard
// input, umask 077, output to the job's file, and no variables but PBS's and those of the request. All of them are
// killed, by session, when the job's script has ended.
package tmtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Config describes a job and the PBS that runs it.
type Config struct {
	Nodes  []string // the lines of the node file
	File   string   // that holds them
	Home   string
	Output *os.File                                  // the job's file
	On     func(host string, argv []string) []string // a command that runs argv on a host; nil: here
	Torque bool                                      // its protocol, without frames
	Raw    bool                                      // OpenPBS's protocol, without frames: PBS Pro before 20
	Refuse int                                       // every SPAWN with this error, if it is not 0
}

const (
	id     = "7.head"
	cookie = "42078C2E1A21F6227AF1D19C7CB58F0E"
)

// Mom is a MoM with one job. Close ends its goroutines and all tasks.
type Mom struct {
	cfg   Config
	in    net.Listener
	group sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]bool
	tasks  map[int64]*task
	next   [2]int64 // numbers of tasks on the first host, and on others
	spawns int
	closed bool
}

type task struct {
	node   int
	local  bool
	sid    int
	over   chan struct{}
	status int
}

// Start starts a MoM.
func Start(cfg Config) (*Mom, error) {
	in, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &Mom{cfg: cfg, in: in, conns: make(map[net.Conn]bool), tasks: make(map[int64]*task), next: [2]int64{2, 0x20000001}}
	m.group.Go(func() {
		for {
			c, err := in.Accept()
			if err != nil {
				return
			}
			m.mu.Lock()
			if m.closed {
				c.Close()
			}
			m.conns[c] = true
			m.mu.Unlock()
			m.group.Go(func() {
				m.serve(c)
				c.Close()
				m.mu.Lock()
				delete(m.conns, c)
				m.mu.Unlock()
			})
		}
	})
	return m, nil
}

// Env is what the job's script finds of PBS.
func (m *Mom) Env() []string {
	number := "00000001"
	if m.cfg.Torque {
		number = "1"
	}
	env := []string{"PBS_JOBID=" + id, "PBS_JOBCOOKIE=" + cookie, "PBS_NODENUM=0", "PBS_TASKNUM=" + number, "PBS_NODEFILE=" + m.cfg.File,
		"PBS_MOMPORT=" + strconv.Itoa(m.in.Addr().(*net.TCPAddr).Port), "PBS_ENVIRONMENT=PBS_BATCH", "ENVIRONMENT=BATCH"}
	if m.cfg.Torque {
		env = append(env, "PBS_VERSION=TORQUE-6.1.3")
	}
	return env
}

// Spawns returns how many tasks were asked for.
func (m *Mom) Spawns() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.spawns
}

// Script runs the job's script on the first host, as task 1, and ends the job after it.
func (m *Mom) Script(argv, env []string) (status int, err error) {
	t, err := m.start(1, 0, argv, slices.Concat(m.Env(), env))
	if err != nil {
		return 0, err
	}
	<-t.over
	m.signal(syscall.SIGKILL, false)
	return t.status, nil
}

// Delete does what qdel does: SIGTERM to what runs on the first host, and SIGKILL after a while.
func (m *Mom) Delete(killDelay time.Duration) {
	m.signal(syscall.SIGTERM, true)
	m.group.Go(func() {
		for end := time.Now().Add(killDelay); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			m.mu.Lock()
			closed := m.closed
			m.mu.Unlock()
			if closed {
				return
			}
		}
		m.signal(syscall.SIGKILL, false)
	})
}

// Close ends everything.
func (m *Mom) Close() error {
	m.mu.Lock()
	m.closed = true
	for c := range m.conns {
		c.Close()
	}
	m.mu.Unlock()
	err := m.in.Close()
	m.signal(syscall.SIGKILL, false)
	m.group.Wait()
	return err
}

// signal signals the sessions of all tasks, or of those on the first host.
func (m *Mom) signal(sig syscall.Signal, local bool) {
	sessions := make(map[string]bool)
	m.mu.Lock()
	for _, t := range m.tasks {
		if t.sid > 0 && (t.local || !local) {
			sessions[strconv.Itoa(t.sid)] = true
		}
	}
	m.mu.Unlock()
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // has ended
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if pid, err := strconv.Atoi(strings.Split(name, "/")[2]); err == nil && len(f) > 3 && sessions[f[3]] {
			syscall.Kill(pid, sig)
		}
	}
}

// start starts a task. A program that is not there makes one that has ended with 254.
func (m *Mom) start(number int64, node int, argv, env []string) (*task, error) {
	host := m.cfg.Nodes[node]
	t := &task{node: node, local: host == m.cfg.Nodes[0], over: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, errors.New("the job is over")
	}
	m.tasks[number] = t
	if _, err := exec.LookPath(argv[0]); err != nil {
		t.status = 254
		close(t.over)
		return t, nil
	}
	run := append([]string{"/bin/sh", "-c", `cd; umask 077; exec "$@"`, "sh"}, argv...)
	if m.cfg.On != nil {
		run = m.cfg.On(host, run)
	}
	cmd := exec.Command(run[0], run[1:]...)
	cmd.Env = append([]string{"HOME=" + m.cfg.Home, "PATH=/bin:/usr/bin", "NCPUS=1", "OMP_NUM_THREADS=1"}, env...)
	cmd.Stdout, cmd.Stderr = m.cfg.Output, m.cfg.Output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	t.sid = cmd.Process.Pid
	m.group.Go(func() {
		_ = cmd.Wait() // the state tells
		ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if t.status = ws.ExitStatus(); ws.Signaled() {
			t.status = 256 + int(ws.Signal())
		}
		close(t.over)
	})
	return t, nil
}

// serve answers one connection.
func (m *Mom) serve(c net.Conn) {
	var sending sync.Mutex
	send := func(fields ...any) {
		var body []byte
		for _, f := range fields {
			body = append(body, encode(f)...)
		}
		if m.framed() {
			body = append(binary.BigEndian.AppendUint32([]byte("PKTV1\x00\x00"), uint32(len(body))), body...)
		}
		sending.Lock()
		defer sending.Unlock()
		_, _ = c.Write(body) // who does not listen any more has closed
	}
	protocol := int64(2)
	if m.cfg.Torque {
		protocol = 5
	}
	for {
		d := &decoder{r: c}
		if m.framed() {
			head := make([]byte, 11)
			if _, err := io.ReadFull(c, head); err != nil || string(head[:7]) != "PKTV1\x00\x00" {
				return
			}
			body := make([]byte, binary.BigEndian.Uint32(head[7:]))
			if _, err := io.ReadFull(c, body); err != nil {
				return
			}
			d.r = strings.NewReader(string(body))
		}
		if d.int() != protocol || d.int() != 2 || d.string() != id || d.string() != cookie || d.err != nil {
			return
		}
		command, event, me := d.int(), d.int(), d.int()
		if me != 1 {
			return
		}
		fail := func(code int) { send(protocol, int64(2), int64(999), event, int64(code)) }
		switch command {
		case 100:
			fields := []any{protocol, int64(2), int64(0), event, int64(len(m.cfg.Nodes))}
			for i := range m.cfg.Nodes {
				fields = append(fields, int64(i))
			}
			send(append(fields, id, int64(-1), int64(0))...)
		case 102:
			node, argc := d.int(), d.int()
			var argv, env []string
			for range argc {
				argv = append(argv, d.string())
			}
			for s := d.string(); s != ""; s = d.string() {
				env = append(env, s)
			}
			if d.err != nil || argc < 1 || slices.Contains(argv, "") || node < 0 || int(node) >= len(m.cfg.Nodes) {
				return
			}
			which := 0
			if m.cfg.Nodes[node] != m.cfg.Nodes[0] {
				which = 1
			}
			m.mu.Lock()
			m.spawns++
			number := m.next[which]
			m.next[which]++
			m.mu.Unlock()
			if m.cfg.Refuse != 0 {
				fail(m.cfg.Refuse)
				continue
			}
			m.group.Go(func() { // replies come in any order
				if _, err := m.start(number, int(node), argv, append(env, "PBS_ENVIRONMENT=PBS_BATCH", "PBS_JOBID="+id, "PBS_JOBCOOKIE="+cookie,
					"PBS_NODENUM="+strconv.Itoa(int(node)), fmt.Sprintf("PBS_TASKNUM=%8.8X", number))); err != nil {
					fail(17000)
					return
				}
				send(protocol, int64(2), int64(0), event, number)
			})
		case 104:
			node, number := d.int(), d.int()
			m.mu.Lock()
			t := m.tasks[number]
			m.mu.Unlock()
			if t == nil || int64(t.node) != node {
				fail(17006)
				continue
			}
			m.group.Go(func() {
				<-t.over
				send(protocol, int64(2), int64(0), event, int64(t.status))
			})
		default:
			return
		}
	}
}

func (m *Mom) framed() bool { return !m.cfg.Torque && !m.cfg.Raw }

// encode writes a number or a string.
func encode(v any) string {
	if s, ok := v.(string); ok {
		return encode(int64(len(s))) + s
	}
	s := fmt.Sprintf("%+d", v)
	for n := len(s) - 1; n > 1; n = len(strconv.Itoa(n)) {
		s = strconv.Itoa(n) + s
	}
	return s
}

// decoder reads what encode writes, and nothing else. After an error everything is zero.
type decoder struct {
	r   io.Reader
	err error
}

func (d *decoder) bytes(n int) string {
	b := make([]byte, n)
	if d.err == nil {
		_, d.err = io.ReadFull(d.r, b)
	}
	if d.err != nil {
		return ""
	}
	return string(b)
}

func (d *decoder) int() int64 {
	text, digits := "", 1
	for d.err == nil {
		part := d.bytes(1)
		text += part
		if part == "+" || part == "-" {
			text += d.bytes(digits)
			break
		}
		rest := d.bytes(digits - 1)
		text += rest
		n, err := strconv.Atoi(part + rest)
		if err != nil || n < 2 || n > 18 {
			d.err = fmt.Errorf("%q is no number", text)
			return 0
		}
		digits = n
	}
	sign := strings.IndexAny(text, "+-")
	if d.err != nil {
		return 0
	}
	n, err := strconv.ParseInt(text[sign:], 10, 64)
	if err != nil || encode(n) != text {
		d.err = fmt.Errorf("%q is no number", text)
		return 0
	}
	return n
}

func (d *decoder) string() string {
	n := d.int()
	if n < 0 || n > 1<<16 {
		d.err = fmt.Errorf("a string of %d bytes", n)
	}
	if d.err != nil {
		return ""
	}
	return d.bytes(int(n))
}
