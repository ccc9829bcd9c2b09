package job

import (
	"os"
	"sync"
	"time"
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

// inputPipe passes rank 0's standard input on from the link to the rank. It owns a goroutine.
type inputPipe struct {
	credit func(int)
	ours   *os.File
	rank   *os.File
	group  sync.WaitGroup

	mu    sync.Mutex
	cond  *sync.Cond
	queue [][]byte // nil is the end
}

func newInputPipe(credit func(int)) *inputPipe {
	p := &inputPipe{credit: credit}
	p.cond = sync.NewCond(&p.mu)
	return p
}

// theirs makes the pipe and returns the rank's end.
func (p *inputPipe) theirs() *os.File {
	ours, theirs, err := newPipe("input of rank 0", false)
	if err != nil {
		null, _ := os.Open(os.DevNull)
		return null
	}
	p.ours, p.rank = ours, theirs
	p.group.Go(p.run)
	return theirs
}

func (p *inputPipe) put(b []byte) {
	if len(b) == 0 {
		b = nil
	}
	p.mu.Lock()
	p.queue = append(p.queue, b)
	p.mu.Unlock()
	p.cond.Signal()
}

func (p *inputPipe) run() {
	defer p.ours.Close()
	for {
		p.mu.Lock()
		for len(p.queue) == 0 {
			p.cond.Wait()
		}
		b := p.queue[0]
		p.queue = p.queue[1:]
		p.mu.Unlock()
		if b == nil {
			return
		}
		if _, err := p.ours.Write(b); err != nil {
			return // nobody reads any more; no credit, so no more is sent
		}
		p.credit(len(b))
	}
}

// close ends the goroutine.
func (p *inputPipe) close() {
	if p.ours != nil {
		p.put(nil)
		_ = p.ours.SetWriteDeadline(time.Now()) // a rank that does not read; closed already is as good
		p.group.Wait()
	}
}
