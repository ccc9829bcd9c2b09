package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/weft-hpc/weft/bench/report"
)

const reading = `
Ratios are ours divided by theirs: lower is better for times, higher for rates. Each is the median of the ratios of single
rounds, with the 95 % interval of that median (bootstrap). In a round every contestant runs one short block, in random order;
contestants that wait for their turn sleep. Rounds during which the processors moved against each other, or other programs used
more than a quarter of a core, are dropped and run again; where most rounds are like that, no ratio is judged. The
better of two peers is chosen by their medians; targets are judged against the peers' defaults, and "to best flags" says what
is left of a win when the peer gets the flags listed below (for each test the better of the tuned peers). "Floor" is the same
test without any library: a flag or one copy in mapped memory, or a polled socket.

Names and sizes are those of the OSU Micro-Benchmarks, and so is the way buffers are used: they are written once, so large
messages come out of a cache. In the tests called "touch" the sender writes one word of every cache line before each send and
the receiver reads and checks it after; that time is included, for all contestants. "arena" is memory from weft.Alloc, "slice" an
ordinary Go slice; the peers always use malloc.

Collectives: a block is a train of them, root 0, without barriers in between, and its value is the slowest rank's time for one.
Before it is timed, each contestant's result is compared element by element. Bytes are what each rank puts in (reduce, allreduce,
scan, reducescatter, gather, allgather), what each rank gets (bcast, scatter), or what each rank sends in all (alltoall). With more
ranks than processors a contestant that needs more than a quarter of a second for one operation is "too slow" and left out. An i in front is
the nonblocking form, started and waited for at once; its target is against our own blocking form in the same rounds. netns is
TCP between two network namespaces, one processor each.

osu_init is the time from the start of the launcher to its end for a program that does nothing. blocked_recv_cpu is the
processor time of a whole process during one second in a receive. Allocations are counted by the Go runtime over 100000
operations, in all goroutines of the process, and rounded to 0.01.
`

func writeMarkdown(path string, b *bencher, m *report.Machine) error {
	var intro strings.Builder
	fmt.Fprintf(&intro, "%s on %s, %d processors, Linux %s, %s. Load %s before, %s after.\n\n", m.Time.Format("2 January 2006 15:04 MST"),
		m.Processor, m.CPUs, m.Kernel, m.Go, m.LoadBefore, m.LoadAfter)
	fmt.Fprintf(&intro, "Open MPI: %s. MPICH: %s.\n\n", m.Peers["openmpi"], m.Peers["mpich"])
	for _, n := range m.Notes {
		fmt.Fprintf(&intro, "- %s\n", n)
	}
	intro.WriteString(reading)
	fmt.Fprintf(&intro, `
Best flags: Open MPI %s, or %s; more ranks %s; over TCP %s; MPICH %s; over TCP %s.
`, code(openMPIBestFlags), code(openMPISMFlags), code(openMPICrowdFlags), code(openMPITCPBestFlags), code(mpichBestEnv), code(mpichTCPBestEnv))

	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = report.WriteMarkdown(f, "Weft beside Open MPI and MPICH", intro.String(), []report.Section{
		{Title: "Targets", Rows: b.targets()},
		{Title: "All tests", Rows: b.rows},
	})
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func code(words []string) string { return "`" + strings.Join(words, " ") + "`" }
