package weft

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/bits"
	"slices"
)

// Topology is a communicator whose ranks have neighbours: a Cart or a Graph. The
// neighbourhood collectives run on it.
type Topology interface {
	// Neighbors returns the ranks that send to this one, and those that it sends
	// to, in the order of their parts in the buffers of neighbourhood collectives.
	// NoRank is a part that is left out: a neighbour beyond an edge.
	Neighbors() (sources, destinations []int)

	base() *Comm
	// receives returns the order in which messages are received, as indexes of
	// sources: between two ranks the first that is sent is the first here.
	receives() []int
}

// Cart is a communicator of ranks on a grid. The last coordinate runs fastest with
// the rank. (MPI 4.1, 8.5)
type Cart struct {
	*Comm
	dims     []int
	periodic []bool
	around   []int // two for each dimension: one step down, one step up
	order    []int
}

// DimsCreate returns sizes of a grid of n ranks: those in dims that are not zero as
// they are, the others as close to each other as can be, the larger ones first. It
// is ErrArgument if there are none. (MPI 4.1, 8.5.2)
func DimsCreate(n int, dims []int) ([]int, error) {
	bad := func(format string, args ...any) error {
		return &Error{Op: "DimsCreate", Peer: NoRank, Tag: NoRank, Want: -1, Got: -1, lost: -1, CallSite: callSite(),
			Err:  fmt.Errorf("%w: %s", ErrArgument, fmt.Sprintf(format, args...)),
			Hint: "give 0 for each size to be chosen; the product of the others divides the number of ranks"}
	}
	left, free := n, 0
	for i, d := range dims {
		switch {
		case d < 0:
			return nil, bad("size %d of dimension %d", d, i)
		case d == 0:
			free++
		case left%d != 0:
			return nil, bad("%d ranks in %v", n, dims)
		default:
			left /= d
		}
	}
	if n < 1 || free == 0 && left != 1 {
		return nil, bad("%d ranks in %v", n, dims)
	}
	out := slices.Clone(dims)
	chosen := balanced(left, free, left)
	for i, d := range out {
		if d == 0 {
			out[i], chosen = chosen[0], chosen[1:]
		}
	}
	return out, nil
}

// balanced returns k factors of n, none above most, in falling order, the largest
// one as small as can be; nil if there are none.
func balanced(n, k, most int) []int {
	switch {
	case k == 0 && n == 1:
		return []int{}
	case k == 0:
		return nil
	}
	for d := 1; d <= min(n, most); d++ {
		if n%d != 0 || !reaches(d, k, n) {
			continue
		}
		if rest := balanced(n/d, k-1, d); rest != nil {
			return append([]int{d}, rest...)
		}
	}
	return nil
}

// reaches tells whether d to the power of k is n or more.
func reaches(d, k, n int) bool {
	p := uint64(1)
	for range k {
		hi, lo := bits.Mul64(p, uint64(d))
		if p = lo; hi > 0 || p >= uint64(n) {
			return true
		}
	}
	return p >= uint64(n)
}

// NewCart returns a communicator of the first ranks of c on a grid of the given
// sizes, nil on the ranks beyond. A dimension that is periodic goes around. With
// reorder, ranks of one host are put next to each other in the grid; their numbers
// then differ from those in c. It is a collective call. (MPI 4.1, 8.5.1)
func NewCart(ctx context.Context, c *Comm, dims []int, periodic []bool, reorder bool) (*Cart, error) {
	c.mustBeOpen()
	if err := c.checkGrid(dims, periodic); err != nil {
		return nil, c.refuse(ctx, "NewCart", err)
	}
	n := product(dims)
	h := fnv.New64a()
	fmt.Fprint(h, dims, periodic, reorder)
	if err := c.sameEverywhere(ctx, "NewCart", h.Sum64(), fmt.Sprintf("a grid %v, periodic %v, reorder %t", dims, periodic, reorder)); err != nil {
		return nil, err
	}
	place := c.rank // among all
	if reorder {
		nodes, err := AllgatherValue(ctx, c, int64(c.w.node))
		if err != nil {
			return nil, err
		}
		place = 0
		for r, node := range nodes {
			if mine := int64(c.w.node); node < mine || node == mine && r < c.rank {
				place++
			}
		}
	}
	color := 0
	if place >= n {
		color = Undefined
	}
	sub, err := c.Split(ctx, color, place)
	if err != nil || sub == nil {
		return nil, err
	}
	return newCart(sub, slices.Clone(dims), slices.Clone(periodic)), nil
}

func newCart(c *Comm, dims []int, periodic []bool) *Cart {
	g := &Cart{Comm: c, dims: dims, periodic: periodic}
	for d := range dims {
		down, up := g.Shift(d, 1)
		g.around = append(g.around, down, up)
		// What the upper neighbour sends down is the first that it sends, and what
		// the lower one sends up the second, also when both are the same rank.
		g.order = append(g.order, 2*d+1, 2*d)
	}
	return g
}

func product(dims []int) int {
	n := 1
	for _, d := range dims {
		n *= d
	}
	return n
}

