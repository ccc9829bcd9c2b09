package weft

import (
	"sync"

	"github.com/weft-hpc/weft/collective"
)

// choice is what the algorithms of a communicator's collectives are chosen by. It is made
// when the first one sends messages, of what all ranks know alike.
type choice struct {
	once  sync.Once
	nodes *collective.Topology
}

// choose returns the communicator's choice.
func (c *Comm) choose() *choice {
	c.choice.once.Do(func() {
		if c.w.nodes == nil {
			return
		}
		nodes := make([]int, c.size)
		for i, rank := range c.comm.Members() {
			nodes[i] = c.w.nodes[rank]
		}
		c.choice.nodes = collective.NewTopology(nodes)
	})
	return &c.choice
}
