package weft

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/match"
	"github.com/weft-hpc/weft/internal/progress"
	"github.com/weft-hpc/weft/internal/proto"
)

// messageOps works by messages on the window's communicator: requests, which a server on each
// rank carries out, data, which go straight to or from the windows, and answers. This
// file is the part that asks; windowServer answers.
//
// Requests from one rank are carried out in order, but for the data of large puts, which may
// still be on their way when the next request is. Each server counts the puts of each rank that
// are there. A notification is a message of its own, beside the server; it brings the number of
// puts before it, and whoever receives it waits until they are there.
type messageOps struct {
	windowBase
	queues []opQueue // by rank
	tokens atomic.Uint32
	server *windowServer
}

// Tags. Those up to MaxNotify are notifications'.
const (
	tagRequest = MaxNotify + 1 + iota
	tagData    // of the oldest large put of that rank whose data have not come
	tagAnswer  // the first of those that requests name for their answers
)

// request is what a rank asks of another. A small put's data are behind it.
type request struct {
	kind   requestKind
	answer int32  // tag
	off, n uint64 // bytes
	a, b   uint64 // of atomics; a put's number, or how many a flush waits for, is a
}

type requestKind uint8

const (
	requestPut     requestKind = 1 + iota // the data are in the request
	requestPutData                        // the data come as a message
	requestGet
	requestAdd
	requestSwap
	requestFlush
)

const (
	requestSize = 40
	// smallPut is the longest put that goes with its request.
	smallPut = 1 << 10
)

func (r *request) encode(b []byte) {
	le := binary.LittleEndian
	le.PutUint32(b[0:], uint32(r.kind))
	le.PutUint32(b[4:], uint32(r.answer))
	le.PutUint64(b[8:], r.off)
	le.PutUint64(b[16:], r.n)
	le.PutUint64(b[24:], r.a)
	le.PutUint64(b[32:], r.b)
}

func (r *request) decode(b []byte) {
	le := binary.LittleEndian
	r.kind, r.answer = requestKind(le.Uint32(b)), int32(le.Uint32(b[4:]))
	r.off, r.n, r.a, r.b = le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:]), le.Uint64(b[32:])
}

func newMessageOps(w *window) *messageOps {
	m := &messageOps{windowBase: windowBase{w}, queues: newOpQueues(w.c.size)}
	m.server = newWindowServer(m.windowBase)
	return m
}

func (m *messageOps) about() string { return "messages: each rank serves its own memory" }

// token returns a tag for an answer, which no other one under way has.
func (m *messageOps) token() int32 {
	const tags = MaxTag - tagAnswer
	return tagAnswer + int32(m.tokens.Add(1)%tags)
}

func (b windowBase) message(kind proto.Kind, peer int, tag int32, buf []byte) progress.Call {
	return progress.Call{Kind: kind, Ctx: b.c.comm.P2P, Peer: int32(peer), Tag: tag, Buf: buf}
}

// send starts a message in the next slot of a queue, which has room.
func (m *messageOps) send(q *opQueue, target int, tag int32, buf []byte) {
	s := q.push()
	s.buf = buf
	call := m.message(proto.Send, target, tag, buf)
	m.c.w.engine.Start(&s.op, &call)
}

// ask sends a request from the next slot of a queue. data go with it.
func (m *messageOps) ask(q *opQueue, target int, r *request, data []byte) {
	s := q.push()
	if s.own == nil {
		s.own = make([]byte, requestSize+smallPut)
	}
	r.encode(s.own)
	n := copy(s.own[requestSize:], data)
	call := m.message(proto.Send, target, tagRequest, s.own[:requestSize+n])
	m.c.w.engine.Start(&s.op, &call)
}

// expect starts the receive of an answer in the next slot of a queue.
func (m *messageOps) expect(q *opQueue, target int, tag int32, buf []byte) {
	s := q.push()
	s.buf = buf
	call := m.message(proto.Recv, target, tag, buf)
	m.c.w.engine.Start(&s.op, &call)
}

func (m *messageOps) put(ctx context.Context, target int, off uint64, src []byte, notify int32) error {
	if target == m.c.rank {
		copyPieces(m.mem[off:], src)
		src = nil
	}
	if len(src) == 0 && notify == noNotify {
		return nil
	}
	q := &m.queues[target]
	if err := q.room(ctx, m.c.w.engine, 3); err != nil {
		return m.notStarted(err)
	}
	defer q.mu.Unlock()
	if n := len(src); n > 0 {
		q.puts++
		r := request{kind: requestPut, off: off, n: uint64(n), a: q.puts}
		if n <= smallPut {
			m.ask(q, target, &r, src)
		} else {
			r.kind = requestPutData
			m.ask(q, target, &r, nil)
			m.send(q, target, tagData, src)
		}
	}
	if notify != noNotify {
		s := q.push()
		if s.own == nil {
			s.own = make([]byte, requestSize+smallPut)
		}
		binary.LittleEndian.PutUint64(s.own, q.puts)
		s.note = m.message(proto.Send, target, notify, s.own[:8])
		m.c.w.engine.Start(&s.op, &s.note)
	}
	return nil
}

