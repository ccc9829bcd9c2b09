package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/rdma"
)

// exposure is a buffer that a peer may write one payload to. A receive of each rail is
// reserved for the message that says so.
//
//	free -> Expose -> (announced, pieces of all rails landed, in any order) -> reported -> free
type exposure struct {
	c     *conn // nil: free
	index int32
	gen   uint32
	id    uint32 // of the frame
	buf   []byte
	lease lease
	h     wire.Header
	told  bool // announced: h, n and rails are set
	n     int
	rails int
	got   int // rails whose part has landed
}

// Expose implements transport.Exposer.
func (t *Transport) Expose(peer int, id uint32, buf []byte) (wire.Region, error) {
	c := t.conns[peer]
	if c == nil || c.state != connUp {
		return wire.Region{}, t.notUp(peer)
	}
	if len(buf) == 0 {
		return wire.Region{Kind: regionPlain << kindShift}, nil
	}
	rails := 1
	if len(buf) >= t.tune.split {
		rails = len(c.eps)
	}
	if len(t.freeExp) == 0 || rails > 1 && (c.posting != nil || c.credit() == 0) {
		return wire.Region{}, transport.ErrAgain
	}
	var l lease
	if !t.borrow(&l, buf, rdma.LocalWrite|rdma.RemoteWrite, rails) {
		return wire.Region{Kind: regionPlain << kindShift}, nil
	}
	i := take(&t.freeExp)
	x := &t.exposures[i]
	name := uint32(i) | x.gen<<indexBits
	if rails > 1 {
		if err := t.sendKeys(c, name, &l, rails); err != nil {
			t.giveUp(&l)
			t.freeExp = append(t.freeExp, i)
			return wire.Region{}, err
		}
	}
	*x = exposure{c: c, index: i, gen: x.gen, id: id, buf: buf, lease: l}
	return wire.Region{Kind: regionExposed<<kindShift | name, Key: l.rkey(0), Addr: addressOf(buf)}, nil
}

// sendKeys tells the peer the keys of the rails after the first.
func (t *Transport) sendKeys(c *conn, name uint32, l *lease, rails int) error {
	b, w, err := t.message(c, prefix{kind: prefixKeys, length: uint32(8 + 4*(rails-1))})
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	le.PutUint32(b, name)
	le.PutUint32(b[4:], uint32(rails-1))
	for i := 1; i < rails; i++ {
		le.PutUint32(b[4+4*i:], l.rkey(i))
	}
	return t.send(c, w)
}

// railKeys are keys of an exposure of the peer.
type railKeys struct {
	name uint32
	keys [maxRails]uint32
}

func (c *conn) learnKeys(b []byte) error {
	le := binary.LittleEndian
	if len(b) < 8 || int(le.Uint32(b[4:])) != len(c.eps)-1 || len(b) != 8+4*(len(c.eps)-1) {
		return fmt.Errorf("keys of %d bytes", len(b))
	}
	if len(c.keys) >= maxExposures {
		return errors.New("more keys than exposures")
	}
	k := railKeys{name: le.Uint32(b)}
	for i := 1; i < len(c.eps); i++ {
		k.keys[i] = le.Uint32(b[4+4*i:])
	}
	c.keys = append(c.keys, k)
	return nil
}

func (c *conn) hasKeys(name uint32) bool {
	for i := range c.keys {
		if c.keys[i].name == name {
			return true
		}
	}
	return false
}

// takeKeys moves the keys of a transfer's target to it.
func (c *conn) takeKeys(x *transfer, name uint32) {
	for i := range c.keys {
		if c.keys[i].name == name {
			copy(x.keys[1:], c.keys[i].keys[1:])
			last := len(c.keys) - 1
			c.keys[i] = c.keys[last]
			c.keys = c.keys[:last]
			return
		}
	}
}

// byExposure is the exposure of that name, if c has it.
func (t *Transport) byExposure(name uint32, c *conn) *exposure {
	i := name & (maxExposures - 1)
	if i >= uint32(len(t.exposures)) {
		return nil
	}
	x := &t.exposures[i]
	if x.c != c || x.gen != name>>indexBits {
		return nil
	}
	return x
}

// announced handles the message that says which frame the coming RDMA writes are.
func (t *Transport) announced(c *conn, name uint32, n uint64, rails int, b []byte, s transport.Sink) error {
	x := t.byExposure(name, c)
	if x == nil || x.told || c.frag.active {
		return fmt.Errorf("payload for exposure %#x, which it was not given", name)
	}
	if _, err := decodeData(b, &x.h); err != nil {
		return err
	}
	if n == 0 || n > uint64(len(x.buf)) || x.h.ID != x.id || rails > len(c.eps) {
		return fmt.Errorf("payload %d of %d bytes over %d rails for exposure %#x, which is for %d with %d bytes", x.h.ID, n, rails, name, x.id, len(x.buf))
	}
	c.framesIn = x.h.Seq + 1
	x.told, x.n, x.rails = true, int(n), rails
	c.receiving = x
	t.landed(x, s)
	return nil
}

// whole is the announcement of a payload that one write brought. What the frame's header had is known: the
// exposure was made for it, and a connection of one rail has everything in order.
func (x *exposure) whole(n int) error {
	c := x.c
	if x.told || c.receiving != nil || c.frag.active || len(c.eps) != 1 || n == 0 || n > len(x.buf) {
		return fmt.Errorf("%d bytes as the payload for an exposure of %d", n, len(x.buf))
	}
	x.h = wire.Header{Kind: wire.Data, Flags: wire.HasID | wire.HasBytes, Seq: c.framesIn, ID: x.id, Bytes: uint64(n)}
	c.framesIn++
	x.told, x.n, x.rails = true, n, 1
	return nil
}

// pieceLanded handles the end of the RDMA writes of one rail.
func (t *Transport) pieceLanded(r *rail, wc *rdma.WC, s transport.Sink) {
	i := wc.Imm & (maxExposures - 1)
	var c *conn
	if i < uint32(len(t.exposures)) {
		c = t.exposures[i].c
	}
	if c == nil || c.state == connDown || r.index >= len(c.eps) || c.eps[r.index].qp.Num() != wc.QPN || t.exposures[i].gen != wc.Imm&nameMask>>indexBits {
		t.violation(t.byQPN(r, wc.QPN), fmt.Errorf("end of a payload for exposure %#x, which it was not given", wc.Imm))
		return
	}
	x := &t.exposures[i]
	var err error
	switch kind := wc.Imm &^ nameMask; kind {
	case 0:
	case immWhole:
		err = x.whole(int(wc.Bytes))
	default:
		err = fmt.Errorf("end of a payload of unknown kind %#x", kind)
	}
	if err != nil {
		t.violation(c.eps[0], err)
		return
	}
	x.got++
	t.landed(x, s)
}

// landed reports a payload whose parts have all landed.
func (t *Transport) landed(x *exposure, s transport.Sink) {
	if !x.told || x.got < x.rails {
		return
	}
	c := x.c
	if x.got > x.rails {
		t.violation(c.eps[0], errors.New("payload over more rails than announced"))
		return
	}
	h, n := x.h, x.n
	t.unexpose(x)
	c.receiving = nil
	if s.Dest(c.peer, &h, n) != nil {
		s.Landed(c.peer, &h)
	}
	t.unhold(c, s)
}

// unexpose makes an exposure free: the peer can reach the buffer no more.
func (t *Transport) unexpose(x *exposure) {
	t.giveUp(&x.lease)
	x.gen = (x.gen + 1) & genMask
	x.c, x.buf = nil, nil
	t.freeExp = append(t.freeExp, x.index)
}
