// Package topo reads what the kernel tells about this machine: processors and
// their cores, memory, limits, network links and RDMA devices. Everything is
// read from /sys, /proc and /dev below a root, so that tests can bring a machine
// of their own.
//
// A question has three kinds of answer: yes, no, and could not tell. The last
// one is not the second: a file that cannot be read says nothing about what it
// would have said.
//
// The package only reads. What to make of the answers, binding for instance, is
// for its callers.
package topo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Root is the directory below which /sys, /proc and /dev are found.
type Root string

// System is the root of the machine that this process runs on.
const System Root = "/"

// State is the kind of an Answer.
type State uint8

const (
	Unknown State = iota // could not tell
	Absent
	Present
)

func (s State) String() string { return [...]string{"unknown", "absent", "present"}[s] }

// MarshalText makes a State readable in JSON.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Answer says whether something is there, and why we think so.
type Answer struct {
	State State  `json:"state"`
	Why   string `json:"why"`
}

func (a Answer) String() string { return fmt.Sprintf("%v (%s)", a.State, a.Why) }

func yes(format string, args ...any) Answer     { return Answer{Present, fmt.Sprintf(format, args...)} }
func no(format string, args ...any) Answer      { return Answer{Absent, fmt.Sprintf(format, args...)} }
func unknown(format string, args ...any) Answer { return Answer{Unknown, fmt.Sprintf(format, args...)} }

// Fact is what was read, or why it was not.
type Fact[T any] struct {
	Value  T      `json:"value"`
	Absent string `json:"absent,omitempty"` // it is not there, and why we think so
	Error  string `json:"error,omitempty"`  // it could not be told, and why
}

// Known makes a fact of what a function returned.
func Known[T any](v T, err error) Fact[T] {
	if err != nil {
		return Fact[T]{Error: err.Error()}
	}
	return Fact[T]{Value: v}
}

func (r Root) path(p string) string { return filepath.Join(string(r), p) }

// Text returns a file's contents without the white space around them: what the
// kernel says in one line, mostly.
func (r Root) Text(p string) (string, error) {
	b, err := os.ReadFile(r.path(p))
	return strings.TrimSpace(string(b)), err
}

// number reads a file that holds one decimal number.
func (r Root) number(p string) (int64, error) {
	s, err := r.Text(p)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("topo: %s holds %q, which is not a number", r.path(p), s)
	}
	return n, nil
}

// list returns the names in a directory; none when it does not exist.
func (r Root) list(p string) ([]string, error) {
	entries, err := os.ReadDir(r.path(p))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}
