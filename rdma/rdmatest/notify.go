package rdmatest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weft-hpc/weft/rdma"
)

var notifyTests = []test{
	{"Once", testNotifyOnce},
	{"SolicitedOnly", testSolicitedOnly},
	{"ErrorsAreSolicited", testErrorsAreSolicited},
	{"SharedChannel", testSharedChannel},
	{"WithoutChannel", testWithoutChannel},
	{"MistakePollThenArm", testPollThenArm},
	{"MistakeLostWakeUp", testLostWakeUp},
	{"MistakeUntakenNotification", testUntakenNotification},
}

// wantReadable wants the channel to be readable within a time, or not to be for now.
func (n *node) wantReadable(want bool, why string) {
	n.t.Helper()
	d := time.Duration(0)
	if want {
		d = patience
	}
	if ready, err := readable(n.channel.FD(), d); err != nil || ready != want {
		n.t.Fatalf("channel readable: %v, want %v: %s (%v)", ready, want, why, err)
	}
}

func (n *node) wantNotified(cq rdma.CQ) {
	n.t.Helper()
	got, ok, err := n.channel.Next()
	n.ok(err)
	if !ok || got != cq {
		n.t.Fatalf("notification of %v, %v; want that of %v", got, ok, cq)
	}
}

// one lets b receive a message.
func one(a, b *node, flags rdma.Flags) {
	b.t.Helper()
	b.recv(rdma.RecvWR{ID: 1})
	a.send(rdma.SendWR{ID: 2, Flags: rdma.Signaled | flags})
	a.success(2)
}

// waitIn waits until a completion is in the queue, without the channel.
func (n *node) waitIn(id uint64) {
	n.t.Helper()
	var wcs [1]rdma.WC
	for deadline := time.Now().Add(patience); ; {
		k, err := n.cq.Poll(wcs[:])
		n.ok(err)
		if k > 0 {
			if wcs[0].ID != id || wcs[0].Status != rdma.StatusSuccess {
				n.t.Fatalf("completion %+v; want id %d", wcs[0], id)
			}
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatal("no completion came")
		}
	}
}

func testNotifyOnce(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	one(a, b, 0)
	b.waitIn(1)
	b.wantReadable(false, "it was never armed")
	b.ok(b.cq.Arm(false))
	b.wantReadable(false, "the queue is empty")
	one(a, b, 0)
	b.wantReadable(true, "a completion came")
	b.wantReadable(true, "nobody took the notification")
	b.wantNotified(b.cq)
	b.wantReadable(false, "the notification was taken")
	if _, more, err := b.channel.Next(); more || err != nil {
		t.Fatalf("a second notification: %v", err)
	}
	b.waitIn(1)
	one(a, b, 0)
	b.waitIn(1)
	b.wantReadable(false, "it was not armed again")
	b.ok(b.cq.Arm(false))
	b.ok(b.cq.Arm(false))
	one(a, b, 0)
	b.wantReadable(true, "a completion came")
	b.wantNotified(b.cq)
	b.waitIn(1)
}

func testSolicitedOnly(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	b.ok(b.cq.Arm(true))
	one(a, b, 0)
	b.waitIn(1)
	if !b.limits.Solicited {
		b.wantReadable(true, "the device does not tell solicited completions from others")
		b.wantNotified(b.cq)
		return
	}
	b.wantReadable(false, "the message is not solicited")
	one(a, b, rdma.Solicited)
	b.wantReadable(true, "a solicited message came")
	b.wantNotified(b.cq)
	b.waitIn(1)
	// Armed for everything is not taken back by being armed for less.
	b.ok(b.cq.Arm(false))
	b.ok(b.cq.Arm(true))
	one(a, b, 0)
	b.wantReadable(true, "armed for everything")
	b.wantNotified(b.cq)
	b.waitIn(1)
}

func testErrorsAreSolicited(t *testing.T, open Open) {
	a, b := pair(t, open, config{quick: true})
	a.ok(a.cq.Arm(true))
	a.send(rdma.SendWR{ID: 3}) // the peer has no receive
	if a.limits.Inspects {     // soft-RoCE does not tell of errors of sends
		a.wantReadable(true, "an error came")
		a.wantNotified(a.cq)
	}
	a.failure(3, rdma.StatusRNRRetryExceeded)
	b.none("it had no receive")
}

// A notification names the queue it is of.
func testSharedChannel(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	cq2, err := b.Device.CreateCQ(16, b.channel)
	b.ok(err)
	opts := b.qpOptions()
	opts.SendCQ, opts.RecvCQ = cq2, cq2
	qp2, err := b.pd.CreateQP(opts)
	b.ok(err)
	qa := a.newQP()
	connect(a, qa, b, qp2)
	for i := range 4 {
		b.ok(b.cq.Arm(false))
		b.ok(cq2.Arm(false))
		if _, err := qp2.PostRecv([]rdma.RecvWR{{ID: 1}}); err != nil {
			t.Fatal(err)
		}
		b.recv(rdma.RecvWR{ID: 2})
		// One after the other, so that the order is known.
		order := []func(){
			func() {
				a.sendOn(qa, rdma.SendWR{ID: 3, Flags: rdma.Signaled})
				b.wantReadable(true, "second queue")
				b.wantNotified(cq2)
			},
			func() {
				a.send(rdma.SendWR{ID: 3, Flags: rdma.Signaled})
				b.wantReadable(true, "first queue")
				b.wantNotified(b.cq)
			},
		}
		order[i%2]()
		order[1-i%2]()
		a.success(3)
		a.success(3)
		b.success(2)
		var wcs [2]rdma.WC
		if n, err := cq2.Poll(wcs[:]); n != 1 || err != nil || wcs[0].ID != 1 || wcs[0].QPN != qp2.Num() {
			t.Fatalf("second queue: %d, %v, %+v", n, err, wcs[0])
		}
	}
	// Both at once: two notifications, one for each queue.
	b.ok(b.cq.Arm(false))
	b.ok(cq2.Arm(false))
	if _, err := qp2.PostRecv([]rdma.RecvWR{{ID: 1}}); err != nil {
		t.Fatal(err)
	}
	b.recv(rdma.RecvWR{ID: 2})
	a.sendOn(qa, rdma.SendWR{ID: 3, Flags: rdma.Signaled})
	a.send(rdma.SendWR{ID: 3, Flags: rdma.Signaled})
	notified := map[rdma.CQ]bool{}
	for range 2 {
		b.wantReadable(true, "both queues have a completion")
		cq, ok, err := b.channel.Next()
		b.ok(err)
		if !ok || notified[cq] {
			t.Fatalf("%d notifications, and then %v, %v", len(notified), ok, cq)
		}
		notified[cq] = true
	}
	b.wantReadable(false, "both notifications were taken")
	b.success(2)
	a.success(3)
	a.success(3)
	b.ok(qp2.Fail())
	b.ok(qp2.Close())
	b.ok(cq2.Close())
}

