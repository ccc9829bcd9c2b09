package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/control"
)

// These tests build weftrun and run real jobs with it. Programs are /bin/sh, and
// this test binary, which plays a rank when ACT names an act below.

var (
	weftrun string // the built command
	self    string // this test binary

	// Every job runs under agents: see TestTheSameUnderAgents.
	overAgents = os.Getenv("OVER_AGENTS") != ""
)

// everybody are all ranks but one, which has sent nothing to any of them.
func everybody(c *control.Client) (others []int) {
	for r := range c.Env().Size {
		if r != c.Env().Rank {
			others = append(others, r)
		}
	}
	return others
}

// leaveJob ends a rank in good order.
func leaveJob(c *control.Client) error {
	return errors.Join(c.Leave(context.Background(), everybody(c)), c.Close())
}

func TestMain(m *testing.M) {
	if act := os.Getenv("ACT"); act != "" {
		os.Exit(perform(act))
	}
	os.Exit(build(m))
}

func build(m *testing.M) int {
	dir, err := os.MkdirTemp("", "weftrun-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	weftrun = filepath.Join(dir, "weftrun")
	if out, err := exec.Command("go", "build", "-o", weftrun, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	if self, err = os.Executable(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// allCards joins the job and returns the cards of all ranks.
func allCards(c *control.Client, card []byte) ([][]byte, error) {
	ctx := context.Background()
	_, err := c.Join(ctx, card, "")
	cards := make([][]byte, c.Env().Size)
	for rank := range cards {
		if err == nil {
			cards[rank], err = c.Card(ctx, rank)
		}
	}
	return cards, err
}

// withoutRank0 has rank 0 end in some way; the others ask for each other's cards when they hear of it.
func withoutRank0(c *control.Client, end func() int) int {
	ctx := context.Background()
	rank := c.Env().Rank
	if _, err := c.Join(ctx, fmt.Appendf(nil, "card %d", rank), ""); err != nil {
		fmt.Println(err)
		return 1
	}
	if rank == 0 {
		return end()
	}
	died := make(chan control.Event, 100)
	c.Watch(func(e control.Event) { died <- e })
	if e := <-died; e.Kind != control.RankDied || e.Rank != 0 || !e.GoesOn {
		fmt.Println("heard:", e)
		return 1
	}
	for r := 1; r < c.Env().Size; r++ {
		if card, err := c.Card(ctx, r); err != nil || string(card) != fmt.Sprint("card ", r) {
			fmt.Printf("rank %d: card of %d: %q, %v\n", rank, r, card, err)
			return 1
		}
	}
	if err := leaveJob(c); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("done")
	return 0
}

// acts are what a rank can do. Each returns its exit code.
var acts = map[string]func(c *control.Client) int{
	"join": func(c *control.Client) int {
		e := c.Env()
		cards, err := allCards(c, fmt.Appendf(nil, "card %d", e.Rank))
		if err != nil {
			fmt.Println(err)
			return 1
		}
		if (e.Nodes == nil) != (e.LocalSize() == e.Size) {
			fmt.Printf("%d of %d ranks are here, and nodes are %v\n", e.LocalSize(), e.Size, e.Nodes)
			return 1
		}
		for r, node := range e.Nodes {
			if slices.Contains(e.LocalRanks, r) != (node == e.LocalRanks[0]) {
				fmt.Printf("rank %d is on node %d, and node %d has %v\n", r, node, e.LocalRanks[0], e.LocalRanks)
				return 1
			}
		}
		fmt.Printf("rank %d of %d, local %d of %d: %s\n", e.Rank, e.Size, e.LocalRank, e.LocalSize(), bytes.Join(cards, []byte(", ")))
		if err := leaveJob(c); err != nil {
			fmt.Println(err)
			return 1
		}
		return 0
	},
	// Rank 0 ends its agent, and itself.
	"adopted": func(c *control.Client) int {
		return withoutRank0(c, func() int {
			_ = syscall.Kill(os.Getppid(), syscall.SIGKILL)
			select {}
		})
	},
	// Rank 0 ends, and its agent goes on.
	"outlived": func(c *control.Client) int { return withoutRank0(c, func() int { return 3 }) },
	// Rank 0 leaves; rank 1 leaves when it hears of it, which lets both go.
	"part": func(c *control.Client) int {
		if _, err := c.Join(context.Background(), nil, ""); err != nil {
			fmt.Println(err)
			return 1
		}
		if c.Env().Rank == 1 {
			left := make(chan control.Event, 10)
			c.Watch(func(e control.Event) { left <- e })
			fmt.Println("rank 1 heard:", <-left)
		}
		if err := c.Leave(context.Background(), everybody(c)); err != nil {
			fmt.Println(err)
			return 1
		}
		return 0
	},
	// Rank 1 dies once all have joined; the others tell what they hear.
	"die": func(c *control.Client) int {
		return afterJoin(c, func() int { return die() })
	},
	"abort": func(c *control.Client) int {
		return afterJoin(c, func() int {
			if err := c.Abort(42, "the input is empty", -1); err != nil {
				fmt.Println(err)
			}
			return 9 // not the job's code
		})
	},
	// Rank 1 dies; rank 0 notices by itself and aborts because of it.
	"blame": func(c *control.Client) int {
		if _, err := c.Join(context.Background(), nil, ""); err != nil {
			return 1
		}
		switch c.Env().Rank {
		case 0:
			if err := c.Abort(7, "lost rank 1", 1); err != nil {
				fmt.Println(err)
			}
			return 7
		case 1:
			return die()
		}
		return waitForEvent(c)
	},
	"leave": func(c *control.Client) int {
		return afterJoin(c, func() int { return 0 })
	},
	"deaf": func(c *control.Client) int { // hears of the failure and stays
		return afterJoinElse(c, func() int { return 3 }, func() int {
			signal.Ignore(syscall.SIGTERM)
			fmt.Println("staying")
			select {}
		})
	},
	"early": func(c *control.Client) int {
		// Rank 1 ends when the others are about to join, and not while weftrun may
		// still take them for programs that hear only signals.
		dir := os.Getenv("EARLY_DIR")
		if c.Env().Rank == 1 {
			for dir != "" {
				if names, _ := os.ReadDir(dir); len(names) == c.Env().Size-1 {
					time.Sleep(100 * time.Millisecond)
					break
				}
				time.Sleep(time.Millisecond)
			}
			return 0
		}
		if dir != "" {
			if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(c.Env().Rank)), nil, 0o600); err != nil {
				return 1
			}
		}
		_, err := c.Join(context.Background(), nil, "")
		fmt.Println(err)
		return 1
	},
	"fds": func(c *control.Client) int { // what a child of a rank inherits
		out, err := exec.Command("sh", "-c", "ls -l /proc/$$/fd; env").CombinedOutput()
		fmt.Printf("%s%v\n", out, err)
		if c.Env().Segment == nil {
			fmt.Println("no segment")
		}
		if err := leaveJob(c); err != nil {
			return 1
		}
		return 0
	},
	"count": func(c *control.Client) int { // interrupts that one key makes
		got := make(chan os.Signal, 10)
		signal.Notify(got, os.Interrupt)
		fmt.Println("ready")
		<-got
		n := 1
		select {
		case <-got:
			n++
		case <-time.After(50 * time.Millisecond):
		}
		fmt.Println("caught", n)
		if err := leaveJob(c); err != nil {
			return 1
		}
		return 0
	},
	// Rank 1 dies, and rank 2 fails for that; rank 0 tells what it hears of both.
	"dominoes": func(c *control.Client) int {
		return afterJoinElse(c, die, func() int {
			heard := make(chan control.Event, 9)
			c.Watch(func(e control.Event) { heard <- e })
			e := <-heard
			if c.Env().Rank == 2 {
				if err := c.Abort(5, "a long story about rank 1", 1); err != nil {
					fmt.Println(err)
				}
				return 5
			}
			fmt.Println(e)
			fmt.Println(<-heard)
			if err := leaveJob(c); err != nil {
				fmt.Println(err)
				return 1
			}
			return 0
		})
	},
	"stubborn": func(*control.Client) int { // hears interrupts and stays
		got := make(chan os.Signal, 10)
		signal.Notify(got, os.Interrupt)
		fmt.Println(os.Getpid())
		for range got {
			fmt.Println("INT")
		}
		return 0
	},
	"orphan": func(c *control.Client) int { // waits for the launcher's end
		lost := make(chan control.Event)
		c.Watch(func(e control.Event) { lost <- e })
		fmt.Println(os.Getpid())
		<-lost
		return 1
	},
}

func perform(act string) int {
	c, err := control.FromEnv()
	if err != nil || c == nil {
		fmt.Println("no line:", err)
		return 1
	}
	return acts[act](c)
}

func die() int {
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		panic(err)
	}
	select {}
}

func afterJoin(c *control.Client, one func() int) int {
	return afterJoinElse(c, one, func() int { return waitForEvent(c) })
}

func afterJoinElse(c *control.Client, one, others func() int) int {
	if _, err := c.Join(context.Background(), nil, ""); err != nil {
		fmt.Println(err)
		return 1
	}
	if c.Env().Rank == 1 {
		return one()
	}
	return others()
}

func waitForEvent(c *control.Client) int {
	events := make(chan control.Event, 1)
	c.Watch(func(e control.Event) {
		select {
		case events <- e:
		default:
		}
	})
	fmt.Printf("rank %d heard: %v\n", c.Env().Rank, <-events)
	return 99 // must not become the job's code
}

type result struct {
	code     int
	out, err string
}

// command returns a weftrun that ends with the test.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	if overAgents {
		args = append([]string{"--launcher", "fork", "--host", "a,b", "--oversubscribe"}, args...)
	}
	return exec.CommandContext(ctx, weftrun, args...)
}

