package contest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The test binary is its own contestant: with CONTEST_RANKS set it is a launcher
// that starts that many ranks, which is itself with CONTEST_RANK set.
func TestMain(m *testing.M) {
	if rank := os.Getenv("CONTEST_RANK"); rank != "" {
		serve(os.Args[len(os.Args)-1], rank)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// serve is a rank: its tests are named after what it does.
func serve(dir, rank string) {
	if os.Getenv("CONTEST_SHY") == rank {
		fmt.Fprintln(os.Stderr, "no network")
		os.Exit(3)
	}
	in, err1 := os.Open(filepath.Join(dir, rank+".in"))
	out, err2 := os.OpenFile(filepath.Join(dir, rank+".out"), os.O_WRONLY, 0)
	if err := errors.Join(err1, err2); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	fmt.Fprintf(out, "hello %d %s\n", os.Getpid(), rank)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		f := strings.Fields(lines.Text())
		n, _ := strconv.Atoi(f[1])
		iters, _ := strconv.Atoi(f[2])
		if strings.HasPrefix(f[0], "rank1") && rank != "1" {
			fmt.Fprintln(out, "ok 1")
			os.WriteFile(filepath.Join(dir, "answered"), nil, 0o600)
			continue
		}
		switch f[0] {
		case "bytes":
			fmt.Fprintln(out, "ok", n)
		case "rank":
			fmt.Fprintln(out, "ok", rank)
		case "sleep":
			time.Sleep(time.Duration(iters) * time.Millisecond)
			fmt.Fprintln(out, "ok 1")
		case "rank1refuses":
			fmt.Fprintln(out, "err not me")
		case "rank1babbles":
			fmt.Fprintln(out, "so what")
		case "rank1dies":
			for range 1000 { // the launcher kills the other, which is asked first
				if _, err := os.Stat(filepath.Join(dir, "answered")); err == nil {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			fmt.Fprintln(os.Stderr, "oh no")
			os.Exit(7)
		case "rank1hangs":
			select {}
		case "lateexit":
			defer os.Exit(9)
			fmt.Fprintln(out, "ok 1")
		}
	}
}

func spec(t *testing.T, ranks int, env ...string) Spec {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Like mpirun: the job ends when all ranks have, or at the first failure.
	script := "pids=; for r in $(seq 0 $2); do CONTEST_RANK=$r \"$0\" \"$1\" & pids=\"$pids $!\"; done; " +
		"code=0; for p in $pids; do wait $p || code=$?; done; exit $code"
	return Spec{Name: "tester", Ranks: ranks, Argv: []string{"sh", "-c", script, self, "{dir}", fmt.Sprint(ranks - 1)},
		Env: append(env, "GORACE=atexit_sleep_ms=0")} // or each rank takes a second to end under the race detector
}

func start(t *testing.T, s Spec) *Session {
	t.Helper()
	session, err := Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return session
}

const long = 20 * time.Second

func TestSession(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 5} {
		s := start(t, spec(t, ranks))
		dir := s.dir
		if len(s.CPUs()) != ranks || s.CPUs()[ranks-1] != fmt.Sprint(ranks-1) {
			t.Errorf("%d ranks may use %v", ranks, s.CPUs())
		}
		for _, n := range []int64{0, 1, 1 << 40} {
			got, err := s.Do(Block{Test: "bytes", Bytes: n}, long)
			if err != nil || len(got) != ranks || slices.Max(got) != float64(n) || slices.Min(got) != float64(n) {
				t.Errorf("%d ranks: %v, %v; want %d from each", ranks, got, err, n)
			}
		}
		if got, err := s.Do(Block{Test: "rank"}, long); err != nil || got[ranks-1] != float64(ranks-1) {
			t.Errorf("%d ranks: values %v, %v are not in order", ranks, got, err)
		}
		if idle, err := s.Idle(); err != nil || idle < 0 || idle > float64(ranks) {
			t.Errorf("%d ranks: idle %v, %v", ranks, idle, err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%d ranks: close: %v", ranks, err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%d ranks: %s is left: %v", ranks, dir, err)
		}
	}
}

func TestRefusalKeepsTheSession(t *testing.T) {
	s := start(t, spec(t, 2))
	if _, err := s.Do(Block{Test: "rank1refuses"}, long); err == nil || !strings.Contains(err.Error(), "not me") {
		t.Errorf("error %v, want the rank's words", err)
	}
	if got, err := s.Do(Block{Test: "bytes", Bytes: 5}, long); err != nil || got[1] != 5 {
		t.Errorf("after a refusal: %v, %v", got, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestBadEnd(t *testing.T) {
	s := start(t, spec(t, 2))
	if _, err := s.Do(Block{Test: "lateexit"}, long); err != nil {
		t.Fatal(err)
	}
	err := s.Close()
	if err == nil || !strings.Contains(err.Error(), "exit status 9") {
		t.Errorf("a job that ends with status 9: %v", err)
	}
	if again := s.Close(); again == nil || again.Error() != err.Error() {
		t.Errorf("closed again: %v", again)
	}
}

func TestFailuresEndTheSession(t *testing.T) {
	for _, tc := range []struct {
		test    string
		timeout time.Duration
		want    []string
	}{
		{"rank1babbles", long, []string{"tester", "rank 1", "so what"}},
		{"rank1dies", long, []string{"tester", "rank 1", "rank1dies", "exit status 7", "oh no"}},
		{"rank1hangs", 50 * time.Millisecond, []string{"tester", "rank 1", "rank1hangs", "no answer in 50ms"}},
	} {
		t.Run(tc.test, func(t *testing.T) {
			sp := spec(t, 2)
			if tc.test == "rank1dies" { // the other rank would wait for orders
				sp.Argv[2] = strings.Replace(sp.Argv[2], "wait $p", "wait -n", 1)
				sp.Argv[0] = "bash"
				sp.Argv[2] = strings.Replace(sp.Argv[2], "exit $code", "kill $pids 2>/dev/null; exit $code", 1)
				sp.Argv[2] = strings.Replace(sp.Argv[2], "|| code=$?", "|| { code=$?; break; }", 1)
			}
			s := start(t, sp)
			_, err := s.Do(Block{Test: tc.test}, tc.timeout)
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want one with %q", err, want)
				}
			}
			if s.Err() == nil {
				t.Error("the session lives on")
			}
			if _, again := s.Do(Block{Test: "bytes"}, long); !errors.Is(again, s.Err()) {
				t.Errorf("a dead session answers %v", again)
			}
			pid := s.ranks[1].pid
			if err := s.Close(); err == nil {
				t.Error("close forgot the failure")
			}
			if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.Contains(string(b), "contest") {
				t.Errorf("rank 1 (pid %d) is left: %q", pid, b)
			}
		})
	}
}

func TestStartFails(t *testing.T) {
	if _, err := Start(t.Context(), Spec{Name: "ghost", Ranks: 1, Argv: []string{"/no/such/launcher"}}); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "ghost") {
		t.Errorf("a missing launcher: %v", err)
	}
	sp := spec(t, 1, "CONTEST_SHY=0")
	_, err := Start(t.Context(), sp)
	for _, want := range []string{"tester", "rank 0 did not come up", "exit status 3", "no network"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a rank that does not say hello: %v, want %q", err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, spec(t, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context: %v", err)
	}
}

func constant(name string, v float64) Entry {
	return Entry{Name: name, Run: func() (float64, error) { return v, nil }}
}

func TestRounds(t *testing.T) {
	var order []string
	entry := func(name string) Entry {
		return Entry{Name: name, Run: func() (float64, error) { order = append(order, name); return float64(len(order)), nil }}
	}
	plan := Plan{Rounds: 50, Rand: rand.New(rand.NewPCG(1, 1))}
	res, err := Rounds(plan, []Entry{entry("a"), entry("b"), entry("c")})
	if err != nil {
		t.Fatal(err)
	}
	if len(order) != 150 || len(res.Values) != 3 || len(res.Values[2]) != 50 || res.Moved+res.Disturbed != 0 || res.Unsteady {
		t.Fatalf("%d blocks, result %+v", len(order), res)
	}
	first := map[string]int{}
	for r := range 50 {
		turn := slices.Sorted(slices.Values(order[3*r : 3*r+3]))
		if !slices.Equal(turn, []string{"a", "b", "c"}) {
			t.Fatalf("round %d holds %v", r, turn)
		}
		first[order[3*r]]++
		for i := range 3 { // values of one round come from that round
			if v := res.Values[i][r]; v <= float64(3*r) || v > float64(3*r+3) {
				t.Fatalf("round %d has value %v", r, v)
			}
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		if first[name] < 5 {
			t.Errorf("%s came first %d times of 50: not a random order", name, first[name])
		}
	}
}

func TestRoundsDropMovingProcessors(t *testing.T) {
	for _, tc := range []struct {
		name          string
		moves         func(round int) bool
		kept, dropped int
		unsteady      bool
	}{
		{"never", func(int) bool { return false }, 10, 0, false},
		{"at first", func(r int) bool { return r < 3 }, 10, 3, false},
		{"every other round", func(r int) bool { return r%2 == 0 }, 10, 10, false},
		{"mostly", func(r int) bool { return r%5 != 0 }, 20, 16, true},
		{"always", func(int) bool { return true }, 20, 20, true},
	} {
		samples := 0
		plan := Plan{Rounds: 10, Rand: rand.New(rand.NewPCG(1, 1)), Drift: 1.5, Sample: func() (float64, error) {
			round, nth := samples/3, samples%3 // before each of two blocks, and at the end
			samples++
			if tc.moves(round) && nth == 2 {
				return 160, nil
			}
			return 100 + float64(nth), nil
		}}
		res, err := Rounds(plan, []Entry{constant("a", 1), constant("b", 2)})
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Samples) != tc.kept || len(res.Values[1]) != tc.kept || res.Moved != tc.dropped || res.Disturbed != 0 || res.Unsteady != tc.unsteady {
			t.Errorf("%s: %d rounds kept, %d dropped, unsteady %v; want %d, %d, %v", tc.name, len(res.Samples), res.Moved,
				res.Unsteady, tc.kept, tc.dropped, tc.unsteady)
		}
	}
	broken := errors.New("sample")
	plan := Plan{Rounds: 1, Rand: rand.New(rand.NewPCG(1, 1)), Sample: func() (float64, error) { return 0, broken }}
	if _, err := Rounds(plan, []Entry{constant("a", 1)}); !errors.Is(err, broken) {
		t.Errorf("a failing sample: %v", err)
	}
}

func TestRoundsDropDisturbance(t *testing.T) {
	var clock time.Duration
	block := 0
	run := func() (float64, error) {
		block++
		time.Sleep(time.Millisecond)
		if block%3 == 0 { // strangers use more cores than there are
			clock += time.Hour
		}
		return float64(block), nil
	}
	plan := Plan{Rounds: 10, Rand: rand.New(rand.NewPCG(1, 1)), Noise: 0.2,
		Foreign: func() (time.Duration, error) { return clock, nil }}
	res, err := Rounds(plan, []Entry{{Name: "a", Run: run}})
	if err != nil {
		t.Fatal(err)
	}
	want := []float64{1, 2, 4, 5, 7, 8, 10, 11, 13, 14}
	if !slices.Equal(res.Values[0], want) || res.Disturbed != 4 || res.Moved != 0 || res.Unsteady {
		t.Errorf("result %+v, want values %v and 4 disturbed rounds", res, want)
	}
	broken := errors.New("broken")
	plan.Foreign = func() (time.Duration, error) { return 0, broken }
	if _, err := Rounds(plan, []Entry{constant("a", 1)}); !errors.Is(err, broken) {
		t.Errorf("a failing meter: %v", err)
	}
}

// A child that has not been waited for is a stranger; a rank is not.
func TestForeign(t *testing.T) {
	before, err := Foreign()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("sh", "-c", "while :; do :; done")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	for end := time.Now().Add(long); ; time.Sleep(10 * time.Millisecond) {
		now, err := Foreign()
		if err != nil {
			t.Fatal(err)
		}
		if now-before > 100*time.Millisecond {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("a stranger that spins was not seen: %v", now-before)
		}
	}
}

func TestRoundsGoOnWithoutAFailedEntry(t *testing.T) {
	broken, calls := errors.New("broken"), 0
	res, err := Rounds(Plan{Rounds: 5, Rand: rand.New(rand.NewPCG(1, 1))}, []Entry{
		constant("a", 1),
		{Name: "b", Run: func() (float64, error) {
			if calls++; calls == 3 {
				return 0, broken
			}
			return 2, nil
		}},
		Absent("c", broken),
	})
	if err != nil {
		t.Fatal(err)
	}
	nans := func(xs []float64) (n int) {
		for _, x := range xs {
			if math.IsNaN(x) {
				n++
			}
		}
		return n
	}
	if calls != 3 || nans(res.Values[0]) != 0 || nans(res.Values[1]) != 3 || nans(res.Values[2]) != 5 {
		t.Errorf("%d calls, values %v", calls, res.Values)
	}
	if res.Errs[0] != nil || !errors.Is(res.Errs[1], broken) || !errors.Is(res.Errs[2], broken) {
		t.Errorf("reasons %v", res.Errs)
	}
}

func TestTurn(t *testing.T) {
	s := start(t, spec(t, 2))
	const want = 60 * time.Millisecond
	iters, err := Calibrate(s, Block{Test: "sleep"}, want, long) // one iteration is one millisecond
	if err != nil || iters < 2 || iters > 72 {
		t.Errorf("calibrated to %d iterations, %v; want some 40 to 72", iters, err)
	}
	e, err := Turn(s, Block{Test: "rank"}, 0, 0, long)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := e.Run(); err != nil || v != 1 || e.Name != "tester" {
		t.Errorf("%s: %v, %v; want the value of the slowest rank, 1", e.Name, v, err)
	}
	if _, err := Turn(s, Block{Test: "rank1refuses"}, want, 0, long); err == nil {
		t.Error("a refused test was given a turn")
	}
	slow := Block{Test: "bytes", Bytes: 2000} // answers that it took that many nanoseconds
	if _, err := Turn(s, slow, 0, 1999, long); !errors.Is(err, ErrSlow) || !strings.Contains(err.Error(), "tester") || !strings.Contains(err.Error(), "bytes 2000") {
		t.Errorf("an operation that takes too long: %v", err)
	}
	if _, err := Turn(s, slow, 0, 2000, long); err != nil {
		t.Errorf("an operation that takes just as long as it may: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
