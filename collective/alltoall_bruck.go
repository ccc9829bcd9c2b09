package collective

// alltoallBruck: a block that has to go d ranks up goes there in hops of the
// powers of two in d. In step k every rank hands all its blocks with bit k in
// what they still have to go to the rank 2^k above it. For short blocks: each
// travels log2(P)/2 times, in fewer messages. Any P.
//
//	steps     ceil(log2 P)
//	messages  P ceil(log2 P)
//	bytes     S/P for each bit of each of the numbers 1 ... P-1, P times;
//	          S P log2(P)/2 / P for P a power of two
//	memory    2 S
//
// Bruck et al. 1997; Thakur et al. 2005, section 4.2; MPI 4.1, 6.8.
var alltoallBruck = Algorithm{
	Kind: KindAlltoall, Name: "bruck",
	Cost: func(s Shape) Cost {
		hops := 0
		for bit := 1; bit < s.Ranks; bit <<= 1 {
			hops += withBit(s.Ranks, bit)
		}
		return Cost{Steps: log2(s.Ranks), Messages: s.Ranks * log2(s.Ranks), Bytes: hops * s.Bytes}
	},
	time: func(l lane, n int) float64 {
		t := 2 * l.copy(n)
		for bit := 1; bit < l.ranks; bit <<= 1 {
			m := l.each(n) * withBit(l.ranks, bit)
			t += l.shift(bit, m) + 2*l.copy(m)
		}
		return t
	},
	run: func(p group, a Args) error {
		rank, size := p.Rank(), p.Size()
		b := len(a.Send) / size
		all := p.Scratch(slotVector, size*b) // by the distance to go
		head := (size - rank) * b
		move(p, all[:head], a.Send[rank*b:])
		move(p, all[head:], a.Send[:rank*b])
		most := 0
		for bit := 1; bit < size; bit <<= 1 {
			most = max(most, withBit(size, bit))
		}
		out, in := p.Scratch(slotInput, most*b), p.Scratch(slotOther, most*b)
		for bit := 1; bit < size; bit <<= 1 {
			n := 0
			for d := bit; d < size; d = (d + 1) | bit {
				move(p, out[n:n+b], all[d*b:][:b])
				n += b
			}
			if err := p.Sendrecv(out[:n], (rank+bit)%size, in[:n], (rank-bit+size)%size); err != nil {
				return err
			}
			n = 0
			for d := bit; d < size; d = (d + 1) | bit {
				move(p, all[d*b:][:b], in[n:n+b])
				n += b
			}
		}
		for d := range size {
			move(p, a.Recv[(rank-d+size)%size*b:][:b], all[d*b:][:b])
		}
		return nil
	},
}

// withBit returns how many of the numbers below n have a bit.
func withBit(n, bit int) int {
	return n/(2*bit)*bit + max(0, n%(2*bit)-bit)
}
