//go:build zmq && cgo && linux

package zmq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weft-hpc/weft/internal/plane"
)

// What a record is. The numbers are part of the protocol.
const (
	beat    byte = iota // I am there
	last                // the rest of a frame, or all of it
	more                // a piece of a frame that goes on
	hold                // I will be silent until I say something
	bye                 // I end in good order
	grant               // u32: so much more may be sent
	hello               // a member's first
	verdict             // a root's first
	gone                // a root's last: why it gave the member up
)

const (
	headSize  = 1 + 8    // what, number
	maxPiece  = 64 << 10 // of a frame, in a record
	maxRecord = headSize + maxPiece
	wireExtra = 256                          // what CURVE puts around a record, and more
	window    = 1 << 20                      // what may be sent that the peer has not taken
	fixedCost = 64                           // of each piece, so that small ones are counted too
	maxInside = 2 * window / (fixedCost + 1) // records that can be inside of ZeroMQ: its limit is above what credit allows
	burst     = 16                           // records of one line before the next has its turn
)

// cost is what a piece takes of the window.
func cost(piece []byte) int { return len(piece) + fixedCost }

// line is one end of an established link. What says so belongs to the goroutine that owns the
// socket.
type line struct {
	cfg   *plane.Config
	rouse func() // the owner has something to do for this line

	mu     sync.Mutex
	queue  [][]byte // frames to send; nil is a hold
	queued int      // bytes of them
	ending bool     // nothing more is queued: goodbye after the rest
	err    error    // why the link ends, if ended
	ended  bool     // nothing more is sent or taken
	inbox  []arrival
	news   *sync.Cond // on mu: inbox, closed
	closed bool       // nothing more comes into the inbox
	busy   bool       // the handler has a frame
	owed   int        // credit to be given back
	later  int        // and when the handler has caught up

	// The owner's.
	sent, got uint64 // records
	credit    int
	out       int // what the peer has sent and was not given back
	rest      []byte
	inFrame   bool
	saidBye   bool
	heardBye  bool
	spoke     bool // since the last tick
	parts     []byte
	deadline  time.Time // zero: the peer may be silent
	second    bool      // it has its second chance
	record    []byte
}

// arrival is a frame, and what it took of the window.
type arrival struct {
	frame []byte
	cost  int
}

func newLine(cfg *plane.Config, now time.Time, rouse func()) *line {
	l := &line{cfg: cfg, rouse: rouse, credit: window, deadline: now.Add(cfg.Quiet)}
	l.news = sync.NewCond(&l.mu)
	return l
}

// send queues a frame, or a hold. Any goroutine may.
func (l *line) send(b []byte) {
	l.mu.Lock()
	full := l.queued > plane.MaxQueue && !l.ended
	if full {
		l.end(plane.ErrFull)
	}
	takes := !l.ended && !l.ending
	if takes {
		l.queue = append(l.queue, b)
		l.queued += len(b)
	}
	l.mu.Unlock()
	if full || takes {
		l.rouse()
	}
}

// finish says goodbye after what is queued.
func (l *line) finish() {
	l.mu.Lock()
	l.ending = true
	l.mu.Unlock()
	l.rouse()
}

// fail ends the link, unless it has ended. Any goroutine may.
func (l *line) fail(err error) {
	l.mu.Lock()
	l.end(err)
	l.mu.Unlock()
	l.rouse()
}

// end is fail with mu held.
func (l *line) end(err error) {
	if !l.ended {
		l.ended, l.err = true, err
	}
}

// over tells whether the link has ended, and why: nil is a goodbye.
func (l *line) over() (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended, l.err
}

// lose ends a link whose connection has ended: in good order, if either end wanted that.
func (l *line) lose(why error) {
	l.mu.Lock()
	if l.ending {
		why = nil
	}
	l.end(why)
	l.mu.Unlock()
}

// deliver calls the handler for each frame, until the owner has closed the inbox and it is empty. It is a goroutine
// of its own: a handler that waits holds up this line only.
func (l *line) deliver(frame func([]byte)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for len(l.inbox) == 0 && !l.closed {
			l.news.Wait()
		}
		if len(l.inbox) == 0 {
			return
		}
		a := l.inbox[0]
		l.inbox[0] = arrival{}
		l.inbox = l.inbox[1:]
		l.busy = true
		l.mu.Unlock()
		frame(a.frame)
		l.mu.Lock()
		l.busy = false
		l.owed += a.cost
		if len(l.inbox) == 0 {
			l.inbox = nil
			l.owed += l.later
			l.later = 0
		}
		if l.owed >= window/4 && !l.closed {
			l.mu.Unlock()
			l.rouse()
			l.mu.Lock()
		}
	}
}

// shut closes the inbox: deliver ends when it is empty.
func (l *line) shut() {
	l.mu.Lock()
	l.closed = true
	l.news.Signal()
	l.mu.Unlock()
}

