package rdmatest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weft-hpc/weft/rdma"
)

var queueTests = []test{
	{"MistakeAllUnsignaled", testMistakeAllUnsignaled},
	{"SelectiveSignaling", testSelectiveSignaling},
	{"PartOfABatch", testPartOfABatch},
	{"ReceiveQueueFull", testReceiveQueueFull},
	{"TooLarge", testTooLarge},
	{"MistakeCQOverrun", testMistakeCQOverrun},
	{"SRQShared", testSRQShared},
	{"SRQLimit", testSRQLimit},
	{"SRQTooShort", testSRQTooShort},
	{"ManyQPs", testManyQPs},
	{"NoAllocation", testNoAllocation},
}

// A send queue with nothing signaled in it stays full for good: SPDK, libfabric
// and others hung, or ignored the error and lost messages (spdk#3195, uccl#267, libfabric#824, lci#24).
func testMistakeAllUnsignaled(t *testing.T, open Open) {
	a, b := pair(t, open, config{sends: 3})
	dst := b.alloc(8, allAccess)
	src := a.alloc(8, rdma.LocalWrite)
	room := a.qp.Caps().MaxSendWRs
	if room < 3 {
		t.Fatalf("3 sends asked for, %d granted", room)
	}
	wr := rdma.SendWR{Op: rdma.Write, SGL: src.seg(0, 8), RemoteAddr: dst.Addr(), RKey: dst.RKey()}
	for range room {
		a.send(wr)
	}
	n, err := a.qp.PostSend([]rdma.SendWR{wr})
	switch {
	case err != nil:
		a.wantErr(err, rdma.ErrQueueFull)
	case a.limits.Inspects:
		t.Fatalf("posted %d work requests to a full queue", n)
	default: // some devices free slots by themselves, which nobody may count on
		room++
	}
	a.none("unsignaled writes")
	// They are done all the same, but nobody knows. The end of the QP tells of them.
	rest := a.drainFull(room)
	if len(rest) > room {
		t.Errorf("%d completions of %d work requests", len(rest), room)
	}
}

// drainFull resets a QP whose queue is full for good.
func (n *node) drainFull(room int) []rdma.WC {
	n.t.Helper()
	n.ok(n.qp.Fail())
	var rest []rdma.WC
	for len(rest) < room {
		wc, err := n.tryNext(time.Now().Add(30 * time.Millisecond))
		if errors.Is(err, errNoCompletion) {
			break // the rest had succeeded
		}
		n.ok(err)
		rest = append(rest, wc)
	}
	n.ok(n.qp.Reset())
	return rest
}

// A queue of 4 carries any number of sends when every second one is signaled.
func testSelectiveSignaling(t *testing.T, open Open) {
	a, b := pair(t, open, config{sends: 4, recvs: 64})
	src, dst := a.alloc(8, rdma.LocalWrite), b.alloc(8, allAccess)
	wr := rdma.SendWR{Op: rdma.Write, SGL: src.seg(0, 8), RemoteAddr: dst.Addr(), RKey: dst.RKey()}
	inFlight := 0
	for i := range 400 {
		wr.ID, wr.Flags = uint64(i), rdma.Flags(i%2)*rdma.Signaled
		if inFlight == 4 {
			a.success(uint64(i - 3))
			inFlight -= 2
		}
		a.send(wr)
		inFlight++
	}
	a.success(397)
	a.success(399)
	a.none("every second write is signaled")
}

// When a batch does not fit, what was taken is under way, and its number is told.
// Programs that took the batch for lost sent it twice (libfabric#824).
func testPartOfABatch(t *testing.T, open Open) {
	a, b := pair(t, open, config{sends: 3})
	room := a.qp.Caps().MaxSendWRs
	src, dst := a.alloc(8, rdma.LocalWrite), b.alloc(8*(room+2), allAccess)
	fill(src.b, 1)
	wrs := make([]rdma.SendWR, room+2)
	for i := range wrs {
		wrs[i] = rdma.SendWR{ID: uint64(i), Op: rdma.Write, Flags: rdma.Signaled, SGL: src.seg(0, 8), RemoteAddr: dst.Addr() + uint64(8*i), RKey: dst.RKey()}
	}
	n, err := a.qp.PostSend(wrs)
	a.wantErr(err, rdma.ErrQueueFull)
	if n != room {
		t.Fatalf("%d of %d posted to a queue of %d", n, len(wrs), room)
	}
	for i := range n {
		a.success(uint64(i))
		b.want(dst.b[8*i:8*i+8], 1, "the part that was posted")
	}
	b.wantAll(dst.b[8*n:], 0, "the part that was not posted")
	// A work request that cannot be is refused at its place.
	bad := []rdma.SendWR{wrs[0], {Op: 99}, wrs[2]}
	n, err = a.qp.PostSend(bad)
	if n != 1 {
		t.Fatalf("%d posted before the impossible one: %v", n, err)
	}
	a.wantErr(err, rdma.ErrInvalid)
	a.success(0)
	n, err = a.qp.PostSend(nil)
	if n != 0 || err != nil {
		t.Errorf("an empty batch: %d, %v", n, err)
	}
}

