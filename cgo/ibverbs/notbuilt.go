//go:build !linux || !cgo

package ibverbs

import (
	"github.com/weft-hpc/weft/rdma"
)

// Built tells whether this program has what calls libibverbs.
const Built = false

type library struct{}

func notBuilt() error {
	return &rdma.Error{Op: rdma.OpListDevices, Kind: rdma.ErrUnsupported,
		What: "verbs is not built in: this program was built without cgo, or not for Linux",
		Hint: "apt-get install gcc libibverbs-dev, then CGO_ENABLED=1 go build -a"}
}

// Devices reports that verbs is not built in.
func (p *Provider) Devices() ([]rdma.DeviceInfo, error) { return nil, notBuilt() }

// Open reports that verbs is not built in.
func (p *Provider) Open(name string) (rdma.Device, error) {
	err := notBuilt()
	return nil, rdma.Locate(err, name, 0, 0)
}
