package direct

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/plane"
)

const (
	// partDelay is how long the others are not told that a rank has left: most end at about
	// the same time, and then nobody needs to hear of each.
	partDelay = time.Second
	// blameWait is how long a rank that others miss may take to be found lost itself.
	blameWait = time.Second
	// endDelay is from the news of a loss, which ends what waits for that rank, to the end of
	// all ranks' contexts.
	endDelay = time.Second
	// flushWait bounds the time in which all ranks are told how it ended.
	flushWait = 2 * time.Second
)

// phase is how far a rank has come.
type phase uint8

const (
	absent phase = iota
	here         // it has shown its card
	left         // it has said goodbye
	lost
)

// judge keeps the job together, in the process of rank 0. Rank 0 itself has a line like
// all others, only that nothing is between its ends.
type judge struct {
	inv    *invitation
	size   int
	notice func(string)
	root   plane.Root
	group  sync.WaitGroup // what carries lines
	asking sync.WaitGroup // what asks how long the job may run
	stop   func()         // ends that

	mu      sync.Mutex
	cards   []*card
	phases  []phase
	come    int
	ready   chan struct{} // closed when all have come, or one cannot any more
	err     error         // why not all have come
	hubs    []*control.Hub
	hub     []*control.Hub // by rank
	lines   []*os.File     // our end of the lines of ranks above 0
	own     *os.File       // rank 0's end of its own line
	ranks   control.Layout
	deal    *control.Exchange // rank 0 has them all: there is one place
	leaving []control.Report  // goodbyes not told of yet
	gone    int
	failed  bool
	over    bool // all were let go, or this rank closes
	timers  []*time.Timer
}

func newJudge(inv *invitation, size int, mine card, listen string, notice func(string)) (*judge, error) {
	j := &judge{inv: inv, size: size, notice: notice, cards: make([]*card, size), phases: make([]phase, size), ready: make(chan struct{}),
		stop: func() {}, lines: make([]*os.File, size), hub: make([]*control.Hub, size)}
	j.deal = control.NewExchange(size, size, nil, true, (*judgeLinks)(j))
	names := make([]string, size-1)
	for i := range names {
		names[i] = strconv.Itoa(i + 1)
	}
	j.mu.Lock()
	j.comes(0, &mine)
	j.mu.Unlock()
	way, err := plane.Lookup(plane.TCP)
	if err == nil {
		j.root, err = way.Listen(planeConfig(inv), listen, names, j)
	}
	return j, err
}

// comes notes a rank's card. The caller holds mu.
func (j *judge) comes(rank int, c *card) {
	j.cards[rank], j.phases[rank] = c, here
	if j.come++; j.come == j.size && j.err == nil {
		close(j.ready)
	}
}

