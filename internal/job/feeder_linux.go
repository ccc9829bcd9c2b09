package job

import (
	"os"
	"sync"
)

// feeder passes our standard input on to rank 0 on another host: no more than its agent
// has asked for. It owns a goroutine.
type feeder struct {
	typed *typist
	from  *os.File // what the typist passes on
	send  func([]byte)
	group sync.WaitGroup

	mu     sync.Mutex
	cond   *sync.Cond
	credit int
	closed bool
}

// inputWindow is how much an agent holds for a rank 0 that does not read.
const inputWindow = 64 << 10

func newFeeder(send func([]byte)) (*feeder, error) {
	t, from, err := newTypist()
	if err != nil {
		return nil, err
	}
	f := &feeder{typed: t, from: from, send: send, credit: inputWindow}
	f.cond = sync.NewCond(&f.mu)
	f.group.Go(f.run)
	return f, nil
}

func (f *feeder) run() {
	buf := make([]byte, 16<<10)
	for {
		f.mu.Lock()
		for f.credit == 0 && !f.closed {
			f.cond.Wait()
		}
		n, closed := min(f.credit, len(buf)), f.closed
		f.mu.Unlock()
		if closed {
			return
		}
		n, err := f.from.Read(buf[:n])
		if n > 0 {
			f.send(append([]byte(nil), buf[:n]...))
		}
		f.mu.Lock()
		f.credit -= n
		closed = f.closed
		f.mu.Unlock()
		if err != nil || closed {
			if !closed {
				f.send(nil) // the end
			}
			return
		}
	}
}

func (f *feeder) grant(n int) {
	f.mu.Lock()
	f.credit = min(f.credit+max(n, 0), inputWindow)
	f.mu.Unlock()
	f.cond.Signal()
}

func (f *feeder) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.cond.Signal()
	f.typed.close() // which ends the read
	f.group.Wait()
	f.from.Close()
}
