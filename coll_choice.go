package weft

import (
	"sync"

	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/internal/board"
)

// choice is what the algorithms of a communicator's collectives are chosen by. It is made
// when the first one sends messages, of what all ranks know alike.
type choice struct {
	once    sync.Once
	chooser *collective.Chooser
}

// choose returns the communicator's chooser.
func (c *Comm) choose() *collective.Chooser {
	c.choice.once.Do(func() {
		var topology *collective.Topology
		if c.w.nodes != nil {
			nodes := make([]int, c.size)
			for i, rank := range c.comm.Members() {
				nodes[i] = c.w.nodes[rank]
			}
			if topology = collective.NewTopology(nodes); c.w.hostsShare && topology.Most(c.size) <= board.MaxRanks {
				topology = topology.Sharing()
			}
		}
		c.choice.chooser = collective.NewChooser(c.w.model, c.size, topology)
	})
	return c.choice.chooser
}
