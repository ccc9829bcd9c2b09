package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// udpFrame is an Ethernet frame with a UDP packet; the payload starts with op,
// and ends with n as a mark.
func udpFrame(port uint16, op byte, n int) []byte {
	f := make([]byte, etherHeader+20+udpHeader+bthHeader+8)
	binary.BigEndian.PutUint16(f[12:], etherIPv4)
	ip := f[etherHeader:]
	ip[0], ip[9] = 0x45, protoUDP
	binary.BigEndian.PutUint16(ip[20+2:], port)
	ip[20+udpHeader] = op
	binary.BigEndian.PutUint64(f[len(f)-8:], uint64(n))
	return f
}

func roceFrame(n int) []byte { return udpFrame(rocePort, 4, n) }

func mark(frame []byte) int { return int(binary.BigEndian.Uint64(frame[len(frame)-8:])) }

func marks(frames [][]byte) (all []int) {
	for _, f := range frames {
		all = append(all, mark(f))
	}
	return all
}

func TestClasses(t *testing.T) {
	vlan := roceFrame(1)
	vlan = slices.Concat(vlan[:12], []byte{0x81, 0, 0, 7}, vlan[12:])
	six := make([]byte, etherHeader+40+udpHeader+bthHeader)
	binary.BigEndian.PutUint16(six[12:], etherIPv6)
	six[etherHeader+6] = protoUDP
	binary.BigEndian.PutUint16(six[etherHeader+40+2:], rocePort)
	six[etherHeader+40+udpHeader] = 17
	options := roceFrame(1)
	options[etherHeader] = 0x46
	options = slices.Concat(options[:etherHeader+20], make([]byte, 4), options[etherHeader+20:])
	fragment := roceFrame(1)
	fragment[etherHeader+7] = 9
	tcp := roceFrame(1)
	tcp[etherHeader+9] = 6

	for _, c := range []struct {
		name            string
		frame           []byte
		roce, ack, data bool
	}{
		{"a send", roceFrame(1), true, false, true},
		{"an acknowledge", udpFrame(rocePort, 17, 1), true, true, false},
		{"a read response", udpFrame(rocePort, 13, 1), true, true, false},
		{"an unreliable datagram", udpFrame(rocePort, 0x64, 1), true, false, true},
		{"in a VLAN", vlan, true, false, true},
		{"IPv6 acknowledge", six, true, true, false},
		{"with IP options", options, true, false, true},
		{"another port", udpFrame(4790, 4, 1), false, false, false},
		{"a later fragment", fragment, false, false, false},
		{"TCP", tcp, false, false, false},
		{"nothing", nil, false, false, false},
	} {
		if !allFrames.has(c.frame) {
			t.Errorf("%s is not among all frames", c.name)
		}
		if got := roceFrames.has(c.frame); got != c.roce {
			t.Errorf("%s: RoCE is %v", c.name, got)
		}
		if got := ackFrames.has(c.frame); got != c.ack {
			t.Errorf("%s: an acknowledge is %v", c.name, got)
		}
		if got := dataFrames.has(c.frame); got != c.data {
			t.Errorf("%s: data is %v", c.name, got)
		}
	}
	// Every prefix of a frame: no panic, and not RoCE before the header is complete.
	for _, whole := range [][]byte{roceFrame(1), vlan, six, options} {
		complete := false
		for n := range len(whole) + 1 {
			_, ok := opcode(whole[:n])
			if complete && !ok {
				t.Errorf("%d of %d bytes are no longer RoCE", n, len(whole))
			}
			complete = ok
		}
		if !complete {
			t.Errorf("a whole frame of %d bytes is not RoCE", len(whole))
		}
	}
}

func newTest(t *testing.T, commands ...string) *direction {
	t.Helper()
	d := newDirection("a", 7)
	for _, line := range commands {
		if answer := command(line, []*direction{d}); answer != "ok "+line {
			t.Fatalf("%s: %s", line, answer)
		}
	}
	return d
}

// run passes frames 0 to n-1 at one time, and then whatever waits.
func run(d *direction, n int) []int {
	now := time.Unix(1000, 0)
	var out []int
	for i := range n {
		out = append(out, marks(d.pass(nil, roceFrame(i), now))...)
	}
	return append(out, marks(d.due(nil, now.Add(time.Hour)))...)
}

