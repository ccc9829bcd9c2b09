package control

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// net is a tree of places with links that deliver in order, but not at the same speed: what is delivered next is
// for the test to draw. The first place is the root. As in package job, every place has a link to the root besides the one to
// its parent, and words about moves travel there.
type net struct {
	t      *rapid.T
	places []*netPlace
	links  map[[2]int][]netWord // by sender and receiver, and by whether it is the spare link: receiver + len(places)
	ranks  int
}

type netPlace struct {
	*Exchange
	net    *net
	number int
	parent int
	moved  bool
	own    []int
	told   *Lack
	got    map[[2]int]string
	asked  map[[2]int]bool
}

type netWord struct {
	word   *Word
	orphan bool // a place to the root: I have no parent
	drop   int  // the root to a place: this one is no branch of yours
}

func (p *netPlace) put(to int, spare bool, w netWord) {
	if spare {
		to += len(p.net.places)
	}
	key := [2]int{p.number, to}
	p.net.links[key] = append(p.net.links[key], w)
}

// below tells whether a place is in the branch of another one, as the other one sees it.
func (n *net) below(place, branch int) bool {
	for ; place > 0; place = n.places[place].parent {
		if place == branch {
			return true
		}
	}
	return false
}

func (p *netPlace) Route(rank, up int) int {
	owner := slices.IndexFunc(p.net.places, func(q *netPlace) bool { return slices.Contains(q.own, rank) })
	for b := range p.grown {
		if p.net.below(owner, b) && (p.number > 0 || !p.net.closer(owner, b)) {
			return b
		}
	}
	return up
}

// closer tells whether the root has a nearer branch for a place than this one.
func (n *net) closer(place, branch int) bool {
	for ; place != branch; place = n.places[place].parent {
		if _, ok := n.places[0].grown[place]; ok {
			return true
		}
	}
	return false
}

func (p *netPlace) Send(to int, w *Word) {
	switch {
	case to == Root:
		p.put(0, true, netWord{word: w})
	case to == Parent:
		if !p.moved {
			p.put(p.parent, p.parent == 0, netWord{word: w})
		}
	case p.net.places[to].parent == p.number && p.number > 0:
		if !p.net.places[to].moved {
			p.put(to, false, netWord{word: w})
		}
	default: // the root has one link to each place
		p.put(to, true, netWord{word: w})
	}
}

func (p *netPlace) All(l Lack) {
	if p.told != nil {
		p.net.t.Fatalf("place %d was told twice", p.number)
	}
	for _, q := range p.net.places {
		if len(q.joined) < len(q.own) {
			p.net.t.Fatalf("place %d was told that all have joined, and those of %d have not", p.number, q.number)
		}
	}
	p.told = &l
}

func (p *netPlace) Card(to, of int, b []byte) {
	if !p.asked[[2]int{to, of}] || p.got[[2]int{to, of}] != "" {
		p.net.t.Fatalf("place %d: rank %d got a card of %d that it did not ask for, or twice", p.number, to, of)
	}
	p.got[[2]int{to, of}] = string(b)
}

// cut ends a place's link to its parent.
func (n *net) cut(place int) {
	p := n.places[place]
	if p.moved || p.parent == 0 {
		return
	}
	p.moved = true
	delete(n.links, [2]int{place, p.parent})
	delete(n.links, [2]int{p.parent, place})
	p.put(0, true, netWord{orphan: true})
	p.Moved()
	p.Flush()
}

// deliver delivers one word of one link.
func (n *net) deliver(key [2]int) {
	w := n.links[key][0]
	if n.links[key] = n.links[key][1:]; len(n.links[key]) == 0 {
		delete(n.links, key)
	}
	from, to, spare := key[0], key[1], false
	if to >= len(n.places) {
		to, spare = to-len(n.places), true
	}
	p := n.places[to]
	switch {
	case w.orphan:
		p.Adopt(from)
		p.put(n.places[from].parent, true, netWord{drop: from})
	case w.drop > 0:
		p.Drop(w.drop)
	default:
		at := from
		if from == p.parent && to > 0 {
			at = Parent
			if spare && p.parent != 0 {
				at = Root
			}
		} else if from == 0 {
			at = Root
		}
		if err := p.Hear(at, w.word); err != nil {
			n.t.Fatalf("place %d hears from %d: %v", to, from, err)
		}
	}
	p.Flush()
}

// TestExchange: whatever the tree, the order of events and the links that end, nobody is told before all have joined, all
// are told the same, and every question gets its answer.
func TestExchange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := &net{t: t, links: map[[2]int][]netWord{}}
		count := rapid.IntRange(1, 9).Draw(t, "places")
		branches := make([][]int, count)
		for i := range count {
			p := &netPlace{net: n, number: i, parent: -1, got: map[[2]int]string{}, asked: map[[2]int]bool{}}
			if i > 0 {
				p.parent = rapid.IntRange(0, i-1).Draw(t, "parent")
				branches[p.parent] = append(branches[p.parent], i)
			}
			for range rapid.IntRange(min(i, 1), 3).Draw(t, "ranks") {
				p.own = append(p.own, n.ranks)
				n.ranks++
			}
			n.places = append(n.places, p)
		}
		if n.ranks == 0 {
			t.Skip("nobody is there")
		}
		want := Lack{}
		var events []func()
		for i, p := range n.places {
			p.Exchange = NewExchange(n.ranks, len(p.own), branches[i], i == 0, p)
			for _, rank := range p.own {
				lacks := ""
				if rank%2 == 1 {
					lacks = fmt.Sprint("it lacks ", rank)
					want.add(Lack{1, rank, lacks})
				}
				events = append(events, func() { p.Join(rank, fmt.Append(nil, "card ", rank), lacks); p.Flush() })
			}
			if i > 0 && rapid.IntRange(0, 3).Draw(t, "cut") == 0 {
				events = append(events, func() { n.cut(i) })
			}
		}
		ask := 2 * n.ranks
		for len(events) > 0 || len(n.links) > 0 || ask > 0 {
			var keys [][2]int
			for k := range n.links {
				keys = append(keys, k)
			}
			slices.SortFunc(keys, func(a, b [2]int) int { return slices.Compare(a[:], b[:]) })
			var told []*netPlace
			for _, p := range n.places {
				if p.told != nil && len(p.own) > 0 && ask > 0 {
					told = append(told, p)
				}
			}
			next := rapid.IntRange(0, len(events)+len(keys)+len(told)-1).Draw(t, "next")
			switch {
			case next < len(events):
				e := events[next]
				events = slices.Delete(events, next, next+1)
				e()
			case next < len(events)+len(keys):
				n.deliver(keys[next-len(events)])
			default:
				p := told[next-len(events)-len(keys)]
				q := [2]int{rapid.SampledFrom(p.own).Draw(t, "rank"), rapid.IntRange(0, n.ranks-1).Draw(t, "of")}
				ask--
				if !p.asked[q] {
					p.asked[q] = true
					p.Ask(q[0], q[1])
					p.Flush()
				}
			}
		}
		for i, p := range n.places {
			if p.told == nil || p.told.First != want.First || p.told.Text != want.Text || p.told.Ranks < want.Ranks || p.told.Ranks > n.ranks || *p.told != *n.places[0].told {
				t.Fatalf("place %d was told %+v, want %+v", i, p.told, want)
			}
			for q := range p.asked {
				if p.got[q] != fmt.Sprint("card ", q[1]) {
					t.Fatalf("place %d: rank %d got %q for the card of %d", i, q[0], p.got[q], q[1])
				}
			}
		}
	})
}
