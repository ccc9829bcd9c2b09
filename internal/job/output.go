package job

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// How output passes from ranks to the launcher's own standard output and error.
//
// A stream reads one pipe of one rank and owns one goroutine. It passes on whole
// lines, in one write for as many as there are. Streams that lead to the same
// place share a sink, whose lock is held during a write: a reader that is slow
// holds up the streams, and these the ranks, by their pipes. Nothing is dropped.
//
//	gathering  the buffer holds the start of a line
//	in a line  the buffer was full, or the line had waited for too long: a piece
//	           of it has been passed on. The stream keeps the sink's lock until
//	           the line ends or pauses, so that others do not write into it.

const (
	firstBuffer = 4 << 10
	maxLine     = 64 << 10 // longer lines are passed on in pieces
	pause       = 100 * time.Millisecond
)

// sink is a place that output goes to.
type sink struct {
	lock     sync.Locker // shared between sinks that lead to one file
	out      io.Writer
	terminal bool
	failed   *atomic.Pointer[error] // the first error of a write; what follows is dropped, as the job ends
	onError  func(error)
}

func makeSink(lock sync.Locker, out io.Writer, terminal bool, onError func(error)) *sink {
	return &sink{lock: lock, out: out, terminal: terminal, failed: new(atomic.Pointer[error]), onError: onError}
}

// write passes b on. The caller holds the lock.
func (s *sink) write(b []byte) {
	if len(b) == 0 || s.failed.Load() != nil {
		return
	}
	if _, err := s.out.Write(b); err != nil && s.failed.CompareAndSwap(nil, &err) {
		s.onError(err)
	}
}

// input is what a stream reads: a pipe.
type input interface {
	io.Reader
	SetReadDeadline(time.Time) error
	Close() error
}

// stream passes one pipe of one rank on to a sink.
type stream struct {
	in    input
	to    *sink
	tag   []byte // before every line
	eager bool   // pass on what there is: nobody else writes to the sink
	patch bool   // pass on the start of a line that pauses: somebody reads it, a prompt perhaps

	draining atomic.Bool

	buf    []byte
	out    []byte // scratch for tagged lines
	inLine bool   // a piece of the current line has been passed on
	locked bool   // this stream holds the sink's lock
}

// copy runs until the pipe ends. It returns an error when the pipe did not end
// though every process of the job has.
func (s *stream) copy() error {
	defer s.in.Close()
	s.buf = make([]byte, 0, firstBuffer)
	for {
		if err := s.deadline(); err != nil {
			return err
		}
		n, err := s.in.Read(s.buf[len(s.buf):cap(s.buf)])
		s.buf = s.buf[:len(s.buf)+n]
		if size := cap(s.buf); len(s.buf) == size && size < maxLine { // there is more where this came from
			s.buf = append(make([]byte, 0, min(2*size, maxLine)), s.buf...)
		}
		switch {
		case err == nil:
			s.pass(false)
			continue
		case errors.Is(err, os.ErrDeadlineExceeded) && !s.draining.Load():
			s.pass(s.patch)
			s.release()
			continue
		}
		s.pass(true)
		if s.tag != nil && s.inLine { // the next line of the sink is another rank's
			s.acquire()
			s.to.write([]byte{'\n'})
		}
		s.release()
		if err == io.EOF || errors.Is(err, os.ErrClosed) {
			return nil
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return errors.New("its output is still held open by a process outside the job; what comes from there is lost")
		}
		return fmt.Errorf("its output cannot be read: %w", err)
	}
}

// deadline sets the deadline of the next read.
func (s *stream) deadline() error {
	var t time.Time
	switch {
	case s.draining.Load():
		t = time.Now().Add(time.Second)
	case s.locked || s.patch && len(s.buf) > 0:
		t = time.Now().Add(pause)
	}
	err := s.in.SetReadDeadline(t)
	if t.IsZero() && s.draining.Load() { // drain came in between: it must win
		err = s.in.SetReadDeadline(time.Now().Add(time.Second))
	}
	return err
}

// drain makes the stream end when its pipe has been silent for a second. It is
// called when every process of the job has ended.
func (s *stream) drain() {
	s.draining.Store(true)
	s.in.SetReadDeadline(time.Now().Add(time.Second)) // fails when closed already
}

func (s *stream) acquire() {
	if !s.locked {
		s.to.lock.Lock()
		s.locked = true
	}
}

func (s *stream) release() {
	if s.locked {
		s.locked = false
		s.to.lock.Unlock()
	}
}

// pass passes on all whole lines, and the start of the next one too if all is
// set or there is no room to wait for its end.
func (s *stream) pass(all bool) {
	n := bytes.LastIndexByte(s.buf, '\n') + 1
	if all || s.eager || n == 0 && len(s.buf) == maxLine {
		n = len(s.buf)
	}
	if n == 0 {
		return
	}
	b := s.buf[:n]
	whole := b[n-1] == '\n'
	s.acquire()
	if s.tag == nil {
		s.to.write(b)
	} else {
		s.to.write(s.tagged(b))
	}
	s.inLine = !whole
	if whole || s.eager || all {
		s.release()
	}
	s.buf = append(s.buf[:0], s.buf[n:]...)
}

// tagged returns b with the tag at the start of every line.
func (s *stream) tagged(b []byte) []byte {
	s.out = s.out[:0]
	inLine := s.inLine
	for line := range bytes.Lines(b) {
		if !inLine {
			s.out = append(s.out, s.tag...)
		}
		s.out = append(s.out, line...)
		inLine = false
	}
	return s.out
}
