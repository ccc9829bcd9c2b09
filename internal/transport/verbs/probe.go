package verbs

import (
	"errors"

	"github.com/weft-hpc/weft/rdma"
)

// Probe says why Open would find no port or address here, and nil if it would. It
// leaves nothing open.
func Probe(p rdma.Provider, device string, numa int) error {
	t := &Transport{cfg: Config{Size: 1, Provider: p, Device: device, NUMA: numa}}
	t.wake.init()
	return errors.Join(t.openRails(), t.release())
}
