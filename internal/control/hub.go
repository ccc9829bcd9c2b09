package control

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// ReportKind says what a Report is about.
type ReportKind uint8

const (
	// Hello: the rank runs a Weft program.
	Hello ReportKind = 1 + iota
	// Joined: the rank has sent its Card, and waits until all have. Text is what it lacks, if anything.
	Joined
	// Asked: the rank wants the card of the rank Of.
	Asked
	// Abort: the rank ends the job with Code, for the reason Text. Lost is the
	// rank it blames, or -1.
	Abort
	// Goodbye: the rank leaves in good order.
	Goodbye
	// Broken: the rank said what it must not; Text tells what. Its line is
	// closed.
	Broken
)

// Report is what a Hub hears from a rank.
type Report struct {
	Rank int        `cbor:"1,keyasint"`
	Kind ReportKind `cbor:"2,keyasint"`
	Card []byte     `cbor:"-"` // it stays on its host
	Code int        `cbor:"4,keyasint,omitempty"`
	Text string     `cbor:"5,keyasint,omitempty"`
	Lost int        `cbor:"6,keyasint"`
	Of   int        `cbor:"-"`

	Untold [][2]int `cbor:"7,keyasint,omitempty"` // of a Goodbye: runs of ranks that have never heard from this one
}

// Job is what all ranks on one host are told alike.
type Job struct {
	Name           string
	Size           int
	Host           string
	LocalRanks     []int // world ranks on this host, ascending
	Layout         Layout
	Transport      string
	Interface      string
	Device         string
	Arena          int64
	Oversubscribed bool
	Secret         []byte
}

// Hub is the launcher's end of the lines to the ranks of one host. It hears
// reports and tells events. It owns a goroutine for each line that reads, and
// one that writes where there was something to write; Close ends and waits for
// them.
type Hub struct {
	job    Job
	report func(Report)
	local  [][2]int
	group  sync.WaitGroup

	mu    sync.Mutex
	lines map[int]*line // by world rank
	all   bool          // the ranks were told that all have joined
}

// line is the launcher's end of one line.
type line struct {
	file *os.File
	over chan struct{} // closed when the reader has ended

	// Guarded by the hub's mu.
	queue   [][]byte // encoded frames that wait for the writer; nil ends the line
	writing bool
}

// NewHub returns a hub without lines. Report is called on the hub's goroutines,
// one call at a time for each rank, and must not call the hub's Drain or Close.
func NewHub(job Job, report func(Report)) *Hub {
	return &Hub{job: job, report: report, local: Runs(job.LocalRanks), lines: make(map[int]*line)}
}

// Open makes the line of a rank, with the Welcome in it, and returns the rank's
// end: the caller hands it to the process and closes it.
func (h *Hub) Open(rank int) (*os.File, error) {
	index, ok := slices.BinarySearch(h.job.LocalRanks, rank)
	if !ok {
		return nil, fmt.Errorf("control: rank %d is not on this host", rank)
	}
	ours, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	j := &h.job
	err = send(ours, &frame{Kind: welcome, Version: Version, Rank: rank, Secret: j.Secret, Place: &place{
		Size: j.Size, LocalRank: index, Local: h.local, Layout: j.Layout, Job: j.Name, Host: j.Host, Transport: j.Transport,
		Interface: j.Interface, Device: j.Device, Arena: j.Arena, Oversubscribed: j.Oversubscribed}})
	if err != nil {
		return nil, errors.Join(err, ours.Close(), theirs.Close())
	}
	l := &line{file: ours, over: make(chan struct{})}
	h.mu.Lock()
	h.lines[rank] = l
	h.mu.Unlock()
	h.group.Go(func() { h.read(rank, l) })
	return theirs, nil
}

// read is the goroutine that hears one rank.
func (h *Hub) read(rank int, l *line) {
	defer close(l.over)
	err := h.listen(rank, l)
	if err == io.EOF || errors.Is(err, os.ErrClosed) || errors.Is(err, errReset) {
		return // a process that ended; what it means is for its exit status to say
	}
	text := err.Error()
	if err := hangUp(l.file); err != nil && !errors.Is(err, os.ErrClosed) {
		text += "; " + err.Error()
	}
	h.report(Report{Rank: rank, Kind: Broken, Text: text, Lost: -1})
}

