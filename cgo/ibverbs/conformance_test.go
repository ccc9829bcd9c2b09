//go:build linux && cgo

package ibverbs_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/weft-hpc/weft/cgo/ibverbs"
	"github.com/weft-hpc/weft/rdma"
	"github.com/weft-hpc/weft/rdma/rdmatest"
)

// device is the real device to test on: WEFT_RDMA_DEVICE=rxe0, or rxe0:2 for its second port. Without
// that only what needs no device is tested. With it, a device that is not there is a failure.
func device(t testing.TB) (name string, port int) {
	t.Helper()
	spec := os.Getenv("WEFT_RDMA_DEVICE")
	if spec == "" {
		t.Skip("no RDMA device named: set WEFT_RDMA_DEVICE=rxe0 to test on it")
	}
	name, port, err := rdma.ParseSpec(spec)
	if err != nil {
		t.Fatal(err)
	}
	return name, max(1, port)
}

func open(t testing.TB, opts ibverbs.Options, name string) rdma.Device {
	t.Helper()
	d, err := ibverbs.New(opts).Open(name)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

var modes = []ibverbs.IO{ibverbs.Direct, ibverbs.Thread}

// The suite for providers, on two handles of one device.
func TestConformance(t *testing.T) {
	name, port := device(t)
	for _, io := range modes {
		t.Run(io.String(), func(t *testing.T) {
			rdmatest.Run(t, func(t testing.TB) (a, b rdmatest.Endpoint) {
				opts := ibverbs.Options{IO: io}
				return rdmatest.Endpoint{Device: open(t, opts, name), Port: port, QuickTimeout: quickTimeout},
					rdmatest.Endpoint{Device: open(t, opts, name), Port: port, QuickTimeout: quickTimeout}
			})
		})
	}
}

// quickTimeout is more than soft-RoCE takes for an answer in an emulated machine.
const quickTimeout = 67 * time.Millisecond

func TestWrongName(t *testing.T) {
	name, _ := device(t)
	_, err := ibverbs.New(ibverbs.Options{}).Open(name + "x")
	if !errors.Is(err, rdma.ErrNoDevice) {
		t.Fatalf("a device that does not exist: %v", err)
	}
	wantText(t, err, "there is no device "+name+"x", "did you mean "+name+"?", "weft info")
}
