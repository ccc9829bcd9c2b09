package weft_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weft-hpc/weft"
	"github.com/weft-hpc/weft/wefttest"
)

func TestDimsCreate(t *testing.T) {
	for _, tc := range []struct {
		n          int
		dims, want []int
	}{
		{1, []int{0}, []int{1}},
		{6, []int{0, 0}, []int{3, 2}},
		{7, []int{0, 0}, []int{7, 1}},
		{6, []int{0, 3, 0}, []int{2, 3, 1}},
		{64, []int{0, 0, 0}, []int{4, 4, 4}},
		{36, []int{0, 0, 0}, []int{4, 3, 3}},
		{1000003, []int{0, 0}, []int{1000003, 1}},
		{65536, []int{0, 0, 0}, []int{64, 32, 32}},
		{6, []int{3, 2}, []int{3, 2}},
		{1, nil, []int{}},
	} {
		if got, err := weft.DimsCreate(tc.n, tc.dims); err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("DimsCreate(%d, %v) = %v, %v; want %v", tc.n, tc.dims, got, err, tc.want)
		}
	}
	for _, tc := range []struct {
		n    int
		dims []int
	}{{6, []int{4, 0}}, {6, []int{3, 3}}, {6, []int{-1, 0}}, {0, []int{0}}, {2, nil}} {
		if got, err := weft.DimsCreate(tc.n, tc.dims); !errors.Is(err, weft.ErrArgument) {
			t.Errorf("DimsCreate(%d, %v) = %v, %v", tc.n, tc.dims, got, err)
		}
	}
}

func TestCart(t *testing.T) {
	wefttest.Run(t, 13, func(ctx context.Context, c *weft.Comm) error {
		g, err := weft.NewCart(ctx, c, []int{3, 4}, []bool{true, false}, c.Size() == 0)
		if err != nil {
			return err
		}
		if g == nil {
			if c.Rank() < 12 {
				return errors.New("a rank of the grid is left out")
			}
			return nil
		}
		me := g.Coords(g.Rank())
		if g.Size() != 12 || g.Rank() != c.Rank() || me[0] != g.Rank()/4 || me[1] != g.Rank()%4 || g.RankOf(me...) != g.Rank() {
			return fmt.Errorf("rank %d of %d at %v", g.Rank(), g.Size(), me)
		}
		if r := g.RankOf(-1, 0); r != 8 {
			return fmt.Errorf("around the edge: %d", r)
		}
		if r := g.RankOf(0, 4); r != weft.NoRank {
			return fmt.Errorf("beyond the edge: %d", r)
		}
		src, dst := g.Shift(1, 2)
		wantSrc, wantDst := g.Rank()-2, g.Rank()+2
		if me[1] < 2 {
			wantSrc = weft.NoRank
		} else {
			wantDst = weft.NoRank
		}
		if src != wantSrc || dst != wantDst {
			return fmt.Errorf("Shift at %v: %d, %d", me, src, dst)
		}
		row, err := g.Sub(ctx, []bool{false, true})
		if err != nil {
			return err
		}
		sum, err := weft.AllreduceValue(ctx, row.Comm, g.Rank(), weft.Sum[int]())
		if err != nil || row.Size() != 4 || row.Rank() != me[1] || sum != 16*me[0]+6 || !slices.Equal(row.Dims(), []int{4}) || row.Periodic()[0] {
			return fmt.Errorf("row of %v: rank %d of %d, sum %d, %v", me, row.Rank(), row.Size(), sum, err)
		}
		point, err := g.Sub(ctx, []bool{false, false})
		if err != nil || point.Size() != 1 || len(point.Dims()) != 0 {
			return fmt.Errorf("a point: %v", err)
		}
		again, err := weft.NewCart(ctx, g.Comm, []int{12}, []bool{true}, true)
		if err != nil || again.Size() != 12 {
			return fmt.Errorf("reordered: %v", err)
		}
		return nil
	})
}

func TestCartRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		want []error // one of them, on each rank
		text string
		call func(ctx context.Context, c *weft.Comm, odd bool) error
	}{
		"too large": {[]error{weft.ErrArgument, weft.ErrRevoked}, "on 3 ranks", func(ctx context.Context, c *weft.Comm, odd bool) error {
			_, err := weft.NewCart(ctx, c, []int{2, 2}, []bool{true, true}, false)
			return err
		}},
		"no size": {[]error{weft.ErrArgument, weft.ErrRevoked}, "size 0", func(ctx context.Context, c *weft.Comm, odd bool) error {
			_, err := weft.NewCart(ctx, c, []int{3, 0}, []bool{true, true}, false)
			return err
		}},
		"other grids": {[]error{weft.ErrMismatch, weft.ErrRevoked}, "other arguments", func(ctx context.Context, c *weft.Comm, odd bool) error {
			_, err := weft.NewCart(ctx, c, []int{3}, []bool{odd}, false)
			return err
		}},
		"edge": {[]error{weft.ErrMismatch, weft.ErrRevoked}, "rank 2 has 1 edges", func(ctx context.Context, c *weft.Comm, odd bool) error {
			var to []int
			if odd {
				to = []int{0}
			}
			_, err := weft.NewGraph(ctx, c, nil, to)
			return err
		}},
		"lengths": {[]error{weft.ErrMismatch, weft.ErrRevoked}, "2 and 1 of int", func(ctx context.Context, c *weft.Comm, odd bool) error {
			g, err := weft.NewCart(ctx, c, []int{3}, []bool{false}, false)
			if err != nil {
				return err
			}
			n := weft.Counts{N: []int{1, 1}}
			to := n
			if odd {
				to = weft.Counts{N: []int{2, 1}}
			}
			err = weft.NeighborAlltoallv(ctx, g, make([]int, 3), make([]int, 2), to, n)
			if err == nil {
				err = weft.Barrier(ctx, g.Comm)
			}
			return err
		}},
		"in place": {[]error{weft.ErrOverlap, weft.ErrRevoked}, "two separate", func(ctx context.Context, c *weft.Comm, odd bool) error {
			g, err := weft.NewCart(ctx, c, []int{3}, []bool{true}, false)
			if err != nil {
				return err
			}
			buf := make([]int, 2)
			return weft.NeighborAlltoall(ctx, g, buf, buf)
		}},
		"short recv": {[]error{weft.ErrCount, weft.ErrRevoked}, "each source", func(ctx context.Context, c *weft.Comm, odd bool) error {
			g, err := weft.NewCart(ctx, c, []int{3}, []bool{true}, false)
			if err != nil {
				return err
			}
			return weft.NeighborAllgather(ctx, g, make([]int, 2), make([]int, 3))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			results := make([]error, 3)
			if err := wefttest.Try(t, 3, func(ctx context.Context, c *weft.Comm) error {
				results[c.Rank()] = tc.call(ctx, c, c.Rank() == 2)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			for r, err := range results {
				if !slices.ContainsFunc(tc.want, func(w error) bool { return errors.Is(err, w) }) {
					t.Errorf("rank %d: %v", r, err)
				}
			}
			if text := fmt.Sprint(results); !strings.Contains(text, tc.text) {
				t.Errorf("%v, want %q", text, tc.text)
			}
		})
	}
}

// haloForms are the neighbourhood collectives in all forms, with one element for
// each neighbour, value v to neighbour i, and the parts apart in the v forms.
func haloForms(ctx context.Context, t weft.Topology, c *weft.Comm, sources, destinations int, v func(i int) int) (map[string][]int, error) {
	out := map[string][]int{}
	send := make([]int, destinations)
	for i := range send {
		send[i] = v(i)
	}
	ones := func(n int) weft.Counts {
		c := weft.Counts{N: make([]int, n), Displs: make([]int, n)}
		for i := range n {
			c.N[i], c.Displs[i] = 1, 2*i
		}
		return c
	}
	wide := make([]int, 2*destinations)
	for i, x := range send {
		wide[2*i] = x
	}
	var errs []error
	run := func(name string, width int, f func(recv []int) error) {
		recv := make([]int, width*sources)
		for i := range recv {
			recv[i] = weft.NoRank
		}
		errs = append(errs, f(recv))
		for i := range sources {
			out[name] = append(out[name], recv[width*i])
		}
	}
	s := c.Scope(ctx)
	wait := func(r *weft.Request) error { _, err := r.Wait(ctx); return errors.Join(err, s.Wait()) }
	planned := func(p planned, err error) error {
		if err == nil {
			err = errors.Join(p.Run(ctx), wait(p.Start(s)))
		}
		return err
	}
	run("blocking", 1, func(recv []int) error { return weft.NeighborAlltoall(ctx, t, send, recv) })
	run("nonblocking", 1, func(recv []int) error { return wait(weft.INeighborAlltoall(s, t, send, recv)) })
	run("plan", 1, func(recv []int) error { return planned(weft.PlanNeighborAlltoall(t, send, recv)) })
	run("v", 2, func(recv []int) error {
		return weft.NeighborAlltoallv(ctx, t, wide, recv, ones(destinations), ones(sources))
	})
	run("nonblocking v", 2, func(recv []int) error {
		return wait(weft.INeighborAlltoallv(s, t, wide, recv, ones(destinations), ones(sources)))
	})
	run("plan v", 2, func(recv []int) error {
		return planned(weft.PlanNeighborAlltoallv(t, wide, recv, ones(destinations), ones(sources)))
	})
	mine := []int{v(0)}
	run("gather", 1, func(recv []int) error { return weft.NeighborAllgather(ctx, t, mine, recv) })
	run("gather nonblocking", 1, func(recv []int) error { return wait(weft.INeighborAllgather(s, t, mine, recv)) })
	run("gather plan", 1, func(recv []int) error { return planned(weft.PlanNeighborAllgather(t, mine, recv)) })
	run("gather v", 2, func(recv []int) error { return weft.NeighborAllgatherv(ctx, t, mine, recv, ones(sources)) })
	run("gather nonblocking v", 2, func(recv []int) error {
		return wait(weft.INeighborAllgatherv(s, t, mine, recv, ones(sources)))
	})
	run("gather plan v", 2, func(recv []int) error { return planned(weft.PlanNeighborAllgatherv(t, mine, recv, ones(sources))) })
	return out, errors.Join(errs...)
}

// A halo exchange on a periodic dimension of size 1 or 2 delivered the blocks
// swapped, and the nonblocking call still does.
// https://github.com/open-mpi/ompi/issues/14430
// https://github.com/mpi-forum/mpi-issues/issues/153
func TestOpenMPI14430PeriodicHalo(t *testing.T) {
	var grids [][]int
	for a := 1; a <= 3; a++ {
		grids = append(grids, []int{a})
		for b := 1; b <= 3; b++ {
			grids = append(grids, []int{a, b})
			for d := 1; d <= 2; d++ {
				grids = append(grids, []int{a, b, d})
			}
		}
	}
	for _, dims := range grids {
		n := 1
		for _, d := range dims {
			n *= d
		}
		wefttest.Run(t, n, func(ctx context.Context, c *weft.Comm) error {
			for mask := range 1 << len(dims) {
				periodic := make([]bool, len(dims))
				for d := range dims {
					periodic[d] = mask>>d&1 == 1
				}
				g, err := weft.NewCart(ctx, c, dims, periodic, false)
				if err != nil {
					return err
				}
				value := func(i int) int { return 100*g.Rank() + i }
				// By messages of its own for each direction.
				want := make([]int, 2*len(dims))
				ranks := make([]int, 2*len(dims))
				for i := range want {
					want[i] = weft.NoRank
				}
				for d := range dims {
					down, up := g.Shift(d, 1)
					in := []int{weft.NoRank}
					if _, err := weft.Sendrecv(ctx, g.Comm, []int{value(2 * d)}, down, 0, in, up, 0); err != nil {
						return err
					}
					want[2*d+1] = in[0]
					in[0] = weft.NoRank
					if _, err := weft.Sendrecv(ctx, g.Comm, []int{value(2*d + 1)}, up, 1, in, down, 1); err != nil {
						return err
					}
					want[2*d] = in[0]
				}
				for i := range ranks {
					if ranks[i] = weft.NoRank; want[i] != weft.NoRank {
						ranks[i] = want[i] / 100 * 100
					}
				}
				forms, err := haloForms(ctx, g, g.Comm, len(want), len(want), value)
				if err != nil {
					return err
				}
				for form, got := range forms {
					expect := want
					if strings.HasPrefix(form, "gather") {
						expect = ranks
					}
					if !slices.Equal(got, expect) {
						return fmt.Errorf("grid %v, periodic %v, rank %d, %s: %v, want %v", dims, periodic, g.Rank(), form, got, expect)
					}
				}
				if err := g.Close(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// Graphs with edges by chance, several between the same two ranks and from a rank to
// itself, and ranks without any.
func TestGraph(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 8} {
		wefttest.Run(t, n, func(ctx context.Context, c *weft.Comm) error {
			for seed := range 8 {
				type edge struct{ from, to, index int } // index among those that from sends
				var edges []edge
				degree := make([]int, n)
				for i := range (seed * 5) % (3*n + 1) {
					from, to := (i*i+seed)%n, (i*7+seed*3+i/3)%n
					edges = append(edges, edge{from, to, degree[from]})
					degree[from]++
				}
				var sources, destinations, want, ranks []int
				for _, e := range edges {
					if e.to == c.Rank() {
						sources = append(sources, e.from)
						want = append(want, 100*e.from+e.index)
						ranks = append(ranks, 100*e.from)
					}
					if e.from == c.Rank() {
						destinations = append(destinations, e.to)
					}
				}
				g, err := weft.NewGraph(ctx, c, sources, destinations)
				if err != nil {
					return err
				}
				forms, err := haloForms(ctx, g, g.Comm, len(sources), len(destinations), func(i int) int { return 100*c.Rank() + i })
				if err != nil {
					return err
				}
				for form, got := range forms {
					expect := want
					if strings.HasPrefix(form, "gather") {
						expect = ranks
					}
					if !slices.Equal(got, expect) {
						return fmt.Errorf("graph %d, rank %d, %s: %v, want %v", seed, c.Rank(), form, got, expect)
					}
				}
				if err := g.Close(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
}
