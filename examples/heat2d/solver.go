package main

import (
	"context"

	"github.com/weft-hpc/weft"
	"gonum.org/v1/gonum/mat"
)

// Tags of the messages between ranks. Each kind has its own, so that a mistake
// in the order of calls is an error and not a wrong picture.
const (
	tagUp = iota + 1
	tagDown
	tagLeft
	tagRight
	tagScatter
	tagGather
)

// A solver is one rank's part of the parallel solution. Its arrays hold the
// rank's block with a halo around it, one cell wide: copies of the cells that
// belong to the neighbours.
//
//	. h h h h .        h: halo, filled by exchange
//	h c c c c h        c: the block; cell (top, left) of the plate is
//	h c c c c h           element (1, 1) of the array
//	. h h h h .        .: never read, the stencil has no corners
type solver struct {
	comm          *weft.Comm
	grid          grid
	near          neighbors
	height, width int   // of the whole plate
	own           block // the cells that this rank owns

	// The cells of the block that change, in array coordinates: those on the
	// rim of the plate are held at their first temperature.
	top, bottom, left, right int

	now, next        *mat.Dense
	toSide, fromSide []float64 // a packed column
	memory           []*weft.Buf[float64]
}

// newSolver prepares a rank's part of a plate of height x width cells. The
// caller closes it.
func newSolver(c *weft.Comm, g grid, height, width int) (*solver, error) {
	own := g.block(c.Rank(), height, width)
	s := &solver{
		comm: c, grid: g, near: g.neighbors(c.Rank()), height: height, width: width, own: own,
		top: max(own.top, 1) - own.top + 1, bottom: min(own.bottom, height-1) - own.top + 1,
		left: max(own.left, 1) - own.left + 1, right: min(own.right, width-1) - own.left + 1,
	}
	rows, cols := own.height()+2, own.width()+2
	var slices [4][]float64
	for i, n := range []int{rows * cols, rows * cols, own.height(), own.height()} {
		// Memory from weft.Alloc is within reach of the other ranks of this
		// host and of the network card: a message from or to it is copied once.
		// gonum sees an ordinary slice.
		buf, err := weft.Alloc[float64](c.World(), n)
		if err != nil {
			s.close()
			return nil, err
		}
		s.memory = append(s.memory, buf)
		slices[i] = buf.Slice()
	}
	s.now, s.next = mat.NewDense(rows, cols, slices[0]), mat.NewDense(rows, cols, slices[1])
	s.toSide, s.fromSide = slices[2], slices[3]
	return s, nil
}

// close gives the arrays' memory back.
func (s *solver) close() {
	for _, buf := range s.memory {
		buf.Free()
	}
	s.memory = nil
}

// step advances the block by one time step.
func (s *solver) step(ctx context.Context) error {
	if err := s.exchange(ctx); err != nil {
		return err
	}
	diffuse(s.next, s.now, s.top, s.bottom, s.left, s.right)
	s.now, s.next = s.next, s.now
	return nil
}

// exchange fills the halo with the neighbours' cells. Each of the four calls
// moves data in one direction across the whole grid: every rank sends to the
// neighbour on one side and receives from the neighbour on the other.
func (s *solver) exchange(ctx context.Context) error {
	height, width := s.own.height(), s.own.width()

	// Rows lie in one piece and travel as they are.
	row := func(i int) []float64 { return s.now.RawRowView(i)[1 : width+1] }
	if _, err := weft.Sendrecv(ctx, s.comm, row(1), s.near.up, tagUp, row(height+1), s.near.down, tagUp); err != nil {
		return err
	}
	if _, err := weft.Sendrecv(ctx, s.comm, row(height), s.near.down, tagDown, row(0), s.near.up, tagDown); err != nil {
		return err
	}

	// Columns are packed first and unpacked after.
	if err := s.exchangeColumn(ctx, 1, s.near.left, width+1, s.near.right, tagLeft); err != nil {
		return err
	}
	return s.exchangeColumn(ctx, width, s.near.right, 0, s.near.left, tagRight)
}

// exchangeColumn sends column from of the block to the rank to, and puts what
// the rank source sends into the halo column into.
func (s *solver) exchangeColumn(ctx context.Context, from, to, into, source, tag int) error {
	if to != weft.NoRank {
		for i := range s.toSide {
			s.toSide[i] = s.now.At(i+1, from)
		}
	}
	if _, err := weft.Sendrecv(ctx, s.comm, s.toSide, to, tag, s.fromSide, source, tag); err != nil {
		return err
	}
	if source != weft.NoRank {
		for i, v := range s.fromSide {
			s.now.Set(i+1, into, v)
		}
	}
	return nil
}

// change returns the largest change of any cell of the whole plate in the last
// step: the same number on every rank.
func (s *solver) change(ctx context.Context) (float64, error) {
	v := []float64{largestChange(s.now, s.next, s.top, s.bottom, s.left, s.right)}
	err := weft.Allreduce(ctx, s.comm, v, v, weft.Max[float64]())
	return v[0], err
}

// scatter hands out the plate, which rank 0 holds, block by block.
func (s *solver) scatter(ctx context.Context, plate *mat.Dense) error {
	mine := make([]float64, s.own.height()*s.own.width())
	if s.comm.Rank() == 0 {
		for rank := 1; rank < s.comm.Size(); rank++ {
			if err := weft.Send(ctx, s.comm, pack(plate, s.grid.block(rank, s.height, s.width)), rank, tagScatter); err != nil {
				return err
			}
		}
		mine = pack(plate, s.own)
	} else if _, err := weft.Recv(ctx, s.comm, mine, 0, tagScatter); err != nil {
		return err
	}
	// Both arrays start alike: diffuse never writes the rim of the plate.
	inside := block{1, s.own.height() + 1, 1, s.own.width() + 1}
	unpack(s.now, inside, mine)
	unpack(s.next, inside, mine)
	return nil
}

// gather puts the blocks of all ranks together. The result is nil on every rank
// but 0.
func (s *solver) gather(ctx context.Context) (*mat.Dense, error) {
	mine := pack(s.now, block{1, s.own.height() + 1, 1, s.own.width() + 1})
	if s.comm.Rank() != 0 {
		return nil, weft.Send(ctx, s.comm, mine, 0, tagGather)
	}
	plate := mat.NewDense(s.height, s.width, nil)
	unpack(plate, s.own, mine)
	for rank := 1; rank < s.comm.Size(); rank++ {
		b := s.grid.block(rank, s.height, s.width)
		part := make([]float64, b.height()*b.width())
		if _, err := weft.Recv(ctx, s.comm, part, rank, tagGather); err != nil {
			return nil, err
		}
		unpack(plate, b, part)
	}
	return plate, nil
}

// pack copies a block of an array into one piece.
func pack(from *mat.Dense, b block) []float64 {
	cells := make([]float64, 0, b.height()*b.width())
	for i := b.top; i < b.bottom; i++ {
		cells = append(cells, from.RawRowView(i)[b.left:b.right]...)
	}
	return cells
}

// unpack is the opposite of pack.
func unpack(to *mat.Dense, b block, cells []float64) {
	for i := b.top; i < b.bottom; i++ {
		copy(to.RawRowView(i)[b.left:b.right], cells[(i-b.top)*b.width():])
	}
}
