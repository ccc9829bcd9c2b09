package job

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/weft-hpc/weft/internal/control"
	"github.com/weft-hpc/weft/internal/plane"
)

// kid is a child of a host in the tree.
type kid struct {
	Site  int      `cbor:"1,keyasint"`
	Name  string   `cbor:"2,keyasint"`
	Ranks [][2]int `cbor:"3,keyasint"` // of all its branch
}

// branch is an agent's place in the tree over which cards are exchanged: links to a parent
// and to children of its own, besides the one to the launcher. Where the launcher is the parent, or has
// to stand in for it, that link serves.
//
// A link to the parent is awaited until it is up, and what is said meanwhile waits. When it ends, or cannot be
// made, the launcher is told (msgOrphan), and everything goes there from then on.
//
// Its fields belong to the agent's goroutine; what plane's goroutines hear comes by news.
type branch struct {
	cfg     branchConfig
	cards   *control.Exchange
	news    *mailboxOf[branchNews]
	root    plane.Root // of the children; nil without any
	parent  plane.Member
	state   parentState
	queue   [][]byte           // for a parent that is awaited
	sites   []int              // by member of root; it does not change
	joins   context.CancelFunc // ends the attempt to join the parent
	joining sync.WaitGroup
}

type parentState uint8

const (
	launcherIs parentState = iota
	parentAwaited
	parentUp
	parentLost
)

type branchConfig struct {
	way    plane.Way
	plane  plane.Config
	name   string // of the host, in the job
	size   int    // of the world
	own    int    // ranks here
	deep   bool   // the parent is another agent
	kids   []kid
	listen string         // an address for the children
	sent   *counter       // counts what is said, in a simulation; else nil
	up     func(*message) // to the launcher
	all    func(control.Lack)
	card   func(to, of int, b []byte)
}

// branchNews is something that happened on a link of the tree. One of the last four is set.
type branchNews struct {
	from   int // site of a child, or control.Parent
	frame  []byte
	member plane.Member // the parent is up
	err    error
	down   bool
}

// newBranch opens the link for children, if there are any.
func newBranch(cfg branchConfig, news *mailboxOf[branchNews]) (*branch, error) {
	b := &branch{cfg: cfg, news: news, joins: func() {}}
	if cfg.deep {
		b.state = parentAwaited
	}
	sites, names := make([]int, len(cfg.kids)), make([]string, len(cfg.kids))
	b.sites = sites
	for i, k := range cfg.kids {
		sites[i], names[i] = k.Site, k.Name
		if err := control.CheckRuns(k.Ranks, cfg.size); err != nil {
			return nil, err
		}
	}
	b.cards = control.NewExchange(cfg.size, cfg.own, sites, false, b)
	if len(names) > 0 {
		var err error
		if b.root, err = cfg.way.Listen(cfg.plane, net.JoinHostPort(cfg.listen, "0"), names, (*kidLinks)(b)); err != nil {
			return nil, fmt.Errorf("agents of %s cannot be listened to: %w", count(len(names), "host"), err)
		}
	}
	return b, nil
}

// at returns where children find this agent, on some addresses of this host.
func (b *branch) at(addrs []string) (out []string) {
	if b.root != nil {
		for _, a := range addrs {
			out = append(out, net.JoinHostPort(a, strconv.Itoa(b.root.Port())))
		}
	}
	return out
}

// join connects to the parent, without waiting for it.
func (b *branch) join(addrs []string) {
	if b.state != parentAwaited {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), joinWait)
	b.joins = cancel
	b.joining.Go(func() {
		defer cancel()
		m, err := b.cfg.way.Join(ctx, b.cfg.plane, b.cfg.name, addrs, (*parentLink)(b))
		if err != nil {
			b.news.put(branchNews{from: control.Parent, down: true, err: err})
			return
		}
		b.news.put(branchNews{from: control.Parent, member: m})
	})
}

