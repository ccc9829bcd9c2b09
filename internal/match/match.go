// Package match pairs receives with messages the way MPI does (MPI-4.1 section
// 3.5): for each communicator, source and tag, messages match in the order they
// were sent, and receives in the order they were posted; a receive may leave
// source or tag open.
//
// A Queue belongs to one context of one communicator. It links nodes that the
// caller owns, so it allocates nothing per receive or message. It is not safe
// for concurrent use.
package match

// Any as a receive's source or tag matches every message.
const Any = -1

// Node is a receive or a message. Its owner sets Src, Tag and Owner before
// handing it to a Queue and does not change them while it is Queued.
type Node[T any] struct {
	Src, Tag int32 // sender's rank in the communicator; Any only in receives
	Owner    T

	queued bool
	stamp  uint64   // order of posting, to choose between two lists
	source links[T] // in the list of one source, or of receives from any
	global links[T] // messages only: in the list of all, by arrival
}

// Queued reports whether n waits in a Queue.
func (n *Node[T]) Queued() bool { return n.queued }

type links[T any] struct{ prev, next *Node[T] }

// list is a doubly linked list through one of a node's two pairs of links.
type list[T any] struct{ head, tail *Node[T] }

func (l *list[T]) push(n *Node[T]) {
	n.source = links[T]{prev: l.tail}
	if l.tail != nil {
		l.tail.source.next = n
	} else {
		l.head = n
	}
	l.tail = n
}

func (l *list[T]) remove(n *Node[T]) {
	if n.source.prev != nil {
		n.source.prev.source.next = n.source.next
	} else {
		l.head = n.source.next
	}
	if n.source.next != nil {
		n.source.next.source.prev = n.source.prev
	} else {
		l.tail = n.source.prev
	}
	n.source = links[T]{}
}

func (l *list[T]) pushGlobal(n *Node[T]) {
	n.global = links[T]{prev: l.tail}
	if l.tail != nil {
		l.tail.global.next = n
	} else {
		l.head = n
	}
	l.tail = n
}

func (l *list[T]) removeGlobal(n *Node[T]) {
	if n.global.prev != nil {
		n.global.prev.global.next = n.global.next
	} else {
		l.head = n.global.next
	}
	if n.global.next != nil {
		n.global.next.global.prev = n.global.prev
	} else {
		l.tail = n.global.prev
	}
	n.global = links[T]{}
}

// Queue holds the posted receives and the unexpected messages of one context.
// R owns receives, M owns messages. At no time does it hold a receive and a
// message that match each other.
type Queue[R, M any] struct {
	size      int
	sources   []source[R, M] // by rank; made when first needed
	recvAny   list[R]        // receives from any source, in posting order
	unexp     list[M]        // all unexpected messages, in arrival order
	stamp     uint64
	nRecv     int
	nMessages int
}

type source[R, M any] struct {
	recvs list[R]
	msgs  list[M]
}

// New returns an empty queue for a communicator of size ranks.
func New[R, M any](size int) *Queue[R, M] { return &Queue[R, M]{size: size} }

// Receives and Messages return how many of each are waiting.
func (q *Queue[R, M]) Receives() int { return q.nRecv }

// Messages returns the number of unexpected messages.
func (q *Queue[R, M]) Messages() int { return q.nMessages }

func (q *Queue[R, M]) source(rank int32) *source[R, M] {
	if q.sources == nil {
		q.sources = make([]source[R, M], q.size)
	}
	return &q.sources[rank]
}

// Post looks for the earliest unexpected message that r matches. When there is
// one, it is taken out of the queue and returned; otherwise r is queued.
func (q *Queue[R, M]) Post(r *Node[R]) *Node[M] {
	if m := q.Find(r.Src, r.Tag); m != nil {
		q.RemoveMessage(m)
		return m
	}
	q.stamp++
	r.stamp, r.queued = q.stamp, true
	q.nRecv++
	if r.Src == Any {
		q.recvAny.push(r)
	} else {
		q.source(r.Src).recvs.push(r)
	}
	return nil
}

// Arrive looks for the earliest posted receive that matches m. When there is
// one, it is taken out of the queue and returned, and m is not queued: the
// caller delivers it. Otherwise m is not queued either: the caller may have to
// copy it first, and then calls Keep.
func (q *Queue[R, M]) Arrive(src, tag int32) *Node[R] {
	if q.nRecv == 0 {
		return nil
	}
	var found *Node[R]
	for r := q.source(src).recvs.head; r != nil; r = r.source.next {
		if r.Tag == tag || r.Tag == Any {
			found = r
			break
		}
	}
	for r := q.recvAny.head; r != nil && (found == nil || r.stamp < found.stamp); r = r.source.next {
		if r.Tag == tag || r.Tag == Any {
			found = r
			break
		}
	}
	if found != nil {
		q.RemoveReceive(found)
	}
	return found
}

// Keep queues a message for which Arrive found no receive.
func (q *Queue[R, M]) Keep(m *Node[M]) {
	m.queued = true
	q.nMessages++
	q.source(m.Src).msgs.push(m)
	q.unexp.pushGlobal(m)
}

// Find returns the message that a receive with src and tag would match now, or
// nil. It stays in the queue.
func (q *Queue[R, M]) Find(src, tag int32) *Node[M] {
	if q.nMessages == 0 {
		return nil
	}
	if src == Any {
		for m := q.unexp.head; m != nil; m = m.global.next {
			if tag == Any || m.Tag == tag {
				return m
			}
		}
		return nil
	}
	for m := q.source(src).msgs.head; m != nil; m = m.source.next {
		if tag == Any || m.Tag == tag {
			return m
		}
	}
	return nil
}

// RemoveMessage takes m out of the queue.
func (q *Queue[R, M]) RemoveMessage(m *Node[M]) {
	q.source(m.Src).msgs.remove(m)
	q.unexp.removeGlobal(m)
	m.queued = false
	q.nMessages--
}

// RemoveReceive takes r out of the queue.
func (q *Queue[R, M]) RemoveReceive(r *Node[R]) {
	if r.Src == Any {
		q.recvAny.remove(r)
	} else {
		q.source(r.Src).recvs.remove(r)
	}
	r.queued = false
	q.nRecv--
}

// EachReceive calls f for the queued receives from src, or for those from any
// source when src is Any. f may remove its argument.
func (q *Queue[R, M]) EachReceive(src int32, f func(*Node[R])) {
	l := &q.recvAny
	if src != Any {
		if q.sources == nil {
			return
		}
		l = &q.sources[src].recvs
	}
	for r := l.head; r != nil; {
		next := r.source.next
		f(r)
		r = next
	}
}

// EachMessage calls f for all unexpected messages in arrival order. f may
// remove its argument.
func (q *Queue[R, M]) EachMessage(f func(*Node[M])) {
	for m := q.unexp.head; m != nil; {
		next := m.global.next
		f(m)
		m = next
	}
}
