package control

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestLayout(t *testing.T) {
	repeat := func(hosts, ranks int) (out []int) { // ranks fill hosts
		for h := range hosts {
			out = append(out, slices.Repeat([]int{h}, ranks)...)
		}
		return out
	}
	deal := func(hosts, ranks int) (out []int) { // ranks are dealt out to hosts
		for r := range hosts * ranks {
			out = append(out, r%hosts)
		}
		return out
	}
	layoutOf := func(hostOf []int) Layout {
		var hosts [][]int
		for rank, h := range hostOf {
			for len(hosts) <= h {
				hosts = append(hosts, nil)
			}
			hosts[h] = append(hosts[h], rank)
		}
		return MakeLayout(hosts)
	}
	for name, c := range map[string]struct {
		hosts []int
		most  int // triples
	}{
		"none":               {nil, 0},
		"one":                {repeat(1, 64), 1},
		"a thousand":         {repeat(1000, 64), 1},
		"dealt":              {deal(1000, 64), 64},
		"the last is short":  {repeat(10, 8)[:75], 2},
		"one each, twice":    {[]int{0, 1, 2, 0, 1, 2}, 2},
		"as it comes":        {[]int{1, 1, 0, 2, 2, 2, 1}, 4},
		"backwards":          {[]int{2, 1, 0}, 3},
		"far hosts, in turn": {[]int{7, 8, 8, 9, 9}, 2},
	} {
		l := layoutOf(c.hosts)
		if len(l) > c.most {
			t.Errorf("%s: %d triples, want %d at most: %v", name, len(l), c.most, l)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		hosts := rapid.SliceOfN(rapid.IntRange(0, 5), 1, 60).Draw(t, "hosts")
		want := make([]int, len(hosts))
		for r, h := range hosts {
			want[r] = slices.Index(hosts, h)
		}
		if slices.Max(want) == 0 {
			want = nil
		}
		got, err := layoutOf(hosts).Nodes(len(hosts))
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Fatalf("%v: %v\n%s", hosts, err, d)
		}
	})
	for _, bad := range []Layout{nil, {{0, 3, 0}}, {{0, 5, 0}}, {{0, 2, 2}}, {{-1, 4, 0}}, {{0, 0, 0}}, {{0, 4, -1}}, {{0, 1 << 62, 1 << 62}}, {{0, 4, 0}, {1, 1, 0}}} {
		if nodes, err := bad.Nodes(4); err == nil {
			t.Errorf("%v: %v", bad, nodes)
		}
	}
}
