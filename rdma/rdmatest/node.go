package rdmatest

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weft-hpc/weft/rdma"
)

// patience is how long a test waits for what must come. Soft-RoCE in an
// emulated machine is slow.
const patience = 30 * time.Second

// rnrTimer is long, so that a test that lets a sender wait for a receive does not
// fail because the machine had no time for it.
const rnrTimer = 60 * time.Millisecond

// config changes what a node is made of. Zero values are the defaults.
type config struct {
	sends, recvs int // work requests; 64
	sges         int // 4
	inline       int
	cq           int  // everything that can be posted, twice
	srq          int  // 0: no SRQ
	noAccess     bool // the peer may do nothing, instead of everything
	mtu          rdma.MTU
	rtr          func(*rdma.RTRAttr)
	rts          func(*rdma.RTSAttr)
	quick        bool // give up soon
}

// node is one end, with one QP to start with.
type node struct {
	t testing.TB
	Endpoint
	cfg     config
	limits  rdma.Limits
	port    rdma.Port
	gid     rdma.GIDEntry
	pkey    int
	pd      rdma.PD
	channel rdma.CompChannel
	cq      rdma.CQ
	srq     rdma.SRQ
	qp      rdma.QP
	qps     []rdma.QP
	regions []region
	found   []rdma.WC // polled and not asked for yet
	dead    bool      // nothing completes any more: no drain
}

type region struct {
	mr   rdma.MR
	free func()
}

// mem is registered memory.
type mem struct {
	b []byte
	rdma.MR
}

func (m mem) seg(off, n int) []rdma.SGE { return []rdma.SGE{rdma.Segment(m.MR, off, n)} }

// pair opens both ends and connects their QPs.
func pair(t *testing.T, open Open, cfg config) (a, b *node) {
	t.Helper()
	a, b = unconnected(t, open, cfg)
	connect(a, a.qp, b, b.qp)
	return a, b
}

// unconnected opens both ends, with a QP in RESET each.
func unconnected(t *testing.T, open Open, cfg config) (a, b *node) {
	t.Helper()
	ea, eb := open(t)
	a, b = newNode(t, ea, cfg), newNode(t, eb, cfg)
	t.Cleanup(func() { a.close(); b.close() })
	a.qp, b.qp = a.newQP(), b.newQP()
	return a, b
}

func newNode(t testing.TB, e Endpoint, cfg config) *node {
	t.Helper()
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&cfg.sends, 64)
	def(&cfg.recvs, 64)
	def(&cfg.sges, 4)
	def(&cfg.cq, 2*(cfg.sends+cfg.recvs+cfg.srq)+16)
	n := &node{t: t, Endpoint: e, cfg: cfg, limits: e.Device.Limits()}
	var err error
	n.port, err = e.Device.QueryPort(e.Port)
	n.ok(err)
	table, err := e.Device.GIDTable(e.Port)
	n.ok(err)
	choice, err := rdma.ChooseGID(e.Device.Info().Name, n.port, table, rdma.GIDWish{})
	n.ok(err)
	n.gid = choice.GIDEntry
	pkeys, err := e.Device.PKeyTable(e.Port)
	n.ok(err)
	n.pkey, err = rdma.ChoosePKey(e.Device.Info().Name, n.port, pkeys, 0)
	n.ok(err)
	n.pd, err = e.Device.AllocPD()
	n.ok(err)
	n.channel, err = e.Device.CreateCompChannel()
	n.ok(err)
	n.cq, err = e.Device.CreateCQ(cfg.cq, n.channel)
	n.ok(err)
	if cfg.srq > 0 {
		n.srq, err = n.pd.CreateSRQ(rdma.SRQOptions{MaxWRs: cfg.srq, MaxSGEs: cfg.sges})
		n.ok(err)
	}
	return n
}

func (n *node) ok(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) qpOptions() rdma.QPOptions {
	opts := rdma.QPOptions{SendCQ: n.cq, RecvCQ: n.cq, SRQ: n.srq, Caps: rdma.QPCaps{
		MaxSendWRs: n.cfg.sends, MaxSendSGEs: n.cfg.sges, MaxInline: n.cfg.inline}}
	if n.srq == nil {
		opts.Caps.MaxRecvWRs, opts.Caps.MaxRecvSGEs = n.cfg.recvs, n.cfg.sges
	}
	return opts
}