func (c *Comm) checkGrid(dims []int, periodic []bool) error {
	bad := func(format string, args ...any) error {
		return c.errorf("NewCart", fmt.Errorf("%w: %s", ErrArgument, fmt.Sprintf(format, args...)), "DimsCreate finds sizes for %d ranks", c.size)
	}
	if len(periodic) != len(dims) {
		return bad("%d sizes, and %d times periodic or not", len(dims), len(periodic))
	}
	n := 1
	for i, d := range dims {
		if d < 1 {
			return bad("size %d of dimension %d", d, i)
		}
		if d > c.size/n {
			return bad("a grid %v on %d ranks", dims, c.size)
		}
		n *= d
	}
	return nil
}

// sameEverywhere is ErrMismatch on the ranks that see another rank give something
// else.
func (c *Comm) sameEverywhere(ctx context.Context, call string, hash uint64, mine string) error {
	all := make([]uint64, c.size)
	if err := c.allgather(ctx, call, elemOf[uint64](), bytesOf([]uint64{hash}), bytesOf(all)); err != nil {
		return err
	}
	for r, h := range all {
		if h != hash {
			e := c.errorf(call, fmt.Errorf("%w: rank %d gave other arguments than this rank, which gave %s", ErrMismatch, r, mine), "every rank must give the same")
			e.Peer = r
			return c.refuse(ctx, call, e)
		}
	}
	return nil
}

// Dims returns the sizes of the grid.
func (g *Cart) Dims() []int { return slices.Clone(g.dims) }

// Periodic tells which dimensions go around.
func (g *Cart) Periodic() []bool { return slices.Clone(g.periodic) }

// Coords returns the coordinates of a rank. (MPI 4.1, 8.5.5)
func (g *Cart) Coords(rank int) []int {
	if rank < 0 || rank >= g.size {
		panic(fmt.Sprintf("weft: Coords of rank %d of %d", rank, g.size))
	}
	coords := make([]int, len(g.dims))
	for d := len(g.dims) - 1; d >= 0; d-- {
		coords[d] = rank % g.dims[d]
		rank /= g.dims[d]
	}
	return coords
}

// RankOf returns the rank at the coordinates, NoRank for those beyond an edge. In a
// dimension that is periodic they go around, any number of times. (MPI 4.1, 8.5.5)
func (g *Cart) RankOf(coords ...int) int {
	if len(coords) != len(g.dims) {
		panic(fmt.Sprintf("weft: RankOf with %d coordinates in %d dimensions", len(coords), len(g.dims)))
	}
	rank := 0
	for d, x := range coords {
		n := g.dims[d]
		if g.periodic[d] {
			x = (x%n + n) % n
		}
		if x < 0 || x >= n {
			return NoRank
		}
		rank = rank*n + x
	}
	return rank
}

// Shift returns the ranks to receive from and to send to when all ranks send by
// so many steps up in a dimension; NoRank beyond an edge. (MPI 4.1, 8.5.6)
func (g *Cart) Shift(dim, steps int) (src, dst int) {
	if dim < 0 || dim >= len(g.dims) {
		panic(fmt.Sprintf("weft: Shift in dimension %d of %d", dim, len(g.dims)))
	}
	coords := g.Coords(g.rank)
	at := coords[dim]
	coords[dim] = at - steps
	src = g.RankOf(coords...)
	coords[dim] = at + steps
	return src, g.RankOf(coords...)
}

// Sub returns the part of the grid in which this rank is when only the dimensions to
// be kept vary: of a plane, a row or a column. It is a collective call. (MPI 4.1,
// 8.5.7)
func (g *Cart) Sub(ctx context.Context, keep []bool) (*Cart, error) {
	if len(keep) != len(g.dims) {
		return nil, g.refuse(ctx, "Sub", g.errorf("Sub", fmt.Errorf("%w: %d times keep or not in %d dimensions", ErrArgument, len(keep), len(g.dims)), "say it for each dimension"))
	}
	h := fnv.New64a()
	fmt.Fprint(h, keep)
	if err := g.sameEverywhere(ctx, "Sub", h.Sum64(), fmt.Sprint("keep ", keep)); err != nil {
		return nil, err
	}
	color, key := 0, 0
	var dims []int
	var periodic []bool
	for d, x := range g.Coords(g.rank) {
		if keep[d] {
			key = key*g.dims[d] + x
			dims, periodic = append(dims, g.dims[d]), append(periodic, g.periodic[d])
		} else {
			color = color*g.dims[d] + x
		}
	}
	c, err := g.Split(ctx, color, key)
	if err != nil {
		return nil, err
	}
	return newCart(c, dims, periodic), nil
}

// Neighbors implements Topology: for each dimension the ranks one step down and one
// step up, which are the same rank where a periodic dimension has two, and the
// rank itself where it has one.
func (g *Cart) Neighbors() (sources, destinations []int) {
	return slices.Clone(g.around), slices.Clone(g.around)
}

func (g *Cart) base() *Comm     { return g.Comm }
func (g *Cart) receives() []int { return g.order }
