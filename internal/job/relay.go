package job

import (
	"bytes"
	"errors"
	"sync"
)

// How output passes from an agent to the launcher. An outlet is a sink's writer and lock in
// the agent; an inlet is the launcher's end of it, which writes to the launcher's own
// sink, and takes that sink's lock for as long as the agent's stream would.
//
// The launcher grants credit: an agent sends no more than window bytes that are not
// written yet, so a slow reader holds up the ranks, and neither memory nor what else
// the link carries.

const (
	window   = 32 << 10 // bytes under way for each stream of each host: the more, the longer other messages wait behind them
	maxPiece = 16 << 10 // of output in one message
)

var errLinkDown = errors.New("the launcher is gone")

// outlet is a sink's place in an agent. Its Lock and Unlock are the sink's.
type outlet struct {
	sync.Locker
	stream int
	send   func(*message)

	inLine bool // guarded by Locker: the last byte sent was not the end of a line

	mu     sync.Mutex
	cond   *sync.Cond
	credit int
	down   bool
}

func newOutlet(stream int, send func(*message)) *outlet {
	o := &outlet{Locker: new(sync.Mutex), stream: stream, send: send, credit: window}
	o.cond = sync.NewCond(&o.mu)
	return o
}

// Write sends b, in pieces, as credit allows.
func (o *outlet) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		n := o.take(min(len(b)-done, maxPiece))
		if n == 0 {
			return done, errLinkDown
		}
		o.send(&message{Verb: msgOutput, Stream: o.stream, Data: bytes.Clone(b[done : done+n])})
		done += n
	}
	if len(b) > 0 {
		o.inLine = b[len(b)-1] != '\n'
	}
	return done, nil
}

// take waits for some credit and returns how much it took; 0 when the link is
// down.
func (o *outlet) take(want int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.credit == 0 && !o.down {
		o.cond.Wait()
	}
	if o.down {
		return 0
	}
	n := min(want, o.credit)
	o.credit -= n
	return n
}

func (o *outlet) grant(n int) {
	o.mu.Lock()
	o.credit = min(o.credit+max(n, 0), window)
	o.mu.Unlock()
	o.cond.Broadcast()
}

// hangUp makes writes fail.
func (o *outlet) hangUp() {
	o.mu.Lock()
	o.down = true
	o.mu.Unlock()
	o.cond.Broadcast()
}

// Unlock gives the sink away, at the other end too.
func (o *outlet) Unlock() {
	if o.inLine {
		o.inLine = false
		o.send(&message{Verb: msgPause, Stream: o.stream})
	}
	o.Locker.Unlock()
}

// inlet is the launcher's end of an outlet. It owns a goroutine, which ends after close.
type inlet struct {
	to     *sink
	credit func(n int)
	group  sync.WaitGroup

	mu     sync.Mutex
	cond   *sync.Cond
	queue  [][]byte // pieces; nil is a pause
	queued int
	closed bool
}

func newInlet(to *sink, credit func(int)) *inlet {
	in := &inlet{to: to, credit: credit}
	in.cond = sync.NewCond(&in.mu)
	in.group.Go(in.run)
	return in
}

// put queues a piece, or a pause when it is nil. It returns false when the
// agent sent more than it had credit for.
func (in *inlet) put(b []byte) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.queued+len(b) > window {
		return false
	}
	in.queued += len(b)
	in.queue = append(in.queue, b)
	in.cond.Signal()
	return true
}

func (in *inlet) run() {
	locked := false
	release := func() {
		if locked {
			locked = false
			in.to.lock.Unlock()
		}
	}
	defer release()
	in.mu.Lock()
	defer in.mu.Unlock()
	for {
		for len(in.queue) == 0 && !in.closed {
			in.cond.Wait()
		}
		if len(in.queue) == 0 {
			return
		}
		queue := in.queue
		in.queue = nil
		in.mu.Unlock()
		written := 0
		for _, b := range queue {
			if b == nil {
				release()
				continue
			}
			if !locked {
				in.to.lock.Lock()
				locked = true
			}
			in.to.write(b)
			written += len(b)
			if b[len(b)-1] == '\n' {
				release()
			}
		}
		in.mu.Lock()
		in.queued -= written
		if written > 0 {
			in.credit(written)
		}
	}
}

// close lets the goroutine end after what is queued.
func (in *inlet) close() {
	in.mu.Lock()
	in.closed = true
	in.cond.Signal()
	in.mu.Unlock()
}
