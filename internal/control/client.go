package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Env is what the launcher tells a rank about its place in the job.
type Env struct {
	Rank, Size     int
	LocalRank      int
	LocalRanks     []int    // world ranks on this host, by local rank
	Nodes          []int    // by world rank: the lowest rank on the same host; nil if all are on this one
	Job            string   // names the job, unique on its hosts
	Host           string   // this host, as the launcher calls it
	Transport      string   // what was asked for: auto, shm, tcp, verbs
	Interface      string   // network interface or CIDR to use, "" for no wish
	Device         string   // RDMA device, as --device takes it; "" for no wish
	Arena          int64    // bytes of registered memory for each rank, where there is no segment to take them from
	Oversubscribed bool     // this host has more ranks than processors for them
	Segment        *os.File // shared memory of this host's ranks; nil when there is none
}

// LocalSize returns the number of ranks on this host.
func (e *Env) LocalSize() int { return len(e.LocalRanks) }

// Client is a rank's end of its line. Its methods may be called by any
// goroutine.
//
// It owns two goroutines: one reads the line, one calls the function given to
// Watch. Close ends both and waits for them.
type Client struct {
	env    Env
	secret []byte
	line   *os.File
	in     *bufio.Reader

	writing sync.Mutex // keeps frames whole
	group   sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond // on mu: events, closed
	events  []Event    // not delivered yet
	first   *Event     // the first of all: what makes a Join fail
	watched bool
	joined  bool // Join was called
	closed  bool
	lack    *Lack                         // of the ranks, once all have joined
	finding map[int][]func([]byte, error) // by rank: who waits for its card; nil when the line has ended
	fallen  map[int]Event                 // ranks that the job does without
	settled chan struct{}                 // closed when lack or first is set
	failed  chan struct{}                 // closed when first is set
	freed   chan struct{}                 // closed when all ranks have said goodbye
	isFreed bool
	ended   chan struct{} // closed when nothing can be heard any more
	limit   atomic.Pointer[time.Time]
}

// welcomeWait bounds the wait for a Welcome, which is there before the rank is.
const welcomeWait = 10 * time.Second

// oneProgram is the likely cause of a Welcome that is missing.
const oneProgram = "a rank runs one Weft program once: did a script start two, or has weftrun ended?"

// FromEnv takes up the line that the environment names. It returns nil and no
// error when there is none: the process was not started by weftrun. The
// variables are removed from the environment and the descriptors made
// close-on-exec, so that children of this rank do not take themselves for it.
func FromEnv() (*Client, error) {
	control, ok := os.LookupEnv(VarControl)
	if !ok {
		return nil, nil
	}
	segment, hasSegment := os.LookupEnv(VarSegment)
	for _, name := range Vars() {
		if err := os.Unsetenv(name); err != nil {
			return nil, fmt.Errorf("control: %w", err)
		}
	}
	line, err := inherited(VarControl, control, true)
	if err != nil {
		return nil, err
	}
	var shared *os.File
	if hasSegment {
		if shared, err = inherited(VarSegment, segment, false); err != nil {
			return nil, errors.Join(err, line.Close())
		}
	}
	return Dial(line, shared)
}

func inherited(name, value string, socket bool) (*os.File, error) {
	fd, err := strconv.Atoi(value)
	if err != nil || fd < 0 {
		return nil, fmt.Errorf("control: %s=%q is not a descriptor; it is set by weftrun and for it alone", name, value)
	}
	f, err := adopt(fd, name, socket)
	if err != nil {
		return nil, fmt.Errorf("control: %s=%d, but %w; whatever stands between weftrun and the program must keep descriptors open and start it once", name, fd, err)
	}
	return f, nil
}

