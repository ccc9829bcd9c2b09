// Package report turns the rounds of a comparison into a table: one Row per
// test, with what we and the peers reached, the ratio and its target. It writes
// the table as JSON, as Markdown and as a picture.
//
// A ratio is the median over the rounds of ours divided by theirs in the same
// round, never a quotient of two medians: on a machine whose processors move,
// only values taken side by side compare. Which of several peers is the better
// one is decided by their medians first; taking the better of each round would
// reward noise.
//
// A cell is a number, nothing (the contestant has no part in this test) or the
// reason why there is no number. A contestant that failed is never left out.
package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Value is a cell: a number, a reason why there is none, or nothing.
type Value struct {
	num float64
	ok  bool
	why string
}

// Num is the cell of a number.
func Num(v float64) Value {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return Failed(fmt.Errorf("not a number: %v", v))
	}
	return Value{num: v, ok: true}
}

// Failed is the cell of a contestant that failed.
func Failed(err error) Value { return Value{why: err.Error()} }

const tooSlow = "too slow: "

// TooSlow is the cell of a contestant that was left out because it is slow. That
// is no failure: it is known to be worse than those that were measured.
func TooSlow(err error) Value { return Value{why: tooSlow + err.Error()} }

func (v Value) slow() bool { return strings.HasPrefix(v.why, tooSlow) }

// Get returns the number, and whether there is one.
func (v Value) Get() (float64, bool) { return v.num, v.ok }

// Why returns the reason why there is no number, or nothing.
func (v Value) Why() string { return v.why }

func (v Value) String() string {
	switch {
	case v.slow():
		return "too slow"
	case v.why != "":
		return "failed"
	case !v.ok:
		return "-"
	case v.num == 0:
		return "0"
	case math.Abs(v.num) >= 1000:
		return strconv.FormatFloat(v.num, 'f', 0, 64)
	case math.Abs(v.num) >= 100:
		return strconv.FormatFloat(v.num, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v.num, 'g', 3, 64)
	}
}

