package planetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/plane"
)

// Many members, in processes of their own, as a host has one member and not its share of the
// launcher's descriptors.
const (
	manyMembers   = 1000
	manyProcesses = 4
	manyFiles     = 4096 // descriptors that the root may have
)

// manyVar tells a process to play members: the address of the root, the first, their number.
const manyVar = "WEFT_PLANETEST_PLAY"

func manyConfig() plane.Config {
	cfg := config()
	cfg.Beat, cfg.Quiet = plane.DefaultBeat, 15*time.Second // a thousand handshakes on a busy machine
	return cfg
}

// Play plays members of a way, if this process was started for that, and then ends it.
func Play(way string) {
	what, ok := os.LookupEnv(manyVar)
	if !ok {
		return
	}
	var addr string
	var first, n int
	_, err := fmt.Sscan(what, &addr, &first, &n)
	if err == nil {
		err = play(way, addr, first, n)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "members:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// play has each member say its number, and be told it.
func play(way, addr string, first, n int) error {
	p, err := plane.Lookup(way)
	if err != nil {
		return err
	}
	errs := make(chan error, n)
	limit := make(chan struct{}, 16) // that join at once
	for i := first; i < first+n; i++ {
		go func() { errs <- playOne(p, addr, i, limit) }()
	}
	for range n {
		err = errors.Join(err, <-errs)
	}
	return err
}

func playOne(p plane.Way, addr string, i int, limit chan struct{}) error {
	name := "host" + strconv.Itoa(i)
	told := &listener{frames: make(chan []byte, 1), down: make(chan error, 1)}
	limit <- struct{}{}
	m, err := p.Join(context.Background(), manyConfig(), name, []string{addr}, told)
	<-limit
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	m.Send(binary.LittleEndian.AppendUint32(nil, uint32(i)))
	select {
	case b := <-told.frames:
		if got := binary.LittleEndian.Uint32(b); int(got) != i {
			err = fmt.Errorf("%s was told %d", name, got)
		}
	case err = <-told.down:
		err = fmt.Errorf("%s was told nothing: %w", name, err)
	case <-time.After(2 * patience):
		err = fmt.Errorf("%s was told nothing for %v", name, 2*patience)
	}
	return errors.Join(err, m.Close())
}

// listener is the handler of a member that plays.
type listener struct {
	frames chan []byte
	down   chan error
}

func (l *listener) Up(int)                {}
func (l *listener) Frame(_ int, b []byte) { l.frames <- b }
func (l *listener) Down(_ int, err error) { l.down <- err }
func (l *listener) Refused(int, error)    {}

// many: a thousand members, with no more descriptors than a process usually may have.
func many(t *testing.T, p plane.Way, way string) {
	const n = manyMembers
	limitFiles(t, manyFiles)
	at := newEar()
	r := open(t, p, manyConfig(), n, at)
	files := openFiles()
	began := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel() // where the test fails
	for i := range manyProcesses {
		first, end := n*i/manyProcesses, n*(i+1)/manyProcesses
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %d", manyVar, address(r), first, end-first))
		group.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s, members %d to %d: %v\n%s", way, first, end-1, err, out)
			}
		})
	}
	for _, h := range at.wait(t, "frame", n) {
		if got := binary.LittleEndian.Uint32(h.frame); int(got) != h.member {
			t.Fatalf("member %d said %d", h.member, got)
		}
	}
	took := time.Since(began)
	files = openFiles() - files
	for i := range n {
		r.Send(i, binary.LittleEndian.AppendUint32(nil, uint32(i)))
	}
	for _, h := range at.wait(t, "down", n) {
		if h.err != nil {
			t.Fatalf("member %d: %v", h.member, h.err)
		}
	}
	group.Wait()
	t.Logf("%d members, up and heard after %v, %d descriptors for them here", n, took.Round(time.Millisecond), files)
	if files > n+n/20 {
		t.Errorf("%d descriptors for %d members", files, n)
	}
}

// openFiles counts this process's descriptors, where the kernel lists them.
func openFiles() int {
	list, _ := os.ReadDir("/proc/self/fd")
	return len(list)
}
