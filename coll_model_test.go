package weft_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-hpc/weft"
	"github.com/weft-hpc/weft/collective"
	"github.com/weft-hpc/weft/wefttest"
)

func init() {
	// All ranks have one model, and choose by it. It is said by rank 0.
	programs["model"] = func(ctx context.Context, c *weft.Comm) error {
		m, from := c.World().Model()
		b, err := json.Marshal(m)
		if err != nil {
			return err
		}
		p, err := weft.PlanAllgatherv(c, make([]byte, 8), make([]byte, 8*c.Size()), weft.Counts{N: slices.Repeat([]int{8}, c.Size())})
		if err != nil {
			return err
		}
		var mine [512]byte
		copy(mine[:], string(b)+p.Explain().Algorithm)
		all, err := weft.AllgatherValue(ctx, c, mine)
		if err != nil {
			return err
		}
		for rank, other := range all {
			if other != all[0] {
				return fmt.Errorf("rank %d has %s, rank 0 %s", rank, other[:], all[0][:])
			}
		}
		if c.Rank() == 0 {
			fmt.Printf("%s; allgatherv by %s, %s\n", from, p.Explain().Algorithm, p.Explain().Why)
		}
		return nil
	}
}

func TestModelOfJob(t *testing.T) {
	dir := t.TempDir()
	// A machine on which a message costs next to nothing, and a byte a lot, and one the other way round.
	files := map[string]string{}
	for name, k := range map[string]collective.Link{
		"bytes":    {PerByte: 1e-3},
		"messages": {Latency: 1e-2},
	} {
		b, err := json.Marshal(collective.Model{Inside: k, Between: k, Copy: k.PerByte})
		if err != nil {
			t.Fatal(err)
		}
		files[name] = filepath.Join(dir, name)
		if err := os.WriteFile(files[name], b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte(`{"inside": {}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, transport := range testTransports() {
		for _, test := range []struct {
			model string
			code  int
			text  string
		}{
			{"", 0, "default for " + transport},
			{files["bytes"], 0, "the file that WEFT_MODEL names; allgatherv by ring"},
			{files["messages"], 0, "the file that WEFT_MODEL names; allgatherv by bruck"},
			{"measure", 0, "measured at the start"},
			{broken, 1, "does not say copy_per_byte_s; make one with weft tune"},
			{filepath.Join(dir, "none"), 1, "no such file or directory; make one with weft tune; 4 other ranks"},
		} {
			t.Run(transport+"/"+filepath.Base(test.model), func(t *testing.T) {
				t.Setenv("WEFT_MODEL", test.model)
				out, code := launch(t, 5, transport, "model")
				if code != test.code || !strings.Contains(out, test.text) {
					t.Errorf("exit code %d, want %d and %q; output:\n%s", code, test.code, test.text, out)
				}
			})
		}
	}
}

// All ranks get what rank 0 has measured, whatever nodes they are on.
func TestMeasureModel(t *testing.T) {
	for _, nodes := range [][]int{{0}, {0, 0}, {0, 1}, {0, 0, 1}, {3, 0, 1, 3, 0}} {
		wefttest.Run(t, len(nodes), func(ctx context.Context, c *weft.Comm) error {
			m, err := c.World().MeasureModel(ctx, time.Millisecond)
			if err != nil {
				return err
			}
			all := make([]collective.Model, c.Size())
			if err := weft.Allgather(ctx, c, []collective.Model{m}, all); err != nil {
				return err
			}
			b, err := json.Marshal(m)
			if err != nil {
				return err
			}
			if _, err := collective.ParseModel(b); err != nil {
				return fmt.Errorf("%s: %w", b, err)
			}
			for rank, other := range all {
				if other != m {
					return fmt.Errorf("rank %d has %+v, this rank %+v", rank, other, m)
				}
			}
			return nil
		}, weft.WithNodes(nodes...))
	}
}

// Explain says which algorithm runs on several hosts, why, and how many bytes it sends.
func TestPlanExplainsNodes(t *testing.T) {
	wefttest.Run(t, 6, func(ctx context.Context, c *weft.Comm) error {
		p, err := weft.PlanAllreduce(c, make([]int64, 2), make([]int64, 2), weft.Sum[int64](), weft.WithAlgorithm("leaders"))
		if err != nil {
			return err
		}
		if e := p.Explain(); e.Why != "as asked" || e.Predicted <= 0 || e.Messages != 2*4+2 || e.Steps != 2*2+1 {
			return fmt.Errorf("leaders: %+v", e)
		}
		p, err = weft.PlanAllreduce(c, make([]int64, 2), make([]int64, 2), weft.Sum[int64]())
		if err != nil {
			return err
		}
		if e := p.Explain(); !strings.HasPrefix(e.Why, "predicted to take ") {
			return fmt.Errorf("chosen: %+v", e)
		}
		sub, err := c.Split(ctx, c.Rank()%2, 0) // ranks of both nodes
		if err != nil {
			return err
		}
		if _, err := weft.PlanAllreduce(sub, make([]int64, 2), make([]int64, 2), weft.Sum[int64](), weft.WithAlgorithm("slices")); err == nil {
			return fmt.Errorf("slices on nodes with 2 and 1 ranks")
		}
		return sub.Close(ctx)
	}, weft.WithNodes(0, 0, 0, 1, 1, 1), weft.WithMessages())
}
