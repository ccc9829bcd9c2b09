package weft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/internal/progress"
	"github.com/weft-hpc/weft/internal/proto"
)

// windowServer carries out the requests of other ranks on a window over messages. It has no goroutine:
// whoever polls, a goroutine of the program that waits or else the I/O goroutine, hands requests to
// it as they are received. It never waits for another rank: the data of large puts are
// received, and large answers sent, straight from and to the window, while it serves
// the next.
//
// All of it belongs to the holder of the engine's lock.
type windowServer struct {
	windowBase
	arrivals []arrivals // by rank
	receives []*requestOp
	kept     []notice // received by a Notified whose context ended before the puts were there
	free     []*answerOp
	busy     int          // data and answers under way
	stopping *progress.Op // finished when there are none any more
}

// arrivals counts the puts of one rank.
type arrivals struct {
	begun uint64   // asked for, in order
	there uint64   // done, and all before them
	early []uint64 // done, but not all before them
	waits []arrivalWait
	err   error // no more will come
}

// arrivalWait is who wants to know when a number of puts are there: the rank itself, or one for an
// answer.
type arrivalWait struct {
	puts uint64
	op   *progress.Op // or:
	peer int
	tag  int32
}

// notice is a notification, which counts when so many puts are there.
type notice struct {
	from, id int32
	puts     uint64
}

// requestOp receives requests, from all ranks or from one.
type requestOp struct {
	s      *windowServer
	source int
	op     progress.Op
	buf    [requestSize + smallPut]byte
}

// dataOp receives the data of a large put.
type dataOp struct {
	s    *windowServer
	from int
	put  uint64
	dst  []byte
	op   progress.Op
}

// answerOp sends an answer.
type answerOp struct {
	s   *windowServer
	op  progress.Op
	old [8]byte
}

func newWindowServer(b windowBase) *windowServer {
	s := &windowServer{windowBase: b, arrivals: make([]arrivals, b.c.size)}
	if b.c.size > 1 {
		b.c.w.engine.Inside(func(in progress.Inside) { s.serve(in, anySource) })
	}
	return s
}

// stop ends the server, and returns when nothing is under way if clean is true: then
// everybody's operations are done.
func (s *windowServer) stop(clean bool) {
	idle := new(progress.Op)
	s.c.w.engine.Inside(func(in progress.Inside) {
		s.stopping = idle
		for _, r := range s.receives {
			in.Cancel(&r.op)
		}
		s.rest(in)
	})
	if clean {
		s.c.w.engine.Wait(context.Background(), idle)
	}
}

// begin and rest count what is under way.
func (s *windowServer) begin() { s.busy++ }

func (s *windowServer) rest(in progress.Inside) {
	if s.stopping != nil && s.busy == 0 && !s.stopping.Finished() {
		in.Complete(s.stopping, nil)
	}
}

// serve starts to receive requests from a rank, or from all.
func (s *windowServer) serve(in progress.Inside, source int) {
	r := &requestOp{s: s, source: source}
	s.receives = append(s.receives, r)
	r.post(in)
}

func (r *requestOp) post(in progress.Inside) {
	call := r.s.message(proto.Recv, r.source, tagRequest, r.buf[:])
	in.Post(&r.op, &call, r)
}

// Handle implements progress.Handler.
func (r *requestOp) Handle(in progress.Inside) {
	s := r.s
	switch err := r.op.Err; {
	case err == nil || err == ErrTruncated:
		from := int(r.op.Status.Source)
		if err == nil {
			err = s.carryOut(in, from, r.buf[:r.op.Status.Bytes])
		}
		if err != nil {
			err = fmt.Errorf("window %q: rank %d sent rank %d a bad request: %w", s.c.name, from, s.c.rank, err)
			in.Revoke(s.c.comm, err)
			s.fail(in, err)
			return
		}
		r.op.Recycle()
		if s.stopping == nil {
			r.post(in)
		}
	case s.stopping != nil:
	case r.source != anySource:
		s.arrivals[r.source].fail(in, s, err)
	case errors.Is(err, ErrRankFailed) && s.c.comm.Err() == nil:
		// Nobody can receive from any source any more. The others are served one by one, and what
		// the lost one has sent before.
		for source := range s.c.size {
			if source != s.c.rank {
				s.serve(in, source)
			}
		}
	default:
		s.fail(in, err)
	}
}

// fail notes that no more puts will come from anybody.
func (s *windowServer) fail(in progress.Inside, err error) {
	for i := range s.arrivals {
		s.arrivals[i].fail(in, s, err)
	}
}

