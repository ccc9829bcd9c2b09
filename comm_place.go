package weft

import (
	"context"
	"errors"

	"github.com/weft-hpc/weft/internal/topo"
)

// SplitSocket returns a communicator of the ranks on this rank's processor socket. It is nil on
// a rank that may run on several, which weftrun --bind-to socket prevents, or core. It is a
// collective call. (MPI 4.1, 7.4.2: MPI_COMM_TYPE_HW_GUIDED)
func (c *Comm) SplitSocket(ctx context.Context) (*Comm, error) {
	return c.splitHost(ctx, "SplitSocket", func(core topo.Core) int { return core.Socket })
}

// SplitNUMA returns a communicator of the ranks on this rank's NUMA node. It is nil on a
// rank that may run on several, which weftrun --bind-to numa prevents, or core. It is a
// collective call. (MPI 4.1, 7.4.2: MPI_COMM_TYPE_HW_GUIDED)
func (c *Comm) SplitNUMA(ctx context.Context) (*Comm, error) {
	return c.splitHost(ctx, "SplitNUMA", func(core topo.Core) int { return core.Node })
}

// splitHost splits the ranks of each host by what part of it they are confined to.
func (c *Comm) splitHost(ctx context.Context, call string, part func(topo.Core) int) (*Comm, error) {
	cores, err := ownCores()
	if err != nil {
		return nil, c.refuse(ctx, call, c.errorf(call, err, "make /sys/devices/system readable, where the kernel tells of processors"))
	}
	host, err := c.SplitNode(ctx)
	if err != nil {
		return nil, err
	}
	own, err := host.Split(ctx, confined(cores, part), 0)
	closed := host.Close(ctx) // also after an error, which comes first
	if err != nil {
		return nil, err
	}
	return own, closed
}

// ownCores returns the cores that this process may use.
func ownCores() ([]topo.Core, error) {
	cpus, err := topo.Allowed()
	if err != nil {
		return nil, err
	}
	cores, err := topo.System.Machine(cpus)
	if err == nil && len(cores) == 0 {
		err = errors.New("this process may use no processor")
	}
	return cores, err
}

// confined returns the part of the machine that has all of the cores, or Undefined.
func confined(cores []topo.Core, part func(topo.Core) int) int {
	first := part(cores[0])
	for _, core := range cores[1:] {
		if part(core) != first {
			return Undefined
		}
	}
	return first
}
