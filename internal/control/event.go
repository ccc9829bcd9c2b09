package control

import "fmt"

// EventKind says what an Event is about.
type EventKind uint8

const (
	// RankDied: a rank ended other than in good order. Rank and Text tell which
	// and how.
	RankDied EventKind = 1 + iota
	// Aborted: a rank ended the job with Abort, or the launcher did (Rank is
	// -1): a signal, a time limit. Code and Text tell the exit code and why.
	Aborted
	// LauncherLost: the line closed. Nobody is left to end this rank, so it must
	// end itself.
	LauncherLost
	// RankLeft: a rank has ended its part in good order a while ago. This alone is
	// no failure, unless somebody waits for that rank.
	RankLeft
)

// Event is something about the job that a rank must know. Every one but RankLeft,
// and a RankDied that says otherwise, means that the job ends. An Event is also the error of a
// Join or Leave that it made impossible.
type Event struct {
	Kind EventKind
	Rank int // -1 where no rank is meant
	Code int
	Text string

	GoesOn bool // the job does without the rank that died; only who needs that one fails
}

func (e Event) Error() string {
	switch e.Kind {
	case RankDied:
		return fmt.Sprintf("rank %d %s", e.Rank, e.Text)
	case Aborted:
		if e.Rank < 0 {
			return fmt.Sprintf("the job was ended: %s", e.Text)
		}
		return fmt.Sprintf("rank %d aborted the job with code %d: %s", e.Rank, e.Code, e.Text)
	case RankLeft:
		return fmt.Sprintf("rank %d has left", e.Rank)
	case LauncherLost:
		return "the launcher is gone: " + e.Text
	}
	return fmt.Sprintf("event %d", e.Kind)
}
