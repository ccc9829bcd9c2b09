// Package rdmatest is the suite that every provider of rdma passes. It is the
// contract of the interfaces in rdma where their text leaves a doubt.
//
// A provider's test calls [Run] with a function that opens two devices that
// reach each other; they may be two handles of one device. The suite opens
// them anew for each of its tests, uses them by the documented order
// of set-up and tear-down, and wants every resource back at the end.
//
// Tests whose name starts with Mistake are mistakes that programs or
// providers were shipped with; their comments say where.
//
// What devices differ in is asked of rdma.Limits and of the port, or both
// answers are taken; each place says so. Nothing is skipped for being slow.
// Faults are tested where an Endpoint can make them, and the log says which it cannot.
package rdmatest

import (
	"syscall"
	"testing"
	"time"

	"github.com/weft-hpc/weft/rdma"
)

// Endpoint is a device as the suite gets it.
type Endpoint struct {
	Device rdma.Device // the suite closes it
	Port   int

	// Alloc returns n bytes that may be registered, and are gone at the end of the test. Nil
	// maps anonymous memory, which is unmapped as soon as its region is closed: a
	// device that touches it later crashes the test.
	Alloc func(n int) []byte

	// QuickTimeout is the time for an answer in tests that wait until it has passed, twice. It
	// is 8 ms if zero; a slow device needs more, or its answers are taken for lost.
	QuickTimeout time.Duration

	// Faults makes faults on this device, and not on the other, as far as it
	// implements the interfaces below. They are those of fake.Card. Nil if there
	// are none, or where both devices are one.
	Faults any
}

// CallFailer lets the nth next call of an operation fail.
type CallFailer interface {
	FailCall(op rdma.Op, nth int, errno syscall.Errno)
}

// SendFailer lets the nth next send work request end with a status.
type SendFailer interface {
	FailSend(status rdma.Status, nth int)
}

// NotificationLoser loses notifications of CQs.
type NotificationLoser interface{ LoseNotifications(n int) }

// PortSetter takes the port down and brings it back.
type PortSetter interface{ SetPort(up bool) }

// Cutter drops all packets from and to the device.
type Cutter interface{ Cut(cut bool) }

// Killer loses the device for good.
type Killer interface{ Fatal() }

// Open opens two devices that reach each other.
type Open func(t testing.TB) (a, b Endpoint)

// Run runs the suite.
func Run(t *testing.T, open Open) {
	for _, group := range []struct {
		name  string
		tests []test
	}{
		{"Device", deviceTests}, {"Move", moveTests}, {"Order", orderTests}, {"Queue", queueTests}, {"State", stateTests},
		{"Status", statusTests}, {"Notify", notifyTests}, {"Close", closeTests}, {"Fault", faultTests},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, tc := range group.tests {
				t.Run(tc.name, func(t *testing.T) { tc.run(t, open) })
			}
		})
	}
}

// test is one test of the suite.
type test struct {
	name string
	run  func(t *testing.T, open Open)
}
