package verbs

import (
	"errors"
	"fmt"
	"time"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/rdma"
)

// broke handles the first error of a queue pair, which is its end.
func (t *Transport) broke(e *endpoint, err error) {
	c := e.conn
	if e.state != epReady || c.state >= connFailing {
		return // the consequence of something that is known
	}
	if c.state == connProbing {
		t.retry(c, t.explain(e, err))
		return
	}
	t.fail(c, t.explain(e, err))
}

// explain says of an error on a connection with whom it was, and whether that one lives.
func (t *Transport) explain(e *endpoint, err error) error {
	c, r := e.conn, e.rail
	t.readLink()
	gid := ""
	if c.hello != nil && r.index < len(c.hello.rails) {
		gid = fmt.Sprintf(" with GID %v", c.hello.rails[r.index].gid)
	}
	state := "its process still answers over " + t.link.Name()
	if c.doom != nil {
		state = c.doom.Error()
	}
	if c.peer == t.cfg.Rank {
		state = "this is the rank itself"
	}
	return fmt.Errorf("verbs: connection on %s with %s%s: %w (%s)", r.name, t.who(c.peer), gid, err, state)
}

// condemn has a peer fail as soon as what it has sent is delivered.
func (t *Transport) condemn(peer int, err error) {
	c := t.conn(peer)
	if c.state >= connFailing || c.doom != nil {
		return
	}
	c.doom = err
	t.doomed, t.doomedAt = append(t.doomed, c), t.polls
}

// execute fails the condemned when the CQs are empty, or were polled so often that
// nothing can be in them from before.
func (t *Transport) execute(idle bool) int {
	if len(t.doomed) == 0 || !idle && int(t.polls-t.doomedAt)*pollBatch < t.rails[0].cq.Cap() {
		return 0
	}
	doomed := t.doomed
	t.doomed = nil
	for _, c := range doomed {
		t.fail(c, c.doom)
	}
	return len(doomed)
}

// fail ends a connection. PeerDown is due when no device can touch the memory of its
// operations any more.
func (t *Transport) fail(c *conn, err error) {
	if c.state >= connFailing {
		return
	}
	c.err, c.state = err, connFailing
	for _, e := range c.all() {
		t.retire(e)
	}
	t.maybeEnded(c)
}

// retire lets an endpoint go, as soon as what is posted has come back.
func (t *Transport) retire(e *endpoint) {
	switch {
	case e.state == epMaking || e.busy || e.state >= epDraining:
		// The job's end, or the drain's, comes here again.
	case e.qp == nil:
		t.forget(e)
		t.maybeEnded(e.conn)
	case !e.wired || e.rail.dead != nil:
		t.destroy(e)
	default:
		t.drain(e)
	}
}

// drain puts a queue pair into ERROR and posts the beacon: when it comes back, all else has.
func (t *Transport) drain(e *endpoint) {
	e.state, e.patience = epDraining, int(t.tune.drain/tickEvery)+1
	t.draining++
	err := e.qp.Fail()
	if err == nil {
		wr := t.stage(e, work{kind: workBeacon, slot: noSlot}, rdma.Signaled)
		wr.Op = rdma.Write
		n := int(e.staged)
		e.staged = 0
		_, err = e.qp.PostSend(t.sendWRs[:n])
	}
	if err != nil {
		if !gone(err) {
			t.notice("verbs: rank %d cannot drain the connection on %s with %s: %v", t.cfg.Rank, e.rail.name, t.who(e.conn.peer), err)
		}
		t.drained(e)
	}
}

// drained goes on when the beacon has come back, or will not.
func (t *Transport) drained(e *endpoint) {
	if e.state == epDraining {
		t.draining--
		t.destroy(e)
	}
}

// destroy closes a queue pair. From then on its device touches nothing any more.
func (t *Transport) destroy(e *endpoint) {
	e.state = epClosing
	t.background(e.qp.Close, func(err error) {
		if err != nil && !gone(err) {
			t.notice("verbs: rank %d: connection with %s: %v", t.cfg.Rank, t.who(e.conn.peer), err)
		}
		for ; e.tail != e.head; e.tail++ { // there is something only when the drain was given up
			t.settle(e, &e.ring[e.tail%uint32(len(e.ring))], false)
		}
		t.forget(e)
		t.maybeEnded(e.conn)
	})
}

// maybeEnded frees what a failed connection held, once its last endpoint is closed.
func (t *Transport) maybeEnded(c *conn) {
	if c.state != connFailing || c.open > 0 || c.ended {
		return
	}
	c.ended = true
	if x := c.posting; x != nil {
		c.posting = nil
		x.failed, x.posted = true, true
		if x.pending == 0 {
			t.finish(x)
		}
	}
	for i := range t.exposures {
		if t.exposures[i].c == c {
			t.unexpose(&t.exposures[i])
		}
	}
	for _, m := range c.held {
		t.recycle(m.id, nil)
	}
	c.held, c.keys, c.receiving = nil, nil, nil
	c.frag = fragment{}
	if c.window > 0 {
		t.reserved -= c.window + creditSlots
	}
	t.lost = append(t.lost, c)
}

