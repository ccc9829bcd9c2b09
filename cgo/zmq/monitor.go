//go:build zmq && cgo && linux

package zmq

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/pebbe/zmq4"

	"github.com/weft-hpc/weft/internal/plane"
)

// state is what has become of a connection.
type state uint8

const (
	connecting state = iota
	refused
	up
	lost
)

func (s state) String() string { return [...]string{"connecting", "refused", "up", "lost"}[s] }

// happening is what a monitor tells. The number is that of a descriptor, an error, or nothing,
// as it depends on the event.
type happening struct {
	event  zmq4.Event
	number int
}

// These are the events that change a state.
const events = zmq4.EVENT_ACCEPTED | zmq4.EVENT_CONNECTED | zmq4.EVENT_CLOSED | zmq4.EVENT_DISCONNECTED | zmq4.EVENT_HANDSHAKE_SUCCEEDED |
	zmq4.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq4.EVENT_HANDSHAKE_FAILED_AUTH | zmq4.EVENT_ACCEPT_FAILED |
	zmq4.EVENT_MONITOR_STOPPED

// Why a handshake failed, or a link ended.
var (
	errNotOurs  = errors.New("what it says is not of this job")
	errNoKey    = errors.New("it does not know the job's secret")
	errNoAnswer = errors.New("nothing answers there")
	errChanged  = errors.New("what came was changed on the way, or is not from there")
)

// after returns the state of a connection after something has happened to it, and why, if that
// is not up.
func (s state) after(h happening) (state, error) {
	switch h.event {
	case zmq4.EVENT_ACCEPTED, zmq4.EVENT_CONNECTED:
		return s, nil
	case zmq4.EVENT_HANDSHAKE_SUCCEEDED:
		if s == connecting {
			return up, nil
		}
	case zmq4.EVENT_HANDSHAKE_FAILED_AUTH:
		if s == connecting {
			return refused, errNoKey
		}
	case zmq4.EVENT_HANDSHAKE_FAILED_PROTOCOL:
		// A message that CURVE cannot open, in a handshake or after it. ZeroMQ does not always end the
		// connection then.
		switch s {
		case connecting:
			return refused, fmt.Errorf("%w: %w", errNotOurs, errNoKey)
		case up:
			return lost, errChanged
		}
	case zmq4.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
		if s == connecting {
			if h.number == 0 || h.number == int(syscall.EPIPE) {
				return refused, fmt.Errorf("%w: %w", errNotOurs, plane.ErrClosed)
			}
			return refused, fmt.Errorf("%w: %w", errNotOurs, syscall.Errno(h.number))
		}
	case zmq4.EVENT_CLOSED:
		if s == connecting {
			return refused, errNoAnswer
		}
	case zmq4.EVENT_DISCONNECTED:
		switch s {
		case connecting:
			return refused, errNotOurs
		case up:
			return lost, plane.ErrClosed
		}
	}
	return s, nil
}

// monitor hears what happens to a socket's connections, on a goroutine of its own, and keeps it
// for the socket's owner.
type monitor struct {
	of    *socket
	pair  *socket
	group sync.WaitGroup

	mu   sync.Mutex
	list []happening
}

// watch starts a monitor. It must be the owner who calls it.
func watch(ctx *zmq4.Context, of *socket, name string) (*monitor, error) {
	addr := "inproc://monitor-" + name
	if err := of.Monitor(addr, events); err != nil {
		return nil, err
	}
	pair, err := newSocket(ctx, zmq4.PAIR)
	if err == nil {
		err = pair.Connect(addr)
	}
	if err != nil {
		if pair != nil {
			err = errors.Join(err, pair.close())
		}
		return nil, errors.Join(err, of.Monitor("", 0))
	}
	m := &monitor{of: of, pair: pair}
	m.group.Go(m.run)
	return m, nil
}

func (m *monitor) run() {
	defer m.pair.close()
	for {
		if err := m.pair.sleep(time.Time{}); err != nil {
			return // the context has ended
		}
		for {
			e, _, number, err := m.pair.RecvEvent(zmq4.DONTWAIT)
			if again(err) {
				break
			}
			if err != nil || e == zmq4.EVENT_MONITOR_STOPPED {
				return
			}
			m.mu.Lock()
			m.list = append(m.list, happening{e, number})
			m.mu.Unlock()
			m.of.rouse()
		}
	}
}

// take returns what has happened, for the owner.
func (m *monitor) take() []happening {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.list
	m.list = nil
	return list
}

// stop ends the monitor. It must be the owner who calls it, before it closes the socket.
func (m *monitor) stop() error {
	err := m.of.Monitor("", 0)
	m.group.Wait()
	return err
}
