package job

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/plane"
	"github.com/weft-hpc/weft/internal/topo"
)

// AgentFlag is the first argument of a weftrun that is an agent.
const AgentFlag = "--as-agent"

// far is the launcher's side of all agents. Its fields belong to the
// supervisor's goroutine, except where plane's goroutines are named.
type far struct {
	plan   *Plan
	notes  *mailbox
	host   *host
	key    []byte
	root   plane.Root
	addrs  []string // that agents dial
	tm     *spawner // nil where it does not start the agents
	agent  []string // command line of an agent, without its name
	file   string   // that holds the key; "" for none
	sites  []*site
	siteOf []int32 // by rank; -1 is here
	starts map[int]*start
	input  *feeder // of rank 0, where that is on another host
	err    error   // why the job cannot be started
	began  bool    // the ranks were told to start
	closed bool

	firstUp, lastUp time.Time // of agents
}

// site is what the supervisor knows of one of the other hosts.
type site struct {
	Site
	state  siteState
	parent int       // with which it exchanges cards; -1 is the launcher
	addrs  []string  // where its children find it
	in     [2]*inlet // used by plane's goroutines
}

type siteState uint8

const (
	awaited siteState = iota
	assigned
	ready // and running, when all are
	done  // no process is left there
	lost
)

// farNote is something that happened to a site, put into the supervisor's mailbox.
type farNote struct {
	site    int
	up      bool
	message *message
	down    bool
	refused bool
	err     error
	spawn   error  // PBS did not start its agent
	over    string // how the task of its agent ended, in words
}

