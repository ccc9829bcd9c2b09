package job

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/plane"
)

const (
	keyWait    = 20 * time.Second // for the secret on standard input
	joinWait   = 30 * time.Second
	lostGrace  = time.Second // from SIGTERM to SIGKILL when the launcher is gone
	sameSignal = time.Second // within which a signal of the batch system and the launcher's are one
)

// agent is the life of a weftrun on another host: it does what the launcher
// says, and tells it what happens. Its fields belong to one goroutine, except where
// plane's are named.
type agent struct {
	name    string
	build   string
	segment func(string, int, int64) (*os.File, error)
	key     []byte
	way     plane.Way
	plane   plane.Config
	member  plane.Member
	up      chan struct{} // closed when member is set
	orders  *mailboxOf[*message]
	gone    chan struct{} // closed when the link has ended
	why     error         // it ended; read after gone
	outlets [2]*outlet    // used by plane's goroutines
	input   *inputPipe    // used by plane's goroutines

	notes  *mailbox
	host   *host
	forker *forker // for agents further on; nil without any
	starts map[int]*start
	tree   *branch // set with host
	news   *mailboxOf[branchNews]
	held   []control.Report             // that the launcher need not hear yet
	hold   *time.Timer                  // until it shall
	heard  map[syscall.Signal]time.Time // when the batch system sent us a signal
	began  bool                         // the ranks were started
	left   int                          // ranks that have not ended, then
	over   bool                         // all have, and cards go on between others
	failed bool                         // over, because the ranks could not run
}

// Agent runs an agent and returns its exit code. Args are what follows AgentFlag on its
// command line: the job, where the secret is, the launcher's addresses, the name of this host
// in the job. It takes over the process.
func Agent(args []string, stdin *os.File, stderr io.Writer, build string, segment func(string, int, int64) (*os.File, error)) int {
	a := &agent{build: build, segment: segment, up: make(chan struct{}), orders: newMailboxOf[*message](), gone: make(chan struct{}), notes: newMailbox(),
		starts: make(map[int]*start), hold: stopped(), news: newMailboxOf[branchNews](), heard: make(map[syscall.Signal]time.Time)}
	if err := a.run(args, stdin); err != nil {
		fmt.Fprintf(stderr, "weftrun: agent on host %s: %v\n", a.name, err)
		return ExitSetup
	}
	return 0
}

func (a *agent) run(args []string, stdin *os.File) error {
	if len(args) != 4 {
		return fmt.Errorf("%d arguments after %s; it is for weftrun alone", len(args), AgentFlag)
	}
	jobName, keyAt := args[0], args[1]
	by, addrs, given := strings.Cut(args[2], "://")
	if !given {
		by, addrs = plane.TCP, args[2]
	}
	if a.name = args[3]; a.name == agentName {
		if a.name = os.Getenv("SLURMD_NODENAME"); a.name == "" {
			return errors.New("SLURMD_NODENAME is not set, so this host has no name in the job")
		}
	}
	way, err := plane.Lookup(by)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // as in Run
	defer signal.Reset()
	if a.key, err = readKey(keyAt, stdin); err != nil {
		return err
	}
	if err := errors.Join(adoptOrphans(), raiseMemlock()); err != nil {
		return err
	}
	for i := range a.outlets {
		a.outlets[i] = newOutlet(i, a.send)
	}
	a.input = newInputPipe(func(n int) { a.send(&message{Verb: msgInputCredit, Count: n}) })
	ctx, cancel := context.WithTimeout(context.Background(), joinWait)
	a.way, a.plane = way, plane.Config{Job: jobName, Secret: a.key, Build: a.build}
	a.member, err = way.Join(ctx, a.plane, a.name, strings.Split(addrs, ","), a)
	cancel()
	if err != nil {
		return err
	}
	close(a.up)
	a.loop(signals, children)
	err = a.member.Close()
	if a.tree != nil {
		err = errors.Join(err, a.tree.close())
	}
	a.input.close()
	if a.host != nil {
		err = errors.Join(err, a.host.close())
	}
	if a.forker != nil {
		a.forker.close()
	}
	return err
}

