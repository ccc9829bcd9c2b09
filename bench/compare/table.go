package main

import (
	"fmt"
	"math"
	"time"

	"github.com/weft-hpc/weft/bench/report"
)

// A test is one measurement that all contestants of a layout take part in. It
// gives one row for each kind of memory and target.
type test struct {
	name   string
	layout layout
	bytes  int64
	unit   string
	group  string // p2p, coll or start
	key    bool   // belongs to the short run of --quick

	command   string // of the protocol in bench/peers/serve.h
	floor     string // the floor's command; empty: it has none
	mode      string // osu or touch
	window    int
	memories  []string // of ours; empty: plays no part
	alone     bool     // peers have no part in it
	rounds    int      // 0: as asked for
	block     time.Duration
	convert   func(ns float64) float64
	higher    bool                        // more is better
	targets   map[string][]*report.Target // by memory
	checked   bool                        // its command has a mode in which it checks its results
	twin      string                      // command of our blocking form
	most      time.Duration               // who needs more for one operation is too slow; 0: nobody is
	start     bool                        // not a command but the start of an empty program
	unsampled bool                        // too many ranks for a placement sample to mean anything
}

func (t *test) id() string {
	return fmt.Sprintf("%s/%s/%d/%d", t.name, t.layout.transport, t.layout.ranks, t.bytes)
}

var (
	bothMemories = []string{"arena", "slice"}
	noMemory     = []string{""}
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

func microseconds(ns float64) float64 { return ns / 1e3 }
func perSecond(ns float64) float64    { return 1e9 / ns }
func same(v float64) float64          { return v }

func megabytes(bytes int64) func(float64) float64 {
	return func(ns float64) float64 { return float64(bytes) * 1e3 / ns } // OSU's MB: 1e6 bytes
}

// allocations rounds to 0.01, for the runtime itself allocates now and then: one
// allocation in 200 operations is still seen. (testing.AllocsPerRun rounds to 1.)
func allocations(v float64) float64 { return math.Round(v*100) / 100 }

type targets = map[string][]*report.Target

// table lists all tests, in the order in which they run: layouts together.
func table() []test {
	var ts []test
	add := func(t test) {
		if t.convert == nil {
			t.convert = microseconds
		}
		if t.memories == nil {
			t.memories = noMemory
		}
		if t.group == "" {
			t.group = "p2p"
		}
		if t.group != "coll" { // of those only some: there are many
			t.key = len(t.targets) > 0
		}
		ts = append(ts, t)
	}
	latency := map[int64]targets{
		8:        {"slice": {report.AtMost(1.0, report.MPICH), report.AtMost(1.3, report.OpenMPI)}},
		64 * kib: {"arena": {report.AtMost(0.4, report.Both)}},
		1 * mib:  {"arena": {report.AtMost(0.45, report.Both)}, "slice": {report.AtMost(1.0, report.Both)}},
		16 * mib: {"arena": {report.AtMost(0.7, report.Both)}, "slice": {report.AtMost(1.0, report.Both)}},
	}
	sizes := []int64{0, 8, 1 * kib, 8 * kib, 64 * kib, 256 * kib, 1 * mib, 4 * mib, 16 * mib}
	for _, n := range sizes {
		add(test{name: "osu_latency", layout: pairSHM, bytes: n, unit: "us", command: "latency", floor: "latency",
			memories: bothMemories, targets: latency[n]})
	}
	for _, n := range []int64{8, 64 * kib, 1 * mib, 16 * mib} {
		add(test{name: "osu_latency_touch", layout: pairSHM, bytes: n, unit: "us", command: "latency", floor: "latency",
			mode: "touch", memories: bothMemories})
	}

	bw := map[int64]targets{1 * mib: {"arena": {report.AtLeast(1.8, report.Both)}}}
	for _, n := range sizes[1:] {
		add(test{name: "osu_bw", layout: pairSHM, bytes: n, unit: "MB/s", command: "bw", floor: "bw", window: 64,
			memories: bothMemories, convert: megabytes(n), higher: true, targets: bw[n]})
	}
	add(test{name: "osu_bw_touch", layout: pairSHM, bytes: 1 * mib, unit: "MB/s", command: "bw", floor: "bw", window: 64,
		mode: "touch", memories: bothMemories, convert: megabytes(1 * mib), higher: true})
	for _, n := range []int64{0, 8, 1 * kib} {
		t := test{name: "osu_mbw_mr", layout: pairSHM, bytes: n, unit: "messages/s", command: "bw", floor: "bw", window: 64,
			memories: bothMemories, convert: perSecond, higher: true}
		if n == 8 {
			t.targets = targets{"slice": {report.AtLeast(0.8, report.OpenMPI)}}
		}
		add(t)
	}

	for _, t := range collectives(pairSHM) {
		add(t)
	}
	for _, t := range nonblocking() {
		add(t)
	}

	add(test{name: "blocked_recv_cpu", layout: pairSHM, bytes: 8, unit: "cores", command: "cpu", floor: "cpu",
		convert: same, rounds: 5, targets: targets{"": {report.AtMost(0.05, report.Nobody)}}})
	for _, group := range []string{"p2p", "coll"} {
		name := map[string]string{"p2p": "allocs_sendrecv", "coll": "allocs_allreduce"}[group]
		add(test{name: name, layout: pairSHM, group: group, key: true, bytes: 8, unit: "allocations", command: name, alone: true,
			rounds: 3, memories: []string{"slice"}, convert: allocations,
			targets: targets{"slice": {report.AtMost(0, report.Nobody)}}})
	}

	for _, n := range []int64{8, 1 * kib, 64 * kib, 1 * mib} {
		t := test{name: "osu_latency", layout: pairTCP, bytes: n, unit: "us", command: "latency", floor: "tcplatency",
			memories: []string{"slice"}}
		if n == 8 {
			t.targets = targets{"slice": {report.AtMost(1.1, report.OpenMPI)}}
		}
		add(t)
	}
	for _, n := range []int64{64 * kib, 1 * mib} {
		t := test{name: "osu_bw", layout: pairTCP, bytes: n, unit: "MB/s", command: "bw", floor: "tcpbw", window: 64,
			memories: []string{"slice"}, convert: megabytes(n), higher: true}
		if n == 1*mib {
			t.targets = targets{"slice": {report.AtLeast(1.0, report.OpenMPI)}}
		}
		add(t)
	}

	for _, l := range []layout{pairNet, few(4), few(8)} {
		for _, t := range collectives(l) {
			add(t)
		}
	}
	add(test{name: "osu_barrier", layout: crowd, group: "coll", key: true, unit: "us", command: "barrier", floor: "barrier", unsampled: true,
		block:   200 * time.Millisecond,
		targets: targets{"": {report.AtMost(0.5, report.OpenMPI)}}})

	for _, l := range []layout{pairSHM, crowd} {
		add(test{name: "osu_init", layout: l, group: "start", unit: "ms", start: true, unsampled: true,
			convert: func(ns float64) float64 { return ns / 1e6 },
			targets: targets{"": {report.AtMost(0.5, report.OpenMPI)}}})
	}
	return ts
}
