package weft_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/weft-hpc/weft"
	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/wefttest"
)

// Every collective in every form, by every algorithm, against a plain reference:
// what the ranks give is known to all of them, so each works out alone what it
// must have.

// planned is a Plan of any element type.
type planned interface {
	Run(ctx context.Context) error
	Start(s *weft.Scope) *weft.Request
	Explain() weft.Explanation
}

// formCall is one rank's call of one collective, in all forms.
type formCall struct {
	fill  func() // the buffers, for another run
	block func(ctx context.Context, opts ...weft.CollOption) error
	start func(s *weft.Scope, opts ...weft.CollOption) *weft.Request
	plan  func(opts ...weft.CollOption) (planned, error)
	check func() error
}

// formCase describes calls, the same on all ranks.
type formCase[T comparable] struct {
	kind    collective.Kind
	count   int
	root    int
	inPlace bool
	op      weft.Op[T]
	fold    func(a, b T) T
	whole   func(operands []T) T // instead of fold
	value   func(rank, i int) T
}

// blockLen is the length of a part; in the v forms a third of them are empty.
func (f *formCase[T]) blockLen(from, i int) int {
	switch f.kind {
	case collective.KindGatherv, collective.KindScatterv, collective.KindAllgatherv, collective.KindReduceScatter:
		from = 0
	case collective.KindAlltoallv:
		if f.inPlace {
			from, i = min(from, i), max(from, i)
		}
	default:
		return f.count
	}
	h := from*7 + i*5 + f.count
	if h%3 == 0 {
		return 0
	}
	return h % (f.count + 1)
}

func (f *formCase[T]) vector(rank, n int) []T {
	v := make([]T, n)
	for i := range v {
		v[i] = f.value(rank, i)
	}
	return v
}

// folded is the reduction of the vectors of the ranks lo to hi-1.
func (f *formCase[T]) folded(lo, hi, n int) []T {
	v := f.vector(lo, n)
	if f.whole != nil {
		operands := make([]T, hi-lo)
		for i := range v {
			for r := range operands {
				operands[r] = f.value(lo+r, i)
			}
			v[i] = f.whole(operands)
		}
		return v
	}
	for r := lo + 1; r < hi; r++ {
		for i, x := range f.vector(r, n) {
			v[i] = f.fold(v[i], x)
		}
	}
	return v
}

func counts(n int, of func(i int) int, gap bool) (weft.Counts, int) {
	var c weft.Counts
	at := 0
	for i := range n {
		if gap && i > 0 {
			at++
		}
		c.N, c.Displs = append(c.N, of(i)), append(c.Displs, at)
		at += of(i)
	}
	if !gap {
		c.Displs = nil
	}
	return c, at
}

func part[T any](v []T, c weft.Counts, i int) []T {
	at := 0
	if c.Displs != nil {
		at = c.Displs[i]
	} else {
		for _, n := range c.N[:i] {
			at += n
		}
	}
	return v[at : at+c.N[i]]
}

