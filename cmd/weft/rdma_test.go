package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/weft-hpc/weft/internal/topo"
	"github.com/weft-hpc/weft/rdma"
	"github.com/weft-hpc/weft/rdma/fake"
)

func rdmaText(r *rdmaInfo) string {
	var b strings.Builder
	r.rows(func(name, text string) { fmt.Fprintf(&b, "%s\t%s\n", name, text) })
	return b.String()
}

func TestInfoOfRDMADevices(t *testing.T) {
	f := fake.New(fake.Options{})
	defer f.Close()
	f.AddCard("fake0", fake.CardOptions{})
	f.AddCard("fake1", fake.CardOptions{}).SetPort(false)
	r := gatherRDMA(f, 0)
	out := rdmaText(r)
	for _, want := range []string{"RDMA device fake0\t", "RDMA device fake1\t", "port 1\tactive, Ethernet, MTU ", "port 1\tdown, ",
		"GID\t0: fe80::", "RoCE v2", "RDMA choice\tfake0:1 with GID ", "the only active port"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	if c := r.Choice.Value; c.Device != "fake0" || c.GID == 0 {
		t.Errorf("choice %+v: the first GID is a link-local one", c)
	}
	if a := r.verbsAnswer(); a.State != topo.Present {
		t.Errorf("verbs is %v", a)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

// Nothing to choose is said with the command that helps.
func TestInfoOfUnusableRDMADevices(t *testing.T) {
	f := fake.New(fake.Options{})
	defer f.Close()
	if a := gatherRDMA(f, -1).verbsAnswer(); a.State != topo.Absent || !strings.Contains(a.Why, "rdma link add") {
		t.Errorf("without a device verbs is %v", a)
	}
	c := f.AddCard("fake0", fake.CardOptions{})
	c.SetPort(false)
	if a := gatherRDMA(f, -1).verbsAnswer(); a.State != topo.Absent || !strings.Contains(a.Why, "fake0:1 is down") {
		t.Errorf("with a port that is down verbs is %v", a)
	}
	c.SetPort(true)
	c.SetGIDs([]rdma.GIDEntry{})
	if a := gatherRDMA(f, -1).verbsAnswer(); a.State != topo.Absent || !strings.Contains(a.Why, "GID") {
		t.Errorf("without a GID verbs is %v", a)
	}
}
