package collective

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
)

// Where ranks of a node share memory, an algorithm that shares has each phase once on every rank, in order, and besides them only
// messages between nodes, as many as Cost says. The steps that stand in for a phase are those of ranks that do not share.
func TestSharedPhases(t *testing.T) {
	nothing := func(inout, in []byte) {}
	for _, nodes := range [][]int{{0, 0, 1, 1}, {0, 0, 0, 1, 1, 1, 2, 2, 2}, {0, 0, 0, 1}, {0, 1, 0, 2, 1, 0, 0}} {
		plain := NewTopology(nodes)
		for kind := range registry {
			for _, alg := range registry[kind] {
				if !alg.NodeAware || alg.Kind.Rooted() || alg == &allreduceSlices {
					continue
				}
				t.Run(fmt.Sprintf("%v/%s/%v", alg.Kind, alg.Name, nodes), func(t *testing.T) {
					const block = 24
					size := len(nodes)
					shape := Shape{Ranks: size, Bytes: block, Nodes: plain.Sharing()}
					a := Args{Send: make([]byte, block), Recv: make([]byte, block)}
					switch {
					case alg.Kind == KindBarrier:
						shape.Bytes = 0
					case alg.Kind == KindAllgather:
						a.Recv, shape.Bytes = make([]byte, size*block), size*block
					case alg.Kind.Reduces():
						shape.Elem = 8
						a.Op = Op{Size: 8, Commutative: true, Left: nothing, Right: nothing}
					}
					want := alg.Cost(shape)
					var got Cost
					for rank := range nodes {
						var sched, byMessages Schedule
						a.Nodes = shape.Nodes
						if err := sched.Record(alg, rank, size, a); err != nil {
							t.Fatal(err)
						}
						a.Nodes = plain
						if err := byMessages.Record(alg, rank, size, a); err != nil {
							t.Fatal(err)
						}
						var shared []Phase
						steps := sched.Steps()
						for i := 0; i < len(steps); i++ {
							switch step := &steps[i]; step.Kind {
							case StepShare:
								shared = append(shared, step.Phase)
								i += step.Else
							case StepSend:
								got.Messages++
								got.Bytes += len(step.A)
								if nodes[rank] == nodes[step.Peer] {
									t.Errorf("rank %d sends to rank %d on its node", rank, step.Peer)
								}
							}
						}
						if mates, _ := plain.Mates(rank); len(mates) > 1 && !slices.Equal(shared, []Phase{Up, Down}) || len(mates) == 1 && shared != nil {
							t.Errorf("rank %d of %d on its node has phases %v", rank, len(mates), shared)
						}
						rest := slices.DeleteFunc(slices.Clone(steps), func(s Step) bool { return s.Kind == StepShare })
						if !slices.EqualFunc(rest, byMessages.Steps(), func(x, y Step) bool {
							return x.Kind == y.Kind && x.Peer == y.Peer && len(x.A) == len(y.A) && len(x.B) == len(y.B)
						}) {
							t.Errorf("rank %d has other messages than where nothing is shared", rank)
						}
					}
					got.Between = got.Bytes
					got.Steps = stepsOf(shape, alg.run)
					if !reflect.DeepEqual(got, want) {
						t.Errorf("counted %+v, the formula says %+v", got, want)
					}
				})
			}
		}
	}
}

// A phase over shared memory is predicted to take less than messages, where most data can be had, and as long where they may be
// out of reach.
func TestSharedPhasesArePredicted(t *testing.T) {
	nodes := NewTopology([]int{0, 0, 0, 0, 1, 1, 1, 1})
	model := NewModel(OneHost, Ethernet)
	with, without := NewChooser(model, 8, nodes.Sharing()), NewChooser(model, 8, nodes)
	for _, alg := range []*Algorithm{&barrierLeaders, &allreduceLeaders, &allgatherLeaders} {
		for _, n := range []int{8, 4 << 10, 100 << 10} {
			if a, b := with.Predict(alg, n), without.Predict(alg, n); a >= b {
				t.Errorf("%v of %d bytes: %v s, by messages %v s", alg.Kind, n, a, b)
			}
		}
		if a, b := with.Predict(alg, 4<<20), without.Predict(alg, 4<<20); a != b && alg.Kind != KindBarrier {
			t.Errorf("%v of 4 MiB: %v s, by messages %v s", alg.Kind, a, b)
		}
	}
}
