// Relay is the wire between two virtual machines: it takes the Ethernet frames
// of one and gives them to the other, and on command loses, doubles, delays or
// reorders them, or cuts the wire.
//
// Each machine's network card is a datagram socket (QEMU's -netdev dgram) with one
// frame in each datagram. In the directory DIR, which the machines' sockets are in as
// well, there are
//
//	a, b              the machines' own sockets
//	a.relay, b.relay  where the machines send to
//	control           a stream socket for commands, a line each; see command
//
// Datagrams in Unix sockets wait for a receiver that is slow, so without a
// command nothing is lost. The end of the process prints the counters.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	maxFrame   = 65536
	writeLimit = time.Second // for a machine that does not take its frames
)

func main() {
	seed := flag.Uint64("seed", 1, "seed of what is lost, doubled and reordered")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: relay [-seed N] DIR [COMMAND...]\n\nCOMMANDs are carried out first, like lines of the control socket.")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() < 1 {
		flag.Usage()
		os.Exit(2)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	w, err := newWire(flag.Arg(0), *seed)
	if err == nil {
		for _, line := range flag.Args()[1:] {
			if answer := w.command(line); !strings.HasPrefix(answer, "ok") {
				err = fmt.Errorf("%q: %s", line, answer)
				break
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "relay:", err)
		os.Exit(1)
	}
	w.start()
	<-stop
	w.close()
	for _, l := range w.lanes {
		fmt.Printf("relay: from %s: %v\n", l.name, &l.counters)
		if l.refused > 0 {
			fmt.Printf("relay: %d frames from %s came when the other machine was not there\n", l.refused, l.name)
		}
	}
}

// A wire has the sockets of both directions.
type wire struct {
	control net.Listener
	lanes   []*lane
	running sync.WaitGroup

	mu    sync.Mutex // guards the directions of all lanes, and what follows
	conns map[net.Conn]bool
	ended bool
}

// A lane moves the frames of one direction.
type lane struct {
	*direction
	from *net.UnixConn // frames come in here
	path string        // of the other machine's socket
	wake chan struct{} // a frame began to wait, or the wire ended

	sending sync.Mutex    // held from the direction's decision to the end of sending, for the order of frames; before wire.mu
	to      *net.UnixConn // connected to path, or nil
	refused uint64        // frames that the other machine did not take
}

// newWire makes the sockets in dir.
func newWire(dir string, seed uint64) (*wire, error) {
	w := &wire{conns: map[net.Conn]bool{}}
	for _, ends := range [][2]string{{"a", "b"}, {"b", "a"}} {
		from, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, ends[0]+".relay"), Net: "unixgram"})
		if err != nil {
			w.close()
			return nil, err
		}
		w.lanes = append(w.lanes, &lane{direction: newDirection(ends[0], seed), from: from, path: filepath.Join(dir, ends[1]),
			wake: make(chan struct{}, 1)})
	}
	var err error
	if w.control, err = net.Listen("unix", filepath.Join(dir, "control")); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *wire) start() {
	w.running.Add(2*len(w.lanes) + 1)
	for _, l := range w.lanes {
		go w.receive(l)
		go w.release(l)
	}
	go w.serve()
}

// close ends all that start began, and waits for it.
func (w *wire) close() {
	w.mu.Lock()
	w.ended = true
	for conn := range w.conns {
		conn.Close()
	}
	w.mu.Unlock()
	if w.control != nil {
		w.control.Close()
	}
	for _, l := range w.lanes {
		l.from.Close()
		l.notify()
	}
	w.running.Wait()
	for _, l := range w.lanes {
		l.hangUp()
	}
}

// receive passes on what one machine sends, until the wire ends.
func (w *wire) receive(l *lane) {
	defer w.running.Done()
	buffer := make([]byte, maxFrame)
	var out [][]byte
	for {
		n, err := l.from.Read(buffer)
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				fmt.Fprintf(os.Stderr, "relay: receiving from %s: %v\n", l.name, err)
			}
			return
		}
		l.sending.Lock()
		w.mu.Lock()
		out = l.pass(out[:0], buffer[:n], time.Now())
		_, waiting := l.nextDue()
		w.mu.Unlock()
		l.send(out)
		l.sending.Unlock()
		if waiting {
			l.notify()
		}
	}
}

// release sends the frames that waited, when they are due, until the wire ends.
func (w *wire) release(l *lane) {
	defer w.running.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var out [][]byte
	for {
		l.sending.Lock()
		w.mu.Lock()
		now := time.Now()
		out = l.due(out[:0], now)
		next, waiting := l.nextDue()
		ended := w.ended
		w.mu.Unlock()
		l.send(out)
		l.sending.Unlock()
		if ended {
			return
		}
		if waiting {
			timer.Reset(next.Sub(now))
		} else {
			timer.Reset(time.Hour)
		}
		select {
		case <-timer.C:
		case <-l.wake:
		}
	}
}

func (l *lane) notify() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// send gives frames to the other machine. One that is not there yet, or not any
// more, loses them, as on a real wire. The caller holds l.sending.
func (l *lane) send(frames [][]byte) {
	for _, frame := range frames {
		if l.to == nil {
			to, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: l.path, Net: "unixgram"})
			if err != nil {
				l.refused++
				continue
			}
			l.to = to
		}
		// The deadline is for a machine that hangs: then the wire must still hear commands and end.
		_ = l.to.SetWriteDeadline(time.Now().Add(writeLimit))
		if _, err := l.to.Write(frame); err != nil {
			l.refused++
			l.hangUp()
		}
	}
}

func (l *lane) hangUp() {
	if l.to != nil {
		l.to.Close()
		l.to = nil
	}
}

// serve answers the commands of the control socket's connections.
func (w *wire) serve() {
	defer w.running.Done()
	for {
		conn, err := w.control.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				fmt.Fprintln(os.Stderr, "relay: control:", err)
			}
			return
		}
		w.mu.Lock()
		if w.ended {
			conn.Close()
		}
		w.conns[conn] = true
		w.running.Add(1)
		w.mu.Unlock()
		go w.converse(conn)
	}
}

func (w *wire) converse(conn net.Conn) {
	defer w.running.Done()
	defer func() {
		w.mu.Lock()
		delete(w.conns, conn)
		w.mu.Unlock()
		conn.Close()
	}()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		if _, err := fmt.Fprintln(conn, w.command(lines.Text())); err != nil {
			return
		}
	}
}

// command carries out one line; when it returns, no frame escapes the change any more.
func (w *wire) command(line string) string {
	directions := make([]*direction, len(w.lanes))
	for i, l := range w.lanes {
		directions[i] = l.direction
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return command(line, directions)
}
