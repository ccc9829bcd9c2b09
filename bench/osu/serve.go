package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// command is a line of the protocol in bench/peers/serve.h.
type command struct {
	test                         string
	bytes, iters, warmup, window int
	mode, memory                 string
}

// server reads commands and writes answers.
type server struct {
	in    *os.File
	out   *os.File
	lines *bufio.Scanner
}

func open(dir string, rank int) (*server, error) {
	in, err := os.Open(filepath.Join(dir, fmt.Sprintf("%d.in", rank)))
	if err != nil {
		return nil, err
	}
	out, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("%d.out", rank)), os.O_WRONLY, 0)
	if err != nil {
		in.Close()
		return nil, err
	}
	s := &server{in: in, out: out, lines: bufio.NewScanner(in)}
	cpus, err := allowed()
	if err == nil {
		_, err = fmt.Fprintf(out, "hello %d %s\n", os.Getpid(), cpus)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *server) close() error { return errors.Join(s.in.Close(), s.out.Close()) }

// next waits for a command. It returns false at the end of the input.
func (s *server) next(c *command) (bool, error) {
	if !s.lines.Scan() {
		return false, s.lines.Err()
	}
	*c = command{}
	_, err := fmt.Sscan(s.lines.Text(), &c.test, &c.bytes, &c.iters, &c.warmup, &c.window, &c.mode, &c.memory)
	if err != nil {
		return false, fmt.Errorf("bad command %q: %w", s.lines.Text(), err)
	}
	return true, nil
}

// answer tells the value of a command, or why there is none.
func (s *server) answer(value float64, why error) error {
	if why != nil {
		_, err := fmt.Fprintf(s.out, "err %s\n", strings.ReplaceAll(why.Error(), "\n", "; "))
		return err
	}
	_, err := fmt.Fprintf(s.out, "ok %.6g\n", value)
	return err
}

// allowed lists the processors that this process may use.
func allowed() (string, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			return strings.TrimSpace(list), nil
		}
	}
	return "", errors.New("/proc/self/status does not say which processors are allowed")
}
