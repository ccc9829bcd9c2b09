package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/arena"
	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/rdma"
)

// Transport is a rank's end of all its connections. See package transport for who may
// call what.
type Transport struct {
	cfg      Config
	tune     tuning
	job      [16]byte
	link     Link
	rails    []*rail
	maxEager int
	chunk    int // of one RDMA write on any rail

	conns []*conn     // by rank; nil until used
	eps   []*endpoint // by index; nil entries are free
	// Of an index that is used again.
	epGens  []uint8
	freeEps []uint32

	slabs    []slab
	slots    []slot  // receives of rail 0
	refill   []int32 // slots to post
	reserved int     // slots that somebody was promised

	sendMem   []byte // send buffers and cells
	freeSends []int32
	freeCells []int32

	exposures []exposure
	freeExp   []int32
	windows   []window

	memory   registry
	arenaMem []byte // of an arena of our own
	spare    *transfer

	kept    []keptWC // completions that were polled outside of Poll
	reports []report // due at the next Poll
	owing   []*conn  // whose receives must be given back
	pushing []*conn  // with a transfer that is not wholly posted
	doomed  []*conn  // failed as soon as the CQs are empty
	// The poll in which the last of them was added.
	doomedAt uint
	lost     []*conn  // PeerDown is due
	letters  []letter // for the link, which had no room
	inbox    []letter // from the link
	// The link was called since its Arm said that nothing is left to do.
	linkUsed bool

	polls    uint
	hurry    bool      // a peer is owed half of its receives, and they are in refill
	cqLow    int       // from here down every send asks for a completion
	tended   time.Time // when everything was looked after
	ticked   time.Time // when the clock was acted upon
	beat     time.Time // of the last keep-alive
	closing  bool
	draining int // endpoints
	told     struct{ receives, sends, grow, register, cq, event once }
	stats    Stats

	due     atomic.Uint32 // what is to do beside completions
	mu      sync.Mutex
	marks   []mark
	results []result
	jobs    sync.WaitGroup
	wake    wake

	wcs      [pollBatch]rdma.WC
	hdr      wire.Header
	scratch  []byte // for inline data
	sendWRs  [sendBatch]rdma.SendWR
	sendSGEs [sendBatch]rdma.SGE
	recvWRs  [refillBatch]rdma.RecvWR
	recvSGEs [refillBatch]rdma.SGE
}

const (
	pollBatch   = 32
	sendBatch   = 16
	maxWindow   = 1 << 14 // credits are counted modulo 2^16
	creditSlots = 2       // messages without payment that a peer may have under way
)

// report is what Poll has to tell its sink.
type report struct {
	peer  int
	token uint32
	old   uint64
	kind  reportKind
}

type reportKind uint8

const (
	reportSent reportKind = iota
	reportDone
)

type mark struct {
	rank int
	err  error
}

// Bits of Transport.due.
const (
	dueJobs   = 1 << iota // results of jobs, or marks
	dueLink               // the link has something
	dueNotice             // a completion channel has a notification
	dueEvents             // a device has an event
	dueClock              // it is time to look at the clock
)

type once bool

// Interfaces that this transport has.
var (
	_ transport.Exposer = (*Transport)(nil)
	_ transport.Remote  = (*Transport)(nil)
)

// Open opens the devices and makes what all connections share. With an error,
// cfg.Control is still the caller's.
func Open(cfg Config) (*Transport, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	t := &Transport{cfg: cfg, job: jobHash(cfg.Job), link: cfg.Control, conns: make([]*conn, cfg.Size)}
	t.linkUsed = true
	t.wake.init()
	err := t.open()
	if err == nil {
		return t, nil
	}
	return nil, errors.Join(err, t.release())
}

func (t *Transport) open() error {
	if err := t.openRails(); err != nil {
		return err
	}
	u := &t.tune
	if u.segment < prefixSize+firstHead+wire.MaxSize+1024 || u.window > maxWindow || u.sq <= reserved+1 {
		return fmt.Errorf("verbs: receives of %d bytes, windows of %d and send queues of %d do not work", u.segment, u.window, u.sq)
	}
	if err := t.openReceives(); err != nil {
		return err
	}
	if err := t.openSends(); err != nil {
		return err
	}
	t.maxEager = u.segment - prefixSize - wire.MaxSize
	t.scratch = make([]byte, max(u.inline, prefixSize))
	t.chunk = u.chunk
	for _, r := range t.rails {
		t.chunk = int(min(int64(t.chunk), r.port.MaxMessage))
	}
	t.cqLow = t.rails[0].cqFree / 4
	t.exposures = make([]exposure, u.exposures)
	for i := u.exposures - 1; i >= 0; i-- {
		t.freeExp = append(t.freeExp, int32(i))
	}
	if err := t.openArena(); err != nil {
		return err
	}
	return t.openWaiting()
}

