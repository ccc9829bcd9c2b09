package verbs

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/weft-hpc/weft/rdma"
)

// What two ranks tell each other over the link before they are connected. A
// HELLO has, little-endian:
//
//	 0  magic, 4 bytes
//	 4  version, u16
//	 6  kind, u8
//	 7  number of rails, u8: 0 but in a HELLO
//	 8  hash of the job's name, 16 bytes
//	24  rank, u32
//	28  epoch, u32
//	32  bytes of a receive, u32
//	36  receives for the reader, u32
//	40  the sender's name for the connection, u32
//	44  zero, u32
//	48  for each rail, 48 bytes:
//	     0  link layer, u8       1  port, u8        2  code of the active MTU, u8   3  type of the GID, u8
//	     4  LID, u16             6  READs it answers at once, u8                    7  zero, u8
//	     8  QP number, u32      12  first PSN, u32
//	    16  longest message, u64
//	    24  GID, 16 bytes
//	    40  zero, 8 bytes
//
// READY, UP and REJECT are the first 48 bytes; a REJECT has its reason in words behind them.
const (
	helloMagic   = "WVRB"
	helloVersion = 2

	helloHead = 48
	helloRail = 48
	maxReason = 512
	maxRails  = 4
)

// helloKind says what a message of the link is.
type helloKind uint8

const (
	sayHello  helloKind = 1 + iota // here are my queue pairs
	sayReady                       // you may send
	sayUp                          // what I sent was answered
	sayReject                      // no, because
)

// helloRailInfo is what a peer needs of one rail.
type helloRailInfo struct {
	link       rdma.LinkLayer
	port       uint8
	mtu        rdma.MTU
	gidType    rdma.GIDType
	lid        uint16
	reads      uint8
	qpn, psn   uint32
	maxMessage uint64
	gid        rdma.GID
}

// hello is a decoded message of the link.
type hello struct {
	kind    helloKind
	job     [16]byte
	rank    uint32
	epoch   uint32
	segment uint32
	window  uint32
	conn    uint32
	rails   []helloRailInfo
	reason  string
}

// jobHash tells jobs apart; it proves nothing.
func jobHash(job string) [16]byte {
	sum := sha256.Sum256([]byte("weft verbs job " + job))
	return [16]byte(sum[:16])
}

func (h *hello) encode() []byte {
	b := make([]byte, helloHead+len(h.rails)*helloRail, helloHead+len(h.rails)*helloRail+len(h.reason))
	le := binary.LittleEndian
	copy(b, helloMagic)
	le.PutUint16(b[4:], helloVersion)
	b[6], b[7] = byte(h.kind), byte(len(h.rails))
	copy(b[8:], h.job[:])
	le.PutUint32(b[24:], h.rank)
	le.PutUint32(b[28:], h.epoch)
	le.PutUint32(b[32:], h.segment)
	le.PutUint32(b[36:], h.window)
	le.PutUint32(b[40:], h.conn)
	for i := range h.rails {
		r, p := &h.rails[i], b[helloHead+i*helloRail:]
		p[0], p[1], p[2], p[3] = byte(r.link), r.port, byte(r.mtu.Code()), byte(r.gidType)
		le.PutUint16(p[4:], r.lid)
		p[6] = r.reads
		le.PutUint32(p[8:], r.qpn)
		le.PutUint32(p[12:], r.psn)
		le.PutUint64(p[16:], r.maxMessage)
		copy(p[24:], r.gid[:])
	}
	return append(b, h.reason...)
}

// decodeHello reads a message of the link. It trusts nothing of it. An error says what
// is wrong in words that its sender understands as well.
func decodeHello(b []byte) (*hello, error) {
	if len(b) < helloHead || string(b[:4]) != helloMagic {
		return nil, fmt.Errorf("not a greeting: %d bytes %.16x", len(b), b)
	}
	le := binary.LittleEndian
	if v := le.Uint16(b[4:]); v != helloVersion {
		return nil, fmt.Errorf("greeting of version %d, this build speaks %d; start all ranks from one build", v, helloVersion)
	}
	h := &hello{kind: helloKind(b[6]), job: [16]byte(b[8:24]), rank: le.Uint32(b[24:]), epoch: le.Uint32(b[28:]), segment: le.Uint32(b[32:]),
		window: le.Uint32(b[36:]), conn: le.Uint32(b[40:])}
	rails, rest := int(b[7]), b[helloHead:]
	switch {
	case h.kind == 0 || h.kind > sayReject:
		return nil, fmt.Errorf("greeting of unknown kind %d", h.kind)
	case h.epoch == 0 || le.Uint32(b[44:]) != 0:
		return nil, fmt.Errorf("greeting with epoch %d and reserved bytes %#x", h.epoch, le.Uint32(b[44:]))
	case h.kind == sayHello && (rails == 0 || rails > maxRails || len(rest) != rails*helloRail):
		return nil, fmt.Errorf("greeting with %d rails in %d bytes", rails, len(rest))
	case h.kind == sayHello && (h.segment < prefixSize || h.window == 0 || h.window > maxWindow):
		return nil, fmt.Errorf("greeting with %d receives of %d bytes", h.window, h.segment)
	case h.kind != sayHello && rails != 0, h.kind != sayReject && len(rest) != rails*helloRail, h.kind == sayReject && len(rest) > maxReason:
		return nil, fmt.Errorf("greeting of kind %d with %d rails and %d bytes", h.kind, rails, len(rest))
	}
	if h.kind == sayReject {
		h.reason = printable(rest)
	}
	for i := range rails {
		r, err := decodeRail(rest[i*helloRail : (i+1)*helloRail])
		if err != nil {
			return nil, fmt.Errorf("greeting, rail %d: %w", i, err)
		}
		h.rails = append(h.rails, r)
	}
	return h, nil
}

func decodeRail(p []byte) (helloRailInfo, error) {
	le := binary.LittleEndian
	r := helloRailInfo{link: rdma.LinkLayer(p[0]), port: p[1], mtu: rdma.MTUFromCode(int(p[2])), gidType: rdma.GIDType(p[3]), lid: le.Uint16(p[4:]),
		reads: p[6], qpn: le.Uint32(p[8:]), psn: le.Uint32(p[12:]), maxMessage: le.Uint64(p[16:]), gid: rdma.GID(p[24:40])}
	switch {
	case r.link > rdma.LinkEthernet || r.gidType > rdma.GIDRoCEv2 || r.port == 0:
		return r, fmt.Errorf("link layer %d, GID type %d, port %d", r.link, r.gidType, r.port)
	case r.mtu == 0:
		return r, fmt.Errorf("MTU code %d", p[2])
	case r.qpn >= 1<<24 || r.psn >= 1<<24:
		return r, fmt.Errorf("QP number %#x and PSN %#x are not both of 24 bits", r.qpn, r.psn)
	case r.maxMessage == 0:
		return r, fmt.Errorf("messages of no bytes")
	case p[7] != 0 || le.Uint64(p[40:]) != 0:
		return r, fmt.Errorf("reserved bytes are not zero")
	}
	return r, nil
}

// printable makes text of a peer fit for a terminal.
func printable(b []byte) string {
	out := make([]byte, len(b))
	for i, c := range b {
		if c < ' ' || c > '~' {
			c = '?'
		}
		out[i] = c
	}
	return string(out)
}
