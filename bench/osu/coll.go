package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weft-hpc/weft"
)

// A collective is one operation of bench/peers/collectives.h, which says what the
// bytes of a command mean. A length is in elements, doubles or bytes.
type collective struct {
	numbers     bool // doubles are summed; else bytes are moved
	atRoot      bool // only the root has a result
	sends       func(n, ranks int) int
	gives       func(n, ranks int) int
	equal       bool // n must be a multiple of the number of ranks
	call        func(r *rank, b *buffers, n int) error
	start       func(r *rank, b *buffers, n int) // the nonblocking form; nil: not measured
	resultFrom  func(n, ranks, me, i int) origin
	sendIsInOut bool // the buffer that is sent is recv, at the root
}

// origin says what element i of a result is: the sum of element j of the ranks
// first to last.
type origin struct{ first, last, j int }

func one(n, _ int) int      { return n }
func each(n, ranks int) int { return n * ranks }
func part(n, ranks int) int { return n / ranks }

var collectives = map[string]*collective{
	"bcast": {sends: one, gives: one, sendIsInOut: true,
		resultFrom: func(_, _, _, i int) origin { return origin{0, 0, i} },
		call:       func(r *rank, b *buffers, n int) error { return weft.Bcast(r.ctx, r.c, b.recv[:n], 0) },
		start:      func(r *rank, b *buffers, n int) { weft.Ibcast(r.scope, r.c, b.recv[:n], 0) },
	},
	"allreduce": {numbers: true, sends: one, gives: one,
		resultFrom: func(_, ranks, _, i int) origin { return origin{0, ranks - 1, i} },
		call: func(r *rank, b *buffers, n int) error {
			return weft.Allreduce(r.ctx, r.c, b.sendNum[:n], b.recvNum[:n], r.sum)
		},
		start: func(r *rank, b *buffers, n int) {
			weft.Iallreduce(r.scope, r.c, b.sendNum[:n], b.recvNum[:n], r.sum)
		},
	},
	"alltoall": {sends: one, gives: one, equal: true,
		resultFrom: func(n, ranks, me, i int) origin {
			k := n / ranks
			return origin{i / k, i / k, me*k + i%k}
		},
		call: func(r *rank, b *buffers, n int) error { return weft.Alltoall(r.ctx, r.c, b.send[:n], b.recv[:n]) },
		start: func(r *rank, b *buffers, n int) {
			weft.Ialltoall(r.scope, r.c, b.send[:n], b.recv[:n])
		},
	},
	"reduce": {numbers: true, atRoot: true, sends: one, gives: one,
		resultFrom: func(_, ranks, _, i int) origin { return origin{0, ranks - 1, i} },
		call: func(r *rank, b *buffers, n int) error {
			return weft.Reduce(r.ctx, r.c, b.sendNum[:n], b.recvNum[:n], r.sum, 0)
		},
	},
	"reducescatter": {numbers: true, sends: one, gives: part, equal: true,
		resultFrom: func(n, ranks, me, i int) origin { return origin{0, ranks - 1, me*(n/ranks) + i} },
		call: func(r *rank, b *buffers, n int) error {
			return weft.ReduceScatterBlock(r.ctx, r.c, b.sendNum[:n], b.recvNum[:n/r.c.Size()], r.sum)
		},
	},
	"scan": {numbers: true, sends: one, gives: one,
		resultFrom: func(_, _, me, i int) origin { return origin{0, me, i} },
		call: func(r *rank, b *buffers, n int) error {
			return weft.Scan(r.ctx, r.c, b.sendNum[:n], b.recvNum[:n], r.sum)
		},
	},
	"allgather": {sends: one, gives: each,
		resultFrom: func(n, _, _, i int) origin { return origin{i / n, i / n, i % n} },
		call: func(r *rank, b *buffers, n int) error {
			return weft.Allgather(r.ctx, r.c, b.send[:n], b.recv[:n*r.c.Size()])
		},
	},
	"gather": {atRoot: true, sends: one, gives: each,
		resultFrom: func(n, _, _, i int) origin { return origin{i / n, i / n, i % n} },
		call: func(r *rank, b *buffers, n int) error {
			return weft.Gather(r.ctx, r.c, b.send[:n], b.recv[:n*r.c.Size()], 0)
		},
	},
	"scatter": {sends: each, gives: one,
		resultFrom: func(n, _, me, i int) origin { return origin{0, 0, me*n + i} },
		call: func(r *rank, b *buffers, n int) error {
			return weft.Scatter(r.ctx, r.c, b.send[:n*r.c.Size()], b.recv[:n], 0)
		},
	},
}

