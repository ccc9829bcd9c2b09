package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/job"
)

// parse reads a command line.
func parse(args []string) (*options, error) {
	o := &options{spec: job.Spec{Transport: defaultTransport, Grace: defaultGrace}}
	for first := true; ; first = false {
		var p job.Program
		rest, err := parseOptions(o, &p, args, first)
		if err != nil || o.help || o.version {
			return o, err
		}
		end := slices.Index(rest, ":")
		if end < 0 {
			end = len(rest)
		}
		if end == 0 {
			return nil, errNoProgram(first, len(o.spec.Programs))
		}
		for _, a := range rest[:end] {
			if strings.TrimLeft(a, `\`) == ":" { // \: is :, \\: is \:, and so on
				a = a[1:]
			}
			p.Argv = append(p.Argv, a)
		}
		o.spec.Programs = append(o.spec.Programs, p)
		if end == len(rest) {
			return o, o.check()
		}
		args = rest[end+1:]
	}
}

// check refuses options that contradict each other.
func (o *options) check() error {
	switch {
	case o.spec.Tag && o.spec.Output != "":
		return errors.New("--tag-output and --output exclude each other: the files' names tell the ranks already")
	case o.spec.Map > job.MapNode && o.spec.Bind == job.BindNone:
		return fmt.Errorf("--map-by %s and --bind-to none exclude each other: binding is what keeps a rank where it is mapped to", job.Maps[o.spec.Map])
	case o.spec.KeepGoing && o.spec.Restarts > 0:
		return errors.New("--keep-going and --restart exclude each other: a failure either leaves the others alone or ends the job, to start it again")
	case o.spec.Arena > 0 && o.spec.Transport == "tcp":
		return errors.New("--arena and --transport tcp exclude each other: the arena is shared memory")
	case o.spec.Device != "" && (o.spec.Transport == "tcp" || o.spec.Transport == "shm"):
		return fmt.Errorf("--device and --transport %s exclude each other: the device is for verbs", o.spec.Transport)
	}
	return nil
}

func errNoProgram(first bool, n int) error {
	if first {
		return errors.New("no program to run; usage: weftrun -n N program [arguments], and weftrun --help for more")
	}
	return fmt.Errorf("no program after the : that follows program %d", n)
}

// parseOptions reads options up to the program's name and returns the rest.
func parseOptions(o *options, p *job.Program, args []string, first bool) ([]string, error) {
	for len(args) > 0 {
		arg := args[0]
		if arg == "--" {
			return args[1:], nil
		}
		if len(arg) < 2 || arg[0] != '-' {
			return args, nil
		}
		args = args[1:]
		name, value, hasValue := strings.Cut(strings.TrimPrefix(arg[1:], "-"), "=")
		i := slices.IndexFunc(table, func(t option) bool { return slices.Contains(t.names, name) })
		if i < 0 {
			return nil, errUnknown(arg, name)
		}
		t := &table[i]
		shown, _, _ := strings.Cut(arg, "=")
		switch {
		case !t.local && !first:
			return nil, fmt.Errorf("%s is for the whole job: give it before the first program", shown)
		case t.arg == "" && hasValue:
			return nil, fmt.Errorf("%s takes no value, but has %q", shown, value)
		case t.arg != "" && !hasValue:
			if len(args) == 0 {
				return nil, fmt.Errorf("%s needs a value: %s", shown, t.title())
			}
			value, args = args[0], args[1:]
		}
		if err := t.set(o, p, value); err != nil {
			return nil, fmt.Errorf("%s: %w", shown, err)
		}
		if o.help || o.version {
			return nil, nil
		}
	}
	return args, nil
}

// setting returns NAME=VALUE for the argument of -x.
func setting(v string) (string, error) {
	name, _, given := strings.Cut(v, "=")
	switch {
	case name == "":
		return "", fmt.Errorf("%q names no variable", v)
	case strings.ContainsRune(v, 0):
		return "", fmt.Errorf("%q has a zero byte", v)
	case slices.Contains(control.Vars(), name) || name == control.VarTerminal || name == control.VarRestart:
		return "", fmt.Errorf("%s is set by weftrun", name)
	case given:
		return v, nil
	}
	value, ok := os.LookupEnv(name)
	if !ok {
		return "", fmt.Errorf("%s is not set here, so it cannot be passed on; -x %s=VALUE gives it a value", name, name)
	}
	return name + "=" + value, nil
}

// errUnknown names the known option that an unknown one is closest to.
func errUnknown(arg, name string) error {
	best, bestName := 1+len(name)/2, ""
	for _, t := range table {
		for _, n := range t.names {
			if d := distance(name, n); d < best {
				best, bestName = d, n
			}
			if len(name) > 1 && strings.HasPrefix(n, name) || strings.EqualFold(n, name) { // a beginning is a closer guess than any typing error
				best, bestName = 0, n
			}
		}
	}
	if bestName == "" {
		return fmt.Errorf("unknown option %s; weftrun --help lists them", arg)
	}
	if len(bestName) > 2 {
		bestName = "-" + bestName
	}
	return fmt.Errorf("unknown option %s; did you mean -%s? weftrun --help lists them", arg, bestName)
}

// distance is the number of letters to insert, delete or replace between a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j]+1, row[j+1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
