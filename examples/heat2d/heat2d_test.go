package main

import (
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-hpc/weft"
	"github.com/weft-hpc/weft/wefttest"
	"gonum.org/v1/gonum/mat"
)

func TestCut(t *testing.T) {
	for n := range 20 {
		for parts := 1; parts <= 8; parts++ {
			end, smallest, largest := 0, n, 0
			for i := range parts {
				lo, hi := cut(n, parts, i)
				if lo != end {
					t.Fatalf("cut(%d, %d, %d) starts at %d, the part before it ended at %d", n, parts, i, lo, end)
				}
				end, smallest, largest = hi, min(smallest, hi-lo), max(largest, hi-lo)
			}
			if end != n || largest-smallest > 1 {
				t.Errorf("cut(%d, %d): ends at %d, parts of %d to %d", n, parts, end, smallest, largest)
			}
		}
	}
}

func TestChooseGrid(t *testing.T) {
	for _, tc := range []struct {
		ranks, height, width int
		want                 grid
	}{
		{1, 10, 10, grid{1, 1}},
		{2, 10, 10, grid{2, 1}}, // equal cuts: rows
		{2, 10, 30, grid{1, 2}},
		{4, 10, 10, grid{2, 2}},
		{4, 10, 100, grid{1, 4}},
		{6, 20, 30, grid{2, 3}},
		{7, 20, 20, grid{7, 1}},
		{7, 3, 20, grid{1, 7}}, // three rows are not enough for seven
		{12, 3, 4, grid{3, 4}}, // one cell each
	} {
		got, err := chooseGrid(tc.ranks, tc.height, tc.width)
		if err != nil || got != tc.want {
			t.Errorf("chooseGrid(%d, %d, %d) = %v, %v; want %v", tc.ranks, tc.height, tc.width, got, err, tc.want)
		}
	}
	if g, err := chooseGrid(13, 12, 12); err == nil {
		t.Errorf("chooseGrid(13, 12, 12) = %v; 13 is prime and larger than either side", g)
	}
}

func TestNeighbors(t *testing.T) {
	for _, g := range []grid{{1, 1}, {1, 5}, {5, 1}, {2, 3}, {3, 3}} {
		ranks := g.rows * g.cols
		for rank := range ranks {
			nb := g.neighbors(rank)
			b := g.block(rank, 30, 30)
			for _, other := range []struct {
				rank    int
				touches func(o block) bool
				edge    bool
			}{
				{nb.up, func(o block) bool { return o.bottom == b.top && o.left == b.left }, b.top == 0},
				{nb.down, func(o block) bool { return o.top == b.bottom && o.left == b.left }, b.bottom == 30},
				{nb.left, func(o block) bool { return o.right == b.left && o.top == b.top }, b.left == 0},
				{nb.right, func(o block) bool { return o.left == b.right && o.top == b.top }, b.right == 30},
			} {
				if (other.rank == weft.NoRank) != other.edge {
					t.Errorf("%v: rank %d has the neighbours %+v, its block is %+v", g, rank, nb, b)
				} else if !other.edge && !other.touches(g.block(other.rank, 30, 30)) {
					t.Errorf("%v: rank %d's neighbour %d does not touch it", g, rank, other.rank)
				}
			}
		}
	}
}

// testPlate is a plate without any symmetry.
func testPlate(height, width int) *mat.Dense {
	plate := mat.NewDense(height, width, nil)
	for i := range height {
		for j := range width {
			plate.Set(i, j, float64((i*i*7+j*j*13+i*j)%101)/100)
		}
	}
	return plate
}

// The serial solution against the formula of the textbook, written out cell by
// cell on plain arrays.
func TestSolveSerial(t *testing.T) {
	const height, width, steps = 6, 9, 5
	plate := testPlate(height, width)
	var u [height][width]float64
	for i := range height {
		for j := range width {
			u[i][j] = plate.At(i, j)
		}
	}
	for range steps {
		old := u
		for i := 1; i < height-1; i++ {
			for j := 1; j < width-1; j++ {
				u[i][j] = old[i][j] + rate*(old[i-1][j]+old[i+1][j]+old[i][j-1]+old[i][j+1]-4*old[i][j])
			}
		}
	}
	got := solveSerial(plate, steps)
	for i := range height {
		for j := range width {
			if d := got.At(i, j) - u[i][j]; d > 1e-15 || d < -1e-15 {
				t.Errorf("cell (%d, %d) = %v, want %v", i, j, got.At(i, j), u[i][j])
			}
		}
	}
	if !mat.Equal(plate, testPlate(height, width)) {
		t.Error("solveSerial changed its argument")
	}
}

// A plate whose temperature grows evenly from side to side does not change.
func TestSteadyState(t *testing.T) {
	plate := mat.NewDense(8, 8, nil)
	for i := range 8 {
		for j := range 8 {
			plate.Set(i, j, float64(i+2*j)/32) // exact in binary
		}
	}
	if got := solveSerial(plate, 10); !mat.Equal(got, plate) {
		t.Errorf("a steady plate changed:\n%v", mat.Formatted(got))
	}
}

