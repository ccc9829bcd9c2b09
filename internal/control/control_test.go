package control

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newLocal(t *testing.T, n int) *Local {
	t.Helper()
	l, err := NewLocal(n, "auto", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func TestCards(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 7, 8, 13} {
		l := newLocal(t, n)
		var group sync.WaitGroup
		for rank, c := range l.Clients {
			if e := c.Env(); e.Rank != rank || e.Size != n || e.LocalRank != rank || e.LocalSize() != n {
				t.Errorf("rank %d of %d has the place %+v", rank, n, e)
			}
			if !bytes.Equal(c.Secret(), l.Clients[0].Secret()) || len(c.Secret()) != SecretSize {
				t.Errorf("rank %d has a secret of its own", rank)
			}
			group.Go(func() {
				card := bytes.Repeat([]byte{byte(rank)}, rank*rank*300) // rank 0: empty; 12: 43 kB
				lacks := ""
				if rank%3 == 1 {
					lacks = fmt.Sprintf("the tool of %d", rank)
				}
				got, err := c.Join(t.Context(), card, lacks)
				want := Lack{Ranks: (n + 1) / 3}
				if n > 1 {
					want.First, want.Text = 1, "the tool of 1"
				}
				if err != nil || got != want {
					t.Errorf("rank %d of %d: %+v, %v, want %+v", rank, n, got, err, want)
					return
				}
				for i := range n {
					got, err := c.Card(t.Context(), i)
					if want := bytes.Repeat([]byte{byte(i)}, i*i*300); err != nil || !bytes.Equal(got, want) {
						t.Errorf("rank %d of %d: card %d has %d bytes, want %d; %v", rank, n, i, len(got), len(want), err)
					}
				}
				if err := errors.Join(c.send(&frame{Kind: goodbye}), c.Close()); err != nil {
					t.Errorf("rank %d of %d: %v", rank, n, err)
				}
			})
		}
		group.Wait()
		for rank := range n {
			l.Wait(rank, Goodbye)
		}
	}
}

func TestCardLimit(t *testing.T) {
	l := newLocal(t, 1)
	if _, err := l.Clients[0].Join(t.Context(), make([]byte, MaxCard+1), ""); err == nil || !strings.Contains(err.Error(), "65537 bytes") {
		t.Errorf("a card that is too long: %v", err)
	}
	long := strings.Repeat("\u00e9", 5000) // of two bytes each: where it is cut counts
	lack, err := l.Clients[0].Join(t.Context(), make([]byte, MaxCard), long)
	if err != nil || !strings.HasPrefix(lack.Text, long[:1000]) || len(lack.Text) > maxLack {
		t.Errorf("a card of the longest length: %v, lack %.20q of %d bytes", err, lack.Text, len(lack.Text))
	}
	if card, err := l.Clients[0].Card(t.Context(), 0); err != nil || len(card) != MaxCard {
		t.Errorf("a card of the longest length: %d bytes, %v", len(card), err)
	}
	if _, err := l.Clients[0].Join(t.Context(), nil, ""); err == nil {
		t.Error("a second Join went well")
	}
}

func TestDeathFailsJoin(t *testing.T) {
	l := newLocal(t, 3)
	failed := make(chan error)
	go func() {
		_, err := l.Clients[0].Join(context.Background(), nil, "")
		failed <- err
	}()
	l.Wait(0, Joined)
	if err := l.Kill(2, "ended with signal 9 (killed)"); err != nil {
		t.Fatal(err)
	}
	err := <-failed
	e, ok := errors.AsType[Event](err)
	if !ok || e.Kind != RankDied || e.Rank != 2 {
		t.Errorf("Join after a death: %v", err)
	}
	if want := "rank 2 ended with signal 9 (killed)"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Join says %q, which lacks %q", err, want)
	}
	// Also when the death is known before.
	<-l.Clients[1].settled
	if _, err := l.Clients[1].Join(t.Context(), nil, ""); err == nil {
		t.Error("Join after a known death went well")
	}
}

func TestJoinEndsWithItsContext(t *testing.T) {
	l := newLocal(t, 2)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the user lost patience")
	cancel(why)
	if _, err := l.Clients[0].Join(ctx, nil, ""); !errors.Is(err, why) {
		t.Errorf("Join with an ended context: %v", err)
	}
}