func (n *node) newQP() rdma.QP {
	n.t.Helper()
	qp, err := n.pd.CreateQP(n.qpOptions())
	n.ok(err)
	n.qps = append(n.qps, qp)
	return qp
}

// The attributes that n's QP needs to reach a QP of peer.

func (n *node) initAttr() rdma.InitAttr {
	attr := rdma.InitAttr{Port: n.Port, PKeyIndex: n.pkey, Access: rdma.RemoteRead | rdma.RemoteWrite | rdma.RemoteAtomic}
	if n.cfg.noAccess {
		attr.Access = 0
	}
	return attr
}

func (n *node) rtrAttr(peer *node, qpn, psn uint32) rdma.RTRAttr {
	attr := rdma.RTRAttr{
		Path: rdma.Path{DLID: peer.port.LID, Global: n.port.LinkLayer == rdma.LinkEthernet || n.port.GRHRequired,
			DGID: peer.gid.GID, SGIDIndex: n.gid.Index, HopLimit: 64},
		MTU: rdma.PathMTU(n.port.ActiveMTU, peer.port.ActiveMTU), DestQPN: qpn, RecvPSN: psn,
		MaxReads: min(n.limits.MaxReads, peer.limits.MaxReads, 16), MinRNRTimer: rnrTimer,
	}
	if n.cfg.mtu != 0 {
		attr.MTU = n.cfg.mtu
	}
	if n.cfg.rtr != nil {
		n.cfg.rtr(&attr)
	}
	return attr
}

func (n *node) rtsAttr(peer *node, psn uint32) rdma.RTSAttr {
	attr := rdma.RTSAttr{SendPSN: psn, MaxReads: min(n.limits.MaxReads, peer.limits.MaxReads, 16),
		Timeout: 67 * time.Millisecond, Retries: min(6, n.limits.MaxRetries), RNRRetries: 6}
	if n.cfg.quick {
		attr.Timeout, attr.Retries, attr.RNRRetries = n.QuickTimeout, 1, 1
		if attr.Timeout == 0 {
			attr.Timeout = 8 * time.Millisecond
		}
	}
	if n.cfg.rts != nil {
		n.cfg.rts(&attr)
	}
	return attr
}

// connect brings two QPs in RESET to RTS.
func connect(a *node, qa rdma.QP, b *node, qb rdma.QP) {
	a.t.Helper()
	psnA, psnB := qa.Num()*7&0xffffff, qb.Num()*11&0xffffff
	a.ok(qa.Init(a.initAttr()))
	b.ok(qb.Init(b.initAttr()))
	a.ok(qa.ReadyToReceive(a.rtrAttr(b, qb.Num(), psnB)))
	b.ok(qb.ReadyToReceive(b.rtrAttr(a, qa.Num(), psnA)))
	a.ok(qa.ReadyToSend(a.rtsAttr(b, psnA)))
	b.ok(qb.ReadyToSend(b.rtsAttr(a, psnB)))
}

const allAccess = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic

// alloc registers n bytes of memory, which is given back at the end.
func (n *node) alloc(size int, access rdma.Access) mem {
	n.t.Helper()
	return n.allocIn(n.pd, size, access)
}

func (n *node) allocIn(pd rdma.PD, size int, access rdma.Access) mem {
	n.t.Helper()
	var b []byte
	free := func() {}
	if n.Alloc != nil {
		b = n.Alloc(size)
	} else {
		b, free = mapMemory(n.t, size)
	}
	mr, err := pd.RegisterMemory(b, access)
	n.ok(err)
	n.regions = append(n.regions, region{mr, free})
	return mem{b, mr}
}

// fill writes a pattern that depends on seed and place.
func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + seed*31 + 1)
	}
}

// want compares memory with the pattern of fill.
func (n *node) want(b []byte, seed int, what string) {
	n.t.Helper()
	wanted := make([]byte, len(b))
	fill(wanted, seed)
	if !bytes.Equal(b, wanted) {
		for i := range b {
			if b[i] != wanted[i] {
				n.t.Fatalf("%s: byte %d of %d is 0x%02x, not 0x%02x", what, i, len(b), b[i], wanted[i])
			}
		}
	}
}

