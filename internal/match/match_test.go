package match

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// model is MPI matching as the standard words it: two lists, searched from the
// front.
type model struct {
	recvs, msgs []*item
}

// item is a receive or a message, in the model and in the queue.
type item struct {
	node Node[*item]
	name string
}

func (i *item) String() string {
	return fmt.Sprintf("%s(src %d, tag %d)", i.name, i.node.Src, i.node.Tag)
}

func matches(r, m *item) bool {
	return (r.node.Src == Any || r.node.Src == m.node.Src) && (r.node.Tag == Any || r.node.Tag == m.node.Tag)
}

// take removes and returns the first that fits, or nil.
func take(list *[]*item, fits func(*item) bool) *item {
	i := slices.IndexFunc(*list, fits)
	if i < 0 {
		return nil
	}
	it := (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return it
}

func owner(n *Node[*item]) *item {
	if n == nil {
		return nil
	}
	return n.Owner
}

// TestModel compares a queue with the model over random posts, arrivals,
// withdrawals and probes. Nodes are used again as soon as they are free.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{1, 2, 3, 5, 7, 8, 13}).Draw(t, "size")
		rank := rapid.Int32Range(0, int32(size)-1)
		rankOrAny := rapid.Int32Range(Any, int32(size)-1)
		tag := rapid.Int32Range(0, 2)
		tagOrAny := rapid.Int32Range(Any, 2)

		q := New[*item, *item](size)
		var m model
		var pool []*item
		made := 0
		fresh := func(kind string, src, tag int32) *item {
			var it *item
			if n := len(pool); n > 0 {
				it, pool = pool[n-1], pool[:n-1]
			} else {
				it = new(item)
			}
			made++
			it.name = fmt.Sprintf("%s%d", kind, made)
			it.node.Src, it.node.Tag, it.node.Owner = src, tag, it
			return it
		}
		free := func(items ...*item) {
			for _, it := range items {
				if it.node.Queued() {
					t.Fatalf("%v says that it is queued, and is not", it)
				}
				pool = append(pool, it)
			}
		}
		queuedOnly := func(it *item) {
			if !it.node.Queued() {
				t.Fatalf("%v says that it is not queued, and is", it)
			}
		}

		t.Repeat(map[string]func(*rapid.T){
			"post": func(t *rapid.T) {
				r := fresh("recv", rankOrAny.Draw(t, "src"), tagOrAny.Draw(t, "tag"))
				want := take(&m.msgs, func(x *item) bool { return matches(r, x) })
				got := owner(q.Post(&r.node))
				if got != want {
					t.Fatalf("posting %v matched %v, want %v", r, got, want)
				}
				if got != nil {
					free(got, r)
					return
				}
				queuedOnly(r)
				m.recvs = append(m.recvs, r)
			},
			"arrive": func(t *rapid.T) {
				x := fresh("msg", rank.Draw(t, "src"), tag.Draw(t, "tag"))
				want := take(&m.recvs, func(r *item) bool { return matches(r, x) })
				got := owner(q.Arrive(x.node.Src, x.node.Tag))
				if got != want {
					t.Fatalf("arriving %v matched %v, want %v", x, got, want)
				}
				if got != nil {
					free(got, x)
					return
				}
				q.Keep(&x.node)
				queuedOnly(x)
				m.msgs = append(m.msgs, x)
			},
			"withdraw a receive": func(t *rapid.T) {
				if len(m.recvs) == 0 {
					t.Skip("none is posted")
				}
				r := rapid.SampledFrom(m.recvs).Draw(t, "receive")
				take(&m.recvs, func(x *item) bool { return x == r })
				q.RemoveReceive(&r.node)
				free(r)
			},
			"withdraw a message": func(t *rapid.T) {
				if len(m.msgs) == 0 {
					t.Skip("none is waiting")
				}
				x := rapid.SampledFrom(m.msgs).Draw(t, "message")
				take(&m.msgs, func(y *item) bool { return y == x })
				q.RemoveMessage(&x.node)
				free(x)
			},
			"withdraw the receives from a source": func(t *rapid.T) {
				src := rankOrAny.Draw(t, "src")
				odd := false
				var want, got []*item
				for _, r := range m.recvs {
					if r.node.Src == src {
						want = append(want, r)
					}
				}
				q.EachReceive(src, func(n *Node[*item]) {
					got = append(got, n.Owner)
					if odd = !odd; odd {
						q.RemoveReceive(n)
						take(&m.recvs, func(r *item) bool { return r == n.Owner })
						free(n.Owner)
					}
				})
				if !slices.Equal(got, want) {
					t.Fatalf("EachReceive(%d) visited %v, want %v", src, got, want)
				}
			},
			"drop messages": func(t *rapid.T) {
				want := slices.Clone(m.msgs)
				odd := false
				var got []*item
				q.EachMessage(func(n *Node[*item]) {
					got = append(got, n.Owner)
					if odd = !odd; odd {
						q.RemoveMessage(n)
						take(&m.msgs, func(x *item) bool { return x == n.Owner })
						free(n.Owner)
					}
				})
				if !slices.Equal(got, want) {
					t.Fatalf("EachMessage visited %v, want %v", got, want)
				}
			},
			"probe": func(t *rapid.T) {
				p := &item{name: "probe"}
				p.node.Src, p.node.Tag = rankOrAny.Draw(t, "src"), tagOrAny.Draw(t, "tag")
				var want *item
				if i := slices.IndexFunc(m.msgs, func(x *item) bool { return matches(p, x) }); i >= 0 {
					want = m.msgs[i]
				}
				if got := owner(q.Find(p.node.Src, p.node.Tag)); got != want {
					t.Fatalf("%v found %v, want %v", p, got, want)
				}
			},
			"": func(t *rapid.T) {
				if q.Receives() != len(m.recvs) || q.Messages() != len(m.msgs) {
					t.Fatalf("the queue counts %d receives and %d messages, want %d and %d",
						q.Receives(), q.Messages(), len(m.recvs), len(m.msgs))
				}
				for _, r := range m.recvs {
					for _, x := range m.msgs {
						if matches(r, x) {
							t.Fatalf("%v and %v both wait", r, x)
						}
					}
				}
			},
		})
	})
}

