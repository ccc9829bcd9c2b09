package verbs

import (
	"encoding/binary"
	"fmt"
)

// A prefix is in front of everything that is sent with a receive to take it:
//
//	 0  kind, u8
//	 1  rails that carry the payload, u8: for prefixBulk
//	 2  receives given back since the start, u16: modulo 2^16
//	 4  length of what follows, u32
//	 8  number of the message on the connection, u32
//	12  the receiver's name for the connection, u32
//
// All integers are little-endian.
const prefixSize = 16

// prefixKind says what follows a prefix.
type prefixKind uint8

const (
	prefixFrame  prefixKind = 1 + iota // a frame: header and payload
	prefixBulk                         // exposure u32, length u64, header of a Data frame whose payload comes by RDMA writes
	prefixFirst                        // length u64, header of a Data frame, and the first piece of its payload
	prefixNext                         // the next piece
	prefixKeys                         // exposure u32, number of keys u32, keys u32...: of the rails after the first
	prefixCredit                       // nothing: the receives given back are the message
	maxPrefixKind
)

// Sizes of what stands before the header of a Data frame.
const (
	bulkHead  = 12
	firstHead = 8
)

// prefix is a decoded prefix.
type prefix struct {
	kind    prefixKind
	rails   uint8
	credits uint16
	length  uint32
	seq     uint32
	conn    uint32
}

func (p *prefix) encode(b []byte) {
	_ = b[prefixSize-1]
	le := binary.LittleEndian
	b[0], b[1] = byte(p.kind), p.rails
	le.PutUint16(b[2:], p.credits)
	le.PutUint32(b[4:], p.length)
	le.PutUint32(b[8:], p.seq)
	le.PutUint32(b[12:], p.conn)
}

// decodePrefix reads the prefix of a message of len(b) bytes.
func decodePrefix(b []byte, p *prefix) error {
	if len(b) < prefixSize {
		return fmt.Errorf("message of %d bytes is shorter than a prefix (%d)", len(b), prefixSize)
	}
	le := binary.LittleEndian
	p.kind, p.rails = prefixKind(b[0]), b[1]
	p.credits = le.Uint16(b[2:])
	p.length = le.Uint32(b[4:])
	p.seq = le.Uint32(b[8:])
	p.conn = le.Uint32(b[12:])
	switch {
	case p.kind == 0 || p.kind >= maxPrefixKind:
		return fmt.Errorf("message of unknown kind %d", p.kind)
	case int(p.length) != len(b)-prefixSize:
		return fmt.Errorf("message of %d bytes says that it has %d", len(b)-prefixSize, p.length)
	case (p.kind == prefixBulk) != (p.rails > 0) || p.rails > maxRails:
		return fmt.Errorf("message of kind %d over %d rails", p.kind, p.rails)
	}
	return nil
}
