// Package transport says what a data-plane transport does. A transport moves
// frames between the processes of one job, in order and once for each pair of
// processes, and tells when a peer is gone. It knows nothing of communicators,
// matching or requests; package progress drives it.
//
// Implementations live in the sub-packages and pass the suite in
// transporttest. They never import each other.
//
// # Who may call what
//
// Send, SendBulk, Describe, Expose, Pull, Poll, Arm and Disarm are called by one
// goroutine at a time: the caller holds the engine's lock. Wait and Wake are
// called by any goroutine, also at the same time as any other. Close is called
// once, when nothing else is running but Wait, which then returns.
//
// The methods of Sink are called only inside Poll, and must not call the
// transport.
package transport

import (
	"errors"
	"time"

	"github.com/weft-hpc/weft/internal/wire"
)

// ErrAgain is back-pressure: there is no room now, try after a later Poll.
var ErrAgain = errors.New("transport: no room now")

// Transport moves frames to and from peers. A peer is named by its rank in the
// world. Ranks that a transport does not reach are never passed to it.
type Transport interface {
	// Name is the name that --transport takes: shm, tcp, verbs, sim.
	Name() string

	// MaxEager is the longest payload that Send takes, at least 1 KiB.
	MaxEager() int

	// Send hands over one frame. The header and payload are copied or written
	// before it returns, so both may be reused. It returns ErrAgain when there
	// is no room now; any other error is final for this peer, and PeerDown is
	// reported at a later Poll as well. It never blocks and never allocates for
	// payloads that fit its preallocated room.
	Send(peer int, h *wire.Header, payload []byte) error

	// SendBulk hands over one Data frame with a payload of any length, without
	// copying it where possible. On nil the transport owns payload until
	// it reports Sent(peer, token), or PeerDown(peer). Order with respect to
	// Send on the same peer is kept. ErrAgain: nothing was taken.
	SendBulk(peer int, h *wire.Header, payload []byte, token uint32) error

	// Describe returns what a peer needs to pull buf, and false when peers of
	// this transport cannot reach that memory.
	Describe(buf []byte) (wire.Region, bool)

	// Pull copies len(dst) bytes of the peer's memory that r describes into dst,
	// and returns when they are there. It checks r against the peer's bounds.
	Pull(peer int, r wire.Region, dst []byte) error

	// Poll moves what can be moved without waiting and reports it to s. It
	// returns the number of reports; zero means nothing happened. It handles a
	// bounded number of frames.
	Poll(s Sink) int

	// Arm announces that the caller is about to Wait: from here on an arriving
	// frame, or room for one after ErrAgain, ends a Wait. It returns false when
	// there is something to Poll already; then the transport is not armed.
	Arm() bool

	// Disarm takes Arm back, so that peers need not wake anybody.
	Disarm()

	// Wait sleeps until something arrives while armed, Wake is called, or d has
	// passed. It may return early. A Wake between Arm and Wait is not lost.
	// It costs no processor time.
	Wait(d time.Duration)

	// Wake ends the current Waits, or the next one when there is none.
	Wake()

	// MarkDown says that the process of peer has ended, as the launcher tells; a
	// transport may not see that itself. What peer had sent is delivered first, as
	// far as it can be; PeerDown is reported at a later Poll, once. Any goroutine
	// may call it, for any peer, also again and after PeerDown.
	MarkDown(peer int, err error)

	// Close gives every resource back. What peers have not read yet is lost:
	// package progress says Goodbye and drains first.
	Close() error
}

// An Exposer is a Transport whose SendBulk writes straight to the memory of its
// receiver, without the receiver's help.
type Exposer interface {
	Transport

	// Expose lets peer write the payload of one Data frame to buf: of the frame
	// whose header has that ID. The peer's SendBulk finds the result in its
	// header's Region. Dest is asked for that frame as for any other, when it has
	// arrived, and answers with buf or nil; of the header both know Kind, Seq, ID and
	// Bytes, as the rest may not have been sent. The transport owns buf until it reports
	// Landed, or PeerDown. ErrAgain: there is no room now, nothing was taken; any other
	// error is final for this peer.
	Expose(peer int, id uint32, buf []byte) (wire.Region, error)
}

// Sink receives what Poll finds. Headers and payloads are valid until the
// method returns.
type Sink interface {
	// Frame delivers a frame of any kind but Data.
	Frame(peer int, h *wire.Header, payload []byte)

	// Dest asks where n bytes of a Data frame's payload go; the transport
	// writes to the result until it reports Landed or PeerDown. The result holds
	// at least n bytes, or is nil: then the payload is read and thrown away and
	// Landed is not called.
	Dest(peer int, h *wire.Header, n int) []byte

	// Landed reports that the whole payload of a Data frame is where Dest said.
	Landed(peer int, h *wire.Header)

	// Sent reports that the payload of an earlier SendBulk is free again.
	Sent(peer int, token uint32)

	// PeerDown reports once that no frame will come from or go to peer any more.
	// It is the last report about peer: what was not Sent or Landed never is.
	PeerDown(peer int, err error)
}
