package job

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/plane"
)

// A simulated job has the launcher as it is, and agents that are goroutines: they join
// over connections, and say what agents say when their ranks come up, join the
// job, leave it and end, all of a host at once, but they have no ranks. So it shows what a start costs the
// launcher and the links, without the hosts.

// Simulated is what a simulated job took.
type Simulated struct {
	Hosts, Ranks int // in all
	Phases       []Phase
	Up, Down     Traffic // of the wire-up: what all agents sent to the launcher, and were sent
	Most         Traffic // both, for the agent that had most
}

// Phase is a part of a job's life.
type Phase struct {
	Name string        `json:"name"`
	Took time.Duration `json:"took"` // nanoseconds
}

// Traffic is what went over links.
type Traffic struct {
	Messages int64 `json:"messages"`
	Bytes    int64 `json:"bytes"` // before they are sealed
}

// traffic counts what belongs to the wire-up: cards on their way in and out.
type traffic struct {
	plane.Root
	members []memberTraffic
}

type memberTraffic struct{ up, down, upBytes, downBytes atomic.Int64 }

func (t *traffic) Send(member int, b []byte) {
	if len(b) > 2 && verb(b[2]) == msgDeal { // a map, its first key, the verb: decoding it all would be the larger part of the work
		t.members[member].down.Add(1)
		t.members[member].downBytes.Add(int64(len(b)))
	}
	t.Root.Send(member, b)
}

// heard counts a message of an agent.
func (t *traffic) heard(member int, m *message, n int) {
	joins := func(r control.Report) bool { return r.Kind == control.Joined }
	if t != nil && m.Verb == msgReport && slices.ContainsFunc(m.Reports, joins) {
		t.members[member].up.Add(1)
		t.members[member].upBytes.Add(int64(n))
	}
}

// sum returns the traffic of all members, and of the busiest.
func (t *traffic) sum() (up, down, most Traffic) {
	for i := range t.members {
		m := &t.members[i]
		u, d := Traffic{m.up.Load(), m.upBytes.Load()}, Traffic{m.down.Load(), m.downBytes.Load()}
		up.Messages, up.Bytes = up.Messages+u.Messages, up.Bytes+u.Bytes
		down.Messages, down.Bytes = down.Messages+d.Messages, down.Bytes+d.Bytes
		most.Messages, most.Bytes = max(most.Messages, u.Messages+d.Messages), max(most.Bytes, u.Bytes+d.Bytes)
	}
	return up, down, most
}

// Simulate runs a job of so many hosts with so many ranks each, whose cards have so many
// bytes.
func Simulate(hosts, ranks, card int) (*Simulated, error) {
	spec := &Spec{Programs: []Program{{Ranks: hosts * ranks, Argv: []string{"none"}}}, Transport: "tcp", Grace: time.Second, Build: "simulated"}
	p := &Plan{Spec: spec, Job: "weft-simulated-" + strconv.Itoa(hosts), Host: "launcher", Size: hosts * ranks, Secret: control.NewSecret(),
		programs: make([]int, hosts*ranks), base: baseEnv(os.Environ()), dir: "/", traffic: &traffic{members: make([]memberTraffic, hosts)}}
	for h := range hosts {
		site := Site{Name: fmt.Sprintf("host%d", h)}
		for r := range ranks {
			site.Ranks = append(site.Ranks, h*ranks+r)
		}
		p.Others = append(p.Others, site)
	}
	out := &Simulated{Hosts: hosts, Ranks: hosts * ranks}
	var agents sync.WaitGroup
	p.starter = &starter{name: "simulated", forks: true, fake: func(f *far) {
		for _, s := range f.sites {
			a := &simulated{name: s.Name, card: make([]byte, card), orders: newMailboxOf[*message](), gone: make(chan struct{})}
			cfg := plane.Config{Job: p.Job, Secret: f.key, Build: spec.Build}
			agents.Go(func() { a.run(cfg, f.addrs) })
		}
	}}
	var said strings.Builder
	last := time.Now()
	s := &supervisor{plan: p, notes: newMailbox(), rec: newRecord(p.Size), gather: control.MakeGather(p.Size), next: stopped(), blame: stopped(), part: stopped(),
		mark: func(name string) {
			now := time.Now()
			out.Phases = append(out.Phases, Phase{name, now.Sub(last)})
			last = now
		}}
	s.speech = newSpeech(new(sync.Mutex), &said)
	sinks := newSinks(func(error) {})
	var err error
	if s.host, err = newHost(p, s.notes, sinks); err != nil {
		s.speech.close()
		return nil, err
	}
	if s.far, err = newFar(p, s.notes, s.host, sinks); err != nil {
		s.speech.close()
		return nil, errors.Join(err, s.host.close())
	}
	code := s.run(make(chan os.Signal), make(chan os.Signal))
	err = s.host.close()
	agents.Wait()
	s.mark("links closed")
	s.speech.close()
	if code != 0 {
		return nil, fmt.Errorf("the simulated job ended with code %d: %s", code, said.String())
	}
	out.Up, out.Down, out.Most = p.traffic.sum()
	return out, err
}