func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

func TestAWireThatDoesNothing(t *testing.T) {
	d := newTest(t)
	if got := run(d, 1000); !slices.Equal(got, upTo(1000)) {
		t.Errorf("1000 frames became %d, or others", len(got))
	}
	if d.in != 1000 || d.roce != 1000 || d.out != 1000 || d.bytes != 1000*uint64(len(roceFrame(0))) {
		t.Errorf("counters: %v", &d.counters)
	}
}

func TestLossIsOfTheRateAndTheSeed(t *testing.T) {
	const n, rate = 20000, 0.05
	first := newTest(t, "set drop=0.05")
	got := run(first, n)
	if lost := n - len(got); float64(lost) < n*rate*0.8 || float64(lost) > n*rate*1.2 || uint64(lost) != first.dropped {
		t.Errorf("lost %d of %d, counted %d, at a rate of %v", lost, n, first.dropped, rate)
	}
	if !slices.IsSorted(got) {
		t.Error("loss changed the order")
	}
	if again := run(newTest(t, "set drop=0.05"), n); !slices.Equal(got, again) {
		t.Error("the same seed lost other frames")
	}
	// Another rate beside it must not change which frames are lost.
	var unique []int
	for _, i := range run(newTest(t, "set drop=0.05 dup=0.1"), n) {
		if len(unique) == 0 || unique[len(unique)-1] != i {
			unique = append(unique, i)
		}
	}
	if !slices.Equal(got, unique) {
		t.Error("doubling changed what was lost")
	}
	other := newDirection("a", 8)
	other.rule.drop = rate
	if slices.Equal(got, run(other, n)) {
		t.Error("another seed lost the same frames")
	}
	if slices.Equal(got, run(func() *direction { d := newDirection("b", 7); d.rule.drop = rate; return d }(), n)) {
		t.Error("both directions lost the same frames")
	}
}

func TestDoubling(t *testing.T) {
	d := newTest(t, "set dup=0.1")
	got := run(d, 5000)
	if extra := len(got) - 5000; extra < 400 || extra > 600 || uint64(extra) != d.duplicated {
		t.Errorf("%d frames more, counted %d, at a rate of 0.1 of 5000", extra, d.duplicated)
	}
	slices.Sort(got)
	if !slices.Equal(slices.Compact(got), upTo(5000)) {
		t.Error("doubling lost a frame")
	}
}

func TestReordering(t *testing.T) {
	d := newTest(t, "set reorder=0.1")
	got := run(d, 5000)
	moved := 0
	for i, n := range got {
		if i > 0 && got[i-1] > n {
			moved++
		}
		if i-n > 3*4 {
			t.Errorf("frame %d came at place %d", n, i)
		}
	}
	if moved < 300 || d.reordered < 400 || d.reordered > 600 {
		t.Errorf("%d frames came late, counted %d, at a rate of 0.1 of 5000", moved, d.reordered)
	}
	slices.Sort(got)
	if !slices.Equal(got, upTo(5000)) {
		t.Error("reordering lost or doubled a frame")
	}
}

func TestTheLastFrameIsNotHeldForEver(t *testing.T) {
	d, now := newTest(t, "set reorder=1"), time.Unix(1000, 0)
	if out := d.pass(nil, roceFrame(5), now); len(out) != 0 {
		t.Fatalf("the frame was not held: %v", marks(out))
	}
	next, ok := d.nextDue()
	if !ok || next != now.Add(reorderTime) {
		t.Fatalf("due at %v, %v", next, ok)
	}
	if out := d.due(nil, next); !slices.Equal(marks(out), []int{5}) {
		t.Errorf("due gave %v", marks(out))
	}
	if _, ok := d.nextDue(); ok {
		t.Error("something still waits")
	}
}

