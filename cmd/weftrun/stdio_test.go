package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/creack/pty"
)

const big = 650_015 // bytes: more than pipes and buffers hold, and odd

func TestStdinArrivesWhole(t *testing.T) {
	data := make([]byte, big)
	for i := range data {
		data[i] = byte(i * i >> 7)
	}
	for _, n := range []int{1, 3} {
		for _, size := range []int{0, 1, 65536, 65537, big} {
			in := data[:size]
			r := run1(t, bytes.NewReader(in), "-n", fmt.Sprint(n), "sh", "-c", `[ $WEFT_RANK = 0 ] && exec sha256sum; cat`)
			r.want(t, 0)
			if want := fmt.Sprintf("%x  -\n", sha256.Sum256(in)); r.out != want {
				t.Errorf("%d bytes to %d ranks: %q", size, n, r.out)
			}
		}
	}
}

func TestStdinOfALoopIsLeftAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lines")
	if err := os.WriteFile(file, []byte("a\nb\nc\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, feed := range []string{"< " + file, "<<< never"} {
		script := `while read x; do ` + weftrun + ` -n 2 true; echo $x; done`
		if strings.HasPrefix(feed, "<<<") {
			script = "cat " + file + " | " + script
		} else {
			script += feed
		}
		out, err := exec.Command("sh", "-c", script).CombinedOutput()
		if string(out) != "a\nb\nc\n" || err != nil {
			t.Errorf("%s: %q, %v", script, out, err)
		}
	}
}

func TestClosedDescriptors(t *testing.T) {
	out, err := exec.Command("sh", "-c", weftrun+` -n 2 cat <&-; echo $?`).CombinedOutput()
	if string(out) != "0\n" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	if err := exec.Command("sh", "-c", weftrun+` -n 2 echo hi >&- 2>&-`).Run(); err != nil {
		t.Errorf("without an output: %v", err)
	}
}

// TestLinesStayWhole has ranks write lines in pieces, all at once.
func TestLinesStayWhole(t *testing.T) {
	const script = `for i in 1 2 3 4 5 6 7 8 9 10; do printf "$WEFT_RANK abcdef"; printf "ghijkl"; printf "mnopqr $i\n"; done`
	for _, tag := range []bool{false, true} {
		args := []string{"-n", "5", "sh", "-c", script}
		if tag {
			args = append([]string{"--tag-output"}, args...)
		}
		r := run1(t, nil, args...)
		r.want(t, 0)
		next := make(map[string]int) // lines of one rank keep their order
		for _, l := range lines(r.out) {
			if tag {
				if l[:4] != "["+l[4:5]+"] " {
					t.Fatalf("line %q has a wrong tag", l)
				}
				l = l[4:]
			}
			next[l[:1]]++
			if want := fmt.Sprintf("%s abcdefghijklmnopqr %d", l[:1], next[l[:1]]); l != want {
				t.Fatalf("line %q, want %q", l, want)
			}
		}
		if len(lines(r.out)) != 50 {
			t.Errorf("%d lines, want 50", len(lines(r.out)))
		}
	}
}

func TestOutputArrivesWhole(t *testing.T) {
	for _, n := range []int{1, 3} {
		for _, size := range []int{0, 1, 65535, 65536, 65537, big} {
			// One line without an end.
			script := fmt.Sprintf(`head -c %d /dev/zero | tr '\0' $WEFT_RANK`, size)
			r := run1(t, nil, "-n", fmt.Sprint(n), "sh", "-c", script)
			r.want(t, 0)
			if len(r.out) != n*size {
				t.Errorf("%d ranks with %d bytes each: got %d", n, size, len(r.out))
			}
			for rank := range n {
				if got := strings.Count(r.out, fmt.Sprint(rank)); got != size {
					t.Errorf("%d of %d bytes of rank %d arrived", got, size, rank)
				}
			}
		}
	}
}

func TestTaggedLinesWithoutEnd(t *testing.T) {
	r := run1(t, nil, "--tag-output", "-n", "2", "sh", "-c", `printf 'a\n\nb'; printf err >&2`)
	if r.code != 0 || strings.Count(r.out, "[0] a\n") != 1 || strings.Count(r.out, "[1] \n") != 1 || strings.Count(r.out, "[1] b\n") != 1 {
		t.Errorf("%d: %q", r.code, r.out)
	}
	if r.err != "[0] err\n[1] err\n" && r.err != "[1] err\n[0] err\n" {
		t.Errorf("stderr: %q", r.err)
	}
	r = run1(t, nil, "-n", "1", "printf", "no end")
	if r.out != "no end" {
		t.Errorf("without tags: %q", r.out)
	}
}

func TestOneLineForAllOutput(t *testing.T) {
	// Standard output and error that lead to one file do not mix inside lines.
	cmd := command(t, "-n", "3", "sh", "-c", `for i in 1 2 3 4 5 6 7 8 9; do echo out; echo err >&2; done`)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(out), "out\n") + strings.Count(string(out), "err\n"); n != 54 || len(out) != 54*4 {
		t.Errorf("%d lines: %q", n, out)
	}
}

