package report

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// ErrNothing means that there was nothing to draw.
var ErrNothing = errors.New("report: nothing to draw")

// Plot draws the rows called name on transport as a PNG: values over message
// sizes on logarithmic axes, one line for each contestant and kind of memory.
// Sizes of zero are left out, for a logarithmic axis has no place for them.
func Plot(path, title, name, transport string, rows []Row) error {
	lines := map[string]plotter.XYs{}
	add := func(label string, r Row, v Value) {
		y, ok := v.Get()
		has := slices.ContainsFunc(lines[label], func(p plotter.XY) bool { return p.X == float64(r.Bytes) })
		if ok && y > 0 && !has {
			lines[label] = append(lines[label], plotter.XY{X: float64(r.Bytes), Y: y})
		}
	}
	unit := ""
	for _, r := range rows {
		if r.Name != name || r.Transport != transport || r.Bytes <= 0 {
			continue
		}
		unit = r.Unit
		add("ours, "+r.Memory, r, r.Ours)
		add("Open MPI", r, r.OpenMPI)
		add("MPICH", r, r.MPICH)
		add("floor", r, r.Floor)
	}
	var labels []string
	for label := range lines {
		labels = append(labels, label)
	}
	if len(labels) == 0 {
		return fmt.Errorf("%w: no row is called %s on %s", ErrNothing, name, transport)
	}
	slices.Sort(labels)

	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text = "message size (bytes)"
	p.Y.Label.Text = unit
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = sizeTicks{}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	for i, label := range labels {
		xys := lines[label]
		slices.SortFunc(xys, func(a, b plotter.XY) int { return int(math.Copysign(1, a.X-b.X)) })
		line, points, err := plotter.NewLinePoints(xys)
		if err != nil {
			return fmt.Errorf("report: %s: %w", label, err)
		}
		line.Color, points.Color = plotutil.Color(i), plotutil.Color(i)
		line.Width = vg.Points(1.5)
		points.Shape = plotutil.Shape(i)
		p.Add(line, points)
		p.Legend.Add(label, line, points)
	}
	// A logarithmic axis of no length cannot be drawn.
	widen(&p.X)
	widen(&p.Y)
	return p.Save(8*vg.Inch, 5*vg.Inch, path)
}

func widen(a *plot.Axis) {
	if a.Max <= a.Min*1.01 {
		a.Min, a.Max = a.Min/2, a.Max*2
	}
}

// sizeTicks marks powers of eight, and labels them in KiB and MiB.
type sizeTicks struct{}

func (sizeTicks) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for v := 1.0; v <= high; v *= 8 {
		if v >= low {
			ticks = append(ticks, plot.Tick{Value: v, Label: size(v)})
		}
	}
	if len(ticks) == 0 {
		ticks = append(ticks, plot.Tick{Value: low, Label: size(low)})
	}
	return ticks
}

func size(v float64) string {
	switch {
	case v >= 1<<20:
		return fmt.Sprintf("%gMi", v/(1<<20))
	case v >= 1<<10:
		return fmt.Sprintf("%gKi", v/(1<<10))
	}
	return fmt.Sprintf("%g", v)
}
