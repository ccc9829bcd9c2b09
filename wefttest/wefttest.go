// Package wefttest runs a world of ranks inside a test: the ranks are
// goroutines, so the race detector and the debugger see all of them, and the
// fabric between them is slow, reorders messages of different pairs and
// repeats frames, by a seed that is printed when the test fails.
//
//	func TestSum(t *testing.T) {
//		wefttest.Run(t, 8, func(ctx context.Context, world *weft.Comm) error {
//			...
//		})
//	}
package wefttest

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/weft-hpc/weft"
)

// SeedVariable is the environment variable that fixes the seed, to repeat a
// failure.
const SeedVariable = "WEFTTEST_SEED"

// timeout ends a world that does not end by itself.
const timeout = time.Minute

// Run runs fn on n ranks and fails the test if any of them returns an error,
// panics, or does not return within a minute. Options come after the ones that
// Run sets.
func Run(t testing.TB, n int, fn func(ctx context.Context, world *weft.Comm) error, opts ...weft.Option) {
	t.Helper()
	if err := Try(t, n, fn, opts...); err != nil {
		t.Fatalf("wefttest: %v", err)
	}
}

// Try is Run for tests that expect an error, which it returns.
func Try(t testing.TB, n int, fn func(ctx context.Context, world *weft.Comm) error, opts ...weft.Option) error {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv(SeedVariable); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("wefttest: %s=%q is not a number", SeedVariable, s)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("wefttest: repeat with %s=%d", SeedVariable, seed)
		}
	})
	r := rand.New(rand.NewPCG(seed, 0))
	faults := weft.Faults{Seed: seed, Delay: r.IntN(4), Duplicate: 0.1 * r.Float64(), Full: 0.2 * r.Float64(), Stream: r.IntN(2) == 0}
	if r.IntN(2) == 0 {
		faults.Eager = 64 << r.IntN(8)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return weft.Local(ctx, n, fn, append([]weft.Option{weft.WithFaults(faults)}, opts...)...)
}
