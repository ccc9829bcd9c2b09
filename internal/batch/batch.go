// Package batch tells what a batch job has: its hosts, how many ranks each of
// them takes, and how long the job may still run.
//
// # Vocabulary
//
// A host is a machine by the name that the batch system gives it, letter for
// letter, because its tools take no other. A slot is room for one rank. The
// systems are OpenPBS, PBS Pro and Torque, Slurm, Grid Engine, and LSF; a job
// without one has hosts from a hostfile or from the command line.
//
// # What it promises
//
// Nothing is guessed. Syntax that is not understood is an error that shows the
// text, since a launcher that reads half of a host list starts half of a job, or starts
// it on the wrong hosts. What cannot be told is said to be unknown.
//
// The package is pure: it sees the world through a [Source], so that recordings
// of real jobs are its tests.
package batch

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Host is one host of a job.
type Host struct {
	Name  string // as the batch system spells it
	Slots int    // ranks it takes; 0 in a hostfile that does not say
	CPUs  int    // processors that the job has there; 0: not told
	Index int    // of its first line or entry in the system's own list, from 0
}

// Job is what a batch job has.
type Job struct {
	System  string // PBS, Torque, Slurm, Grid Engine, LSF; "" outside of a batch job
	ID      string
	Task    string // of an array, where the ID does not tell; else ""
	Hosts   []Host // in the system's order
	Source  string // where the hosts were read, for messages
	Scratch string // the job's temporary directory on this host, "" for none
	Notes   []string
}

// Slots returns the number of ranks that all hosts take.
func (j *Job) Slots() int {
	n := 0
	for _, h := range j.Hosts {
		n += h.Slots
	}
	return n
}

// Source is how the world is seen. All functions are needed but Run.
type Source struct {
	Getenv   func(string) string
	ReadFile func(string) ([]byte, error)
	Changed  func(string) (time.Time, error) // when a file was last written
	Now      func() time.Time
	Run      func(name string, args ...string) (string, error) // a command's standard output
}

// System is the real world, without Run.
func System() Source {
	return Source{Getenv: os.Getenv, ReadFile: os.ReadFile, Now: time.Now, Changed: func(name string) (time.Time, error) {
		st, err := os.Stat(name)
		if err != nil {
			return time.Time{}, err
		}
		return st.ModTime(), nil
	}}
}

// Find returns the batch job that this process runs in. Outside of one it
// returns a Job without a System and without hosts. An error means that there is a
// job, and that its description is not understood.
func Find(src Source) (*Job, error) {
	get := src.Getenv
	j := new(Job)
	var err error
	switch {
	case get("SLURM_JOB_ID") != "":
		j.System, j.ID = "Slurm", get("SLURM_JOB_ID")
		err = j.slurm(src)
	case get("PBS_JOBID") != "":
		j.System, j.ID = "PBS", get("PBS_JOBID")
		if strings.HasPrefix(get("PBS_VERSION"), "TORQUE") {
			j.System = "Torque"
		}
		err = j.pbs(src)
	case get("PE_HOSTFILE") != "":
		j.System, j.ID = "Grid Engine", get("JOB_ID")
		if t := get("SGE_TASK_ID"); t != "undefined" {
			j.Task = t
		}
		err = j.gridEngine(src)
	case get("LSB_JOBID") != "":
		j.System, j.ID = "LSF", get("LSB_JOBID")
		if t := get("LSB_JOBINDEX"); t != "0" {
			j.Task = t
		}
		err = j.lsf(src)
	}
	if err != nil {
		return nil, fmt.Errorf("the hosts of %s job %s cannot be told: %w", j.System, j.ID, err)
	}
	if j.System != "" {
		j.Scratch = get("TMPDIR")
	}
	return j, nil
}

// add counts slots for a host. A host that was there before gets them on top, wherever
// that was: one agent runs on it, however the list is ordered.
func (j *Job) add(name string, slots, index int) error {
	if err := checkName(name); err != nil {
		return err
	}
	for i := range j.Hosts {
		if j.Hosts[i].Name == name {
			j.Hosts[i].Slots += slots
			return nil
		}
	}
	j.Hosts = append(j.Hosts, Host{Name: name, Slots: slots, Index: index})
	return nil
}

// checkName refuses what cannot be the name of a host: above all what a parser
// has cut in the wrong place.
func checkName(s string) error {
	if s == "" {
		return fmt.Errorf("a host without a name")
	}
	if s[0] == '-' { // ssh would take it for an option
		return fmt.Errorf("%q is not the name of a host", s)
	}
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("._-:", r):
		default:
			return fmt.Errorf("%q is not the name of a host", s)
		}
	}
	return nil
}

// number reads a count of one or more.
func number(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 1<<20 || s[0] == '+' {
		return 0, fmt.Errorf("%q is not a number from 1 to %d", s, 1<<20)
	}
	return n, nil
}

// fileLines calls f for each line of a file that is not empty, with its number
// from 0, and puts file and line in front of f's error. Line ends of any kind are no part of a line.
func fileLines(src Source, path string, f func(index int, line string) error) error {
	b, err := src.ReadFile(path)
	if err != nil {
		return err
	}
	return eachLine(path, b, f)
}

func eachLine(path string, b []byte, f func(index int, line string) error) error {
	index, row := 0, 0
	for line := range strings.Lines(string(b)) {
		row++
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if err := f(index, line); err != nil {
			return fmt.Errorf("%s:%d: %w", path, row, err)
		}
		index++
	}
	return nil
}