// readKey reads the secret, from the first line of standard input or from a
// file that nobody else can have written or read.
func readKey(at string, stdin *os.File) ([]byte, error) {
	var line string
	if at == "env" {
		line = os.Getenv(keyVar)
		if err := os.Unsetenv(keyVar); err != nil {
			return nil, err
		}
	} else if at == "stdin" {
		got := make(chan string, 1)
		go func() { // ends with the process, where nothing comes
			s, _ := bufio.NewReaderSize(stdin, 128).ReadString('\n')
			got <- s
		}()
		select {
		case line = <-got:
		case <-time.After(keyWait):
			return nil, fmt.Errorf("no secret on standard input within %v", keyWait)
		}
	} else {
		f, err := openPrivate(at)
		if err != nil {
			return nil, fmt.Errorf("the file with the secret: %w; weftrun writes it to the home directory, which all hosts must share", err)
		}
		b, err := io.ReadAll(io.LimitReader(f, 128))
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		line = string(b)
	}
	key, err := hex.DecodeString(strings.TrimSpace(line))
	if err != nil || len(key) != control.SecretSize {
		return nil, errors.New("what came where the secret should be is something else; does a login script read standard input?")
	}
	return key, nil
}

// openPrivate opens a regular file of ours that nobody else may touch.
func openPrivate(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o077 != 0 || int(st.Uid) != os.Geteuid() {
		return nil, errors.Join(fmt.Errorf("%s: not a file of this user alone (mode %#o, user %d)", name, st.Mode, st.Uid), f.Close())
	}
	return f, nil
}

// Up implements plane.Handler, as the next three do, on plane's goroutines.
func (a *agent) Up(int) {}

// Frame implements plane.Handler.
func (a *agent) Frame(_ int, b []byte) {
	m, err := decode(b)
	if err != nil {
		m = &message{Verb: msgFailed, Text: err.Error()}
	}
	switch {
	case m.Verb == msgCredit && m.Stream >= 0 && m.Stream < len(a.outlets):
		a.outlets[m.Stream].grant(m.Count)
	case m.Verb == msgInput:
		a.input.put(m.Data)
	default:
		a.orders.put(m)
	}
}

// Down implements plane.Handler.
func (a *agent) Down(_ int, err error) {
	a.why = err
	close(a.gone)
	for _, o := range a.outlets {
		o.hangUp()
	}
	a.input.put(nil)
}

// Refused implements plane.Handler.
func (a *agent) Refused(int, error) {}

func (a *agent) send(m *message) {
	<-a.up
	a.member.Send(encode(m))
}

func (a *agent) say(format string, args ...any) {
	a.send(&message{Verb: msgSay, Text: fmt.Sprintf(format, args...)})
}

// loop runs until the launcher says goodbye, or is lost.
func (a *agent) loop(signals, children <-chan os.Signal) {
	keep := stopped()
	defer keep.Stop()
	for {
		select {
		case <-a.gone:
			a.end(children)
			return
		case <-a.orders.some:
			for _, m := range a.orders.take() {
				started, err := a.obey(m)
				if err != nil {
					keep.Stop()
					a.fail(err, children)
				} else if started {
					keep.Reset(keeperDelay)
				}
			}
		case <-a.notes.some:
			a.readNotes()
		case <-a.news.some:
			if err := a.tree.hear(); err != nil {
				keep.Stop()
				a.fail(failf(ExitSetup, "%w", err), children)
			}
		case <-a.hold.C:
			a.tellHeld()
		case <-children:
			a.reap()
		case sig := <-signals:
			// The batch system signals the ranks as well; ssh at the end of a
			// connection does not, and means nothing by it.
			a.heard[sig.(syscall.Signal)] = time.Now()
		case <-keep.C:
			if err := a.host.keep(); err != nil {
				a.say("%v; if weftrun is killed, what the ranks have started may stay", err)
			}
		}
		if a.tree != nil {
			a.tree.cards.Flush()
		}
		if a.began && a.left == 0 && !a.over {
			a.over = true
			keep.Stop()
			a.done(children)
		}
	}
}

