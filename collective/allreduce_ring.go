package collective

// allreduceRing: block i starts at rank i+1 and travels around the ring, every
// rank adds its own operand, until rank i holds the result; then the results
// travel around the ring. The operands of block i are combined in the order i+1,
// i+2 ... P-1, 0 ... i, each on one rank, so all ranks get the same bits, but the
// operator must commute.
//
//	steps     2 (P-1)
//	messages  2 P (P-1)
//	bytes     2 (P-1) S
//	memory    none, S/P in place
//
// Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of
// workstations, 2009; MPI 4.1, 6.9.6.
var allreduceRing = Algorithm{
	Kind: KindAllreduce, Name: "ring", NeedsCommutative: true,
	Cost: func(s Shape) Cost {
		return Cost{
			Steps:    2 * (s.Ranks - 1),
			Messages: 2 * s.Ranks * (s.Ranks - 1),
			Bytes:    2 * (s.Ranks - 1) * s.Bytes,
		}
	},
	time: func(l lane, n int) float64 {
		b := l.each(n)
		return 2*l.around(b) + times(l.ranks-1, l.reduce(b))
	},
	run: func(p group, a Args) error {
		rank, size := p.Rank(), p.Size()
		if size == 1 {
			move(p, a.Recv, a.Send)
			return nil
		}
		s := split{len(a.Send), a.Op.Size, size}
		next, prev := (rank+1)%size, (rank-1+size)%size
		var tmp []byte
		inPlace := same(a.Send, a.Recv)
		if inPlace {
			tmp = p.Scratch(slotInput, s.longest())
		}
		from := a.Send // holds the block to pass on
		for k := range size - 1 {
			give := (prev - k + size) % size
			take := (prev - k - 1 + size) % size
			mine, sum := s.of(a.Send, take, take+1), s.of(a.Recv, take, take+1)
			in := sum
			if inPlace {
				in = tmp[:len(sum)]
			}
			if err := p.Sendrecv(s.of(from, give, give+1), next, in, prev); err != nil {
				return err
			}
			if inPlace {
				a.Op.Right(sum, in)
			} else {
				a.Op.Left(sum, mine)
			}
			from = a.Recv
		}
		return ring(p, parts{cut: s}, a.Recv)
	},
}