func testReceiveQueueFull(t *testing.T, open Open) {
	for _, cfg := range []config{{recvs: 3}, {srq: 3}} {
		t.Run(fmt.Sprintf("SRQ=%v", cfg.srq > 0), func(t *testing.T) {
			a, b := pair(t, open, cfg)
			room, post := b.qp.Caps().MaxRecvWRs, b.qp.PostRecv
			if cfg.srq > 0 {
				room, post = b.srq.MaxWRs(), b.srq.PostRecv
			}
			if room < 3 {
				t.Fatalf("3 receives asked for, %d granted", room)
			}
			dst := b.alloc(8, rdma.LocalWrite)
			wrs := make([]rdma.RecvWR, room+1)
			for i := range wrs {
				wrs[i] = rdma.RecvWR{ID: uint64(i), SGL: dst.seg(0, 8)}
			}
			n, err := post(wrs)
			b.wantErr(err, rdma.ErrQueueFull)
			if n != room {
				t.Fatalf("%d of %d posted to a queue of %d", n, len(wrs), room)
			}
			// A receive that completed makes room for one.
			a.send(rdma.SendWR{ID: 1, Flags: rdma.Signaled})
			a.success(1)
			b.success(0)
			b.recv(wrs[room])
			for i := range room {
				a.send(rdma.SendWR{ID: 1, Flags: rdma.Signaled})
				a.success(1)
				b.success(uint64(i + 1))
			}
			// Every slot comes back, any number of times.
			for i := range uint64(60) {
				b.recv(rdma.RecvWR{ID: i})
				a.send(rdma.SendWR{ID: i, Flags: rdma.Signaled})
				a.success(i)
				b.success(i)
			}
			n, err = post(wrs)
			if n != room {
				t.Fatalf("after 60 messages %d of %d fit into a queue of %d", n, len(wrs), room)
			}
			b.wantErr(err, rdma.ErrQueueFull)
			if cfg.srq > 0 {
				_, err := b.qp.PostRecv(wrs[:1])
				b.wantErr(err, rdma.ErrInvalid)
			}
		})
	}
}

func testTooLarge(t *testing.T, open Open) {
	a, _ := unconnected(t, open, config{})
	l := a.limits
	_, err := a.Device.CreateCQ(l.MaxCQEs+1, nil)
	a.wantErr(err, rdma.ErrInvalid)
	_, err = a.Device.CreateCQ(0, nil)
	a.wantErr(err, rdma.ErrInvalid)
	_, err = a.pd.CreateSRQ(rdma.SRQOptions{MaxWRs: l.MaxSRQWRs + 1, MaxSGEs: 1})
	a.wantErr(err, rdma.ErrInvalid)
	for name, change := range map[string]func(o *rdma.QPOptions){
		"sends":            func(o *rdma.QPOptions) { o.Caps.MaxSendWRs = l.MaxQPWRs + 1 },
		"receives":         func(o *rdma.QPOptions) { o.Caps.MaxRecvWRs = l.MaxQPWRs + 1 },
		"send segments":    func(o *rdma.QPOptions) { o.Caps.MaxSendSGEs = l.MaxSGEs + 1 },
		"receive segments": func(o *rdma.QPOptions) { o.Caps.MaxRecvSGEs = l.MaxSGEs + 1 },
		"inline": func(o *rdma.QPOptions) {
			if o.Caps.MaxInline = 1 << 20; l.MaxInline > 0 {
				o.Caps.MaxInline = l.MaxInline + 1
			}
		},
		"no CQ":    func(o *rdma.QPOptions) { o.SendCQ = nil },
		"negative": func(o *rdma.QPOptions) { o.Caps.MaxSendWRs = -1 },
	} {
		opts := a.qpOptions()
		change(&opts)
		qp, err := a.pd.CreateQP(opts)
		if err == nil {
			t.Errorf("%s: a QP that is too large was made", name)
			a.ok(qp.Close())
			continue
		}
		a.wantErr(err, rdma.ErrInvalid)
	}
	_, err = a.pd.RegisterMemory(nil, rdma.LocalWrite)
	a.wantErr(err, rdma.ErrInvalid)
	m := a.alloc(64, rdma.LocalWrite)
	_, err = a.pd.RegisterMemory(m.b, rdma.RemoteWrite)
	a.wantErr(err, rdma.ErrInvalid)
	_, err = a.pd.RegisterMemory(m.b, 0x80)
	a.wantErr(err, rdma.ErrInvalid)
}