// carryOut carries out one request.
func (s *windowServer) carryOut(in progress.Inside, from int, b []byte) error {
	var r request
	if len(b) < requestSize {
		return fmt.Errorf("%d bytes, not %d or more", len(b), requestSize)
	}
	r.decode(b)
	data := b[requestSize:]
	at := &s.arrivals[from]
	if err := r.check(uint64(len(s.mem)), at.begun); err != nil {
		return err
	}
	if want := r.data(); uint64(len(data)) != want {
		return fmt.Errorf("%+v with %d bytes of data, not %d", r, len(data), want)
	}
	switch r.kind {
	case requestPut:
		copy(s.mem[r.off:], data)
		at.begun++
		at.done(in, s, r.a, nil)
	case requestPutData:
		at.begun++
		// Receives for one rank are posted in the order of its puts, and so meet their data.
		d := &dataOp{s: s, from: from, put: r.a, dst: s.mem[r.off : r.off+r.n : r.off+r.n]}
		call := s.message(proto.Recv, from, tagData, d.dst)
		s.begin()
		in.Post(&d.op, &call, d)
	case requestGet:
		s.answer(in, from, r.answer, s.mem[r.off:r.off+r.n])
	case requestAdd, requestSwap:
		op := atomicOp{kind: progress.FetchAdd, add: r.a, expect: r.a, swap: r.b}
		if r.kind == requestSwap {
			op.kind = progress.CompareSwap
		}
		a := s.takeAnswer()
		binary.LittleEndian.PutUint64(a.old[:], op.do(wordAt(s.mem, r.off)))
		a.post(in, from, r.answer, a.old[:])
	case requestFlush:
		at.wait(in, s, arrivalWait{puts: r.a, peer: from, tag: r.answer})
	}
	return nil
}

// Handle implements progress.Handler.
func (d *dataOp) Handle(in progress.Inside) {
	err := d.op.Err
	if err == nil && d.op.Status.Bytes != int64(len(d.dst)) {
		err = fmt.Errorf("window %q: rank %d announced %d bytes and sent %d", d.s.c.name, d.from, len(d.dst), d.op.Status.Bytes)
	}
	d.s.arrivals[d.from].done(in, d.s, d.put, err)
	d.s.busy--
	d.s.rest(in)
}

func (s *windowServer) takeAnswer() *answerOp {
	n := len(s.free)
	if n == 0 {
		return &answerOp{s: s}
	}
	a := s.free[n-1]
	s.free = s.free[:n-1]
	return a
}

// answer sends an answer.
func (s *windowServer) answer(in progress.Inside, to int, tag int32, buf []byte) {
	s.takeAnswer().post(in, to, tag, buf)
}

func (a *answerOp) post(in progress.Inside, to int, tag int32, buf []byte) {
	call := a.s.message(proto.Send, to, tag, buf)
	a.s.begin()
	in.Post(&a.op, &call, a)
}

// Handle implements progress.Handler. If the asker is lost, so is the answer.
func (a *answerOp) Handle(in progress.Inside) {
	a.op.Recycle()
	a.s.free = append(a.s.free, a)
	a.s.busy--
	a.s.rest(in)
}

// keep waits until the puts of a notification are there. If ctx ends first, the notification is kept for
// another call.
func (s *windowServer) keep(ctx context.Context, n notice) error {
	e, at := s.c.w.engine, &s.arrivals[n.from]
	var there bool
	var err error
	op := new(progress.Op)
	e.Inside(func(progress.Inside) {
		if there, err = at.look(n.puts); !there {
			at.waits = append(at.waits, arrivalWait{puts: n.puts, op: op})
		}
	})
	if there {
		return err
	}
	if e.Await(ctx, op) {
		return op.Err
	}
	e.Inside(func(progress.Inside) {
		at.waits = slices.DeleteFunc(at.waits, func(w arrivalWait) bool { return w.op == op })
		s.kept = append(s.kept, n)
	})
	return proto.ErrCanceled
}

// takeKept returns a notification that a call of Notified has left.
func (s *windowServer) takeKept(source, id int32) (n notice, ok bool) {
	s.c.w.engine.Inside(func(progress.Inside) {
		i := slices.IndexFunc(s.kept, func(n notice) bool { return n.id == id && (source == anySource || n.from == source) })
		if ok = i >= 0; ok {
			n = s.kept[i]
			s.kept = slices.Delete(s.kept, i, i+1)
		}
	})
	return n, ok
}

// look reports whether so many puts are there, or why they will never be.
func (a *arrivals) look(puts uint64) (there bool, err error) {
	if a.there >= puts {
		return true, nil
	}
	return a.err != nil, a.err
}

// done notes that a put is there, or that it never will be.
func (a *arrivals) done(in progress.Inside, s *windowServer, put uint64, err error) {
	switch {
	case err != nil:
		a.fail(in, s, err)
		return
	case put == a.there+1:
		a.there++
		for i := slices.Index(a.early, a.there+1); i >= 0; i = slices.Index(a.early, a.there+1) {
			a.there++
			a.early = slices.Delete(a.early, i, i+1)
		}
	default:
		a.early = append(a.early, put)
	}
	a.tell(in, s)
}

// fail notes that no more puts will come.
func (a *arrivals) fail(in progress.Inside, s *windowServer, err error) {
	if a.err == nil {
		a.err = err
	}
	a.tell(in, s)
}

func (a *arrivals) wait(in progress.Inside, s *windowServer, w arrivalWait) {
	a.waits = append(a.waits, w)
	a.tell(in, s)
}

// tell tells those who wait.
func (a *arrivals) tell(in progress.Inside, s *windowServer) {
	if len(a.waits) == 0 {
		return
	}
	a.waits = slices.DeleteFunc(a.waits, func(w arrivalWait) bool {
		there, err := a.look(w.puts)
		switch {
		case !there:
			return false
		case w.op != nil:
			in.Complete(w.op, err)
		default:
			s.answer(in, w.peer, w.tag, nil)
		}
		return true
	})
}
