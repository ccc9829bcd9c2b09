// Package pmi speaks with the process manager that started this process as one of
// several, over the descriptor that it left open: versions 1.1 and 2 of the process management
// interface. Hydra (mpiexec of MPICH) and Slurm (srun --mpi=pmi2) serve both. The first is taken, unless
// the manager has only the second, or the environment asks for that.
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

const (
	varVersion = "PMI_VERSION" // by which users of MPICH ask for a version
	varJob     = "PMI_JOBID"   // what some managers want to hear in version 2
)

// Place is where a process is in its job.
type Place struct {
	FD, Rank, Size int
	Version        int    // of the interface, if one was asked for; else 0
	Job            string // as the manager calls it, if it says so
}

// Find reads the place from an environment. It is nil, without an error, when no manager
// has left a descriptor.
func Find(getenv func(string) string) (*Place, error) {
	if getenv(VarFD) == "" {
		if port := getenv("PMI_PORT"); port != "" && getenv(VarRank) == "" {
			return nil, fmt.Errorf("pmi: PMI_PORT=%s: the process manager wants to be dialled; start the program so that it leaves a descriptor (%s) open, or with weftrun", port, VarFD)
		}
		return nil, nil
	}
	p := &Place{Job: getenv(varJob)}
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
	switch s := getenv(varVersion); s {
	case "":
	case "1", "2":
		p.Version = int(s[0] - '0')
	default:
		return nil, fmt.Errorf("pmi: %s=%q is spoken by nobody here; there are 1 and 2", varVersion, s)
	}
	return p, nil
}

// Client is this process's end. One goroutine uses it at a time.
type Client struct {
	place Place
	line  *os.File
	in    *bufio.Reader
	talk  *dialect
	space string
	value int // longest value
	once  sync.Once
	err   error // of Close
}

