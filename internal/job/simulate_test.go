package job

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// wantedCards is how many cards ranks fetch from other hosts, counted without any tree.
func wantedCards(hosts, ranks int) (n int) {
	for r := range hosts * ranks {
		for d := 1; d < hosts*ranks; d *= 2 {
			if of := (r + d) % (hosts * ranks); of/ranks != r/ranks {
				n++
			}
		}
	}
	return n
}

// TestSimulate: the launcher takes a job of many hosts through its life, and what it sends for the wire-up
// does not grow with the hosts once they are more than its children.
func TestSimulate(t *testing.T) {
	var launcher int64
	for _, hosts := range []int{1, 2, 3, 33, 100} {
		s, err := (&Simulation{Hosts: hosts, Ranks: 4, Card: 60}).Run()
		if err != nil {
			t.Fatal(err)
		}
		w := s.WireUp
		if s.Ranks != 4*hosts || w.All.Messages != 2*int64(hosts) || w.Launcher.Messages != int64(min(hosts, fanOut)) || s.Cards != wantedCards(hosts, 4) {
			t.Errorf("%+v, want %d cards", s, wantedCards(hosts, 4))
		}
		if hosts == 33 {
			launcher = w.Launcher.Bytes
		} else if hosts > 33 && w.Launcher.Bytes != launcher {
			t.Errorf("with %d hosts the launcher sends %d bytes for the wire-up, with 33 %d", hosts, w.Launcher.Bytes, launcher)
		}
	}
}

// TestSimulateFaults: links between agents that cannot be made, or end at any time, cost a way round and nothing else; an
// agent that dies ends the job, with the name of its host.
func TestSimulateFaults(t *testing.T) {
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		hosts := []int{33, 100}[seed%2]
		faults := make([]fault, hosts)
		for i := fanOut; i < hosts; i++ {
			faults[i] = fault{noParent: rnd.IntN(8) == 0, cutAfter: rnd.IntN(6)}
		}
		sim := &Simulation{Hosts: hosts, Ranks: 3, Card: 60, fault: func(i int) fault { return faults[i] }}
		s, err := sim.Run()
		if err != nil || s.Cards != wantedCards(hosts, 3) {
			t.Fatalf("seed %d: %v, %+v, want %d cards", seed, err, s, wantedCards(hosts, 3))
		}
		dies := rnd.IntN(hosts)
		faults[dies].dieAfter = 3 + rnd.IntN(2) // assigned and started; then in the middle of the exchange
		_, err = sim.again().Run()
		if want := fmt.Sprintf("host host%d was lost", dies); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("seed %d: an agent that dies: %v, want %q", seed, err, want)
		}
	}
}

// TestSimulateLostInTheMiddle: where the job goes on, cards of hosts below a lost one are fetched another way.
func TestSimulateLostInTheMiddle(t *testing.T) {
	// host32 is below host0, and hosts from 1056 on below host32.
	const hosts, dies = 1060, 32
	sim := &Simulation{Hosts: hosts, Ranks: 1, Card: 60, keepGoing: true, fault: func(i int) fault { return fault{dieLate: i == dies} }}
	s, err := sim.Run()
	if err == nil || !strings.Contains(err.Error(), "host host32 was lost") {
		t.Fatal(err)
	}
	want := wantedCards(hosts, 1)
	for d := 1; d < hosts; d *= 2 {
		want -= 2 // what its rank fetches, and who fetches from it
	}
	if s.Cards != want {
		t.Errorf("%d cards, want %d", s.Cards, want)
	}
}

// TestSimulateLostBeforeJoin: nobody is told that all have joined when a host is lost that has not.
func TestSimulateLostBeforeJoin(t *testing.T) {
	for _, dies := range []int{0, 32, 33, 34} {
		start := 2 // after its assignment
		if parentOf(dies) >= 0 {
			start = 3 // and where its parent is
		}
		sim := &Simulation{Hosts: 35, Ranks: 1, Card: 60, keepGoing: true, fault: func(i int) (f fault) {
			if i == dies {
				f.dieAfter = start
			}
			return f
		}}
		if _, err := sim.Run(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("host host%d was lost", dies)) {
			t.Error(err)
		}
		if n := sim.unwired.Load(); n != 35 {
			t.Errorf("host%d is lost: %d hosts were told that all have joined", dies, 35-n)
		}
	}
}

// TestSimulateDeadBeforeAllJoined: a rank dies after its own join, and then the last ones join. Nobody is told that all have, deep
// in the tree or not: all hear of the death instead.
func TestSimulateDeadBeforeAllJoined(t *testing.T) {
	const hosts = 36
	for _, keepGoing := range []bool{false, true} {
		for _, dies := range []int{1, 33} {
			for _, late := range []int{2, 34} {
				sim := &Simulation{Hosts: hosts, Ranks: 2, Card: 60, keepGoing: keepGoing, fault: func(i int) fault {
					return fault{loseRank: i == dies, joinLate: i == late}
				}}
				if _, err := sim.Run(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("rank %d on host host%d (pid 1) ended with exit status 1", 2*dies, dies)) {
					t.Errorf("host%d loses a rank: %v", dies, err)
				}
				if n := sim.unwired.Load(); n != hosts {
					t.Errorf("host%d loses a rank, host%d joins late: %d hosts were told that all have joined", dies, late, hosts-n)
				}
			}
		}
	}
}

// again returns the same simulation, to be run.
func (sim *Simulation) again() *Simulation {
	return &Simulation{Hosts: sim.Hosts, Ranks: sim.Ranks, Card: sim.Card, fault: sim.fault}
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
		if err := a.obey(&message{Verb: v, Signal: 15}); err != nil {
			t.Error(err)
		}
	}
	if want := []verb{msgExited, msgExited, msgDone}; !slices.Equal(m.verbs, want) {
		t.Errorf("it said %v, want %v", m.verbs, want)
	}
}