// listen passes reports on, as long as they come in an order that makes sense.
func (h *Hub) listen(rank int, l *line) error {
	in := bufio.NewReaderSize(l.file, 512)
	var last kind
	for {
		f, err := receive(in, maxFromRank)
		if err != nil {
			return err
		}
		switch {
		case last == 0 && f.Kind == hello:
			if f.Version != Version {
				return fmt.Errorf("control: the program speaks version %d, weftrun %d; use the weftrun of the same release", f.Version, Version)
			}
			h.report(Report{Rank: rank, Kind: Hello, Lost: -1})
		case last == hello && f.Kind == join && len(f.Card) <= MaxCard && len(f.Text) <= maxLack:
			h.report(Report{Rank: rank, Kind: Joined, Card: f.Card, Text: f.Text, Lost: -1})
		case (last == join || last == goodbye) && f.Kind == ask && f.Rank >= 0 && f.Rank < h.job.Size && h.toldAll():
			h.report(Report{Rank: rank, Kind: Asked, Of: f.Rank, Lost: -1})
		case last != 0 && f.Kind == abort && f.Rank >= -1 && f.Rank < h.job.Size:
			h.report(Report{Rank: rank, Kind: Abort, Code: f.Code, Text: f.Text, Lost: f.Rank})
		case last != 0 && last != goodbye && f.Kind == goodbye:
			if err := CheckRuns(f.Ranks, h.job.Size); err != nil {
				return err
			}
			h.report(Report{Rank: rank, Kind: Goodbye, Lost: -1, Untold: f.Ranks})
		default:
			return fmt.Errorf("control: %v after %v", f.Kind, last)
		}
		if f.Kind != abort && f.Kind != ask {
			last = f.Kind
		}
	}
}

// Drain returns when everything that the rank has said so far is reported, and
// closes its line. It is called when the rank's process has ended; a descendant
// of it that still holds the line is not heard any more.
func (h *Hub) Drain(rank int) error {
	h.mu.Lock()
	l := h.lines[rank]
	delete(h.lines, rank)
	h.mu.Unlock()
	if l == nil {
		return nil
	}
	err := endReading(l.file)
	if err == nil {
		<-l.over
	}
	return errors.Join(err, l.file.Close())
}

// All tells every rank on this host that all ranks have joined, and what is lacking.
func (h *Hub) All(l Lack) error {
	h.mu.Lock()
	h.all = true
	h.mu.Unlock()
	return h.tell(-1, &frame{Kind: all, Lack: &l})
}

func (h *Hub) toldAll() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all
}

// Card gives a rank on this host the card of another one.
func (h *Hub) Card(to, of int, b []byte) error {
	f, err := encode(&frame{Kind: card, Rank: of, Card: b})
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.lines[to]; l != nil {
		h.enqueue(l, f)
	}
	return nil
}

// Died tells every rank on this host that one ended other than in good order, and
// whether the job goes on without it.
func (h *Hub) Died(rank, code int, how string, goesOn bool) error {
	return h.tell(rank, &frame{Kind: died, Rank: rank, Code: code, Text: how, GoesOn: goesOn})
}

// Left tells some ranks, those of them on this host, that one has said Goodbye.
func (h *Hub) Left(rank int, to [][2]int) error {
	b, err := encode(&frame{Kind: gone, Rank: rank})
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for r, l := range h.lines {
		if InRuns(to, r) {
			h.enqueue(l, b)
		}
	}
	return nil
}

// Release tells every rank on this host that all ranks have said Goodbye. It is
// the last thing they are told: another program that takes a line up after it
// learns at once that the line is used.
func (h *Hub) Release() error {
	if err := h.tell(-1, &frame{Kind: released}); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.lines {
		h.enqueue(l, nil)
	}
	return nil
}

// End ends every line on this host after what is queued for it. A rank that was not
// released takes it for the end of the launcher.
func (h *Hub) End() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.lines {
		h.enqueue(l, nil)
	}
	return nil
}

// Aborted tells every other rank on this host that the job is being ended, by a
// rank or, when rank is -1, by the launcher.
func (h *Hub) Aborted(rank, code int, reason string) error {
	return h.tell(rank, &frame{Kind: aborted, Rank: rank, Code: code, Text: reason})
}

// Limit tells every rank on this host how long the job may still run.
func (h *Hub) Limit(left time.Duration) error {
	return h.tell(-1, &frame{Kind: limit, Left: max(left.Milliseconds(), 0)})
}

// tell queues a frame for every rank but one. A rank that does not read, stopped
// for instance, holds up nobody.
func (h *Hub) tell(but int, f *frame) error {
	b, err := encode(f)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for rank, l := range h.lines {
		if rank == but {
			continue
		}
		h.enqueue(l, b)
	}
	return nil
}

// enqueue queues an encoded frame, or nil for the end of all. The caller holds mu.
func (h *Hub) enqueue(l *line, b []byte) {
	l.queue = append(l.queue, b)
	if !l.writing {
		l.writing = true
		h.group.Go(func() { h.write(l) })
	}
}

// write is the goroutine that empties a line's queue. An error means that the
// rank is gone, which its exit status tells better.
func (h *Hub) write(l *line) {
	for {
		h.mu.Lock()
		if len(l.queue) == 0 {
			l.writing = false
			h.mu.Unlock()
			return
		}
		b := l.queue[0]
		l.queue = l.queue[1:]
		h.mu.Unlock()
		var err error
		if b == nil {
			err = endWriting(l.file)
		} else {
			_, err = l.file.Write(b)
		}
		if err != nil {
			return // l.writing stays set: there is no use in trying again
		}
	}
}

// Close closes all lines and waits for the hub's goroutines.
func (h *Hub) Close() error {
	h.mu.Lock()
	left := h.lines
	h.lines = make(map[int]*line)
	h.mu.Unlock()
	var err error
	for _, l := range left {
		err = errors.Join(err, l.file.Close())
	}
	h.group.Wait()
	return err
}