func testWithoutChannel(t *testing.T, open Open) {
	a, _ := unconnected(t, open, config{})
	cq, err := a.Device.CreateCQ(16, nil)
	a.ok(err)
	a.wantErr(cq.Arm(false), rdma.ErrInvalid)
	a.ok(cq.Close())
}

// What comes between a poll that found nothing and Arm sends no notification: it
// must be found by polling again. Who waited instead lost messages (brpc#3415,
// libfabric#796, perftest#137).
func testPollThenArm(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	for range 50 {
		b.none("nothing was sent")
		one(a, b, 0) // now the receive is complete, or as good as
		b.ok(b.cq.Arm(false))
		// Either it is in the queue now, or it will notify.
		var wcs [1]rdma.WC
		n, err := b.cq.Poll(wcs[:])
		b.ok(err)
		if n == 0 {
			b.wantReadable(true, "it was not in the queue after Arm, so it must notify")
			b.waitIn(1)
		}
		for more := true; more; {
			_, more, err = b.channel.Next()
			b.ok(err)
		}
	}
}

// Many round trips between two ends that sleep whenever they can, each in its
// own goroutine. One lost wake-up ends it.
func testLostWakeUp(t *testing.T, open Open) {
	for _, qps := range []int{1, 3} {
		t.Run(fmt.Sprintf("QPs=%d", qps), func(t *testing.T) {
			const rounds = 800
			a, b := pair(t, open, config{recvs: 8})
			peers := map[*node][]rdma.QP{a: {a.qp}, b: {b.qp}}
			for range qps - 1 {
				qa, qb := a.newQP(), b.newQP()
				connect(a, qa, b, qb)
				peers[a], peers[b] = append(peers[a], qa), append(peers[b], qb)
			}
			for n, all := range peers {
				for i, qp := range all {
					if _, err := qp.PostRecv([]rdma.RecvWR{{ID: uint64(i)}, {ID: uint64(i)}}); err != nil {
						n.t.Fatal(err)
					}
				}
			}
			for i, qp := range peers[a] {
				a.sendOn(qp, rdma.SendWR{ID: uint64(i), Flags: rdma.Signaled})
			}
			var all sync.WaitGroup
			for n, mine := range peers {
				answers := rounds
				if n == a {
					answers-- // it sent the first message
				}
				all.Go(func() {
					if err := n.pingPong(mine, rounds, answers); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
		})
	}
}

// pingPong answers so many messages on each QP, and returns when rounds have come.
func (n *node) pingPong(qps []rdma.QP, rounds, answers int) error {
	answered := make([]int, len(qps))
	total := rounds * len(qps)
	for total > 0 {
		wc, err := n.tryNext(time.Now().Add(patience)) // for each: a slow machine is no lost wake-up
		if err != nil {
			return fmt.Errorf("%d messages to come: %w", total, err)
		}
		if err := wc.Err(n.Device.Info().Name); err != nil {
			return err
		}
		if wc.Op != rdma.WCRecv {
			continue
		}
		i := wc.ID
		total--
		if _, err := qps[i].PostRecv([]rdma.RecvWR{{ID: i}}); err != nil {
			return err
		}
		if answered[i]++; answered[i] <= answers {
			if _, err := qps[i].PostSend([]rdma.SendWR{{ID: i, Flags: rdma.Signaled}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Notifications that nobody took, or that somebody took and did not acknowledge, keep
// nothing from being closed: programs hung for ever in destroy (ucx#1039, rdma-core#657).
func testUntakenNotification(t *testing.T, open Open) {
	a, b := pair(t, open, config{})
	for taken := range 2 {
		b.ok(b.cq.Arm(false))
		one(a, b, 0)
		b.wantReadable(true, "a completion came")
		if taken == 1 {
			b.wantNotified(b.cq)
		}
		b.waitIn(1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.closeQP(b.qp)
			if err := b.cq.Close(); err != nil {
				t.Error(err)
			}
		}()
		select {
		case <-done:
		case <-time.After(patience):
			t.Fatal("closing a CQ hangs")
		}
		if _, more, err := b.channel.Next(); more || err != nil {
			t.Fatalf("a notification of a CQ that is closed: %v", err)
		}
		b.wantReadable(false, "the CQ is closed")
		var err error
		b.cq, err = b.Device.CreateCQ(b.cfg.cq, b.channel)
		b.ok(err)
		b.found = nil
		b.qp = b.newQP()
		a.closeQP(a.qp)
		a.qp = a.newQP()
		connect(a, a.qp, b, b.qp)
	}
}
