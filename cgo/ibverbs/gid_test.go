//go:build linux && cgo

package ibverbs

import (
	"os"
	"slices"
	"testing"

	"github.com/weft-hpc/weft/rdma"
)

// realDevice opens the device that WEFT_RDMA_DEVICE names.
func realDevice(t testing.TB) (d *device, port int) {
	t.Helper()
	spec := os.Getenv("WEFT_RDMA_DEVICE")
	if spec == "" {
		t.Skip("no RDMA device named: set WEFT_RDMA_DEVICE=rxe0 to test on it")
	}
	name, port, err := rdma.ParseSpec(spec)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := New(Options{}).Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev.(*device), max(1, port)
}

// The one call and the files of sysfs give the same table.
func TestGIDTableBothWays(t *testing.T) {
	d, port := realDevice(t)
	p, err := d.QueryPort(port)
	if err != nil {
		t.Fatal(err)
	}
	byCall, err := d.gids(port, p)
	if err != nil {
		t.Fatal(err)
	}
	byFile, err := d.p.sysfs.gids(d.info.Name, port, p.GIDs, p.LinkLayer)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(byCall, byFile) || len(byFile) == 0 {
		t.Errorf("by call %v, by file %v", byCall, byFile)
	}
	t.Log(byCall, d.info, d.limits, p)
}
