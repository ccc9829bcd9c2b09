package tm_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-hpc/weft/internal/tm"
	"github.com/weft-hpc/weft/internal/tm/tmtest"
)

// getenv looks into a list of settings.
func getenv(env []string) func(string) string {
	return func(name string) string {
		for _, s := range env {
			if n, v, _ := strings.Cut(s, "="); n == name {
				return v
			}
		}
		return ""
	}
}

func TestFromEnv(t *testing.T) {
	good := []string{"PBS_JOBID=7.head", "PBS_JOBCOOKIE=AB", "PBS_MOMPORT=15003", "PBS_TASKNUM=00000010"}
	j, err := tm.FromEnv(getenv(good), false)
	if want := (tm.Job{ID: "7.head", Cookie: "AB", Port: 15003, Task: 16}); j != want || err != nil {
		t.Errorf("%+v, %v", j, err)
	}
	if j, err := tm.FromEnv(getenv(good), true); j.Task != 10 || err != nil {
		t.Errorf("Torque: %+v, %v", j, err)
	}
	for _, bad := range []string{"PBS_JOBCOOKIE=", "PBS_MOMPORT=0", "PBS_MOMPORT=70000", "PBS_TASKNUM=x"} {
		if j, err := tm.FromEnv(getenv(append([]string{bad}, good...)), false); err == nil {
			t.Errorf("%s: %+v", bad, j)
		}
	}
}

// TestRecorded replays what pbsdsh and a MoM of a real OpenPBS said to each other: ours says the
// same, byte for byte.
func TestRecorded(t *testing.T) {
	text, err := os.ReadFile("testdata/openpbs-tm-exchange.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ = bytes.Cut(text, []byte("## pbsdsh"))
	text, _, _ = bytes.Cut(text, []byte("\n## pbs_tmrsh"))
	in, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	played := make(chan error, 1)
	go func() { played <- play(in, string(text)) }()

	j := tm.Job{ID: "2.head", Cookie: "42078C2E1A21F6227AF1D19C7CB58F0E", Port: in.Addr().(*net.TCPAddr).Port, Task: 1}
	c, err := tm.Dial(context.Background(), j)
	if err != nil {
		t.Fatal(err, <-played)
	}
	defer c.Close()
	if n := c.Nodes(); len(n) != 4 || n[3] != 3 {
		t.Errorf("nodes %v", n)
	}
	node := make(map[int]int)
	for i := range 4 {
		event, err := c.Spawn(i, []string{"/bin/sh", "-c", "echo hi; sleep 0.2; exit 7"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		node[event] = i
	}
	ended := 0
	for ended < 4 {
		r, err := c.Next()
		if err != nil || r.Err != nil {
			t.Fatal(err, r, <-played)
		}
		if i, ok := node[r.Event]; ok {
			if want := []int64{2, 3, 536870913, 536870914}[i]; r.Task != want {
				t.Errorf("task %d on node %d, want %d", r.Task, i, want)
			}
			if _, err := c.Obit(i, r.Task); err != nil {
				t.Fatal(err)
			}
			continue
		}
		ended++
		if r.Status != 7 {
			t.Errorf("status %d", r.Status)
		}
	}
	if err := <-played; err != nil {
		t.Error(err)
	}
}

// play is the MoM's side of a recording.
func play(in net.Listener, text string) error {
	var c net.Conn
	defer func() {
		if c != nil {
			c.Close()
		}
	}()
	for line := range strings.Lines(text) {
		_, line, _ := strings.Cut(strings.TrimSpace(line), " ")
		if line == "connect" {
			var err error
			if c != nil {
				c.Close()
			}
			if c, err = in.Accept(); err != nil {
				return err
			}
			continue
		}
		if !strings.HasPrefix(line, "> '") && !strings.HasPrefix(line, "< '") {
			continue
		}
		want, err := strconv.Unquote(`"` + line[3:len(line)-1] + `"`)
		if err != nil {
			return err
		}
		if line[0] == '<' {
			if _, err := io.WriteString(c, want); err != nil {
				return err
			}
			continue
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
			c.Close()
			return errors.New("got  " + strconv.Quote(string(got)) + "\nwant " + strconv.Quote(want))
		}
	}
	return nil
}

func TestMoM(t *testing.T) {
	for name, cfg := range map[string]tmtest.Config{"OpenPBS": {}, "PBS Pro 19": {Raw: true}, "Torque": {Torque: true}} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			out, err := os.Create(filepath.Join(t.TempDir(), "job.out"))
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			cfg.Nodes, cfg.Home, cfg.Output = []string{"a", "a", "b"}, home, out
			m, err := tmtest.Start(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			j, err := tm.FromEnv(getenv(m.Env()), cfg.Torque)
			if err != nil {
				t.Fatal(err)
			}
			c, err := tm.Dial(context.Background(), j)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			ask := func(event int, err error) tm.Reply {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				r, err := c.Next()
				if err != nil || r.Event != event {
					t.Fatal(r, err)
				}
				return r
			}
			for _, x := range []struct {
				node   int
				argv   []string
				status int
			}{
				{0, []string{"sh", "-c", `echo "$(pwd) $(umask) $MINE $TMPDIR."; exit 7`}, 7},
				{2, []string{"sh", "-c", "kill -9 $$"}, 256 + 9},
				{1, []string{"/no/such/program"}, 254},
				{1, []string{strings.Repeat("/", 1000) + "bin/true", strings.Repeat("x", 12345)}, 0},
			} {
				r := ask(c.Spawn(x.node, x.argv, []string{"MINE=a b"}))
				if r.Err != nil || (r.Task >= 0x20000001) != (x.node == 2) {
					t.Errorf("%v: %+v", x.argv[0][:2], r)
				}
				if r = ask(c.Obit(x.node, r.Task)); r.Err != nil || r.Status != x.status {
					t.Errorf("%v: %+v, want status %d", x.argv, r, x.status)
				}
			}
			if b, err := os.ReadFile(out.Name()); string(b) != home+" 0077 a b .\n" || err != nil {
				t.Errorf("the task said %q, %v", b, err)
			}
			if r := ask(c.Obit(0, 99)); r.Err != (tm.Error{Code: 17006}) {
				t.Errorf("an unknown task: %+v", r)
			}
			if _, err := c.Spawn(0, []string{"echo", ""}, nil); err == nil {
				t.Error("an empty argument was sent")
			}
			j.Cookie = "wrong"
			if _, err := tm.Dial(context.Background(), j); err == nil || !strings.Contains(err.Error(), "closes the connection without an answer") {
				t.Errorf("a wrong cookie: %v", err)
			}
		})
	}
}

func TestNobodyThere(t *testing.T) {
	in, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	in.Close()
	j := tm.Job{ID: "7.head", Cookie: "x", Port: in.Addr().(*net.TCPAddr).Port, Task: 1}
	if _, err := tm.Dial(context.Background(), j); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("no MoM: %v", err)
	}
}
