// Command heat2d shows how heat spreads over a plate. The plate starts as a
// picture, bright where it is hot, and its rim is held at its first
// temperature. The ranks share the plate out in blocks; at every step each one
// gets the cells along its edges from its neighbours and computes its own.
//
//	weftrun -n 4 bin/heat2d -check
//	weftrun -n 4 bin/heat2d -in my.png -steps 5000 -frames 20
//
// Where to look: solver.go has everything that concerns the other ranks,
// diffuse.go the physics, grid.go how the plate is cut, picture.go the pictures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"github.com/weft-hpc/weft"
	"gonum.org/v1/gonum/mat"
)

func main() {
	weft.Main(func(ctx context.Context, world *weft.Comm) error {
		return run(ctx, world, os.Args[1:])
	})
}

type settings struct {
	in     string
	size   int
	steps  int
	tol    float64
	every  int
	frames int
	out    string
	check  bool
	show   bool
}

func parse(args []string) (settings, error) {
	var s settings
	f := flag.NewFlagSet("heat2d", flag.ContinueOnError)
	f.StringVar(&s.in, "in", "", "the plate at the start: a PNG `file`, bright is hot (default: a picture that comes with the program)")
	f.IntVar(&s.size, "size", 0, "scale the plate so that its longer side has this many cells (0: as it is)")
	f.IntVar(&s.steps, "steps", 200, "time steps")
	f.Float64Var(&s.tol, "tol", 0, "stop early when no cell changes by more than this in a step")
	f.IntVar(&s.every, "every", 50, "look at the largest change every so many steps")
	f.IntVar(&s.frames, "frames", 4, "pictures to draw on the way, besides the last one")
	f.StringVar(&s.out, "out", "out/heat2d", "the `directory` to put pictures into (empty: draw none)")
	f.BoolVar(&s.check, "check", false, "solve again on one processor, and fail unless the answers are the same to the last bit")
	f.BoolVar(&s.show, "show", false, "sketch the answer on the terminal")

	f.SetOutput(io.Discard) // an error is returned, and reported once
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		f.SetOutput(os.Stdout)
		f.Usage()
		return s, err
	case err != nil:
		return s, err
	case f.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q; a picture is given with -in", f.Arg(0))
	case s.size < 0, s.steps < 0, s.frames < 0, s.every < 1, !(s.tol >= 0):
		return s, errors.New("-size, -steps, -frames and -tol cannot be negative, and -every must be 1 or more")
	}
	return s, nil
}

// prepare does what needs no other rank: it reads the settings and the plate and
// cuts the plate up.
func prepare(args []string, ranks int) (plate *mat.Dense, g grid, err error) {
	s, err := parse(args)
	if err != nil {
		return nil, g, err
	}
	if plate, err = readPlate(s.in, s.size); err != nil {
		return nil, g, err
	}
	height, width := plate.Dims()
	g, err = chooseGrid(ranks, height, width)
	return plate, g, err
}

// run is the whole program, as every rank runs it.
func run(ctx context.Context, world *weft.Comm, args []string) error {
	// Rank 0 alone reads the picture. The others hear the plate's size and the
	// grid from it; zeros tell them that rank 0 could not go on and says why.
	var (
		plate *mat.Dense
		fail  error
		shape = make([]int64, 4)
	)
	if world.Rank() == 0 {
		var g grid
		if plate, g, fail = prepare(args, world.Size()); fail == nil {
			height, width := plate.Dims()
			copy(shape, []int64{int64(height), int64(width), int64(g.rows), int64(g.cols)})
		}
	}
	if err := weft.Bcast(ctx, world, shape, 0); err != nil {
		return err
	}
	if shape[0] == 0 {
		if errors.Is(fail, flag.ErrHelp) {
			return nil
		}
		return fail // nil on every rank but 0
	}

	set, err := parse(args)
	if err != nil {
		return err
	}
	height, width := int(shape[0]), int(shape[1])
	s, err := newSolver(world, grid{int(shape[2]), int(shape[3])}, height, width)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.scatter(ctx, plate); err != nil {
		return err
	}

	first := world.Rank() == 0
	if first {
		fmt.Printf("heat2d: ranks: %d, transport: %s\n", world.Size(), world.World().Transport())
		fmt.Printf("heat2d: a plate of %d x %d cells, cut into %d x %d blocks\n", height, width, s.grid.rows, s.grid.cols)
	}
	done, change, took, err := s.solve(ctx, set)
	if err != nil {
		return err
	}
	answer, err := s.gather(ctx)
	if err != nil || !first {
		return err
	}
	fmt.Printf("heat2d: %d steps in %.3f s: %.0f steps/s, %.1f million cells/s\n",
		done, took.Seconds(), float64(done)/took.Seconds(), float64(done)*float64(height*width)/1e6/took.Seconds())
	fmt.Printf("heat2d: largest change in the last step: %.3g\n", change)
	return report(set, plate, answer, done)
}

