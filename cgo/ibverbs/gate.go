//go:build linux && cgo

package ibverbs

import (
	"runtime"
	"sync/atomic"
)

// closed says that something was closed. It is written under device.mu, and read by the hot path
// without it. Calls that use what Close destroys, and hold no lock, are between
// enter and leave; Close waits for them.
type closed struct {
	atomic.Bool
	users atomic.Int32
}

// enter is false when it was closed. Otherwise leave must follow.
func (c *closed) enter() bool {
	c.users.Add(1)
	if c.Load() {
		c.users.Add(-1)
		return false
	}
	return true
}

func (c *closed) leave() { c.users.Add(-1) }

// wait waits for those who entered before it was closed. They wait for the device at most.
func (c *closed) wait() {
	for c.users.Load() != 0 {
		runtime.Gosched()
	}
}
