package job

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weft-hpc/weft/internal/batch"
	"github.com/weft-hpc/weft/internal/control"
)

func TestDeal(t *testing.T) {
	hosts := func(slots ...int) []batch.Host {
		out := make([]batch.Host, len(slots))
		for i, s := range slots {
			out[i].Slots = s
		}
		return out
	}
	for _, c := range []struct {
		n      int
		slots  []int
		byNode bool
		want   string
	}{
		{5, []int{2, 2, 2}, false, "[[0 1] [2 3] [4]]"},
		{5, []int{2, 2, 2}, true, "[[0 3] [1 4] [2]]"},
		{4, []int{1, 3}, true, "[[0] [1 2 3]]"},
		{2, []int{4, 4}, false, "[[0 1] []]"},
		{0, []int{1}, false, "[[]]"},
	} {
		if got := fmt.Sprint(deal(c.n, hosts(c.slots...), c.byNode)); got != c.want {
			t.Errorf("%d ranks over %v, by node %v: %s, want %s", c.n, c.slots, c.byNode, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		h := hosts(rapid.SliceOfN(rapid.IntRange(1, 9), 1, 20).Draw(t, "slots")...)
		total := 0
		for _, x := range h {
			total += x.Slots
		}
		n := rapid.IntRange(0, total).Draw(t, "n")
		var all []int
		for i, ranks := range deal(n, h, rapid.Bool().Draw(t, "by node")) {
			if len(ranks) > h[i].Slots || !slices.IsSorted(ranks) {
				t.Fatalf("host %d of %d slots has %v", i, h[i].Slots, ranks)
			}
			all = append(all, ranks...)
		}
		slices.Sort(all)
		for i, r := range all {
			if r != i || len(all) != n {
				t.Fatalf("ranks %v of %d", all, n)
			}
		}
	})
}

func TestFindHere(t *testing.T) {
	for _, c := range []struct {
		hostname string
		names    []string
		want     int
	}{
		{"n2", []string{"n1", "n2", "n3"}, 1},
		{"n2", []string{"n1.x", "n2.x"}, 1},
		{"n2.x.y", []string{"n1", "n2"}, 1},
		{"n", []string{"n.a", "n.b"}, -1}, // either
		{"n2", []string{"n22", "n21"}, -1},
		{"n9", []string{"127.0.0.1"}, 0}, // an address of ours
		{"mpi-worker.1.foo.net", []string{"mpi-worker.2.foo.net", "mpi-worker.1.foo.net"}, 1},
	} {
		if got := findHere(c.hostname, c.names); got != c.want {
			t.Errorf("%s among %v: %d, want %d", c.hostname, c.names, got, c.want)
		}
	}
}

// TestStarters shows the commands that real tools are given.
func TestStarters(t *testing.T) {
	sites := []Site{{Name: "n1.ib", Index: 0}, {Name: "n2", Index: 4}}
	agent := []string{"/opt/my weft/weftrun", AgentFlag, "job", "KEY", "10.0.0.1:99"}
	const quoted = "'/opt/my weft/weftrun' --as-agent job KEY 10.0.0.1:99"
	for name, want := range map[string][]string{
		"ssh": {
			"ssh|-x|-T|-o|BatchMode=yes|-o|ConnectTimeout=10|n1.ib|" + quoted + " n1.ib",
			"ssh|-x|-T|-o|BatchMode=yes|-o|ConnectTimeout=10|n2|" + quoted + " n2",
		},
		"srun": {"srun|--nodes=2|--ntasks=2|--ntasks-per-node=1|--nodelist=n1.ib,n2|--mpi=none|--cpu-bind=none|--overlap|--kill-on-bad-exit=0|--input=all|" +
			"/opt/my weft/weftrun|--as-agent|job|KEY|10.0.0.1:99|-"},
		"qrsh":      {"qrsh|-inherit|-nostdin|-V|n1.ib|" + quoted + " n1.ib", "qrsh|-inherit|-nostdin|-V|n2|" + quoted + " n2"},
		"pbsdsh":    {"pbsdsh|-n|0|--|/opt/my weft/weftrun|--as-agent|job|KEY|10.0.0.1:99|n1.ib", "pbsdsh|-n|4|--|/opt/my weft/weftrun|--as-agent|job|KEY|10.0.0.1:99|n2"},
		"pbs_tmrsh": {"pbs_tmrsh|n1.ib|/opt/my weft/weftrun|--as-agent|job|KEY|10.0.0.1:99|n1.ib", "pbs_tmrsh|n2|/opt/my weft/weftrun|--as-agent|job|KEY|10.0.0.1:99|n2"},
		"blaunch":   {"blaunch|n1.ib|" + quoted + " n1.ib", "blaunch|n2|" + quoted + " n2"},
	} {
		s, err := chooseStarter(name, "", func(string) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range s.commands(sites, agent) {
			got = append(got, strings.Join(c.Argv, "|"))
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestChooseStarter(t *testing.T) {
	for _, c := range []struct{ asked, system, installed, want string }{
		{"", "Slurm", "srun ssh", "srun: the way of Slurm"},
		{"", "Slurm", "ssh", "ssh: srun is not in PATH"},
		{"", "PBS", "tm pbs_tmrsh pbsdsh", "tm: the way of PBS"},
		{"", "PBS", "pbs_tmrsh pbsdsh", "pbsdsh: PBS does not say how to reach its MoM (PBS_MOMPORT)"},
		{"", "PBS", "pbs_tmrsh", "pbs_tmrsh: PBS does not say how to reach its MoM (PBS_MOMPORT); pbsdsh is not in PATH"},
		{"", "Torque", "tm", "tm: the way of Torque"},
		{"tm", "PBS", "pbsdsh", "error: --launcher tm: PBS does not say how to reach its MoM"},
		{"", "Grid Engine", "qrsh", "qrsh: the way of Grid Engine"},
		{"", "LSF", "blaunch", "blaunch: the way of LSF"},
		{"", "", "ssh", "ssh: no batch system is there"},
		{"ssh", "PBS", "ssh pbsdsh", "ssh: as asked"},
		{"fork", "PBS", "", "fork: as asked"},
		{"srun", "", "ssh", "error: --launcher srun: srun is not in PATH"},
		{"rsh", "", "", "error: --launcher rsh: not one of ssh"},
		{"", "PBS", "", "error: nothing starts processes on other hosts: PBS does not say how to reach its MoM (PBS_MOMPORT); pbsdsh is not in PATH; pbs_tmrsh is not in PATH; ssh is not in PATH"},
	} {
		s, err := chooseStarter(c.asked, c.system, func(p string) bool { return slices.Contains(strings.Fields(c.installed), p) })
		got := ""
		if err != nil {
			got = "error: " + err.Error()
		} else {
			got = s.name + ": " + s.why
		}
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%q in %s with %s: %s, want %s", c.asked, c.system, c.installed, got, c.want)
		}
	}
}

func TestPortableEnvironment(t *testing.T) {
	here := []string{"A=1", "HOSTNAME=n1", "TMPDIR=/tmp/1", "PBS_JOBID=5", "PBS_NODENUM=0", "SLURM_JOB_ID=4", "SLURM_STEP_ID=0", "BASH_FUNC_x%%=() {", "OMP_NUM_THREADS=2", "DISPLAY=:0"}
	if d := cmp.Diff([]string{"A=1", "PBS_JOBID=5", "SLURM_JOB_ID=4", "OMP_NUM_THREADS=2"}, portableEnv(here)); d != "" {
		t.Error(d)
	}
	there := []string{"A=2", "HOSTNAME=n2", "TMPDIR=/tmp/2", "SLURMD_NODENAME=n2", "SLURM_STEP_ID=1", "SHLVL=3"}
	if d := cmp.Diff([]string{"HOSTNAME=n2", "TMPDIR=/tmp/2", "SLURMD_NODENAME=n2"}, ownEnv(there)); d != "" {
		t.Error(d)
	}
}

// TestTree: every host is started once, by one that was started before.
func TestTree(t *testing.T) {
	for _, n := range []int{1, 31, 32, 33, 63, 64, 65, 66, 72, 129, 130, 1056, 1057, 5000} {
		f := &far{plan: &Plan{starter: starters[0]}, sites: make([]*site, n)}
		started := make([]bool, n)
		for i := range min(fanOut, n) {
			started[i] = true
		}
		for i := range n {
			if !started[i] {
				t.Fatalf("%d hosts: nobody has started %d when it is its turn", n, i)
			}
			kids := f.children(i)
			if len(kids) > fanOut {
				t.Errorf("%d hosts: %d starts %d", n, i, len(kids))
			}
			for _, k := range kids {
				if started[k] {
					t.Errorf("%d hosts: %d is started twice", n, k)
				}
				started[k] = true
			}
		}
	}
}

// relayed joins an outlet to an inlet, as the plane does.
func relayed(to *sink) (*outlet, *inlet) {
	var in *inlet
	out := newOutlet(0, func(m *message) {
		switch {
		case m.Verb == msgPause:
			in.put(nil)
		case !in.put(m.Data):
			panic("more than there was credit for")
		}
	})
	in = newInlet(to, out.grant)
	return out, in
}

// TestRelay: lines of streams on different hosts stay whole, and nothing is lost.
func TestRelay(t *testing.T) {
	var w bytes.Buffer
	to := makeSink(new(sync.Mutex), &w, false, func(err error) { t.Error(err) })
	var agents sync.WaitGroup
	var ends []*inlet
	const n = 2000
	for host := range 3 {
		out, in := relayed(to)
		ends = append(ends, in)
		agents.Go(func() {
			for i := range n {
				line := fmt.Appendf(nil, "%d:%d:%s\n", host, i, strings.Repeat("x", i%1000))
				out.Lock()
				if i%3 == 0 { // in two pieces, the sink kept in between
					_, _ = out.Write(line[:3])
					_, _ = out.Write(line[3:])
				} else {
					_, _ = out.Write(line)
				}
				out.Unlock()
			}
		})
	}
	agents.Wait()
	for _, in := range ends {
		in.close()
		in.group.Wait()
	}
	next := make(map[string]int)
	for line := range strings.Lines(w.String()) {
		var host string
		host, rest, _ := strings.Cut(line, ":")
		i := next[host]
		if rest != fmt.Sprintf("%d:%s\n", i, strings.Repeat("x", i%1000)) {
			t.Fatalf("host %s: line %d is %.80q", host, i, line)
		}
		next[host]++
	}
	if d := cmp.Diff(map[string]int{"0": n, "1": n, "2": n}, next); d != "" {
		t.Error(d)
	}
}

// TestRelayIsBounded: an agent whose launcher does not write waits.
func TestRelayIsBounded(t *testing.T) {
	lock := new(sync.Mutex)
	lock.Lock() // a stuck reader
	out, in := relayed(makeSink(lock, new(bytes.Buffer), false, func(err error) { t.Error(err) }))
	done := make(chan int)
	go func() {
		n, _ := out.Write(make([]byte, 4*window))
		done <- n
	}()
	select {
	case n := <-done:
		t.Errorf("%d bytes were taken", n)
	case <-time.After(100 * time.Millisecond):
	}
	out.hangUp()
	if n := <-done; n > window {
		t.Errorf("%d bytes were taken", n)
	}
	lock.Unlock()
	in.close()
	in.group.Wait()
}

// TestPausedLine: a line that pauses gives the sink away, at the launcher too.
func TestPausedLine(t *testing.T) {
	w := new(bytes.Buffer)
	to := makeSink(new(sync.Mutex), w, false, func(err error) { t.Error(err) })
	out, in := relayed(to)
	out.Lock()
	_, _ = out.Write([]byte("begun "))
	out.Unlock()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if to.lock.(*sync.Mutex).TryLock() {
			if w.Len() > 0 {
				to.lock.Unlock()
				break
			}
			to.lock.Unlock()
		}
		if time.Now().After(end) {
			t.Fatal("the sink is not given away")
		}
	}
	in.close()
	in.group.Wait()
}

func TestPrivateFile(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	key := control.NewSecret()
	name, err := writeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	got, err := readKey(name, nil)
	if err != nil || !bytes.Equal(got, key) {
		t.Errorf("%x, %v", got, err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(name, link); err != nil {
		t.Fatal(err)
	}
	if _, err := readKey(link, nil); err == nil {
		t.Error("a link was followed")
	}
	if err := os.Chmod(name, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := readKey(name, nil); err == nil || !strings.Contains(err.Error(), "not a file of this user alone") {
		t.Errorf("a file that others may read: %v", err)
	}
	if _, err := readKey(dir, nil); err == nil {
		t.Error("a directory was read")
	}
	if _, err := readKey(filepath.Join(dir, "none"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestHostLost goes through the loss of a host, as the supervisor sees it.
func TestHostLost(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(*supervisor)
		code   int
		want   string
	}{
		{"out of the blue", func(*supervisor) {}, ExitHostLost, "weftrun: host b was lost, with ranks 1-2: silence; 1 other rank is being stopped\n"},
		{"a rank blamed one of its", func(s *supervisor) {
			s.hear(control.Report{Kind: control.Abort, Rank: 0, Code: 7, Text: "lost rank 2", Lost: 2})
		},
			ExitHostLost, "weftrun: host b was lost, with ranks 1-2: silence; 1 other rank is being stopped\n"},
		{"a rank failed before", func(s *supervisor) {
			s.hear(control.Report{Kind: control.Abort, Rank: 0, Code: 7, Text: "my own fault", Lost: -1})
		},
			7, "weftrun: rank 0 on host a aborted the job with code 7: my own fault; 2 other ranks are being stopped\n"},
		{"one of its had failed", func(s *supervisor) {
			s.hearAgent(0, &message{Verb: msgExited, Rank: 1, Pid: 5, Status: 9})
		}, 137, "weftrun: rank 1 on host b (pid 5) ended with signal 9 (killed), which is often the kernel when memory runs out; 2 other ranks are being stopped\n"},
	} {
		var b bytes.Buffer
		plan := &Plan{Spec: &Spec{Grace: time.Hour}, Host: "a", Size: 3, Local: []int{0}, Others: []Site{{Name: "b", Ranks: []int{1, 2}}}}
		s := &supervisor{plan: plan, notes: newMailbox(), rec: newRecord(3), next: stopped(), blame: stopped(), part: stopped(),
			speech: newSpeech(new(sync.Mutex), &b), left: 3}
		s.host = &host{plan: plan, pids: make([]int, 1), hub: control.NewHub(control.Job{Size: 3}, func(control.Report) {})}
		s.far = &far{plan: plan, siteOf: []int32{-1, 0, 0}, sites: []*site{{Site: plan.Others[0], state: ready, parent: -1}}, root: deafRoot{}, began: true}
		s.cards = control.NewExchange(3, 1, s.far.branches(), true, (*rootLinks)(s))
		c.before(s)
		s.hearFar(&farNote{site: 0, down: true, err: errors.New("silence")})
		s.hearFar(&farNote{site: 0, message: &message{Verb: msgDone}}) // too late to count
		s.speech.close()
		if got := b.String(); got != c.want || s.rec.first.code != c.code {
			t.Errorf("%s: code %d, said %q, want %d and %q", c.name, s.rec.first.code, got, c.code, c.want)
		}
		if s.left != 1 {
			t.Errorf("%s: %d ranks are left", c.name, s.left)
		}
		if err := s.host.hub.Close(); err != nil {
			t.Error(err)
		}
	}
}

// deafRoot is a plane that leads nowhere.
type deafRoot struct{}

func (deafRoot) Port() int        { return 0 }
func (deafRoot) Send(int, []byte) {}
func (deafRoot) Hold()            {}
func (deafRoot) Drop(int, error)  {}
func (deafRoot) Close() error     { return nil }

func FuzzMessage(f *testing.F) {
	f.Add(encode(&message{Verb: msgAssign, Assignment: &assignment{Job: "j", Ranks: [][2]int{{0, 2}}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decode(b); err == nil && (m.Verb == 0 || m.Verb >= numVerbs) {
			t.Fatalf("verb %d", m.Verb)
		}
	})
}
