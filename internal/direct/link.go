package direct

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/plane"
)

// link is the end of a rank above 0: it carries the rank's line to rank 0.
type link struct {
	number int
	mine   card
	notice func(string)
	group  sync.WaitGroup

	mu     sync.Mutex
	member plane.Member
	line   *os.File // our end of the line
	rank   *os.File // the rank's end
	lay    *layout
	laid   chan struct{} // closed with lay or err
	err    error
	closed bool
}

func newLink(rank int, mine card, notice func(string)) *link {
	return &link{number: rank, mine: mine, notice: notice, laid: make(chan struct{})}
}

// join dials rank 0, and returns when all ranks have come.
func (l *link) join(ctx context.Context, inv *invitation) (*layout, error) {
	way, err := plane.Lookup(plane.TCP)
	if err != nil {
		return nil, err
	}
	m, err := way.Join(ctx, planeConfig(inv), strconv.Itoa(l.number), inv.Addrs, l)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.member = m
	l.mu.Unlock()
	m.Send(encode(&l.mine))
	select {
	case <-l.laid:
	case <-ctx.Done():
		return nil, fmt.Errorf("waited for all ranks to come: %w", context.Cause(ctx))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	l.group.Go(func() { copyLine(l.line, m.Send) })
	return l.lay, nil
}

// joined tells whether rank 0 was reached.
func (l *link) joined() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.member != nil
}

// Up implements plane.Handler, as the next three do, on plane's goroutines.
func (l *link) Up(int) {}

// Frame implements plane.Handler.
func (l *link) Frame(_ int, b []byte) {
	l.mu.Lock()
	if l.lay != nil || l.err != nil {
		line := l.line
		l.mu.Unlock()
		if line != nil {
			_, _ = line.Write(b) // fails when the rank has closed its line, and hears no more
		}
		return
	}
	defer l.mu.Unlock()
	lay := new(layout)
	err := decode(b, lay)
	switch {
	case err != nil:
	case lay.Failed != "":
		err = errors.New(lay.Failed)
	default:
		l.line, l.rank, err = control.Pair()
	}
	if l.err = err; err == nil {
		l.lay = lay
	}
	close(l.laid)
}

// Down implements plane.Handler.
func (l *link) Down(_ int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lay == nil && l.err == nil {
		l.err = fmt.Errorf("rank 0 was there and is gone: %v", because(err))
		close(l.laid)
	}
	if l.line != nil {
		if err != nil && !l.closed {
			l.notice("rank 0, which keeps the job together, was lost: " + err.Error())
		}
		l.line.Close() // the rank hears that its line has ended
	}
}

// Refused implements plane.Handler.
func (l *link) Refused(int, error) {}

// close sends what the rank has said, whose end of the line is closed by now.
func (l *link) close() error {
	l.mu.Lock()
	l.closed = true
	m := l.member
	if l.rank != nil {
		l.rank.Close() // if nobody has taken it up
	}
	l.mu.Unlock()
	l.group.Wait()
	if m == nil {
		return nil
	}
	return m.Close()
}
