package control

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
)

// Local is a launcher without processes: its ranks are clients in this process,
// over real lines. It passes cards on, passes aborts on and releases those who
// leave, as weftrun does, and lets its owner play deaths.
type Local struct {
	// Clients holds the ranks' ends, by rank.
	Clients []*Client

	hub  *Hub
	size int

	mu      sync.Mutex
	cards   *Exchange
	left    int // ranks that have said Goodbye
	reports []Report
	changed *sync.Cond // on mu: reports
}

// NewLocal starts a job of n ranks on one host. Segment, where not nil, is
// called for each rank's own descriptor of the shared memory.
func NewLocal(n int, transport string, segment func(rank int) (*os.File, error)) (*Local, error) {
	ranks := make([]int, n)
	for i := range ranks {
		ranks[i] = i
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	l := &Local{size: n}
	l.changed = sync.NewCond(&l.mu)
	l.hub = NewHub(Job{Name: "local-" + rand.Text()[:8], Size: n, Host: host, LocalRanks: ranks, Layout: Layout{{0, n, 0}},
		Transport: transport, Secret: NewSecret()}, l.hear)
	l.cards = NewExchange(n, n, nil, true, (*localLinks)(l))
	for rank := range n {
		c, err := l.start(rank, segment)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		l.Clients = append(l.Clients, c)
	}
	return l, nil
}

func (l *Local) start(rank int, segment func(int) (*os.File, error)) (*Client, error) {
	line, err := l.hub.Open(rank)
	if err != nil {
		return nil, err
	}
	var shared *os.File
	if segment != nil {
		if shared, err = segment(rank); err != nil {
			return nil, errors.Join(err, line.Close())
		}
	}
	// As in a process of its own: the descriptor passes into the client's hands.
	own, err := Own(line)
	if err != nil {
		return nil, err
	}
	return Dial(own, shared)
}

func (l *Local) hear(r Report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reports = append(l.reports, r)
	l.changed.Broadcast()
	var err error
	switch r.Kind {
	case Joined:
		l.cards.Join(r.Rank, r.Card, r.Text)
	case Asked:
		l.cards.Ask(r.Rank, r.Of)
	case Abort:
		err = l.hub.Aborted(r.Rank, r.Code, r.Text)
	case Goodbye:
		if l.left++; l.left == l.size {
			err = l.hub.Release()
		}
	}
	mustTell(err)
}

// localLinks are the links of the only place of a job.
type localLinks Local

func (l *localLinks) Route(int, int) int        { return Parent } // of no rank
func (l *localLinks) Send(int, *Word)           {}
func (l *localLinks) All(k Lack)                { mustTell(l.hub.All(k)) }
func (l *localLinks) Card(to, of int, b []byte) { mustTell(l.hub.Card(to, of, b)) }

func mustTell(err error) {
	if err != nil {
		panic(err) // an encoder that fails on our own types
	}
}

// Wait returns the first report of that kind from that rank, once it is there.
func (l *Local) Wait(rank int, kind ReportKind) Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	for next := 0; ; {
		for ; next < len(l.reports); next++ {
			if r := l.reports[next]; r.Rank == rank && r.Kind == kind {
				return r
			}
		}
		l.changed.Wait()
	}
}

// Kill plays a rank's death: its line closes and all others are told.
func (l *Local) Kill(rank int, how string) error {
	err := l.hub.Drain(rank)
	return errors.Join(err, l.hub.Died(rank, 1, how, false))
}

// Vanish plays the launcher's end: all lines close.
func (l *Local) Vanish() error { return l.hub.Close() }

// Close closes the clients that are still open, then the launcher's side.
func (l *Local) Close() error {
	var err error
	for _, c := range l.Clients {
		err = errors.Join(err, c.Close())
	}
	return errors.Join(err, l.hub.Close())
}

// NewSecret returns a fresh secret.
func NewSecret() []byte {
	b := make([]byte, SecretSize)
	if _, err := rand.Read(b); err != nil {
		panic(err) // crypto/rand ends the program before it returns one
	}
	return b
}
