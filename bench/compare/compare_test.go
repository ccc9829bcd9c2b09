package main

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-hpc/weft/bench/report"
)

func TestTable(t *testing.T) {
	seen := map[string]bool{}
	last := map[layout]int{} // tests of a layout run together, so that its contestants start once
	for i, tc := range table() {
		if seen[tc.id()] {
			t.Errorf("%s is there twice", tc.id())
		}
		seen[tc.id()] = true
		if !slices.Contains(groups, tc.group) {
			t.Errorf("%s is of the unknown group %q", tc.id(), tc.group)
		}
		if at, found := last[tc.layout]; found && at != i-1 && !tc.start {
			t.Errorf("%s: its layout was left and comes back", tc.id())
		}
		last[tc.layout] = i
		for memory := range tc.targets {
			if !slices.Contains(tc.memories, memory) {
				t.Errorf("%s has a target for memory %q, and is not measured with it", tc.id(), memory)
			}
		}
		if tc.checked != (tc.group == "coll" && tc.command != "barrier" && !tc.alone) {
			t.Errorf("%s: checked is %v", tc.id(), tc.checked)
		}
	}
	for _, want := range []string{
		"osu_barrier/shm/8/0", "osu_allreduce/shm/2/4194304", "osu_alltoall/shm/4/65536", "osu_scan/shm/8/8",
		"osu_ialltoall/shm/2/8", "osu_bcast/netns/2/1048576",
	} {
		if !seen[want] {
			t.Errorf("there is no %s", want)
		}
	}
}

// Tests that are left out by choice are counted, and nothing else is left out.
func TestWithout(t *testing.T) {
	o, err := parse([]string{"--without", "netns", "--group", "coll"})
	if err != nil {
		t.Fatal(err)
	}
	tests, leftOut := chosen(&o)
	if leftOut != len(collectives(pairNet)) {
		t.Errorf("%d tests were left out, want %d", leftOut, len(collectives(pairNet)))
	}
	o.without = ""
	if all, none := chosen(&o); len(all) != len(tests)+leftOut || none != 0 {
		t.Errorf("%d tests without, %d left out, %d in all", len(tests), leftOut, len(all))
	}
	for _, tc := range table() {
		if !slices.Contains(transports, tc.layout.transport) {
			t.Errorf("--without does not know %s", tc.layout.transport)
		}
	}
	if _, err := parse([]string{"--without", "carrier-pigeon"}); err == nil || !strings.Contains(err.Error(), "netns") {
		t.Errorf("an unknown transport: %v", err)
	}
}

func TestCollectiveTargets(t *testing.T) {
	for _, tc := range []struct {
		tests       []test
		id, targets string
	}{
		{collectives(pairSHM), "osu_barrier/shm/2/0", "<= 0.6 x the better of both"},
		{collectives(few(4)), "osu_barrier/shm/4/0", "<= 0.3 x Open MPI"},
		{collectives(pairSHM), "osu_allreduce/shm/2/4194304", "<= 0.4 x the better of both"},
		{collectives(few(8)), "osu_allreduce/shm/8/4194304", "<= 0.5 x the better of both"},
		{collectives(pairNet), "osu_allreduce/netns/2/8", "<= 1 x Open MPI"},
		{nonblocking(), "osu_ibcast/shm/2/65536", "<= 1.2 x our blocking form"},
	} {
		i := slices.IndexFunc(tc.tests, func(x test) bool { return x.id() == tc.id })
		if i < 0 {
			t.Errorf("there is no %s", tc.id)
			continue
		}
		var got []string
		for _, targets := range tc.tests[i].targets {
			for _, target := range targets {
				got = append(got, target.String())
			}
		}
		if strings.Join(got, ", ") != tc.targets {
			t.Errorf("%s has targets %q, want %q", tc.id, got, tc.targets)
		}
	}
}

