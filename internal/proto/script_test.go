package proto

import (
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-hpc/weft/internal/match"
	"github.com/weft-hpc/weft/internal/wire"
)

var rewrite = flag.Bool("rewrite", false, "write the traces of the scripts in testdata anew")

// TestScripts runs testdata/*.txt. A script's lines are commands; the indented
// lines after each are what comes of it, which -rewrite writes anew. A line that
// begins with # is a comment. What every core still holds is printed at the end, and before the next world.
//
//	ranks 2 window 1024 eager 256 pull 512 [apart] [writes]   the world, not opened if apart; writes: to the receiver's memory
//	open 0 c 1/3 0,2         rank 0 opens c: index 1, generation 3, world ranks 0 and 2
//	close 0 c
//	a send 0->1 [ssend] tag 5 bytes 100 [type 7] [comm c] [coll] [sig 1/2/3] [region]
//	b recv 1<-0 tag 5 cap 50             source and tag may be any
//	c probe 1<-any tag any               or mprobe
//	d mrecv 1 c cap 50                   what c took
//	cancel a
//	deliver 0->1 [3]         so many frames, or all that are there
//	deliver all              until nothing is on its way; pulls too
//	pull [error]             carry out the first pull
//	begin, land, sent 0->1   the steps of delivering a DATA frame
//	again 0->1               deliver the last frame once more
//	lose 0->1                lose the first frame
//	forge 0->1 FIN id a bytes 3 src 0 tag 1 ctx 0/1 ...
//	down 0 1                 rank 0's transport has given rank 1 up
//	lost 0 1                 rank 0 hears that rank 1 is dead, its transport does not know
//	goodbye 0                to all
//	revoke 0 world because
//	collective 0 world 1/2/3 begin a collective with operation 1, number 2, count 3
//	remind 0                 that it waits
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := &script{t: t, ops: map[string]*scriptOp{}, comms: map[string]*Comm{}}
			for i, line := range strings.Split(string(want), "\n") {
				if strings.HasPrefix(line, "    ") || line == "" && s.out.Len() == 0 {
					continue
				}
				s.line = i + 1
				if strings.HasPrefix(line, "end") {
					break
				}
				s.out.WriteString(line + "\n")
				if line != "" && line[0] != '#' {
					s.run(strings.Fields(line))
				}
			}
			s.end()
			if *rewrite {
				if err := os.WriteFile(file, []byte(s.out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if d := cmp.Diff(string(want), s.out.String()); d != "" {
				t.Errorf("the trace differs (-want +got); if it is right, run go test -rewrite:\n%s", d)
			}
		})
	}
}

type script struct {
	t     *testing.T
	line  int
	out   strings.Builder
	net   *network
	ops   map[string]*scriptOp
	comms map[string]*Comm // by rank and name
}

type scriptOp struct {
	Op
	name string
	rank int
	done bool
}

func (s *script) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("line %d: %s", s.line, fmt.Sprintf(format, args...))
}

func (s *script) num(word string) int {
	n, err := strconv.Atoi(word)
	if err != nil {
		s.fail("%v", err)
	}
	return n
}

func (s *script) split(word, sep string) (a, b int) {
	x, y, ok := strings.Cut(word, sep)
	if !ok {
		s.fail("%s should hold %s", word, sep)
	}
	if y == "any" {
		return s.num(x), match.Any
	}
	return s.num(x), s.num(y)
}

func (s *script) sig(word string) wire.Signature {
	p := strings.Split(word, "/")
	return wire.Signature{Op: uint8(s.num(p[0])), Seq: uint32(s.num(p[1])), Count: uint64(s.num(p[2]))}
}

func (s *script) ctx(word string) uint32 {
	i, g := s.split(word, "/")
	return ContextID(i, uint16(g))
}

func (s *script) comm(rank int, name string) *Comm {
	m := s.comms[fmt.Sprint(rank, name)]
	if m == nil {
		s.fail("rank %d has no communicator %s", rank, name)
	}
	return m
}

