//go:build !zmq || !cgo || !linux

package zmq

import (
	"errors"

	"github.com/weft-hpc/weft/internal/plane"
)

func init() {
	plane.Register(Name, plane.Way{Absent: errors.New("zmq is not built in: apt-get install gcc pkg-config libzmq3-dev, " +
		"then CGO_ENABLED=1 go build -tags zmq ./cmd/weftrun, and install that weftrun on all hosts")})
}
