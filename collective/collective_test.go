package collective_test

import (
	"testing"

	"github.com/weft-hpc/weft/collective/collectivetest"
)

// Every send waits for its receiver: an algorithm that counts on buffering
// deadlocks.
func TestRendezvous(t *testing.T) {
	t.Parallel()
	collectivetest.Run(t, collectivetest.MemWorld(-1))
}

// No send waits: messages pile up, and an algorithm that counts on being held
// back mixes them up.
func TestBuffered(t *testing.T) {
	t.Parallel()
	collectivetest.Run(t, collectivetest.MemWorld(1<<30))
}
