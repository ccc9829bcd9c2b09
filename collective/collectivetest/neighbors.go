package collectivetest

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/weft-hpc/weft/collective"
)

// neighbors runs exchanges on graphs: rings on which two ranks are neighbours
// twice and a rank its own neighbour, and graphs with edges by chance, several of
// them between the same ranks. A message holds who sends it and where in the
// list, and the receiver knows what is due.
func neighbors(t *testing.T, w World) {
	for _, ranks := range []int{1, 2, 3, 5, 8} {
		for graph := range 6 {
			type edge struct{ from, to int }
			var edges []edge
			for from := range ranks {
				if graph == 0 {
					edges = append(edges, edge{from, (from + 1) % ranks}, edge{from, (from + ranks - 1) % ranks})
				}
				for i := 0; graph > 0 && i < int(hash(graph, from)%4); i++ {
					edges = append(edges, edge{from, int(hash(from*7+graph, i) % uint64(ranks))})
				}
			}
			message := func(i int) []byte {
				return bytes.Repeat([]byte{byte(i + 1)}, i%3*20)
			}
			for _, recorded := range []bool{false, true} {
				for rank, err := range w(ranks, func(p collective.Peer) error {
					a := collective.Args{Neighbors: new(collective.Neighbors)}
					var want [][]byte
					for i, e := range edges {
						if e.from == p.Rank() {
							a.Sends = append(a.Sends, collective.Part{Peer: e.to, Buf: message(i)})
						}
						if e.to == p.Rank() {
							want = append(want, message(i))
							a.Recvs = append(a.Recvs, collective.Part{Peer: e.from, Buf: make([]byte, len(message(i)))})
						}
					}
					if err := runNeighbor(p, a, recorded); err != nil {
						return err
					}
					for i, r := range a.Recvs {
						if !bytes.Equal(r.Buf, want[i]) {
							return fmt.Errorf("message %d from rank %d: %v, want %v", i, r.Peer, r.Buf, want[i])
						}
					}
					return nil
				}) {
					if err != nil {
						t.Fatalf("%d ranks, graph %d, recorded %t: rank %d: %v", ranks, graph, recorded, rank, err)
					}
				}
			}
		}
	}
}

func runNeighbor(p collective.Peer, a collective.Args, recorded bool) error {
	if !recorded {
		return collective.Neighbor(p, a.Sends, a.Recvs)
	}
	alg, err := collective.Lookup(collective.KindNeighbor, "posted")
	if err != nil {
		return err
	}
	var s collective.Schedule
	if err := s.Record(alg, p.Rank(), p.Size(), a); err != nil {
		return err
	}
	return s.Play(p)
}
