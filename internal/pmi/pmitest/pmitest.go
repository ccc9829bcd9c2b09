// Package pmitest is a process manager for tests: one job, whose processes are in this one.
package pmitest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/control"
)

// Manager serves one job of some ranks, by one version of the interface.
type Manager struct {
	size, version int
	group         sync.WaitGroup

	mu        sync.Mutex
	space     map[string]string
	waiting   []net.Conn // in a barrier
	finalized int
	lines     []net.Conn
}

// New returns a manager for size ranks, which ends with the test.
func New(t testing.TB, size, version int) *Manager {
	m := &Manager{size: size, version: version, space: make(map[string]string)}
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
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		f := map[string]string{}
		for word := range strings.FieldsSeq(line) {
			name, value, _ := strings.Cut(word, "=")
			f[name] = value
		}
		if out := m.answer(conn, f); out != "" {
			if _, err := fmt.Fprintln(conn, out); err != nil {
				return
			}
		}
		if m.version == 2 && f["pmi_version"] == "2" {
			m.serve2(conn, in)
			return
		}
	}
}

// serve2 does it by version 2, in frames.
func (m *Manager) serve2(conn net.Conn, in *bufio.Reader) {
	for {
		head := make([]byte, 6)
		if _, err := io.ReadFull(in, head); err != nil {
			return
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(head)))
		if err != nil {
			return
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(in, body); err != nil {
			return
		}
		f := map[string]string{}
		for part := range strings.SplitSeq(string(body), ";") {
			name, value, _ := strings.Cut(part, "=")
			f[name] = value
		}
		if out := m.answer2(conn, f); out != "" {
			reply(conn, f["cmd"], out)
		}
	}
}

func reply(conn net.Conn, cmd, out string) {
	out = "cmd=" + cmd + "-response;" + out
	fmt.Fprintf(conn, "%6d%s", len(out), out)
}

func (m *Manager) answer2(conn net.Conn, f map[string]string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch f["cmd"] {
	case "fullinit":
		if f["pmijobid"] == "" { // as Slurm does
			return "rc=3;"
		}
		return fmt.Sprintf("pmi-version=2;pmi-subversion=0;rank=%s;size=%d;appnum=0;rc=0;", f["pmirank"], m.size)
	case "job-getid":
		return "jobid=kvs_test;rc=0;"
	case "kvs-put":
		m.space[f["key"]] = f["value"]
		return "rc=0;"
	case "kvs-get":
		if value, ok := m.space[f["key"]]; ok {
			return "flag=TRUE;value=" + value + ";rc=0;"
		}
		return "flag=FALSE;rc=0;"
	case "kvs-fence":
		m.waiting = append(m.waiting, conn)
		if len(m.waiting) == m.size {
			for _, c := range m.waiting {
				reply(c, f["cmd"], "rc=0;")
			}
			m.waiting = nil
		}
		return ""
	case "finalize":
		m.finalized++
		return "rc=0;"
	}
	return "rc=14;errmsg=unknown;"
}

func (m *Manager) answer(conn net.Conn, f map[string]string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch f["cmd"] {
	case "init":
		rc := 0
		if f["pmi_version"] != strconv.Itoa(m.version) {
			rc = -1
		}
		return fmt.Sprintf("cmd=response_to_init pmi_version=%d pmi_subversion=%d rc=%d", m.version, 2-m.version, rc)
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