// put sends one record.
func (l *line) put(what byte, b []byte, send func([]byte) error) error {
	l.record = append(binary.LittleEndian.AppendUint64(append(l.record[:0], what), l.sent), b...)
	l.sent++
	l.spoke = true
	return send(l.record)
}

// emit sends what there is to send, as far as credit goes, and not more than a burst. It tells
// whether more could be sent at once.
func (l *line) emit(send func([]byte) error) (again bool, err error) {
	l.mu.Lock()
	owed := l.owed
	if owed < window/4 {
		owed = 0
	}
	l.owed -= owed
	l.mu.Unlock()
	if owed > 0 {
		l.out -= owed
		if err := l.put(grant, binary.LittleEndian.AppendUint32(nil, uint32(owed)), send); err != nil {
			return false, err
		}
	}
	for range burst {
		if !l.inFrame {
			b, ok, bye := l.next()
			switch {
			case bye:
				return false, l.goodbye(send)
			case !ok:
				return false, nil
			case b == nil:
				if err := l.put(hold, nil, send); err != nil {
					return false, err
				}
				continue
			}
			l.rest, l.inFrame = b, true
		}
		piece, what := l.rest, last
		if len(piece) > maxPiece {
			piece, what = piece[:maxPiece], more
		}
		if l.credit < cost(piece) {
			return false, nil
		}
		l.credit -= cost(piece)
		if err := l.put(what, piece, send); err != nil {
			return false, err
		}
		l.rest = l.rest[len(piece):]
		if what == last {
			l.rest, l.inFrame = nil, false
		}
	}
	return true, nil
}

// next takes the next frame off the queue, or tells that it is time for the goodbye.
func (l *line) next() (b []byte, ok, bye bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		return nil, false, l.ending && !l.saidBye
	}
	b = l.queue[0]
	l.queue[0] = nil
	l.queue = l.queue[1:]
	l.queued -= len(b)
	return b, true, false
}

func (l *line) goodbye(send func([]byte) error) error {
	if l.saidBye {
		return nil
	}
	l.saidBye = true
	return l.put(bye, nil, send)
}

// tick is called now and then: it says that this end is there, and looks at how long the peer was silent.
func (l *line) tick(now time.Time, beatDue bool, send func([]byte) error) error {
	if !l.deadline.IsZero() && now.After(l.deadline) {
		if l.second {
			return plane.ErrSilent(l.cfg)
		}
		l.second, l.deadline = true, now.Add(plane.SecondChance)
	}
	if !beatDue {
		return nil
	}
	if l.spoke {
		l.spoke = false
		return nil
	}
	err := l.put(beat, nil, send)
	l.spoke = false
	return err
}

// errBye ends a link in good order.
var errBye = errors.New("it said goodbye")

// number checks that a record is the next one.
func (l *line) number(rec []byte) (what byte, body []byte, err error) {
	if len(rec) < headSize || len(rec) > maxRecord {
		return 0, nil, fmt.Errorf("a record of %d bytes came", len(rec))
	}
	if n := binary.LittleEndian.Uint64(rec[1:]); n != l.got {
		return 0, nil, fmt.Errorf("record %d came where %d was due: something was lost on the way, or is not from there", n, l.got)
	}
	l.got++
	return rec[0], rec[headSize:], nil
}

// take takes a record. Its bytes belong to the line.
func (l *line) take(rec []byte, now time.Time) error {
	what, b, err := l.number(rec)
	if err != nil {
		return err
	}
	l.second, l.deadline = false, now.Add(l.cfg.Quiet)
	switch what {
	case beat:
	case hold:
		l.deadline = time.Time{}
	case last, more:
		return l.piece(what == last, b)
	case grant:
		if len(b) != 4 {
			return fmt.Errorf("a grant of %d bytes came", len(b))
		}
		if l.credit += int(binary.LittleEndian.Uint32(b)); l.credit > window {
			return fmt.Errorf("it grants more than it had")
		}
	case bye:
		l.heardBye = true
		return errBye
	case gone:
		return fmt.Errorf("weftrun gave this host up: %s", b)
	default:
		return fmt.Errorf("a record of kind %d came", what)
	}
	return nil
}

// piece takes a piece of a frame.
func (l *line) piece(end bool, b []byte) error {
	if l.out += cost(b); l.out > window {
		return fmt.Errorf("it sends more than it was granted")
	}
	if len(l.parts)+len(b) > plane.MaxFrame {
		return fmt.Errorf("a frame of more than %d bytes came", plane.MaxFrame)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if end {
		frame := b
		if l.parts != nil {
			frame = append(l.parts, b...)
			l.parts = nil
		}
		l.inbox = append(l.inbox, arrival{frame, cost(b)})
		l.news.Signal()
		return nil
	}
	l.parts = append(l.parts, b...)
	// This frame goes on, and nobody takes it before its end. So its pieces are given back as they come, unless the handler lags.
	if len(l.inbox) == 0 && !l.busy {
		l.owed += cost(b)
	} else {
		l.later += cost(b)
	}
	return nil
}
