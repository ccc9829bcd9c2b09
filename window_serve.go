package weft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/weft-hpc/weft/internal/progress"
	"github.com/weft-hpc/weft/internal/proto"
)

// windowServer carries out the requests of other ranks on a window over messages. One goroutine
// receives them; it waits on a channel and never polls, so that it takes nothing from the
// program's own waits: whoever has the poller's role delivers requests to it, the I/O goroutine while the
// program computes. It never waits for another rank either: answers are sent without
// waiting for them, and for the data of a large put waits a goroutine that lives as
// long.
type windowServer struct {
	windowBase
	token    func() int32
	arrivals []arrivals // by rank

	mu       sync.Mutex
	stopping bool
	receives []*progress.Op // posted for requests
	answers  []*progress.Op // may be under way
	work     sync.WaitGroup // goroutines
}

// arrivals counts the puts of one rank.
type arrivals struct {
	mu    sync.Mutex
	begun uint64   // asked for, in order
	there uint64   // done, and all before them
	early []uint64 // done, but not all before them
	waits []arrivalWait
	err   error // no more will come
}

// arrivalWait is who wants a message when a number of puts are there.
type arrivalWait struct {
	puts uint64
	peer int
	tag  int32
}

func newWindowServer(b windowBase, token func() int32) *windowServer {
	s := &windowServer{windowBase: b, token: token, arrivals: make([]arrivals, b.c.size)}
	if b.c.size > 1 {
		s.work.Go(func() { s.serve(anySource) })
	}
	return s
}

// stop ends the server. With clean, everybody's operations are done, and it waits for its goroutines
// and answers.
func (s *windowServer) stop(clean bool) {
	s.mu.Lock()
	s.stopping = true
	receives := slices.Clone(s.receives)
	s.mu.Unlock()
	for _, op := range receives {
		s.c.w.engine.Cancel(op)
	}
	if !clean {
		return
	}
	s.work.Wait()
	for _, op := range s.answers {
		s.c.w.engine.Wait(context.Background(), op)
	}
}

// serve carries out requests until the server stops, or no more can come from the source.
func (s *windowServer) serve(source int) {
	op := new(progress.Op)
	buf := make([]byte, requestSize+smallPut)
	for s.receive(op, s.message(proto.Recv, source, tagRequest, buf)) {
		err := op.Err
		if err == nil {
			from := int(op.Status.Source)
			if err = s.carryOut(from, buf[:min(op.Status.Bytes, int64(len(buf)))]); err != nil {
				err = fmt.Errorf("window %q: rank %d sent rank %d a bad %w", s.c.name, from, s.c.rank, err)
				s.c.w.engine.Do(func(core *proto.Core) { core.Revoke(s.c.comm, err, err.Error()) })
			}
			continue
		}
		switch {
		case source != anySource:
			s.arrivals[source].fail(s, err)
		case errors.Is(err, ErrRankFailed) && s.c.w.engine.Reachable(s.c.comm, s.world(s.c.rank)) == nil:
			// Nobody can receive from any source any more. The others are served one by one,
			// and what the lost one has sent before.
			for r := range s.c.size {
				if r != s.c.rank {
					s.work.Go(func() { s.serve(r) })
				}
			}
		default:
			for r := range s.arrivals {
				s.arrivals[r].fail(s, err)
			}
		}
		return
	}
}

// receive carries a receive out, and returns false when the server stops.
func (s *windowServer) receive(op *progress.Op, call progress.Call) bool {
	e := s.c.w.engine
	s.mu.Lock()
	if s.stopping {
		s.mu.Unlock()
		return false
	}
	op.Recycle()
	e.Start(op, &call)
	s.receives = append(s.receives, op)
	s.mu.Unlock()
	if !op.Finished() {
		<-e.Closed(op)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.receives, op)
	s.receives = slices.Delete(s.receives, i, i+1)
	return !s.stopping || op.Err == nil
}

