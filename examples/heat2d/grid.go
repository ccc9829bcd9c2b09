package main

import (
	"fmt"

	"github.com/weft-hpc/weft"
)

// A grid says how the plate is cut: into rows x cols blocks, one for each
// rank, numbered row by row.
type grid struct{ rows, cols int }

// chooseGrid cuts a plate of height x width cells into one block for each
// rank. Of all the ways that give every rank at least one cell it takes the one
// with the shortest cuts, because the cuts are what ranks exchange at every
// step; among equals the one with more rows, because a row lies in one piece in
// memory and a column does not.
func chooseGrid(ranks, height, width int) (grid, error) {
	best, bestCut := grid{}, 0
	for rows := ranks; rows >= 1; rows-- {
		cols := ranks / rows
		if rows*cols != ranks || rows > height || cols > width {
			continue
		}
		cut := (rows-1)*width + (cols-1)*height
		if best == (grid{}) || cut < bestCut {
			best, bestCut = grid{rows, cols}, cut
		}
	}
	if best == (grid{}) {
		return best, fmt.Errorf("a plate of %d x %d cells cannot be cut into %d blocks: start fewer ranks, or give a larger -size",
			height, width, ranks)
	}
	return best, nil
}

// A block is one rank's part of the plate: the cells [top, bottom) x [left, right).
type block struct{ top, bottom, left, right int }

func (b block) height() int { return b.bottom - b.top }
func (b block) width() int  { return b.right - b.left }

// block returns the part of a plate of height x width cells that a rank owns.
func (g grid) block(rank, height, width int) block {
	top, bottom := cut(height, g.rows, rank/g.cols)
	left, right := cut(width, g.cols, rank%g.cols)
	return block{top, bottom, left, right}
}

// cut returns the bounds of part i when n cells are dealt to parts as evenly as
// can be: the first n % parts of them get one cell more.
func cut(n, parts, i int) (lo, hi int) {
	size, rest := n/parts, n%parts
	lo = i*size + min(i, rest)
	hi = lo + size
	if i < rest {
		hi++
	}
	return lo, hi
}

// neighbors are the ranks that own the blocks around one; weft.NoRank beyond
// the edge of the plate. Communication with NoRank does nothing, so that the
// edges of the plate need no special case.
type neighbors struct{ up, down, left, right int }

func (g grid) neighbors(rank int) neighbors {
	nb := neighbors{weft.NoRank, weft.NoRank, weft.NoRank, weft.NoRank}
	row, col := rank/g.cols, rank%g.cols
	if row > 0 {
		nb.up = rank - g.cols
	}
	if row < g.rows-1 {
		nb.down = rank + g.cols
	}
	if col > 0 {
		nb.left = rank - 1
	}
	if col < g.cols-1 {
		nb.right = rank + 1
	}
	return nb
}
