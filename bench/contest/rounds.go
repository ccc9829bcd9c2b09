package contest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Entry is one contestant's part in a test.
type Entry struct {
	Name string
	Run  func() (float64, error) // runs one short block and returns its value
}

// Plan says how the entries of one test take turns.
type Plan struct {
	Rounds int
	Rand   *rand.Rand // order of turns

	// Sample times something that depends only on where the processors are, or
	// is nil. It runs before each block and after the last. A round in which
	// samples differ by more than the factor Drift is dropped and run again.
	Sample func() (float64, error)
	Drift  float64

	// Foreign is the processor time that strangers have used so far, or is nil.
	// A round in which they used more than Noise cores is dropped and run again.
	Foreign func() (time.Duration, error)
	Noise   float64
}

// Result is what the rounds of one test gave.
type Result struct {
	// Values[i][r] belongs to entry i in round r. All entries have the same
	// number of rounds; NaN stands where an entry had failed.
	Values [][]float64
	// Errs[i] is why entry i failed, or nil. It takes no part after that.
	Errs []error
	// Moved and Disturbed count the rounds that were dropped because of the
	// processors and because of strangers.
	Moved, Disturbed int
	// Unsteady is set when fewer than half of the rounds asked for were good
	// after twice as many were run. Then Values holds the dropped ones as well.
	Unsteady bool
	// Samples are the placement samples of the rounds in Values, one each.
	Samples []float64
}

// Rounds runs the plan. It fails only if sampling does.
func Rounds(plan Plan, entries []Entry) (Result, error) {
	res := Result{Values: make([][]float64, len(entries)), Errs: make([]error, len(entries))}
	var dropped []turn
	for run := 0; len(res.Samples) < plan.Rounds && run < 2*plan.Rounds; run++ {
		t, err := plan.round(entries, res.Errs)
		switch {
		case err != nil:
			return res, err
		case plan.Foreign != nil && t.foreign > plan.Noise:
			res.Disturbed++
			dropped = append(dropped, t)
		case plan.Sample != nil && t.high > plan.Drift*t.low:
			res.Moved++
			dropped = append(dropped, t)
		default:
			res.add(t)
		}
	}
	if 2*len(res.Samples) < plan.Rounds {
		res.Unsteady = true
		for _, t := range dropped {
			res.add(t)
		}
	}
	return res, nil
}

// turn is one round.
type turn struct {
	values    []float64
	low, high float64 // placement samples
	foreign   float64 // cores that strangers used
}

func (r *Result) add(t turn) {
	for i, v := range t.values {
		r.Values[i] = append(r.Values[i], v)
	}
	r.Samples = append(r.Samples, (t.low+t.high)/2)
}

func (p *Plan) round(entries []Entry, errs []error) (turn, error) {
	t := turn{values: make([]float64, len(entries))}
	sample := func() error {
		if p.Sample == nil {
			return nil
		}
		v, err := p.Sample()
		if t.high == 0 {
			t.low = v
		}
		t.low, t.high = min(t.low, v), max(t.high, v)
		return err
	}
	foreign := func() (d time.Duration, err error) {
		if p.Foreign != nil {
			d, err = p.Foreign()
		}
		return d, err
	}
	before, err := foreign()
	if err != nil {
		return t, err
	}
	t0 := time.Now()
	for _, i := range p.Rand.Perm(len(entries)) {
		if t.values[i] = math.NaN(); errs[i] != nil {
			continue
		}
		if err := sample(); err != nil {
			return t, err
		}
		v, err := entries[i].Run()
		if err != nil {
			errs[i] = err
			continue
		}
		t.values[i] = v
	}
	if err := sample(); err != nil {
		return t, err
	}
	after, err := foreign()
	t.foreign = (after - before).Seconds() / time.Since(t0).Seconds()
	return t, err
}

// ErrSlow is the reason of a contestant that was left out because one operation
// takes it too long.
var ErrSlow = errors.New("too slow to take part")

// quick fails with ErrSlow if one operation of b takes more than most: in a first
// block and in a second, for the first may have to set things up.
func quick(s *Session, b Block, most, timeout time.Duration) error {
	b.Iters, b.Warmup = 1, 0
	var took time.Duration
	for range 2 {
		values, err := s.Do(b, timeout)
		if err != nil {
			return err
		}
		if took = time.Duration(slices.Max(values)); took <= most {
			return nil
		}
	}
	return fmt.Errorf("%s: command %q: %w: one operation took %v, the limit is %v", s.Name(), b, ErrSlow, took.Round(time.Millisecond), most)
}

// Calibrate returns a number of iterations for b that takes about want, and
// warms up the path on its way there.
func Calibrate(s *Session, b Block, want, timeout time.Duration) (int, error) {
	const most = 10_000_000
	b.Iters, b.Warmup = 1, 0
	for {
		t0 := time.Now()
		if _, err := s.Do(b, timeout); err != nil {
			return 0, err
		}
		took := time.Since(t0)
		if took >= want*2/3 || b.Iters == most {
			return b.Iters, nil
		}
		// At most tenfold: the first iterations pay for set-up.
		grow := min(10, max(1.2, want.Seconds()/took.Seconds()))
		b.Iters = min(most, int(math.Ceil(float64(b.Iters)*grow)))
	}
}

// Turn makes an entry that runs b on s with a fixed number of iterations, to be
// calibrated at once. The value of a block is that of its slowest rank. If values
// are times and most is not zero, no operation may take longer than that (ErrSlow).
func Turn(s *Session, b Block, want, most, timeout time.Duration) (Entry, error) {
	if s.Err() != nil {
		return Entry{}, s.Err()
	}
	if most > 0 {
		if err := quick(s, b, most, timeout); err != nil {
			return Entry{}, err
		}
	}
	iters, err := Calibrate(s, b, want, timeout)
	if err != nil {
		return Entry{}, err
	}
	b.Iters, b.Warmup = iters, max(1, iters/10) // other contestants have emptied the caches
	return Fixed(s, b, timeout), nil
}

// Fixed makes an entry that runs b on s as it is.
func Fixed(s *Session, b Block, timeout time.Duration) Entry {
	return Entry{Name: s.Name(), Run: func() (float64, error) {
		values, err := s.Do(b, timeout)
		if err != nil {
			return 0, err
		}
		return slices.Max(values), nil
	}}
}

// Absent makes the entry of a contestant that cannot take part; why names it.
func Absent(name string, why error) Entry {
	return Entry{Name: name, Run: func() (float64, error) { return 0, why }}
}
