package job

import (
	"sync"

	"github.com/weft-hpc/weft/internal/batch"
	"github.com/weft-hpc/weft/internal/control"
)

// note is something that a host tells the supervisor. One field is set.
type note struct {
	report *control.Report // a rank said something
	broken error           // our own output cannot be written
	say    string          // something the user must know
	far    *farNote        // another host
	left   *batch.Left     // what the batch system says of the job's time
}

// mailbox is where a host puts its notes.
type mailbox = mailboxOf[note]

func newMailbox() *mailbox { return newMailboxOf[note]() }

// mailboxOf takes things without ever making the giver wait, so that no goroutine
// of a host can hold up the supervisor that waits for it.
type mailboxOf[T any] struct {
	mu     sync.Mutex
	things []T
	some   chan struct{} // holds a token when there are things
}

func newMailboxOf[T any]() *mailboxOf[T] { return &mailboxOf[T]{some: make(chan struct{}, 1)} }

func (m *mailboxOf[T]) put(t T) {
	m.mu.Lock()
	m.things = append(m.things, t)
	m.mu.Unlock()
	select {
	case m.some <- struct{}{}:
	default:
	}
}

// take returns all things, in the order they came in.
func (m *mailboxOf[T]) take() []T {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.things
	m.things = nil
	return t
}
