package progress

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weft-hpc/weft/internal/match"
	"github.com/weft-hpc/weft/internal/proto"
	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/transport/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// policies are extremes of how a wait can be spent.
var policies = map[string]Policy{
	"sleeps at once": {Polls: 1, Yield: runtime.Gosched, Tick: time.Millisecond},
	"yields":         {Polls: 1, Yields: 3, Yield: runtime.Gosched, Tick: time.Millisecond},
	"spins":          {Polls: 64, Spin: 50 * time.Microsecond, Yields: 3, Yield: runtime.Gosched, Tick: time.Millisecond},
}

// rank is an engine with a communicator of all ranks.
type rank struct {
	*Engine
	comm *proto.Comm
}

// world joins n engines by a fabric. Route says which transports rank 0 has: all
// others have one.
func world(t *testing.T, n int, policy Policy, cfg sim.Config) ([]*rank, *sim.Fabric) {
	t.Helper()
	fabric := sim.New(n, cfg)
	ranks := make([]*rank, n)
	for r := range ranks {
		route := make([]transport.Transport, n)
		for i := range route {
			if i != r {
				route[i] = fabric.Transport(r)
			}
		}
		ranks[r] = newRank(Config{Rank: r, Size: n, Window: 64 << 10, Transports: []transport.Transport{fabric.Transport(r)},
			Route: route, PullMin: 4 << 10, Policy: policy})
	}
	t.Cleanup(func() {
		for _, r := range ranks {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return ranks, fabric
}

func newRank(cfg Config) *rank {
	r := &rank{Engine: New(cfg)}
	members := make([]int32, cfg.Size)
	for i := range members {
		members[i] = int32(i)
	}
	r.Do(func(c *proto.Core) { r.comm = c.Open(proto.ContextID(0, 0), members, cfg.Rank) })
	return r
}

func (r *rank) send(ctx context.Context, buf []byte, dst, tag int) error {
	return r.Call(ctx, Call{Kind: proto.Send, Ctx: r.comm.P2P, Peer: int32(dst), Tag: int32(tag), Buf: buf}).Err
}

func (r *rank) recv(ctx context.Context, buf []byte, src, tag int) error {
	return r.Call(ctx, Call{Kind: proto.Recv, Ctx: r.comm.P2P, Peer: int32(src), Tag: int32(tag), Buf: buf}).Err
}

func (r *rank) start(kind proto.Kind, buf []byte, peer, tag int) *Op {
	op := new(Op)
	r.Start(op, &Call{Kind: kind, Ctx: r.comm.P2P, Peer: int32(peer), Tag: int32(tag), Buf: buf})
	return op
}

// A rank that posts and never waits goes through the scheduler as well: what it posts counts, long messages more.
func TestPostsTakeTurns(t *testing.T) {
	policy := policies["spins"]
	policy.Turn = time.Nanosecond
	for _, n := range []int{0, 1 << 10, 3 << 10} {
		ranks, _ := world(t, 2, policy, sim.Config{}) // nobody receives: there is credit for 64 KiB
		turned := func() bool {
			ranks[0].mu.Lock()
			defer ranks[0].mu.Unlock()
			return !ranks[0].turned.IsZero()
		}
		for effort := 0; ; effort += 1 + n>>10 {
			want := effort >= turnEvery
			if turned() != want {
				t.Errorf("sends of %d bytes, effort %d: a turn was taken: %v, want %v", n, effort, !want, want)
			}
			if want {
				break
			}
			if err := ranks[0].send(t.Context(), make([]byte, n), 1, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Many goroutines of each rank wait at once, so that the poller's role goes from
// hand to hand. A wake-up that got lost would cost maxSleep, or everything.
func TestGoroutinesShareTheRole(t *testing.T) {
	const goroutines, rounds = 6, 200
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			ranks, _ := world(t, 2, policy, sim.Config{})
			start := time.Now()
			var all sync.WaitGroup
			for g := range goroutines {
				for me, r := range ranks {
					all.Go(func() {
						buf := make([]byte, 4)
						for i := range rounds {
							if me == 0 {
								binary.LittleEndian.PutUint32(buf, uint32(i))
								if err := r.send(t.Context(), buf, 1, g); err != nil {
									t.Error(err)
									return
								}
								continue
							}
							if err := r.recv(t.Context(), buf, 0, g); err != nil || binary.LittleEndian.Uint32(buf) != uint32(i) {
								t.Errorf("goroutine %d, message %d: %v, %v", g, i, buf, err)
								return
							}
						}
						// And back, so that both sides wait.
						if me == 1 {
							if err := r.send(t.Context(), nil, 0, 100+g); err != nil {
								t.Error(err)
							}
						} else if err := r.recv(t.Context(), nil, 1, 100+g); err != nil {
							t.Error(err)
						}
					})
				}
			}
			all.Wait()
			if d := time.Since(start); d > 20*time.Second {
				t.Errorf("took %v: wake-ups are lost", d)
			}
		})
	}
}

// Several goroutines may wait for one operation, and one of them may give up.
func TestSeveralWaitForOneOperation(t *testing.T) {
	ranks, _ := world(t, 2, policies["sleeps at once"], sim.Config{})
	op := ranks[0].start(proto.Recv, make([]byte, 1), 1, 0)
	short, cancel := context.WithCancel(t.Context())
	var patient, impatient sync.WaitGroup
	for range 3 {
		patient.Go(func() {
			if !ranks[0].Await(t.Context(), op) || op.Err != nil {
				t.Errorf("patient waiter: %v", op.Err)
			}
		})
		impatient.Go(func() { ranks[0].Await(short, op) })
	}
	cancel()
	impatient.Wait()
	if op.Finished() {
		t.Fatal("giving up a wait ended the operation")
	}
	if err := ranks[1].send(t.Context(), []byte{1}, 0, 0); err != nil {
		t.Fatal(err)
	}
	patient.Wait()
}

// The I/O goroutine answers while the program does something else, and gives way
// when it communicates again.
func TestProgressWithoutCalls(t *testing.T) {
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			ranks, _ := world(t, 2, policy, sim.Config{NoPull: true})
			for i := range 5 {
				big := make([]byte, 1<<20)
				in := ranks[1].start(proto.Recv, big, 0, i)
				done := ranks[1].Closed(in)
				// Rank 1 makes no call from here on.
				if err := ranks[0].send(t.Context(), make([]byte, len(big)), 1, i); err != nil {
					t.Fatal(err)
				}
				select {
				case <-done:
				case <-time.After(10 * time.Second):
					t.Fatal("nobody moved the message")
				}
			}
		})
	}
}

// A wait that ends early withdraws what has not matched, and only that.
func TestCancelledWait(t *testing.T) {
	ranks, _ := world(t, 2, policies["sleeps at once"], sim.Config{})
	short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if err := ranks[0].recv(short, make([]byte, 1), match.Any, match.Any); !errors.Is(err, proto.ErrCanceled) {
		t.Errorf("receive: %v", err)
	}
	if err := ranks[0].send(short, make([]byte, 1<<20), 1, 0); !errors.Is(err, proto.ErrCanceled) {
		t.Errorf("send that nobody takes: %v", err)
	}
	go func() { _ = ranks[1].send(t.Context(), []byte{7}, 0, 3) }()
	buf := make([]byte, 1)
	if err := ranks[0].recv(t.Context(), buf, 1, 3); err != nil || buf[0] != 7 {
		t.Errorf("the next message: %v, %v", buf, err)
	}
}

func TestPeerLostEndsWaits(t *testing.T) {
	ranks, fabric := world(t, 3, policies["sleeps at once"], sim.Config{})
	results := make(chan error, 3)
	go func() { results <- ranks[0].recv(t.Context(), make([]byte, 1), 2, 0) }()
	go func() { results <- ranks[0].recv(t.Context(), make([]byte, 1), match.Any, 1) }()
	go func() { results <- ranks[0].send(t.Context(), make([]byte, 1<<20), 2, 0) }()
	ranks[0].PeerLost(2, errors.New("killed by signal 9"))
	for range 3 {
		if err := <-results; !errors.Is(err, proto.ErrPeerLost) {
			t.Errorf("operation with a dead rank: %v", err)
		}
	}
	fabric.Kill(2)
	if err := ranks[0].send(t.Context(), []byte{1}, 2, 0); !errors.Is(err, proto.ErrPeerLost) {
		t.Errorf("send to a dead rank: %v", err)
	}
	go func() { _ = ranks[1].send(t.Context(), []byte{1}, 0, 5) }()
	if err := ranks[0].recv(t.Context(), make([]byte, 1), 1, 5); err != nil {
		t.Errorf("the others live: %v", err)
	}
}

// A rank with two transports sleeps in both.
func TestTwoTransports(t *testing.T) {
	for name, policy := range policies {
		t.Run(name, func(t *testing.T) {
			near, far := sim.New(3, sim.Config{}), sim.New(3, sim.Config{})
			hub := newRank(Config{Rank: 0, Size: 3, Window: 64 << 10, PullMin: 4 << 10, Policy: policy,
				Transports: []transport.Transport{near.Transport(0), far.Transport(0)},
				Route:      []transport.Transport{nil, near.Transport(0), far.Transport(0)}})
			leaf := func(r int, f *sim.Fabric) *rank {
				route := make([]transport.Transport, 3)
				route[0] = f.Transport(r)
				return newRank(Config{Rank: r, Size: 3, Window: 64 << 10, PullMin: 4 << 10, Policy: policy,
					Transports: []transport.Transport{f.Transport(r)}, Route: route})
			}
			leaves := []*rank{nil, leaf(1, near), leaf(2, far)}
			start := time.Now()
			const rounds = 30
			var all sync.WaitGroup
			for peer := 1; peer <= 2; peer++ {
				all.Go(func() {
					for i := range rounds {
						if err := errors.Join(leaves[peer].recv(t.Context(), nil, 0, i), leaves[peer].send(t.Context(), nil, 0, i)); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			for i := range rounds {
				for _, peer := range []int{2, 1} { // the second one is asleep in the other transport
					if err := errors.Join(hub.send(t.Context(), nil, peer, i), hub.recv(t.Context(), nil, peer, i)); err != nil {
						t.Fatal(err)
					}
				}
			}
			all.Wait()
			if d := time.Since(start); d > 10*time.Second {
				t.Errorf("took %v: wake-ups are lost", d)
			}
			for _, r := range []*rank{hub, leaves[1], leaves[2]} {
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestLeaveAndDrain(t *testing.T) {
	ranks, _ := world(t, 2, policies["yields"], sim.Config{})
	const n = 300 // more than the lane takes at once
	for i := range n {
		ranks[0].start(proto.Send, []byte(fmt.Sprint(i)), 1, i)
	}
	var received sync.WaitGroup
	defer received.Wait()
	received.Go(func() {
		for i := range n {
			if err := ranks[1].recv(context.Background(), make([]byte, 8), 0, i); err != nil {
				t.Error(err)
			}
		}
	})
	if err := ranks[0].Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if pending := ranks[0].Pending(); pending != 0 {
		t.Errorf("%d operations are pending after all were taken", pending)
	}
	if untold := ranks[0].Leave(false); len(untold) != 0 {
		t.Errorf("%v were not told goodbye", untold)
	}
	if err := ranks[1].recv(t.Context(), make([]byte, 8), 0, n); !errors.Is(err, proto.ErrPeerLeft) {
		t.Errorf("receive from a rank that left: %v", err)
	}
}