func TestDelay(t *testing.T) {
	d, now := newTest(t, "set delay=5ms"), time.Unix(1000, 0)
	for i := range 3 {
		if out := d.pass(nil, roceFrame(i), now.Add(time.Duration(i)*time.Millisecond)); len(out) != 0 {
			t.Fatalf("frame %d was not delayed", i)
		}
	}
	// The frame's buffer belongs to the caller again: what waits is a copy.
	f := roceFrame(3)
	d.pass(nil, f, now.Add(3*time.Millisecond))
	clear(f)
	if out := d.due(nil, now.Add(5*time.Millisecond-1)); len(out) != 0 {
		t.Errorf("too early: %v", marks(out))
	}
	if out := d.due(nil, now.Add(6*time.Millisecond)); !slices.Equal(marks(out), []int{0, 1}) {
		t.Errorf("after 6 ms: %v", marks(out))
	}
	if out := d.due(nil, now.Add(time.Second)); !slices.Equal(marks(out), []int{2, 3}) {
		t.Errorf("at the end: %v", marks(out))
	}
}

func TestWhatWaitsIsBounded(t *testing.T) {
	d := newTest(t, "set delay=1h")
	run(d, maxWaiting+10)
	if d.overflow != 10 {
		t.Errorf("overflow %d after %d frames", d.overflow, maxWaiting+10)
	}
}

func TestOnlyWhatMatches(t *testing.T) {
	d, now := newTest(t, "set drop=1 match=ack"), time.Unix(1000, 0)
	if out := d.pass(nil, udpFrame(rocePort, 17, 0), now); len(out) != 0 {
		t.Error("an acknowledge passed")
	}
	for _, f := range [][]byte{roceFrame(1), udpFrame(22, 0, 1), {1, 2, 3}} {
		if out := d.pass(nil, f, now); len(out) != 1 || !bytes.Equal(out[0], f) {
			t.Errorf("%x did not pass", f)
		}
	}
	if d.in != 4 || d.roce != 2 || d.out != 3 || d.dropped != 1 {
		t.Errorf("counters: %v", &d.counters)
	}
}

func TestCutTakesEverything(t *testing.T) {
	d, now := newTest(t, "set delay=1s"), time.Unix(1000, 0)
	d.pass(nil, roceFrame(1), now)
	command("cut", []*direction{d})
	if out := d.pass(nil, udpFrame(22, 0, 2), now); len(out) != 0 {
		t.Error("a frame passed a cut wire")
	}
	if out := d.due(nil, now.Add(time.Hour)); len(out) != 0 {
		t.Error("a frame that waited passed a cut wire")
	}
	if d.counters.cut != 2 {
		t.Errorf("counters: %v", &d.counters)
	}
	command("join", []*direction{d})
	if out := d.pass(nil, udpFrame(22, 0, 3), now); !slices.Equal(marks(out), []int{3}) {
		t.Error("no frame passed after join")
	}
}

func TestDropNext(t *testing.T) {
	if got := run(newTest(t, "drop-next 3"), 6); !slices.Equal(got, []int{3, 4, 5}) {
		t.Errorf("got %v", got)
	}
}

func TestCommandsForOneDirection(t *testing.T) {
	a, b := newDirection("a", 1), newDirection("b", 1)
	both := []*direction{a, b}
	for _, c := range []struct{ line, answer string }{
		{"a cut", "ok a cut"},
		{"b set drop=0.5 dup=0.25 reorder=1 delay=3ms match=all", "ok b set drop=0.5 dup=0.25 reorder=1 delay=3ms match=all"},
	} {
		if got := command(c.line, both); got != c.answer {
			t.Errorf("%s: %s", c.line, got)
		}
	}
	if want := (rule{cut: true}); a.rule != want {
		t.Errorf("a: %+v", a.rule)
	}
	if want := (rule{match: allFrames, drop: 0.5, dup: 0.25, reorder: 1, delay: 3 * time.Millisecond}); b.rule != want {
		t.Errorf("b: %+v", b.rule)
	}
	if got := command("b stats", both); !strings.HasPrefix(got, "ok from b: in 0 ") || strings.Contains(got, "from a") {
		t.Errorf("stats: %s", got)
	}
	if got := command("clear", both); got != "ok clear" || a.rule != (rule{}) || b.rule != (rule{}) {
		t.Errorf("clear: %s; %+v %+v", got, a.rule, b.rule)
	}
}