func finish(t *testing.T, cmd *exec.Cmd, err error) int {
	t.Helper()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	if !cmd.ProcessState.Exited() {
		t.Fatalf("weftrun: %v", cmd.ProcessState)
	}
	return cmd.ProcessState.ExitCode()
}

func start(t *testing.T, cmd *exec.Cmd) (stdout *bufio.Scanner) {
	t.Helper()
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return bufio.NewScanner(pipe)
}

// scan returns the next n lines of output.
func scan(t *testing.T, s *bufio.Scanner, n int) []string {
	t.Helper()
	var lines []string
	for range n {
		if !s.Scan() {
			t.Fatalf("output ended after %q: %v", lines, s.Err())
		}
		lines = append(lines, s.Text())
	}
	return lines
}

func run1(t *testing.T, in io.Reader, args ...string) result {
	t.Helper()
	cmd := command(t, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &errs
	err := cmd.Run()
	return result{finish(t, cmd, err), out.String(), errs.String()}
}

func (r result) want(t *testing.T, code int, inErr ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d\nstdout: %s\nstderr: %s", r.code, code, r.out, r.err)
	}
	for _, s := range inErr {
		if !strings.Contains(r.err, s) {
			t.Errorf("stderr lacks %q: %s", s, r.err)
		}
	}
	if len(inErr) == 0 && r.err != "" {
		t.Errorf("stderr: %s", r.err)
	}
}

// rank returns a command line for n ranks of this binary that play an act.
func rank(n int, act string, options ...string) []string {
	return append(append([]string{"-n", fmt.Sprint(n), "-x", "ACT=" + act}, options...), self)
}

func lines(s string) []string {
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}
