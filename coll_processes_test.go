package weft_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weft-hpc/weft"
	"github.com/weft-hpc/weft/collective"
)

func init() {
	// Every collective in every form, by every algorithm.
	programs["forms of collectives"] = func(ctx context.Context, c *weft.Comm) error {
		for _, kind := range collective.Kinds() {
			if err := formsOf(ctx, c, kind, []int{0, 1, 6, 3000}, append(collective.Algorithms(kind), "")); err != nil {
				return err
			}
		}
		return nil
	}
	// Long vectors, by the algorithm that is chosen for them.
	programs["long collectives"] = func(ctx context.Context, c *weft.Comm) error {
		for _, kind := range collective.Kinds() {
			for _, inPlace := range []bool{false, true} {
				if inPlace && (kind == collective.KindBarrier || kind == collective.KindBcast) {
					continue
				}
				f := formCase[int64]{kind, 200000, c.Size() / 2, inPlace, weft.Sum[int64](), func(a, b int64) int64 { return a + b }, nil,
					func(rank, i int) int64 { return int64(rank*1000003 + i*7919 + 1) }}
				fc := f.call(c)
				if err := fc.all(ctx, c); err != nil {
					return fmt.Errorf("%v, in place %t: %w", kind, inPlace, err)
				}
			}
		}
		return nil
	}
	programs["halo"] = func(ctx context.Context, c *weft.Comm) error {
		for _, dims := range [][]int{{c.Size()}, {1, c.Size()}, {c.Size(), 1}} {
			for _, periodic := range []bool{false, true} {
				g, err := weft.NewCart(ctx, c, dims, []bool{periodic, true}[:len(dims)], true)
				if err != nil {
					return err
				}
				var want []int
				for d := range dims {
					down, up := g.Shift(d, 1)
					for i, r := range []int{down, up} {
						if r != weft.NoRank {
							r = 100*r + 2*d + 1 - i
						}
						want = append(want, r)
					}
				}
				forms, err := haloForms(ctx, g, g.Comm, len(want), len(want), func(i int) int { return 100*g.Rank() + i })
				if err != nil {
					return err
				}
				for _, form := range []string{"blocking", "nonblocking", "plan", "v", "nonblocking v", "plan v"} {
					if !slices.Equal(forms[form], want) {
						return fmt.Errorf("grid %v, periodic %t, %s: %v, want %v", dims, periodic, form, forms[form], want)
					}
				}
			}
		}
		return nil
	}
	programs["overtaken"] = overtaken
	programs["panic in an operator"] = func(ctx context.Context, c *weft.Comm) error {
		return weft.Allreduce(ctx, c, []int{1}, []int{0}, weft.OpFunc("fragile", true, func(a, b int) int {
			panic("the table has no such entry")
		}))
	}
	programs["counts disagree"] = func(ctx context.Context, c *weft.Comm) error {
		n := weft.Counts{N: slices.Repeat([]int{5}, c.Size())}
		return weft.Gatherv(ctx, c, make([]float64, 5+c.Rank()/(c.Size()-1)), make([]float64, 5*c.Size()), n, 0)
	}
}

// overtaken starts collectives of memory that is out of reach of peers, and too long for a copy, so that they turn out to
// go by messages, and others behind them, which reach the engine before they do. The first must not be taken for
// ones that are over.
func overtaken(ctx context.Context, c *weft.Comm) error {
	const long = 70_000
	mine, sum, short := make([]int64, long), make([]int64, long), []int64{1}
	for i := range mine {
		mine[i] = int64(i)
	}
	s := c.Scope(ctx)
	for i := range 100 {
		r := weft.Iallreduce(s, c, mine, sum, weft.Sum[int64]())
		var second *weft.Request
		if i%3 == 0 {
			second = weft.Ibarrier(s, c)
		}
		var waiting sync.WaitGroup
		for _, r := range []*weft.Request{r, second, r} {
			if r != nil && (c.Rank()+i)%2 == 0 {
				waiting.Go(func() { _, _ = r.Wait(ctx) }) // s.Wait has the error, too
			}
		}
		var err error
		switch i % 3 {
		case 1:
			err = weft.Barrier(ctx, c)
		case 2:
			err = weft.Allreduce(ctx, c, short, short, weft.Max[int64]())
		}
		waiting.Wait()
		if err := errors.Join(err, s.Wait()); err != nil {
			return err
		}
		if want := int64(c.Size()) * (long - 1); sum[long-1] != want {
			return fmt.Errorf("sum %d, want %d", sum[long-1], want)
		}
	}
	return nil
}

func TestCollectiveProcesses(t *testing.T) {
	for _, transport := range testTransports() {
		for _, test := range []struct {
			program string
			ranks   []int
			code    int
			text    string
		}{
			{"forms of collectives", []int{2, 3, 5}, 0, ""},
			{"long collectives", []int{2, 3, 4}, 0, ""},
			{"halo", []int{1, 2, 3}, 0, ""},
			{"overtaken", []int{2, 3, 5}, 0, ""},
			{"same bits", []int{3, 5}, 0, ""},
			{"exact sums", []int{1, 2, 3, 5}, 0, ""},
			{"panic in an operator", []int{2, 3}, 1, "fragile, at coll_processes_test.go:"},
			{"counts disagree", []int{2, 4}, 1, "6 and 5 of float64"},
		} {
			for _, n := range test.ranks {
				t.Run(fmt.Sprintf("%s/%s/%d", transport, test.program, n), func(t *testing.T) {
					out, code := launch(t, n, transport, test.program)
					if code != test.code || !strings.Contains(out, test.text) {
						t.Errorf("exit code %d, want %d and %q; output:\n%s", code, test.code, test.text, out)
					}
				})
			}
		}
	}
}