// A CQ that is too small for what completes dies with all its QPs: libfabric
// and TransferBench lost whole jobs (libfabric#4913, TransferBench#239).
func testMistakeCQOverrun(t *testing.T, open Open) {
	a, b := pair(t, open, config{sends: 64, recvs: 1, cq: 4})
	room := a.cq.Cap()
	if room < 4 {
		t.Fatalf("4 completions asked for, %d granted", room)
	}
	src, dst := a.alloc(8, rdma.LocalWrite), b.alloc(8, allAccess)
	wr := rdma.SendWR{Op: rdma.Write, Flags: rdma.Signaled, SGL: src.seg(0, 8), RemoteAddr: dst.Addr(), RKey: dst.RKey()}
	if room >= a.qp.Caps().MaxSendWRs {
		t.Logf("the device made a CQ of %d for 4: it cannot be overrun with %d sends", room, a.qp.Caps().MaxSendWRs)
		return
	}
	a.dead = true                      // what is lost never completes
	for range a.qp.Caps().MaxSendWRs { // more than room + 1, as there may be more than Cap promises
		a.send(wr)
	}
	if e := a.event(rdma.CQError); e.CQ != a.cq {
		t.Errorf("a CQ error of another CQ: %v", e)
	}
	if a.limits.Inspects { // soft-RoCE leaves them alone
		a.wantStateSoon(a.qp, rdma.StateError)
	}
	var wcs [128]rdma.WC
	deadline := time.Now().Add(patience)
	for {
		_, err := a.cq.Poll(wcs[:])
		if err != nil {
			a.wantErr(err, rdma.ErrCQOverrun)
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("a CQ that overran can be polled without an error")
		}
	}
}

// wantStateSoon wants a QP to come into a state by itself.
func (n *node) wantStateSoon(qp rdma.QP, want rdma.QPState) {
	n.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		s, err := qp.State()
		n.ok(err)
		if s == want {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("the QP stays in %v, and does not come to %v", s, want)
		}
	}
}

// Receives of an SRQ serve whichever QP needs one, and completions say which it was.
func testSRQShared(t *testing.T, open Open) {
	a, b := pair(t, open, config{srq: 48})
	const peers = 3
	from, to := []rdma.QP{a.qp}, []rdma.QP{b.qp}
	for range peers - 1 {
		qa, qb := a.newQP(), b.newQP()
		connect(a, qa, b, qb)
		from, to = append(from, qa), append(to, qb)
	}
	dst, src := b.alloc(48*256, rdma.LocalWrite), a.alloc(peers*256, rdma.LocalWrite)
	for i := range 48 {
		b.recv(rdma.RecvWR{ID: uint64(i), SGL: dst.seg(256*i, 256)})
	}
	for i := range peers {
		fill(src.b[256*i:256*i+256], i)
	}
	var got [peers]uint32
	seen := map[uint64]bool{}
	for range 16 {
		for i, qp := range from {
			a.sendOn(qp, rdma.SendWR{ID: 1, Op: rdma.SendImm, Flags: rdma.Signaled, Imm: got[i] + uint32(i), SGL: src.seg(256*i, 256)})
		}
		for range peers {
			a.success(1)
			wc := b.next()
			b.ok(wc.Err("b"))
			if seen[wc.ID] {
				t.Fatalf("receive %d completed twice", wc.ID)
			}
			seen[wc.ID] = true
			found := false
			for i, qp := range to {
				if wc.QPN == qp.Num() {
					found = true
					if wc.Imm != got[i]+uint32(i) {
						t.Fatalf("message %d of sender %d came out of order", wc.Imm, i)
					}
					b.want(dst.b[256*wc.ID:256*wc.ID+256], i, "message to an SRQ")
				}
			}
			if !found {
				t.Fatalf("completion of an unknown qp 0x%06x", wc.QPN)
			}
		}
		for i := range got {
			got[i]++
		}
	}
}

func testSRQLimit(t *testing.T, open Open) {
	a, b := pair(t, open, config{srq: 16})
	recv := make([]rdma.RecvWR, 8)
	b.recv(recv...)
	b.ok(b.srq.SetLimit(6))
	consume := func(n int) {
		for range n {
			a.send(rdma.SendWR{ID: 1, Flags: rdma.Signaled})
			a.success(1)
			b.success(0)
		}
	}
	consume(2)
	b.noEvent(rdma.SRQLimitReached, "6 of 8 receives are left, the limit is 6")
	consume(1)
	if e := b.event(rdma.SRQLimitReached); e.SRQ != b.srq {
		t.Errorf("the limit of another SRQ: %v", e)
	}
	consume(2)
	b.noEvent(rdma.SRQLimitReached, "the limit was not set again")
	b.recv(recv...)
	b.ok(b.srq.SetLimit(11))
	consume(1)
	b.event(rdma.SRQLimitReached)
	b.wantErr(b.srq.SetLimit(b.srq.MaxWRs()+1), rdma.ErrInvalid)
	b.wantErr(b.srq.SetLimit(-1), rdma.ErrInvalid)
}

