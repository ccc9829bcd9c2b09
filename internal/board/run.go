package board

import (
	"fmt"
	"math"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/cacheline"
	"github.com/weft-hpc/weft/internal/wire"
)

// state is how far a run has come.
type state uint8

const (
	queued state = iota // behind the run before it
	before              // waits for the room of its post
	taking              // has posted; waits for what it takes
	after               // is done; waits for those that touch its memory
	over
)

// Run is one rank's part in one collective. It may be used again when it is over.
type Run struct {
	b      *Board
	kind   collective.Kind
	args   *collective.Args
	sig    *wire.Signature
	number uint64

	state    state
	longest  int  // payload of all ranks
	messages bool // see Messages
	shared   bool // something of this rank's memory is open to peers

	source, target []byte // what this rank opens: its own memory or the bounce buffers

	// The wait in progress: for ranks at to end-1 to reach need.
	of       counter
	at, end  int
	need     uint64
	low      uint64 // of the counters that have
	quieting bool
}

// counter is what a run waits for.
type counter uint8

const (
	words counter = iota // of the number
	endeds
	freeds
)

// Start makes r this rank's part in its next collective. Args are those that the algorithms of package
// collective take, and correct. They and the signature are r's until it is over. One goroutine at a time calls it.
func (b *Board) Start(r *Run, kind collective.Kind, args *collective.Args, sig *wire.Signature) {
	// One after the other: a Run made elsewhere and copied here costs as much as all the rest.
	b.started++
	r.b, r.kind, r.args, r.sig, r.number = b, kind, args, sig, b.started
	r.state, r.messages, r.shared, r.quieting = queued, false, false, false
	r.at, r.end = 0, 0
	r.longest = b.Longest(kind, len(args.Send), len(args.Recv))
}

// Messages tells, when a run is over, that it has done nothing, on no rank: the memory of some rank is out of
// reach of the others, and the collective has to go by messages.
func (r *Run) Messages() bool { return r.messages }

// Next goes on until the run is over, which it then reports, or has to wait until Met. An error is a
// MismatchError, or of a peer's region. After an error, or when the run is not to go on, Quit.
func (r *Run) Next() (isOver bool, err error) {
	b := r.b
	for {
		switch r.state {
		case queued:
			if b.ended.Load() != r.number-1 {
				return false, nil
			}
			r.awaitRoom()
			r.state = before
		case before:
			if r.at < r.end {
				if r.arrived(); r.at < r.end {
					return false, nil
				}
				r.noteRoom()
				r.awaitRoom()
				continue
			}
			r.post()
			first, end := r.takes()
			r.await(first, end, posted)
			r.state = taking
		case taking:
			if err := r.arrivedAlike(); err != nil || r.at < r.end {
				return false, err
			}
			switch {
			case !r.long():
				if r.takeShort(); !r.stillHere() {
					return false, nil
				}
				return r.finish()
			case r.unreachable():
				r.messages = true
				r.store(done) // for those that have quit
				return r.finish()
			}
			if err := r.takeLong(); err != nil {
				return false, err
			}
			r.store(done)
			r.awaitDone()
			r.state = after
		case after:
			if r.arrived(); r.at < r.end {
				return false, nil
			}
			r.copyOut()
			return r.finish()
		case over:
			return true, nil
		}
	}
}

// finish ends the run, and begins the turn of the next one.
func (r *Run) finish() (isOver bool, err error) {
	b := r.b
	if r.number%period == 0 || r.medium() {
		if err := r.release(); err != nil {
			return false, err
		}
	}
	if r.state = over; r.shared {
		r.source, r.target = nil, nil
	}
	cacheline.Publish(&b.ended, r.number)
	return true, nil
}

// release lets peers write over what this rank has read, now and then.
func (r *Run) release() error {
	b := r.b
	own := &b.slots[b.rank]
	if r.number%period == 0 {
		// Of each two ranks one sees the other's post here, before either lets go of it.
		if err := b.compareAll(r.number); err != nil {
			return err
		}
		own.ended.Store(r.number)
	}
	if r.medium() {
		own.freed.Store(r.number)
	}
	b.nudge()
	return nil
}

// medium tells whether some rank's payload is in an area, long whether memory is opened instead.
func (r *Run) medium() bool { return small < r.longest && r.longest <= Short }
func (r *Run) long() bool   { return r.longest > Short }