func TestSolverEqualsSerial(t *testing.T) {
	const steps = 20
	for _, ranks := range []int{1, 2, 3, 4, 5, 7} {
		for _, size := range [][2]int{{7, 7}, {16, 16}, {13, 40}, {40, 13}, {33, 31}} {
			height, width := size[0], size[1]
			t.Run(fmt.Sprintf("ranks=%d/plate=%dx%d", ranks, height, width), func(t *testing.T) {
				plate := testPlate(height, width)
				wefttest.Run(t, ranks, func(ctx context.Context, c *weft.Comm) error {
					g, err := chooseGrid(ranks, height, width)
					if err != nil {
						return err
					}
					s, err := newSolver(c, g, height, width)
					if err != nil {
						return err
					}
					defer s.close()
					if err := s.scatter(ctx, plate); err != nil {
						return err
					}
					done, change, _, err := s.solve(ctx, settings{steps: steps, every: 7})
					if err != nil {
						return err
					}
					if done != steps || change <= 0 || change > 1 {
						t.Errorf("rank %d: %d steps, last change %v", c.Rank(), done, change)
					}
					answer, err := s.gather(ctx)
					if err != nil || c.Rank() != 0 {
						return err
					}
					if cells, difference := compare(answer, solveSerial(plate, steps)); cells != 0 {
						return fmt.Errorf("%d cells differ from the serial solution, by up to %g", cells, difference)
					}
					return nil
				})
			})
		}
	}
}

// The check itself must notice a wrong answer.
func TestCompare(t *testing.T) {
	a, b := testPlate(5, 5), testPlate(5, 5)
	if cells, d := compare(a, b); cells != 0 || d != 0 {
		t.Errorf("equal plates: %d cells, difference %v", cells, d)
	}
	b.Set(2, 3, b.At(2, 3)+0.5)
	if cells, d := compare(a, b); cells != 1 || d < 0.49 {
		t.Errorf("plates that differ in one cell: %d cells, difference %v", cells, d)
	}
}

// The whole program, on two ranks: pictures appear, the check passes, and the
// plate stops early when it is told to.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	wefttest.Run(t, 2, func(ctx context.Context, c *weft.Comm) error {
		return run(ctx, c, []string{"-size", "24", "-steps", "10", "-every", "5", "-frames", "2", "-out", dir, "-check"})
	})
	for _, name := range []string{"frame-001.png", "frame-002.png", "final.png"} {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		config, err := png.DecodeConfig(f)
		f.Close()
		if err != nil || config.Width != 24 {
			t.Errorf("%s: %+v, %v; want a picture 24 wide", name, config, err)
		}
	}
}

// Bad input is one rank's error: the others leave in silence.
func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.png")
	if err := os.WriteFile(text, []byte("not a picture"), 0o666); err != nil {
		t.Fatal(err)
	}
	dot := writeGray(t, filepath.Join(dir, "dot.png"), 1, 1)
	small := writeGray(t, filepath.Join(dir, "small.png"), 3, 3)

	for name, tc := range map[string]struct {
		ranks int
		args  []string
		want  string
	}{
		"missing":   {2, []string{"-in", filepath.Join(dir, "none.png")}, "no such file"},
		"text":      {2, []string{"-in", text}, "as a PNG picture"},
		"one cell":  {2, []string{"-in", dot}, "no inside"},
		"ranks":     {5, []string{"-in", small}, "cannot be cut into 5 blocks"},
		"flag":      {2, []string{"-nonsense"}, "-nonsense"},
		"argument":  {2, []string{"my.png"}, "given with -in"},
		"negative":  {1, []string{"-steps", "-1"}, "cannot be negative"},
		"too large": {1, []string{"-size", "100000"}, "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			wefttest.Run(t, tc.ranks, func(ctx context.Context, c *weft.Comm) error {
				err := run(ctx, c, append(tc.args, "-out", ""))
				if c.Rank() != 0 {
					return err
				}
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					return fmt.Errorf("rank 0: error %v, want one with %q", err, tc.want)
				}
				return nil
			})
		})
	}
}

func writeGray(t *testing.T, path string, width, height int) string {
	t.Helper()
	picture := image.NewGray(image.Rect(0, 0, width, height))
	picture.Set(0, 0, color.White)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := png.Encode(f, picture); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// Temperature and brightness grow together, so a picture can be read in grey.
func TestColors(t *testing.T) {
	last := -1
	for i := range 101 {
		c := colorOf(float64(i) / 100)
		if y := int(color.GrayModel.Convert(c).(color.Gray).Y); y < last {
			t.Errorf("colour of %d%% is darker than the one before", i)
		} else {
			last = y
		}
	}
	if colorOf(-1) != colorOf(0) || colorOf(2) != colorOf(1) {
		t.Error("temperatures outside 0..1 are not clamped")
	}
}

func TestSketch(t *testing.T) {
	plate := mat.NewDense(4, 4, nil)
	for j := range 4 {
		plate.Set(0, j, 1)
		plate.Set(1, j, 1)
		plate.Set(3, j, 0.55)
	}
	if got, want := sketch(plate, 8), "@@@@@@@@\n@@@@@@@@\n        \n++++++++\n"; got != want {
		t.Errorf("sketch:\n%swant:\n%s", got, want)
	}
	if got := sketch(mat.NewDense(1, 100, nil), 4); got != "    \n" {
		t.Errorf("sketch of a flat plate: %q", got)
	}
}