// call makes a rank's call.
func (f *formCase[T]) call(c *weft.Comm) formCall {
	n, me := c.Size(), c.Rank()
	root := f.root
	var send, recv, sent, want []T // what the buffers are, hold before, and after
	var fc formCall
	isRoot := me == root
	own := f.blockLen(me, me)
	atSend, atRecv := 0, 0 // in place: where in the longer buffer the shorter one is
	all, total := counts(n, func(i int) int { return f.blockLen(0, i) }, f.kind != collective.KindReduceScatter && f.kind != collective.KindGather &&
		f.kind != collective.KindScatter && f.kind != collective.KindAllgather && f.kind != collective.KindReduceScatterBlock)
	spread := func(of func(i int) []T) []T {
		v := make([]T, total)
		for i := range n {
			copy(part(v, all, i), of(i))
		}
		return v
	}
	blockOf := func(i int) []T { return f.vector(i, f.blockLen(0, i)) }
	ownAt := 0
	for i := range me {
		ownAt += all.N[i]
	}
	if all.Displs != nil {
		ownAt = all.Displs[me]
	}
	var to, from weft.Counts
	switch f.kind {
	case collective.KindBcast:
		want = f.vector(root, f.count)
		if isRoot {
			sent = want
		} else {
			sent = make([]T, f.count)
		}
	case collective.KindReduce, collective.KindAllreduce, collective.KindScan:
		sent = f.vector(me, f.count)
		switch {
		case f.kind == collective.KindScan:
			want = f.folded(0, me+1, f.count)
		case f.kind == collective.KindAllreduce || isRoot:
			want = f.folded(0, n, f.count)
		}
	case collective.KindExscan:
		sent, want = f.vector(me, f.count), make([]T, f.count)
		if me > 0 {
			want = f.folded(0, me, f.count)
		} else if f.inPlace {
			want = sent
		}
	case collective.KindGather, collective.KindGatherv, collective.KindAllgather, collective.KindAllgatherv:
		sent = blockOf(me)
		if isRoot || f.kind == collective.KindAllgather || f.kind == collective.KindAllgatherv {
			want = spread(blockOf)
		}
		atSend = ownAt
	case collective.KindScatter, collective.KindScatterv:
		want = blockOf(me)
		if isRoot {
			sent = spread(blockOf)
		}
		atRecv = ownAt
	case collective.KindReduceScatterBlock, collective.KindReduceScatter:
		sent = f.vector(me, total)
		want = part(f.folded(0, n, total), all, me)
	case collective.KindAlltoall, collective.KindAlltoallv:
		var out, in int
		to, out = counts(n, func(i int) int { return f.blockLen(me, i) }, f.kind == collective.KindAlltoallv)
		from, in = counts(n, func(i int) int { return f.blockLen(i, me) }, f.kind == collective.KindAlltoallv)
		sent, want = make([]T, out), make([]T, in)
		for i := range n {
			copy(part(sent, to, i), f.vector(me*n+i, to.N[i]))
			copy(part(want, from, i), f.vector(i*n+me, from.N[i]))
		}
	}
	send, recv = make([]T, len(sent)), make([]T, len(want))
	switch {
	case f.kind == collective.KindBcast:
		send = recv
	case !f.inPlace:
	case len(recv) == len(send):
		send = recv
	case len(recv) > len(send):
		send = recv[atSend : atSend+len(send)]
	case len(want) > 0 || f.kind != collective.KindReduce:
		recv = send[atRecv : atRecv+len(recv)]
	}
	_ = own
	fc.fill = func() {
		clear(recv)
		clear(send)
		copy(send, sent)
	}
	fc.check = func() error {
		if !slices.Equal(recv, want) {
			return fmt.Errorf("got %v, want %v", short(recv), short(want))
		}
		return nil
	}
	op := f.op
	switch f.kind {
	case collective.KindBarrier:
		fc.block = func(ctx context.Context, o ...weft.CollOption) error { return weft.Barrier(ctx, c, o...) }
		fc.start = func(s *weft.Scope, o ...weft.CollOption) *weft.Request { return weft.Ibarrier(s, c, o...) }
		fc.plan = func(o ...weft.CollOption) (planned, error) { return weft.PlanBarrier(c, o...) }
	case collective.KindBcast:
		fc.block = func(ctx context.Context, o ...weft.CollOption) error { return weft.Bcast(ctx, c, recv, root, o...) }
		fc.start = func(s *weft.Scope, o ...weft.CollOption) *weft.Request { return weft.Ibcast(s, c, recv, root, o...) }
		fc.plan = func(o ...weft.CollOption) (planned, error) { return weft.PlanBcast(c, recv, root, o...) }
	case collective.KindReduce:
		fc.block = func(ctx context.Context, o ...weft.CollOption) error {
			return weft.Reduce(ctx, c, send, recv, op, root, o...)
		}
		fc.start = func(s *weft.Scope, o ...weft.CollOption) *weft.Request {
			return weft.Ireduce(s, c, send, recv, op, root, o...)
		}
		fc.plan = func(o ...weft.CollOption) (planned, error) {
			return weft.PlanReduce(c, send, recv, op, root, o...)
		}
	case collective.KindAllreduce:
		fc.block = func(ctx context.Context, o ...weft.CollOption) error {
			return weft.Allreduce(ctx, c, send, recv, op, o...)
		}
		fc.start = func(s *weft.Scope, o ...weft.CollOption) *weft.Request {
			return weft.Iallreduce(s, c, send, recv, op, o...)
		}
		fc.plan = func(o ...weft.CollOption) (planned, error) {
			return weft.PlanAllreduce(c, send, recv, op, o...)
		}
	case collective.KindScan:
		fc.block = func(ctx context.Context, o ...weft.CollOption) error {
			return weft.Scan(ctx, c, send, recv, op, o...)
		}
		fc.start = func(s *weft.Scope, o ...weft.CollOption) *weft.Request {
			return weft.Iscan(s, c, send, recv, op, o...)
		}
		fc.plan = func(o ...weft.CollOption) (planned, error) { return weft.PlanScan(c, send, recv, op, o...) }
	case collective.KindExscan:
		fc.block = func(ctx context.Context, o ...weft.CollOption) error {
			return weft.Exscan(ctx, c, send, recv, op, o...)
		}
		fc.start = func(s *weft.Scope, o ...weft.CollOption) *weft.Request {
			return weft.Iexscan(s, c, send, recv, op, o...)
		}
		fc.plan = func(o ...weft.CollOption) (planned, error) { return weft.PlanExscan(c, send, recv, op, o...) }
	case collective.KindGather:
		fc.block = func(ctx context.Context, o ...weft.CollOption) error {
			return weft.Gather(ctx, c, send, recv, root, o...)
		}
		fc.start = func(s *weft.Scope, o ...weft.CollOption) *weft.Request {
			return weft.Igather(s, c, send, recv, root, o...)
		}
		fc.plan = func(o ...weft.CollOption) (planned, error) { return weft.PlanGather(c, send, recv, root, o...) }
	case collective.KindGatherv:
		fc.block = func(ctx context.Context, o ...weft.CollOption) error {
			return weft.Gatherv(ctx, c, send, recv, all, root, o...)
		}
		fc.start = func(s *weft.Scope, o ...weft.CollOption) *weft.Request {
			return weft.Igatherv(s, c, send, recv, all, root, o...)
		}
		fc.plan = func(o ...weft.CollOption) (planned, error) {
			return weft.PlanGatherv(c, send, recv, all, root, o...)
		}
	case collective.KindScatter:
		fc.block = func(ctx context.Context, o ...weft.CollOption) error {
			return weft.Scatter(ctx, c, send, recv, root, o...)
		}
		fc.start = func(s *weft.Scope, o ...weft.CollOption) *weft.Request {
			return weft.Iscatter(s, c, send, recv, root, o...)
		}
		fc.plan = func(o ...weft.CollOption) (planned, error) {
			return weft.PlanScatter(c, send, recv, root, o...)
		}
	case collective.KindScatterv:
		fc.block = func(ctx context.Context, o ...weft.CollOption) error {
			return weft.Scatterv(ctx, c, send, recv, all, root, o...)
		}
		fc.start = func(s *weft.Scope, o ...weft.CollOption) *weft.Request {
			return weft.Iscatterv(s, c, send, recv, all, root, o...)
		}
		fc.plan = func(o ...weft.CollOption) (planned, error) {
			return weft.PlanScatterv(c, send, recv, all, root, o...)
		}
	case collective.KindAllgather:
		fc.block = func(ctx context.Context, o ...weft.CollOption) error {
			return weft.Allgather(ctx, c, send, recv, o...)
		}
		fc.start = func(s *weft.Scope, o ...weft.CollOption) *weft.Request {
			return weft.Iallgather(s, c, send, recv, o...)
		}
		fc.plan = func(o ...weft.CollOption) (planned, error) { return weft.PlanAllgather(c, send, recv, o...) }
	case collective.KindAllgatherv:
		fc.block = func(ctx context.Context, o ...weft.CollOption) error {
			return weft.Allgatherv(ctx, c, send, recv, all, o...)
		}
		fc.start = func(s *weft.Scope, o ...weft.CollOption) *weft.Request {
			return weft.Iallgatherv(s, c, send, recv, all, o...)
		}
		fc.plan = func(o ...weft.CollOption) (planned, error) {
			return weft.PlanAllgatherv(c, send, recv, all, o...)
		}
	case collective.KindAlltoall:
		fc.block = func(ctx context.Context, o ...weft.CollOption) error {
			return weft.Alltoall(ctx, c, send, recv, o...)
		}
		fc.start = func(s *weft.Scope, o ...weft.CollOption) *weft.Request {
			return weft.Ialltoall(s, c, send, recv, o...)
		}
		fc.plan = func(o ...weft.CollOption) (planned, error) { return weft.PlanAlltoall(c, send, recv, o...) }
	case collective.KindAlltoallv:
		fc.block = func(ctx context.Context, o ...weft.CollOption) error {
			return weft.Alltoallv(ctx, c, send, recv, to, from, o...)
		}
		fc.start = func(s *weft.Scope, o ...weft.CollOption) *weft.Request {
			return weft.Ialltoallv(s, c, send, recv, to, from, o...)
		}
		fc.plan = func(o ...weft.CollOption) (planned, error) {
			return weft.PlanAlltoallv(c, send, recv, to, from, o...)
		}
	case collective.KindReduceScatterBlock:
		fc.block = func(ctx context.Context, o ...weft.CollOption) error {
			return weft.ReduceScatterBlock(ctx, c, send, recv, op, o...)
		}
		fc.start = func(s *weft.Scope, o ...weft.CollOption) *weft.Request {
			return weft.IreduceScatterBlock(s, c, send, recv, op, o...)
		}
		fc.plan = func(o ...weft.CollOption) (planned, error) {
			return weft.PlanReduceScatterBlock(c, send, recv, op, o...)
		}
	case collective.KindReduceScatter:
		fc.block = func(ctx context.Context, o ...weft.CollOption) error {
			return weft.ReduceScatter(ctx, c, send, recv, all.N, op, o...)
		}
		fc.start = func(s *weft.Scope, o ...weft.CollOption) *weft.Request {
			return weft.IreduceScatter(s, c, send, recv, all.N, op, o...)
		}
		fc.plan = func(o ...weft.CollOption) (planned, error) {
			return weft.PlanReduceScatter(c, send, recv, all.N, op, o...)
		}
	}
	return fc
}