// wantAll wants every byte to be v.
func (n *node) wantAll(b []byte, v byte, what string) {
	n.t.Helper()
	for i := range b {
		if b[i] != v {
			n.t.Fatalf("%s: byte %d of %d is 0x%02x, not 0x%02x", what, i, len(b), b[i], v)
		}
	}
}

func set(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// send posts to a QP.
func (n *node) send(wrs ...rdma.SendWR) {
	n.t.Helper()
	n.sendOn(n.qp, wrs...)
}

func (n *node) sendOn(qp rdma.QP, wrs ...rdma.SendWR) {
	n.t.Helper()
	if k, err := qp.PostSend(wrs); err != nil || k != len(wrs) {
		n.t.Fatalf("%d of %d sends posted: %v", k, len(wrs), err)
	}
}

// recv posts to the SRQ, or to the QP.
func (n *node) recv(wrs ...rdma.RecvWR) {
	n.t.Helper()
	post := n.qp.PostRecv
	if n.srq != nil {
		post = n.srq.PostRecv
	}
	if k, err := post(wrs); err != nil || k != len(wrs) {
		n.t.Fatalf("%d of %d receives posted: %v", k, len(wrs), err)
	}
}

// next waits for the next completion, by the documented order.
func (n *node) next() rdma.WC {
	n.t.Helper()
	wc, err := n.tryNext(time.Now().Add(patience))
	n.ok(err)
	return wc
}

var errNoCompletion = errors.New("rdmatest: no completion came in time")

func (n *node) tryNext(deadline time.Time) (rdma.WC, error) {
	var wcs [8]rdma.WC
	for len(n.found) == 0 {
		k, err := n.cq.Poll(wcs[:])
		if err == nil && k == 0 {
			if err = n.cq.Arm(false); err == nil {
				k, err = n.cq.Poll(wcs[:])
			}
		}
		if err != nil {
			return rdma.WC{}, err
		}
		n.found = append(n.found, wcs[:k]...)
		if k > 0 {
			break
		}
		left := time.Until(deadline)
		if left <= 0 {
			return rdma.WC{}, errNoCompletion
		}
		if _, err := readable(n.channel.FD(), left); err != nil {
			return rdma.WC{}, err
		}
		for more := true; more; {
			if _, more, err = n.channel.Next(); err != nil {
				return rdma.WC{}, err
			}
		}
	}
	wc := n.found[0]
	n.found = n.found[1:]
	return wc, nil
}

// success waits for a completion that must be one of ID id.
func (n *node) success(id uint64) rdma.WC {
	n.t.Helper()
	wc := n.next()
	if err := wc.Err(n.Device.Info().Name); err != nil {
		n.t.Fatalf("id %d, wanted %d: %v", wc.ID, id, err)
	}
	if wc.ID != id {
		n.t.Fatalf("completion of id %d, wanted %d", wc.ID, id)
	}
	return wc
}

// failure waits for a completion of ID id with one of the statuses.
func (n *node) failure(id uint64, statuses ...rdma.Status) {
	n.t.Helper()
	wc := n.next()
	if wc.ID != id || wc.QPN != n.qp.Num() {
		n.t.Fatalf("completion of id %d on qp 0x%06x with %v; wanted id %d on qp 0x%06x", wc.ID, wc.QPN, wc.Status, id, n.qp.Num())
	}
	for _, s := range statuses {
		if wc.Status == s {
			return
		}
	}
	n.t.Fatalf("id %d completed with %v; wanted %v", id, wc.Status, statuses)
}

// none wants the CQ to be empty.
func (n *node) none(why string) {
	n.t.Helper()
	var wcs [4]rdma.WC
	k, err := n.cq.Poll(wcs[:])
	n.ok(err)
	if k+len(n.found) > 0 {
		n.t.Fatalf("%s: a completion that must not be: %+v", why, append(n.found, wcs[:k]...)[0])
	}
}

func (n *node) wantState(qp rdma.QP, want rdma.QPState) {
	n.t.Helper()
	s, err := qp.State()
	n.ok(err)
	if s != want {
		n.t.Fatalf("the QP is in %v, not in %v", s, want)
	}
}

// IDs of the last work requests of a QP.
const (
	lastSend = 1<<63 + iota
	lastRecv
)

// drain fails a QP and waits until everything posted has completed. It returns what
// completed before.
func (n *node) drain(qp rdma.QP) (rest []rdma.WC) {
	n.t.Helper()
	if s, err := qp.State(); err != nil || s == rdma.StateReset {
		n.ok(err)
		return nil
	}
	n.ok(qp.Fail())
	left := 0 // last requests whose completion is to come
	take := func() {
		n.t.Helper()
		wc := n.next()
		if wc.QPN != qp.Num() || wc.ID != lastSend && wc.ID != lastRecv {
			rest = append(rest, wc)
			return
		}
		if wc.Status != rdma.StatusFlushed {
			n.t.Fatalf("the last work request of a failed QP completed with %v", wc.Status)
		}
		left--
	}
	post := func(do func() (int, error)) {
		n.t.Helper()
		left++
		for {
			_, err := do()
			if err == nil {
				return
			}
			if !errors.Is(err, rdma.ErrQueueFull) {
				n.t.Fatal(err)
			}
			take() // a slot becomes free
		}
	}
	post(func() (int, error) { return qp.PostSend([]rdma.SendWR{{ID: lastSend, Flags: rdma.Signaled}}) })
	if n.srq == nil && n.cfg.recvs > 0 {
		post(func() (int, error) { return qp.PostRecv([]rdma.RecvWR{{ID: lastRecv}}) })
	}
	for left > 0 {
		take()
	}
	return rest
}

// close takes everything down in the documented order, and wants it all back. After
// a failure it gives back what it can, and says no more.
func (n *node) close() {
	n.t.Helper()
	failed := n.t.Failed()
	check := func(err error) {
		n.t.Helper()
		if err != nil && !failed {
			n.t.Error(err)
		}
	}
	for _, qp := range n.qps {
		if !n.dead && !failed {
			n.drain(qp)
		}
		check(qp.Close())
	}
	if n.srq != nil {
		check(n.srq.Close())
	}
	for _, r := range n.regions {
		check(r.mr.Close())
		if !failed {
			r.free()
		}
	}
	check(n.cq.Close())
	check(n.channel.Close())
	check(n.pd.Close())
	if left := n.Device.Resources(); left != (rdma.Resources{}) && !failed {
		n.t.Errorf("at the end the device still has %v", left)
	}
	check(n.Device.Close())
}

// closeQP drains and closes a QP before the end.
func (n *node) closeQP(qp rdma.QP) {
	n.t.Helper()
	n.drain(qp)
	n.ok(qp.Close())
	for i := range n.qps {
		if n.qps[i] == qp {
			n.qps = append(n.qps[:i], n.qps[i+1:]...)
			return
		}
	}
}

// closeMR closes a region before the end.
func (n *node) closeMR(m mem) {
	n.t.Helper()
	n.ok(m.Close())
	for i := range n.regions {
		if n.regions[i].mr == m.MR {
			n.regions[i].free()
			n.regions = append(n.regions[:i], n.regions[i+1:]...)
			return
		}
	}
}

// wantErr wants an *rdma.Error of a kind that says where it was.
func (n *node) wantErr(err error, kind error) {
	n.t.Helper()
	if !errors.Is(err, kind) {
		n.t.Fatalf("got %v; want %v", err, kind)
	}
	e, ok := errors.AsType[*rdma.Error](err)
	if !ok || e.Op == "" || e.Device != n.Device.Info().Name {
		n.t.Fatalf("the error does not say what failed, and where: %#v", err)
	}
}

// event waits for an asynchronous event of that type and passes over others.
func (n *node) event(want rdma.EventType) rdma.Event {
	n.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		e, ok, err := n.Device.NextEvent()
		n.ok(err)
		if ok {
			if e.Type == want {
				return e
			}
			continue
		}
		left := time.Until(deadline)
		if left <= 0 {
			n.t.Fatalf("no %v came", want)
		}
		if _, err := readable(n.Device.EventFD(), left); err != nil {
			n.t.Fatal(err)
		}
	}
}

func sizesName(op rdma.Opcode, n int) string { return fmt.Sprintf("%v of %d bytes", op, n) }
