package plane

import (
	"bufio"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// A link carries records, each a u32 with its length, and that many sealed bytes: one byte that says
// what it is, and a piece of a frame. The nonce is the record's number, and the length is
// authenticated with it, so that a record that was changed, lost, repeated or moved ends the link.
const (
	maxRecord = 64 << 10 // of plain bytes
	headSize  = 4
)

// What a record is.
const (
	beat byte = iota // I am there
	last             // the rest of a frame, or all of it
	more             // a piece of a frame that goes on
	hold             // I will be silent until I say something
	bye              // I end in good order
	numRecords
)

// link is one end of an established connection. It owns two goroutines, which run
// until the connection ends.
type link struct {
	conn  net.Conn
	cfg   *Config
	seal  cipher.AEAD
	open  cipher.AEAD
	group sync.WaitGroup

	mu     sync.Mutex
	queue  [][]byte // frames; an empty one is a hold
	queued int
	err    error         // why the link ends
	ending bool          // nothing more is queued: say goodbye after the rest
	wake   chan struct{} // a token for the writer
	over   chan struct{} // closed with the first error
	left   bool          // the peer has said goodbye
}

func newLink(conn net.Conn, cfg *Config, seal, open cipher.AEAD) *link {
	return &link{conn: conn, cfg: cfg, seal: seal, open: open, wake: make(chan struct{}, 1), over: make(chan struct{})}
}

// run starts the goroutines. Frame is called for each frame, and then done once.
func (l *link) run(frame func([]byte), done func(error)) {
	l.group.Go(l.write)
	l.group.Go(func() {
		l.fail(l.read(frame))
		l.mu.Lock()
		err := l.err
		if l.left || l.ending {
			err = nil // a goodbye of either end
		}
		l.mu.Unlock()
		done(err)
	})
}

// send queues a frame.
func (l *link) send(b []byte) {
	l.mu.Lock()
	full := l.queued > MaxQueue
	if l.err == nil && !l.ending && !full {
		l.queue = append(l.queue, b)
		l.queued += len(b)
	}
	l.mu.Unlock()
	if full {
		l.fail(ErrFull)
		return
	}
	l.rouse()
}

func (l *link) rouse() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// fail ends the link with an error, unless it has one.
func (l *link) fail(err error) {
	l.mu.Lock()
	first := l.err == nil
	if first {
		l.err = err
		close(l.over)
	}
	l.mu.Unlock()
	if first {
		l.conn.Close()
	}
}

// close says goodbye after what is queued, and waits until the peer has heard it, or for as
// long as GoodbyeWait.
func (l *link) close() {
	l.mu.Lock()
	l.ending = true
	l.mu.Unlock()
	l.rouse()
	t := time.NewTimer(GoodbyeWait)
	defer t.Stop()
	select {
	case <-l.over:
	case <-t.C:
	}
	l.fail(errClosed)
	l.group.Wait()
}

// write is the goroutine that empties the queue, and says that this end is
// there when there was nothing to say.
func (l *link) write() {
	ticker := time.NewTicker(l.cfg.Beat)
	defer ticker.Stop()
	w := &records{conn: l.conn, aead: l.seal, limit: l.cfg.Quiet}
	idle := true
	for {
		select {
		case <-l.over:
			return
		case <-ticker.C:
			if idle {
				w.add(beat, nil)
			}
			idle = true
		case <-l.wake:
			idle = false
		}
		over, err := l.flush(w)
		if err != nil {
			l.fail(fmt.Errorf("cannot be written to: %w", err))
		}
		if over || err != nil {
			return
		}
	}
}

// flush writes all that is queued, and the goodbye if that is due: then it is
// the last call.
func (l *link) flush(w *records) (over bool, err error) {
	for {
		l.mu.Lock()
		queue, ending := l.queue, l.ending
		l.queue, l.queued = nil, 0
		l.mu.Unlock()
		for _, b := range queue {
			if b == nil {
				w.add(hold, nil)
				continue
			}
			for len(b) > maxRecord {
				w.add(more, b[:maxRecord])
				b = b[maxRecord:]
				if err := w.write(); err != nil {
					return false, err
				}
			}
			w.add(last, b)
			if len(w.out) > maxRecord {
				if err := w.write(); err != nil {
					return false, err
				}
			}
		}
		if len(queue) > 0 {
			continue
		}
		if ending {
			w.add(bye, nil)
		}
		if err := w.write(); err != nil {
			return false, err
		}
		if !ending {
			return false, nil
		}
		if c, ok := l.conn.(interface{ CloseWrite() error }); ok {
			return true, c.CloseWrite() // the peer hangs up when it has read it all
		}
		return true, nil
	}
}

// records seals records into a buffer.
type records struct {
	conn   net.Conn
	aead   cipher.AEAD
	limit  time.Duration
	number uint64
	out    []byte
	nonce  [12]byte
	plain  []byte
}

func (w *records) add(what byte, b []byte) {
	w.plain = append(append(w.plain[:0], what), b...)
	at := len(w.out)
	w.out = binary.LittleEndian.AppendUint32(w.out, uint32(len(w.plain)+w.aead.Overhead()))
	binary.LittleEndian.PutUint64(w.nonce[4:], w.number)
	w.number++
	w.out = w.aead.Seal(w.out, w.nonce[:], w.plain, w.out[at:at+headSize])
}

func (w *records) write() error {
	if len(w.out) == 0 {
		return nil
	}
	if err := w.conn.SetWriteDeadline(time.Now().Add(w.limit + SecondChance)); err != nil {
		return err
	}
	_, err := w.conn.Write(w.out)
	w.out = w.out[:0]
	return err
}

// errBye ends a link in good order.
var errBye = errors.New("it said goodbye")

// read takes records until the link ends.
func (l *link) read(frame func([]byte)) error {
	in := bufio.NewReaderSize(&patient{l: l}, maxRecord)
	var (
		number uint64
		nonce  [12]byte
		head   [headSize]byte
		body   = make([]byte, 1+maxRecord+l.open.Overhead())
		parts  []byte
	)
	for {
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return l.readError(err)
		}
		n := binary.LittleEndian.Uint32(head[:])
		if n < uint32(1+l.open.Overhead()) || n > uint32(len(body)) {
			return fmt.Errorf("a record of %d bytes came", n)
		}
		if _, err := io.ReadFull(in, body[:n]); err != nil {
			return l.readError(err)
		}
		binary.LittleEndian.PutUint64(nonce[4:], number)
		number++
		plain, err := l.open.Open(body[:0], nonce[:], body[:n], head[:])
		if err != nil {
			return errors.New("what came was changed on the way, or is not from there")
		}
		what, plain := plain[0], plain[1:]
		l.setPatience(what == hold)
		switch what {
		case beat, hold:
		case last, more:
			if len(parts)+len(plain) > MaxFrame {
				return fmt.Errorf("a frame of more than %d bytes came", MaxFrame)
			}
			parts = append(parts, plain...)
			if what == last {
				whole := parts
				parts = nil
				frame(whole)
			}
		case bye:
			l.mu.Lock()
			l.left = true
			l.mu.Unlock()
			return errBye
		default:
			return fmt.Errorf("a record of kind %d came", what)
		}
	}
}

func (l *link) readError(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ErrSilent(l.cfg)
	case err == io.EOF, err == io.ErrUnexpectedEOF:
		return ErrClosed
	}
	return err
}

// setPatience says whether the peer may be silent for as long as it likes.
func (l *link) setPatience(endless bool) {
	var t time.Time
	if !endless {
		t = time.Now().Add(l.cfg.Quiet)
	}
	_ = l.conn.SetReadDeadline(t) // fails when closed, as the next read will
}

// patient reads a link, with a second chance at each deadline.
type patient struct {
	l *link
}

func (p *patient) Read(b []byte) (int, error) {
	n, err := p.l.conn.Read(b)
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) && n == 0 {
		if err := p.l.conn.SetReadDeadline(time.Now().Add(SecondChance)); err != nil {
			return 0, err
		}
		return p.l.conn.Read(b)
	}
	return n, err
}