func TestEntrants(t *testing.T) {
	find := func(pattern string) *test {
		for _, tc := range table() {
			if regexp.MustCompile(pattern).MatchString(tc.id()) {
				return &tc
			}
		}
		t.Fatalf("no test is called %s", pattern)
		return nil
	}
	for pattern, want := range map[string]string{
		"^osu_allreduce/shm/2/65536":  "weft-arena weft-slice openmpi mpich openmpi-best openmpi-sm mpich-best",
		"^osu_barrier/shm/4/0":        "weft openmpi mpich openmpi-best mpich-best floor",
		"^osu_iallreduce/shm/2/65536": "weft-arena openmpi mpich openmpi-best openmpi-sm mpich-best weft-blocking-arena",
		"^osu_bcast/netns/2/8":        "weft-slice openmpi mpich",
	} {
		var got []string
		for _, e := range find(pattern).entrants() {
			got = append(got, e.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: entrants %q, want %q", pattern, got, want)
		}
	}
}

func TestReplaceTable(t *testing.T) {
	page := "# Title\n\n" + pageBegin + "\nold\nold\n" + pageEnd + "\n\nafter\n"
	got, err := replaceTable(page, "new\n")
	want := "# Title\n\n" + pageBegin + "\n\nnew\n\n" + pageEnd + "\n\nafter\n"
	if err != nil || got != want {
		t.Errorf("%v, %q, want %q", err, got, want)
	}
	if again, err := replaceTable(got, "new\n"); err != nil || again != want {
		t.Errorf("a second time: %v, %q", err, again)
	}
	for _, bad := range []string{"", pageBegin + "\n", pageEnd + "\n" + pageBegin + "\n"} {
		if got, err := replaceTable(bad, "new"); err == nil {
			t.Errorf("%q became %q", bad, got)
		}
	}
	text, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := replaceTable(string(text), "new"); err != nil {
		t.Errorf("docs/performance.md: %v", err)
	}
}

func TestWritePage(t *testing.T) {
	path, page := t.TempDir()+"/performance.md", t.TempDir()+"/page.md"
	if err := os.WriteFile(page, []byte("text\n"+pageBegin+"\n"+pageEnd+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := report.Machine{Processor: "Abacus", CPUs: 2, Peers: map[string]string{"openmpi": "mpirun 4.1", "mpich": "missing: it"}}
	if err := writePage(path, page, []report.Row{{Name: "osu_x", Transport: "shm", Target: "<= 1"}, {Name: "osu_y"}}, &m); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, page} {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"`make compare", "on Abacus, 2 processors", "Open MPI 4.1; MPICH missing: it.", "| osu_x, shm |"} {
			if !strings.Contains(string(b), want) {
				t.Errorf("%s: no %q in\n%s", p, want, b)
			}
		}
		if strings.Contains(string(b), "osu_y") {
			t.Errorf("%s has a row without a target", p)
		}
	}
}

func TestMakeArgs(t *testing.T) {
	for want, args := range map[string][]string{
		"":                                nil,
		" ARGS='--group coll'":            {"--group", "coll"},
		` ARGS='--only "a|b" --rounds 3'`: {"--only", "a|b", "--rounds", "3"},
		` ARGS='--only "/8\$$"'`:          {"--only", "/8$"},
	} {
		if got := makeArgs(args); got != want {
			t.Errorf("%q gives %q, want %q", args, got, want)
		}
	}
}

// The program that plays ssh runs a command on the host that it is told, on a
// processor of its own, and the hosts reach each other.
func TestNetwork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root: sudo go test ./bench/compare")
	}
	n := &network{}
	if err := n.up(); err != nil {
		n.down()
		t.Fatal(err)
	}
	names := n.names
	for host, ns := range names {
		out, err := exec.Command(n.dir+"/ssh", "-x", "-o", "BatchMode=yes", address(host), "X=1", "exec", "sh", "-c",
			`'echo "$X $(hostname) $(taskset -cp $$ | sed "s/.* //")"; ip -o -4 addr show dev eth0'`).CombinedOutput()
		want := []string{"1 " + ns + " " + string(rune('0'+host)), address(host) + "/24"}
		for _, w := range want {
			if err != nil || !strings.Contains(string(out), w) {
				t.Errorf("host %d: %v, %q; want %q", host, err, out, w)
			}
		}
	}
	if out, err := exec.Command(n.dir+"/ssh", "10.78.0.9", "true").CombinedOutput(); err == nil {
		t.Errorf("a host that does not exist ran true: %s", out)
	}
	if err := n.down(); err != nil {
		t.Error(err)
	}
	for _, ns := range names {
		if _, err := os.Stat("/run/netns/" + ns); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", ns, err)
		}
	}
}

// Whoever is to start an empty program has one.
func TestStarters(t *testing.T) {
	b := &bencher{ctx: t.Context(), timeout: time.Minute, paths: paths{weftrun: "/bin/true", empty: "/bin/true", peers: t.TempDir()}}
	for _, tc := range table() {
		if !tc.start {
			continue
		}
		for _, e := range tc.entrants() {
			if _, err := b.starter(&tc, e); err != nil && strings.Contains(err.Error(), "has no empty program") {
				t.Errorf("%s: %v", tc.id(), err)
			}
		}
	}
}