func (t *Transport) openArena() (err error) {
	t.memory.t = t
	a := t.cfg.Arena
	if t.cfg.ArenaBytes > 0 {
		n := int((t.cfg.ArenaBytes + arenaAlign - 1) &^ (arenaAlign - 1))
		if t.arenaMem, err = mapMemory(n); err != nil {
			return err
		}
		a = arena.New(t.arenaMem, nil)
	}
	if a != nil {
		t.memory.arena = a
		a.Attach(&t.memory)
	}
	return nil
}

const arenaAlign = 2 << 20

// Name implements transport.Transport.
func (t *Transport) Name() string { return "verbs" }

// MaxEager implements transport.Transport.
func (t *Transport) MaxEager() int { return t.maxEager }

// Arena is the memory that this rank allocates from and that is sent without a copy
// and without a registration; nil if the transport was opened without one. An arena of the
// transport's own is unmapped by Close.
func (t *Transport) Arena() *arena.Arena { return t.memory.arena }

// About says in one line which ports this rank uses, and why.
func (t *Transport) About() string {
	var parts []string
	for _, r := range t.rails {
		parts = append(parts, r.about())
	}
	return "verbs on " + strings.Join(parts, "; and on ")
}

// Patience is how long it is worth to poll for an answer before sleeping: soft-RoCE is so slow
// that a process which falls asleep at once would do so for every message.
func (t *Transport) Patience() time.Duration {
	if soft(&t.rails[0].info) {
		return 5 * time.Millisecond
	}
	return 200 * time.Microsecond
}

func (t *Transport) notice(format string, args ...any) {
	if t.cfg.Notice != nil {
		t.cfg.Notice(fmt.Sprintf(format, args...))
	}
}

func (t *Transport) noticeOnce(told *once, format string, args ...any) {
	if !*told {
		*told = true
		t.notice(format, args...)
	}
}

// who names a rank, and its host if that is known.
func (t *Transport) who(rank int) string {
	if t.cfg.Host != nil {
		if host := t.cfg.Host(rank); host != "" {
			return fmt.Sprintf("rank %d on %s", rank, host)
		}
	}
	return fmt.Sprintf("rank %d", rank)
}

// Poll implements transport.Transport. Every completion counts as a report, so that
// a caller who was refused tries again before it sleeps.
func (t *Transport) Poll(s transport.Sink) int {
	n := 0
	t.polls++
	if t.polls&(t.tune.clockEvery-1) == 0 || t.due.Load() != 0 {
		n += t.tend()
	}
	if len(t.kept) > 0 {
		n += t.unkeep(s)
	}
	for _, r := range t.rails {
		n += t.pollCQ(r, s)
	}
	// Receives are posted when there are some and nothing better to do, or somebody runs out of them.
	if k := len(t.refill); k > 0 && (t.hurry || k >= refillBatch/2 || k >= refillBatch/8 && n == 0) {
		t.postRefill()
	}
	if len(t.owing)+len(t.pushing)+len(t.reports)+len(t.doomed)+len(t.lost) > 0 {
		n += t.work(s, n == 0)
	}
	return n
}

// pollCQ handles what is in a CQ. Without a sink, receives are kept for Poll.
func (t *Transport) pollCQ(r *rail, s transport.Sink) int {
	if r.dead != nil {
		return 0
	}
	n, err := r.cq.Poll(t.wcs[:])
	for i := range t.wcs[:n] {
		switch wc := &t.wcs[i]; {
		case wc.ID&recvBit == 0:
			t.sendDone(wc)
		case s == nil:
			t.kept = append(t.kept, keptWC{r, *wc})
		default:
			t.received(r, wc, s)
		}
	}
	if err != nil {
		t.railDead(r, err)
		n++
	}
	return n
}

// keptWC is a completion of a receive.
type keptWC struct {
	r  *rail
	wc rdma.WC
}

func (t *Transport) unkeep(s transport.Sink) int {
	n := len(t.kept)
	for i := range n {
		k := &t.kept[i]
		t.received(k.r, &k.wc, s)
	}
	t.kept = t.kept[:0]
	return n
}

// work does what is seldom there to do. idle says that the CQs were empty.
func (t *Transport) work(s transport.Sink, idle bool) int {
	n := t.pushAll()
	if len(t.owing) > 0 {
		t.payDebts()
	}
	n += t.execute(idle)
	n += len(t.reports)
	for i := range t.reports { // a sink does not call the transport, so there come no more
		p := &t.reports[i]
		switch p.kind {
		case reportSent:
			s.Sent(p.peer, p.token)
		case reportDone:
			if rs, ok := s.(transport.RemoteSink); ok {
				rs.Done(p.peer, p.token, p.old)
			}
		}
	}
	t.reports = t.reports[:0]
	for len(t.lost) > 0 {
		c := t.lost[0]
		t.lost = t.lost[1:]
		c.state = connDown
		s.PeerDown(c.peer, c.err)
		n++
	}
	return n
}

// native reads a number in the order of this processor.
func native(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
