package rdma

import (
	"fmt"
	"time"
)

// Forever stands for a time that never ends.
const Forever time.Duration = -1

// RetryForever stands for a number of RNR retries that never ends.
const RetryForever = 7

// InitAttr is what a QP needs for INIT.
type InitAttr struct {
	Port      int
	PKeyIndex int
	Access    Access // what the peer may do at all: of the remote kinds only
}

// Path is the way to the peer.
type Path struct {
	DLID         uint16 // InfiniBand: the peer's LID
	Global       bool   // address by GID: always on Ethernet, see Port.GRHRequired
	DGID         GID
	SGIDIndex    int   // of this end's GID
	HopLimit     uint8 // with Global at least 1; 64 passes routers
	TrafficClass uint8
	FlowLabel    uint32 // 20 bits; different ones spread over parallel links
	ServiceLevel uint8  // 0 to 15
}

// RTRAttr is what a QP needs to receive.
type RTRAttr struct {
	Path     Path
	MTU      MTU    // the same at both ends, see PathMTU
	DestQPN  uint32 // the peer's QP
	RecvPSN  uint32 // the peer's SendPSN, 24 bits
	MaxReads int    // of the peer, in flight: at least its RTSAttr.MaxReads

	// MinRNRTimer is how long the peer waits before it tries again, when no
	// receive was posted. From 10 us to 655.36 ms; it is rounded up to what
	// exists. Zero is refused: verbs would take it for 655 ms.
	MinRNRTimer time.Duration
}

// RTSAttr is what a QP needs to send.
type RTSAttr struct {
	SendPSN  uint32 // 24 bits, best random
	MaxReads int    // in flight

	// Timeout is how long an answer may take before the packet is sent again:
	// rounded up to 4.096 us times a power of two, from 8 us to 8796 s, or Forever. Devices
	// may wait several times as long.
	Timeout time.Duration

	// Retries is how often that is tried, up to Limits.MaxRetries.
	Retries int

	// RNRRetries is how often to try again when the peer had no receive: up to 6, or
	// RetryForever where Limits.RNRForever allows it.
	RNRRetries int
}

// Check says what is wrong with the attributes on a device with such limits and port.
func (a *InitAttr) Check(limits *Limits) error {
	switch {
	case a.Port < 1 || a.Port > limits.Ports:
		return invalid(OpModifyInit, fmt.Sprintf("port %d does not exist: the device has ports 1 to %d", a.Port, limits.Ports), "")
	case a.PKeyIndex < 0 || a.PKeyIndex > 0xffff:
		return invalid(OpModifyInit, fmt.Sprintf("partition key index %d is not in the table", a.PKeyIndex), "")
	case a.Access&^accessAll != 0:
		return invalid(OpModifyInit, fmt.Sprintf("access 0x%x has unknown bits", uint8(a.Access)), "")
	}
	return nil
}

// Check says what is wrong with the attributes on a device with such limits and port.
func (a *RTRAttr) Check(limits *Limits, port *Port) error {
	bad := func(format string, args ...any) error { return invalid(OpModifyRTR, fmt.Sprintf(format, args...), "") }
	switch {
	case a.MTU.Code() == 0:
		return bad("MTU %d does not exist: it is 256, 512, 1024, 2048 or 4096", a.MTU)
	case a.MTU > port.ActiveMTU:
		return invalid(OpModifyRTR, fmt.Sprintf("MTU %d is more than the port's active MTU %d", a.MTU, port.ActiveMTU),
			"use rdma.PathMTU of both ends' active MTUs")
	case a.DestQPN > 1<<24-1:
		return bad("QP number 0x%x has more than 24 bits", a.DestQPN)
	case a.RecvPSN > 1<<24-1:
		return bad("PSN 0x%x has more than 24 bits", a.RecvPSN)
	case a.MaxReads < 0 || a.MaxReads > limits.MaxReads:
		return bad("%d READs in flight are not between 0 and the device's %d", a.MaxReads, limits.MaxReads)
	case a.MinRNRTimer == 0:
		return invalid(OpModifyRTR, "MinRNRTimer is zero, which on the wire means 655.36 ms", "set it, 640 us for example")
	case a.MinRNRTimer < 0 || a.MinRNRTimer > rnrTimers[0]:
		return bad("MinRNRTimer %v is not between 10 us and 655.36 ms", a.MinRNRTimer)
	}
	return a.Path.check(port)
}