// collectiveOf returns the collective that a test measures, and whether it is the
// nonblocking form, which has an i in front; or nil.
func collectiveOf(test string) (op *collective, nonblocking bool) {
	if op := collectives[test]; op != nil {
		return op, false
	}
	name, found := strings.CutPrefix(test, "i")
	if op := collectives[name]; found && op != nil && op.start != nil {
		return op, true
	}
	return nil, false
}

// refuseCollective says why c cannot be run; all ranks come to the same answer.
func (r *rank) refuseCollective(c *command, op *collective) error {
	b, ranks := r.kinds[c.memory], r.c.Size()
	n, send, recv := c.bytes, len(b.send), len(b.recv)
	if op.numbers {
		n, send, recv = c.bytes/8, len(b.sendNum), len(b.recvNum)
	}
	switch {
	case op.sends(n, ranks) > send || op.gives(n, ranks) > recv:
		return errors.New("command out of range")
	case op.equal && n%ranks != 0:
		return errors.New("the ranks' parts are not of one length")
	}
	return nil
}

func (r *rank) collective(c *command) (float64, error) {
	op, nonblocking := collectiveOf(c.test)
	b, n := r.kinds[c.memory], c.bytes
	if op.numbers {
		n /= 8
	}
	once := func() error { return op.call(r, b, n) }
	if nonblocking {
		once = func() error {
			op.start(r, b, n)
			return r.scope.Wait()
		}
	}
	if c.mode == "check" {
		bad := 0
		for seed := range c.iters {
			wrong, err := r.verify(op, b, n, seed, once)
			if err != nil {
				return 0, err
			}
			bad += wrong
		}
		if bad > 0 {
			return 0, fmt.Errorf("%d elements of the result are wrong", bad)
		}
		return 0, nil
	}
	var t0 time.Time
	for i := range c.warmup + c.iters {
		if i == c.warmup {
			t0 = time.Now()
		}
		if err := once(); err != nil {
			return 0, err
		}
	}
	return per(t0, c.iters), nil
}

// verify runs op on fresh contents and returns the number of elements that are
// wrong after it.
func (r *rank) verify(op *collective, b *buffers, n, seed int, once func() error) (int, error) {
	me, ranks := r.c.Rank(), r.c.Size()
	sent, given := op.sends(n, ranks), op.gives(n, ranks)
	for i := range given {
		if op.numbers {
			b.recvNum[i] = -1
		} else {
			b.recv[i] = 0xee
		}
	}
	for i := range sent {
		switch v := input(me, i, seed); {
		case op.numbers:
			b.sendNum[i] = float64(v)
		case op.sendIsInOut && me == 0:
			b.recv[i] = v
		default:
			b.send[i] = v
		}
	}
	if err := once(); err != nil {
		return 0, err
	}
	if op.atRoot && me != 0 {
		return 0, nil
	}
	bad := 0
	for i := range given {
		from := op.resultFrom(n, ranks, me, i)
		want := 0.0
		for q := from.first; q <= from.last; q++ {
			want += float64(input(q, from.j, seed))
		}
		got := 0.0
		if op.numbers {
			got = b.recvNum[i]
		} else {
			got = float64(b.recv[i])
		}
		if got != want {
			bad++
		}
	}
	return bad, nil
}

// input is element j of what a rank sends: a small whole number, so that sums are exact.
func input(rank, j, seed int) byte {
	h := uint32(j)*2654435761 ^ uint32(rank)*2246822519 ^ uint32(seed)*3266489917
	return byte(h >> 24)
}