// Open greets the manager over line, which the client owns from here on, also when
// Open fails.
func Open(ctx context.Context, line *os.File, place Place) (*Client, error) {
	c := &Client{place: place, line: line, in: bufio.NewReaderSize(line, maxLine), talk: &version1}
	if err := c.open(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Client) open(ctx context.Context) error {
	version := max(c.place.Version, 1)
	f, err := c.init(ctx, version)
	if f["pmi_version"] == "2" && c.place.Version == 0 { // it has no other
		version = 2
		f, err = c.init(ctx, version)
	}
	switch {
	case err != nil:
		return err
	case f["pmi_version"] != strconv.Itoa(version):
		return fmt.Errorf("pmi: the process manager speaks version %q, where %d was asked for; this program speaks 1.1 and 2", f["pmi_version"], version)
	case version == 2:
		return c.open2(ctx)
	}
	return c.open1(ctx)
}

// init is a line in all versions.
func (c *Client) init(ctx context.Context, version int) (fields, error) {
	subversion := map[int]string{1: "1", 2: "0"}
	return c.ask(ctx, verb{"init", "response_to_init"}, "pmi_version", strconv.Itoa(version), "pmi_subversion", subversion[version])
}

// open1 asks for what is known to a manager of version 1.1.
func (c *Client) open1(ctx context.Context) error {
	f, err := c.ask(ctx, verb{"get_maxes", "maxes"})
	if err != nil {
		return err
	}
	if c.value, err = strconv.Atoi(f["vallen_max"]); err != nil || c.value < 16 {
		return fmt.Errorf("pmi: the process manager takes values of %q bytes", f["vallen_max"])
	}
	if f, err = c.ask(ctx, verb{"get_my_kvsname", "my_kvsname"}); err != nil {
		return err
	}
	return c.named(f["kvsname"])
}

// open2 asks for the same by version 2, where the length of values is in the standard.
func (c *Client) open2(ctx context.Context) error {
	c.talk, c.value = &version2, 1024
	args := []string{"pmirank", strconv.Itoa(c.place.Rank), "threaded", "FALSE"}
	if c.place.Job != "" {
		args = append([]string{"pmijobid", c.place.Job}, args...)
	}
	if _, err := c.ask(ctx, verb{"fullinit", "fullinit-response"}, args...); err != nil {
		return err
	}
	f, err := c.ask(ctx, verb{"job-getid", "job-getid-response"})
	if err != nil {
		return err
	}
	return c.named(f["jobid"])
}

func (c *Client) named(space string) error {
	if c.space = space; space == "" {
		return errors.New("pmi: the process manager names no space for keys")
	}
	return nil
}

// verb is what a command is called, and its answer.
type verb struct{ cmd, answer string }

// dialect is how a version says things.
type dialect struct {
	format                   func(cmd string, args ...string) (string, error)
	read                     func(in *bufio.Reader) (string, error)
	parse                    func(string) (fields, error)
	put, barrier, get, leave verb
	space                    string // what keys are in
}

var (
	version1 = dialect{format: format, read: func(in *bufio.Reader) (string, error) { b, err := in.ReadSlice('\n'); return string(b), err }, parse: parse,
		put: verb{"put", "put_result"}, barrier: verb{"barrier_in", "barrier_out"}, get: verb{"get", "get_result"}, leave: verb{"finalize", "finalize_ack"}, space: "kvsname"}
	version2 = dialect{format: formatFrame, read: func(in *bufio.Reader) (string, error) { return readFrame(in) }, parse: parseFrame,
		put: verb{"kvs-put", "kvs-put-response"}, barrier: verb{"kvs-fence", "kvs-fence-response"}, get: verb{"kvs-get", "kvs-get-response"},
		leave: verb{"finalize", "finalize-response"}, space: "jobid"}
)

// Space names what the processes of this job share, and no other.
func (c *Client) Space() string { return c.space }

// ask sends a command and returns the answer.
func (c *Client) ask(ctx context.Context, v verb, args ...string) (fields, error) {
	line, err := c.talk.format(v.cmd, args...)
	if err != nil {
		return nil, err
	}
	if err := c.line.SetDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("pmi: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.line.SetDeadline(time.Unix(1, 0)) }) // fails when closed, as the read will
	defer stop()
	if _, err = c.line.WriteString(line); err == nil {
		var s string
		if s, err = c.talk.read(c.in); err == nil {
			return c.talk.answer(v, s)
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return nil, fmt.Errorf("pmi: rank %d of %d asked the process manager for %s: %w", c.place.Rank, c.place.Size, v.cmd, err)
}

// answer checks what came for a command. What a manager says that refuses comes with the error.
func (d *dialect) answer(v verb, line string) (fields, error) {
	f, err := d.parse(line)
	switch {
	case err != nil:
		return nil, err
	case f["cmd"] != v.answer:
		return nil, fmt.Errorf("pmi: the process manager said %q where %s was due for %s", line, v.answer, v.cmd)
	case f["rc"] != "" && f["rc"] != "0":
		return f, fmt.Errorf("pmi: the process manager refused %s: rc=%s %s%s", v.cmd, f["rc"], f["msg"], f["errmsg"])
	case f["flag"] == "FALSE":
		return f, fmt.Errorf("pmi: the process manager knows nothing for %s", v.cmd)
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
	if _, err := c.ask(ctx, c.talk.barrier); err != nil || c.place.Rank == 0 {
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
	args := []string{"key", key, "value", value}
	if c.talk == &version1 { // with version 2 there is but one space to write to
		args = append([]string{c.talk.space, c.space}, args...)
	}
	_, err := c.ask(ctx, c.talk.put, args...)
	return err
}

func (c *Client) get(ctx context.Context, key string) (string, error) {
	f, err := c.ask(ctx, c.talk.get, c.talk.space, c.space, "key", key)
	return f["value"], err
}

// Finalize tells the manager that this process ends in good order.
func (c *Client) Finalize(ctx context.Context) error {
	_, err := c.ask(ctx, c.talk.leave)
	return err
}

// Close closes the descriptor. Calls after the first do nothing.
func (c *Client) Close() error {
	c.once.Do(func() { c.err = c.line.Close() })
	return c.err
}
