package verbs

import (
	"github.com/weft-hpc/weft/rdma"
)

// An endpoint is a queue pair of a connection. Its send queue is accounted for here, so
// that neither it nor the CQ can overflow: head-tail work requests are posted and not known to be done,
// and each of them may need a completion, because errors always make one.
//
// States:
//
//	making    a job creates it
//	quiet     in INIT, or a job takes it to RTS
//	ready     in RTS
//	draining  in ERROR; the beacon, the last work request, has not completed
//	closing   a job destroys it
//	closed
type endpoint struct {
	conn  *conn
	rail  *rail
	index uint32 // in Transport.eps
	gen   uint8  // of the index
	state epState
	busy  bool    // a job has it
	made  rdma.QP // as the job left it
	wired bool    // it has left INIT: something may have come. The job's, too
	qp    rdma.QP
	psn   uint32

	ring       []work // of what is posted, by number modulo its length
	head, tail uint32
	staged     uint32 // of head: not posted yet
	unsignaled int    // since the last work request with a completion
	inline     int    // granted
	lastHead   uint32 // at the last keep-alive
	nudged     bool
	patience   int // ticks until a drain is given up
}

type epState uint8

const (
	epMaking epState = iota
	epQuiet
	epReady
	epDraining
	epClosing
	epClosed
)

// workKind says what becomes of a work request that has completed.
type workKind uint8

const (
	workPlain  workKind = iota // nothing: it was inline
	workSlot                   // its send buffer is free
	workPiece                  // of a transfer's memory
	workBounce                 // of a transfer, by way of a send buffer, which is free
	workFetch                  // a READ into a send buffer, to be copied to the transfer's memory
	workPut                    // a short Put
	workAtomic                 // its result is in a cell
	workProbe                  // the connection works
	workNudge                  // to get a completion
	workBeacon                 // the queue is drained

	workReserved = workNudge // from here on, the reserve of the queue is used
)

// work is what is remembered of a posted work request.
type work struct {
	kind  workKind
	slot  int32
	token uint32
	off   int // workFetch: where in the transfer's memory
	n     int
	x     *transfer
}

// Work requests carry the index of their endpoint, its generation and their number.
// Receives have recvBit and the number of their slot.
const (
	recvBit    = 1 << 63
	indexShift = 40
	genShift   = 32
	maxIndex   = 1<<22 - 1
)

// Room that is kept in every send queue: for a work request that brings a completion when
// only silent ones are left, and for the beacon.
const (
	reserveNudge  = 1
	reserveBeacon = 1
	reserved      = reserveNudge + reserveBeacon
)

func (t *Transport) newEndpoint(c *conn, r *rail) *endpoint {
	e := &endpoint{conn: c, rail: r, ring: make([]work, t.tune.sq)}
	if n := len(t.freeEps); n > 0 {
		e.index = t.freeEps[n-1]
		t.freeEps = t.freeEps[:n-1]
		e.gen = t.epGens[e.index]
		t.eps[e.index] = e
	} else {
		e.index = uint32(len(t.eps))
		t.eps = append(t.eps, e)
		t.epGens = append(t.epGens, 0)
	}
	r.cqFree -= reserved
	c.open++
	return e
}

// forget takes a closed endpoint out of everything.
func (t *Transport) forget(e *endpoint) {
	e.state = epClosed
	t.eps[e.index] = nil
	t.epGens[e.index]++
	t.freeEps = append(t.freeEps, e.index)
	e.rail.cqFree += reserved
	e.conn.open--
}

// name is what the peer puts into its prefixes.
func (e *endpoint) name() uint32 { return e.index | uint32(e.gen)<<24 }

// byName is the inverse; nil if there is none any more.
func (t *Transport) byName(name uint32) *endpoint {
	return t.lookup(uint64(name&(1<<24-1)), uint8(name>>24))
}

// byID is the endpoint of a send's completion.
func (t *Transport) byID(id uint64) *endpoint { return t.lookup(id>>indexShift, uint8(id>>genShift)) }

func (t *Transport) lookup(i uint64, gen uint8) *endpoint {
	if i >= uint64(len(t.eps)) || t.eps[i] == nil || t.eps[i].gen != gen {
		return nil
	}
	return t.eps[i]
}

// byQPN finds the endpoint of a failed receive, where nothing else is known.
func (t *Transport) byQPN(r *rail, qpn uint32) *endpoint {
	for _, e := range t.eps {
		if e != nil && e.rail == r && e.qp != nil && e.qp.Num() == qpn {
			return e
		}
	}
	return nil
}

// used is how many slots of the send queue are taken.
func (e *endpoint) used() int { return int(e.head - e.tail) }