// obey does what the launcher says. An error means that the ranks of this host
// cannot run. Then no more is done here than to exchange cards, for others.
func (a *agent) obey(m *message) (started bool, err error) {
	if a.failed && (a.tree == nil || m.Verb != msgCards && m.Verb != msgParent && m.Verb != msgDisown && m.Verb != msgDied) {
		return false, nil
	}
	if a.host == nil && m.Verb != msgAssign && m.Verb != msgLaunch && m.Verb != msgFailed {
		return false, failf(ExitSetup, "weftrun sent message %d before an assignment", m.Verb)
	}
	switch m.Verb {
	case msgAssign:
		if a.host != nil || m.Assignment == nil {
			return false, failf(ExitSetup, "weftrun sent an assignment out of order")
		}
		text, err := a.plan(m.Assignment)
		if err != nil {
			return false, err
		}
		addrs, err := a.grow(m.Assignment)
		if err != nil {
			return false, err
		}
		a.send(&message{Verb: msgReady, Text: text, Lines: a.host.plan.bindings(), Addrs: addrs})
	case msgLaunch:
		a.launch(m)
	case msgStart:
		if err := a.host.start(); err != nil {
			return false, err
		}
		a.began, a.left = true, len(a.host.plan.Local)
		return true, nil
	case msgSignal:
		ranks, err := control.Unruns(m.Ranks, a.host.plan.Size)
		if err != nil {
			return false, &Error{ExitSetup, err}
		}
		sig := syscall.Signal(m.Signal)
		if at, ok := a.heard[sig]; ok && time.Since(at) < sameSignal {
			return false, nil // the ranks have had it from the batch system, with us
		}
		for _, rank := range ranks {
			a.host.signal(rank, sig)
		}
	case msgCards:
		if m.Word == nil {
			return false, failf(ExitSetup, "weftrun said nothing about cards")
		}
		err = a.tree.hearLauncher(m.Word)
	case msgParent:
		a.tree.join(m.Addrs)
	case msgDisown:
		a.tree.drop(m.Site)
	case msgDied:
		if m.Word != nil {
			err = a.tree.hearLauncher(m.Word)
		}
		err = errors.Join(err, a.host.hub.Died(m.Rank, m.Code, m.Text, m.GoesOn))
	case msgAborted:
		err = a.host.hub.Aborted(m.Rank, m.Code, m.Text)
	case msgLeft:
		for _, g := range m.Gone {
			err = errors.Join(err, a.host.hub.Left(g.Rank, g.To))
		}
	case msgLimit:
		err = a.host.hub.Limit(time.Duration(m.Left))
	case msgRelease:
		err = a.host.hub.Release()
	default:
		err = fmt.Errorf("weftrun sent message %d, which it must not: %s", m.Verb, m.Text)
	}
	if err != nil {
		err = &Error{ExitSetup, err}
	}
	return false, err
}

// plan makes the plan for this host and everything that ranks share.
func (a *agent) plan(as *assignment) (string, error) {
	if err := os.Chdir(as.Dir); err != nil {
		return "", failf(ExitSetup, "the working directory is not there: %w; all hosts must have it, or give --wdir", err)
	}
	syscall.Umask(as.Umask)
	spec := &Spec{Programs: as.Programs, Map: as.Map, Bind: as.Bind, Transport: as.Transport, Interface: as.Interface, Device: as.Device, Arena: as.Arena,
		Tag: as.Tag, Output: as.Output, Try: as.Try}
	if as.Crowded && spec.Bind == BindDefault {
		spec.Bind = BindNone
	}
	if as.Shared {
		spec.Segment = a.segment
	}
	p := &Plan{Spec: spec, Job: as.Job, Host: as.Host, Size: as.Size, Secret: as.Secret, layout: as.Layout, dir: as.Dir,
		base: mergeEnv(as.Env, ownEnv(baseEnv(os.Environ())))}
	var err error
	if p.Local, err = control.Unruns(as.Ranks, as.Size); err != nil {
		return "", &Error{ExitSetup, err}
	}
	for i := range spec.Programs {
		for range spec.Programs[i].Ranks {
			p.programs = append(p.programs, i)
		}
	}
	if len(p.programs) != p.Size {
		return "", failf(ExitSetup, "programs for %d ranks in a job of %d", len(p.programs), p.Size)
	}
	if err := p.detail(); err != nil {
		return "", err
	}
	if as.Crowded {
		if p.Oversubscribed = true; as.Bind == BindDefault {
			p.Binding = "none: other hosts of the job are this machine too"
		}
	}
	quiet := func(error) {} // the link is down, which ends everything
	sinks := [2]*sink{}
	for i, o := range a.outlets {
		sinks[i] = makeSink(o, o, as.Terminal[i], quiet)
	}
	h, err := newHost(p, a.notes, sinks)
	if err != nil {
		return "", err
	}
	if len(p.Local) > 0 && p.Local[0] == 0 {
		h.stdin0 = a.input.theirs()
	}
	h.other = a.commandEnded
	a.host = h
	return fmt.Sprintf("%s, %s, binding %s", ranksOf(p.Local), count(len(p.Allowed), "processor"), p.Binding), nil
}

