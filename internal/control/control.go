// Package control is the line between a rank and the launcher that started it.
// It carries what is needed to run a job, and never user data: wire-up, deaths,
// aborts, and goodbyes.
//
// The line is one end of a socket pair that the launcher leaves open in the
// rank, so it has no name that a stranger could find, needs no port and no
// file, and closes on every kind of death at either end.
//
// # Vocabulary
//
// A line joins one rank and its launcher. A [Client] is the rank's end; a [Hub]
// is the launcher's end of all lines of one host. A card is what a rank tells
// the others about how to reach it; its contents belong to the transports. A card stays on
// the host that it comes from until somebody asks for it: see [Exchange].
//
// # The life of a line
//
//	launcher                               rank
//	Welcome   written before the fork  ->  FromEnv: read and checked
//	          <-  Hello                    FromEnv: this is a Weft program
//	          <-  Join card                Join
//	All       everybody has joined     ->  Join returns
//	          <-  Ask rank                 Find, when that rank's card is needed
//	Card      of that rank             ->  Find's function is called
//	          <-  Abort                    any time after Hello: ends the job
//	Died, Aborted  any time            ->  Join fails, Watch is told; so does Leave, unless the job goes on
//	          <-  Goodbye                  Leave: an exit is in order from here on
//	Left      a while after a Goodbye  ->  Watch is told that it need not wait for that rank
//	Released  all have said Goodbye    ->  Leave returns
//	Limit     any time                 ->  Deadline tells when the job's time ends
//
// A program that never speaks is not a Weft program, which is no error as long
// as no rank of the job joins. The Welcome waits in the socket from the start,
// so that a rank's first step costs no round trip.
//
// Nothing a rank says is trusted: frames have a limit, unknown ones and those
// out of order are reported and end the line.
//
// # What it does not do
//
// It decides nothing. Whether a death fails the job, what is printed and who is
// stopped is for package job to say.
package control

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/fxamacker/cbor/v2"
)

// Version is the version of the protocol. A rank and its launcher must agree.
const Version = 4

// Names of the environment variables that a rank finds. The descriptors are
// what counts; the numbers are there for scripts that wrap a program.
const (
	VarControl   = "WEFT_CONTROL_FD"
	VarSegment   = "WEFT_SEGMENT_FD"
	VarRank      = "WEFT_RANK"
	VarSize      = "WEFT_SIZE"
	VarLocalRank = "WEFT_LOCAL_RANK"
	VarLocalSize = "WEFT_LOCAL_SIZE"
	VarJob       = "WEFT_JOB"
	// VarTerminal says which of a rank's pipes lead to a terminal: stdout,
	// stderr, both with a comma between, or neither. A program that draws a
	// progress bar wants to know, and so does what it starts: it stays set.
	VarTerminal = "WEFT_TERMINAL"
	// VarRestart says how often the job has been started again, from 0. It stays set as well.
	VarRestart = "WEFT_RESTART"
)

// Vars lists the variables that the launcher sets for a rank and that a rank
// does not pass on to its children.
func Vars() []string {
	return []string{VarControl, VarSegment, VarRank, VarSize, VarLocalRank, VarLocalSize, VarJob}
}

const (
	// MaxCard is the longest card a rank may send.
	MaxCard = 64 << 10
	// SecretSize is the length of a job's secret.
	SecretSize = 32

	maxReason       = 16 << 10 // longer reasons of an abort are cut
	maxLack         = 1 << 10  // and longer reasons of a Lack
	maxFromRank     = MaxCard + maxReason
	maxFromLauncher = 16 << 20 // most of it is the number of ranks on a host
)

// kind says what a frame is. The numbers are part of the protocol.
type kind uint8

const (
	welcome kind = 1 + iota
	hello
	join
	all
	abort
	died
	aborted
	goodbye
	gone
	released
	limit
	ask
	card
)

var kindNames = [...]string{"?", "welcome", "hello", "join", "all", "abort", "died", "aborted", "goodbye", "left", "released", "limit", "ask", "card"}