// awaitRoom begins the wait for the room of the post, if there is not enough yet.
func (r *Run) awaitRoom() {
	b := r.b
	r.at, r.end = 0, 0
	switch {
	case b.allEnded+depth < r.number:
		r.of, r.end, r.need, r.low = endeds, b.size, r.number-depth, math.MaxUint64
	case r.medium() && b.allFreed < b.usedBy[b.nextArea]:
		r.of, r.end, r.need, r.low = freeds, b.size, b.usedBy[b.nextArea], math.MaxUint64
	}
}

// noteRoom ends such a wait.
func (r *Run) noteRoom() {
	if r.of == endeds {
		r.b.allEnded = r.low
	} else {
		r.b.allFreed = r.low
	}
}

// await begins a wait for words.
func (r *Run) await(first, end int, phase uint64) {
	r.of, r.at, r.end, r.need = words, first, end, r.number<<phaseBits|phase
}

// arrived moves the wait on to the first rank that is not there yet.
func (r *Run) arrived() {
	for ; r.at < r.end && r.reached(); r.at++ {
	}
}

// arrivedAlike is arrived, and compares the calls of those that are there with this rank's.
func (r *Run) arrivedAlike() error {
	b := r.b
	for ; r.at < r.end; r.at++ {
		if r.at == b.rank {
			continue
		}
		if !r.reached() {
			break
		}
		if s := &b.slots[r.at]; s.posts[r.number%depth].hash != b.hash {
			if err := b.compare(r.at, r.number); err != nil {
				return err
			}
			if !s.met {
				break
			}
		}
	}
	return nil
}

// reached tells whether the rank that the run waits for has come to what it needs, and not to quit.
func (r *Run) reached() bool {
	s := &r.b.slots[r.at]
	if !s.met && !r.b.here(r.at) {
		return false
	}
	switch r.of {
	case words:
		w := s.posts[r.number%depth].word.Load()
		return w >= r.need && w != r.number<<phaseBits|quit
	case endeds:
		return r.counted(s.ended.Load())
	}
	return r.counted(s.freed.Load())
}

func (r *Run) counted(n uint64) bool {
	if n < r.need || !r.b.here(r.at) {
		return false
	}
	r.low = min(r.low, n)
	return true
}

// Met tells whether Next would go on.
func (r *Run) Met() bool {
	switch {
	case r.quieting:
		return r.Quiet()
	case r.state == queued:
		return r.b.ended.Load() == r.number-1
	case r.state == over || r.at >= r.end:
		return true
	}
	return r.reached()
}

// Missing returns a rank that the run waits for.
func (r *Run) Missing() int {
	if r.state == queued {
		return r.b.rank
	}
	return min(r.at, r.b.size-1)
}

// store publishes a phase, and wakes who waits for it.
func (r *Run) store(phase uint64) {
	b := r.b
	b.slots[b.rank].posts[r.number%depth].word.Store(r.number<<phaseBits | phase)
	b.nudge()
}

// nudge wakes who waits for what this rank has stored.
func (b *Board) nudge() {
	for i := range b.peers {
		if p := &b.peers[i]; p.asleep.Load() != 0 {
			b.mem.Nudge(p.rank)
		}
	}
}

// Quit ends a run that is not over: its communicator is of no use any more. Then the caller has the
// others told so, and waits until Quiet: before that, peers may touch what the run was given.
func (r *Run) Quit() {
	if r.state == taking || r.state == after {
		r.store(quit)
	}
	r.quieting, r.at = true, 0
	if !r.shared {
		r.at = r.b.size
	}
}

// Failed tells whether the run has Quit.
func (r *Run) Failed() bool { return r.quieting }

// Forget has a run that has Quit not wait for Missing, which is dead.
func (r *Run) Forget() { r.at++ }

// Quiet tells, after Quit, whether no peer touches this rank's memory any more. If not, it waits for Missing.
func (r *Run) Quiet() bool {
	for ; r.at < r.b.size; r.at++ {
		if r.at != r.b.rank && r.touches(r.at) {
			return false
		}
	}
	return true
}