func (m *messageOps) get(ctx context.Context, target int, off uint64, dst []byte) error {
	if target == m.c.rank {
		copyPieces(dst, m.mem[off:off+uint64(len(dst))])
		return nil
	}
	q := &m.queues[target]
	if err := q.room(ctx, m.c.w.engine, 2); err != nil {
		return m.notStarted(err)
	}
	defer q.mu.Unlock()
	r := request{kind: requestGet, off: off, n: uint64(len(dst)), answer: m.token()}
	m.expect(q, target, r.answer, dst)
	m.ask(q, target, &r, nil)
	return nil
}

func (m *messageOps) atomic(ctx context.Context, target int, off uint64, op atomicOp) (uint64, error) {
	if target == m.c.rank {
		return op.do(wordAt(m.mem, off)), nil
	}
	q := &m.queues[target]
	a := q.takeAtomic()
	if a.own == nil {
		a.own = make([]byte, requestSize+8)
	}
	r := request{kind: requestAdd, off: off, n: 8, answer: m.token(), a: op.add}
	if op.kind == progress.CompareSwap {
		r.kind, r.a, r.b = requestSwap, op.expect, op.swap
	}
	result := a.own[requestSize:]
	r.encode(a.own)
	recv, send := m.message(proto.Recv, target, r.answer, result), m.message(proto.Send, target, tagRequest, a.own[:requestSize])
	m.c.w.engine.Start(&a.op, &recv)
	m.c.w.engine.Start(&a.sent, &send)
	err := q.finishAtomic(ctx, m.c.w.engine, a)
	if err == errStillOn {
		return 0, err
	}
	old := binary.LittleEndian.Uint64(result)
	q.giveAtomic(a)
	return old, err
}

func (m *messageOps) notified(ctx context.Context, source, id int32) (int, error) {
	n, ok := m.server.takeKept(source, id)
	if !ok {
		var puts [8]byte
		r := m.c.w.engine.Call(ctx, m.message(proto.Recv, int(source), id, puts[:]))
		if r.Err != nil {
			return 0, r.Err
		}
		n = notice{r.Status.Source, id, binary.LittleEndian.Uint64(puts[:])}
	}
	if int(n.from) == m.c.rank {
		return m.c.rank, nil
	}
	return int(n.from), m.server.keep(ctx, n)
}

// flush asks all targets where puts are under way for a word when they are there, and waits for
// that and everything else.
func (m *messageOps) flush(ctx context.Context, first, end int) (int, error) {
	for t := first; t < end; t++ {
		q := &m.queues[t]
		q.mu.Lock()
		asks := q.puts > q.flushed
		q.mu.Unlock()
		if !asks {
			continue
		}
		if err := q.room(ctx, m.c.w.engine, 2); err != nil {
			return t, err
		}
		r := request{kind: requestFlush, a: q.puts, answer: m.token()}
		q.flushed = q.puts // who flushes after this waits for the same answer
		m.expect(q, t, r.answer, nil)
		m.ask(q, t, &r, nil)
		q.mu.Unlock()
	}
	return m.drain(ctx, m.queues, first, end)
}

func (m *messageOps) stop(clean bool) (bool, error) {
	m.server.stop(clean)
	return clean, nil
}

// check tells what is wrong with a request for a window of so many bytes. A rank sends none that
// is, so one that does is broken.
func (r *request) check(window uint64, puts uint64) error {
	bad := func(why string) error { return fmt.Errorf("request %+v for %d bytes of window: %s", *r, window, why) }
	switch {
	case r.kind < requestPut || r.kind > requestFlush:
		return bad("no such kind")
	case r.kind > requestPutData && r.answer < tagAnswer:
		return bad("no tag for the answer")
	case r.kind == requestFlush:
		if r.a > puts {
			return bad(fmt.Sprintf("%d puts have been asked for", puts))
		}
		return nil
	case r.off > window || r.n > window-r.off:
		return bad("beyond the end")
	case r.kind <= requestPutData && r.a != puts+1:
		return bad(fmt.Sprintf("not put number %d", puts+1))
	case (r.kind == requestAdd || r.kind == requestSwap) && (r.n != 8 || r.off%8 != 0):
		return bad("not one aligned word")
	}
	return nil
}

// data is how many bytes come with a request.
func (r *request) data() uint64 {
	if r.kind == requestPut {
		return r.n
	}
	return 0
}

// anySource is AnySource as a message's peer.
const anySource = match.Any
