package transporttest

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
)

// patience is how long a test waits for something that must happen. It is an
// error path only, so it is generous: machines that run tests are busy.
const patience = 60 * time.Second

// event is a frame or a landed bulk payload, in the order of arrival.
type event struct {
	h    wire.Header
	data []byte
	bulk bool
}

// node is one rank under test: a transport and the sink that records what it
// reports.
type node struct {
	transport.Transport
	rank, n int

	got  [][]event // by peer
	seen int       // events, discarded bulk payloads and sent reports
	sent [][]uint32
	done [][]doneReport // by peer, of a transport.Remote
	down []error        // by peer
	errs []error        // reports that break the contract

	// dest overrides where bulk payloads go.
	dest func(peer int, h *wire.Header, n int) []byte
	into [][]byte // by peer: the destination of the bulk that is on its way
}

func (d *node) Frame(peer int, h *wire.Header, payload []byte) {
	d.seen++
	if h.Kind == wire.Data {
		d.complain("rank %d: Data frame from %d came through Frame", d.rank, peer)
	}
	if d.into[peer] != nil {
		d.complain("rank %d: frame from %d overtook a bulk payload", d.rank, peer)
	}
	d.record(peer, event{clean(*h), bytes.Clone(payload), false})
}

func (d *node) Dest(peer int, h *wire.Header, n int) []byte {
	if d.into[peer] != nil {
		d.complain("rank %d: second bulk from %d before the first has landed", d.rank, peer)
	}
	if h.Kind != wire.Data {
		d.complain("rank %d: Dest for a %v frame from %d", d.rank, h.Kind, peer)
	}
	if d.dest != nil {
		d.into[peer] = d.dest(peer, h, n)
		if d.into[peer] == nil {
			d.seen++
		}
	} else {
		d.into[peer] = make([]byte, n)
	}
	return d.into[peer]
}

func (d *node) Landed(peer int, h *wire.Header) {
	d.seen++
	if d.into[peer] == nil {
		d.complain("rank %d: Landed from %d without a destination", d.rank, peer)
	}
	d.record(peer, event{clean(*h), d.into[peer], true})
	d.into[peer] = nil
}

func (d *node) Sent(peer int, token uint32) {
	d.seen++
	d.sent[peer] = append(d.sent[peer], token)
}

// doneReport is the end of an operation on a window.
type doneReport struct {
	token uint32
	old   uint64
}

var _ transport.RemoteSink = (*node)(nil)

func (d *node) Done(peer int, token uint32, old uint64) {
	d.seen++
	if d.down[peer] != nil {
		d.complain("rank %d: Done from %d after it was reported down", d.rank, peer)
	}
	d.done[peer] = append(d.done[peer], doneReport{token, old})
}

func (d *node) PeerDown(peer int, err error) {
	d.seen++
	if err == nil {
		d.complain("rank %d: peer %d is down without an error", d.rank, peer)
	}
	if d.down[peer] != nil {
		d.complain("rank %d: peer %d is down twice: %v, then %v", d.rank, peer, d.down[peer], err)
	}
	d.down[peer] = errors.Join(errors.New("down"), err)
	d.into[peer] = nil
}

func (d *node) record(peer int, e event) {
	if peer < 0 || peer >= d.n || peer == d.rank {
		d.complain("rank %d: report from peer %d, which does not exist", d.rank, peer)
		return
	}
	if d.down[peer] != nil {
		d.complain("rank %d: %v from %d after it was reported down", d.rank, e.h.Kind, peer)
	}
	d.got[peer] = append(d.got[peer], e)
}

func (d *node) complain(format string, args ...any) {
	d.errs = append(d.errs, fmt.Errorf(format, args...))
}

// poll polls once and returns the first breach of the contract.
func (d *node) poll() (int, error) {
	n := d.Poll(d)
	if len(d.errs) > 0 {
		return n, d.errs[0]
	}
	return n, nil
}

// take removes and returns the oldest event from peer.
func (d *node) take(peer int) (event, bool) {
	q := d.got[peer]
	if len(q) == 0 {
		return event{}, false
	}
	d.got[peer] = q[1:]
	return q[0], true
}

// until polls nodes until cond holds.
func until(what string, cond func() bool, nodes ...*node) error {
	deadline := time.Now().Add(patience)
	for i := 0; !cond(); i++ {
		n := 0
		for _, d := range nodes {
			m, err := d.poll()
			if err != nil {
				return err
			}
			n += m
		}
		if n == 0 {
			runtime.Gosched()
			if i%64 == 0 && time.Now().After(deadline) {
				return fmt.Errorf("rank %d: gave up after %v: %s", nodes[0].rank, patience, what)
			}
		}
	}
	return nil
}

