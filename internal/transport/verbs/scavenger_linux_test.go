package verbs

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/rdma"
)

// storm collects garbage, gives memory back to the kernel, makes garbage and starts
// processes, until it is told to stop.
func storm(t testing.TB) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	loop := func(f func()) {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					f()
				}
			}
		})
	}
	var keep [8][]byte
	loop(func() { runtime.GC() })
	loop(func() { debug.FreeOSMemory(); time.Sleep(time.Millisecond) })
	loop(func() {
		i := rand.IntN(len(keep))
		keep[i] = make([]byte, 200_000+rand.IntN(1<<20))
		keep[i][rand.IntN(len(keep[i]))] = 1
		runtime.Gosched()
	})
	loop(func() {
		if out, err := exec.Command("true").CombinedOutput(); err != nil {
			t.Errorf("true: %v: %s", err, out)
		}
		time.Sleep(5 * time.Millisecond)
	})
	return func() { close(done); wg.Wait() }
}

// scavenger exchanges payloads in ordinary slices, some of them registered and some copied, that
// live no longer than their transfer, during a storm. Every byte is checked.
// (open-mpi/ompi#4509, ofiwg/libfabric#6244, ofiwg/libfabric#6474: caches of registrations and their hooks.)
func scavenger(t *testing.T, r []*rank, rounds int) {
	meet(t, r[0], r[1])
	defer storm(t)()
	for round := range rounds {
		const each = 4
		type transfer struct{ src, dst []byte }
		var all [2][]transfer // by receiver
		for to := range 2 {
			for k := range each {
				n := []int{300_000, 1 << 20, 100_000, 256 << 10}[(k+round)%4] + rand.IntN(1000)
				x := transfer{make([]byte, n), make([]byte, n)}
				for i := range x.src {
					x.src[i] = byte(i*7 + round*13 + k*29 + to)
				}
				all[to] = append(all[to], x)
			}
		}
		for k := range each {
			var regions [2]wire.Region
			for to := range 2 {
				if err := try(t, func() (err error) { regions[to], err = r[to].Expose(1-to, uint32(k), all[to][k].dst); return err }, r...); err != nil {
					t.Fatal(err)
				}
				r[to].dest = all[to][k].dst
			}
			for to := range 2 {
				if err := try(t, func() error { return r[1-to].SendBulk(to, dataHeader(uint32(k), regions[to]), all[to][k].src, 1) }, r...); err != nil {
					t.Fatal(err)
				}
			}
			want := round*each + k + 1
			poll(t, "payloads", func() bool {
				return r[0].landed[1] == want && r[1].landed[0] == want && r[0].sent[1] == want && r[1].sent[0] == want
			}, r...)
			for to := range 2 {
				x := &all[to][k]
				for i := range x.src {
					if x.dst[i] != x.src[i] {
						t.Fatalf("round %d, payload %d to rank %d: byte %d of %d is %#x, want %#x", round, k, to, i, len(x.src), x.dst[i], x.src[i])
					}
				}
				*x = transfer{}
			}
		}
	}
	if s := r[0].Stats(); s.Registrations == 0 || s.Fallbacks != 0 {
		t.Errorf("%+v", s)
	}
}

func TestScavenger(t *testing.T) {
	_, r := ranksOf(t, 2, options{})
	scavenger(t, r, 20)
}

// staleRegistration breaks the rule on purpose: a registration of heap memory outlives its slice. It
// returns how many bytes of a payload that was written through it did not arrive in the slice
// that has the address now; -1 when no new slice got the address.
func staleRegistration(t *testing.T, r []*rank) (lost int, err error) {
	meet(t, r[0], r[1])
	const n = 4 << 20
	// Go gives out the lowest free addresses first. With all garbage of before collected old gets the lowest
	// there are, and so does the next slice of that length when old is gone.
	runtime.GC()
	old := make([]byte, n)
	for i := range old {
		old[i] = 0xee
	}
	addr := addressOf(old)
	mr, err := r[1].rails[0].pd.RegisterMemory(old, rdma.LocalWrite|rdma.RemoteWrite)
	if err != nil {
		return 0, err
	}
	defer mr.Close()
	old = nil
	runtime.GC()
	debug.FreeOSMemory() // gives the pages back, although they are registered
	var fresh []byte
	var others [][]byte
	for range 200 {
		b := make([]byte, n)
		if addressOf(b) == addr {
			fresh = b
			break
		}
		others = append(others, b)
	}
	runtime.KeepAlive(others)
	if fresh == nil {
		return -1, nil
	}
	for i := range fresh {
		fresh[i] = 0x11
	}
	x := r[0].newTransfer(r[0].conns[1], transferPut, make([]byte, n), 2)
	for i := range x.payload {
		x.payload[i] = 0x77
	}
	x.remote, x.keys[0] = addr, mr.RKey()
	x.direct = r[0].borrow(&x.lease, x.payload, 0, 1)
	r[0].conns[1].posting = x
	r[0].push(r[0].conns[1])
	poll(t, "the put", func() bool { return r[0].done[1] == 1 }, r...)
	for _, c := range fresh {
		if c != 0x77 {
			lost++
		}
	}
	runtime.KeepAlive(fresh)
	return lost, nil
}

// TestDeviceScavenger is the same over a real device.
func TestDeviceScavenger(t *testing.T) {
	w := realWorld(t, 2, options{})
	defer w.closeRanks()
	scavenger(t, w.sinks(), 6)
}

// TestDeviceStaleRegistration shows that TestDeviceScavenger can fail: with the rule broken,
// data are lost without an error.
func TestDeviceStaleRegistration(t *testing.T) {
	w := realWorld(t, 2, options{})
	defer w.closeRanks()
	r := w.sinks()
	for range 10 {
		lost, err := staleRegistration(t, r)
		if err != nil {
			t.Fatal(err)
		}
		if lost > 0 {
			t.Logf("%d bytes were written to pages that the process does not have any more", lost)
			return
		}
		r[0].done[1] = 0
		if lost < 0 {
			t.Log("no new slice got the address, again")
		}
	}
	t.Error("nothing was lost: this device or kernel does not show what breaking the rule does")
}

// closeRanks closes the ranks of a real world.
func (w *world) closeRanks() {
	for i, r := range w.ranks {
		if err := r.Close(); err != nil {
			w.t.Errorf("rank %d: %v", i, fmt.Errorf("Close: %w", err))
		}
	}
}
