package job

import (
	"fmt"

	"github.com/fxamacker/cbor/v2"

	"github.com/weft-hpc/weft/internal/control"
)

// verb says what a message between launcher and agent is. The numbers are part of
// the protocol, whose version is plane.Version.
type verb uint8

const (
	// From the launcher.
	msgAssign  verb = 1 + iota // Assignment: plan for your ranks
	msgLaunch                  // Commands: start these agents
	msgStart                   // start your ranks
	msgSignal                  // Signal, Ranks
	msgDied                    // Rank, Code, Text, GoesOn; Word where all had joined, of which the tree may tell later
	msgAborted                 // Rank, Code, Text
	msgLeft                    // Gone: ranks that have said goodbye
	msgRelease                 // all have said goodbye
	msgCredit                  // Stream, Count: so many bytes more
	msgInput                   // Data for rank 0; none is the end
	msgLimit                   // Left
	msgParent                  // Addrs: where to exchange cards
	msgDisown                  // Site, which does not exchange cards with you any more

	// From both.
	msgCards // Word: about cards

	// From the agent.
	msgReady       // Text: what there is; Lines: how its ranks are bound; Addrs: where children find it
	msgFailed      // Code, Text: the job cannot go on here; Site where another agent could not be started
	msgReport      // Reports of ranks
	msgExited      // Rank, Pid, Status
	msgOutput      // Stream, Data
	msgPause       // Stream: the line that was begun pauses, or will not end
	msgSay         // Text for the user
	msgInputCredit // Count: rank 0 may be sent so many bytes more
	msgDone        // no process is left
	msgOrphan      // Text: why cards are not exchanged with the parent
	numVerbs
)

// message is what launcher and agent say to each other.
type message struct {
	Verb       verb             `cbor:"1,keyasint"`
	Rank       int              `cbor:"2,keyasint,omitempty"`
	Code       int              `cbor:"3,keyasint,omitempty"`
	Text       string           `cbor:"4,keyasint,omitempty"`
	Ranks      [][2]int         `cbor:"5,keyasint,omitempty"` // runs: first, length
	Signal     int              `cbor:"6,keyasint,omitempty"`
	Stream     int              `cbor:"7,keyasint,omitempty"` // 0: standard output, 1: standard error
	Count      int              `cbor:"8,keyasint,omitempty"`
	Data       []byte           `cbor:"9,keyasint,omitempty"`
	Word       *control.Word    `cbor:"10,keyasint,omitempty"`
	Assignment *assignment      `cbor:"11,keyasint,omitempty"`
	Commands   []command        `cbor:"12,keyasint,omitempty"`
	Reports    []control.Report `cbor:"13,keyasint,omitempty"`
	Pid        int              `cbor:"14,keyasint,omitempty"`
	Status     uint32           `cbor:"15,keyasint,omitempty"` // as wait gives it
	Site       int              `cbor:"16,keyasint,omitempty"` // from 1; 0 is none
	Left       int64            `cbor:"18,keyasint,omitempty"` // nanoseconds that the job may still run
	Lines      []string         `cbor:"17,keyasint,omitempty"` // of bindings
	Gone       []departure      `cbor:"20,keyasint,omitempty"`
	Addrs      []string         `cbor:"21,keyasint,omitempty"`
	GoesOn     bool             `cbor:"19,keyasint,omitempty"` // the job does, though this rank died
}

// departure is a rank that has said goodbye, and who has to be told.
type departure struct {
	Rank int      `cbor:"1,keyasint"`
	To   [][2]int `cbor:"2,keyasint"`
}

// assignment is what an agent must know to run its part of a job.
type assignment struct {
	Job       string         `cbor:"1,keyasint"`
	Host      string         `cbor:"2,keyasint"` // as the job calls it
	Size      int            `cbor:"3,keyasint"`
	Ranks     [][2]int       `cbor:"4,keyasint"`
	Programs  []Program      `cbor:"5,keyasint"`
	Env       []string       `cbor:"6,keyasint"`
	Dir       string         `cbor:"7,keyasint"`
	Umask     int            `cbor:"8,keyasint"`
	Secret    []byte         `cbor:"9,keyasint"` // of the ranks, for each other
	Transport string         `cbor:"10,keyasint"`
	Interface string         `cbor:"11,keyasint"`
	Device    string         `cbor:"12,keyasint"`
	Arena     int64          `cbor:"13,keyasint"`
	Bind      Bind           `cbor:"14,keyasint"`
	Tag       bool           `cbor:"15,keyasint"`
	Output    string         `cbor:"16,keyasint"`
	Terminal  [2]bool        `cbor:"17,keyasint"` // our standard output and error are terminals
	Shared    bool           `cbor:"18,keyasint"` // shared memory is wanted
	Crowded   bool           `cbor:"19,keyasint"` // others run on that machine's processors
	Map       Map            `cbor:"20,keyasint"`
	Try       int            `cbor:"21,keyasint"` // 0, or which restart this is
	Kids      []kid          `cbor:"22,keyasint"` // in the tree
	Layout    control.Layout `cbor:"24,keyasint"`
	Deep      bool           `cbor:"23,keyasint"` // the parent in it is another agent
}

var messages = func() cbor.DecMode {
	m, err := cbor.DecOptions{MaxArrayElements: 1 << 24, MaxNestedLevels: 8}.DecMode()
	if err != nil {
		panic(err)
	}
	return m
}()

func encode(m *message) []byte {
	b, err := cbor.Marshal(m)
	if err != nil {
		panic(err) // of our own types
	}
	return b
}

func decode(b []byte) (*message, error) {
	m := new(message)
	if err := messages.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("a message of %d bytes cannot be decoded: %w", len(b), err)
	}
	if m.Verb == 0 || m.Verb >= numVerbs {
		return nil, fmt.Errorf("message %d is not known", m.Verb)
	}
	return m, nil
}
