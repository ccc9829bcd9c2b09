package control

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Exchange is one place's part in the exchange of cards. A place has some ranks of its
// own: those of a host. The places of a job are a tree with the launcher at its root, and
// neighbours in it have links.
//
//	own ranks and branches have joined  ->  the parent is told, by a Word of bounded size
//	the root knows it of all            ->  all are told, the same way down; Join returns
//	a rank asks for a card              ->  the neighbour in whose direction its owner is is asked;
//	                                        the answer is kept, and passed on
//
// A place that loses its parent has the root for one (Moved); the root takes it on (Adopt), and has the
// parent, if that is still there, let it go (Drop). In this order nobody counts as joined who has not.
//
// So until all have joined, a link carries one Word each way, however many ranks there are,
// and afterwards cards that somebody needs, each once. Who has a card is its rank's place;
// nobody has to know where that is, but each place which of its neighbours is nearer.
//
// An Exchange is pure: it takes what happened, and acts on its Links. What it has to say gathers
// until Flush, so that what is asked for together travels together.
type Exchange struct {
	size    int
	links   Links
	up      int            // the neighbour towards the root; nobody at the root
	missing int            // own ranks and branches that have not joined
	joined  map[int]bool   // own ranks that have
	grown   map[int]bool   // branches: true when all of one have
	lack    Lack           // of own ranks and branches
	all     bool           // all ranks of the job have joined
	cards   map[int][]byte // by rank: of own ranks, and what was asked for
	asked   map[int]*query // by rank: questions without an answer

	asking    map[int][]int  // by neighbour: ranks to ask it for
	answering map[int][]Card // by neighbour
}

// Links are what an Exchange acts on.
type Links interface {
	// Route returns the neighbour that is nearer to a rank, which is not an own one; up is the one
	// for those that are in no branch.
	Route(rank, up int) int
	// Send sends a Word to a neighbour.
	Send(neighbour int, w *Word)
	// All tells own ranks that all have joined.
	All(l Lack)
	// Card gives an own rank the card of another.
	Card(to, of int, b []byte)
}

// Neighbours. Branches have numbers from 0.
const (
	Parent = -1
	Root   = -2 // where it is not the parent
	nobody = -3
)

// maxCards is about how many bytes of cards are in one Word.
const maxCards = 1 << 20

// Word is what two places say to each other.
type Word struct {
	All   *Lack    `cbor:"1,keyasint,omitempty"` // up: a whole branch has joined; down: all have
	Ask   [][2]int `cbor:"2,keyasint,omitempty"` // runs of ranks whose cards are wanted
	Cards []Card   `cbor:"3,keyasint,omitempty"`
}

// Card is a rank's card.
type Card struct {
	_     struct{} `cbor:",toarray"`
	Rank  int
	Bytes []byte
}

// Lack sums up which ranks lack what all of them would need for something better.
type Lack struct {
	Ranks int    `cbor:"1,keyasint,omitempty"` // how many
	First int    `cbor:"2,keyasint,omitempty"` // the lowest of them
	Text  string `cbor:"3,keyasint,omitempty"` // what it lacks
}

func (l *Lack) add(o Lack) {
	if o.Ranks > 0 && (l.Ranks == 0 || o.First < l.First) {
		l.First, l.Text = o.First, o.Text
	}
	l.Ranks += o.Ranks
}

// query is a card that was asked for.
type query struct {
	of    int   // the neighbour that was asked
	ranks []int // own ranks that wait
	from  []int // neighbours that wait
	moved bool  // it is not in the branch that Route names
}

// NewExchange returns the part of a place in a world of so many ranks, with so many own ones and with these
// branches. The root has no parent.
func NewExchange(size, own int, branches []int, root bool, links Links) *Exchange {
	x := &Exchange{size: size, links: links, up: Parent, missing: own + len(branches), joined: make(map[int]bool, own), grown: make(map[int]bool),
		cards: make(map[int][]byte), asked: make(map[int]*query), asking: make(map[int][]int), answering: make(map[int][]Card)}
	if root {
		x.up = nobody
	}
	for _, b := range branches {
		x.grown[b] = false
	}
	x.check()
	return x
}

// Join takes an own rank's card, and what that rank lacks.
func (x *Exchange) Join(rank int, card []byte, lacks string) {
	if x.joined[rank] {
		return
	}
	x.joined[rank] = true
	x.cards[rank] = card
	if lacks != "" {
		x.lack.add(Lack{1, rank, lacks})
	}
	x.missing--
	x.check()
}

// check tells the parent, or all, when everybody has joined.
func (x *Exchange) check() {
	switch {
	case x.missing > 0 || x.all:
	case x.up == nobody:
		x.lack.Ranks = min(x.lack.Ranks, x.size) // a branch that moved may be counted twice
		x.settle(x.lack)
	default:
		l := x.lack
		x.links.Send(x.up, &Word{All: &l})
	}
}

func (x *Exchange) settle(l Lack) {
	x.all, x.lack = true, l
	for _, b := range slices.Sorted(maps.Keys(x.grown)) {
		x.links.Send(b, &Word{All: &l})
	}
	x.links.All(l)
}

