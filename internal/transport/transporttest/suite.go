// Package transporttest is the conformance suite for transports: a transport
// is right when it passes [Run]. It checks what package transport promises and
// nothing else: order, integrity, back-pressure, bulk transfers, sleeping and
// waking, deaths, and that every resource comes back. The tests of Exposer and
// Remote do nothing for a transport that is neither.
//
// The suite only uses the exported contract. A world is a set of transports in
// one process, one for each rank, connected to each other. Every rank reaches
// every other rank and no rank sends to itself.
package transporttest

import (
	"testing"

	"github.com/weft-hpc/weft/internal/transport"
)

// World is a set of connected transports, rank i at index i. The suite closes
// the transports itself, then calls Close.
type World struct {
	Ranks []transport.Transport

	// Kill ends a rank as a crash of its process would, without a Goodbye, and
	// lets the others find out in the way this transport does. It closes the
	// transport of that rank; the suite does not touch it again.
	Kill func(rank int)

	// Alloc returns memory of a rank that its peers reach without a copy: its Describe
	// describes it, and they Pull it; or its Expose and Grant open it to them. Nil for a
	// transport without such memory.
	Alloc func(rank, n int) ([]byte, error)

	// Close gives back what belongs to the world and to no transport. May be nil.
	Close func()
}

// Run tests the transport that newWorld makes. newWorld is called once or more
// by every sub-test, with n from 1 to 8, and fails t when it cannot deliver.
func Run(t *testing.T, newWorld func(t *testing.T, n int) *World) {
	for _, c := range []struct {
		name string
		test func(*testing.T, func(t *testing.T, n int) *World)
	}{
		{"Alone", testAlone},
		{"Headers", testHeaders},
		{"Sizes", testSizes},
		{"Order", testOrder},
		{"BackPressure", testBackPressure},
		{"Bulk", testBulk},
		{"BulkDiscard", testBulkDiscard},
		{"BulkOrder", testBulkOrder},
		{"BulkQueue", testBulkQueue},
		{"BulkBothWays", testBulkBothWays},
		{"AllToAll", testAllToAll},
		{"ArmPending", testArmPending},
		{"WakeBeforeWait", testWakeBeforeWait},
		{"WakeDuringWait", testWakeDuringWait},
		{"WaitTimeout", testWaitTimeout},
		{"WaitIsIdle", testWaitIsIdle},
		{"NoLostWakeup", testNoLostWakeup},
		{"NoLostRoom", testNoLostRoom},
		{"BulkWhileSleeping", testBulkWhileSleeping},
		{"CloseEndsWait", testCloseEndsWait},
		{"PeerDown", testPeerDown},
		{"PeerDownInBulk", testPeerDownInBulk},
		{"PeerDownEndsWait", testPeerDownEndsWait},
		{"MarkDown", testMarkDown},
		{"Regions", testRegions},
		{"Expose", testExpose},
		{"ExposeMany", testExposeMany},
		{"ExposeBothWays", testExposeBothWays},
		{"ExposePeerDown", testExposePeerDown},
		{"RemotePutGet", testRemotePutGet},
		{"RemoteOrder", testRemoteOrder},
		{"RemoteAtomics", testRemoteAtomics},
		{"RemoteBounds", testRemoteBounds},
		{"RemotePeerDown", testRemotePeerDown},
		{"NoLeaks", testNoLeaks},
		{"NoAllocations", testNoAllocations},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, newWorld) })
	}
}