// MarshalJSON writes a number, a string with the reason, or null.
func (v Value) MarshalJSON() ([]byte, error) {
	switch {
	case v.ok:
		return json.Marshal(v.num)
	case v.why != "":
		return json.Marshal(v.why)
	}
	return []byte("null"), nil
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (v *Value) UnmarshalJSON(b []byte) error {
	*v = Value{}
	switch {
	case bytes.Equal(b, []byte("null")):
		return nil
	case len(b) > 0 && b[0] == '"':
		return json.Unmarshal(b, &v.why)
	}
	v.ok = true
	return json.Unmarshal(b, &v.num)
}

// Row is one line of a table.
type Row struct {
	Name      string `json:"name"`
	Transport string `json:"transport"`
	Ranks     int    `json:"ranks"`
	Bytes     int64  `json:"bytes"`
	Memory    string `json:"memory"` // arena, slice, or nothing where it plays no part
	Unit      string `json:"unit"`
	Ours      Value  `json:"ours"`
	OpenMPI   Value  `json:"openmpi"`
	MPICH     Value  `json:"mpich"`
	BestFlags Value  `json:"best_flags"` // the peer with flags chosen for this machine
	Floor     Value  `json:"floor"`      // the least it can cost here, without any library
	Ratio     Value  `json:"ratio"`      // ours to the peer that the target names
	Target    string `json:"target"`     // empty: none
	Met       *bool  `json:"met"`        // null: no target, or it could not be told

	// What follows is for the Markdown.

	Higher    bool     `json:"-"` // more is better
	Low, High float64  `json:"-"` // 95 % interval of Ratio
	BestRatio Value    `json:"-"` // ours to BestFlags
	Rounds    int      `json:"-"`
	Notes     []string `json:"-"`
}

// Peer names what a ratio is taken against.
type Peer string

const (
	Both     Peer = "the better of both"
	OpenMPI  Peer = "Open MPI"
	MPICH    Peer = "MPICH"
	Blocking Peer = "our blocking form"
	Nobody   Peer = "" // the target is a limit on our own value
)

// Target is a goal of a row.
type Target struct {
	limit   float64
	atLeast bool
	of      Peer
}

// AtMost is the goal: no more than v times the peer.
func AtMost(v float64, of Peer) *Target { return &Target{limit: v, of: of} }

// AtLeast is the goal: no less than v times the peer.
func AtLeast(v float64, of Peer) *Target { return &Target{limit: v, atLeast: true, of: of} }

func (t *Target) String() string {
	op := "<="
	if t.atLeast {
		op = ">="
	}
	if t.of == Nobody {
		return fmt.Sprintf("%s %g", op, t.limit)
	}
	return fmt.Sprintf("%s %g x %s", op, t.limit, t.of)
}

// Relative reports whether t compares with a peer, and so needs quiet rounds.
func (t *Target) Relative() bool { return t.of != Nobody }

func (t *Target) met(v float64) bool {
	if t.atLeast {
		return v >= t.limit
	}
	return v <= t.limit
}

// Series holds one contestant's values, one per round, NaN where it had failed.
// Without values and error, the contestant has no part in the test.
type Series struct {
	Values []float64
	Err    error
	Slow   bool // Err says that it was left out for being slow
}

func (s Series) value() Value {
	switch {
	case s.Slow:
		return TooSlow(s.Err)
	case s.Err != nil:
		return Failed(s.Err)
	}
	if len(s.Values) == 0 {
		return Value{}
	}
	return Num(Median(s.Values))
}

// Measured is what all contestants reached in one test, in the row's unit.
type Measured struct {
	Ours, OpenMPI, MPICH, Floor Series
	OpenMPIBest, MPICHBest      []Series // with each set of flags
	Blocking                    Series   // ours, of a nonblocking operation
}

// Fill computes the cells of r from m, and judges it by t, which may be nil.
func (r *Row) Fill(m Measured, t *Target) {
	of := Both
	if t != nil {
		of, r.Target = t.of, t.String()
	}
	r.Ours, r.OpenMPI, r.MPICH, r.Floor = m.Ours.value(), m.OpenMPI.value(), m.MPICH.value(), m.Floor.value()
	r.Rounds = len(m.Ours.Values)

	var plain, best []Series
	if of != MPICH {
		plain, best = append(plain, m.OpenMPI), append(best, m.OpenMPIBest...)
	}
	if of != OpenMPI {
		plain, best = append(plain, m.MPICH), append(best, m.MPICHBest...)
	}
	if of == Blocking {
		plain = []Series{m.Blocking}
	}
	bestFlags, all := r.better(best)
	if r.BestFlags = bestFlags.value(); !all {
		for _, s := range best {
			if s.Err != nil {
				r.note("best flags: %v", s.Err)
			}
		}
	}
	r.BestRatio, _, _ = ratio(m.Ours, bestFlags)
	theirs, complete := r.better(plain)
	r.Ratio, r.Low, r.High = ratio(m.Ours, theirs)
	if of == Blocking && m.Blocking.Err != nil { // which has no cell of its own
		r.Ratio = Failed(m.Blocking.Err)
	}
	if t == nil {
		return
	}
	judged, known := r.Ratio.Get()
	if of == Nobody {
		judged, known = r.Ours.Get()
	} else if !complete {
		known = false // the one that is missing might be the better one
	}
	if known {
		met := t.met(judged)
		r.Met = &met
	}
}

// better picks the series with the better median, and says whether every one of
// them could be considered.
func (r *Row) better(of []Series) (best Series, complete bool) {
	complete = true
	var errs []error
	var slow Series
	for _, s := range of {
		v, ok := s.value().Get()
		if !ok {
			if s.Slow { // it would not be chosen
				slow = s
				continue
			}
			complete = false
			if s.Err != nil {
				errs = append(errs, s.Err)
			}
			continue
		}
		b, found := best.value().Get()
		if !found || (v < b) != r.Higher && v != b {
			best = s
		}
	}
	if len(best.Values) == 0 && len(errs) > 0 {
		best.Err = errors.Join(errs...)
	} else if len(best.Values) == 0 && slow.Slow {
		best, complete = slow, false
	}
	return best, complete
}

func (r *Row) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

func ratio(ours, theirs Series) (mid Value, low, high float64) {
	if ours.Err != nil || theirs.Err != nil || len(ours.Values) == 0 || len(theirs.Values) == 0 {
		return Value{}, 0, 0
	}
	rs := Ratios(ours.Values, theirs.Values)
	if len(rs) == 0 {
		return Value{}, 0, 0
	}
	low, high = Interval(rs)
	return Num(Median(rs)), low, high
}

// Failures returns the reasons of all cells without a number, each once, but not
// of those that are too slow.
func Failures(rows []Row) []string {
	var all []string
	for _, r := range rows {
		for _, v := range []Value{r.Ours, r.OpenMPI, r.MPICH, r.BestFlags, r.Floor, r.Ratio} {
			if v.why != "" && !v.slow() && !slices.Contains(all, v.why) {
				all = append(all, v.why)
			}
		}
	}
	return all
}

// WriteJSON writes the rows as an array. A nil table is an empty one.
func WriteJSON(path string, rows []Row) error {
	if rows == nil {
		rows = []Row{}
	}
	return writeJSON(path, rows)
}

func writeJSON(path string, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false) // targets hold < and >
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("report: %s: %w", path, err)
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}
