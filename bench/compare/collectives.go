package main

import (
	"time"

	"github.com/weft-hpc/weft/bench/report"
)

// slowest is how long one collective may take. It bounds the blocks of a peer that
// never gives a processor away, with more ranks than processors.
const slowest = 250 * time.Millisecond

// A goal is what a collective must reach at one length, as a ratio: with two ranks, and
// with more ranks than processors.
type goal struct {
	bytes     int64
	two, more float64
	quick     bool // belongs to --quick with two ranks
}

// goals are the rows for each collective, by the command of bench/peers/collectives.h.
var goals = []struct {
	command string
	floor   string
	goals   []goal
}{
	{"barrier", "barrier", []goal{{0, 0.6, 0.3, true}}},
	{"allreduce", "", []goal{{8, 0.8, 0.4, true}, {64 * kib, 0.5, 0.5, true}, {4 * mib, 0.4, 0.5, false}}},
	{"bcast", "", []goal{{8, 0.8, 0.5, true}, {64 * kib, 0.5, 0.5, true}, {4 * mib, 0.5, 0.6, false}}},
	{"reduce", "", []goal{{64 * kib, 0.6, 0.6, true}, {4 * mib, 0.5, 0.6, false}}},
	{"reducescatter", "", []goal{{64 * kib, 0.6, 0.6, true}, {4 * mib, 0.5, 0.6, false}}},
	{"allgather", "", []goal{{64 * kib, 0.7, 0.7, true}, {4 * mib, 0.6, 0.7, false}}},
	{"alltoall", "", []goal{{64 * kib, 0.7, 0.7, true}, {4 * mib, 0.6, 0.7, false}}},
	{"gather", "", []goal{{8, 0.9, 0.8, true}, {64 * kib, 0.9, 0.8, false}}},
	{"scatter", "", []goal{{8, 0.9, 0.8, true}, {64 * kib, 0.9, 0.8, false}}},
	{"scan", "", []goal{{8, 0.9, 0.8, true}, {64 * kib, 0.9, 0.8, false}}},
}

// collectives are the tests of one layout.
func collectives(l layout) []test {
	var ts []test
	if l == pairNet {
		for _, command := range []string{"allreduce", "bcast"} {
			for _, n := range []int64{8, 1 * mib} {
				t := collective(l, command, n, "slice", report.AtMost(1.0, report.OpenMPI))
				t.key = command == "allreduce" && n == 8
				ts = append(ts, t)
			}
		}
		return ts
	}
	for _, op := range goals {
		for _, g := range op.goals {
			of, ratio, memory := report.Both, g.two, "arena"
			if l.ranks > 2 {
				ratio = g.more
			}
			if op.command == "barrier" {
				memory = ""
				if l.ranks > 2 {
					of = report.OpenMPI
				}
			}
			t := collective(l, op.command, g.bytes, memory, report.AtMost(ratio, of))
			t.floor = op.floor
			t.key = g.quick && (l.ranks == 2 || l.ranks == 4 && op.command == "allreduce")
			switch {
			case op.command == "barrier":
				t.checked = false
			case op.command == "allreduce":
				t.memories = bothMemories
				if g.bytes == 8 && l == pairSHM {
					t.floor = "allreduce"
				}
			}
			ts = append(ts, t)
		}
	}
	return ts
}

func collective(l layout, command string, bytes int64, memory string, target *report.Target) test {
	return test{name: "osu_" + command, layout: l, group: "coll", bytes: bytes, unit: "us", command: command, checked: true,
		memories: []string{memory}, targets: targets{memory: {target}}, most: slowest, unsampled: !l.pinned}
}

// nonblocking are collectives that are started and waited for, beside our own
// blocking form.
func nonblocking() []test {
	var ts []test
	for _, command := range []string{"allreduce", "bcast", "alltoall"} {
		for _, n := range []int64{8, 64 * kib, 4 * mib} {
			t := collective(pairSHM, "i"+command, n, "arena", report.AtMost(1.2, report.Blocking))
			t.twin, t.key = command, n == 8 && command == "allreduce"
			ts = append(ts, t)
		}
	}
	return ts
}
