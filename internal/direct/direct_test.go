package direct

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/pmi/pmitest"
	"github.com/weft-hpc/weft/internal/transport/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// process is one of several that were started together.
type process struct {
	System
	mu      sync.Mutex
	env     map[string]string
	notices []string
	exits   chan int
}

func newProcess(home, host string, env map[string]string) *process {
	p := &process{env: maps.Clone(env), exits: make(chan int, 1)}
	p.System = System{Home: home, Segment: shm.Create, grace: 50 * time.Millisecond,
		Getenv:   func(name string) string { return p.env[name] },
		Setenv:   func(name, value string) error { p.env[name] = value; return nil },
		Unsetenv: func(name string) error { delete(p.env, name); return nil },
		Exit:     func(code int) { p.exits <- code },
		Notice: func(line string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.notices = append(p.notices, line)
		},
		host: func() (card, error) { return card{Name: host, Host: host, CPUs: []int{0, 1}, Arena: 4 << 20}, nil },
	}
	return p
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.notices, "\n")
}

// step returns the processes of a step of Slurm, of which each has its host's name.
func step(home, id string, hosts ...string) []*process {
	var all []*process
	for rank, host := range hosts {
		all = append(all, newProcess(home, host, map[string]string{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": id,
			"SLURM_PROCID": fmt.Sprint(rank), "SLURM_STEP_NUM_TASKS": fmt.Sprint(len(hosts)), "SLURM_STEP_NUM_NODES": "2"}))
	}
	return all
}

// managed returns processes that a manager has started.
func managed(t *testing.T, hosts ...string) ([]*process, *pmitest.Manager) {
	m := pmitest.New(t, len(hosts), 1)
	var all []*process
	for rank, host := range hosts {
		p := newProcess("/nowhere", host, map[string]string{"PMI_FD": "9", "PMI_RANK": fmt.Sprint(rank), "PMI_SIZE": fmt.Sprint(len(hosts))})
		p.adopt = func(int) (*os.File, error) { return m.Line(t), nil }
		all = append(all, p)
	}
	return all, m
}

// join has all join, and closes them when the test ends.
func join(t *testing.T, all []*process) []*Rank {
	t.Helper()
	ranks := make([]*Rank, len(all))
	var group sync.WaitGroup
	for i, p := range all {
		group.Go(func() {
			r, err := Join(t.Context(), p.System)
			if err != nil {
				t.Errorf("process %d: %v", i, err)
				return
			}
			ranks[i] = r
		})
	}
	group.Wait()
	t.Cleanup(func() { finish(t, ranks) })
	if t.Failed() {
		t.FailNow()
	}
	return ranks
}