// gather waits for all ranks, and opens their lines. It returns the layout of rank 0's host.
func (j *judge) gather(ctx context.Context) (*layout, error) {
	select {
	case <-j.ready:
	case <-ctx.Done():
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil && j.come < j.size {
		j.err = fmt.Errorf("%s missing: %w", ranks(j.missing()), context.Cause(ctx))
	}
	if j.err == nil {
		j.err = j.begin()
	}
	if j.err != nil {
		j.over = true
		for rank := 1; rank < j.size; rank++ {
			j.root.Send(rank-1, encode(&layout{Failed: j.err.Error()}))
		}
		return nil, j.err
	}
	return j.layout(0), nil
}

// askLeft lets all ranks know how long the job may run, once that is known.
func (j *judge) askLeft(ask func(context.Context) (time.Duration, bool)) {
	ctx, cancel := context.WithCancel(context.Background())
	j.stop = cancel
	j.asking.Go(func() {
		left, ok := ask(ctx)
		j.mu.Lock()
		defer j.mu.Unlock()
		if ok && !j.over {
			j.all(func(h *control.Hub) error { return h.Limit(left) })
		}
	})
}

func (j *judge) missing() (out []int) {
	for rank, p := range j.phases {
		if p == absent {
			out = append(out, rank)
		}
	}
	return out
}

// begin makes a hub for each host, and has the ranks' lines carried. The caller holds mu.
func (j *judge) begin() error {
	all := hosts(j.cards)
	j.ranks = control.MakeLayout(all)
	for _, local := range all {
		hub := control.NewHub(j.job(local), j.report)
		j.hubs = append(j.hubs, hub)
		for _, rank := range local {
			end, err := hub.Open(rank)
			if err == nil {
				end, err = control.Own(end)
			}
			if err != nil {
				return err
			}
			j.hub[rank] = hub
			if rank == 0 {
				j.own = end
			} else {
				j.lines[rank] = end
			}
		}
	}
	for rank := 1; rank < j.size; rank++ {
		j.root.Send(rank-1, encode(j.layout(rank)))
		j.group.Go(func() { j.carry(rank, j.lines[rank]) })
	}
	return nil
}

func (j *judge) layout(rank int) *layout {
	for _, local := range hosts(j.cards) {
		if slices.Contains(local, rank) {
			return &layout{Local: local, Arena: j.job(local).Arena}
		}
	}
	panic("direct: a rank without a host")
}

// carry is the goroutine that sends a rank what its line says.
func (j *judge) carry(rank int, line *os.File) {
	copyLine(line, func(b []byte) { j.root.Send(rank-1, b) })
}

// copyLine hands on what comes from a line until it ends.
func copyLine(line io.Reader, send func([]byte)) {
	for {
		b := make([]byte, 16<<10)
		n, err := line.Read(b)
		if n > 0 {
			send(b[:n])
		}
		if err != nil {
			return
		}
	}
}

// Up implements plane.Handler, as the next three do, on plane's goroutines.
func (j *judge) Up(int) {}

// Frame implements plane.Handler.
func (j *judge) Frame(member int, b []byte) {
	rank := member + 1
	j.mu.Lock()
	line, p := j.lines[rank], j.phases[rank]
	if p == absent {
		c := new(card)
		err := decode(b, c)
		if err == nil {
			err = c.check()
		}
		if err == nil {
			j.comes(rank, c)
		}
		j.mu.Unlock()
		if err != nil {
			j.root.Drop(member, err)
		}
		return
	}
	j.mu.Unlock()
	if line == nil {
		j.root.Drop(member, errors.New("it speaks before it was told of the others"))
		return
	}
	if _, err := line.Write(b); err != nil {
		j.root.Drop(member, err) // the hub has hung up, and said why
	}
}

// Down implements plane.Handler.
func (j *judge) Down(member int, err error) {
	rank := member + 1
	j.mu.Lock()
	hub, line := j.hub[rank], j.lines[rank]
	if hub == nil { // they have not all come
		if j.err == nil {
			j.err = fmt.Errorf("rank %d was there and is gone: %s", rank, because(err))
			if j.come < j.size {
				close(j.ready)
			}
		}
		j.phases[rank] = lost
		j.mu.Unlock()
		return
	}
	j.mu.Unlock()
	// Everything that it has said comes first.
	line.Close()
	if err := hub.Drain(rank); err != nil {
		j.notice(err.Error())
	}
	j.lose(rank, because(err))
}

func because(err error) string {
	if err == nil {
		return "it ended before the job did"
	}
	return err.Error()
}

// Refused implements plane.Handler. A stranger stops nothing.
func (j *judge) Refused(_ int, err error) { j.notice(err.Error()) }

// report hears what a rank says, on the hubs' goroutines.
func (j *judge) report(r control.Report) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch r.Kind {
	case control.Joined:
		j.deal.Join(r.Rank, r.Card, r.Text)
	case control.Asked:
		j.deal.Ask(r.Rank, r.Of)
	case control.Goodbye:
		j.goodbye(r)
	case control.Abort:
		if r.Lost < 0 || j.phases[r.Lost] == lost {
			j.abort(r)
			return
		}
		j.after(blameWait, func() { j.abort(r) })
	case control.Broken:
		j.fail(fmt.Sprintf("%s cannot be understood: %s", j.name(r.Rank), r.Text), func(h *control.Hub) error { return h.Died(r.Rank, 1, r.Text, false) })
	}
}

// judgeLinks are the links of a job's only place: none. The caller of the Exchange holds mu.
type judgeLinks judge

func (j *judgeLinks) Route(int, int) int      { return control.Parent } // of no rank
func (j *judgeLinks) Send(int, *control.Word) {}
func (j *judgeLinks) All(l control.Lack) {
	(*judge)(j).all(func(h *control.Hub) error { return h.All(l) })
}
func (j *judgeLinks) Card(to, of int, b []byte) {
	if err := j.hub[to].Card(to, of, b); err != nil {
		j.notice(err.Error())
	}
}

