package board

import (
	"fmt"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/wire"
)

// state is how far a run has come.
type state uint8

const (
	queued state = iota // behind the run before it
	before              // waits for all to have posted the number before
	taking              // has posted; waits for what it takes
	after               // is done; waits for those that touch its memory
	over
)

// Run is one rank's part in one collective. It may be used again when it is over.
type Run struct {
	b      *Board
	kind   collective.Kind
	args   collective.Args
	sig    wire.Signature
	number uint64

	state    state
	long     bool
	messages bool // see Messages
	shared   bool // something of this rank's memory is open to peers

	source, target []byte // what this rank opens: its own memory or the bounce buffers

	// The wait in progress: for the words of ranks at to end-1 to reach need.
	at, end  int
	need     uint64
	compares bool // signatures
	quieting bool
}

// Start makes r this rank's part in its next collective. Args are those that the algorithms of package
// collective take, and correct.
func (b *Board) Start(r *Run, kind collective.Kind, args *collective.Args, sig wire.Signature) {
	*r = Run{b: b, kind: kind, args: *args, sig: sig, number: b.started.Add(1)}
	r.long = b.Longest(kind, len(args.Send), len(args.Recv)) > Short
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
			if r.number > 1 {
				r.await(0, b.size, r.number-1, posted)
				r.compares = !b.compared
			}
			r.state = before
		case before:
			if err := r.arrived(&b.last); err != nil || r.at < r.end {
				return false, err
			}
			r.post()
			r.awaitPosts()
			r.state = taking
		case taking:
			if err := r.arrived(&r.sig); err != nil || r.at < r.end {
				return false, err
			}
			first, end := r.takes()
			b.compared = first == 0 && end == b.size
			switch {
			case !r.long:
				r.takeShort()
				r.finish()
				return true, nil
			case r.unreachable():
				r.messages = true
				r.finish()
				return true, nil
			}
			if err := r.takeLong(); err != nil {
				return false, err
			}
			r.store(done)
			r.awaitDone()
			r.state = after
		case after:
			if r.arrived(nil); r.at < r.end {
				return false, nil
			}
			r.copyOut()
			r.finish()
			return true, nil
		case over:
			return true, nil
		}
	}
}

// finish ends the run, and begins the turn of the next one.
func (r *Run) finish() {
	r.b.last = r.sig
	r.state = over
	r.source, r.target = nil, nil
	r.b.ended.Store(r.number)
}

// await begins a wait.
func (r *Run) await(first, end int, number uint64, phase uint64) {
	r.at, r.end, r.need = first, end, number<<phaseBits|phase
}

// arrived moves the wait on to the first rank that is not there yet, and compares the signatures of those
// that are with mine.
func (r *Run) arrived(mine *wire.Signature) error {
	parity := r.need >> phaseBits & 1
	for ; r.at < r.end; r.at++ {
		s := &r.b.slots[r.at]
		if !r.b.reached(s, r.need) {
			return nil
		}
		if r.compares && mine != nil {
			if theirs := signatureAt(s.posts[parity]); theirs != *mine {
				return &MismatchError{Rank: r.at, Mine: *mine, Theirs: theirs}
			}
		}
	}
	return nil
}

// reached tells whether a rank's word has come to need, and not to quit.
func (b *Board) reached(s *slot, need uint64) bool {
	if !s.met {
		if s.incarnation.Load() != b.incarnation {
			return false
		}
		s.met = true
	}
	w := s.words[need>>phaseBits&1].Load()
	return w >= need && !(w&phaseMask == quit && w>>phaseBits == need>>phaseBits)
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
	return r.b.reached(&r.b.slots[r.at], r.need)
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
	b.slots[b.rank].words[r.number&1].Store(r.number<<phaseBits | phase)
	for peer := range b.size {
		if peer != b.rank {
			b.mem.Nudge(peer)
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
	b := r.b
	for ; r.at < b.size; r.at++ {
		if r.at == b.rank {
			continue
		}
		s := &b.slots[r.at]
		if w := s.words[r.number&1].Load(); s.incarnation.Load() == b.incarnation && w == r.number<<phaseBits|posted {
			return false
		}
	}
	return true
}

// awaitPosts begins the wait for what the run takes.
func (r *Run) awaitPosts() {
	first, end := r.takes()
	r.await(first, end, r.number, posted)
	r.compares = true
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
		case rank != root && !r.long:
			return 0, 0
		case rank != root:
			return root, root + 1
		case r.long: // the others write here
			return 0, 0
		}
	case collective.KindReduce:
		if rank != root && !r.long {
			return 0, 0
		}
	case collective.KindScan:
		if !r.long {
			return 0, rank + 1
		}
	case collective.KindExscan:
		if !r.long {
			return 0, rank
		}
	}
	return 0, size
}

// helps says that the root of a broadcast copies a half itself: there is one other rank, and a core for each.
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
	r.await(0, end, r.number, done)
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
	b, a := r.b, &r.args
	post := b.slots[b.rank].posts[r.number&1]
	putSignature(post, &r.sig)
	flags := post[offFlags : offFlags+4]
	clear(flags)
	if r.long {
		flags[0] = r.open(post)
	} else {
		payload := a.Send
		switch {
		case (r.kind == collective.KindBcast || r.kind == collective.KindScatter) && b.rank != a.Root:
			payload = nil
		case r.kind == collective.KindBcast:
			payload = a.Recv
		}
		copy(post[offPayload:], payload)
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
		if b.slots[q].posts[r.number&1][offFlags]&outOfReach != 0 {
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
	mem, err := r.b.mem.Map(rank, regionAt(r.b.slots[rank].posts[r.number&1], at), n)
	if err != nil {
		return nil, fmt.Errorf("board: memory of rank %d: %w", rank, err)
	}
	return mem, nil
}