// run carries out one command.
func (s *script) run(w []string) {
	if len(w) > 1 && slices.Contains([]string{"send", "ssend", "recv", "probe", "mprobe", "mrecv"}, w[1]) {
		s.post(w[0], w[1], w[2], w[3:])
		return
	}
	switch w[0] {
	case "ranks":
		s.start(w[1:])
	case "open":
		r := s.num(w[1])
		var members []int32
		for m := range strings.SplitSeq(w[4], ",") {
			members = append(members, int32(s.num(m)))
		}
		s.comms[fmt.Sprint(r, w[2])] = s.net.cores[r].Open(s.ctx(w[3]), members, slices.Index(members, int32(r)))
		s.net.act(r)
	case "close":
		r := s.num(w[1])
		if n := s.net.cores[r].Close(s.comm(r, w[2])); n > 0 {
			s.print(r, "not closed: %d operations", n)
		}
		s.net.act(r)
	case "cancel":
		op := s.ops[w[1]]
		if !s.net.cores[op.rank].Cancel(&op.Op) {
			s.print(op.rank, "%s is not done yet", op.name)
		}
		s.net.act(op.rank)
	case "pull":
		var err error
		if len(w) > 1 {
			err = errors.New(strings.Join(w[1:], " "))
		}
		s.net.pull(err)
	case "deliver", "begin", "land", "sent", "again", "lose", "forge":
		s.move(w)
	case "down":
		s.net.down(s.num(w[1]), s.num(w[2]), errors.New("connection reset"))
	case "lost":
		r := s.num(w[1])
		s.net.cores[r].Lost(s.num(w[2]), errors.New("killed by signal 9"))
		s.net.act(r)
	case "goodbye":
		r := s.num(w[1])
		for p := range s.net.cores {
			if p != r && s.net.cores[r].Gone(p) == nil {
				s.net.carryOut(r, &Action{Kind: SendFrame, Peer: int32(p), Header: wire.Header{Kind: wire.Goodbye}})
			}
		}
	case "revoke":
		r := s.num(w[1])
		reason := strings.Join(w[3:], " ")
		s.net.cores[r].Revoke(s.comm(r, w[2]), &RevokedError{By: int32(r), Reason: reason, Cause: ErrRevoked}, reason)
		s.net.act(r)
	case "collective":
		r := s.num(w[1])
		if err := s.net.cores[r].BeginCollective(s.comm(r, w[2]).Coll, s.sig(w[3])); err != nil {
			s.print(r, "%v", err)
		}
		s.net.act(r)
	case "remind":
		r := s.num(w[1])
		s.net.cores[r].Remind()
		s.net.act(r)
	default:
		s.fail("unknown command %s", w[0])
	}
}

// start makes the world.
func (s *script) start(w []string) {
	var window, eager, pull = 1024, 256, 512
	apart, writes := false, false
	for i := 1; i < len(w); i++ {
		switch w[i] {
		case "apart":
			apart = true
			continue
		case "writes":
			writes = true
			continue
		case "window":
			window = s.num(w[i+1])
		case "eager":
			eager = s.num(w[i+1])
		case "pull":
			pull = s.num(w[i+1])
		default:
			s.fail("unknown option %s", w[i])
		}
		i++
	}
	if s.net != nil {
		s.leftovers()
	}
	clear(s.ops)
	clear(s.comms)
	ranks := s.num(w[0])
	s.net = newNetwork(ranks, int64(window), eager, pull)
	s.net.writes = writes
	s.net.log = s.print
	s.net.done = s.finished
	var members []int32
	for r := range ranks {
		members = append(members, int32(r))
	}
	for r := range ranks {
		if !apart {
			s.comms[fmt.Sprint(r, "world")] = s.net.cores[r].Open(ContextID(0, 1), members, r)
		}
	}
}

func (s *script) print(rank int, format string, args ...any) {
	fmt.Fprintf(&s.out, "    %d: %s\n", rank, fmt.Sprintf(format, args...))
}

// post starts an operation.
func (s *script) post(name, verb, ends string, w []string) {
	op := &scriptOp{name: name}
	op.Owner, op.Type, op.Kind = op, 7, map[string]Kind{"send": Send, "ssend": Ssend, "recv": Recv, "mrecv": Recv, "probe": Probe, "mprobe": Mprobe}[verb]
	var peer int
	switch verb {
	case "send", "ssend":
		op.rank, peer = s.split(ends, "->")
	case "mrecv":
		op.rank = s.num(ends)
		op.Message = s.ops[w[0]].Message
		w = w[1:]
	default:
		op.rank, peer = s.split(ends, "<-")
	}
	op.Peer = int32(peer)
	comm, coll := "world", false
	for i := 0; i < len(w); i++ {
		switch w[i] {
		case "coll":
			coll = true
			continue
		case "region":
			op.HasRegion, op.Region.Key = true, crc32.ChecksumIEEE([]byte(name))%1000
			regions[op.Region.Key] = op.Buf
			continue
		case "tag":
			if op.Tag = match.Any; w[i+1] != "any" {
				op.Tag = int32(s.num(w[i+1]))
			}
		case "bytes":
			op.Buf = content(name, s.num(w[i+1]))
		case "cap":
			op.Buf = make([]byte, s.num(w[i+1]))
		case "type":
			op.Type = uint32(s.num(w[i+1]))
		case "comm":
			comm = w[i+1]
		case "sig":
			op.Signed, op.Sig = true, s.sig(w[i+1])
		default:
			s.fail("unknown option %s", w[i])
		}
		i++
	}
	if op.Ctx = s.comm(op.rank, comm).P2P; coll {
		op.Ctx = s.comm(op.rank, comm).Coll
	}
	s.ops[name] = op
	c := s.net.cores[op.rank]
	switch verb {
	case "send", "ssend":
		c.PostSend(&op.Op)
	case "recv":
		c.PostRecv(&op.Op)
	case "mrecv":
		c.PostMrecv(&op.Op, op.Message)
	default:
		c.PostProbe(&op.Op)
	}
	s.net.act(op.rank)
}