// Dial takes up a line: it reads the Welcome and says Hello. The client owns
// both files from here on, also when Dial fails. Segment may be nil.
func Dial(line, segment *os.File) (*Client, error) {
	c := &Client{line: line, in: bufio.NewReader(line), finding: make(map[int][]func([]byte, error)), fallen: make(map[int]Event), settled: make(chan struct{}),
		failed: make(chan struct{}), freed: make(chan struct{}), ended: make(chan struct{})}
	c.changed = sync.NewCond(&c.mu)
	c.env.Segment = segment
	if err := c.greet(); err != nil {
		line.Close()
		if segment != nil {
			segment.Close()
		}
		return nil, err
	}
	c.group.Go(c.read)
	return c, nil
}

func (c *Client) greet() error {
	if err := c.line.SetReadDeadline(time.Now().Add(welcomeWait)); err != nil {
		return fmt.Errorf("control: %w", err)
	}
	f, err := receive(c.in, maxFromLauncher)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("control: no welcome from weftrun within %v; %s", welcomeWait, oneProgram)
	case err != nil:
		return fmt.Errorf("control: no welcome from weftrun: %w; %s", err, oneProgram)
	case f.Version != Version:
		return fmt.Errorf("control: weftrun speaks version %d, this program %d; use the weftrun of the same release", f.Version, Version)
	case f.Kind != welcome || f.Place == nil || len(f.Secret) != SecretSize:
		return fmt.Errorf("control: weftrun said %v where a welcome was due; %s", f.Kind, oneProgram)
	}
	p := f.Place
	local, err := Unruns(p.Local, p.Size)
	if err != nil {
		return err
	}
	if f.Rank < 0 || f.Rank >= p.Size || p.LocalRank < 0 || p.LocalRank >= len(local) || local[p.LocalRank] != f.Rank {
		return fmt.Errorf("control: weftrun calls this rank %d of %d, local rank %d of %v", f.Rank, p.Size, p.LocalRank, local)
	}
	nodes, err := p.Layout.Nodes(p.Size)
	if err != nil {
		return err
	}
	c.env = Env{Rank: f.Rank, Size: p.Size, LocalRank: p.LocalRank, LocalRanks: local, Nodes: nodes, Job: p.Job, Host: p.Host,
		Transport: p.Transport, Interface: p.Interface, Device: p.Device, Arena: p.Arena, Oversubscribed: p.Oversubscribed, Segment: c.env.Segment}
	c.secret = f.Secret
	if err := c.line.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("control: %w", err)
	}
	return c.send(&frame{Kind: hello, Version: Version, Rank: f.Rank})
}

func (c *Client) send(f *frame) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return send(c.line, f)
}

// Env returns this rank's place in the job. The segment is the client's: who
// needs it after Close duplicates it.
func (c *Client) Env() Env { return c.env }

// Secret returns a copy of the job's secret, with which ranks prove to each
// other that they belong to the job.
func (c *Client) Secret() []byte { return slices.Clone(c.secret) }

// Deadline returns when the job's time ends, if the launcher has said so yet.
func (c *Client) Deadline() (time.Time, bool) {
	if at := c.limit.Load(); at != nil {
		return *at, true
	}
	return time.Time{}, false
}

// read is the goroutine that reads the line.
func (c *Client) read() {
	defer close(c.ended)
	defer c.findNothing()
	for {
		f, err := receive(c.in, maxFromLauncher)
		if err != nil {
			text := "its line closed"
			if err != io.EOF && !errors.Is(err, errReset) {
				text = err.Error()
			}
			c.report(Event{Kind: LauncherLost, Rank: -1, Text: text})
			return
		}
		switch f.Kind {
		case all:
			c.settle(f.Lack)
		case card:
			c.found(f.Rank, f.Card)
		case died:
			e := Event{Kind: RankDied, Rank: f.Rank, Code: f.Code, Text: f.Text, GoesOn: f.GoesOn}
			if c.report(e); e.GoesOn {
				c.fell(e)
			}
		case aborted:
			c.report(Event{Kind: Aborted, Rank: f.Rank, Code: f.Code, Text: f.Text})
		case gone:
			c.report(Event{Kind: RankLeft, Rank: f.Rank})
		case released:
			c.release()
		case limit:
			at := time.Now().Add(time.Duration(f.Left) * time.Millisecond)
			c.limit.Store(&at)
		default:
			c.report(Event{Kind: LauncherLost, Rank: -1, Text: fmt.Sprintf("it said %v, which it must not", f.Kind)})
			return
		}
	}
}

