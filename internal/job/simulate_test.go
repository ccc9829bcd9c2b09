package job

import (
	"slices"
	"testing"
)

// TestSimulate: the launcher takes a job of many hosts through its life.
func TestSimulate(t *testing.T) {
	for _, hosts := range []int{1, 2, 33, 100} {
		s, err := Simulate(hosts, 4, 60)
		if err != nil {
			t.Fatal(err)
		}
		if s.Ranks != 4*hosts || s.Up.Messages != int64(hosts) || s.Down.Messages != int64(hosts) {
			t.Errorf("%+v", s)
		}
	}
}

// spoken is a link that keeps what it is sent.
type spoken struct{ verbs []verb }

func (m *spoken) Send(b []byte) { m.verbs = append(m.verbs, verb(b[2])) }
func (m *spoken) Close() error  { return nil }

// A launcher that has lost a host ends the ranks of the others by a signal, and waits for their ends.
func TestSimulatedAgentEnds(t *testing.T) {
	m := new(spoken)
	a := &simulated{member: m, ranks: []int{4, 5}}
	for _, v := range []verb{msgSignal, msgSignal, msgRelease} {
		a.obey(&message{Verb: v, Signal: 15})
	}
	if want := []verb{msgExited, msgExited, msgDone}; !slices.Equal(m.verbs, want) {
		t.Errorf("it said %v, want %v", m.verbs, want)
	}
}