// content is the payload of a message, which tells it from all others.
func content(name string, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = name[i%len(name)] ^ byte(i/len(name))
	}
	return b
}

// finished prints an operation's results.
func (s *script) finished(rank int, p *Op) {
	op := p.Owner.(*scriptOp)
	what := "done"
	if op.Kind != Send && op.Kind != Ssend && op.Status.Type != 0 {
		what = fmt.Sprintf("source %d tag %d bytes %d", op.Status.Source, op.Status.Tag, op.Status.Bytes)
	}
	if op.Kind == Recv && (op.Err == nil || errors.Is(op.Err, ErrTruncated)) {
		what += s.contentOf(op.Buf[:min(int64(len(op.Buf)), op.Status.Bytes)])
	}
	if op.Err != nil {
		what += ": " + op.Err.Error()
	}
	if op.done {
		s.fail("%s is done twice", op.name)
	}
	op.done = true
	s.print(rank, "%s %s", op.name, what)
}

// contentOf tells whose content a buffer has.
func (s *script) contentOf(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	for name, op := range s.ops {
		if (op.Kind == Send || op.Kind == Ssend) && string(content(name, len(b))) == string(b) {
			return " of " + name
		}
	}
	return " of NO MESSAGE"
}

// move is about frames on a link.
func (s *script) move(w []string) {
	if w[0] == "deliver" && w[1] == "all" {
		for !s.net.quiet() {
			for from := range s.net.links {
				for to := range s.net.links[from] {
					if len(s.net.links[from][to].frames) > 0 {
						s.net.deliver(from, to)
					}
				}
			}
			if len(s.net.pulls) > 0 {
				s.net.pull(nil)
			}
		}
		return
	}
	from, to := s.split(w[1], "->")
	l := &s.net.links[from][to]
	switch w[0] {
	case "deliver":
		n := len(l.frames)
		if len(w) > 2 {
			n = s.num(w[2])
		}
		for range n {
			s.net.deliver(from, to)
		}
	case "begin":
		s.net.begin(from, to)
	case "land":
		s.net.land(from, to)
	case "sent":
		s.net.sent(from, to)
	case "again":
		s.net.receive(from, to, l.last)
	case "lose":
		l.frames = l.frames[1:]
	case "forge":
		s.forge(from, to, w[2:])
	}
}

// forge delivers a frame that the sender's core never made.
func (s *script) forge(from, to int, w []string) {
	l := &s.net.links[from][to]
	h := wire.Header{Src: int32(from), Ctx: ContextID(0, 1), Type: 7, Seq: l.seq}
	l.seq++
	for k := wire.Eager; k <= wire.Waiting; k++ {
		if k.String() == w[0] {
			h.Kind = k
		}
	}
	n := 0
	id := func(word string) uint32 {
		if op := s.ops[word]; op != nil {
			return op.id
		}
		return uint32(s.num(word))
	}
	for i := 1; i < len(w); i += 2 {
		switch v := w[i+1]; w[i] {
		case "id":
			h.Flags |= wire.HasID
			h.ID = id(v)
		case "reply":
			h.Reply = id(v)
		case "bytes":
			h.Flags |= wire.HasBytes
			h.Bytes = uint64(s.num(v))
		case "payload":
			n = s.num(v)
		case "src":
			h.Src = int32(s.num(v))
		case "tag":
			h.Tag = int32(s.num(v))
		case "ctx":
			h.Ctx = s.ctx(v)
		case "sig":
			h.Flags |= wire.HasSig
			h.Sig = s.sig(v)
		default:
			s.fail("unknown field %s", w[i])
		}
	}
	f := frame{bytes: make([]byte, h.Size())}
	h.Encode(f.bytes)
	if h.Kind == wire.Data {
		f.data = make([]byte, n)
		l.frames = append(l.frames, f)
		if s.net.begin(from, to) {
			s.net.land(from, to)
		}
		l.frames = nil
		return
	}
	f.bytes = append(f.bytes, make([]byte, n)...)
	s.net.receive(from, to, f.bytes)
}

func (s *script) end() {
	s.out.WriteString("end\n")
	s.leftovers()
}

// leftovers prints what the cores still hold, and which operations are not done.
func (s *script) leftovers() {
	var names []string
	for name, op := range s.ops {
		if !op.done {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		s.print(s.ops[name].rank, "%s is not done", name)
	}
	for r, c := range s.net.cores {
		for _, left := range c.leftovers() {
			s.print(r, "%s", left)
		}
	}
}
