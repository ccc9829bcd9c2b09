package plane

// roster keeps the state of every member. It is pure: the caller holds a lock.
type roster struct {
	number map[string]int
	state  []state
}

type state uint8

const (
	expected state = iota
	up
	down
)

func newRoster(names []string) roster {
	r := roster{number: make(map[string]int, len(names)), state: make([]state, len(names))}
	for i, n := range names {
		r.number[n] = i
	}
	return r
}

// judge tells what to do with a member that has proved to know the secret. It
// changes nothing: a connection may still break before it is up.
func (r *roster) judge(name string) (member int, v verdict) {
	member, ok := r.number[name]
	if !ok {
		return -1, unknownName
	}
	switch r.state[member] {
	case up:
		return member, duplicate
	case down:
		return member, givenUp
	}
	return member, accepted
}

// rise makes a member up, unless another connection was faster.
func (r *roster) rise(member int) bool {
	if r.state[member] != expected {
		return false
	}
	r.state[member] = up
	return true
}

// fall makes a member down, and tells whether it was not so before.
func (r *roster) fall(member int) bool {
	was := r.state[member]
	r.state[member] = down
	return was != down
}