func (p *Path) check(port *Port) error {
	bad := func(what, fix string) error { return invalid(OpModifyRTR, what, fix) }
	switch {
	case p.ServiceLevel > 15:
		return bad(fmt.Sprintf("service level %d is more than 15", p.ServiceLevel), "")
	case p.FlowLabel > 1<<20-1:
		return bad(fmt.Sprintf("flow label 0x%x has more than 20 bits", p.FlowLabel), "")
	case !p.Global && port.LinkLayer == LinkEthernet:
		return bad("on Ethernet the peer is addressed by GID", "set Path.Global, DGID and SGIDIndex")
	case !p.Global && port.GRHRequired:
		return bad("this port needs the peer's GID", "set Path.Global, DGID and SGIDIndex")
	case !p.Global && p.DLID == 0:
		return bad("the peer's LID is 0", "is a subnet manager running? start opensm")
	case p.Global && p.DGID.IsZero():
		return bad("the peer's GID is zero", "")
	case p.Global && p.HopLimit == 0:
		return bad("the hop limit is 0: no packet would arrive", "set Path.HopLimit, 64 for example")
	case p.Global && (p.SGIDIndex < 0 || p.SGIDIndex >= port.GIDs):
		return bad(fmt.Sprintf("GID index %d is not in the table of %d entries", p.SGIDIndex, port.GIDs), "choose one with rdma.ChooseGID")
	}
	return nil
}

// Check says what is wrong with the attributes on a device with such limits.
func (a *RTSAttr) Check(limits *Limits) error {
	bad := func(what, fix string) error { return invalid(OpModifyRTS, what, fix) }
	switch {
	case a.SendPSN > 1<<24-1:
		return bad(fmt.Sprintf("PSN 0x%x has more than 24 bits", a.SendPSN), "")
	case a.MaxReads < 0 || a.MaxReads > limits.MaxReads:
		return bad(fmt.Sprintf("%d READs in flight are not between 0 and the device's %d", a.MaxReads, limits.MaxReads), "")
	case a.Timeout == 0:
		return bad("Timeout is zero, which on the wire means for ever", "set it, 67 ms for example, or rdma.Forever")
	case a.Timeout != Forever && (a.Timeout < 0 || a.Timeout > maxAckTimeout):
		return bad(fmt.Sprintf("Timeout %v is not between 8.192 us and %v", a.Timeout, maxAckTimeout), "")
	case a.Retries < 0 || a.Retries > limits.MaxRetries:
		return bad(fmt.Sprintf("%d retries are not between 0 and the device's %d", a.Retries, limits.MaxRetries),
			"use the smaller of 7 and Limits().MaxRetries; soft-RoCE takes 7 for ever")
	case a.RNRRetries < 0 || a.RNRRetries > RetryForever:
		return bad(fmt.Sprintf("%d RNR retries are not between 0 and 7", a.RNRRetries), "")
	case a.RNRRetries == RetryForever && !limits.RNRForever:
		return bad("this device must not retry for ever when the peer has no receive", "use at most 6 RNR retries")
	}
	return nil
}

// rnrTimers are the RNR timers that exist, by their code. Code 0 is the longest.
var rnrTimers = [32]time.Duration{
	655360 * time.Microsecond, 10 * time.Microsecond, 20 * time.Microsecond, 30 * time.Microsecond,
	40 * time.Microsecond, 60 * time.Microsecond, 80 * time.Microsecond, 120 * time.Microsecond,
	160 * time.Microsecond, 240 * time.Microsecond, 320 * time.Microsecond, 480 * time.Microsecond,
	640 * time.Microsecond, 960 * time.Microsecond, 1280 * time.Microsecond, 1920 * time.Microsecond,
	2560 * time.Microsecond, 3840 * time.Microsecond, 5120 * time.Microsecond, 7680 * time.Microsecond,
	10240 * time.Microsecond, 15360 * time.Microsecond, 20480 * time.Microsecond, 30720 * time.Microsecond,
	40960 * time.Microsecond, 61440 * time.Microsecond, 81920 * time.Microsecond, 122880 * time.Microsecond,
	163840 * time.Microsecond, 245760 * time.Microsecond, 327680 * time.Microsecond, 491520 * time.Microsecond,
}

// RNRTimerCode is the code of the shortest RNR timer that is not less than d,
// and how long that is.
func RNRTimerCode(d time.Duration) (code uint8, actual time.Duration) {
	for c := 1; c < len(rnrTimers); c++ {
		if rnrTimers[c] >= d {
			return uint8(c), rnrTimers[c]
		}
	}
	return 0, rnrTimers[0]
}

const maxAckTimeout = 4096 * time.Nanosecond << 31

// AckTimeoutCode is the code of the shortest timeout that is not less than d,
// and how long that is. Forever has code 0.
func AckTimeoutCode(d time.Duration) (code uint8, actual time.Duration) {
	if d < 0 {
		return 0, Forever
	}
	for c := 1; c < 31; c++ {
		if t := 4096 * time.Nanosecond << c; t >= d {
			return uint8(c), t
		}
	}
	return 31, maxAckTimeout
}