// goodbye lets all go when the last one has said it. The caller holds mu.
func (j *judge) goodbye(r control.Report) {
	j.phases[r.Rank] = left
	if j.gone++; j.gone == j.size {
		j.over = true
		j.all((*control.Hub).Release)
		return
	}
	if j.leaving = append(j.leaving, r); len(j.leaving) > 1 {
		return
	}
	j.after(partDelay, func() {
		for _, r := range j.leaving {
			j.all(func(h *control.Hub) error { return h.Left(r.Rank, r.Untold) })
		}
		j.leaving = nil
	})
}

// abort ends the job for a rank's reason. The caller holds mu.
func (j *judge) abort(r control.Report) {
	j.fail(fmt.Sprintf("%s: %s", j.name(r.Rank), strings.TrimPrefix(r.Text, "weft: ")), func(h *control.Hub) error { return h.Aborted(r.Rank, r.Code, r.Text) })
}

// lose ends the job because a rank is lost.
func (j *judge) lose(rank int, why string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.over {
		return
	}
	j.phases[rank] = lost
	text := "was lost: " + why
	first := j.fail(j.name(rank)+" "+text, func(h *control.Hub) error { return h.Died(rank, 1, text, false) })
	if first {
		j.after(endDelay, func() {
			j.all(func(h *control.Hub) error { return h.Aborted(-1, 1, j.name(rank)+" "+text) })
		})
	}
}

// fail says why the job ends, the first time, and tells all ranks. The caller holds mu.
func (j *judge) fail(why string, tell func(*control.Hub) error) bool {
	if j.failed || j.over {
		return false
	}
	j.failed = true
	j.notice("the job ends: " + why)
	j.all(tell)
	return true
}

// all does something with every hub. The caller holds mu.
func (j *judge) all(do func(*control.Hub) error) {
	for _, h := range j.hubs {
		if err := do(h); err != nil {
			j.notice(err.Error())
		}
	}
}

// after calls f later, with mu held, unless it is over then.
func (j *judge) after(d time.Duration, f func()) {
	j.timers = append(j.timers, time.AfterFunc(d, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if !j.over {
			f()
		}
	}))
}

func (j *judge) name(rank int) string {
	return fmt.Sprintf("rank %d on host %s", rank, j.cards[rank].Name)
}

// close tells the others what is still to tell, and ends the links. Rank 0's own line is
// closed by now.
func (j *judge) close() error {
	if j.root == nil {
		return nil
	}
	j.stop()
	j.asking.Wait()
	j.mu.Lock()
	hub := j.hub[0]
	j.mu.Unlock()
	var err error
	if hub != nil {
		err = hub.Drain(0) // its last words, an abort for instance, are out
	}
	j.mu.Lock()
	if !j.over && !j.failed && hub != nil {
		j.fail(j.name(0)+" ended without a goodbye", func(h *control.Hub) error { return h.Died(0, 1, "ended without a goodbye", false) })
	}
	j.over = true
	for _, t := range j.timers {
		t.Stop()
	}
	j.all((*control.Hub).End)
	j.mu.Unlock()
	told := make(chan struct{})
	go func() {
		j.group.Wait()
		close(told)
	}()
	select {
	case <-told:
	case <-time.After(flushWait):
	}
	err = errors.Join(err, j.root.Close())
	for _, h := range j.hubs {
		err = errors.Join(err, h.Close())
	}
	for _, l := range j.lines {
		if l != nil {
			l.Close() // perhaps closed
		}
	}
	if j.own != nil {
		j.own.Close() // if nobody has taken it up
	}
	<-told
	return err
}

// ranks names some ranks, the first of many.
func ranks(list []int) string {
	const most = 8
	var words []string
	for _, r := range list[:min(len(list), most)] {
		words = append(words, strconv.Itoa(r))
	}
	s := strings.Join(words, ", ")
	switch {
	case len(list) == 1:
		return "rank " + s + " is"
	case len(list) > most:
		s += fmt.Sprintf(" and %d more", len(list)-most)
	}
	return "ranks " + s + " are"
}

var strict = func() cbor.DecMode {
	m, err := cbor.DecOptions{MaxArrayElements: 1 << 24, MaxNestedLevels: 4}.DecMode()
	if err != nil {
		panic(err)
	}
	return m
}()

func encode(v any) []byte {
	b, err := cbor.Marshal(v)
	if err != nil {
		panic(err) // an encoder that fails on our own types
	}
	return b
}

func decode(b []byte, v any) error { return strict.Unmarshal(b, v) }