// newFar opens the plane that agents will join.
func newFar(plan *Plan, notes *mailbox, h *host, sinks [2]*sink) (*far, error) {
	f := &far{plan: plan, notes: notes, host: h, key: control.NewSecret(), starts: make(map[int]*start), siteOf: make([]int32, plan.Size)}
	for i := range f.siteOf {
		f.siteOf[i] = -1
	}
	names := make([]string, len(plan.Others))
	f.sites = make([]*site, len(plan.Others))
	for i, o := range plan.Others {
		names[i] = o.Name
		s := &site{Site: o, parent: parentOf(i)}
		for stream, to := range sinks {
			s.in[stream] = newInlet(to, func(n int) { f.send(i, &message{Verb: msgCredit, Stream: stream, Count: n}) })
		}
		f.sites[i] = s
		for _, r := range o.Ranks {
			f.siteOf[r] = int32(i)
		}
	}
	way, err := plane.Lookup(plan.control())
	var listen string
	var addrs []string
	if err == nil {
		listen, addrs, err = plan.ownAddresses()
	}
	if err == nil {
		f.root, err = way.Listen(plane.Config{Job: plan.Job, Secret: f.key, Build: plan.Spec.Build}, net.JoinHostPort(listen, "0"), names, f)
	}
	if err != nil {
		f.closeInlets()
		return nil, failf(ExitSetup, "agents cannot be listened to: %w", err)
	}
	if t := plan.traffic; t != nil {
		t.Root, f.root = f.root, t
	}
	for _, a := range addrs {
		f.addrs = append(f.addrs, net.JoinHostPort(a, strconv.Itoa(f.root.Port())))
	}
	if plan.starter.name == tmName {
		if f.tm, err = openTM(plan); err != nil {
			err = f.fallBack(err)
		}
	}
	if err == nil {
		err = f.command()
	}
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// agentArgs returns the command line of an agent, without its name.
func (p *Plan) agentArgs(addrs, file string) []string {
	exe := p.Spec.Agent
	if exe == "" {
		var err error
		if exe, err = os.Executable(); err != nil {
			exe = "weftrun"
		}
	}
	key := "stdin"
	switch {
	case p.starter.file:
		key = file
	case p.starter.name == tmName:
		key = "env"
	}
	if way := p.control(); way != plane.TCP {
		addrs = way + "://" + addrs
	}
	return []string{exe, AgentFlag, p.Job, key, addrs}
}

// control is the way that we talk to agents.
func (p *Plan) control() string {
	if p.Spec.Control == "" {
		return plane.TCP
	}
	return p.Spec.Control
}

// writeKey writes the key to a file that only this user can read, in the home
// directory, which clusters have on all hosts.
func writeKey(key []byte) (string, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp(home, ".weftrun-*") // 0600, and new
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(hex.EncodeToString(key) + "\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return filepath.Clean(f.Name()), nil
}

func (f *far) removeKey() {
	if f.file != "" {
		_ = os.Remove(f.file) // what it held opens nothing after the job
		f.file = ""
	}
}

// Up implements plane.Handler, as the next three do, on plane's goroutines.
func (f *far) Up(member int) { f.notes.put(note{far: &farNote{site: member, up: true}}) }

// Frame implements plane.Handler.
func (f *far) Frame(member int, b []byte) {
	m, err := decode(b)
	if err == nil && (m.Verb == msgOutput || m.Verb == msgPause) {
		if m.Stream < 0 || m.Stream > 1 || m.Verb == msgOutput && (len(m.Data) == 0 || !f.sites[member].in[m.Stream].put(m.Data)) {
			err = errors.New("it sends output that it was not asked for")
		} else if m.Verb == msgPause {
			f.sites[member].in[m.Stream].put(nil)
		}
		if err == nil {
			return
		}
	}
	if err != nil {
		f.root.Drop(member, err)
		return
	}
	f.notes.put(note{far: &farNote{site: member, message: m}})
}

// Down implements plane.Handler.
func (f *far) Down(member int, err error) {
	for _, in := range f.sites[member].in {
		in.put(nil) // no line goes on
	}
	f.notes.put(note{far: &farNote{site: member, down: true, err: err}})
}

// Refused implements plane.Handler.
func (f *far) Refused(member int, err error) {
	f.notes.put(note{far: &farNote{site: member, refused: true, err: err}})
}

func (f *far) send(i int, m *message) { f.root.Send(i, encode(m)) }

// tell sends a message to all agents. It does nothing on a job of one host, nor
// before there are ranks to hear of it.
func (f *far) tell(m *message) {
	if f == nil || !f.began {
		return
	}
	b := encode(m)
	for i, s := range f.sites {
		if s.state == ready {
			f.root.Send(i, b)
		}
	}
}

// signal passes a signal on to ranks that are on other hosts, and returns those
// that are not.
func (f *far) signal(ranks []int, sig syscall.Signal) (here []int) {
	if f == nil {
		return ranks
	}
	there := make(map[int32][]int)
	for _, r := range ranks {
		if i := f.siteOf[r]; i >= 0 {
			there[i] = append(there[i], r)
		} else {
			here = append(here, r)
		}
	}
	for i, rs := range there {
		f.send(int(i), &message{Verb: msgSignal, Signal: int(sig), Ranks: control.Runs(rs)})
	}
	return here
}

// site returns the number of a rank's site, or -1 where it is on this host.
func (f *far) site(rank int) int {
	if f == nil {
		return -1
	}
	return int(f.siteOf[rank])
}

// where returns the name of a rank's host.
func (f *far) where(rank int) string {
	if i := f.site(rank); i >= 0 {
		return f.sites[i].Name
	}
	return ""
}

// startAgents starts the agents that this process is to start.
func (f *far) startAgents() {
	if f.plan.starter.fake != nil {
		f.plan.starter.fake(f)
		return
	}
	if f.tm != nil {
		if err := f.tm.spawn(f.sites, f.agent, f.key, f.notes); err != nil {
			f.fail(failf(ExitSetup, "agents could not be started: %w", err))
		}
		return
	}
	cmds := f.plan.starter.commands(f.plan.Others, f.agent)
	if f.plan.starter.tree {
		cmds = cmds[:min(fanOut, len(cmds))]
	}
	f.run(cmds)
}

// run runs commands that start agents.
func (f *far) run(cmds []command) {
	for _, c := range cmds {
		st, err := newStart(f.host.forker, c, f.stdin(), f.host.plan.dir)
		if err != nil {
			f.fail(failf(ExitSetup, "%s could not be run: %w", c.Argv[0], err))
			return
		}
		st.loud = func(line string) { f.notes.put(note{say: f.startName(c) + ": " + line}) }
		f.starts[st.pid] = st
	}
}

// stdin is what a start command gets to read.
func (f *far) stdin() []byte {
	if f.plan.starter.file {
		return nil
	}
	return []byte(hex.EncodeToString(f.key) + "\n")
}

func (f *far) startName(c command) string {
	if c.Site < 0 {
		return c.Argv[0]
	}
	return "host " + f.sites[c.Site].Name
}

// children returns the sites whose agents the agent of site i starts.
func (f *far) children(i int) []int {
	if !f.plan.starter.tree {
		return nil
	}
	return childrenOf(i, len(f.sites))
}

// fail notes why the job cannot be started; the first reason counts.
func (f *far) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

// commandEnded is told of children that are no ranks.
func (f *far) commandEnded(pid int, ws syscall.WaitStatus) {
	st := f.starts[pid]
	if st == nil {
		return
	}
	delete(f.starts, pid)
	said := st.finish()
	for i, s := range f.sites {
		if s.state == awaited && !f.began && (st.command.Site == i || st.command.Site < 0) {
			f.fail(failf(ExitSetup, "%s", startFailure(s.Name, st.command.Argv[0], ws, said)))
			return
		}
	}
}

// startFailure says that a start command ended and its agent did not come up.
func startFailure(host, program string, ws syscall.WaitStatus, said string) string {
	how := fmt.Sprintf("exit status %d", ws.ExitStatus())
	if ws.Signaled() {
		how = fmt.Sprintf("signal %d (%v)", ws.Signal(), ws.Signal())
	}
	if said == "" {
		said = "it said nothing here; what PBS starts says it in the job's output file"
		if !strings.HasPrefix(program, "pbs") {
			said = "it said nothing"
		}
	}
	return fmt.Sprintf("no agent on host %s: %s ended with %s: %s", host, program, how, said)
}

// assign sends an agent its part of the job, and the agents that it is to start.
func (f *far) assign(i int) {
	s := f.sites[i]
	s.state = assigned
	if kids := f.children(i); kids != nil {
		m := &message{Verb: msgLaunch}
		for _, k := range kids {
			c := f.plan.starter.commands(f.plan.Others[k:k+1], f.agent)[0]
			c.Site = k
			m.Commands = append(m.Commands, c)
		}
		if data := f.stdin(); data != nil {
			m.Data = data
		}
		f.send(i, m)
	}
	spec := f.plan.Spec
	iface := spec.Interface
	if f.plan.starter.forks && iface == "" {
		iface = "lo"
	}
	f.send(i, &message{Verb: msgAssign, Assignment: &assignment{
		Job: f.plan.Job, Host: s.Name, Size: f.plan.Size, Ranks: control.Runs(s.Ranks), Programs: spec.Programs,
		Env: portableEnv(f.plan.base), Dir: f.plan.dir, Umask: umask(), Secret: f.plan.Secret,
		Transport: spec.Transport, Interface: iface, Device: spec.Device, Arena: spec.Arena, Try: spec.Try, Map: spec.Map, Bind: spec.Bind,
		Tag: spec.Tag, Output: spec.Output, Terminal: [2]bool{isTerminal(1), isTerminal(2)}, Shared: spec.Segment != nil, Crowded: f.plan.starter.forks,
		Layout: f.plan.layout, Kids: f.kids(i), Deep: s.parent >= 0}})
	f.introduce(i)
}

// missing names the sites that are in a state, for an error.
func (f *far) missing(in ...siteState) string {
	var names []string
	for _, s := range f.sites {
		if slices.Contains(in, s.state) {
			names = append(names, s.Name)
		}
	}
	const most = 20
	if len(names) > most {
		names = append(names[:most], fmt.Sprintf("and %d more", len(names)-most))
	}
	return strings.Join(names, ", ")
}

// all tells whether all sites are in one of some states.
func (f *far) all(in ...siteState) bool {
	for _, s := range f.sites {
		if !slices.Contains(in, s.state) {
			return false
		}
	}
	return true
}

// begin has the agents start their ranks.
func (f *far) begin() error {
	f.removeKey()
	for _, st := range f.starts {
		st.beLoud()
	}
	f.began = true
	f.tell(&message{Verb: msgStart})
	if i := f.siteOf[0]; i >= 0 {
		var err error
		if f.input, err = newFeeder(func(b []byte) { f.send(int(i), &message{Verb: msgInput, Data: b}) }); err != nil {
			return failf(ExitSetup, "standard input of rank 0: %w", err)
		}
	}
	return nil
}

// close says goodbye to all agents. They end then, whatever they are at.
func (f *far) close() error {
	if f.closed {
		return nil
	}
	f.closed = true
	f.removeKey()
	if f.input != nil {
		f.input.close()
	}
	err := f.root.Close()
	f.closeInlets()
	if f.tm != nil {
		err = errors.Join(err, f.tm.close())
	}
	return err
}

func (f *far) closeInlets() {
	for _, s := range f.sites {
		for _, in := range s.in {
			in.close()
		}
	}
}

// finish waits until all output is written.
func (f *far) finish() {
	for _, s := range f.sites {
		for _, in := range s.in {
			in.group.Wait()
		}
	}
	for _, st := range f.starts { // that outlived the sweep, in the kernel perhaps
		st.abandon()
	}
}

// startWait is how long all agents may take to come up.
func (f *far) startWait() time.Duration {
	if d := f.plan.Spec.StartTime; d > 0 {
		return d
	}
	return 30*time.Second + time.Duration(len(f.sites))*20*time.Millisecond
}

// ownAddresses returns the address to listen at for agents, and those that they shall
// dial.
func (p *Plan) ownAddresses() (listen string, dial []string, err error) {
	if p.starter.forks {
		return "127.0.0.1", []string{"127.0.0.1"}, nil
	}
	names := make([]string, len(p.Others))
	for i, o := range p.Others {
		names[i] = o.Name
	}
	return addressesFor(names, p.Spec.Interface)
}

// addressesFor returns the address to listen at for some hosts, and those that they shall dial.
func addressesFor(hosts []string, iface string) (listen string, dial []string, err error) {
	if iface != "" {
		a, err := interfaceAddress(iface)
		return a, []string{a}, err
	}
	// The addresses that packets to the other hosts leave from. A few hosts tell
	// as much as all of them.
	const enough = 4
	for _, name := range hosts[:min(enough, len(hosts))] {
		c, err := net.Dial("udp", net.JoinHostPort(name, "9")) // sends nothing
		if err != nil {
			continue
		}
		if a := c.LocalAddr().(*net.UDPAddr).IP.String(); !slices.Contains(dial, a) {
			dial = append(dial, a)
		}
		c.Close()
	}
	if len(dial) == 1 {
		return dial[0], dial, nil
	}
	if dial == nil { // names that only the starter knows
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			return "", nil, err
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
				dial = append(dial, n.IP.String())
			}
		}
	}
	if dial == nil {
		return "", nil, errors.New("this host has no address that others could reach; --interface names one")
	}
	return "", dial, nil
}

// interfaceAddress returns this host's address on an interface, which is named,
// or by the network that it is in.
func interfaceAddress(want string) (string, error) {
	_, network, err := net.ParseCIDR(want)
	if err != nil {
		if ip := net.ParseIP(want); ip != nil {
			return ip.String(), nil
		}
	}
	list, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	for _, i := range list {
		addrs, err := i.Addrs()
		if err != nil {
			return "", err
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if ok && (i.Name == want && !n.IP.IsLinkLocalUnicast() || network != nil && network.Contains(n.IP)) {
				return n.IP.String(), nil
			}
		}
	}
	return "", fmt.Errorf("this host has no interface %s", want)
}

// umask returns this process's umask, without changing it as the system call does.
func umask() int {
	text, err := topo.System.Text("proc/self/status")
	if err == nil {
		for line := range strings.Lines(text) {
			if v, ok := strings.CutPrefix(line, "Umask:"); ok {
				if n, err := strconv.ParseInt(strings.TrimSpace(v), 8, 32); err == nil {
					return int(n)
				}
			}
		}
	}
	return 0o022
}
