package weft_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-hpc/weft"
)

// These tests run real ranks: this test binary under a real weftrun, once for
// each transport. A program is named by an environment variable.
const programVariable = "WEFT_TEST_PROGRAM"

// waysVariable restricts windows to one way to work.
const waysVariable = "WEFT_TEST_WINDOWS"

// transportsVariable lists the transports to test, for hosts that have more than these.
const transportsVariable = "WEFT_TEST_TRANSPORTS"

func testTransports() []string {
	if names := os.Getenv(transportsVariable); names != "" {
		return strings.Fields(names)
	}
	return []string{"shm", "tcp"}
}

// weftrunVariable names a weftrun that is built already, for hosts where building takes long.
const weftrunVariable = "WEFT_TEST_WEFTRUN"

var weftrun string

func TestMain(m *testing.M) {
	if name := os.Getenv(programVariable); name != "" {
		var opts []weft.Option
		if way := os.Getenv(waysVariable); way != "" {
			opts = append(opts, weft.WithWindows(way))
		}
		weft.Main(programs[name], opts...)
	}
	dir, err := os.MkdirTemp("", "weft-test-")
	if weftrun = os.Getenv(weftrunVariable); err == nil && weftrun == "" {
		weftrun = filepath.Join(dir, "weftrun")
		var out []byte
		if out, err = exec.Command("go", "build", "-o", weftrun, "./cmd/weftrun").CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// emulatedVariable says that the processor is emulated, some twenty times slower than a real one.
const emulatedVariable = "WEFT_TEST_EMULATED"

// launchLimit is the time that a job of launch may take.
func launchLimit() time.Duration {
	if os.Getenv(emulatedVariable) != "" {
		return 3 * time.Minute
	}
	return time.Minute
}

// idleLimit is the processor time that a rank may use in a second of waiting. One that
// spins would use all of it.
func idleLimit() time.Duration {
	if os.Getenv(emulatedVariable) != "" {
		return 300 * time.Millisecond
	}
	return 50 * time.Millisecond
}

var programs = map[string]func(ctx context.Context, c *weft.Comm) error{
	"sizes": func(ctx context.Context, c *weft.Comm) error {
		n := c.Size()
		right, left := (c.Rank()+1)%n, (c.Rank()+n-1)%n
		for i, size := range append(sizes, 8<<20+3) {
			for _, arena := range []bool{false, true} {
				out, in := make([]byte, size), make([]byte, size)
				if arena {
					a, err := weft.Alloc[byte](c.World(), size)
					if err != nil {
						return err
					}
					b, err := weft.Alloc[byte](c.World(), size)
					if err != nil {
						return err
					}
					defer a.Free()
					defer b.Free()
					out, in = a.Slice(), b.Slice()
				}
				fill(out, c.Rank()+i)
				st, err := weft.Sendrecv(ctx, c, out, right, i, in, left, i)
				if err != nil {
					return err
				}
				if st.Count != size {
					return fmt.Errorf("%d of %d bytes", st.Count, size)
				}
				if err := check(in, left+i); err != nil {
					return err
				}
			}
		}
		return nil
	},
	"collectives": func(ctx context.Context, c *weft.Comm) error {
		for _, count := range []int{0, 1, 7, 5000, 100001} {
			if err := collectives(ctx, c, count, c.Size()-1); err != nil {
				return err
			}
		}
		return nil
	},
	// Messages meet a rank that computes: the I/O goroutine has to answer.
	"progress": func(ctx context.Context, c *weft.Comm) error {
		const bytes = 1 << 20
		s := c.Scope(ctx)
		if c.Rank() == 0 {
			start := time.Now()
			if err := weft.Send(ctx, c, make([]byte, bytes), 1, 0); err != nil { // a rendezvous
				return err
			}
			if d := time.Since(start); d > time.Second {
				return fmt.Errorf("a message to a rank that computes took %v", d)
			}
			return weft.Send(ctx, c, []byte{1}, 1, 1)
		}
		r := weft.Irecv(s, c, make([]byte, bytes), 0, 0)
		stop := weft.Irecv(s, c, make([]byte, 1), 0, 1)
		x := 1.0
		for start := time.Now(); time.Since(start) < 3*time.Second; {
			for range 1000 {
				x += 1 / x
			}
			select {
			case <-stop.Done(): // a look at a channel is no call of weft
				_, err := r.Wait(ctx)
				return errors.Join(err, s.Wait())
			default:
			}
		}
		return fmt.Errorf("nothing moved while this rank computed (%v)", x)
	},
	// A rank that waits costs no processor time.
	"idle": func(ctx context.Context, c *weft.Comm) error {
		if c.Rank() == 0 {
			time.Sleep(time.Second)
			return weft.Send(ctx, c, []byte{1}, 1, 0)
		}
		before := processorTime()
		if _, err := weft.Recv(ctx, c, make([]byte, 1), 0, 0); err != nil {
			return err
		}
		if used := processorTime() - before; used > idleLimit() {
			return fmt.Errorf("one second in Recv took %v of processor time", used)
		}
		return nil
	},
	"flood": func(ctx context.Context, c *weft.Comm) error {
		const messages = 100000
		if c.Rank() > 0 {
			for i := range messages {
				if err := weft.Send(ctx, c, []int64{int64(i)}, 0, 0); err != nil {
					return err
				}
			}
			return nil
		}
		time.Sleep(200 * time.Millisecond) // the senders run into their limits
		next := make([]int64, c.Size())
		buf := make([]int64, 1)
		for range messages * (c.Size() - 1) {
			st, err := weft.Recv(ctx, c, buf, weft.AnySource, 0)
			if err != nil {
				return err
			}
			if buf[0] != next[st.Source] {
				return fmt.Errorf("message %d of rank %d when %d was due", buf[0], st.Source, next[st.Source])
			}
			next[st.Source]++
		}
		if s := c.World().Stats(); s.UnexpectedBytesMax > 64<<20 {
			return fmt.Errorf("%d unexpected bytes", s.UnexpectedBytesMax)
		}
		return nil
	},
	"die in rendezvous": func(ctx context.Context, c *weft.Comm) error {
		big := make([]byte, 64<<20)
		if c.Rank() == 1 {
			if err := weft.Send(ctx, c, []byte{1}, 0, 0); err != nil {
				return err
			}
			s := c.Scope(ctx)
			weft.Isend(s, c, big, 0, 1)
			weft.Irecv(s, c, big, 0, 2)
			time.Sleep(10 * time.Millisecond)
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		if c.Rank() == 0 {
			if _, err := weft.Recv(ctx, c, make([]byte, 1), 1, 0); err != nil {
				return err
			}
			return weft.Send(ctx, c, big, 1, 2)
		}
		return weft.Barrier(ctx, c)
	},
	"panic": func(ctx context.Context, c *weft.Comm) error {
		if c.Rank() == 1 {
			panic("index of the halo is negative")
		}
		return weft.Barrier(ctx, c)
	},
	"error": func(ctx context.Context, c *weft.Comm) error {
		if c.Rank() == 1 {
			return errors.New("the input file has no rows")
		}
		return weft.Barrier(ctx, c)
	},
	"one leaves": func(ctx context.Context, c *weft.Comm) error {
		if c.Rank() == 1 {
			return nil
		}
		_, err := weft.Recv(ctx, c, make([]byte, 1), 1, 0)
		if !errors.Is(err, weft.ErrRankLeft) {
			return fmt.Errorf("receive from a rank that left: %v", err)
		}
		return nil
	},
	"send to one that left": func(ctx context.Context, c *weft.Comm) error {
		if c.Rank() == 1 {
			return nil
		}
		err := weft.Send(ctx, c, []byte{1}, 1, 0) // succeeds until it is known
		if err == nil {
			_, err = weft.Recv(ctx, c, make([]byte, 1), 1, 0)
		}
		if !errors.Is(err, weft.ErrRankLeft) {
			return fmt.Errorf("the other rank left: %v", err)
		}
		return nil
	},
	"two roots": func(ctx context.Context, c *weft.Comm) error {
		buf := []int{c.Rank()}
		return weft.Bcast(ctx, c, buf, c.Rank()) // both only send
	},
	"last word": func(ctx context.Context, c *weft.Comm) error {
		// What was sent before leaving arrives, however late it is received.
		if c.Rank() > 0 {
			for i := range 100 {
				if err := weft.Send(ctx, c, make([]byte, i*100), 0, i); err != nil {
					return err
				}
			}
			return nil
		}
		time.Sleep(300 * time.Millisecond)
		for range 100 * (c.Size() - 1) {
			m, st, err := weft.RecvAppend[byte](ctx, c, nil, weft.AnySource, weft.AnyTag)
			if err != nil || len(m) != 100*st.Tag {
				return fmt.Errorf("%d bytes, %+v, %v", len(m), st, err)
			}
		}
		return nil
	},
	"pending": func(ctx context.Context, c *weft.Comm) error {
		weft.Irecv(c.Scope(ctx), c, make([]byte, 1), 0, 0)
		return nil
	},
	"memory": func(ctx context.Context, c *weft.Comm) error {
		_, err := weft.Alloc[float64](c.World(), 1<<40)
		if !errors.Is(err, weft.ErrMemory) || !strings.Contains(err.Error(), "--arena") {
			return fmt.Errorf("8 TiB from the arena: %v", err)
		}
		b, err := weft.Alloc[float64](c.World(), 1000)
		if err != nil {
			return err
		}
		return b.Free()
	},
}

func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// launch runs a program and returns its output and exit code. A job that takes
// longer than launchLimit ends with 124.
func launch(t testing.TB, ranks int, transport, program string, args ...string) (out string, code int) {
	t.Helper()
	args = append([]string{"-n", fmt.Sprint(ranks), "--transport", transport, "--timeout", launchLimit().String(), "-x", programVariable + "=" + program}, args...)
	cmd := exec.Command(weftrun, append(args, os.Args[0])...)
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return b.String(), exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return b.String(), 0
}

func TestProcesses(t *testing.T) {
	for _, transport := range testTransports() {
		for _, test := range []struct {
			program string
			ranks   []int
			code    int
			text    string
			shmOnly bool
		}{
			{"sizes", []int{1, 2, 3, 5, 8}, 0, "", false},
			{"collectives", []int{1, 2, 4, 7}, 0, "", false},
			{"progress", []int{2}, 0, "", false},
			{"idle", []int{2}, 0, "", false},
			{"flood", []int{2, 4}, 0, "", false},
			{"die in rendezvous", []int{2, 3}, 128 + 9, "rank 1", false},
			{"panic", []int{2, 4}, 2, "index of the halo is negative", false},
			{"error", []int{2, 4}, 1, "the input file has no rows", false},
			{"one leaves", []int{2, 3}, 0, "", false},
			{"send to one that left", []int{2, 3}, 0, "", false},
			{"two roots", []int{2}, 1, "Bcast of 1 int with root", true}, /* elsewhere it may come too late */
			{"last word", []int{2, 4}, 0, "", false},
			{"pending", []int{1, 2}, 1, "Scope.Wait", false},
			{"memory", []int{2}, 0, "", true}, /* elsewhere Alloc is ordinary memory */
		} {
			if transport != "shm" && test.shmOnly {
				continue
			}
			for _, n := range test.ranks {
				t.Run(fmt.Sprintf("%s/%s/%d", transport, test.program, n), func(t *testing.T) {
					start := time.Now()
					out, code := launch(t, n, transport, test.program)
					if code != test.code || !strings.Contains(out, test.text) {
						t.Errorf("exit code %d, want %d and %q; output:\n%s", code, test.code, test.text, out)
					}
					if d := time.Since(start); d > 30*time.Second {
						t.Errorf("took %v", d)
					}
				})
			}
		}
	}
}

func TestUnknownTransport(t *testing.T) {
	if out, code := launch(t, 2, "carrier-pigeon", "sizes"); code == 0 || !strings.Contains(out, "shm") {
		t.Errorf("exit code %d, output:\n%s", code, out)
	}
}

func TestNotLaunched(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), programVariable+"=sizes", "SLURM_JOB_ID=17")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "Slurm job 17") || !strings.Contains(string(out), "weftrun") {
		t.Errorf("%v: %s", err, out)
	}
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), programVariable+"=sizes")
	if out, err := cmd.CombinedOutput(); err != nil { // a world of one
		t.Errorf("%v: %s", err, out)
	}
}
