//go:build cgo

package ibverbs

import (
	"os"
	"testing"
	"time"

	"github.com/weft-hpc/weft/rdma"
	"github.com/weft-hpc/weft/rdma/rdmatest"
)

// realSpec is the real device to test on: WEFT_RDMA_DEVICE=rxe0, or rxe0:2 for its second port. Without
// that only what needs no device is tested. With it, a device that is not there is a failure.
func realSpec(t testing.TB) (name string, port int) {
	t.Helper()
	spec := os.Getenv("WEFT_RDMA_DEVICE")
	if spec == "" {
		t.Skip("no RDMA device named: set WEFT_RDMA_DEVICE=rxe0 to test on it, as make test-rdma does")
	}
	name, port, err := rdma.ParseSpec(spec)
	if err != nil {
		t.Fatal(err)
	}
	return name, max(1, port)
}

func openReal(t testing.TB, io IO) (d *device, port int) {
	t.Helper()
	name, port := realSpec(t)
	dev, err := New(Options{IO: io}).Open(name)
	if err != nil {
		t.Fatal(err)
	}
	return dev.(*device), port
}

// realDevice opens the device, and closes it at the end.
func realDevice(t testing.TB, io IO) (d *device, port int) {
	t.Helper()
	d, port = openReal(t, io)
	t.Cleanup(func() {
		if err := d.Close(); err != nil && !t.Failed() {
			t.Error(err)
		}
	})
	return d, port
}

var modes = []IO{Direct, Thread}

// The suite for providers, on two handles of one device.
func TestConformance(t *testing.T) {
	for _, io := range modes {
		t.Run(io.String(), func(t *testing.T) {
			realSpec(t)
			rdmatest.Run(t, func(t testing.TB) (a, b rdmatest.Endpoint) {
				for _, e := range []*rdmatest.Endpoint{&a, &b} {
					e.Device, e.Port = openReal(t, io)
					e.QuickTimeout = 67 * time.Millisecond // more than soft-RoCE takes for an answer in an emulated machine
				}
				return a, b
			})
		})
	}
}
