package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weft-hpc/weft"
)

func TestCheckSeesOneWord(t *testing.T) {
	for _, n := range []int{0, 1, 7, 8, 9, 63, 64, 71, 72, 4096} {
		b := make([]byte, n)
		fill(b, 5)
		if bad := check(b, 5); bad != 0 {
			t.Errorf("%d bytes: %d words differ from what was just written", n, bad)
		}
		if n == 0 {
			continue
		}
		if bad := check(b, 6); bad == 0 {
			t.Errorf("%d bytes: an old message passes for a new one", n)
		}
		last := (n - 8) / 64 * 64 // the last word that carries something
		if n < 8 {
			last = n - 1
		}
		b[last] ^= 1
		if bad := check(b, 5); bad != 1 {
			t.Errorf("%d bytes: %d differences where one was made", n, bad)
		}
	}
}

// Every test answers on two ranks; bad commands are refused by all, and the
// ranks go on.
func TestServe(t *testing.T) {
	for _, tc := range []struct {
		command string
		want    string
	}{
		{"latency 0 3 1 1 osu slice", "ok "},
		{"latency 100 3 0 1 touch arena", "ok "},
		{"nonsense 8 1 0 1 osu slice", "err unknown test"},
		{"latency -1 1 0 1 osu slice", "err command out of range"},
		{"latency 8 1 0 65 osu slice", "err command out of range"},
		{"latency 8 1 0 1 osu stone", "err unknown memory"},
		{"latency 8 1 0 1 fast slice", "err unknown mode"},
		{"bw 8 2 1 64 osu slice", "ok "},
		{"bw 65536 2 0 3 touch arena", "ok "},
		{"barrier 0 5 1 1 osu slice", "ok "},
		{"allreduce 80 5 1 1 osu arena", "ok "},
		{"allreduce 80 1 0 1 touch arena", "err unknown mode"},
		{"latency 8 1 0 1 check arena", "err unknown mode"},
		{"ibcast 80 5 1 1 osu arena", "ok "},
		{"ireduce 80 5 1 1 osu arena", "err unknown test"},
		{"scatter 8388609 1 0 1 osu slice", "err command out of range"},
		{"gather 8388609 1 0 1 check slice", "err command out of range"},
		{"alltoall 9 1 0 1 check slice", "err the ranks' parts"},
		{"allocs_sendrecv 8 10 1 1 osu slice", "ok "},
		{"allocs_allreduce 8 10 1 1 osu slice", "ok "},
	} {
		t.Run(tc.command, func(t *testing.T) { serve(t, 2, []string{tc.command}, []string{tc.want}) })
	}
}

// serve gives ranks commands and then a barrier, which shows that they are still in
// step; want is what their answers begin with.
func serve(t *testing.T, ranks int, commands, want []string) {
	t.Helper()
	dir := t.TempDir()
	orders := strings.Join(append(commands, "barrier 0 1 0 1 osu slice"), "\n") + "\n"
	want = append(append([]string{"hello "}, want...), "ok ")
	for i := range ranks {
		write(t, filepath.Join(dir, fmt.Sprintf("%d.in", i)), orders)
		write(t, filepath.Join(dir, fmt.Sprintf("%d.out", i)), "")
	}
	err := weft.Local(t.Context(), ranks, func(ctx context.Context, world *weft.Comm) error { return play(ctx, world, dir) })
	if err != nil {
		t.Fatal(err)
	}
	for i := range ranks {
		b, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%d.out", i)))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(b)), "\n")
		if !slices.EqualFunc(lines, want, strings.HasPrefix) {
			t.Errorf("rank %d answers %q, want %q", i, lines, want)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