// launch starts agents further on.
func (a *agent) launch(m *message) {
	if a.forker == nil {
		a.forker = newForker()
	}
	for _, c := range m.Commands {
		st, err := newStart(a.forker, c, m.Data, "/")
		if err != nil {
			a.send(&message{Verb: msgFailed, Site: c.Site + 1, Code: ExitSetup, Text: fmt.Sprintf("%s could not be run: %v", c.Argv[0], err)})
			continue
		}
		a.starts[st.pid] = st
	}
}

// commandEnded is told of children that are no ranks.
func (a *agent) commandEnded(pid int, ws syscall.WaitStatus) {
	if st := a.starts[pid]; st != nil {
		delete(a.starts, pid)
		// The launcher knows whether that agent has come up.
		a.send(&message{Verb: msgFailed, Site: st.command.Site + 1, Code: ExitSetup, Text: startFailure("", st.command.Argv[0], ws, st.finish())})
	}
}

// reap tells of every rank that has ended.
func (a *agent) reap() {
	if a.host == nil {
		a.reapStarts()
		return
	}
	a.host.reap(a.ended)
}

// reapStarts collects ended children before there is a host.
func (a *agent) reapStarts() {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid == 0 {
			return
		}
		a.commandEnded(pid, ws)
	}
}

func (a *agent) ended(rank int, st status) {
	// What it said before it ended comes first.
	if err := a.host.hub.Drain(rank); err != nil {
		a.say("rank %d: %v", rank, err)
	}
	a.readNotes()
	a.tellHeld()
	a.left--
	a.send(&message{Verb: msgExited, Rank: rank, Pid: st.pid, Status: uint32(st.WaitStatus)})
}

func (a *agent) readNotes() {
	urgent := false
	for _, n := range a.notes.take() {
		switch {
		case n.report != nil:
			urgent = a.hear(n.report) || urgent
		case n.say != "":
			a.say("%s", n.say)
		}
	}
	if urgent {
		a.tellHeld() // in one message, as many as have come
	}
}

// fail ends the ranks of this host, since they cannot run, and says why, for the first time.
func (a *agent) fail(err error, children <-chan os.Signal) {
	if a.failed {
		return
	}
	a.failed, a.over, a.left = true, true, 0
	code := ExitSetup
	if e, ok := errors.AsType[*Error](err); ok {
		code = e.Code
	}
	a.send(&message{Verb: msgFailed, Code: code, Text: err.Error()})
	if a.host != nil {
		a.kill(syscall.SIGKILL)
		a.done(children)
	}
}

// done ends what the ranks have left behind, and passes on the last of their output.
func (a *agent) done(children <-chan os.Signal) {
	if text := a.sweep(children); text != "" {
		a.say("%s", text)
	}
	a.host.finish()
	a.readNotes()
	a.send(&message{Verb: msgDone})
}

// sweep is the host's, but for the commands that keep other agents.
func (a *agent) sweep(children <-chan os.Signal) string {
	return a.host.sweep(children, a.starts)
}

func (a *agent) kill(sig syscall.Signal) {
	for _, rank := range a.host.plan.Local {
		a.host.signal(rank, sig)
		a.host.signal(rank, syscall.SIGCONT)
	}
}

// end ends everything here: the launcher has said goodbye or is lost.
func (a *agent) end(children <-chan os.Signal) {
	if a.host != nil && a.left > 0 {
		a.kill(syscall.SIGTERM)
		t := time.NewTimer(lostGrace)
		defer t.Stop()
		for waiting := true; waiting && a.left > 0; {
			select {
			case <-children:
				a.host.reap(func(int, status) { a.left-- })
			case <-t.C:
				waiting = false
			}
		}
		a.kill(syscall.SIGKILL)
		a.host.sweep(children, nil)
		a.host.finish()
	}
	for pid, st := range a.starts { // whose agents end by themselves
		syscall.Kill(-pid, syscall.SIGTERM)
		st.abandon()
	}
}
