// Package pmi speaks with the process manager that started this process as one of
// several, over the descriptor that it left open: version 1.1 of the process management
// interface. Hydra (mpiexec of MPICH) and Slurm (srun --mpi=pmi2) serve it; the latter
// has a version 2 as well, with nothing that is needed here.
//
// # Vocabulary
//
// The manager is the other end. The space is its table of keys and values, which all
// processes of a job write and read, and no other job. What one has put, all can get
// after a barrier.
//
// # The life of a client
//
//	Open      both ends agree on the version; the manager names the space
//	Share     rank 0 puts something, all pass a barrier, the others get it
//	Finalize  this process ends in good order
//
// A manager that sees the descriptor closed without a Finalize takes the process for
// failed; most then end the job.
//
// # What it does not do
//
// It starts nothing (no spawn), publishes no names, and keeps nothing secret from the manager,
// nor from who listens on the manager's own connections.
package pmi

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

// Names of the environment variables that a process manager sets.
const (
	VarFD   = "PMI_FD"
	VarRank = "PMI_RANK"
	VarSize = "PMI_SIZE"
)

// Place is where a process is in its job.
type Place struct{ FD, Rank, Size int }

// Find reads the place from an environment. It is nil, without an error, when no manager
// has left a descriptor.
func Find(getenv func(string) string) (*Place, error) {
	if getenv(VarFD) == "" {
		if port := getenv("PMI_PORT"); port != "" && getenv(VarRank) == "" {
			return nil, fmt.Errorf("pmi: PMI_PORT=%s: the process manager wants to be dialled; start the program so that it leaves a descriptor (%s) open, or with weftrun", port, VarFD)
		}
		return nil, nil
	}
	p := new(Place)
	for _, v := range []struct {
		name string
		to   *int
	}{{VarFD, &p.FD}, {VarRank, &p.Rank}, {VarSize, &p.Size}} {
		s := getenv(v.name)
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("pmi: %s=%q is not a number, though %s is set; a process manager sets all of %s, %s, %s",
				v.name, s, VarFD, VarFD, VarRank, VarSize)
		}
		*v.to = n
	}
	if p.Rank >= p.Size {
		return nil, fmt.Errorf("pmi: %s=%d of %s=%d", VarRank, p.Rank, VarSize, p.Size)
	}
	return p, nil
}

// Client is this process's end. One goroutine uses it at a time.
type Client struct {
	place Place
	line  *os.File
	in    *bufio.Reader
	space string
	value int // longest value
	once  sync.Once
	err   error // of Close
}

