package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
		{"allocs_sendrecv 8 10 1 1 osu slice", "ok "},
		{"allocs_allreduce 8 10 1 1 osu slice", "ok "},
	} {
		t.Run(tc.command, func(t *testing.T) {
			dir := t.TempDir()
			orders := tc.command + "\nbarrier 0 1 0 1 osu slice\n"
			for i := range 2 {
				write(t, filepath.Join(dir, fmt.Sprintf("%d.in", i)), orders)
				write(t, filepath.Join(dir, fmt.Sprintf("%d.out", i)), "")
			}
			err := weft.Local(t.Context(), 2, func(ctx context.Context, world *weft.Comm) error { return play(ctx, world, dir) })
			if err != nil {
				t.Fatal(err)
			}
			for i := range 2 {
				b, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%d.out", i)))
				if err != nil {
					t.Fatal(err)
				}
				lines := strings.Split(strings.TrimSpace(string(b)), "\n")
				if len(lines) != 3 || !strings.HasPrefix(lines[0], "hello ") || !strings.HasPrefix(lines[1], tc.want) || !strings.HasPrefix(lines[2], "ok ") {
					t.Errorf("rank %d answers %q, want hello, %q, ok", i, lines, tc.want)
				}
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
