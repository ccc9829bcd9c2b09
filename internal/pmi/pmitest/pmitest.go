// Package pmitest is a process manager for tests: one job, whose processes are in this one.
package pmitest

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/control"
)

// Manager serves one job of some ranks.
type Manager struct {
	size  int
	group sync.WaitGroup

	mu        sync.Mutex
	space     map[string]string
	waiting   []net.Conn // in a barrier
	finalized int
	lines     []net.Conn
}

// New returns a manager for size ranks, which ends with the test.
func New(t testing.TB, size int) *Manager {
	m := &Manager{size: size, space: make(map[string]string)}
	t.Cleanup(func() {
		m.mu.Lock()
		lines := m.lines
		m.mu.Unlock()
		for _, l := range lines {
			l.Close()
		}
		m.group.Wait()
	})
	return m
}

// Line returns a rank's end of a new line to the manager.
func (m *Manager) Line(t testing.TB) *os.File {
	t.Helper()
	ours, theirs, err := control.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	m.lines = append(m.lines, conn)
	m.mu.Unlock()
	m.group.Go(func() { m.serve(conn) })
	return theirs
}

// Finalized tells how many ranks have ended in good order.
func (m *Manager) Finalized() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.finalized
}

// Wait waits until so many ranks have ended in good order.
func (m *Manager) Wait(t testing.TB, n int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); m.Finalized() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d of %d ranks have said finalize", m.Finalized(), n)
		}
	}
}

// serve answers one rank, with the words that Hydra uses.
func (m *Manager) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewScanner(conn)
	for in.Scan() {
		f := map[string]string{}
		for word := range strings.FieldsSeq(in.Text()) {
			name, value, _ := strings.Cut(word, "=")
			f[name] = value
		}
		if out := m.answer(conn, f); out != "" {
			if _, err := fmt.Fprintln(conn, out); err != nil {
				return
			}
		}
	}
}

func (m *Manager) answer(conn net.Conn, f map[string]string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch f["cmd"] {
	case "init":
		return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
	case "get_maxes":
		return "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024"
	case "get_my_kvsname":
		return "cmd=my_kvsname kvsname=kvs_test"
	case "put":
		if _, twice := m.space[f["key"]]; twice {
			return "cmd=put_result rc=-1 msg=duplicate_key_" + f["key"]
		}
		m.space[f["key"]] = f["value"]
		return "cmd=put_result rc=0 msg=success"
	case "get":
		value, ok := m.space[f["key"]]
		if !ok {
			return "cmd=get_result rc=-1 msg=key_" + f["key"] + "_not_found value=unknown"
		}
		return "cmd=get_result rc=0 msg=success value=" + value
	case "barrier_in":
		m.waiting = append(m.waiting, conn)
		if len(m.waiting) == m.size {
			for _, c := range m.waiting {
				fmt.Fprintln(c, "cmd=barrier_out")
			}
			m.waiting = nil
		}
		return ""
	case "finalize":
		m.finalized++
		return "cmd=finalize_ack"
	}
	return "cmd=unknown rc=-1"
}