// Open greets the manager over line, which the client owns from here on, also when
// Open fails.
func Open(ctx context.Context, line *os.File, place Place) (*Client, error) {
	c := &Client{place: place, line: line, in: bufio.NewReaderSize(line, maxLine)}
	if err := c.open(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Client) open(ctx context.Context) error {
	f, err := c.ask(ctx, "response_to_init", "init", "pmi_version", "1", "pmi_subversion", "1")
	if err != nil {
		return err
	}
	if f["pmi_version"] != "1" {
		return fmt.Errorf("pmi: the process manager speaks version %q, this program 1.1", f["pmi_version"])
	}
	if f, err = c.ask(ctx, "maxes", "get_maxes"); err != nil {
		return err
	}
	if c.value, err = strconv.Atoi(f["vallen_max"]); err != nil || c.value < 16 {
		return fmt.Errorf("pmi: the process manager takes values of %q bytes", f["vallen_max"])
	}
	if f, err = c.ask(ctx, "my_kvsname", "get_my_kvsname"); err != nil {
		return err
	}
	if c.space = f["kvsname"]; c.space == "" {
		return errors.New("pmi: the process manager names no space for keys")
	}
	return nil
}

// Space names what the processes of this job share, and no other.
func (c *Client) Space() string { return c.space }

// ask sends a command and returns the answer, which is of the given kind.
func (c *Client) ask(ctx context.Context, kind, cmd string, args ...string) (fields, error) {
	line, err := format(cmd, args...)
	if err != nil {
		return nil, err
	}
	if err := c.line.SetDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("pmi: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.line.SetDeadline(time.Unix(1, 0)) }) // fails when closed, as the read will
	defer stop()
	if _, err = c.line.WriteString(line); err == nil {
		var b []byte
		if b, err = c.in.ReadSlice('\n'); err == nil {
			return answer(kind, cmd, string(b))
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return nil, fmt.Errorf("pmi: rank %d of %d asked the process manager for %s: %w", c.place.Rank, c.place.Size, cmd, err)
}

// answer checks what came for a command.
func answer(kind, cmd, line string) (fields, error) {
	f, err := parse(line)
	switch {
	case err != nil:
		return nil, err
	case f["cmd"] != kind:
		return nil, fmt.Errorf("pmi: the process manager said %q where %s was due for %s", line, kind, cmd)
	case f["rc"] != "" && f["rc"] != "0":
		return nil, fmt.Errorf("pmi: the process manager refused %s: rc=%s %s", cmd, f["rc"], f["msg"])
	}
	return f, nil
}

// maxShared bounds what Share carries.
const maxShared = 64 << 10

// Share gives all processes what rank 0 brings. All of them call it, in the same order; name is
// new each time.
func (c *Client) Share(ctx context.Context, name string, b []byte) ([]byte, error) {
	const most = 256 // hexadecimal digits in a piece: some managers' lines are short
	piece := min(most, c.value-1) &^ 1
	key := func(i int) string { return fmt.Sprintf("weft-%s-%d", name, i) }
	if c.place.Rank == 0 {
		if len(b) > maxShared {
			return nil, fmt.Errorf("pmi: %s of %d bytes, the limit is %d", name, len(b), maxShared)
		}
		text := hex.EncodeToString(b)
		// The first tells how much there is.
		if err := c.put(ctx, key(0), strconv.Itoa(len(text))); err != nil {
			return nil, err
		}
		for i := 1; len(text) > 0; i++ {
			n := min(piece, len(text))
			if err := c.put(ctx, key(i), text[:n]); err != nil {
				return nil, err
			}
			text = text[n:]
		}
	}
	if _, err := c.ask(ctx, "barrier_out", "barrier_in"); err != nil || c.place.Rank == 0 {
		return b, err
	}
	s, err := c.get(ctx, key(0))
	if err != nil {
		return nil, err
	}
	length, err := strconv.Atoi(s)
	if err != nil || length < 0 || length > 2*maxShared {
		return nil, fmt.Errorf("pmi: rank 0 shares %q bytes of %s; start all ranks from one build", s, name)
	}
	var text []byte
	for i := 1; len(text) < length; i++ {
		if s, err = c.get(ctx, key(i)); err != nil {
			return nil, err
		}
		if s == "" {
			return nil, fmt.Errorf("pmi: piece %d of %s is empty", i, name)
		}
		text = append(text, s...)
	}
	if b, err = hex.DecodeString(string(text)); err != nil {
		return nil, fmt.Errorf("pmi: what rank 0 shares as %s: %w", name, err)
	}
	return b, nil
}

func (c *Client) put(ctx context.Context, key, value string) error {
	_, err := c.ask(ctx, "put_result", "put", "kvsname", c.space, "key", key, "value", value)
	return err
}

func (c *Client) get(ctx context.Context, key string) (string, error) {
	f, err := c.ask(ctx, "get_result", "get", "kvsname", c.space, "key", key)
	return f["value"], err
}

// Finalize tells the manager that this process ends in good order.
func (c *Client) Finalize(ctx context.Context) error {
	_, err := c.ask(ctx, "finalize_ack", "finalize")
	return err
}

// Close closes the descriptor. Calls after the first do nothing.
func (c *Client) Close() error {
	c.once.Do(func() { c.err = c.line.Close() })
	return c.err
}