// carryOut carries out one request.
func (s *windowServer) carryOut(from int, b []byte) error {
	var r request
	if len(b) < requestSize {
		return fmt.Errorf("request of %d bytes, not %d or more", len(b), requestSize)
	}
	r.decode(b)
	data := b[requestSize:]
	at := &s.arrivals[from]
	if err := r.check(uint64(len(s.mem)), at.begun); err != nil {
		return err
	}
	switch r.kind {
	case requestPut:
		if uint64(len(data)) != r.n {
			return fmt.Errorf("request %+v with %d bytes", r, len(data))
		}
		copy(s.mem[r.off:], data)
		at.begun++
		at.done(s, r.a, nil)
	case requestPutData:
		at.begun++
		s.takeData(from, s.mem[r.off:r.off+r.n:r.off+r.n], r.a)
	case requestGet:
		s.answer(from, r.answer, s.mem[r.off:r.off+r.n])
	case requestAdd, requestSwap:
		op := atomicOp{kind: progress.FetchAdd, add: r.a, expect: r.a, swap: r.b}
		if r.kind == requestSwap {
			op.kind = progress.CompareSwap
		}
		old := op.do(wordAt(s.mem, r.off))
		s.answer(from, r.answer, binary.LittleEndian.AppendUint64(nil, old))
	case requestFlush:
		at.tell(s, arrivalWait{r.a, from, r.answer})
	}
	return nil
}

// takeData receives the data of a large put straight into the window. Receives for one rank are posted in the
// order of its puts, and so meet their data.
func (s *windowServer) takeData(from int, dst []byte, put uint64) {
	e := s.c.w.engine
	op := new(progress.Op)
	call := s.message(proto.Recv, from, tagData, dst)
	e.Start(op, &call)
	finish := func() {
		err := op.Err
		if err == nil && op.Status.Bytes != int64(len(dst)) {
			err = fmt.Errorf("window %q: rank %d announced %d bytes and sent %d", s.c.name, from, len(dst), op.Status.Bytes)
		}
		s.arrivals[from].done(s, put, err)
	}
	if op.Finished() {
		finish()
		return
	}
	s.work.Go(func() {
		<-e.Closed(op)
		finish()
	})
}

// answer sends an answer and does not wait for it.
func (s *windowServer) answer(to int, tag int32, buf []byte) {
	e := s.c.w.engine
	s.mu.Lock()
	defer s.mu.Unlock()
	var op *progress.Op
	s.answers = slices.DeleteFunc(s.answers, func(o *progress.Op) bool {
		done := o.Finished()
		if done {
			op = o
		}
		return done
	})
	if op == nil {
		op = new(progress.Op)
	} else {
		op.Recycle()
	}
	call := s.message(proto.Send, to, tag, buf)
	e.Start(op, &call)
	s.answers = append(s.answers, op)
}

// await waits until so many puts of a rank are there.
func (s *windowServer) await(ctx context.Context, from int, puts uint64) error {
	at := &s.arrivals[from]
	tag := s.token()
	if there, err := at.look(puts); there {
		return err
	}
	at.tell(s, arrivalWait{puts, s.c.rank, tag})
	r := s.c.w.engine.Call(ctx, s.message(proto.Recv, s.c.rank, tag, nil))
	if r.Err == proto.ErrCanceled {
		at.forget(tag)
	}
	if r.Err != nil {
		return r.Err
	}
	_, err := at.look(puts)
	return err
}

// look reports whether so many puts are there, or why they will never be.
func (a *arrivals) look(puts uint64) (there bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.there >= puts {
		return true, nil
	}
	return a.err != nil, a.err
}

// done notes that a put is there, or that it never will be.
func (a *arrivals) done(s *windowServer, put uint64, err error) {
	a.mu.Lock()
	switch {
	case err != nil:
		if a.err == nil {
			a.err = err
		}
	case put == a.there+1:
		a.there++
		for i := slices.Index(a.early, a.there+1); i >= 0; i = slices.Index(a.early, a.there+1) {
			a.there++
			a.early = slices.Delete(a.early, i, i+1)
		}
	default:
		a.early = append(a.early, put)
	}
	a.release(s)
}

// fail notes that no more puts will come.
func (a *arrivals) fail(s *windowServer, err error) {
	a.mu.Lock()
	if a.err == nil {
		a.err = err
	}
	a.release(s)
}

// tell sends a message when so many puts are there.
func (a *arrivals) tell(s *windowServer, w arrivalWait) {
	a.mu.Lock()
	a.waits = append(a.waits, w)
	a.release(s)
}

// release sends the messages that are due, and gives mu back.
func (a *arrivals) release(s *windowServer) {
	var due []arrivalWait
	a.waits = slices.DeleteFunc(a.waits, func(w arrivalWait) bool {
		now := a.err != nil || w.puts <= a.there
		if now {
			due = append(due, w)
		}
		return now
	})
	a.mu.Unlock()
	for _, w := range due {
		s.answer(w.peer, w.tag, nil)
	}
}

// forget takes a tell back.
func (a *arrivals) forget(tag int32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waits = slices.DeleteFunc(a.waits, func(w arrivalWait) bool { return w.tag == tag })
}
