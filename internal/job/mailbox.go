package job

import (
	"sync"

	"github.com/weft-hpc/weft/internal/control"
)

// note is something that a host tells the supervisor. One field is set.
type note struct {
	report *control.Report // a rank said something
	broken error           // our own output cannot be written
	say    string          // something the user must know
}

// mailbox takes notes without ever making the giver wait, so that no goroutine
// of a host can hold up the supervisor that waits for it.
type mailbox struct {
	mu    sync.Mutex
	notes []note
	some  chan struct{} // holds a token when there are notes
}

func newMailbox() *mailbox { return &mailbox{some: make(chan struct{}, 1)} }

func (m *mailbox) put(n note) {
	m.mu.Lock()
	m.notes = append(m.notes, n)
	m.mu.Unlock()
	select {
	case m.some <- struct{}{}:
	default:
	}
}

// take returns all notes, in the order they came in.
func (m *mailbox) take() []note {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.notes
	m.notes = nil
	return n
}
