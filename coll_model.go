package weft

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/kernel"
)

// The model that a world chooses the algorithms of its collectives by. Without a word of the
// user it is the transports' default, so that the same program has the same
// algorithms, and the same bits, in each run.

// modelVariable names the file of a model, or says that one is to be measured. It is the same on
// all ranks; rank 0 alone reads the file.
const modelVariable = "WEFT_MODEL"

const (
	measureModel = "measure"             // in modelVariable
	measureTime  = 20 * time.Millisecond // at the start of a world
)

// startModel takes the model that the environment asks for. All ranks take part, if it does.
func (w *World) startModel(ctx context.Context) (err error) {
	asked := os.Getenv(modelVariable)
	m := make([]collective.Model, 1)
	switch {
	case asked == "":
		return nil
	case asked == measureModel:
		w.modelFrom = "measured at the start"
		m[0], err = w.MeasureModel(ctx, measureTime)
	default:
		w.modelFrom = "the file that " + modelVariable + " names"
		if w.comm.rank == 0 {
			m[0], err = readModel(asked)
		}
		if err == nil {
			err = Bcast(ctx, w.comm, m, 0)
		}
	}
	w.model = &m[0]
	w.comm.choice = choice{} // what is here so far was chosen by the default
	return err
}

func readModel(name string) (collective.Model, error) {
	b, err := os.ReadFile(name)
	if err == nil {
		var m *collective.Model
		if m, err = collective.ParseModel(b); err == nil {
			return *m, nil
		}
	}
	return collective.Model{}, fmt.Errorf("%w: %s=%s: %w; make one with weft tune", ErrArgument, modelVariable, name, err)
}

// Model returns what the algorithms of collectives are chosen by, and in words where it
// comes from: the default of the transports, unless the environment variable WEFT_MODEL
// names the file of one on rank 0's host, which weft tune writes, or is "measure". It is the
// same on all ranks.
func (w *World) Model() (m collective.Model, from string) {
	return *w.model, w.modelFrom
}

// Tags of messages that measure.
const (
	tagMeasure = MaxTag - iota
	tagEcho
)

// MeasureModel measures what messages cost between rank 0 and another rank of its host, and
// between rank 0 and a rank of another host, for about as long as budget. It is a collective
// call of all ranks, while nothing else goes on, and all get the same. What there are no ranks
// for is as in Model. It does not change what collectives of this world are chosen by.
func (w *World) MeasureModel(ctx context.Context, budget time.Duration) (collective.Model, error) {
	m, c := *w.model, w.comm
	inside, between := -1, -1
	for rank := c.size - 1; rank > 0; rank-- {
		if w.nodes == nil || w.nodes[rank] == w.nodes[0] {
			inside = rank
		} else {
			between = rank
		}
	}
	for _, part := range []struct {
		with int
		link *collective.Link
	}{{inside, &m.Inside}, {between, &m.Between}} {
		var err error
		switch {
		case part.with < 0:
		case c.rank == 0:
			err = (&measurement{ctx, c, part.with, budget * 2 / 5}).link(part.link)
		case c.rank == part.with:
			err = echo(ctx, c)
		}
		if err != nil {
			return m, err
		}
	}
	if c.rank == 0 {
		m.Reduce, m.Copy = workSpeed(budget / 20)
	}
	all := []collective.Model{m}
	err := Bcast(ctx, c, all, 0)
	return all[0], err
}

// measurement is what rank 0 does with a partner, which echoes.
type measurement struct {
	ctx    context.Context
	c      *Comm
	with   int
	budget time.Duration
}

// order is what rank 0 tells its partner to do: to send back each of so many messages of a
// length, or only the last of them.
type order struct {
	Bytes, Count int64
	Last         bool
}

// link measures.
func (q *measurement) link(k *collective.Link) error {
	began := time.Now()
	one, err := q.trip(8, 16) // the first of which connects
	if err != nil {
		return err
	}
	if one, err = q.trip(8, int(min(max(q.budget/4/max(one, 1), 8), 1000))); err != nil {
		return err
	}
	const burst = 32
	var each []time.Duration
	for range 5 {
		took, err := q.run(order{8, burst, true})
		if err != nil {
			return err
		}
		each = append(each, max(0, took[0]-one/2)/burst)
	}
	// The longer the messages the better, as far as there is time for some of them.
	const trips, most = 3, 1 << 20
	small, large := 4<<10, 64<<10
	short, err := q.trip(small, trips)
	if err != nil {
		return err
	}
	long := short
	for ; ; large *= 4 {
		if long, err = q.trip(large, trips); err != nil {
			return err
		}
		if large == most || 4*trips*long > q.budget-time.Since(began) {
			break
		}
	}
	if _, err := q.run(order{}); err != nil {
		return err
	}
	k.Gap = middle(each).Seconds()
	k.Overhead = min(k.Gap/2, one.Seconds()/8) // what a processor does, and does not leave to its card
	k.Latency = one.Seconds()/2 - 2*k.Overhead
	if perByte := ((long-short).Seconds()/2 - k.Asks(large)) / float64(large-small); perByte > 0 { // else others were in the way
		k.PerByte = perByte
	}
	return nil
}

// trip returns the time of a round trip: the middle one of so many.
func (q *measurement) trip(bytes, count int) (time.Duration, error) {
	took, err := q.run(order{int64(bytes), int64(count), false})
	if err != nil {
		return 0, err
	}
	return middle(took), nil
}

// run gives an order, carries it out, and returns how long each answer took.
func (q *measurement) run(o order) (took []time.Duration, err error) {
	if err := Send(q.ctx, q.c, []order{o}, q.with, tagMeasure); err != nil {
		return nil, err
	}
	buf := make([]byte, o.Bytes)
	began := time.Now()
	for i := range o.Count {
		if err := Send(q.ctx, q.c, buf, q.with, tagEcho); err != nil {
			return nil, err
		}
		if o.Last && i < o.Count-1 {
			continue
		}
		if _, err := Recv(q.ctx, q.c, buf, q.with, tagEcho); err != nil {
			return nil, err
		}
		now := time.Now()
		took = append(took, now.Sub(began))
		began = now
	}
	return took, nil
}

// echo is the partner's part.
func echo(ctx context.Context, c *Comm) error {
	o := make([]order, 1)
	for {
		if _, err := Recv(ctx, c, o, 0, tagMeasure); err != nil || o[0].Count == 0 {
			return err
		}
		buf := make([]byte, o[0].Bytes)
		for i := range o[0].Count {
			if _, err := Recv(ctx, c, buf, 0, tagEcho); err != nil {
				return err
			}
			if o[0].Last && i < o[0].Count-1 {
				continue
			}
			if err := Send(ctx, c, buf, 0, tagEcho); err != nil {
				return err
			}
		}
	}
}

func middle(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// workSpeed returns what it costs to combine a byte and to copy one, in seconds.
func workSpeed(budget time.Duration) (reduce, copying float64) {
	a, b := make([]float64, 16<<10), make([]float64, 16<<10)
	bytes := float64(8 * len(a))
	speed := func(work func()) float64 {
		work()
		var all []time.Duration
		for end := time.Now().Add(budget); len(all) < 5 || time.Now().Before(end); {
			began := time.Now()
			work()
			all = append(all, time.Since(began))
		}
		return middle(all).Seconds() / bytes
	}
	return speed(func() { kernel.Sum(a, b) }), speed(func() { copy(a, b) })
}