func TestSlowReaderHoldsUpTheRank(t *testing.T) {
	file := filepath.Join(t.TempDir(), "progress")
	// Each MiB is noted when it is written.
	script := fmt.Sprintf(`for i in 1 2 3 4; do head -c 1048576 /dev/zero; echo >> %s; done`, file)
	cmd := command(t, "-n", "1", "sh", "-c", script)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(pipe, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	// 64 KiB each of two pipes and a buffer is all that can be on its way.
	if b, err := os.ReadFile(file); err == nil {
		t.Errorf("%d MiB were written before anybody read", len(b))
	}
	n, err := io.Copy(io.Discard, pipe)
	if err != nil || n != 4<<20-1 {
		t.Errorf("%d bytes came, %v", n, err)
	}
	if code := finish(t, cmd, cmd.Wait()); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestReaderThatLeaves(t *testing.T) {
	out, err := exec.Command("bash", "-c", weftrun+` -n 2 yes | head -1; echo ${PIPESTATUS[0]}`).CombinedOutput()
	if string(out) != "y\n141\n" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
}

func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	cmd := command(t, "-n", "2", "yes")
	var errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = full, &errs
	if code := finish(t, cmd, cmd.Run()); code != 1 || !strings.Contains(errs.String(), "no space left on device") {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
}

// terminal starts weftrun on a terminal of its own.
func terminal(t *testing.T, args ...string) (*os.File, *exec.Cmd) {
	t.Helper()
	cmd := command(t, args...)
	tty, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return tty, cmd
}

// until reads until the output ends with a text.
func until(t *testing.T, tty *os.File, text string) string {
	t.Helper()
	var got []byte
	b := make([]byte, 1)
	for !bytes.HasSuffix(got, []byte(text)) {
		if _, err := tty.Read(b); err != nil {
			t.Fatalf("terminal ended after %q: %v", got, err)
		}
		got = append(got, b[0])
	}
	return string(got)
}

func TestTerminal(t *testing.T) {
	// The prompt has no end of line, and must be seen all the same.
	tty, cmd := terminal(t, "-n", "2", "sh", "-c", `[ $WEFT_RANK = 0 ] || exit 0; printf 'name? '; read x; echo "hello $x"; cat; echo end`)
	until(t, tty, "name? ")
	if _, err := tty.WriteString("weft\n"); err != nil {
		t.Fatal(err)
	}
	until(t, tty, "hello weft\r\n")
	if _, err := tty.WriteString("more\n\x04"); err != nil { // the end of input
		t.Fatal(err)
	}
	until(t, tty, "end\r\n")
	if code := finish(t, cmd, cmd.Wait()); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestWindow: ranks find the size of the window, hear that it changes, and read the new one from the terminal.
func TestWindow(t *testing.T) {
	for _, name := range []string{"COLUMNS", "LINES"} {
		t.Setenv(name, "") // puts back what was there
		os.Unsetenv(name)
	}
	cmd := command(t, "-n", "2", "sh", "-c", `trap 'stty size </dev/tty' WINCH; echo $COLUMNS by $LINES; while :; do sleep 0.1; done`)
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 50, Cols: 132})
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	for range 2 {
		until(t, tty, "132 by 50\r\n")
	}
	if err := pty.Setsize(tty, &pty.Winsize{Rows: 40, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		until(t, tty, "40 100\r\n")
	}
	if _, err := tty.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	if code := finish(t, cmd, cmd.Wait()); code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
	for _, args := range [][]string{{"-n", "1", "-x", "COLUMNS=7"}, {"-n", "1", "--tag-output"}, {"-n", "1", "--output", t.TempDir()}} {
		cmd := command(t, append(args, "sh", "-c", "echo columns $COLUMNS. >/dev/tty")...)
		if tty, err = pty.StartWithSize(cmd, &pty.Winsize{Rows: 50, Cols: 132}); err != nil {
			t.Fatal(err)
		}
		if got := until(t, tty, ".\r\n"); strings.Contains(got, "132") || strings.Contains(got, "7") != slices.Contains(args, "COLUMNS=7") {
			t.Errorf("%v: %q", args, got)
		}
		finish(t, cmd, cmd.Wait())
		tty.Close()
	}
}

func TestBackgroundJobLeavesTheTerminalAlone(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "bash", "-mc", `"$0" -n 1 sh -c 'echo started; read x; echo got $x' &
		read y; echo "shell $y"; fg`, weftrun)
	tty, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	until(t, tty, "started\r\n")
	if _, err := tty.WriteString("one\n"); err != nil {
		t.Fatal(err)
	}
	until(t, tty, "shell one\r\n")
	if _, err := tty.WriteString("two\n"); err != nil {
		t.Fatal(err)
	}
	until(t, tty, "got two\r\n")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestInterruptFromTerminal(t *testing.T) {
	tty, cmd := terminal(t, rank(2, "count")...)
	until(t, tty, "ready\r\n")
	until(t, tty, "ready\r\n")
	if _, err := tty.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	until(t, tty, "caught 1\r\n") // once: not from the terminal and from weftrun
	until(t, tty, "caught 1\r\n")
	if code := finish(t, cmd, cmd.Wait()); code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
}

func TestColoursOnlyOnATerminal(t *testing.T) {
	tty, cmd := terminal(t, "--tag-output", "-n", "1", "echo", "hi")
	if got := until(t, tty, "hi\r\n"); got != "\x1b[31m[0]\x1b[0m hi\r\n" {
		t.Errorf("on a terminal: %q", got)
	}
	finish(t, cmd, cmd.Wait())
	t.Setenv("NO_COLOR", "1")
	tty, cmd = terminal(t, "--tag-output", "-n", "1", "echo", "hi")
	if got := until(t, tty, "hi\r\n"); got != "[0] hi\r\n" {
		t.Errorf("on a terminal without colours: %q", got)
	}
	finish(t, cmd, cmd.Wait())
}
