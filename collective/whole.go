package collective

// The algorithms for operators that need all operands of an element at once
// (Op.Whole): they bring these together on one rank before anything is combined.

// The gathering ones bring all vectors together, for vectors so short that steps are
// what counts.
//
//	steps     ceil(log2 P)
//	messages  P-1 for reduce, P ceil(log2 P) for the others
//	bytes     those of a binomial gather of P vectors for reduce, P (P-1) S for the others
//	memory    P S for reduce, 2 P S for the others
//
// They are gatherBinomial and allgatherBruck, which name their sources.
var (
	reduceGather = Algorithm{
		Kind: KindReduce, Name: "gather", NeedsWhole: true,
		Cost: func(s Shape) Cost {
			s.Bytes *= s.Ranks
			return gatherBinomial.Cost(s)
		},
		time: func(l lane, n int) float64 { return gatherBinomial.time(l, l.ranks*n) + l.whole(l.ranks*n) },
		run: func(p group, a Args) error {
			var all []byte
			if p.Rank() == a.Root {
				all = p.Scratch(slotWhole, p.Size()*len(a.Send))
			}
			if err := gatherBinomial.run(p, Args{Send: a.Send, Recv: all, Root: a.Root}); err != nil || p.Rank() != a.Root {
				return err
			}
			fold(p, &a.Op, a.Recv, all)
			return nil
		},
	}
	allreduceGather = Algorithm{
		Kind: KindAllreduce, Name: "gather", NeedsWhole: true, Cost: gatherAllCost, time: gatherAllTime,
		run: func(p group, a Args) error { return gatherOperands(p, a, p.Size()) },
	}
	scanGather = Algorithm{
		Kind: KindScan, Name: "gather", NeedsWhole: true, Cost: gatherAllCost, time: gatherAllTime,
		run: func(p group, a Args) error { return gatherOperands(p, a, p.Rank()+1) },
	}
	exscanGather = Algorithm{
		Kind: KindExscan, Name: "gather", NeedsWhole: true, Cost: gatherAllCost, time: gatherAllTime,
		run: func(p group, a Args) error { return gatherOperands(p, a, p.Rank()) },
	}
)

func gatherAllCost(s Shape) Cost {
	s.Bytes *= s.Ranks
	return allgatherBruck.Cost(s)
}

func gatherAllTime(l lane, n int) float64 {
	return allgatherBruck.time(l, l.ranks*n) + l.whole(l.ranks*n)
}

// whole is the time of combining operands of n bytes together. It takes several times that
// of combining pairs.
func (l lane) whole(n int) float64 { return 4 * l.reduce(n) }

// gatherOperands leaves in every rank's recv the combination of the vectors of the
// first n ranks.
func gatherOperands(p group, a Args, n int) error {
	all := p.Scratch(slotWhole, p.Size()*len(a.Send))
	err := allgatherBruck.run(p, Args{Send: a.Send, Recv: all})
	if err == nil && n > 0 {
		fold(p, &a.Op, a.Recv, all[:n*len(a.Send)])
	}
	return err
}

