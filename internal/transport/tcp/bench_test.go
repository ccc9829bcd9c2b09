package tcp_test

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/transport/tcp"
	"github.com/weft-hpc/weft/internal/wire"
)

// The benchmarks run between two processes, one on each of the first two
// processors: this one is rank 0, a second copy of the test binary is rank 1.
// Each size is measured for the transport and for a bare pair of sockets, the floor.

const peerEnv = "WEFT_TCP_BENCH_PEER"

func TestMain(m *testing.M) {
	if os.Getenv(peerEnv) != "" {
		runtime.LockOSThread()
		if err := benchPeer(); err != nil {
			fmt.Fprintln(os.Stderr, "bench peer:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// pin moves the calling thread to one processor, if there are two.
func pin(cpu int) (undo func()) {
	var before, set unix.CPUSet
	if unix.SchedGetaffinity(0, &before) != nil || before.Count() < 2 {
		return func() {}
	}
	set.Set(cpu)
	_ = unix.SchedSetaffinity(0, &set)
	return func() { _ = unix.SchedSetaffinity(0, &before) }
}

type benchSink struct {
	frames, landed, sent int
	buf                  []byte
	down                 error
}

func (s *benchSink) Frame(int, *wire.Header, []byte)    { s.frames++ }
func (s *benchSink) Dest(int, *wire.Header, int) []byte { return s.buf }
func (s *benchSink) Landed(int, *wire.Header)           { s.landed++ }
func (s *benchSink) Sent(int, uint32)                   { s.sent++ }
func (s *benchSink) PeerDown(_ int, err error)          { s.down = err }

const streamLast = 1 // Tag of the message of a stream that wants an answer

// benchPeer echoes: what comes with streamLast, or as a ping, is answered in kind.
func benchPeer() error {
	tr, err := tcp.Listen(tcp.Config{Rank: 1, Size: 2, Secret: secret, Loopback: true})
	if err != nil {
		return err
	}
	defer tr.Close()
	fmt.Println(hex.EncodeToString(tr.Card()))
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return err
	}
	card, err := hex.DecodeString(strings.TrimSpace(line))
	if err != nil {
		return err
	}
	tr.FindCards(func(rank int) error { tr.Found(rank, card, nil); return nil })
	e := &echo{tr: tr, buf: make([]byte, 32<<20)}
	for e.down == nil {
		tr.Poll(e)
		if len(e.answer) > 0 {
			h := e.h
			if h.Kind == wire.Data {
				err = tr.SendBulk(0, &h, e.answer, 0)
			} else {
				err = tr.Send(0, &h, e.answer)
			}
			if err == nil {
				e.answer = nil
			}
		}
	}
	return nil
}

type echo struct {
	tr     *tcp.Transport
	buf    []byte
	n      int
	h      wire.Header
	answer []byte
	down   error
}

func (e *echo) Frame(_ int, h *wire.Header, p []byte) {
	if h.Tag == 0 || h.Tag == streamLast {
		e.h, e.answer = *h, e.buf[:len(p)]
		if h.Kind != wire.Data {
			copy(e.answer, p)
		}
	}
}
func (e *echo) Dest(_ int, _ *wire.Header, n int) []byte { e.n = n; return e.buf }
func (e *echo) Landed(peer int, h *wire.Header)          { e.Frame(peer, h, e.buf[:e.n]) }
func (e *echo) Sent(int, uint32)                         {}
func (e *echo) PeerDown(_ int, err error)                { e.down = err }

// pair starts rank 1 and returns rank 0, connected.
func pair(b *testing.B) (*tcp.Transport, *benchSink) {
	b.Helper()
	runtime.LockOSThread()
	tr, err := tcp.Listen(tcp.Config{Rank: 0, Size: 2, Secret: secret, Loopback: true})
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), peerEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	undo := pin(1) // inherited by the child
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	undo()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	card, err := hex.DecodeString(strings.TrimSpace(line))
	if err != nil {
		b.Fatal(err)
	}
	fmt.Fprintln(in, hex.EncodeToString(tr.Card()))
	tr.FindCards(func(rank int) error { tr.Found(rank, card, nil); return nil })
	undo = pin(0)
	b.Cleanup(func() {
		undo()
		runtime.UnlockOSThread()
		_ = tr.Close()
		if err := cmd.Wait(); err != nil {
			b.Errorf("rank 1: %v", err)
		}
	})
	return tr, &benchSink{buf: make([]byte, 32<<20)}
}

// oneWay times b.N exchanges, in short batches, and reports the time of one
// direction: the median batch, the best tenth, and the best, which is what a
// busy machine says of an idle one.
func oneWay(b *testing.B, size int, exchange func()) {
	batch := max(1, 20*1024/max(size, 1024))
	for range 20 {
		exchange()
	}
	var took []float64
	b.ResetTimer()
	for left := b.N; left > 0; left -= batch {
		start := time.Now()
		for range batch {
			exchange()
		}
		took = append(took, float64(time.Since(start).Nanoseconds())/float64(batch)/2)
	}
	report(b, took, size)
}

func report(b *testing.B, ns []float64, size int) {
	slices.Sort(ns)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ns[len(ns)/2]/1e3, "us-p50")
	b.ReportMetric(ns[len(ns)/10]/1e3, "us-p10")
	b.ReportMetric(ns[0]/1e3, "us-best")
	b.ReportMetric(float64(size)/ns[0], "GB/s-best")
}

func size(n int) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%dMiB", n>>20)
	}
	if n >= 1<<10 {
		return fmt.Sprintf("%dKiB", n>>10)
	}
	return fmt.Sprintf("%dB", n)
}