func (k kind) String() string {
	if k == 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// frame is one message. Keys 1 and 2 keep their place in every version, so that
// ends of different versions can say so.
type frame struct {
	Kind    kind     `cbor:"1,keyasint"`
	Version int      `cbor:"2,keyasint,omitempty"`
	Rank    int      `cbor:"3,keyasint,omitempty"`
	Code    int      `cbor:"4,keyasint,omitempty"`
	Text    string   `cbor:"5,keyasint,omitempty"`
	Card    []byte   `cbor:"6,keyasint,omitempty"`
	Lack    *Lack    `cbor:"7,keyasint,omitempty"`
	Place   *place   `cbor:"8,keyasint,omitempty"`
	Secret  []byte   `cbor:"9,keyasint,omitempty"`
	Ranks   [][2]int `cbor:"10,keyasint,omitempty"` // runs: first, length
	Left    int64    `cbor:"11,keyasint,omitempty"` // milliseconds that the job may still run
	GoesOn  bool     `cbor:"12,keyasint,omitempty"` // the job does, though this rank died
}

// place is Env as it travels.
type place struct {
	Size           int      `cbor:"1,keyasint"`
	LocalRank      int      `cbor:"2,keyasint"`
	Local          [][2]int `cbor:"3,keyasint"` // runs of world ranks on this host: first, length
	Job            string   `cbor:"4,keyasint"`
	Host           string   `cbor:"5,keyasint"`
	Transport      string   `cbor:"6,keyasint"`
	Interface      string   `cbor:"7,keyasint,omitempty"`
	Oversubscribed bool     `cbor:"8,keyasint,omitempty"`
	Device         string   `cbor:"9,keyasint,omitempty"`
	Arena          int64    `cbor:"10,keyasint,omitempty"`
	Layout         Layout   `cbor:"11,keyasint"`
}

// decoding bounds what a frame can make this end allocate; the frame's own
// length bounds the rest.
var decoding = must(cbor.DecOptions{MaxArrayElements: 1 << 24, MaxNestedLevels: 8}.DecMode())

func must(m cbor.DecMode, err error) cbor.DecMode {
	if err != nil {
		panic(err)
	}
	return m
}

// encode returns f with its length in front.
func encode(f *frame) ([]byte, error) {
	body, err := cbor.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("control: cannot encode a %v: %w", f.Kind, err)
	}
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	return append(b, body...), nil
}

// send writes f in one piece.
func send(w io.Writer, f *frame) error {
	b, err := encode(f)
	if err != nil {
		return err
	}
	if _, err := w.Write(b); err != nil {
		return fmt.Errorf("control: cannot send a %v: %w", f.Kind, err)
	}
	return nil
}

// receive reads one frame of at most limit bytes. It returns io.EOF when the
// line ended between two frames.
func receive(r io.Reader, limit int) (*frame, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int(binary.LittleEndian.Uint32(head[:]))
	if n > limit {
		return nil, fmt.Errorf("control: frame of %d bytes, the limit is %d", n, limit)
	}
	// Grow with what arrives: a length alone must not make us allocate.
	body := make([]byte, 0, min(n, 64<<10))
	for len(body) < n {
		body = slices.Grow(body, min(n-len(body), max(len(body), 4<<10)))
		m, err := io.ReadFull(r, body[len(body):min(cap(body), n)])
		body = body[:len(body)+m]
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	f := new(frame)
	if err := decoding.Unmarshal(body, f); err != nil {
		return nil, fmt.Errorf("control: frame of %d bytes cannot be decoded: %w", n, err)
	}
	if f.Kind == 0 || int(f.Kind) >= len(kindNames) {
		return nil, fmt.Errorf("control: unknown frame %v", f.Kind)
	}
	return f, nil
}

// Runs packs sorted ranks into runs of first and length.
func Runs(ranks []int) [][2]int {
	var out [][2]int
	for _, r := range ranks {
		if n := len(out); n > 0 && out[n-1][0]+out[n-1][1] == r {
			out[n-1][1]++
		} else {
			out = append(out, [2]int{r, 1})
		}
	}
	return out
}

// CheckRuns checks runs against the size of a world.
func CheckRuns(rs [][2]int, size int) error {
	n := 0
	for _, r := range rs {
		if r[0] < 0 || r[1] < 1 || r[0] > size || r[1] > size-r[0] || n+r[1] > size {
			return fmt.Errorf("control: ranks %d+%d do not fit a world of %d", r[0], r[1], size)
		}
		n += r[1]
	}
	return nil
}

// Unruns undoes Runs and checks every rank against size.
func Unruns(rs [][2]int, size int) ([]int, error) {
	if err := CheckRuns(rs, size); err != nil {
		return nil, err
	}
	var out []int
	for _, r := range rs {
		for i := range r[1] {
			out = append(out, r[0]+i)
		}
	}
	return out, nil
}

// InRuns tells whether a rank is in one of some runs.
func InRuns(rs [][2]int, rank int) bool {
	return slices.ContainsFunc(rs, func(r [2]int) bool { return rank >= r[0] && rank-r[0] < r[1] })
}
