package main

import "encoding/binary"

// Offsets and values of the headers on the way to a RoCE v2 packet.
const (
	etherHeader = 14
	etherIPv4   = 0x0800
	etherIPv6   = 0x86dd
	etherVLAN   = 0x8100
	protoUDP    = 17
	rocePort    = 4791
	udpHeader   = 8
	bthHeader   = 12 // the base transport header: opcode, flags, queue pair, packet number

	opAcknowledge = 17 // RC acknowledge, and atomic acknowledge is the next
	opAtomicAck   = 18
	opReadFirst   = 13 // RC RDMA READ response, first; middle, last and only follow
	opReadOnly    = 16
)

// A class says which frames a rule is for.
type class uint8

const (
	roceFrames class = iota // RoCE v2: UDP to port 4791
	ackFrames               // of these, acknowledges (also negative ones) and what a READ or an atomic brings back
	dataFrames              // of these, the others
	allFrames               // whatever is on the wire, ARP and TCP too
)

var classNames = [...]string{"roce", "ack", "data", "all"}

func (c class) String() string { return classNames[c] }

// opcode finds the opcode of the RoCE v2 packet in an Ethernet frame. Trusts
// nothing: ok is false for everything else, also for a frame cut short.
func opcode(frame []byte) (op byte, ok bool) {
	if len(frame) < etherHeader {
		return 0, false
	}
	kind, rest := binary.BigEndian.Uint16(frame[12:]), frame[etherHeader:]
	if kind == etherVLAN && len(rest) >= 4 {
		kind, rest = binary.BigEndian.Uint16(rest[2:]), rest[4:]
	}
	switch {
	case kind == etherIPv4 && len(rest) >= 20 && rest[0]>>4 == 4:
		header := int(rest[0]&15) * 4
		fragment := binary.BigEndian.Uint16(rest[6:]) & 0x1fff
		if rest[9] != protoUDP || fragment != 0 || header < 20 || len(rest) < header {
			return 0, false
		}
		rest = rest[header:]
	case kind == etherIPv6 && len(rest) >= 40 && rest[6] == protoUDP:
		rest = rest[40:]
	default:
		return 0, false
	}
	if len(rest) < udpHeader+bthHeader || binary.BigEndian.Uint16(rest[2:]) != rocePort {
		return 0, false
	}
	return rest[udpHeader], true
}

// has reports whether a frame belongs to the class.
func (c class) has(frame []byte) bool {
	if c == allFrames {
		return true
	}
	op, ok := opcode(frame)
	if !ok || c == roceFrames {
		return ok
	}
	// The three upper bits are the transport service; RC is 0.
	back := op == opAcknowledge || op == opAtomicAck || op >= opReadFirst && op <= opReadOnly
	return back == (c == ackFrames)
}