func (c *Client) settle(l *Lack) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lack == nil && c.first == nil {
		close(c.settled)
	}
	if c.lack = l; l == nil {
		c.lack = new(Lack)
	}
}

// found hands a card to those who wait for it.
func (c *Client) found(rank int, b []byte) {
	c.mu.Lock()
	waiting := c.finding[rank]
	delete(c.finding, rank)
	c.mu.Unlock()
	for _, f := range waiting {
		f(b, nil)
	}
}

// fell tells who waits for the card of a rank that has died, or will, that none will come.
func (c *Client) fell(e Event) {
	c.mu.Lock()
	c.fallen[e.Rank] = e
	waiting := c.finding[e.Rank]
	delete(c.finding, e.Rank)
	c.mu.Unlock()
	for _, f := range waiting {
		f(nil, e)
	}
}

// findNothing tells who waits for a card that none will come.
func (c *Client) findNothing() {
	c.mu.Lock()
	finding := c.finding
	c.finding = nil
	c.mu.Unlock()
	for _, waiting := range finding {
		for _, f := range waiting {
			f(nil, errLineEnded)
		}
	}
}

var errLineEnded = errors.New("the line to the launcher has ended")

func (c *Client) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isFreed {
		c.isFreed = true
		close(c.freed)
	}
}

func (c *Client) report(e Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.isFreed { // our own end, nothing that happened to the job
		return
	}
	if c.first == nil && e.Kind != RankLeft && (!e.GoesOn || c.lack == nil) {
		if c.lack == nil {
			close(c.settled)
		}
		c.first = &e
		close(c.failed)
	}
	c.events = append(c.events, e)
	c.changed.Broadcast()
}

// Join sends this rank's card, and what this rank lacks, if anything. It returns what is lacking
// in all, once all have joined. It fails with an [Event] when that cannot happen any more, and
// with ctx's error when ctx ends first: then the rank can only abort or exit.
// It is called once.
func (c *Client) Join(ctx context.Context, card []byte, lacks string) (Lack, error) {
	if len(card) > MaxCard {
		return Lack{}, fmt.Errorf("control: card of %d bytes, the limit is %d", len(card), MaxCard)
	}
	lacks = cut(lacks, maxLack)
	c.mu.Lock()
	twice := c.joined
	c.joined = true
	c.mu.Unlock()
	if twice {
		return Lack{}, errors.New("control: rank has joined already")
	}
	if err := c.send(&frame{Kind: join, Card: card, Text: lacks}); err != nil {
		return Lack{}, err
	}
	select {
	case <-c.settled:
	case <-ctx.Done():
		return Lack{}, fmt.Errorf("control: rank %d of %d waited for the others to join: %w", c.env.Rank, c.env.Size, context.Cause(ctx))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lack == nil {
		return Lack{}, fmt.Errorf("control: not all ranks can join: %w", *c.first)
	}
	return *c.lack, nil
}

// Find asks for the card of a rank, after Join, and has f called with it, or with an error once
// no answer can come, on a goroutine of the client: f must not wait. An error of Find means
// that f is not called.
func (c *Client) Find(rank int, f func(card []byte, err error)) error {
	c.mu.Lock()
	if c.finding == nil {
		c.mu.Unlock()
		return errLineEnded
	}
	if e, ok := c.fallen[rank]; ok {
		c.mu.Unlock()
		return e
	}
	first := len(c.finding[rank]) == 0
	c.finding[rank] = append(c.finding[rank], f)
	c.mu.Unlock()
	if first {
		// A line that cannot be written to ends for the reader as well, which then tells f.
		_ = c.send(&frame{Kind: ask, Rank: rank})
	}
	return nil
}

// Card returns the card of a rank, after Join.
func (c *Client) Card(ctx context.Context, rank int) ([]byte, error) {
	type answer struct {
		card []byte
		err  error
	}
	got := make(chan answer, 1)
	if err := c.Find(rank, func(card []byte, err error) { got <- answer{card, err} }); err != nil {
		return nil, fmt.Errorf("control: no card of rank %d: %w", rank, err)
	}
	select {
	case a := <-got:
		if a.err != nil {
			return nil, fmt.Errorf("control: no card of rank %d: %w", rank, a.err)
		}
		return a.card, nil
	case <-c.failed:
		return nil, fmt.Errorf("control: no card of rank %d: %w", rank, *c.first)
	case <-ctx.Done():
		return nil, fmt.Errorf("control: no card of rank %d: %w", rank, context.Cause(ctx))
	}
}

// Watch has f called for every event, in order, those that came before included,
// on a goroutine of the client. It is called once. Close waits for f to return, so
// f does not call it.
func (c *Client) Watch(f func(Event)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watched {
		panic("control: Watch called twice")
	}
	if c.closed {
		return
	}
	c.watched = true
	c.group.Go(func() { c.deliver(f) })
}

func (c *Client) deliver(f func(Event)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for len(c.events) == 0 && !c.closed {
			c.changed.Wait()
		}
		if c.closed {
			return
		}
		e := c.events[0]
		c.events = c.events[1:]
		c.mu.Unlock()
		f(e)
		c.mu.Lock()
	}
}

