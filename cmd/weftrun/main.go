// Command weftrun starts the ranks of a Weft job and looks after them.
//
//	weftrun -n 4 ./prog args...
//	weftrun -n 1 ./master : -n 3 ./worker
//
// See weftrun --help for the options and exit codes.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	_ "github.com/weft-hpc/weft/cgo/zmq" // a control plane, where it is built in
	"github.com/weft-hpc/weft/internal/job"
	"github.com/weft-hpc/weft/internal/transport/shm"
)

func main() {
	if os.Args[0] == job.KeeperName {
		job.Keep(os.Stdin)
		return
	}
	job.LeaveProcessors()
	if len(os.Args) > 1 && os.Args[1] == job.AgentFlag { // weftrun itself starts this, on another host
		os.Exit(job.Agent(os.Args[2:], os.Stdin, os.Stderr, version(), shm.Create))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	o, err := parse(args)
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "weftrun: %v\n", err)
		return job.ExitUsage
	case o.help:
		return show(stdout, stderr, help())
	case o.version:
		return show(stdout, stderr, "weftrun "+version()+"\n")
	}
	if t := o.spec.Transport; t != "tcp" && t != "verbs" {
		o.spec.Segment = shm.Create
	}
	o.spec.Build = version()
	plan, err := job.NewPlan(&o.spec)
	if err != nil {
		fmt.Fprintf(stderr, "weftrun: %v\n", err)
		if e, ok := errors.AsType[*job.Error](err); ok {
			return e.Code
		}
		return job.ExitSetup
	}
	if o.dryRun {
		if err := plan.Print(stdout); err != nil {
			fmt.Fprintf(stderr, "weftrun: %v\n", err)
			return 1
		}
		return 0
	}
	if o.spec.Verbose {
		if err := plan.Print(stderr); err != nil {
			return 1
		}
	}
	return job.Run(plan, stderr)
}

func show(stdout, stderr io.Writer, text string) int {
	if _, err := io.WriteString(stdout, text); err != nil {
		fmt.Fprintf(stderr, "weftrun: %v\n", err)
		return 1
	}
	return 0
}