func short[T any](v []T) string {
	if len(v) > 20 {
		return fmt.Sprintf("%v ... (%d)", v[:20], len(v))
	}
	return fmt.Sprint(v)
}

// all runs a call in every form.
func (fc *formCall) all(ctx context.Context, c *weft.Comm, opts ...weft.CollOption) error {
	step := func(form string, run func() error) error {
		fc.fill()
		err := run()
		if err == nil {
			err = fc.check()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", form, err)
		}
		return nil
	}
	p, err := fc.plan(opts...)
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	s := c.Scope(ctx)
	for _, form := range []struct {
		name string
		run  func() error
	}{
		{"blocking", func() error { return fc.block(ctx, opts...) }},
		{"nonblocking", func() error { fc.start(s, opts...); return s.Wait() }},
		{"Plan.Run", func() error { return p.Run(ctx) }},
		{"Plan.Start", func() error { _, err := p.Start(s).Wait(ctx); return err }},
		{"Plan.Start again", func() error { p.Start(s); return s.Wait() }},
	} {
		if err := step(form.name, form.run); err != nil {
			return err
		}
	}
	return nil
}

type line struct{ A, B int64 } // x -> A*x+B: composition does not commute

func compose(f, g line) line { return line{f.A * g.A, f.A*g.B + f.B} }