// Abort ends the job with an exit code and a reason, which weftrun prints. Lost
// is the rank whose loss is the reason, so that weftrun names that rank first if
// it finds it dead too; it is -1 when the reason is this rank's own. The caller
// exits after it; everybody else is told and, in the end, stopped.
func (c *Client) Abort(code int, reason string, lost int) error {
	return c.send(&frame{Kind: abort, Rank: lost, Code: code, Text: cut(reason, maxReason)})
}

// cut returns at most n bytes of a text, as a frame can carry it: valid UTF-8.
func cut(text string, n int) string {
	const rest = "..."
	if len(text) > n {
		text = text[:n-len(rest)] + rest
	}
	return strings.ToValidUTF8(text, "?")
}

// Leave says that this rank ends in good order, and returns when all ranks
// have said so: until then another may still need what this one has sent. It
// fails with an [Event] when that cannot happen any more, and with ctx's error
// when ctx ends first. An exit without Leave is a failure of the job.
//
// Untold are the ranks that have never heard from this one, and cannot know that
// they never will: the launcher tells them after a while.
func (c *Client) Leave(ctx context.Context, untold []int) error {
	if err := c.send(&frame{Kind: goodbye, Ranks: Runs(untold)}); err != nil {
		return err
	}
	select {
	case <-c.freed:
		return nil
	case <-c.failed:
	case <-ctx.Done():
		return fmt.Errorf("control: rank %d of %d waited for the others to end: %w", c.env.Rank, c.env.Size, context.Cause(ctx))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isFreed {
		return nil
	}
	return fmt.Errorf("control: not all ranks have ended in good order: %w", *c.first)
}

// Close gives the line and the segment back without a goodbye. Calls after the
// first do nothing.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.changed.Broadcast()
	if c.first == nil { // nobody waits any more: a Join or Leave in progress fails
		if c.lack == nil {
			close(c.settled)
		}
		c.first = &Event{Kind: LauncherLost, Rank: -1, Text: "this rank closed its line"}
		close(c.failed)
	}
	c.mu.Unlock()
	err := c.line.Close()
	if c.env.Segment != nil {
		err = errors.Join(err, c.env.Segment.Close())
	}
	c.group.Wait()
	return err
}
