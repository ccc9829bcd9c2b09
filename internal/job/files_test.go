package job

import (
	"strings"
	"testing"

	"github.com/weft-hpc/weft/internal/batch"
)

func TestOutputPattern(t *testing.T) {
	for in, want := range map[string]string{
		"d": "d/{rank}.{stream}", "d/": "d/{rank}.{stream}", "d/{rank}.out": "d/{rank}.out", "{jobid}/{host}/{rank}-{stream}": "{jobid}/{host}/{rank}-{stream}",
	} {
		if got, err := OutputPattern(in); got != want || err != nil {
			t.Errorf("%q means %q, %v", in, got, err)
		}
	}
	for in, want := range map[string]string{
		"": "no name", "d/{host}.out": "has no {rank}", "{rank": "braces that are none of {rank}, {host}", "d/{rnk}": "none of", "{rank}}": "none of",
		"d/{rank}/": "names no file",
	} {
		if got, err := OutputPattern(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q means %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestNameOutput(t *testing.T) {
	for _, c := range []struct {
		pattern string
		job     *batch.Job
		want    string // of rank 12 on n1, or an error
	}{
		{"d/{rank}.{stream}", nil, "d/12.out"},
		{"d/{jobid}/{rank}", nil, "d/weft-1/12"},
		{"{jobid}-{rank}", &batch.Job{System: "PBS", ID: "7[3].head"}, "7[3].head-12"},
		{"{jobid}-{rank}", &batch.Job{System: "Grid Engine", ID: "9", Task: "2"}, "9.2-12"},
		{"{host}/{rank}.o", nil, "n1/12.o"},
		{"{host}{rank}", nil, "error: --output: ranks 12 and 2 would both write to n112"},
		{"{host}-{rank}{rank}", nil, "n1-1212"},
	} {
		p := &Plan{Spec: &Spec{Output: c.pattern}, Job: "weft-1", Host: "n1", Size: 13, Local: []int{12}, Others: []Site{{Name: "n11", Ranks: []int{2}}}, Batch: c.job}
		got := "error: "
		if err := p.nameOutput(); err != nil {
			got += err.Error()
		} else {
			got = outputFile(p.Spec.Output, 12, "n1", "out")
		}
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s, want %s", c.pattern, got, c.want)
		}
	}
}