// touches tells whether a peer may be at work on this rank's memory. It is not if it called something else: it
// compares before it touches anything, and what it called may be over for it without another word.
func (r *Run) touches(rank int) bool {
	s := &r.b.slots[rank]
	if s.posts[r.number%depth].word.Load() != r.number<<phaseBits|posted || s.posts[r.number%depth].hash != r.b.hash {
		return false
	}
	return s.incarnation.Load() == r.b.incarnation
}

// takes returns whose posts the run needs: ranks first to end-1.
func (r *Run) takes() (first, end int) {
	size, rank, root := r.b.size, r.b.rank, r.args.Root
	switch r.kind {
	case collective.KindBcast, collective.KindScatter:
		switch {
		case rank != root:
			return root, root + 1
		case r.helps():
			return 1 - root, 2 - root
		}
		return 0, 0
	case collective.KindGather:
		switch {
		case rank != root && !r.long():
			return 0, 0
		case rank != root:
			return root, root + 1
		case r.long(): // the others write here
			return 0, 0
		}
	case collective.KindReduce:
		if rank != root && !r.long() {
			return 0, 0
		}
	case collective.KindScan:
		if !r.long() {
			return 0, rank + 1
		}
	case collective.KindExscan:
		if !r.long() {
			return 0, rank
		}
	}
	return 0, size
}

// stillHere tells whether the run took nothing but what was posted for it: nobody has given the communicator up
// meanwhile, and written over its post in the next one. If somebody has, the run waits for that rank: who waits hears why.
func (r *Run) stillHere() bool {
	first, end := r.takes()
	for q := first; q < end; q++ {
		if !r.b.here(q) {
			r.at, r.end = q, end
			return false
		}
	}
	return true
}

// helps says that the root of a broadcast copies a half itself: there is one other rank.
func (r *Run) helps() bool {
	return r.kind == collective.KindBcast && r.b.size == 2 && len(r.args.Recv) >= helpFrom
}

// awaitDone begins the wait for those that touch this rank's memory.
func (r *Run) awaitDone() {
	end := r.b.size
	switch r.kind {
	case collective.KindBcast, collective.KindScatter, collective.KindGather:
		if r.b.rank != r.args.Root && !r.helps() {
			end = 0
		}
	}
	r.await(0, end, done)
}

// Longest returns the longest payload that any rank posts in a collective with such buffers; all ranks come
// to the same. What is longer than Short is not posted, but opened.
func (b *Board) Longest(kind collective.Kind, send, recv int) int {
	switch kind {
	case collective.KindBarrier:
		return 0
	case collective.KindBcast:
		return recv
	case collective.KindScatter:
		return recv * b.size
	}
	return send
}

// post writes this rank's post.
func (r *Run) post() {
	b, a := r.b, r.args
	own := &b.slots[b.rank]
	p := own.posts[r.number%depth]
	b.hash = p.sign(r.sig, b.hash)
	p.flags = 0
	if r.long() {
		p.flags = r.open(p)
	} else {
		payload := a.Send
		switch {
		case (r.kind == collective.KindBcast || r.kind == collective.KindScatter) && b.rank != a.Root:
			payload = nil
		case r.kind == collective.KindBcast:
			payload = a.Recv
		}
		dst := p.payload[:]
		if r.medium() && len(payload) > 0 {
			p.flags = uint64(b.nextArea) * secondArea
			dst = own.areas[b.nextArea]
			b.usedBy[b.nextArea] = r.number
			b.nextArea ^= 1
		}
		copy(dst, payload)
	}
	r.store(posted)
}

// unreachable tells whether some rank's post says that its memory is out of reach.
func (r *Run) unreachable() bool {
	b := r.b
	first, end := r.takes()
	if r.kind == collective.KindGather || r.kind == collective.KindBcast || r.kind == collective.KindScatter {
		first, end = r.args.Root, r.args.Root+1
	}
	for q := first; q < end; q++ {
		if b.slots[q].posts[r.number%depth].flags&outOfReach != 0 {
			return true
		}
	}
	return false
}

// view maps what a rank opened: n bytes.
func (r *Run) view(rank, at, n int) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	mem, err := r.b.mem.Map(rank, r.b.slots[rank].posts[r.number%depth].region(at), n)
	if err != nil {
		return nil, fmt.Errorf("board: memory of rank %d: %w", rank, err)
	}
	return mem, nil
}
