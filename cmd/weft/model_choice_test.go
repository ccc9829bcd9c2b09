package main

import (
	"testing"

	"github.com/weft-hpc/weft/collective"
)

// What is chosen by formulas is about as fast, on the model, as the best that there is when the
// schedules of all ranks are run.
func TestChoiceOnModel(t *testing.T) {
	machines := map[string]machine{
		"flat InfiniBand": {*collective.NewModel(collective.OneHost, collective.InfiniBand), 1},
		"flat Ethernet":   {*collective.NewModel(collective.OneHost, collective.Ethernet), 1},
		"4 on InfiniBand": {*collective.NewModel(collective.OneHost, collective.InfiniBand), 4},
		"6 on Ethernet":   {*collective.NewModel(collective.OneHost, collective.Ethernet), 6},
		"one host":        {*collective.NewModel(collective.OneHost, collective.Ethernet), 64},
	}
	for name, net := range machines {
		for _, kind := range collective.Kinds() {
			for _, ranks := range []int{2, 3, 8, 12, 32} {
				for _, size := range []int{0, 8, 1 << 10, 16 << 10, 128 << 10, 1 << 20} {
					if kind == collective.KindBarrier && size > 0 || kind == collective.KindAlltoallv {
						continue
					}
					var chosen, best prediction
					for _, algName := range collective.Algorithms(kind) {
						alg, err := collective.Lookup(kind, algName)
						if err != nil {
							t.Fatal(err)
						}
						if !alg.Suits(ranks, net.nodes(ranks), true) {
							continue
						}
						p, err := net.predict(alg, ranks, size)
						if err != nil {
							t.Fatal(err)
						}
						if p.Chosen {
							chosen = p
						}
						if best.Algorithm == "" || p.Seconds < best.Seconds {
							best = p
						}
						if r := p.Formula / p.Seconds; p.Seconds > 0 && (r < 0.4 || r > 2.5) {
							t.Errorf("%s: %v by %s on %d ranks, %d bytes: the formula says %v, the run %v", name, kind, algName, ranks, size, seconds(p.Formula), seconds(p.Seconds))
						}
					}
					if chosen.Seconds > 1.5*best.Seconds {
						t.Errorf("%s: %v on %d ranks, %d bytes: %s is chosen and takes %v, %s %v; the formulas say %v and %v", name, kind, ranks, size,
							chosen.Algorithm, seconds(chosen.Seconds), best.Algorithm, seconds(best.Seconds), seconds(chosen.Formula), seconds(best.Formula))
					}
				}
			}
		}
	}
}
