package collective

// StepKind says what a step of a Schedule does.
type StepKind uint8

// The kinds of steps.
const (
	StepSend  StepKind = 1 + iota // start to send A to Peer
	StepRecv                      // start to receive A from Peer
	StepWait                      // wait for all that was started
	StepCopy                      // copy B to A
	StepLeft                      // combine: A = A op B
	StepRight                     // combine: A = B op A
	StepFold                      // combine: A = all that lie in B, one after the other
	StepShare                     // do a phase inside the node over shared memory, and skip the next Else steps; or nothing
)

// Step is one entry of a Schedule.
type Step struct {
	Kind  StepKind
	Share Kind  // of StepShare: what the ranks of the node do, from A to B
	Phase Phase // of StepShare
	Peer  int32 // of StepShare: the root's place on the node
	A, B  []byte
	Else  int // of StepShare: how many steps do the same by messages
}

// Schedule is an algorithm written down for one rank and one set of buffers: what
// it sends, receives, copies and combines, in order. Whoever has it can carry
// the operation out in pieces, without a goroutine that waits in between.
//
// A Schedule may be recorded again and again, and then reuses its memory: its
// steps, and the working memory of its algorithm, which it owns. The zero
// value is ready for use. It must not be recorded while it is carried out.
type Schedule struct {
	rank, size  int
	steps       []Step
	op          Op
	last        recorded
	scratch     [scratchSlots][]byte
	left, right func(inout, in []byte) // write down what the algorithm combines
}

// scratchSlots is the number of slots of Peer.Scratch.
const scratchSlots = 4

// recorded is what a schedule depends on, but for blocks and neighbours.
type recorded struct {
	alg         *Algorithm
	rank, size  int
	root, elem  int
	commutative bool
	nodes       *Topology
	send, recv  []byte
}

// Record writes down a call of alg. The buffers in a are used when the schedule is
// carried out, and not before. It costs little when the call is the last one again.
func (s *Schedule) Record(alg *Algorithm, rank, size int, a Args) error {
	call := recorded{alg, rank, size, a.Root, a.Op.Size, a.Op.Commutative, a.Nodes, a.Send, a.Recv}
	plain := a.SendBlocks == nil && a.RecvBlocks == nil && a.Neighbors == nil && (a.Op.Left == nil) == (a.Op.Right == nil)
	if plain && s.last.equals(&call) {
		s.op = a.Op
		return nil
	}
	s.last = recorded{} // unless all goes well
	if s.left == nil {
		r := (*recorder)(s)
		s.left = func(inout, in []byte) { r.add(StepLeft, inout, in, 0) }
		s.right = func(inout, in []byte) { r.add(StepRight, inout, in, 0) }
	}
	clear(s.steps) // so that no old buffer stays reachable
	s.rank, s.size, s.steps, s.op = rank, size, s.steps[:0], a.Op
	if a.Op.Left != nil && a.Op.Right != nil {
		a.Op.Left, a.Op.Right = s.left, s.right
	}
	err := alg.Run((*recorder)(s), a)
	if err == nil && plain && (!alg.Kind.Reduces() || a.Op.Left != nil) {
		s.last = call
	}
	return err
}

func (r *recorded) equals(o *recorded) bool {
	return r.alg == o.alg && r.rank == o.rank && r.size == o.size && r.root == o.root && r.elem == o.elem && r.commutative == o.commutative && r.nodes == o.nodes &&
		same(r.send, o.send) && same(r.recv, o.recv)
}

// Steps returns the steps, which must not be changed.
func (s *Schedule) Steps() []Step { return s.steps }

// Shared returns what a StepShare does.
func (s *Schedule) Shared(step *Step) Args {
	return Args{Send: step.A, Recv: step.B, Root: int(step.Peer), Op: s.op}
}

// Local carries out a step that needs no peer: a copy or a combination.
func (s *Schedule) Local(step *Step) {
	switch step.Kind {
	case StepCopy:
		pieces(step.A, step.B)
	case StepLeft:
		s.op.Left(step.A, step.B)
	case StepRight:
		s.op.Right(step.A, step.B)
	case StepFold:
		s.op.Whole(step.A, step.B)
	}
}

// Play carries the schedule out over p.
func (s *Schedule) Play(p Peer) error {
	for i := range s.steps {
		switch step := &s.steps[i]; step.Kind {
		case StepSend:
			p.PostSend(step.A, int(step.Peer))
		case StepRecv:
			p.PostRecv(step.A, int(step.Peer))
		case StepWait:
			if err := p.Finish(); err != nil {
				return err
			}
		default:
			s.Local(step)
		}
	}
	return nil
}

// recorder is a Schedule as the Peer of the algorithm that is written down.
type recorder Schedule

var _ Peer = (*recorder)(nil)

func (r *recorder) add(kind StepKind, a, b []byte, peer int) {
	r.steps = append(r.steps, Step{Kind: kind, Peer: int32(peer), A: a, B: b})
}

func (r *recorder) Rank() int { return r.rank }
func (r *recorder) Size() int { return r.size }

func (r *recorder) Send(buf []byte, dst int) error {
	r.PostSend(buf, dst)
	return r.Finish()
}

func (r *recorder) Recv(buf []byte, src int) error {
	r.PostRecv(buf, src)
	return r.Finish()
}

func (r *recorder) Sendrecv(send []byte, dst int, recv []byte, src int) error {
	r.PostRecv(recv, src)
	r.PostSend(send, dst)
	return r.Finish()
}

func (r *recorder) PostSend(buf []byte, dst int) { r.add(StepSend, buf, nil, dst) }
func (r *recorder) PostRecv(buf []byte, src int) { r.add(StepRecv, buf, nil, src) }

func (r *recorder) Finish() error {
	r.add(StepWait, nil, nil, 0)
	return nil
}

func (r *recorder) Scratch(slot, n int) []byte {
	if cap(r.scratch[slot]) < n {
		r.scratch[slot] = make([]byte, n)
	}
	return r.scratch[slot][:n]
}