// TestPostingOrder spells out the rule that is easiest to get wrong: between a
// receive from one source and one from any, the one posted first matches.
func TestPostingOrder(t *testing.T) {
	for _, srcs := range [][2]int32{{Any, 1}, {1, Any}, {Any, Any}, {1, 1}} {
		for _, tags := range [][2]int32{{Any, 4}, {4, Any}, {Any, Any}, {4, 4}} {
			q := New[*item, *item](2)
			var r [2]item
			for i := range r {
				r[i].node = Node[*item]{Src: srcs[i], Tag: tags[i], Owner: &r[i]}
				q.Post(&r[i].node)
			}
			if q.Arrive(0, 4) != nil && srcs[0] != Any && srcs[1] != Any {
				t.Errorf("sources %v: a message from 0 matched", srcs)
			}
			q = New[*item, *item](2)
			for i := range r {
				r[i].node = Node[*item]{Src: srcs[i], Tag: tags[i], Owner: &r[i]}
				q.Post(&r[i].node)
			}
			for i := range r {
				if got := owner(q.Arrive(1, 4)); got != &r[i] {
					t.Errorf("sources %v, tags %v: message %d did not match receive %d", srcs, tags, i, i)
				}
			}
			if q.Arrive(1, 4) != nil {
				t.Errorf("sources %v, tags %v: a third message matched", srcs, tags)
			}
		}
	}
}

// TestOvertaking checks that a receive skips messages it does not match, and
// that those keep their order.
func TestOvertaking(t *testing.T) {
	q := New[*item, *item](3)
	msgs := make([]item, 6)
	for i := range msgs {
		msgs[i].node = Node[*item]{Src: int32(i % 3), Tag: int32(i / 3), Owner: &msgs[i]}
		q.Keep(&msgs[i].node)
	}
	for _, step := range []struct {
		src, tag int32
		want     int
	}{{2, 1, 5}, {Any, 1, 3}, {1, Any, 1}, {Any, Any, 0}, {Any, Any, 2}, {1, Any, 4}} {
		r := Node[*item]{Src: step.src, Tag: step.tag}
		if got := owner(q.Post(&r)); got != &msgs[step.want] {
			t.Fatalf("receive from %d with tag %d did not match message %d", step.src, step.tag, step.want)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	q := New[*item, *item](3)
	var r, m item
	r.node.Owner, m.node.Owner = &r, &m
	r.node.Src, m.node.Src = 1, 1
	q.Keep(&m.node) // the first use makes the lists
	q.Post(&r.node)
	if n := testing.AllocsPerRun(100, func() {
		for _, src := range []int32{1, Any} {
			r.node.Src = src
			q.Post(&r.node)
			q.Arrive(1, 0)
			q.Arrive(1, 0)
			q.Keep(&m.node)
			q.Post(&r.node)
		}
	}); n != 0 {
		t.Errorf("%v allocations for each pair", n)
	}
	if q.Receives() != 0 || q.Messages() != 0 {
		t.Errorf("%d receives and %d messages are left", q.Receives(), q.Messages())
	}
}