func TestBadCommandsChangeNothing(t *testing.T) {
	d := newTest(t, "set drop=0.5")
	before := d.rule
	for _, line := range []string{"", "a", "burn", "cut now", "set", "set drop", "set drop=2", "set drop=-1", "set drop=NaN", "set drop=x",
		"set dup=1 reorder=7", "set delay=5", "set delay=-1s", "set match=tcp", "set speed=1", "drop-next", "drop-next x", "drop-next -1", "drop-next 1 2"} {
		if got := command(line, []*direction{d}); !strings.HasPrefix(got, "error: ") || strings.Contains(got, "\n") {
			t.Errorf("%q: %q", line, got)
		}
		if d.rule != before {
			t.Errorf("%q changed the rule to %+v", line, d.rule)
			d.rule = before
		}
	}
}

// machine is the socket of a machine on the wire.
func machine(t *testing.T, dir, name string) (conn *net.UnixConn, send func(frame []byte)) {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	to := &net.UnixAddr{Name: filepath.Join(dir, name+".relay"), Net: "unixgram"}
	out, err := net.DialUnix("unixgram", nil, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	return conn, func(frame []byte) {
		t.Helper()
		if _, err := out.Write(frame); err != nil {
			t.Error(err)
		}
	}
}

func receive(t *testing.T, conn *net.UnixConn, limit time.Duration) (int, bool) {
	t.Helper()
	buffer := make([]byte, maxFrame)
	conn.SetReadDeadline(time.Now().Add(limit))
	n, err := conn.Read(buffer)
	if err != nil {
		return 0, false
	}
	return mark(buffer[:n]), true
}

// The whole program but its flags: two machines, frames both ways, a cut by the
// control socket, and a machine that is not there.
func TestWire(t *testing.T) {
	dir := t.TempDir()
	w, err := newWire(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	closed := false
	defer func() {
		if !closed {
			w.close()
		}
	}()
	a, sendA := machine(t, dir, "a")
	sendA(roceFrame(1)) // nobody there: lost
	control, err := net.Dial("unix", filepath.Join(dir, "control"))
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	answers := bufio.NewReader(control)
	ask := func(line string) string {
		t.Helper()
		fmt.Fprintln(control, line)
		control.SetReadDeadline(time.Now().Add(10 * time.Second))
		answer, err := answers.ReadString('\n')
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		return strings.TrimSpace(answer)
	}
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(ask("a stats"), "in 1 "); {
		if time.Now().After(deadline) {
			t.Fatal("the frame did not arrive at the relay")
		}
		time.Sleep(time.Millisecond)
	}
	w.lanes[0].sending.Lock() // so its sending is over
	if w.lanes[0].refused != 1 {
		t.Errorf("%d frames found no machine, not 1", w.lanes[0].refused)
	}
	w.lanes[0].sending.Unlock()

	b, sendB := machine(t, dir, "b")
	const n = 500 // more than the sockets' queues hold: a slow receiver loses nothing
	go func() {
		for i := range n {
			sendA(roceFrame(100 + i))
		}
	}()
	for i := range n {
		if got, ok := receive(t, b, 10*time.Second); !ok || got != 100+i {
			t.Fatalf("frame %d from a: %d, %v", 100+i, got, ok)
		}
	}
	sendB(roceFrame(2))
	if got, ok := receive(t, a, 10*time.Second); !ok || got != 2 {
		t.Fatalf("from b: %d, %v", got, ok)
	}

	if answer := ask("cut"); answer != "ok cut" {
		t.Fatal(answer)
	}
	sendA(roceFrame(3))
	if got, ok := receive(t, b, 50*time.Millisecond); ok {
		t.Errorf("frame %d passed a cut wire", got)
	}
	if answer := ask("join"); answer != "ok join" {
		t.Fatal(answer)
	}
	if answer := ask("set delay=30ms"); !strings.HasPrefix(answer, "ok") {
		t.Fatal(answer)
	}
	start := time.Now()
	sendA(roceFrame(4))
	if got, ok := receive(t, b, 10*time.Second); !ok || got != 4 || time.Since(start) < 30*time.Millisecond {
		t.Errorf("a delayed frame: %d, %v, after %v", got, ok, time.Since(start))
	}
	if answer := ask("jump"); !strings.HasPrefix(answer, "error: unknown command") {
		t.Error(answer)
	}
	w.close()
	closed = true
	if l := w.lanes[0]; l.refused != 1 || l.in != n+3 || l.counters.cut != 1 {
		t.Errorf("refused %d, %v", l.refused, &l.counters)
	}
}