// again repeats op while there is no room, polling nodes.
func again(op func() error, nodes ...*node) error {
	var err error
	werr := until("no room to send", func() bool {
		err = op()
		return !errors.Is(err, transport.ErrAgain)
	}, nodes...)
	return errors.Join(werr, err)
}

// send sends one frame from d, polling d and others while there is no room.
func (d *node) send(peer int, h *wire.Header, payload []byte, others ...*node) error {
	return again(func() error { return d.Send(peer, h, payload) }, append(others, d)...)
}

func (d *node) bulk(peer int, h *wire.Header, payload []byte, token uint32, others ...*node) error {
	return again(func() error { return d.SendBulk(peer, h, payload, token) }, append(others, d)...)
}

// introduce has a send one frame to b. A transport that connects on first use may have
// no room for anything before b has polled.
func introduce(t *testing.T, a, b *node) {
	t.Helper()
	h := eager(0)
	must(t, a.send(b.rank, &h, nil, b))
	must(t, until("first frame has not come", func() bool { return len(b.got[a.rank]) > 0 }, a, b))
	b.take(a.rank)
	b.seen--
}

// open makes a world of n ranks that is closed when the test ends.
func open(t *testing.T, newWorld func(t *testing.T, n int) *World, n int) ([]*node, *World) {
	t.Helper()
	w := newWorld(t, n)
	if len(w.Ranks) != n {
		t.Fatalf("newWorld(%d) made %d ranks", n, len(w.Ranks))
	}
	nodes := make([]*node, n)
	for i, tr := range w.Ranks {
		nodes[i] = &node{Transport: tr, rank: i, n: n,
			got: make([][]event, n), sent: make([][]uint32, n), done: make([][]doneReport, n), down: make([]error, n), into: make([][]byte, n)}
	}
	t.Cleanup(func() { shut(t, w, nodes) })
	return nodes, w
}

// shut closes what is still open. Closed nodes have a nil Transport.
func shut(t *testing.T, w *World, nodes []*node) {
	t.Helper()
	for _, d := range nodes {
		if d.Transport == nil {
			continue
		}
		if err := d.Close(); err != nil {
			t.Errorf("rank %d: Close: %v", d.rank, err)
		}
		d.Transport = nil
	}
	if w.Close != nil {
		w.Close()
		w.Close = nil
	}
}

// parallel runs script once for each node, each in a goroutine of its own, and
// keeps polling a node until all scripts have ended.
func parallel(t *testing.T, nodes []*node, script func(d *node) error) {
	t.Helper()
	var wg sync.WaitGroup
	var running atomic.Int64
	running.Store(int64(len(nodes)))
	errs := make([]error, len(nodes))
	for i, d := range nodes {
		wg.Go(func() {
			errs[i] = script(d)
			running.Add(-1)
			errs[i] = errors.Join(errs[i], until("other ranks have not finished", func() bool { return running.Load() <= 0 }, d))
		})
	}
	wg.Wait()
	must(t, errors.Join(errs...))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// clean clears the fields whose extension is absent: they mean nothing.
func clean(h wire.Header) wire.Header {
	if h.Flags&wire.HasID == 0 {
		h.ID, h.Reply = 0, 0
	}
	if h.Flags&wire.HasBytes == 0 {
		h.Bytes = 0
	}
	if h.Flags&wire.HasRegion == 0 {
		h.Region = wire.Region{}
	}
	if h.Flags&wire.HasSig == 0 {
		h.Sig = wire.Signature{}
	}
	return h
}

// period is prime, so that a misplaced chunk of any usual size shows.
const period = 4093

// pattern returns n bytes that depend on seed and position.
func pattern(n int, seed uint32) []byte {
	b := make([]byte, n)
	fill(b, seed)
	return b
}

func fill(b []byte, seed uint32) {
	x := uint64(seed)*0x9e3779b97f4a7c15 + 1
	for i := range min(len(b), period) {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x >> 24)
	}
	for i := period; i < len(b); {
		i += copy(b[i:], b[:i/period*period])
	}
}

// same says where got differs from want.
func same(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	if len(got) != len(want) {
		return fmt.Errorf("got %d bytes, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d of %d is %#x, want %#x", i, len(got), got[i], want[i])
		}
	}
	return nil
}

// expect checks one event.
func (e event) expect(h wire.Header, payload []byte, bulk bool) error {
	if e.bulk != bulk {
		return fmt.Errorf("got %+v (bulk %v), want bulk %v", e.h, e.bulk, bulk)
	}
	if e.h != clean(h) {
		return fmt.Errorf("header\n got %+v\nwant %+v", e.h, clean(h))
	}
	if err := same(e.data, payload); err != nil {
		return fmt.Errorf("payload of %v seq %d: %w", h.Kind, h.Seq, err)
	}
	return nil
}
