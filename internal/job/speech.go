package job

import (
	"io"
	"sync"
)

// speech writes the launcher's own messages, between the ranks' lines. It has a
// goroutine of its own: a reader of our standard error that is stuck must not
// keep the supervisor from ending the job.
type speech struct {
	lock sync.Locker // of the sink that leads to the same place
	out  io.Writer
	done chan struct{}

	mu     sync.Mutex
	more   *sync.Cond // on mu: texts, closed
	texts  []string
	closed bool
}

func newSpeech(lock sync.Locker, out io.Writer) *speech {
	s := &speech{lock: lock, out: out, done: make(chan struct{})}
	s.more = sync.NewCond(&s.mu)
	go s.run()
	return s
}

func (s *speech) say(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.texts = append(s.texts, text)
	s.more.Signal()
}

func (s *speech) run() {
	defer close(s.done)
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for len(s.texts) == 0 && !s.closed {
			s.more.Wait()
		}
		if len(s.texts) == 0 {
			return
		}
		text := s.texts[0]
		s.texts = s.texts[1:]
		s.mu.Unlock()
		s.lock.Lock()
		// When standard error is what broke, there is nobody else to tell.
		_, _ = io.WriteString(s.out, text)
		s.lock.Unlock()
		s.mu.Lock()
	}
}

// close returns when everything is written.
func (s *speech) close() {
	s.mu.Lock()
	s.closed = true
	s.more.Signal()
	s.mu.Unlock()
	<-s.done
}