// formsOf runs a collective in all forms by the named algorithms.
func formsOf(ctx context.Context, c *weft.Comm, kind collective.Kind, lengths []int, names []string) error {
	return formsOn(ctx, c, nil, kind, lengths, names)
}

// formsOn is formsOf on ranks of several nodes.
func formsOn(ctx context.Context, c *weft.Comm, nodes *collective.Topology, kind collective.Kind, lengths []int, names []string) error {
	for _, count := range lengths {
		for _, root := range []int{0, c.Size() - 1} {
			if root > 0 && (!kind.Rooted() || count > 1000) {
				continue
			}
			for _, inPlace := range []bool{false, true} {
				if inPlace && (kind == collective.KindBarrier || kind == collective.KindBcast) {
					continue
				}
				sum := formCase[int64]{kind, count, root, inPlace, weft.Sum[int64](), func(a, b int64) int64 { return a + b }, nil,
					func(rank, i int) int64 { return int64(rank*1000003 + i*7919 + 1) }}
				composed := formCase[line]{kind, count, root, inPlace, weft.OpFunc("compose", false, compose), compose, nil,
					func(rank, i int) line { return line{int64(rank*3 + i + 1), int64(rank - i)} }}
				rounded := formCase[float64]{kind, count, root, inPlace, weft.SumExact[float64](), nil, func(operands []float64) float64 {
					var sum weft.Exact[float64]
					sum.Add(operands...)
					return sum.Value()
				}, func(rank, i int) float64 { // sums of these depend on the order
					x := (&counter{uint64(rank)<<32 + uint64(i)}).Uint64()
					return math.Ldexp(float64(int64(x)), int(x%64)-32)
				}}
				for _, name := range names {
					var opts []weft.CollOption
					if name != "" {
						opts = append(opts, weft.WithAlgorithm(name))
					}
					alg, err := collective.Lookup(kind, name)
					anyCall := name == "" || name == "shared-memory"
					if err != nil && !anyCall {
						return err
					}
					where := fmt.Sprintf("%v by %q, count %d, root %d, in place %t", kind, name, count, root, inPlace)
					if anyCall || alg.Suits(c.Size(), nodes, true) {
						fc := sum.call(c)
						if err := fc.all(ctx, c, opts...); err != nil {
							return fmt.Errorf("%s: sum: %w", where, err)
						}
					}
					if kind.Reduces() && (anyCall || alg.NeedsWhole || c.Size() <= 2 && alg.Suits(c.Size(), nodes, true)) {
						fc := rounded.call(c)
						if err := fc.all(ctx, c, opts...); err != nil {
							return fmt.Errorf("%s: exact sum: %w", where, err)
						}
					}
					if kind.Reduces() && (anyCall || alg.Suits(c.Size(), nodes, false)) {
						fc := composed.call(c)
						if err := fc.all(ctx, c, opts...); err != nil {
							return fmt.Errorf("%s: compose: %w", where, err)
						}
					}
				}
			}
		}
	}
	return nil
}