// The exchanging ones cut the vector into a part for each rank, which receives all
// operands of its part, combines them, and hands out the result.
//
//	steps     P-1 for reduce-scatter, 2 (P-1) for the others
//	messages  P (P-1) for reduce-scatter, P-1 more for reduce, twice as many for allreduce
//	          and scan, P-1 less than that for exscan
//	bytes     (P-1) S for reduce-scatter, S less the root's part more for reduce, 2 (P-1) S
//	          for allreduce and scan, S less the part of rank 0 less than that for exscan
//	memory    S, 2 S for the scans; for reduce-scatter P blocks like the rank's own
//
// Thakur et al. 2005, section 4.3 has their first half for reduce-scatter, without Whole.
var (
	reduceScatterBlockExchange = Algorithm{
		Kind: KindReduceScatterBlock, Name: "exchange", NeedsWhole: true, Cost: reduceScatterLinearCost, time: exchangeTime,
		run: func(p group, a Args) error {
			return exchangeOperands(p, a, scatterBlock(a), a.Recv)
		},
	}
	reduceScatterExchange = Algorithm{
		Kind: KindReduceScatter, Name: "exchange", NeedsWhole: true, Cost: reduceScatterLinearCost, time: exchangeTime,
		run: func(p group, a Args) error {
			return exchangeOperands(p, a, scatterBlocks(a), a.Recv)
		},
	}
	allreduceExchange = Algorithm{
		Kind: KindAllreduce, Name: "exchange", NeedsWhole: true, Cost: allreduceRing.Cost,
		time: func(l lane, n int) float64 { return exchangeTime(l, n) + allgatherRing.time(l, n) },
		run: func(p group, a Args) error {
			q := parts{cut: split{len(a.Send), a.Op.Size, p.Size()}}
			if err := exchangeOperands(p, a, q, q.one(a.Recv, p.Rank())); err != nil {
				return err
			}
			return ring(p, q, a.Recv)
		},
	}
	reduceExchange = Algorithm{
		Kind: KindReduce, Name: "exchange", NeedsWhole: true,
		Cost: func(s Shape) Cost {
			root := split{s.Bytes, s.Elem, s.Ranks}.len(s.Root, s.Root+1)
			return Cost{Steps: 2 * (s.Ranks - 1), Messages: (s.Ranks + 1) * (s.Ranks - 1), Bytes: s.Ranks*s.Bytes - root}
		},
		time: func(l lane, n int) float64 { return exchangeTime(l, n) + l.fan(n/l.ranks) },
		run: func(p group, a Args) error {
			q := parts{cut: split{len(a.Send), a.Op.Size, p.Size()}}
			own := p.Scratch(slotVector, q.len(p.Rank()))
			if err := exchangeOperands(p, a, q, own); err != nil {
				return err
			}
			return gatherAll(p, Args{Send: own, Recv: a.Recv, Root: a.Root}, q)
		},
	}
	scanExchange = Algorithm{
		Kind: KindScan, Name: "exchange", NeedsWhole: true, Cost: allreduceRing.Cost, time: exchangeScanTime,
		run: func(p group, a Args) error { return exchangeScan(p, a, 1) },
	}
	exscanExchange = Algorithm{
		Kind: KindExscan, Name: "exchange", NeedsWhole: true,
		Cost: func(s Shape) Cost {
			c := allreduceRing.Cost(s)
			c.Messages -= s.Ranks - 1
			c.Bytes -= s.Bytes - split{s.Bytes, s.Elem, s.Ranks}.len(0, 1)
			return c
		},
		time: exchangeScanTime,
		run:  func(p group, a Args) error { return exchangeScan(p, a, 0) },
	}
)

func exchangeTime(l lane, n int) float64 { return l.posted(n/l.ranks) + l.whole(n) }

func exchangeScanTime(l lane, n int) float64 {
	return 2*l.posted(n/l.ranks) + l.whole(n) + l.whole(n/2*(l.ranks-1))
}

// exchangeOperands leaves in own the combination of this rank's part of all vectors.
func exchangeOperands(p group, a Args, q parts, own []byte) error {
	all := p.Scratch(slotWhole, p.Size()*len(own))
	if err := pairs(p, Args{Send: a.Send, Recv: all}, q, parts{size: len(own)}, window); err != nil {
		return err
	}
	fold(p, &a.Op, own, all)
	return nil
}

// exchangeScan leaves in the recv of rank r the combination of the vectors of the first
// r+own ranks. Rank 0 takes part without receiving any if that is none.
func exchangeScan(p group, a Args, own int) error {
	rank, size := p.Rank(), p.Size()
	q := parts{cut: split{len(a.Send), a.Op.Size, size}}
	b := q.len(rank)
	all := p.Scratch(slotWhole, size*b)
	if err := pairs(p, Args{Send: a.Send, Recv: all}, q, parts{size: b}, window); err != nil {
		return err
	}
	out := p.Scratch(slotVector, size*b)
	first := 1 - own // that receives anything
	for i := first; i < size; i++ {
		fold(p, &a.Op, out[i*b:][:b], all[:(i+own)*b])
	}
	if rank >= first {
		move(p, q.one(a.Recv, rank), out[rank*b:][:b])
	}
	for k := 1; k < size; k += window {
		for i := k; i < min(k+window, size); i++ {
			src, dst := (rank-i+size)%size, (rank+i)%size
			if rank >= first {
				p.PostRecv(q.one(a.Recv, src), src)
			}
			if dst >= first {
				p.PostSend(out[dst*b:][:b], dst)
			}
		}
		if err := p.Finish(); err != nil {
			return err
		}
	}
	return nil
}

// fold sets dst to the combination of operands, which lie one after the other. It does
// so now, or writes it down if p only records.
func fold(p group, op *Op, dst, operands []byte) {
	if len(dst) == 0 {
		return
	}
	if r, ok := p.Peer.(*recorder); ok {
		r.add(StepFold, dst, operands, 0)
		return
	}
	op.Whole(dst, operands)
}