func TestWatchTellsEverythingInOrder(t *testing.T) {
	l := newLocal(t, 4)
	if err := l.Kill(3, "ended with exit status 7"); err != nil {
		t.Fatal(err)
	}
	<-l.Clients[0].settled // before Watch: must be kept
	events := make(chan Event, 8)
	l.Clients[0].Watch(func(e Event) { events <- e })
	if err := l.Clients[1].Abort(5, "the input is empty", 3); err != nil {
		t.Fatal(err)
	}
	if r := l.Wait(1, Abort); r.Lost != 3 || r.Code != 5 {
		t.Errorf("abort reported as %+v", r)
	}
	want := []Event{
		{Kind: RankDied, Rank: 3, Code: 1, Text: "ended with exit status 7"},
		{Kind: Aborted, Rank: 1, Code: 5, Text: "the input is empty"},
	}
	for _, w := range want {
		if d := cmp.Diff(w, <-events); d != "" {
			t.Error(d)
		}
	}
	if err := l.Vanish(); err != nil {
		t.Fatal(err)
	}
	if e := <-events; e.Kind != LauncherLost {
		t.Errorf("after the launcher's end: %v", e)
	}
}

func TestLeaveWaitsForAll(t *testing.T) {
	for _, n := range []int{1, 2, 5} {
		l := newLocal(t, n)
		var events sync.Map
		left := make(chan int, n)
		var group sync.WaitGroup
		leave := func(rank int) {
			if err := l.Clients[rank].Leave(t.Context(), nil); err != nil {
				t.Errorf("rank %d of %d: %v", rank, n, err)
			}
			left <- rank
		}
		for rank := range n - 1 {
			l.Clients[rank].Watch(func(e Event) { events.Store(rank, e) })
			group.Go(func() { leave(rank) })
			l.Wait(rank, Goodbye)
		}
		if len(left) > 0 {
			t.Errorf("rank %d of %d left before the last one did", <-left, n)
		}
		leave(n - 1)
		group.Wait()
		for _, c := range l.Clients {
			<-c.ended // the launcher's end of a released line is no event
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		events.Range(func(rank, e any) bool {
			t.Errorf("rank %v of %d heard: %v", rank, n, e)
			return true
		})
	}
}

func TestLeaveThatCannotEnd(t *testing.T) {
	l := newLocal(t, 3)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cancel(why)
	if err := l.Clients[1].Leave(ctx, nil); !errors.Is(err, why) {
		t.Errorf("Leave with an ended context: %v", err)
	}
	if err := l.Kill(2, "ended with exit status 7"); err != nil {
		t.Fatal(err)
	}
	err := l.Clients[0].Leave(t.Context(), nil)
	if e, ok := errors.AsType[Event](err); !ok || e.Kind != RankDied || e.Rank != 2 {
		t.Errorf("Leave after a death: %v", err)
	}
}

func TestLeftIsToldAndNoFailure(t *testing.T) {
	l := newLocal(t, 2)
	events := make(chan Event, 2)
	l.Clients[0].Watch(func(e Event) { events <- e })
	if err := l.hub.Left(1, [][2]int{{0, 4}}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Event{Kind: RankLeft, Rank: 1}, <-events); d != "" {
		t.Error(d)
	}
	var other sync.WaitGroup
	defer other.Wait()
	other.Go(func() {
		if _, err := l.Clients[1].Join(t.Context(), nil, ""); err != nil {
			t.Errorf("Join of the other rank: %v", err)
		}
	})
	if _, err := l.Clients[0].Join(t.Context(), nil, ""); err != nil {
		t.Errorf("Join after a rank has left: %v", err)
	}
}

func TestDrainHearsWhatWasSaidBefore(t *testing.T) {
	l := newLocal(t, 2)
	if err := l.Clients[1].Abort(3, "last words", -1); err != nil {
		t.Fatal(err)
	}
	// Client 1 stays open, as a descendant of a dead rank would keep it.
	if err := l.hub.Drain(1); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// Rank 0 says hello meanwhile, before or after.
	if !slices.ContainsFunc(l.reports, func(r Report) bool { return r.Rank == 1 && r.Text == "last words" }) {
		t.Errorf("reports after Drain: %+v", l.reports)
	}
}

func TestAnUnreadLineHoldsUpNobody(t *testing.T) {
	l := newLocal(t, 2)
	theirs := rawRank(t, l, 1)
	defer theirs.Close()
	seen := make(chan Event, 100)
	l.Clients[0].Watch(func(e Event) { seen <- e })
	long := strings.Repeat("x", 100<<10)
	for i := range 100 { // 10 MB, more than any socket buffer
		if err := l.hub.Aborted(-1, i, long); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 {
		if e := <-seen; e.Code != i {
			t.Fatalf("event %d has the code %d", i, e.Code)
		}
	}
}

// rawRank replaces a rank's line by one whose far end the test holds.
func rawRank(t *testing.T, l *Local, rank int) *os.File {
	t.Helper()
	if err := l.hub.Drain(rank); err != nil {
		t.Fatal(err)
	}
	theirs, err := l.hub.Open(rank)
	if err != nil {
		t.Fatal(err)
	}
	return theirs
}

func TestNonsenseIsReported(t *testing.T) {
	good := func(f frame) []byte {
		b, err := encode(&f)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	hi := good(frame{Kind: hello, Version: Version})
	cases := map[string][]byte{
		"http":            []byte("GET / HTTP/1.1\r\n\r\n"),
		"huge":            binary.LittleEndian.AppendUint32(nil, maxFromRank+1),
		"not cbor":        append(binary.LittleEndian.AppendUint32(nil, 3), 0xff, 0xff, 0xff),
		"unknown kind":    good(frame{Kind: 99}),
		"join first":      good(frame{Kind: join}),
		"hello twice":     append(bytes.Clone(hi), hi...),
		"launcher's word": append(bytes.Clone(hi), good(frame{Kind: died})...),
		"bad version":     good(frame{Kind: hello, Version: Version + 1}),
		"abort blames":    append(bytes.Clone(hi), good(frame{Kind: abort, Rank: 2})...),
		"ask early":       bytes.Join([][]byte{hi, good(frame{Kind: join}), good(frame{Kind: ask})}, nil),
		"ask for nobody":  append(bytes.Clone(hi), good(frame{Kind: ask, Rank: 2})...),
		"join twice":      bytes.Join([][]byte{hi, good(frame{Kind: join}), good(frame{Kind: join})}, nil),
	}
	for name, say := range cases {
		l := newLocal(t, 2)
		raw := rawRank(t, l, 1)
		if _, err := raw.Write(say); err != nil {
			t.Fatal(err)
		}
		r := l.Wait(1, Broken)
		if !strings.HasPrefix(r.Text, "control: ") {
			t.Errorf("%s: reported as %q", name, r.Text)
		}
		if _, err := io.Copy(io.Discard, raw); err != nil && !errors.Is(err, errReset) { // ends: the line is closed
			t.Errorf("%s: %v", name, err)
		}
		raw.Close()
	}
}

func TestBadWelcome(t *testing.T) {
	good := frame{Kind: welcome, Version: Version, Secret: make([]byte, SecretSize), Place: &place{Size: 2, Local: [][2]int{{0, 2}}, Layout: Layout{{0, 2, 0}}}}
	bad := map[string]func(f *frame){
		"version":       func(f *frame) { f.Version++ },
		"kind":          func(f *frame) { f.Kind = all },
		"no place":      func(f *frame) { f.Place = nil },
		"short secret":  func(f *frame) { f.Secret = f.Secret[1:] },
		"rank":          func(f *frame) { f.Rank = 2 },
		"local rank":    func(f *frame) { f.Place.LocalRank = 1 },
		"local too big": func(f *frame) { f.Place.Local = [][2]int{{0, 1 << 40}} },
		"layout":        func(f *frame) { f.Place.Layout = Layout{{0, 3, 0}} },
		"none":          func(f *frame) { f.Place.Local = nil },
	}
	for name, spoil := range bad {
		f, p := good, *good.Place
		f.Place = &p
		spoil(&f)
		line, c, err := dialed(t, &f)
		if err == nil {
			c.Close()
			t.Errorf("welcome with a bad %s was taken", name)
		}
		line.Close()
	}
}

// dialed is a rank that has heard only a welcome, with the launcher's end of its line.
func dialed(t *testing.T, welcome *frame) (line *os.File, c *Client, err error) {
	t.Helper()
	ours, theirs, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	if err := send(ours, welcome); err != nil {
		t.Fatal(err)
	}
	fd, err := duplicate(theirs)
	if err != nil {
		t.Fatal(err)
	}
	own, err := adopt(fd, "test", true)
	if err != nil {
		t.Fatal(err)
	}
	c, err = Dial(own, nil)
	return ours, c, err
}

// A launcher that dies with words of a rank unread has closed the line, as one that has read them.
func TestLauncherDiesWithWordsUnread(t *testing.T) {
	line, c, err := dialed(t, &frame{Kind: welcome, Version: Version, Secret: make([]byte, SecretSize), Place: &place{Size: 1, Local: [][2]int{{0, 1}}, Layout: Layout{{0, 1, 0}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	events := make(chan Event, 1)
	c.Watch(func(e Event) { events <- e })
	if err := line.Close(); err != nil { // Hello is unread
		t.Fatal(err)
	}
	if e := <-events; e.Kind != LauncherLost || e.Text != "its line closed" {
		t.Errorf("the rank heard %v", e)
	}
}

func TestFromEnv(t *testing.T) {
	for _, name := range Vars() {
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
	if c, err := FromEnv(); c != nil || err != nil {
		t.Errorf("without variables: %v, %v", c, err)
	}
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, value := range []string{"", "x", "-1", "999999", fmt.Sprint(file.Fd())} {
		t.Setenv(VarControl, value)
		if c, err := FromEnv(); c != nil || err == nil || !strings.Contains(err.Error(), VarControl) {
			t.Errorf("with %s=%q: %v, %v", VarControl, value, c, err)
		}
	}
	if _, err := file.Stat(); err != nil {
		t.Errorf("FromEnv closed a stranger's descriptor: %v", err)
	}

	hub := NewHub(Job{Name: "j", Size: 5, Host: "h", LocalRanks: []int{1, 2, 4}, Layout: MakeLayout([][]int{{0, 3}, {1, 2, 4}}), Transport: "tcp", Interface: "eth0", Device: "rxe0:1", Arena: 1 << 40,
		Oversubscribed: true, Secret: make([]byte, SecretSize)}, func(Report) {})
	defer hub.Close()
	theirs, err := hub.Open(4)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := duplicate(theirs)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(VarControl, fmt.Sprint(fd))
	t.Setenv(VarRank, "4")
	c, err := FromEnv()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := Env{Rank: 4, Size: 5, LocalRank: 2, LocalRanks: []int{1, 2, 4}, Nodes: []int{0, 1, 1, 0, 1}, Job: "j", Host: "h", Transport: "tcp", Interface: "eth0", Device: "rxe0:1", Arena: 1 << 40, Oversubscribed: true}
	if d := cmp.Diff(want, c.Env()); d != "" {
		t.Error(d)
	}
	for _, name := range Vars() {
		if v, ok := os.LookupEnv(name); ok {
			t.Errorf("%s=%q would pass to a child", name, v)
		}
	}
}

func TestRuns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 100).Draw(t, "size")
		var ranks []int
		for r := range size {
			if rapid.Bool().Draw(t, "here") {
				ranks = append(ranks, r)
			}
		}
		got, err := Unruns(Runs(ranks), size)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(ranks, got); d != "" {
			t.Fatal(d)
		}
	})
}

func FuzzReceive(f *testing.F) {
	b, err := encode(&frame{Kind: join, Card: []byte("card")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{4, 0, 0, 0, 0x9b, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		for in := bytes.NewReader(b); ; {
			if _, err := receive(in, maxFromRank); err != nil {
				return
			}
		}
	})
}

// TestCardThatNeverComes: a question ends with its context, the line, or the client.
func TestCardThatNeverComes(t *testing.T) {
	for name, end := range map[string]func(l *Local, cancel func()) error{
		"context": func(_ *Local, cancel func()) error { cancel(); return nil },
		"line":    func(l *Local, _ func()) error { return l.Vanish() },
		"client":  func(l *Local, _ func()) error { return l.Clients[0].Close() },
	} {
		l := newLocal(t, 2)
		raw := rawRank(t, l, 1) // has no card
		l.mu.Lock()
		mustTell(l.hub.All(Lack{})) // a launcher that is wrong
		l.mu.Unlock()
		if _, err := l.Clients[0].Join(t.Context(), nil, ""); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := l.Clients[0].Card(ctx, 1)
			done <- err
		}()
		l.Wait(0, Asked)
		if err := end(l, cancel); err != nil {
			t.Error(err)
		}
		if err := <-done; err == nil || !strings.Contains(err.Error(), "rank 1") {
			t.Errorf("%s ended: %v", name, err)
		}
		cancel()
		if err := l.Clients[0].Close(); err != nil {
			t.Error(err)
		}
		if _, err := l.Clients[0].Card(t.Context(), 1); err == nil {
			t.Errorf("%s ended: a card came afterwards", name)
		}
		raw.Close()
	}
}

// TestCardOfTheDead: where the job goes on without a rank, who waits for its card hears why none comes.
func TestCardOfTheDead(t *testing.T) {
	l := newLocal(t, 2)
	rawRank(t, l, 1) // has no card
	l.mu.Lock()
	mustTell(l.hub.All(Lack{}))
	l.mu.Unlock()
	if _, err := l.Clients[0].Join(t.Context(), nil, ""); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	ask := func() {
		_, err := l.Clients[0].Card(t.Context(), 1)
		done <- err
	}
	go ask()
	l.Wait(0, Asked)
	if err := l.hub.Died(1, 9, "was killed", true); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		err := <-done
		if e, ok := errors.AsType[Event](err); !ok || e.Rank != 1 || !e.GoesOn || !strings.Contains(err.Error(), "no card of rank 1: rank 1 was killed") {
			t.Errorf("got %v", err)
		}
		go ask() // afterwards, too
	}
	<-done
}

func TestCloseEndsAJoin(t *testing.T) {
	l := newLocal(t, 2)
	done := make(chan error)
	go func() {
		_, err := l.Clients[0].Join(context.Background(), nil, "") // rank 1 never joins
		done <- err
	}()
	l.Wait(0, Joined)
	if err := l.Clients[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("a Join succeeded that nobody answered")
	}
}
