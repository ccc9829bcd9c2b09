// Package tm speaks the task management protocol of PBS: it has the MoM, the daemon of
// PBS on each host of a job, start processes on all of them. They are part of the
// job, so PBS counts and kills them.
//
// # Vocabulary
//
// A node is a place of the job, counted from 0 as the lines of PBS_NODEFILE; a host may have
// several. A task is what was spawned on a node. A request has an event number, which its
// reply repeats; replies come in any order, and that of an [Conn.Obit] when its task has ended.
//
// # What it is made after
//
// The framing and the numbers of OpenPBS are those of a recorded exchange, which the tests replay. PBS
// Pro before version 20 and Torque send the same without frames; of these it was only read, never tried.
//
// # What it does not do
//
// It passes no output, no input and no signals: who spawns a task has other ways to talk to it.
package tm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Job says how to reach the MoM and what to tell it.
type Job struct {
	ID     string
	Cookie string
	Port   int   // on this host
	Task   int64 // that this process is part of
	Torque bool
}

// FromEnv reads what PBS tells a job's script.
func FromEnv(getenv func(string) string, torque bool) (Job, error) {
	j := Job{ID: getenv("PBS_JOBID"), Cookie: getenv("PBS_JOBCOOKIE"), Torque: torque}
	base := 16
	if torque {
		base = 10
	}
	var err error
	for _, name := range []string{"PBS_JOBID", "PBS_JOBCOOKIE", "PBS_MOMPORT", "PBS_TASKNUM"} {
		if getenv(name) == "" {
			return j, fmt.Errorf("tm: %s is not set", name)
		}
	}
	if j.Port, err = strconv.Atoi(getenv("PBS_MOMPORT")); err != nil || j.Port < 1 || j.Port > 65535 {
		return j, fmt.Errorf("tm: PBS_MOMPORT=%q is not a port", getenv("PBS_MOMPORT"))
	}
	if j.Task, err = strconv.ParseInt(getenv("PBS_TASKNUM"), base, 64); err != nil {
		return j, fmt.Errorf("tm: PBS_TASKNUM=%q is not a number", getenv("PBS_TASKNUM"))
	}
	return j, nil
}

// protocol returns the version of the protocol.
func (j *Job) protocol() int64 {
	if j.Torque {
		return 5
	}
	return 2
}

// Commands, and codes of replies.
const (
	version  = 2 // the same in all protocols
	cmdInit  = 100
	cmdSpawn = 102
	cmdObit  = 104

	replyOK    = 0
	replyError = 999
)

// Error is a request that the MoM refused.
type Error struct{ Code int }

func (e Error) Error() string {
	what := map[int]string{17000: "the system", 17002: "not connected", 17006: "not found", 17012: "rejected by a hook"}[e.Code]
	if what == "" {
		return fmt.Sprintf("TM error %d", e.Code)
	}
	return fmt.Sprintf("TM error %d (%s)", e.Code, what)
}

// magic begins a frame. A type follows, of which nothing is known but 0, and the length of the body.
const magic = "PKTV1\x00"

const (
	headerSize = len(magic) + 1 + 4
	maxFrame   = 1 << 20
	replyWait  = 10 * time.Second // for the first answer
)

// Reply is the MoM's answer to a request.
type Reply struct {
	Event  int
	Err    error // an Error, or nil
	Task   int64 // that was spawned
	Status int   // of an ended task: its exit status, or 256 and its signal
}

// Conn is a connection to the MoM. One goroutine at a time may send, one may call Next.
type Conn struct {
	job    Job
	framed bool
	conn   net.Conn
	in     *bufio.Reader
	nodes  []int
	event  int

	mu   sync.Mutex
	open map[int]int // commands of the requests under way, by event
}

// Dial asks the MoM for the job's nodes, and returns a connection for more.
func Dial(ctx context.Context, j Job) (*Conn, error) {
	ways := []bool{true, false}
	if j.Torque {
		ways = []bool{false, true}
	}
	var errs error
	for _, framed := range ways {
		c := &Conn{job: j, framed: framed, open: make(map[int]int)}
		err := c.init(ctx)
		if err == nil {
			return c, nil
		}
		errs = errors.Join(errs, err)
		if !closed(err) {
			break // it is not the framing
		}
	}
	if closed(errs) {
		return nil, fmt.Errorf("tm: the MoM at port %d closes the connection without an answer, as it does when it does not know job %s or its cookie", j.Port, j.ID)
	}
	return nil, fmt.Errorf("tm: the MoM at port %d: %w", j.Port, errs)
}

// closed tells whether the MoM has closed the connection instead of answering.
func closed(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) }

// init asks for the nodes, and then connects anew: so do the tools of PBS.
func (c *Conn) init(ctx context.Context) error {
	if err := c.connect(ctx); err != nil {
		return err
	}
	defer c.conn.Close()
	c.event = 1
	if err := c.send(c.request(cmdInit)); err != nil {
		return err
	}
	r, err := c.reply(func(r byteReader, _ int) error { return c.readNodes(r) })
	if err == nil {
		err = r.Err
	}
	if err != nil {
		return err
	}
	c.conn.Close()
	if err := c.connect(ctx); err != nil {
		return err
	}
	return c.conn.SetDeadline(time.Time{})
}

func (c *Conn) connect(ctx context.Context) (err error) {
	d := net.Dialer{Timeout: replyWait}
	if c.conn, err = d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(c.job.Port))); err != nil {
		return err
	}
	c.in = bufio.NewReader(c.conn)
	return c.conn.SetDeadline(time.Now().Add(replyWait))
}