// Hear takes what a neighbour says. An error means that it says what it must not.
func (x *Exchange) Hear(from int, w *Word) error {
	if w.All != nil {
		if err := x.hearAll(from, *w.All); err != nil {
			return err
		}
	}
	wanted, err := Unruns(w.Ask, x.size)
	if err != nil {
		return err
	}
	for _, rank := range wanted {
		if b, ok := x.cards[rank]; ok {
			x.answering[from] = append(x.answering[from], Card{Rank: rank, Bytes: b})
		} else {
			x.askedBy(from, rank)
		}
	}
	for _, c := range w.Cards {
		x.take(c)
	}
	return nil
}

func (x *Exchange) hearAll(from int, l Lack) error {
	if l.Ranks < 0 || l.Ranks > x.size || l.First < 0 || l.First >= x.size {
		return fmt.Errorf("control: %d ranks lack something, the first is %d, in a world of %d", l.Ranks, l.First, x.size)
	}
	if from < 0 {
		if x.up == nobody {
			return errors.New("control: the root is told that all have joined")
		}
		if !x.all { // else it comes from the parent and from the root
			x.settle(l)
		}
		return nil
	}
	if done, ok := x.grown[from]; !ok || done {
		return nil // it has moved meanwhile
	}
	x.grown[from] = true
	x.lack.add(l)
	x.missing--
	x.check()
	return nil
}

// Ask is called when an own rank wants a card.
func (x *Exchange) Ask(rank, of int) {
	if b, ok := x.cards[of]; ok {
		x.links.Card(rank, of, b)
		return
	}
	q := x.query(of)
	q.ranks = append(q.ranks, rank)
}

// query returns what is known of a question, which is asked if it is new.
func (x *Exchange) query(rank int) *query {
	q := x.asked[rank]
	if q == nil {
		q = &query{of: x.links.Route(rank, x.up)}
		x.asked[rank] = q
		x.asking[q.of] = append(x.asking[q.of], rank)
	}
	return q
}

// askedBy notes that a neighbour wants a card. A branch that asks for what should be in it has
// lost a branch of its own, which the root knows where to find.
func (x *Exchange) askedBy(from, rank int) {
	q := x.query(rank)
	if !slices.Contains(q.from, from) {
		q.from = append(q.from, from)
	}
	if q.of == from && from >= 0 {
		q.moved = true
		x.reroute(rank, q)
	}
}

// take takes a card that was asked for. Others are of no use.
func (x *Exchange) take(c Card) {
	q := x.asked[c.Rank]
	if q == nil {
		return
	}
	delete(x.asked, c.Rank)
	x.cards[c.Rank] = c.Bytes
	for _, r := range q.ranks {
		x.links.Card(r, c.Rank, c.Bytes)
	}
	for _, n := range q.from {
		x.answering[n] = append(x.answering[n], c)
	}
}

// Moved is called when the link to the parent is lost.
func (x *Exchange) Moved() {
	x.up = Root
	x.check()
	x.rerouteAll()
}

// Adopt is called, at the root, when a place elsewhere in the tree has lost its parent. It is called for a
// place that is lost itself as well, after those below it: then the root waits for it in vain, if it had not joined.
func (x *Exchange) Adopt(place int) {
	if _, ok := x.grown[place]; !ok {
		x.grown[place] = x.all
		if !x.all {
			x.missing++
		}
	}
	if x.all { // which its parent may not have told it
		l := x.lack
		x.links.Send(place, &Word{All: &l})
	}
	x.rerouteAll()
}

// Refuse is called, at the root, when a rank has died: if not all have joined by then, nobody is told that they have. Each
// Join fails, for the death, however that and what the tree says overtake each other.
func (x *Exchange) Refuse() { x.missing++ }

// Drop is called when a branch has another parent now.
func (x *Exchange) Drop(branch int) {
	if done, ok := x.grown[branch]; ok && !done {
		x.missing--
	}
	delete(x.grown, branch)
	x.check()
	x.rerouteAll()
}

// rerouteAll asks again what was asked of somebody who is not nearer to the owner any more.
func (x *Exchange) rerouteAll() {
	for rank, q := range x.asked {
		x.reroute(rank, q)
	}
}

func (x *Exchange) reroute(rank int, q *query) {
	to := x.up
	if !q.moved {
		to = x.links.Route(rank, x.up)
	}
	if to != q.of {
		q.of = to
		x.asking[to] = append(x.asking[to], rank)
	}
}

// Flush sends what has gathered.
func (x *Exchange) Flush() {
	for n, ranks := range x.asking {
		slices.Sort(ranks)
		x.links.Send(n, &Word{Ask: Runs(ranks)})
	}
	clear(x.asking)
	for n, cards := range x.answering {
		for len(cards) > 0 {
			bytes, i := 0, 0
			for i < len(cards) && bytes < maxCards {
				bytes += len(cards[i].Bytes)
				i++
			}
			x.links.Send(n, &Word{Cards: cards[:i]})
			cards = cards[i:]
		}
	}
	clear(x.answering)
}
