package weft

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// rankCard is what a rank tells all others when it joins the job.
type rankCard struct {
	node      int    // the same for all ranks of a host
	without   string // why it cannot use RDMA, where that is asked; empty if it can
	transport []byte // the card of its TCP transport
}

// Limits of a card.
const mostWithout = 1 << 10

func (c rankCard) encode() []byte {
	b := binary.AppendUvarint(nil, uint64(c.node))
	why := c.without[:min(len(c.without), mostWithout)]
	b = append(binary.AppendUvarint(b, uint64(len(why))), why...)
	return append(b, c.transport...)
}

// decodeCards decodes the cards of all ranks.
func decodeCards(cards [][]byte) ([]rankCard, error) {
	all := make([]rankCard, len(cards))
	for rank, b := range cards {
		node, n := binary.Uvarint(b)
		if n <= 0 || node >= uint64(len(cards)) {
			return nil, badCard(rank)
		}
		b = b[n:]
		length, n := binary.Uvarint(b)
		if n <= 0 || length > uint64(len(b)-n) {
			return nil, badCard(rank)
		}
		b = b[n:]
		all[rank] = rankCard{node: int(node), without: string(b[:length]), transport: b[length:]}
	}
	return all, nil
}

func badCard(rank int) error {
	return fmt.Errorf("rank %d sent a card that is none; start all ranks from one build", rank)
}

// transportCards returns the cards of the TCP transports.
func transportCards(all []rankCard) [][]byte {
	cards := make([][]byte, len(all))
	for rank, c := range all {
		cards[rank] = c.transport
	}
	return cards
}

// nodesOf returns the nodes of the ranks, nil if all are on one.
func nodesOf(all []rankCard) []int {
	nodes := make([]int, len(all))
	for rank, c := range all {
		nodes[rank] = c.node
	}
	if !slices.ContainsFunc(nodes, func(n int) bool { return n != nodes[0] }) {
		return nil
	}
	return nodes
}
