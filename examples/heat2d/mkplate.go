//go:build ignore

// mkplate draws plate.png, the plate that heat2d starts from by default:
//
//	go run mkplate.go
//
// Hot letters and threads lie over and under each other on a cold plate.
package main

import (
	"image"
	"image/color"
	"image/png"
	"log"
	"math"
	"os"
)

const width, height = 320, 240

type point struct{ x, y float64 }

// letters are the strokes of "WEFT", each a chain of points.
var letters = [][]point{
	{{30, 84}, {46, 154}, {62, 102}, {78, 154}, {94, 84}},                    // W
	{{160, 84}, {120, 84}, {120, 154}, {160, 154}}, {{120, 118}, {152, 118}}, // E
	{{224, 84}, {184, 84}, {184, 154}}, {{184, 118}, {216, 118}}, // F
	{{246, 84}, {294, 84}}, {{270, 84}, {270, 154}}, // T
}

// toChain is the distance from p to the nearest point of a chain of segments.
func toChain(p point, chain []point) float64 {
	best := math.Inf(1)
	for i := range chain[1:] {
		a, b := chain[i], chain[i+1]
		dx, dy := b.x-a.x, b.y-a.y
		t := ((p.x-a.x)*dx + (p.y-a.y)*dy) / (dx*dx + dy*dy)
		t = min(max(t, 0), 1)
		best = min(best, math.Hypot(p.x-a.x-t*dx, p.y-a.y-t*dy))
	}
	return best
}

// cover is 1 well inside a line of the given half width, 0 well outside, and
// between the two within a pixel of its edge.
func cover(distance, half float64) float64 { return min(max(half-distance+0.5, 0), 1) }

func temperature(x, y float64) float64 {
	t := 0.04
	lay := func(by, value float64) { t = t*(1-by) + value*by }

	// Warp threads hang straight down; weft threads wind across, over one and
	// under the next.
	const pitch = 32
	for i, line := range []float64{28, 52, 188, 212} {
		phase := math.Pi * (x/pitch + float64(i))
		wave := line + 4*math.Sin(phase)
		over := math.Cos(phase) > 0
		thread := cover(math.Abs(y-wave), 5)
		warp := cover(math.Abs(math.Mod(x+pitch/2, pitch)-pitch/2), 3)
		shade := 0.45 + 0.4*x/width
		if over {
			lay(warp*0.5, 0.22)
			lay(thread, shade)
		} else {
			lay(thread, shade)
			lay(warp, 0.22)
		}
	}
	for _, chain := range letters {
		lay(cover(toChain(point{x, y}, chain), 7), 1)
	}
	return t
}

func main() {
	picture := image.NewGray(image.Rect(0, 0, width, height))
	for y := range height {
		for x := range width {
			t := temperature(float64(x)+0.5, float64(y)+0.5)
			picture.SetGray(x, y, color.Gray{Y: uint8(math.Round(255 * t))})
		}
	}
	f, err := os.Create("plate.png")
	if err != nil {
		log.Fatal(err)
	}
	if err := png.Encode(f, picture); err != nil {
		log.Fatal(err)
	}
	if err := f.Close(); err != nil {
		log.Fatal(err)
	}
}
