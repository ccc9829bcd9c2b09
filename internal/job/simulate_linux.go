package job

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/plane"
)

// A simulated job has the launcher as it is, and agents that are goroutines: they join
// over connections, exchange cards as agents do, and say what agents say when their ranks come up,
// leave the job and end, all of a host at once, but they have no ranks. So it shows what a start costs the
// launcher and the links, without the hosts.

// Simulation is a job to simulate.
type Simulation struct {
	Hosts int
	Ranks int // of each host
	Card  int // bytes of a rank's card

	fault     func(host int) fault // for tests; may be nil
	keepGoing bool                 // the others go on when a host is lost

	plan    *Plan
	out     *Simulated
	group   sync.WaitGroup
	agents  []*simulated
	unwired atomic.Int64 // agents that do not know that all have joined
}

// fault is what goes wrong at a host.
type fault struct {
	noParent bool // it cannot reach the parent
	cutAfter int  // its link to the parent ends after so many news of it; 0: it does not
	dieAfter int  // its agent ends after so many orders; 0: it does not
	dieLate  bool // its agent ends when it knows that all have joined
	loseRank bool // its first rank ends when its ranks have joined
	joinLate bool // its ranks join when they hear that another one has died
}

// Simulated is what a simulated job took.
type Simulated struct {
	Hosts, Ranks int // in all
	Steps        int // links between the launcher and the farthest host, which what all have to know crosses twice
	Phases       []Phase
	WireUp       Exchanged // until all ranks knew that all had joined
	Fetch        Exchanged // of cards, after that
	Cards        int       // fetched, by all ranks together
}

// Phase is a part of a job's life.
type Phase struct {
	Name string        `json:"name"`
	Took time.Duration `json:"took"` // nanoseconds
}

// Exchanged is what the exchange of cards sent.
type Exchanged struct {
	Launcher Traffic // by the launcher
	All      Traffic // by the launcher and all agents
	Most     Traffic // by the agent that sent most
}

// Traffic is what was sent.
type Traffic struct {
	Messages int64 `json:"messages"`
	Bytes    int64 `json:"bytes"` // before they are sealed
}

func (t *Traffic) add(o Traffic) {
	t.Messages += o.Messages
	t.Bytes += o.Bytes
}

func (t *Traffic) subtract(o Traffic) { t.add(Traffic{-o.Messages, -o.Bytes}) }

// counter counts what one end sends. Any goroutine may read it.
type counter struct{ messages, bytes atomic.Int64 }

func (c *counter) add(n int) {
	c.messages.Add(1)
	c.bytes.Add(int64(n))
}

func (c *counter) read() Traffic { return Traffic{c.messages.Load(), c.bytes.Load()} }

// traffic is a root that counts what the launcher sends about cards.
type traffic struct {
	plane.Root
	sent counter
}

func (t *traffic) Send(member int, b []byte) {
	if len(b) > 2 && verb(b[2]) == msgCards { // a map, its first key, the verb
		t.sent.add(len(b))
	}
	t.Root.Send(member, b)
}

// Run runs the job.
func (sim *Simulation) Run() (*Simulated, error) {
	size := sim.Hosts * sim.Ranks
	spec := &Spec{Programs: []Program{{Ranks: size, Argv: []string{"none"}}}, Transport: "tcp", Grace: 100 * time.Millisecond, Build: "simulated", KeepGoing: sim.keepGoing}
	p := &Plan{Spec: spec, Job: "weft-simulated-" + strconv.Itoa(sim.Hosts), Host: "launcher", Size: size, Secret: control.NewSecret(),
		programs: make([]int, size), base: baseEnv(os.Environ()), dir: "/", traffic: new(traffic)}
	var hosts [][]int
	for h := range sim.Hosts {
		site := Site{Name: fmt.Sprintf("host%d", h)}
		for r := range sim.Ranks {
			site.Ranks = append(site.Ranks, h*sim.Ranks+r)
		}
		p.Others, hosts = append(p.Others, site), append(hosts, site.Ranks)
	}
	p.layout = control.MakeLayout(hosts)
	out := &Simulated{Hosts: sim.Hosts, Ranks: size, Steps: depthOf(sim.Hosts)}
	sim.plan, sim.out = p, out
	p.starter = &starter{name: "simulated", forks: true, fake: sim.startAgents}
	var said strings.Builder
	last := time.Now()
	s := &supervisor{plan: p, notes: newMailbox(), rec: newRecord(p.Size), next: stopped(), blame: stopped(), part: stopped(),
		mark: func(name string) {
			now := time.Now()
			out.Phases = append(out.Phases, Phase{name, now.Sub(last)})
			last = now
		}}
	s.rec.goesOn = spec.KeepGoing
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
	sim.group.Wait()
	s.mark("links closed")
	s.speech.close()
	out.Fetch = sim.exchanged(&out.WireUp)
	for _, a := range sim.agents {
		out.Cards += a.fetched
	}
	if code != 0 {
		return out, fmt.Errorf("the simulated job ended with code %d: %s", code, said.String())
	}
	return out, err
}