// finish closes all at once.
func finish(t *testing.T, ranks []*Rank) {
	var group sync.WaitGroup
	for _, r := range ranks {
		if r != nil {
			group.Go(func() {
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	group.Wait()
}

// work does with a job what every program does.
func work(t *testing.T, ranks []*Rank) {
	t.Helper()
	var group sync.WaitGroup
	for rank, r := range ranks {
		group.Go(func() {
			for other, node := range r.Client.Env().Nodes {
				if e := r.Client.Env(); slices.Contains(e.LocalRanks, other) != (node == e.LocalRanks[0]) {
					t.Errorf("rank %d: rank %d is on node %d, here are %v", rank, other, node, e.LocalRanks)
				}
			}
			_, err := r.Client.Join(t.Context(), []byte{byte(rank), 'c'}, "")
			for i := range ranks {
				if c, err := r.Client.Card(t.Context(), i); err != nil || !bytes.Equal(c, []byte{byte(i), 'c'}) {
					t.Errorf("rank %d has card %q of rank %d, %v", rank, c, i, err)
				}
			}
			if err == nil {
				err = r.Client.Leave(t.Context(), nil)
			}
			if err == nil {
				err = r.Finish(t.Context())
			}
			if err = errors.Join(err, r.Close()); err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	group.Wait()
}

// The first rank of a host has the segment that the others of it get, and no others.
func checkSegments(t *testing.T, ranks []*Rank, local ...[]int) {
	t.Helper()
	for _, on := range local {
		var first os.FileInfo
		for i, rank := range on {
			env := ranks[rank].Client.Env()
			if !slices.Equal(env.LocalRanks, on) || env.LocalRank != i || env.Rank != rank || env.Size != len(ranks) || env.Oversubscribed != (len(on) > 2) {
				t.Errorf("rank %d: %+v", rank, env)
			}
			if (env.Segment == nil) != (len(on) == 1) {
				t.Errorf("rank %d of %v has the segment %v", rank, on, env.Segment)
				continue
			}
			if env.Segment == nil {
				continue
			}
			st, err := env.Segment.Stat()
			if err != nil {
				t.Fatal(err)
			}
			if first != nil && !os.SameFile(first, st) {
				t.Errorf("rank %d has another segment than rank %d", rank, on[0])
			}
			first = st
		}
	}
}

func TestByManager(t *testing.T) {
	all, m := managed(t, "a", "b", "a", "c", "a")
	ranks := join(t, all)
	checkSegments(t, ranks, []int{0, 2, 4}, []int{1}, []int{3})
	for i, p := range all {
		if p.env["PMI_FD"] != "" || p.env["PMI_RANK"] != "" {
			t.Errorf("process %d hands on %v", i, p.env)
		}
	}
	work(t, ranks)
	m.Wait(t, 5)
	for i, p := range all {
		if s := p.said(); s != "" {
			t.Errorf("process %d said %s", i, s)
		}
	}
}

func TestOne(t *testing.T) {
	all, _ := managed(t, "a")
	work(t, join(t, all))
	all = step("/nowhere", "1", "a")
	work(t, join(t, all))
}

func TestByFile(t *testing.T) {
	home := t.TempDir()
	all := step(home, "0", "a", "a", "b")
	ranks := join(t, all)
	checkSegments(t, ranks, []int{0, 1}, []int{2})
	if left, err := filepath.Glob(home + "/.*"); err != nil || len(left) > 0 {
		t.Errorf("left in the home directory: %v", left)
	}
	// What a rank starts is no rank.
	child := newProcess(home, "a", all[1].env)
	if r, err := Join(t.Context(), child.System); r != nil || err != nil {
		t.Errorf("a child of a rank: %v, %v", r, err)
	}
	work(t, ranks)
}

// Two steps of one job, and a file that a dead job has left.
func TestStepsDoNotMeet(t *testing.T) {
	home := t.TempDir()
	one, two := step(home, "1", "a", "b"), step(home, "2", "a", "a", "b")
	stale, err := findStep(&one[0].System)
	if err != nil {
		t.Fatal(err)
	}
	old := fmt.Sprintf(`{"job":"old","secret":"%s","addrs":["127.0.0.1:1"]}`, strings.Repeat("AAAA", 10)+"AAA=")
	if err := os.WriteFile(stale.file, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	ranks := join(t, slices.Concat(two[1:], one[1:], one[:1], two[:1]))
	first, second := []*Rank{ranks[3], ranks[2]}, []*Rank{ranks[4], ranks[0], ranks[1]}
	checkSegments(t, first, []int{0}, []int{1})
	checkSegments(t, second, []int{0, 1}, []int{2})
	if first[0].Client.Env().Job == second[0].Client.Env().Job || first[1].Client.Env().Job != first[0].Client.Env().Job {
		t.Error("ranks are in the wrong job")
	}
	work(t, slices.Concat(first))
	work(t, second)
}

func TestBadPlaces(t *testing.T) {
	good := map[string]string{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}
	with := func(changes ...string) map[string]string {
		env := maps.Clone(good)
		for i := 0; i < len(changes); i += 2 {
			env[changes[i]] = changes[i+1]
		}
		return env
	}
	for _, c := range []struct {
		env  map[string]string
		want string // "": no place, and no error
	}{
		{nil, ""},
		{map[string]string{"SLURM_JOB_ID": "7"}, ""},
		{with("SLURM_STEP_ID", "4294967291"), ""},
		{with("SLURM_STEP_NUM_TASKS", "1", "SLURM_PTY_PORT", "99"), ""},
		{with("SLURM_PROCID", ""), `SLURM_PROCID="" is not a number, in step 0 of Slurm job 7`},
		{with("SLURM_STEP_NUM_TASKS", ""), `SLURM_STEP_NUM_TASKS=""`},
		{with("SLURM_STEP_ID", "x"), `SLURM_STEP_ID="x"`},
		{with("SLURM_PROCID", "2"), "SLURM_PROCID=2 of SLURM_STEP_NUM_TASKS=2"},
		{with("PMI_FD", "3", "PMI_SIZE", "2"), `PMI_RANK=""`},
		{with("PMI_FD", "999", "PMI_SIZE", "2", "PMI_RANK", "0"), "PMI_FD=999, but descriptor 999 is not open"},
	} {
		p := newProcess("/nowhere", "a", c.env)
		r, err := Join(t.Context(), p.System)
		if r != nil || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, %v, want %q", c.env, r, err, c.want)
		}
	}
}

func TestBadInvitations(t *testing.T) {
	home := t.TempDir()
	p := step(home, "1", "a", "b")[1]
	at, err := findStep(&p.System)
	if err != nil {
		t.Fatal(err)
	}
	good := fmt.Sprintf(`{"job":"old","secret":"%s","addrs":["127.0.0.1:1"]}`, strings.Repeat("AAAA", 10)+"AAA=")
	write := func(text string, mode os.FileMode) func() error {
		return func() error {
			return errors.Join(os.WriteFile(at.file, []byte(text), 0o600), os.Chmod(at.file, mode))
		}
	}
	for _, c := range []struct {
		make func() error
		want string
	}{
		{write(good, 0o644), "mode -rw-r--r--"},
		{write("{", 0o600), "unexpected end of JSON"},
		{write(`{"job":"x","addrs":["a:1"]}`, 0o600), "lacks"},
		{func() error { return os.Mkdir(at.file, 0o700) }, "mode drwx------"},
		{func() error { return os.Symlink("/etc/passwd", at.file) }, "too many levels of symbolic links"},
		{write(good, 0o600), "connection refused"},
		{func() error { return nil }, "no such file or directory (the ranks of a step meet by a file in the home directory"},
	} {
		if err := c.make(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		r, err := Join(ctx, p.System)
		cancel()
		if r != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want an error with %q", err, c.want)
		}
		delete(p.env, varStarted)
		if err := os.RemoveAll(at.file); err != nil {
			t.Fatal(err)
		}
	}
	p.Home = filepath.Join(home, "none")
	for rank := range 2 {
		p.env["SLURM_PROCID"] = fmt.Sprint(rank)
		delete(p.env, varStarted)
		checkNoHome(t, p)
	}
}

func checkNoHome(t *testing.T, p *process) {
	t.Helper()
	if _, err := Join(t.Context(), p.System); err == nil || !strings.Contains(err.Error(), "srun --mpi=pmi2 does without") {
		t.Errorf("without a home directory: %v", err)
	}
}

// All ranks learn when the job's time ends, and who asks for it does not hold up the end.
func TestLeft(t *testing.T) {
	all, _ := managed(t, "a", "b")
	all[0].Left = func(context.Context) (time.Duration, bool) { return time.Hour, true }
	all[1].Left = func(context.Context) (time.Duration, bool) { t.Error("rank 1 asks"); return 0, true }
	ranks := join(t, all)
	for i, r := range ranks {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			if at, ok := r.Client.Deadline(); ok {
				if left := time.Until(at); left > time.Hour || left < 59*time.Minute {
					t.Errorf("rank %d: %v left", i, left)
				}
				break
			}
			if time.Now().After(end) {
				t.Fatalf("rank %d is not told", i)
			}
		}
	}
	work(t, ranks)
	all, _ = managed(t, "a", "b")
	all[0].Left = func(ctx context.Context) (time.Duration, bool) { <-ctx.Done(); return 0, false }
	work(t, join(t, all))
}

// A rank that does not come is named, by the ranks that have.
func TestMissing(t *testing.T) {
	all := step(t.TempDir(), "1", "a", "a", "b", "c")[:2]
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	errs := make([]error, 2)
	var group sync.WaitGroup
	for i, p := range all {
		group.Go(func() {
			c := ctx
			if i == 1 {
				c = t.Context()
			}
			_, errs[i] = Join(c, p.System)
		})
	}
	group.Wait()
	for i, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "ranks 2, 3 are missing") {
			t.Errorf("rank %d: %v", i, err)
		}
	}
}

// heard collects the events of a rank.
func heard(r *Rank) <-chan control.Event {
	c := make(chan control.Event, 10)
	r.Client.Watch(func(e control.Event) {
		r.Heard(e)
		c <- e
	})
	return c
}

func expect(t *testing.T, who string, c <-chan control.Event, kind control.EventKind, text string) {
	t.Helper()
	select {
	case e := <-c:
		if e.Kind != kind || !strings.Contains(e.Error(), text) {
			t.Errorf("%s heard %v, want kind %d and %q", who, e, kind, text)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("%s heard nothing, want %q", who, text)
	}
}

// A rank that ends without a goodbye is told of, and the others end, by their guards if
// need be.
func TestLostRank(t *testing.T) {
	all, _ := managed(t, "a", "b", "b")
	ranks := join(t, all)
	zero, two := heard(ranks[0]), heard(ranks[2])
	if err := ranks[1].Close(); err != nil {
		t.Error(err)
	}
	for i, c := range map[int]<-chan control.Event{0: zero, 2: two} {
		who := fmt.Sprintf("rank %d", i)
		expect(t, who, c, control.RankDied, "rank 1 was lost")
		expect(t, who, c, control.Aborted, "rank 1 on host b was lost")
		if code := <-all[i].exits; code != 1 {
			t.Errorf("%s: exit code %d", who, code)
		}
	}
	if s := all[0].said(); !strings.Contains(s, "rank 0: the job ends: rank 1 on host b was lost") {
		t.Errorf("rank 0 said %q", s)
	}
}

func TestAbort(t *testing.T) {
	for _, from := range []int{0, 1} {
		all, _ := managed(t, "a", "b", "c")
		ranks := join(t, all)
		two := heard(ranks[2])
		if err := ranks[from].Client.Abort(3, "weft: no luck", -1); err != nil {
			t.Fatal(err)
		}
		if err := ranks[from].Close(); err != nil { // says it first
			t.Error(err)
		}
		expect(t, "rank 2", two, control.Aborted, fmt.Sprintf("rank %d aborted the job with code 3: weft: no luck", from))
		if s, want := all[0].said(), fmt.Sprintf("the job ends: rank %d on host %c: no luck", from, 'a'+from); !strings.Contains(s, want) {
			t.Errorf("rank 0 said %q, want %q", s, want)
		}
		finish(t, ranks)
	}
}

// A rank that others blame is found lost, and named first.
func TestBlame(t *testing.T) {
	all, _ := managed(t, "a", "b", "c")
	ranks := join(t, all)
	if err := ranks[2].Client.Abort(1, "rank 1 does not answer", 1); err != nil {
		t.Fatal(err)
	}
	if err := ranks[1].Close(); err != nil {
		t.Error(err)
	}
	zero := heard(ranks[0])
	expect(t, "rank 0", zero, control.RankDied, "rank 1 was lost")
}

// Rank 0 is gone without a word.
func TestLostJudge(t *testing.T) {
	all, _ := managed(t, "a", "b")
	ranks := join(t, all)
	one := heard(ranks[1])
	ranks[0].judge.root.Drop(0, errors.New("cut"))
	expect(t, "rank 1", one, control.LauncherLost, "its line closed")
	if code := <-all[1].exits; code != 1 {
		t.Errorf("exit code %d", code)
	}
	if s := all[1].said(); !strings.Contains(s, "rank 1: rank 0, which keeps the job together, was lost") {
		t.Errorf("rank 1 said %q", s)
	}
}

// Ranks that end long before the others are told of, and a stranger stops nothing.
func TestEarlyGoodbye(t *testing.T) {
	all, m := managed(t, "a", "b")
	ranks := join(t, all)
	one := heard(ranks[1])
	left := make(chan error)
	go func() { left <- ranks[0].Client.Leave(t.Context(), []int{1}) }()
	expect(t, "rank 1", one, control.RankLeft, "rank 0 has left")
	if err := errors.Join(ranks[1].Client.Leave(t.Context(), nil), <-left); err != nil {
		t.Error(err)
	}
	for _, r := range ranks {
		if err := r.Finish(t.Context()); err != nil {
			t.Error(err)
		}
	}
	m.Wait(t, 2)
}

// Nothing that comes as an invitation makes the reader panic, and what it takes is whole.
func FuzzInvitation(f *testing.F) {
	f.Add([]byte(`{"job":"x","secret":"AAAA","addrs":["a:1"]}`))
	f.Add([]byte(`{"job":`))
	f.Fuzz(func(t *testing.T, b []byte) {
		inv, err := parseInvitation(b)
		if (err == nil) != (inv != nil) || err == nil && (inv.Job == "" || len(inv.Secret) != control.SecretSize || len(inv.Addrs) == 0) {
			t.Fatalf("%q: %+v, %v", b, inv, err)
		}
		if err != nil && !errors.Is(err, errInvitation) {
			t.Fatalf("%q: %v", b, err)
		}
	})
}
