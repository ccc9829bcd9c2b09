package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/gonum/mat"
)

//go:embed plate.png
var defaultPlate []byte

// maxCells bounds the plate: a small file can announce a huge picture.
const maxCells = 1 << 28

// readPlate turns a PNG picture into temperatures from 0 (black) to 1 (white).
// An empty name stands for the picture that comes with the program. A size
// other than 0 scales the picture so that its longer side has that many cells.
func readPlate(name string, size int) (*mat.Dense, error) {
	data := defaultPlate
	if name != "" {
		var err error
		if data, err = os.ReadFile(name); err != nil {
			return nil, err
		}
	}
	bad := func(err error) error { return fmt.Errorf("cannot read %s as a PNG picture: %w", name, err) }
	config, err := png.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return nil, bad(err)
	}
	width, height := config.Width, config.Height
	if longer := max(width, height); size > 0 {
		width, height = width*size/longer, height*size/longer
	}
	switch {
	case width < 3 || height < 3:
		return nil, fmt.Errorf("a plate of %d x %d cells has no inside: the rim is held at its first temperature, so it takes 3 x 3 at least",
			height, width)
	case width*height > maxCells || config.Width*config.Height > maxCells:
		return nil, fmt.Errorf("a plate of %d x %d cells is too large: %d cells at most; give a smaller -size or picture", height, width, maxCells)
	}
	picture, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, bad(err)
	}
	return toPlate(picture, height, width), nil
}

// toPlate samples a picture at height x width points.
func toPlate(picture image.Image, height, width int) *mat.Dense {
	bounds := picture.Bounds()
	plate := mat.NewDense(height, width, nil)
	for i := range height {
		for j := range width {
			x := bounds.Min.X + (2*j+1)*bounds.Dx()/(2*width)
			y := bounds.Min.Y + (2*i+1)*bounds.Dy()/(2*height)
			gray := color.Gray16Model.Convert(picture.At(x, y)).(color.Gray16)
			plate.Set(i, j, float64(gray.Y)/0xffff)
		}
	}
	return plate
}

// heat is the colour map, from cold to hot: black, violet, red, orange, pale
// yellow, brighter with every step, so that it also reads in grey.
var heat = [...][3]float64{
	{0, 0, 4}, {40, 11, 84}, {101, 21, 110}, {159, 42, 99},
	{212, 72, 66}, {245, 125, 21}, {250, 193, 39}, {252, 255, 164},
}

// colorOf returns the colour of a temperature from 0 to 1.
func colorOf(temperature float64) color.RGBA {
	at := min(max(temperature, 0), 1) * float64(len(heat)-1)
	i := min(int(at), len(heat)-2)
	f := at - float64(i)
	mix := func(k int) uint8 { return uint8(heat[i][k]*(1-f) + heat[i+1][k]*f + 0.5) }
	return color.RGBA{mix(0), mix(1), mix(2), 255}
}

// writePicture draws a plate into dir/name and returns the file's path.
func writePicture(dir, name string, plate *mat.Dense) (path string, err error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	height, width := plate.Dims()
	picture := image.NewRGBA(image.Rect(0, 0, width, height))
	for i := range height {
		for j := range width {
			picture.SetRGBA(j, i, colorOf(plate.At(i, j)))
		}
	}
	path = filepath.Join(dir, name)
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	return path, errors.Join(png.Encode(f, picture), f.Close())
}

// sketch draws a plate with letters, for a terminal; a letter is about twice as
// high as it is wide.
func sketch(plate *mat.Dense, columns int) string {
	const shades = " .:-=+*#%@"
	height, width := plate.Dims()
	lines := max(columns*height/(2*width), 1)
	var b strings.Builder
	for i := range lines {
		for j := range columns {
			t := plate.At((2*i+1)*height/(2*lines), (2*j+1)*width/(2*columns))
			b.WriteByte(shades[min(max(int(t*float64(len(shades))), 0), len(shades)-1)])
		}
		b.WriteByte('\n')
	}
	return b.String()
}