// simulated is an agent without ranks. Its fields belong to its goroutine, but for orders and gone.
type simulated struct {
	name   string
	card   []byte
	member plane.Member
	orders *mailboxOf[*message]
	gone   chan struct{}
	ranks  []int
	ended  bool // the ranks are
}

// Up implements plane.Handler, as the next three do.
func (a *simulated) Up(int) {}

// Frame implements plane.Handler.
func (a *simulated) Frame(_ int, b []byte) {
	if len(b) > 2 && verb(b[2]) == msgDeal { // that its contents are right other tests see
		a.orders.put(&message{Verb: msgDeal})
		return
	}
	m, err := decode(b)
	if err != nil {
		panic(err)
	}
	a.orders.put(m)
}

// Down implements plane.Handler.
func (a *simulated) Down(int, error) { close(a.gone) }

// Refused implements plane.Handler.
func (a *simulated) Refused(int, error) {}

func (a *simulated) run(cfg plane.Config, addrs []string) {
	ctx, cancel := context.WithTimeout(context.Background(), joinWait)
	defer cancel()
	way, err := plane.Lookup(plane.TCP)
	if err != nil {
		return
	}
	if a.member, err = way.Join(ctx, cfg, a.name, addrs, a); err != nil {
		return // the launcher misses it
	}
	for {
		select {
		case <-a.gone:
			_ = a.member.Close() // over already
			return
		case <-a.orders.some:
			for _, m := range a.orders.take() {
				a.obey(m)
			}
		}
	}
}

func (a *simulated) obey(m *message) {
	report := func(k control.ReportKind, card []byte) {
		m := &message{Verb: msgReport}
		for _, r := range a.ranks {
			m.Reports = append(m.Reports, control.Report{Rank: r, Kind: k, Card: card, Lost: -1})
		}
		a.member.Send(encode(m))
	}
	switch m.Verb {
	case msgAssign:
		a.ranks, _ = control.Unruns(m.Assignment.Ranks, m.Assignment.Size)
		a.member.Send(encode(&message{Verb: msgReady, Text: "simulated"}))
	case msgStart:
		report(control.Hello, nil)
		report(control.Joined, a.card)
	case msgDeal:
		report(control.Goodbye, nil)
	case msgRelease, msgSignal: // the latter when the launcher has lost another host, and ends the job
		if a.ended {
			return
		}
		a.ended = true
		for _, r := range a.ranks {
			a.member.Send(encode(&message{Verb: msgExited, Rank: r, Pid: 1, Status: uint32(m.Signal)}))
		}
		a.member.Send(encode(&message{Verb: msgDone}))
	}
}