// startAgents is the starter.
func (sim *Simulation) startAgents(f *far) {
	sim.unwired.Store(int64(len(f.sites)))
	for i, s := range f.sites {
		a := &simulated{sim: sim, name: s.Name, wants: make(map[int]int), dead: make(map[int]bool), orders: newMailboxOf[*message](), news: newMailboxOf[branchNews](), gone: make(chan struct{})}
		if sim.fault != nil {
			a.fault = sim.fault(i)
		}
		sim.agents = append(sim.agents, a)
	}
	for _, a := range sim.agents {
		sim.group.Go(func() { a.run(plane.Config{Job: f.plan.Job, Secret: f.key, Build: f.plan.Spec.Build}, f.addrs) })
	}
}

// wired is called when an agent knows that all ranks have joined. When all do, ranks begin to ask
// for cards, so that what belongs to either can be told apart.
func (sim *Simulation) wired() {
	if sim.unwired.Add(-1) > 0 {
		return
	}
	sim.out.WireUp = sim.exchanged(nil)
	for _, a := range sim.agents {
		a.orders.put(nil)
	}
}

// exchanged tells what was sent so far, but for what was sent before.
func (sim *Simulation) exchanged(before *Exchanged) (x Exchanged) {
	x.Launcher = sim.plan.traffic.sent.read()
	x.All = x.Launcher
	for _, a := range sim.agents {
		sent := a.sent.read()
		x.All.add(sent)
		if before == nil {
			a.wireUp = sent
		} else {
			sent.subtract(a.wireUp)
		}
		x.Most = Traffic{max(x.Most.Messages, sent.Messages), max(x.Most.Bytes, sent.Bytes)}
	}
	if before != nil {
		x.Launcher.subtract(before.Launcher)
		x.All.subtract(before.All)
	}
	return x
}

// simulated is an agent without ranks. Its fields belong to its goroutine, but for those that are otherwise safe.
type simulated struct {
	sim    *Simulation
	name   string
	way    plane.Way
	cfg    plane.Config
	member plane.Member
	orders *mailboxOf[*message] // nil: ranks need cards now
	news   *mailboxOf[branchNews]
	gone   chan struct{}
	sent   counter
	wireUp Traffic // sent before ranks asked for cards
	fault  fault

	tree    *branch
	as      *assignment
	ranks   []int
	wants   map[int]int  // by rank: those here that ask for its card, or will
	dead    map[int]bool // ranks that died
	fetched int
	joined  bool // all have
	ended   bool // the ranks are
}

// Up implements plane.Handler, as the next three do.
func (a *simulated) Up(int) {}

// Frame implements plane.Handler.
func (a *simulated) Frame(_ int, b []byte) {
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
	var err error
	if a.way, err = plane.Lookup(plane.TCP); err != nil {
		return
	}
	a.cfg = cfg
	if a.member, err = a.way.Join(ctx, cfg, a.name, addrs, a); err != nil {
		return // the launcher misses it
	}
	defer func() {
		_ = a.member.Close() // over already, or it dies
		if a.tree != nil {
			_ = a.tree.close()
		}
	}()
	orders, news := 0, 0
	for {
		select {
		case <-a.gone:
			return
		case <-a.orders.some:
			for _, m := range a.orders.take() {
				if orders++; orders == a.fault.dieAfter {
					return
				}
				if err := a.obey(m); err != nil {
					a.member.Send(encode(&message{Verb: msgFailed, Code: ExitSetup, Text: err.Error()}))
				}
			}
		case <-a.news.some:
			if err := a.tree.hear(); err != nil {
				a.member.Send(encode(&message{Verb: msgFailed, Code: ExitSetup, Text: err.Error()}))
			}
			if news++; news == a.fault.cutAfter && a.tree.parent != nil {
				_ = a.tree.parent.Close()
			}
		}
		if a.joined && a.fault.dieLate {
			return
		}
		if a.tree != nil {
			a.tree.cards.Flush()
		}
	}
}