func BenchmarkEager(b *testing.B) {
	for _, n := range []int{8, 1 << 10, 8 << 10, 64 << 10} {
		b.Run(size(n), func(b *testing.B) {
			tr, s := pair(b)
			h, p := wire.Header{Kind: wire.Eager}, make([]byte, n)
			ping := func() {
				if err := tr.Send(1, &h, p); err != nil {
					b.Fatal(err)
				}
				for want := s.frames + 1; s.frames < want && s.down == nil; {
					tr.Poll(s)
				}
			}
			oneWay(b, n, ping)
		})
	}
}

func BenchmarkBulk(b *testing.B) {
	for _, n := range []int{8 << 10, 64 << 10, 1 << 20, 16 << 20} {
		b.Run(size(n), func(b *testing.B) {
			tr, s := pair(b)
			h, p := wire.Header{Kind: wire.Data, Flags: wire.HasID | wire.HasBytes, Bytes: uint64(n)}, make([]byte, n)
			ping := func() {
				if err := tr.SendBulk(1, &h, p, 0); err != nil {
					b.Fatal(err)
				}
				for want := s.landed + 1; s.landed < want && s.down == nil; {
					tr.Poll(s)
				}
			}
			oneWay(b, n, ping)
		})
	}
}

// BenchmarkStream sends windows of 64 messages and waits for one answer to each.
func BenchmarkStream(b *testing.B) {
	const window = 64
	for _, n := range []int{8, 1 << 10, 64 << 10, 1 << 20} {
		b.Run(size(n), func(b *testing.B) {
			tr, s := pair(b)
			p := make([]byte, n)
			var took []float64
			b.ResetTimer()
			for range b.N {
				start := time.Now()
				for i := range window {
					h := wire.Header{Kind: wire.Data, Flags: wire.HasID | wire.HasBytes, Bytes: uint64(n), Tag: 2}
					if n <= tr.MaxEager() {
						h = wire.Header{Kind: wire.Eager, Tag: 2}
					}
					if i == window-1 {
						h.Tag = streamLast
					}
					send := func() error {
						if n <= tr.MaxEager() {
							return tr.Send(1, &h, p)
						}
						return tr.SendBulk(1, &h, p, 0)
					}
					for send() != nil && s.down == nil {
						tr.Poll(s)
					}
				}
				for want := s.frames + s.landed + 1; s.frames+s.landed < want && s.down == nil; {
					tr.Poll(s)
				}
				took = append(took, float64(time.Since(start).Nanoseconds())/window)
			}
			report(b, took, n)
		})
	}
}

// BenchmarkFloor is the same exchange over two bare sockets, in a thread each.
func BenchmarkFloor(b *testing.B) {
	for _, n := range []int{8, 1 << 10, 64 << 10, 1 << 20, 16 << 20} {
		b.Run(size(n), func(b *testing.B) {
			left, right := sockets(b)
			done := make(chan struct{})
			go func() {
				defer close(done)
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				defer pin(1)()
				p := make([]byte, n)
				for readFull(right, p) && writeFull(right, p) {
				}
			}()
			runtime.LockOSThread()
			undo := pin(0)
			p := make([]byte, n)
			oneWay(b, n, func() {
				if !writeFull(left, p) || !readFull(left, p) {
					b.Fatal("the other end is gone")
				}
			})
			undo()
			runtime.UnlockOSThread()
			_ = syscall.Close(left)
			<-done
			_ = syscall.Close(right)
		})
	}
}

func sockets(b *testing.B) (left, right int) {
	b.Helper()
	l, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer syscall.Close(l)
	_ = syscall.Bind(l, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	_ = syscall.Listen(l, 1)
	sa, _ := syscall.Getsockname(l)
	left, _ = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err := syscall.Connect(left, sa); err != nil {
		b.Fatal(err)
	}
	if right, _, err = syscall.Accept(l); err != nil {
		b.Fatal(err)
	}
	for _, fd := range []int{left, right} {
		_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
		_ = syscall.SetNonblock(fd, true)
	}
	return left, right
}

func readFull(fd int, p []byte) bool {
	for len(p) > 0 {
		n, err := syscall.Read(fd, p)
		if n == 0 && err == nil || err != nil && err != syscall.EAGAIN {
			return false
		}
		p = p[max(n, 0):]
	}
	return true
}

func writeFull(fd int, p []byte) bool {
	for len(p) > 0 {
		n, err := syscall.Write(fd, p)
		if err != nil && err != syscall.EAGAIN {
			return false
		}
		p = p[max(n, 0):]
	}
	return true
}
