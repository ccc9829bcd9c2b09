package shm

import (
	"testing"

	"github.com/weft-hpc/weft/internal/transport"
)

// Every rank has slots, however many there are, and they do not lie in anything else.
func TestSlotsOfManyRanks(t *testing.T) {
	for _, ranks := range []int{1, 2, 8, 63, 64, 65, 128, 1000, MaxRanks} {
		l, err := newLayout(ranks, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if l.slots < 1 || l.slots > slotsMax || l.slots*ranks > slotsTotal {
			t.Errorf("%d ranks: %d slots for each", ranks, l.slots)
		}
		first, last := l.slot(0, 0), l.slot(ranks-1, l.slots-1)+transport.SlotSize
		if bulks := l.bulk(ranks-1, ranks-1) + l.bulkBytes(); first%pageSize != 0 || first < bulks || last > l.arenas {
			t.Errorf("%d ranks: slots from %d to %d; bulk chunks end at %d, arenas start at %d", ranks, first, last, bulks, l.arenas)
		}
	}
}