// noEvent wants no event of that type to be there now.
func (n *node) noEvent(kind rdma.EventType, why string) {
	n.t.Helper()
	for {
		e, ok, err := n.Device.NextEvent()
		n.ok(err)
		if !ok {
			return
		}
		if e.Type == kind {
			n.t.Fatalf("%v, but: %s", e, why)
		}
	}
}

// Messages that find the SRQ empty wait for a receive, and then arrive.
// Credits that were counted for each QP let peers hang here (libfabric#5907, ucx#10505).
func testSRQTooShort(t *testing.T, open Open) {
	// More waits in all than retries for each: they are counted anew for every message.
	a, b := pair(t, open, config{srq: 2, rts: func(r *rdma.RTSAttr) { r.RNRRetries = 2 },
		rtr: func(r *rdma.RTRAttr) { r.MinRNRTimer = 2 * rnrTimer }})
	const n = 5
	for i := range n {
		a.send(rdma.SendWR{ID: uint64(i), Flags: rdma.Signaled})
	}
	for i := range n {
		b.recv(rdma.RecvWR{ID: uint64(i)})
		b.success(uint64(i))
		a.success(uint64(i))
	}
}

func testManyQPs(t *testing.T, open Open) {
	a, b := pair(t, open, config{sends: 4, recvs: 4, cq: 400})
	nums := map[uint32]bool{a.qp.Num(): true}
	type conn struct{ qa, qb rdma.QP }
	conns := []conn{{a.qp, b.qp}}
	for range 19 {
		c := conn{a.newQP(), b.newQP()}
		connect(a, c.qa, b, c.qb)
		if nums[c.qa.Num()] || c.qa.Num() > 1<<24-1 {
			t.Fatalf("QP number 0x%x is not new, or too long", c.qa.Num())
		}
		nums[c.qa.Num()] = true
		conns = append(conns, c)
	}
	for _, c := range conns {
		if _, err := c.qb.PostRecv([]rdma.RecvWR{{ID: uint64(c.qb.Num())}}); err != nil {
			t.Fatal(err)
		}
		a.sendOn(c.qa, rdma.SendWR{ID: uint64(c.qa.Num()), Flags: rdma.Signaled})
	}
	for range conns {
		for _, n := range []*node{a, b} {
			wc := n.next()
			if wc.Status != rdma.StatusSuccess || wc.ID != uint64(wc.QPN) {
				t.Fatalf("completion %+v of another QP", wc)
			}
		}
	}
	if got := a.Device.Resources(); got != (rdma.Resources{PDs: 1, Channels: 1, CQs: 1, QPs: 20}) {
		t.Errorf("the device counts %v", got)
	}
}

// Posting, polling and arming is the hot path.
func testNoAllocation(t *testing.T, open Open) {
	a, b := pair(t, open, config{inline: 32})
	src, dst := a.alloc(4096, rdma.LocalWrite), b.alloc(4096, allAccess)
	sends := []rdma.SendWR{
		{Op: rdma.Write, SGL: src.seg(0, 4096), RemoteAddr: dst.Addr(), RKey: dst.RKey()},
		{Op: rdma.SendImm, Flags: rdma.Signaled, Inline: make([]byte, min(32, a.qp.Caps().MaxInline))},
	}
	recvs := []rdma.RecvWR{{SGL: dst.seg(0, 32)}}
	wcs := make([]rdma.WC, 4)
	await := func(cq rdma.CQ) {
		for {
			n, err := cq.Poll(wcs)
			if err != nil || n > 1 || n == 1 && wcs[0].Status != rdma.StatusSuccess {
				t.Fatalf("%d completions, %v", n, err)
			}
			if n == 1 {
				return
			}
			if err := cq.Arm(false); err != nil {
				t.Fatal(err)
			}
		}
	}
	allocs := testing.AllocsPerRun(100, func() {
		if _, err := b.qp.PostRecv(recvs); err != nil {
			t.Fatal(err)
		}
		if _, err := a.qp.PostSend(sends); err != nil {
			t.Fatal(err)
		}
		await(a.cq)
		await(b.cq)
		for more := true; more; {
			_, more, _ = a.channel.Next()
		}
		for more := true; more; {
			_, more, _ = b.channel.Next()
		}
	})
	if allocs > 0 {
		t.Errorf("a message allocates %v times", allocs)
	}
}