// room is how many work requests may be posted now.
func (e *endpoint) room() int { return min(len(e.ring)-reserved-e.used(), e.rail.cqFree) }

// stage adds a work request to the next flush. There is room for it. The caller fills in
// the rest. Signaled in flags asks for a completion that would not be needed.
func (t *Transport) stage(e *endpoint, w work, flags rdma.Flags) *rdma.SendWR {
	if w.kind < workReserved {
		e.rail.cqFree--
	}
	e.ring[e.head%uint32(len(e.ring))] = w
	e.unsignaled++
	if e.unsignaled >= t.tune.interval || e.used()+1 >= len(e.ring)-reserved || e.rail.cqFree < t.cqLow {
		flags |= rdma.Signaled
	}
	if flags&rdma.Signaled != 0 {
		e.unsignaled = 0
	}
	wr := &t.sendWRs[e.staged]
	*wr = rdma.SendWR{ID: uint64(e.index)<<indexShift | uint64(e.gen)<<genShift | uint64(e.head), Flags: flags}
	e.head++
	e.staged++
	return wr
}

// data makes one piece of memory the data of the work request that was staged last.
func (t *Transport) data(e *endpoint, wr *rdma.SendWR, addr uint64, n int, lkey uint32) {
	i := e.staged - 1
	t.sendSGEs[i] = rdma.SGE{Addr: addr, Length: uint32(n), LKey: lkey}
	wr.SGL = t.sendSGEs[i : i+1 : i+1]
}

// flush posts what is staged. An error is the end of the connection; what was not posted is
// taken back.
func (t *Transport) flush(e *endpoint) error {
	n := int(e.staged)
	e.staged = 0
	done, err := e.qp.PostSend(t.sendWRs[:n])
	if err == nil {
		return nil
	}
	for range n - done {
		e.head--
		t.settle(e, &e.ring[e.head%uint32(len(e.ring))], false)
	}
	t.fail(e.conn, t.explain(e, err))
	return e.conn.err
}

// nudge asks for a completion wherever only silent work requests are left, so that what
// they hold comes back. It is for somebody who has found no room.
func (t *Transport) nudge() {
	for _, e := range t.eps {
		if e != nil && e.unsignaled > 0 && !e.nudged && e.state == epReady && e.conn.state == connUp {
			e.nudged = true
			t.ping(e, workNudge)
		}
	}
}

// ping posts an RDMA write of no bytes, with a completion.
func (t *Transport) ping(e *endpoint, kind workKind) {
	wr := t.stage(e, work{kind: kind, slot: noSlot}, rdma.Signaled)
	wr.Op = rdma.Write
	_ = t.flush(e) // an error has failed the connection
}

// sendDone handles a completion of a send queue.
func (t *Transport) sendDone(wc *rdma.WC) {
	e := t.byID(wc.ID)
	if e == nil {
		return // of a queue pair that is closed
	}
	// All before it are done as well: had one of them failed, its completion came first.
	for number := uint32(wc.ID); e.tail != number; e.tail++ {
		if e.tail == e.head {
			return // a number that was never posted
		}
		t.settle(e, &e.ring[e.tail%uint32(len(e.ring))], true)
	}
	ok := wc.Status == rdma.StatusSuccess
	w := &e.ring[e.tail%uint32(len(e.ring))]
	e.tail++
	if !ok && wc.Status != rdma.StatusFlushed {
		t.broke(e, wc.Err(e.rail.info.Name))
	}
	t.settle(e, w, ok)
}

// settle gives back what a work request held, and reports what it was for.
func (t *Transport) settle(e *endpoint, w *work, ok bool) {
	if w.kind < workReserved {
		e.rail.cqFree++
	}
	x := w.x
	w.x = nil
	switch w.kind {
	case workSlot:
		t.freeSends = append(t.freeSends, w.slot)
	case workBounce:
		t.freeSends = append(t.freeSends, w.slot)
		t.pieceDone(x, ok)
	case workFetch:
		if ok {
			copy(x.payload[w.off:], t.sendBuffer(w.slot)[:w.n])
		}
		t.freeSends = append(t.freeSends, w.slot)
		t.pieceDone(x, ok)
	case workPiece:
		t.pieceDone(x, ok)
	case workPut:
		if ok {
			t.reports = append(t.reports, report{e.conn.peer, w.token, 0, reportDone})
		}
	case workAtomic:
		if ok {
			t.reports = append(t.reports, report{e.conn.peer, w.token, native(t.cell(w.slot)), reportDone})
		}
		t.freeCells = append(t.freeCells, w.slot)
	case workProbe:
		if ok {
			t.probed(e)
		}
	case workNudge:
		e.nudged = false
	case workBeacon:
		t.drained(e)
	}
}