func (c *Conn) readNodes(r byteReader) error {
	n, err := readInt(r)
	if err != nil {
		return err
	}
	if n < 1 || n > maxFrame {
		return fmt.Errorf("tm: a job of %d nodes", n)
	}
	c.nodes = make([]int, n)
	for i := range c.nodes {
		id, err := readInt(r)
		if err != nil {
			return err
		}
		c.nodes[i] = int(id)
	}
	if _, err := readString(r); err != nil { // the parent's job, node and task, which nobody needs
		return err
	}
	for range 2 {
		if _, err := readInt(r); err != nil {
			return err
		}
	}
	return nil
}

// Nodes returns the numbers of the job's nodes.
func (c *Conn) Nodes() []int { return c.nodes }

// request begins a request with the next event.
func (c *Conn) request(command int) []byte {
	b := appendInt(nil, c.job.protocol())
	b = appendInt(b, version)
	b = appendString(b, c.job.ID)
	b = appendString(b, c.job.Cookie)
	b = appendInt(b, int64(command))
	b = appendInt(b, int64(c.event))
	return appendInt(b, c.job.Task)
}

func (c *Conn) send(body []byte) error {
	if c.framed {
		head := append([]byte(magic), 0)
		body = append(binary.BigEndian.AppendUint32(head, uint32(len(body))), body...)
	}
	// A MoM that does not read any more would hold up the launcher with all that it does.
	if err := c.conn.SetWriteDeadline(time.Now().Add(replyWait)); err != nil {
		return err
	}
	_, err := c.conn.Write(body)
	return err
}

// ask sends a request that Next will find the reply of.
func (c *Conn) ask(command int, rest func([]byte) []byte) (event int, err error) {
	c.event++
	c.mu.Lock()
	c.open[c.event] = command
	c.mu.Unlock()
	return c.event, c.send(rest(c.request(command)))
}

// Spawn starts a program on a node, with some variables on top of what the MoM sets. It gets no shell,
// an empty standard input and the user's home directory. No argument may be empty: old
// versions lose it. The reply has the task, whether or not the program was found.
func (c *Conn) Spawn(node int, argv, env []string) (event int, err error) {
	for _, a := range argv {
		if a == "" {
			return 0, errors.New("tm: an empty argument")
		}
	}
	return c.ask(cmdSpawn, func(b []byte) []byte {
		b = appendInt(appendInt(b, int64(node)), int64(len(argv)))
		for _, a := range argv {
			b = appendString(b, a)
		}
		for _, e := range env {
			b = appendString(b, e)
		}
		return appendString(b, "")
	})
}

// Obit asks for the end of a task. The reply comes when it has ended.
func (c *Conn) Obit(node int, task int64) (event int, err error) {
	return c.ask(cmdObit, func(b []byte) []byte { return appendInt(appendInt(b, int64(node)), task) })
}

// Next waits for a reply.
func (c *Conn) Next() (Reply, error) {
	var got Reply
	r, err := c.reply(func(r byteReader, event int) error {
		command, ok := c.take(event)
		if !ok {
			return fmt.Errorf("tm: a reply to event %d, which nobody asked for", event)
		}
		n, err := readInt(r)
		if command == cmdSpawn {
			got.Task = n
		} else {
			got.Status = int(n)
		}
		return err
	})
	if r.Err != nil {
		c.take(r.Event)
	}
	got.Event, got.Err = r.Event, r.Err
	return got, err
}

// take returns the command of a request whose reply is here.
func (c *Conn) take(event int) (command int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	command, ok = c.open[event]
	delete(c.open, event)
	return command, ok
}

// reply reads one reply; what follows the header of a good one is for rest.
func (c *Conn) reply(rest func(r byteReader, event int) error) (Reply, error) {
	var out Reply
	var r byteReader = c.in
	if c.framed {
		head := make([]byte, headerSize)
		if n, err := io.ReadFull(c.in, head); err != nil {
			if n > 0 {
				return out, fmt.Errorf("tm: %q where a frame should be: %w", head[:n], unexpected(err))
			}
			return out, err
		}
		if string(head[:len(magic)]) != magic {
			return out, fmt.Errorf("tm: %q where a frame should be", head)
		}
		n := binary.BigEndian.Uint32(head[len(magic)+1:])
		if n > maxFrame {
			return out, fmt.Errorf("tm: a frame of %d bytes", n)
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(c.in, body); err != nil {
			return out, unexpected(err)
		}
		r = bytes.NewReader(body)
	}
	var head [4]int64 // protocol, version, code, event
	for i := range head {
		var err error
		if head[i], err = readInt(r); err != nil {
			if i > 0 || c.framed {
				err = unexpected(err)
			}
			return out, err
		}
	}
	if head[0] != c.job.protocol() {
		return out, fmt.Errorf("tm: the MoM speaks protocol %d, not %d", head[0], c.job.protocol())
	}
	out.Event = int(head[3])
	var err error
	switch head[2] {
	case replyOK:
		err = rest(r, out.Event)
	case replyError:
		var code int64
		code, err = readInt(r)
		out.Err = Error{int(code)}
	default:
		err = fmt.Errorf("tm: a reply with code %d", head[2])
	}
	if err != nil {
		err = unexpected(err)
	}
	return out, err
}

// Close closes the connection, which ends a Next. Tasks run on.
func (c *Conn) Close() error { return c.conn.Close() }
