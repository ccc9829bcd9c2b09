package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/weft-hpc/weft/internal/plane"
)

// The messages of the measurement. The root's begin with one of these; what members send
// begins with the same, or with data.
const (
	ctlEcho  = 'e' // send it back
	ctlFlood = 'f' // send data on credit
	ctlGrant = 'g' // u32: more credit
	ctlStop  = 's' // no more of it
	ctlBurst = 'b' // u32: so many messages of ctlBurst
	ctlData  = 'd'
)

const (
	ctlProcesses = 4 // that play members which do not flood
	ctlPiece     = 16 << 10
	ctlCredit    = 32 << 10
	ctlMessages  = 200_000
	ctlPatience  = 60 * time.Second
)

// part is what one of the processes plays, on its standard input.
type part struct {
	Way    string
	Addr   string
	Job    string
	Secret []byte
	First  int
	Count  int
}

// conductor is the root's handler.
type conductor struct {
	root  plane.Root
	ready chan struct{} // root is set
	up    chan int
	echo  chan int // members that sent an echo
	burst chan struct{}
	bad   chan error

	mu      sync.Mutex
	flooded int64 // bytes
	left    int   // of a burst
}

func (c *conductor) Up(m int) { c.up <- m }

func (c *conductor) Frame(m int, b []byte) {
	switch b[0] {
	case ctlEcho:
		c.echo <- m
	case ctlBurst:
		c.mu.Lock()
		c.left--
		over := c.left == 0
		c.mu.Unlock()
		if over {
			c.burst <- struct{}{}
		}
	case ctlData:
		c.mu.Lock()
		c.flooded += int64(len(b))
		c.mu.Unlock()
		<-c.ready
		c.root.Send(m, binary.LittleEndian.AppendUint32([]byte{ctlGrant}, uint32(len(b))))
	}
}

func (c *conductor) Down(m int, err error) {
	if err != nil {
		c.fail(fmt.Errorf("member %d: %w", m, err))
	}
}

func (c *conductor) Refused(_ int, err error) { c.fail(err) }

func (c *conductor) fail(err error) {
	select {
	case c.bad <- err:
	default: // the first one counts
	}
}

// wait waits for n things.
func wait[T any](ctx context.Context, c *conductor, from <-chan T, n int) error {
	limit := time.NewTimer(ctlPatience)
	defer limit.Stop()
	for i := range n {
		select {
		case <-from:
		case err := <-c.bad:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-limit.C:
			return fmt.Errorf("%d of %d answers after %v", i, n, ctlPatience)
		}
	}
	return nil
}

// run measures one plane.
func (b *controlBench) run(ctx context.Context, name string) (res *controlResult, err error) {
	way, err := plane.Lookup(name)
	if err != nil {
		return nil, err
	}
	cfg := plane.Config{Job: "bench", Secret: make([]byte, 32), Build: version()}
	if _, err := rand.Read(cfg.Secret); err != nil {
		return nil, err
	}
	names := make([]string, b.Members)
	for i := range names {
		names[i] = memberName(i)
	}
	c := &conductor{ready: make(chan struct{}), up: make(chan int, b.Members), echo: make(chan int, b.Members), burst: make(chan struct{}, 1), bad: make(chan error, 1)}
	if c.root, err = way.Listen(cfg, "127.0.0.1:0", names, c); err != nil {
		return nil, err
	}
	close(c.ready)
	cast, err := b.hire(ctx, part{Way: name, Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(c.root.Port())), Job: cfg.Job, Secret: cfg.Secret})
	defer func() {
		err = errors.Join(err, c.root.Close(), cast.dismiss())
	}()
	if err != nil {
		return nil, err
	}
	res = &controlResult{Plane: name}
	return res, b.measure(ctx, c, cast, res)
}

func memberName(i int) string { return "host" + strconv.Itoa(i) }