// railDead fails everybody: their device is gone. Nothing that is posted to it will
// come back, and it touches nothing any more.
func (t *Transport) railDead(r *rail, err error) {
	if r.dead != nil {
		return
	}
	r.dead = fmt.Errorf("verbs: %s: %w", r.name, err)
	for _, c := range t.conns {
		if c != nil && c.state != connIdle {
			t.fail(c, fmt.Errorf("verbs: connection with %s: %w", t.who(c.peer), err))
		}
	}
	for _, e := range t.eps {
		if e != nil && e.rail == r {
			t.drained(e)
		}
	}
}

// event handles an asynchronous event of a device.
func (t *Transport) event(r *rail, e rdma.Event) {
	switch e.Type {
	case rdma.PortError:
		if e.Port == r.port.Num {
			r.down = true
			t.notice("verbs: rank %d: port %s is down; what is under way is repeated for a while: check cable and switch, or ip link", t.cfg.Rank, r.name)
		}
	case rdma.PortActivated:
		if e.Port == r.port.Num && r.down {
			r.down = false
			t.notice("verbs: rank %d: port %s is back", t.cfg.Rank, r.name)
		}
	case rdma.DeviceFatal:
		t.railDead(r, rdma.Explain(&rdma.Error{Op: rdma.OpReadEvent, Device: r.info.Name, Kind: rdma.ErrDeviceFatal,
			What: "the device was lost or reset", Hint: "see dmesg, then start the job again"}, rdma.Facts{}))
	case rdma.CQError, rdma.SRQError:
		t.railDead(r, &rdma.Error{Op: rdma.OpReadEvent, Device: r.info.Name, Kind: rdma.ErrCQOverrun, What: e.Type.String(),
			Hint: "this is a mistake in Weft's accounting: please report it"})
	case rdma.QPFatal, rdma.QPRequestError, rdma.QPAccessError:
		for _, x := range t.eps {
			if x != nil && x.qp != nil && x.qp == e.QP {
				t.broke(x, &rdma.Error{Op: rdma.OpReadEvent, Device: r.info.Name, QPN: x.qp.Num(), Kind: rdma.ErrInvalid, What: e.Type.String()})
			}
		}
	case rdma.GIDChange, rdma.LIDChange, rdma.PKeyChange:
		if e.Port == r.port.Num {
			t.noticeOnce(&t.told.event, "verbs: rank %d: addresses of port %s changed (%v); connections may break", t.cfg.Rank, r.name, e.Type)
		}
	}
}

// Close implements transport.Transport. What is posted is given a moment to go.
func (t *Transport) Close() error {
	if t.closing {
		return errors.New("verbs: Close of a closed transport")
	}
	t.wake.shut()
	for end := time.Now().Add(lingerTime); !t.quiet() && time.Now().Before(end); {
		t.rest(t.Poll(nobody{}))
	}
	t.closing = true
	for _, c := range t.conns {
		if c != nil {
			t.fail(c, errors.New("verbs: this rank has closed the transport"))
		}
	}
	for end := time.Now().Add(t.tune.drain + time.Second); t.openEndpoints() > 0; {
		t.rest(t.Poll(nobody{}))
		if time.Now().After(end) { // a job hangs in the kernel; it ends, but when?
			break
		}
	}
	t.jobs.Wait()
	t.takeResults()
	t.Poll(nobody{})
	return errors.Join(t.release(), t.link.Close())
}

const lingerTime = time.Second

// rest gives others the processor when nothing happened.
func (t *Transport) rest(n int) {
	if n == 0 {
		time.Sleep(20 * time.Microsecond)
	}
}

func (t *Transport) openEndpoints() int { return len(t.eps) - len(t.freeEps) }

// quiet reports whether everything that was handed over has gone.
func (t *Transport) quiet() bool {
	for _, c := range t.conns {
		if c != nil && c.state == connUp && c.posting != nil {
			return false
		}
	}
	for _, e := range t.eps {
		if e != nil && e.state == epReady && e.conn.state == connUp && e.used() > 0 {
			if e.unsignaled > 0 {
				t.nudge()
			}
			return false
		}
	}
	return len(t.letters) == 0
}

// release gives back all that Open made.
func (t *Transport) release() error {
	errs := []error{t.memory.close()}
	for i := range t.windows {
		errs = append(errs, t.windows[i].close())
	}
	for _, r := range t.rails {
		errs = append(errs, r.closeReceives())
	}
	for _, s := range t.slabs {
		if err := s.mr.Close(); err != nil && !gone(err) {
			errs = append(errs, err)
		}
	}
	for _, r := range t.rails {
		errs = append(errs, r.close())
	}
	// The devices are closed: nothing reaches the memory any more.
	for _, s := range t.slabs {
		errs = append(errs, unmapMemory(s.mem))
	}
	t.slabs = nil
	for _, m := range []*[]byte{&t.sendMem, &t.arenaMem} {
		if *m != nil {
			errs = append(errs, unmapMemory(*m))
			*m = nil
		}
	}
	return errors.Join(append(errs, t.closeFiles())...)
}

// nobody is a sink for what comes after Close.
type nobody struct{}

var _ transport.RemoteSink = nobody{}

func (nobody) Frame(int, *wire.Header, []byte)    {}
func (nobody) Dest(int, *wire.Header, int) []byte { return nil }
func (nobody) Landed(int, *wire.Header)           {}
func (nobody) Sent(int, uint32)                   {}
func (nobody) Done(int, uint32, uint64)           {}
func (nobody) PeerDown(int, error)                {}
