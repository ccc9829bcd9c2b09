package weft

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/weft-hpc/weft/internal/topo"
)

func TestConfined(t *testing.T) {
	core := func(socket, node int) topo.Core { return topo.Core{CPUs: []int{0}, Socket: socket, Node: node} }
	for name, c := range map[string]struct {
		cores        []topo.Core
		socket, node int
	}{
		"one core":              {[]topo.Core{core(1, 3)}, 1, 3},
		"one NUMA node":         {[]topo.Core{core(0, 2), core(0, 2)}, 0, 2},
		"one socket, two nodes": {[]topo.Core{core(1, 2), core(1, 3)}, 1, Undefined},
		"everything":            {[]topo.Core{core(0, 0), core(0, 1), core(1, 2)}, Undefined, Undefined},
	} {
		socket := confined(c.cores, func(core topo.Core) int { return core.Socket })
		node := confined(c.cores, func(core topo.Core) int { return core.Node })
		if socket != c.socket || node != c.node {
			t.Errorf("%s: socket %d and node %d, want %d and %d", name, socket, node, c.socket, c.node)
		}
	}
}

// The ranks of a test are one process, so they are all on the same part, or none is; with two hosts
// there is a communicator for each.
func TestSplitSocketAndNUMA(t *testing.T) {
	cores, err := ownCores()
	if err != nil {
		t.Fatal(err)
	}
	for _, hosts := range [][]int{nil, {0, 1, 0, 1, 1}} {
		err := Local(t.Context(), 5, func(ctx context.Context, c *Comm) error {
			want := []int32{0, 1, 2, 3, 4}
			if hosts != nil {
				want = slices.DeleteFunc(want, func(r int32) bool { return hosts[r] != hosts[c.rank] })
			}
			for _, split := range []struct {
				name string
				call func(context.Context) (*Comm, error)
				part int
			}{
				{"socket", c.SplitSocket, confined(cores, func(core topo.Core) int { return core.Socket })},
				{"NUMA node", c.SplitNUMA, confined(cores, func(core topo.Core) int { return core.Node })},
			} {
				own, err := split.call(ctx)
				switch {
				case err != nil:
					return err
				case (own == nil) != (split.part == Undefined):
					return fmt.Errorf("%s: communicator %v where the process is on %d", split.name, own, split.part)
				case own == nil:
					continue
				}
				if !slices.Equal(own.comm.Members(), want) {
					return fmt.Errorf("%s: %v are on that of rank %d, want %v", split.name, own.comm.Members(), c.rank, want)
				}
				if err := own.Close(ctx); err != nil {
					return err
				}
			}
			return nil
		}, func(cfg *config) { cfg.nodes = hosts })
		if err != nil {
			t.Fatal(err)
		}
	}
}