func (b *controlBench) measure(ctx context.Context, c *conductor, cast *cast, res *controlResult) error {
	files, began := openFiles(), time.Now()
	if err := cast.begin(); err != nil {
		return err
	}
	if err := wait(ctx, c, c.up, b.Members); err != nil {
		return err
	}
	res.SetUp = time.Since(began)
	res.RootFiles = float64(openFiles()-files) / float64(b.Members)
	theirs, err := cast.files()
	if err != nil {
		return err
	}
	res.MemberFiles = float64(theirs) / float64(b.Members)

	if res.Idle, err = b.trips(ctx, c, b.Members-1); err != nil {
		return err
	}
	for i := range b.Flooders {
		c.root.Send(i, []byte{ctlFlood})
	}
	time.Sleep(100 * time.Millisecond) // it gets going
	before, began := c.taken(), time.Now()
	if res.Flood, err = b.trips(ctx, c, b.Members-1); err != nil {
		return err
	}
	if res.Flooder, err = b.trips(ctx, c, 0); err != nil {
		return err
	}
	res.FloodRate = float64(c.taken()-before) / time.Since(began).Seconds()
	for i := range b.Flooders {
		c.root.Send(i, []byte{ctlStop})
	}

	time.Sleep(100 * time.Millisecond) // it comes to rest
	began = time.Now()
	for i := range b.Members {
		c.root.Send(i, []byte{ctlEcho})
	}
	if err := wait(ctx, c, c.echo, b.Members); err != nil {
		return err
	}
	res.ToAll = time.Since(began)

	c.mu.Lock()
	c.left = ctlMessages
	c.mu.Unlock()
	began = time.Now()
	c.root.Send(0, binary.LittleEndian.AppendUint32([]byte{ctlBurst}, ctlMessages))
	err = wait(ctx, c, c.burst, 1)
	res.Rate = ctlMessages / time.Since(began).Seconds()
	return err
}

func (c *conductor) taken() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flooded
}

// trips sends messages to a member and back, one after the other.
func (b *controlBench) trips(ctx context.Context, c *conductor, member int) (trips, error) {
	var all []time.Duration
	word := make([]byte, 16)
	word[0] = ctlEcho
	for end := time.Now().Add(b.Time); time.Now().Before(end); {
		began := time.Now()
		c.root.Send(member, word)
		if err := wait(ctx, c, c.echo, 1); err != nil {
			return trips{}, err
		}
		all = append(all, time.Since(began))
		time.Sleep(200 * time.Microsecond) // messages of this kind are rare
	}
	slices.Sort(all)
	n := len(all)
	return trips{Count: n, P50: all[n/2], P99: all[n*99/100], Max: all[n-1]}, nil
}

// cast are the processes that play members.
type cast struct {
	cmds []*exec.Cmd
	in   []io.WriteCloser
	out  []*bufio.Reader
}

// hire starts them, and returns when they are ready to begin.
func (b *controlBench) hire(ctx context.Context, p part) (*cast, error) {
	c := new(cast)
	exe, err := os.Executable()
	if err != nil {
		return c, err
	}
	for i := range 1 + ctlProcesses {
		argv := []string{exe, "bench", "control", "--play"}
		if i == 0 {
			p.First, p.Count = 0, b.Flooders
			argv = slices.Insert(argv, 0, "nice", "-n", "19") // in a job they have processors of their own
		} else {
			quiet := b.Members - b.Flooders
			p.First = b.Flooders + quiet*(i-1)/ctlProcesses
			p.Count = b.Flooders + quiet*i/ctlProcesses - p.First
		}
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Stderr = os.Stderr
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err := errors.Join(err1, err2); err != nil {
			return c, err
		}
		if err := cmd.Start(); err != nil {
			return c, err
		}
		c.cmds, c.in, c.out = append(c.cmds, cmd), append(c.in, in), append(c.out, bufio.NewReader(out))
		if err := json.NewEncoder(in).Encode(p); err != nil {
			return c, err
		}
	}
	for _, out := range c.out {
		if _, err := out.ReadString('\n'); err != nil {
			return c, fmt.Errorf("a process that plays members is not ready: %w", err)
		}
	}
	return c, nil
}

// begin has them join.
func (c *cast) begin() error {
	for _, in := range c.in {
		if _, err := in.Write([]byte("\n")); err != nil {
			return err
		}
	}
	return nil
}

// files returns how many descriptors their members have.
func (c *cast) files() (sum int, err error) {
	for _, out := range c.out {
		line, err := out.ReadString('\n')
		if err != nil {
			return 0, fmt.Errorf("members did not join: %w", err)
		}
		n, err := strconv.Atoi(line[:len(line)-1])
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// dismiss ends them.
func (c *cast) dismiss() error {
	var err error
	for _, in := range c.in {
		err = errors.Join(err, in.Close())
	}
	for _, cmd := range c.cmds {
		err = errors.Join(err, cmd.Wait())
	}
	return err
}

// openFiles counts this process's descriptors, where the kernel lists them.
func openFiles() int {
	list, _ := os.ReadDir("/proc/self/fd")
	return len(list)
}
