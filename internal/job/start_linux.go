package job

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// start is a command that starts an agent, and stays as long as that. It owns a
// goroutine that reads what the command says.
type start struct {
	command command
	pid     int
	out     *os.File
	over    chan struct{} // closed when there is nothing more to read
	loud    func(line string)

	mu     sync.Mutex
	said   []byte // the last of what it said, until it is loud
	isLoud bool
}

const (
	keepSaid = 4 << 10
	saidWait = 200 * time.Millisecond // for the last words of a command that ended
)

// newStart runs a command with something on its standard input, in a directory.
func newStart(f *forker, c command, stdin []byte, dir string) (*start, error) {
	path, err := exec.LookPath(c.Argv[0])
	if err != nil {
		return nil, err
	}
	in, err := stdinWith(stdin)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	ours, theirs, err := newPipe("output of "+c.Argv[0], true)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	s := &start{command: c, out: ours, over: make(chan struct{})}
	err = f.do(func() (err error) {
		// A group of its own, which the terminal does not interrupt. It does not die with
		// us: the agent sees that we are gone, and cleans up; to cut it short would leave
		// behind what its ranks have started.
		s.pid, err = syscall.ForkExec(path, c.Argv, &syscall.ProcAttr{Dir: dir, Env: baseEnv(os.Environ()), Files: []uintptr{in.Fd(), theirs.Fd(), theirs.Fd()},
			Sys: &syscall.SysProcAttr{Setpgid: true}})
		return err
	})
	if err != nil {
		ours.Close()
		return nil, os.NewSyscallError("fork "+path, err)
	}
	go s.read()
	return s, nil
}

// stdinWith returns a file that holds some bytes, and then ends.
func stdinWith(b []byte) (*os.File, error) {
	if len(b) == 0 {
		return os.Open(os.DevNull)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = w.Write(b) // a line: the pipe has room
	w.Close()
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (s *start) read() {
	defer close(s.over)
	defer s.out.Close()
	buf := make([]byte, 1024)
	for {
		n, err := s.out.Read(buf)
		s.mu.Lock()
		s.said = append(s.said, buf[:n]...)
		if s.isLoud {
			s.speak(err != nil)
		} else if len(s.said) > keepSaid {
			s.said = append(s.said[:0], s.said[len(s.said)-keepSaid:]...)
		}
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// speak passes on whole lines, or all when nothing follows. The caller holds mu.
func (s *start) speak(all bool) {
	n := bytes.LastIndexByte(s.said, '\n') + 1
	if all || len(s.said) > keepSaid {
		n = len(s.said)
	}
	for line := range strings.Lines(string(s.said[:n])) {
		if line = strings.TrimSpace(line); line != "" && s.loud != nil {
			s.loud(line)
		}
	}
	s.said = append(s.said[:0], s.said[n:]...)
}

// beLoud passes on what comes from now on. What came before the agent was up is
// greetings of shells and the like.
func (s *start) beLoud() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said, s.isLoud = nil, true
}

// finish returns what an ended command said last.
func (s *start) finish() string {
	select {
	case <-s.over:
	case <-time.After(saidWait): // somebody else holds the pipe
		s.abandon()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(strings.Fields(string(s.said)), " ")
}

// abandon ends the reading.
func (s *start) abandon() {
	s.out.Close()
	<-s.over
}
