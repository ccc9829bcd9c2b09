package plane

// Verdict is what a root thinks of a member.
type Verdict uint8

// The verdicts. Their numbers are part of the protocol.
const (
	Accepted Verdict = iota
	WrongSecret
	WrongBuild
	UnknownName
	Duplicate
	GivenUp
	numVerdicts
)

func (v Verdict) String() string {
	return [...]string{"accepted", "it does not know the job's secret", "it is another build of weftrun; install the same one on all hosts",
		"no host of that name was expected", "there is a connection with that host already", "that host was given up already",
		"for no reason that this weftrun knows"}[min(v, numVerdicts)]
}

// Roster keeps the state of every member. It is pure: the caller holds a lock.
type Roster struct {
	number map[string]int
	state  []state
}

type state uint8

const (
	expected state = iota
	up
	down
)

// NewRoster expects members of these names.
func NewRoster(names []string) *Roster {
	r := &Roster{number: make(map[string]int, len(names)), state: make([]state, len(names))}
	for i, n := range names {
		r.number[n] = i
	}
	return r
}

// Judge tells what to do with a member that has proved to know the secret. It
// changes nothing: a connection may still break before it is up.
func (r *Roster) Judge(name string) (member int, v Verdict) {
	member, ok := r.number[name]
	if !ok {
		return -1, UnknownName
	}
	switch r.state[member] {
	case up:
		return member, Duplicate
	case down:
		return member, GivenUp
	}
	return member, Accepted
}

// Rise makes a member up, unless another connection was faster.
func (r *Roster) Rise(member int) bool {
	if r.state[member] != expected {
		return false
	}
	r.state[member] = up
	return true
}

// Fall makes a member down, and tells whether it was not so before.
func (r *Roster) Fall(member int) bool {
	was := r.state[member]
	r.state[member] = down
	return was != down
}