func (a *simulated) obey(m *message) (err error) {
	if m == nil {
		a.fetch()
		return nil
	}
	switch m.Verb {
	case msgAssign:
		a.as = m.Assignment
		a.ranks, _ = control.Unruns(a.as.Ranks, a.as.Size)
		a.tree, err = newBranch(branchConfig{way: a.way, plane: a.cfg, name: a.name, size: a.as.Size, own: len(a.ranks), deep: a.as.Deep, kids: a.as.Kids,
			listen: "127.0.0.1", sent: &a.sent, up: func(m *message) { a.member.Send(encode(m)) }, all: func(control.Lack) { a.joined = true; a.sim.wired() },
			card: func(_, of int, _ []byte) { a.got(of) }}, a.news)
		if err != nil {
			return err
		}
		a.member.Send(encode(&message{Verb: msgReady, Text: "simulated", Addrs: a.tree.at([]string{"127.0.0.1"})}))
	case msgParent:
		if a.fault.noParent {
			m.Addrs = []string{"127.0.0.1:1"}
		}
		a.tree.join(m.Addrs)
	case msgStart:
		if !a.fault.joinLate {
			a.join()
		}
		if a.fault.loseRank {
			a.member.Send(encode(&message{Verb: msgExited, Rank: a.ranks[0], Pid: 1, Status: 1 << 8}))
		}
	case msgCards:
		return a.tree.hearLauncher(m.Word)
	case msgDisown:
		a.tree.drop(m.Site)
	case msgDied:
		if a.fault.joinLate {
			a.join()
		}
		if m.Word == nil && !a.joined { // what Join fails for
			a.end(1 << 8)
			return nil
		}
		if m.Word != nil {
			err = a.tree.hearLauncher(m.Word)
		}
		a.dead[m.Rank] = true
		if a.wants[m.Rank] > 0 {
			delete(a.wants, m.Rank)
			a.leave()
		}
		return err
	case msgRelease, msgSignal: // the latter when the launcher has lost another host, and ends the job
		a.end(uint32(m.Signal))
	}
	return nil
}

func (a *simulated) join() {
	for _, r := range a.ranks {
		a.tree.cards.Join(r, make([]byte, a.sim.Card), "")
	}
}

// end has the ranks end with a status.
func (a *simulated) end(status uint32) {
	if a.ended {
		return
	}
	a.ended = true
	for i, r := range a.ranks {
		if i > 0 || !a.fault.loseRank { // that one has ended before
			a.member.Send(encode(&message{Verb: msgExited, Rank: r, Pid: 1, Status: status}))
		}
	}
	a.member.Send(encode(&message{Verb: msgDone}))
}

// fetch has each rank ask for the cards that it needs in a barrier or a sum over all ranks: of
// those that are a power of two away, on other hosts.
func (a *simulated) fetch() {
	first, n := a.ranks[0], len(a.ranks)
	var asks [][2]int
	for _, r := range a.ranks {
		for d := 1; d < a.as.Size; d *= 2 {
			if of := (r + d) % a.as.Size; (of < first || of >= first+n) && !a.dead[of] {
				a.wants[of]++
				asks = append(asks, [2]int{r, of})
			}
		}
	}
	if len(asks) == 0 {
		a.leave()
	}
	for _, ask := range asks {
		a.tree.cards.Ask(ask[0], ask[1])
	}
}

// got counts a card that came.
func (a *simulated) got(of int) {
	if a.wants[of] == 0 {
		return // its rank has died meanwhile
	}
	a.fetched++
	if a.wants[of]--; a.wants[of] == 0 {
		delete(a.wants, of)
		a.leave()
	}
}

// leave has the ranks say goodbye when no card is wanted any more.
func (a *simulated) leave() {
	if len(a.wants) > 0 {
		return
	}
	m := &message{Verb: msgReport}
	for _, r := range a.ranks {
		m.Reports = append(m.Reports, control.Report{Rank: r, Kind: control.Goodbye, Lost: -1})
	}
	a.member.Send(encode(m))
}