func TestFormsOfCollectives(t *testing.T) {
	ranks := []int{1, 2, 3, 5, 7, 8, 13}
	if testing.Short() {
		ranks = []int{2, 3}
	}
	for _, kind := range collective.Kinds() {
		for _, n := range ranks {
			t.Run(fmt.Sprintf("%v/%d", kind, n), func(t *testing.T) {
				lengths := []int{0, 1, 6}
				if n <= 5 {
					lengths = append(lengths, 3000)
				}
				wefttest.Run(t, n, func(ctx context.Context, c *weft.Comm) error {
					return formsOf(ctx, c, kind, lengths, append(collective.Algorithms(kind), ""))
				})
			})
		}
	}
}

// The same on several nodes, by the algorithms that know of them, and by what is chosen there.
func TestFormsOnNodes(t *testing.T) {
	maps := [][]int{{0, 0, 2, 2}, {0, 1, 1, 0, 1}, {0, 0, 0, 3, 3, 5, 5, 5}}
	if testing.Short() {
		maps = maps[:1]
	}
	for _, kind := range collective.Kinds() {
		names := []string{""}
		for _, name := range collective.Algorithms(kind) {
			if alg, err := collective.Lookup(kind, name); err == nil && alg.NodeAware {
				names = append(names, name)
			}
		}
		for _, nodes := range maps {
			for way, opts := range map[string][]weft.Option{"messages": {weft.WithNodes(nodes...), weft.WithMessages()}, "boards": onHosts(nodes...)} {
				t.Run(fmt.Sprintf("%v/%v/%s", kind, nodes, way), func(t *testing.T) {
					wefttest.Run(t, len(nodes), func(ctx context.Context, c *weft.Comm) error {
						return formsOn(ctx, c, collective.NewTopology(nodes), kind, []int{0, 1, 6, 3000, 40000 / len(nodes)}, names)
					}, opts...)
				})
			}
		}
	}
}

// The same where ranks map each other's memory; wefttest's fabric lets them do so now and then only.
func TestFormsOverSharedMemory(t *testing.T) {
	ranks := []int{2, 3, 5, 8, 13}
	if testing.Short() {
		ranks = ranks[:2]
	}
	for _, kind := range collective.Kinds() {
		switch kind {
		case collective.KindGatherv, collective.KindScatterv, collective.KindAllgatherv, collective.KindAlltoallv, collective.KindReduceScatter:
			continue // go by messages
		}
		for _, n := range ranks {
			t.Run(fmt.Sprintf("%v/%d", kind, n), func(t *testing.T) {
				wefttest.Run(t, n, func(ctx context.Context, c *weft.Comm) error {
					return formsOf(ctx, c, kind, []int{0, 1, 6, 3000, 40000 / n}, []string{"shared-memory"})
				}, weft.WithFaults(weft.Faults{}))
			})
		}
	}
}