// hear takes what has happened on the links. Who says what it must not holds up nobody else.
func (b *branch) hear() (all error) {
	for _, n := range b.news.take() {
		switch {
		case n.member != nil:
			b.parent = n.member
			if b.state == parentAwaited { // else it has fallen already
				b.state = parentUp
			}
			for _, f := range b.queue {
				b.parent.Send(f)
			}
			b.queue = nil
		case n.down:
			b.fell(n.from, n.err)
		default:
			m, err := decode(n.frame)
			if err == nil && (m.Verb != msgCards || m.Word == nil) {
				err = fmt.Errorf("it sends message %d, which it must not", m.Verb)
			}
			if err == nil {
				err = b.cards.Hear(n.from, m.Word)
			}
			if err != nil {
				all = errors.Join(all, fmt.Errorf("the exchange of cards with host %s: %w", b.nameOf(n.from), err))
			}
		}
	}
	return all
}

// fell takes the end of a link. That of a child is for the child to tell the launcher of.
func (b *branch) fell(from int, err error) {
	if from != control.Parent || b.state == parentLost {
		return
	}
	b.state, b.queue = parentLost, nil
	why := "its agent ended"
	if err != nil {
		why = err.Error()
	}
	b.cfg.up(&message{Verb: msgOrphan, Text: why})
	b.cards.Moved()
}

// hearLauncher takes what the launcher says about cards.
func (b *branch) hearLauncher(w *control.Word) error {
	from := control.Root
	if b.state == launcherIs {
		from = control.Parent
	}
	return b.cards.Hear(from, w)
}

// drop lets a child go that has the launcher for a parent now.
func (b *branch) drop(site int) {
	b.cfg.kids = slices.DeleteFunc(b.cfg.kids, func(k kid) bool { return k.Site == site })
	b.cards.Drop(site)
}

func (b *branch) nameOf(from int) string {
	for _, k := range b.cfg.kids {
		if k.Site == from {
			return k.Name
		}
	}
	return "between this one and weftrun"
}

// Route implements control.Links, as the next three do.
func (b *branch) Route(rank, up int) int {
	for _, k := range b.cfg.kids {
		if control.InRuns(k.Ranks, rank) {
			return k.Site
		}
	}
	return up
}

// Send implements control.Links.
func (b *branch) Send(to int, w *control.Word) {
	m := &message{Verb: msgCards, Word: w}
	f := encode(m)
	if b.cfg.sent != nil {
		b.cfg.sent.add(len(f))
	}
	switch {
	case to >= 0:
		b.root.Send(slices.Index(b.sites, to), f)
	case to == control.Root || b.state == launcherIs:
		b.cfg.up(m)
	case b.state == parentAwaited:
		b.queue = append(b.queue, f)
	case b.state == parentUp:
		b.parent.Send(f)
	}
}

// All implements control.Links.
func (b *branch) All(l control.Lack) { b.cfg.all(l) }

// Card implements control.Links.
func (b *branch) Card(to, of int, c []byte) { b.cfg.card(to, of, c) }

// close ends the links.
func (b *branch) close() error {
	b.joins()
	b.joining.Wait()
	for _, n := range b.news.take() {
		if n.member != nil {
			b.parent = n.member
		}
	}
	var err error
	if b.parent != nil {
		err = b.parent.Close()
	}
	if b.root != nil {
		err = errors.Join(err, b.root.Close())
	}
	return err
}

// kidLinks hears of the children, on plane's goroutines.
type kidLinks branch

func (b *kidLinks) Up(int) {}

func (b *kidLinks) Frame(member int, f []byte) {
	b.news.put(branchNews{from: b.sites[member], frame: f})
}

func (b *kidLinks) Down(int, error) {}

func (b *kidLinks) Refused(int, error) {}

// parentLink hears of the parent, on plane's goroutines.
type parentLink branch

func (b *parentLink) Up(int) {}

func (b *parentLink) Frame(_ int, f []byte) { b.news.put(branchNews{from: control.Parent, frame: f}) }

func (b *parentLink) Down(_ int, err error) {
	b.news.put(branchNews{from: control.Parent, down: true, err: err})
}

func (b *parentLink) Refused(int, error) {}