// solve takes the plate through the time steps, and draws it on the way.
// It returns how many steps it did, the largest change of a cell in the last one, and how
// long the steps took.
func (s *solver) solve(ctx context.Context, set settings) (done int, change float64, took time.Duration, err error) {
	bar := newProgress(s.comm.Rank() == 0, set.steps)
	defer bar.close()
	start, drawing, frame := time.Now(), time.Duration(0), 0
	for done < set.steps {
		if err := s.step(ctx); err != nil {
			return done, change, 0, err
		}
		done++
		if done%set.every == 0 || done == set.steps {
			if change, err = s.change(ctx); err != nil {
				return done, change, 0, err
			}
			bar.set(done)
			if change <= set.tol && set.tol > 0 {
				break
			}
		}
		if set.out != "" && done < set.steps && done*(set.frames+1)/set.steps > frame {
			frame++
			began := time.Now()
			if err := s.draw(ctx, set.out, frame); err != nil {
				return done, change, 0, err
			}
			drawing += time.Since(began)
		}
	}
	return done, change, time.Since(start) - drawing, nil
}

// draw gathers the plate and writes one picture of it, from rank 0.
func (s *solver) draw(ctx context.Context, dir string, frame int) error {
	plate, err := s.gather(ctx)
	if err != nil || plate == nil {
		return err
	}
	_, err = writePicture(dir, fmt.Sprintf("frame-%03d.png", frame), plate)
	return err
}

// report draws the answer and checks it.
func report(set settings, plate, answer *mat.Dense, steps int) error {
	if set.show {
		fmt.Print(sketch(answer, 72))
	}
	if set.out != "" {
		path, err := writePicture(set.out, "final.png", answer)
		if err != nil {
			return err
		}
		if abs, err := filepath.Abs(path); err == nil {
			path = abs
		}
		fmt.Printf("heat2d: picture of the answer: %s\n", path)
	}
	if !set.check {
		return nil
	}
	cells, difference := compare(answer, solveSerial(plate, steps))
	fmt.Printf("heat2d: max difference to the serial solution: %g\n", difference)
	if cells > 0 {
		return fmt.Errorf("%d cells differ from the serial solution", cells)
	}
	return nil
}

// compare returns how many elements of two arrays differ in any bit, and the
// largest difference.
func compare(a, b *mat.Dense) (cells int, difference float64) {
	height, width := a.Dims()
	for i := range height {
		for j := range width {
			x, y := a.At(i, j), b.At(i, j)
			if math.Float64bits(x) != math.Float64bits(y) {
				cells++
				difference = max(difference, math.Abs(x-y)) // NaN wins
			}
		}
	}
	return cells, difference
}

// A progress is a progress bar on rank 0's standard output, when that leads to a
// terminal; otherwise it draws nothing.
type progress struct {
	container *mpb.Progress
	bar       *mpb.Bar
}

func newProgress(first bool, steps int) *progress {
	if !first || steps == 0 {
		return &progress{}
	}
	// mpb draws nothing when its output is no terminal. Under weftrun it is a
	// pipe always, and weftrun says where that leads.
	options := []mpb.ContainerOption{mpb.WithOutput(os.Stdout), mpb.WithWidth(60)}
	if strings.Contains(os.Getenv("WEFT_TERMINAL"), "stdout") {
		options = append(options, mpb.ForceTTY(), mpb.WithAutoRefresh())
	}
	container := mpb.New(options...)
	return &progress{container, container.AddBar(int64(steps), mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.CountersNoUnit("step %d of %d")),
		mpb.AppendDecorators(decor.Percentage(), decor.Name(" left "), decor.AverageETA(decor.ET_STYLE_GO)))}
}

func (p *progress) set(done int) {
	if p.bar != nil {
		p.bar.SetCurrent(int64(done))
	}
}

func (p *progress) close() {
	if p.bar != nil {
		p.bar.Abort(true) // does nothing to a bar that is complete
		p.container.Wait()
	}
}
