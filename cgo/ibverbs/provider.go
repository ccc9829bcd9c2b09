package ibverbs

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/weft-hpc/weft/rdma"
)

// Name is the name under which the provider is registered.
const Name = "ibverbs"

// IO is a way to drive completion queues.
type IO uint8

// Ways to drive completion queues; see the package comment.
const (
	Direct IO = iota + 1
	Thread
)

// DefaultIO is the way that is taken where nothing else is said. On soft-RoCE in a VM with two cores Direct
// was better in almost every figure (BenchmarkLatency8, Rate8, Write), also beside a program that computes on all cores: the
// thread adds a hand-over to each completion, and takes a core from the program.
const DefaultIO = Direct

func (io IO) String() string {
	switch io {
	case Direct:
		return "direct"
	case Thread:
		return "thread"
	}
	return fmt.Sprintf("IO %d", uint8(io))
}

// DefaultSpin is how long the thread polls after the last completion before it sleeps.
const DefaultSpin = 50 * time.Microsecond

// Options change a provider. The zero value takes the environment, then the defaults.
type Options struct {
	// Library is the file to load. If empty: WEFT_IBVERBS_LIB, then libibverbs.so.1
	// and libibverbs.so where the system looks for libraries.
	Library string

	// IO is how completion queues are driven. If zero: WEFT_RDMA_IO, which is
	// "direct" or "thread", then DefaultIO.
	IO IO

	// Spin is how long the thread polls after the last completion before it
	// sleeps. DefaultSpin if zero; negative for not at all.
	Spin time.Duration
}

// Provider reaches the devices of libibverbs. Its methods may be called from any
// goroutine. The library is loaded once and stays loaded.
type Provider struct {
	opts  Options
	sysfs sysfs // where the kernel shows devices
	mu    sync.Mutex
	lib   library
}

// New makes a provider. The one that is registered has no options.
func New(opts Options) *Provider { return &Provider{opts: opts, sysfs: "/sys"} }

func init() { rdma.Register(New(Options{})) }

// Name is that of the registered provider, whatever the options.
func (p *Provider) Name() string { return Name }

var _ rdma.Provider = (*Provider)(nil)

// path is the library to load, empty for the usual one.
func (p *Provider) path() string {
	if p.opts.Library != "" {
		return p.opts.Library
	}
	return os.Getenv("WEFT_IBVERBS_LIB")
}

// io is the way that is asked for.
func (p *Provider) io() (IO, error) {
	if p.opts.IO != 0 {
		return p.opts.IO, nil
	}
	switch v := os.Getenv("WEFT_RDMA_IO"); v {
	case "":
		return DefaultIO, nil
	case "direct":
		return Direct, nil
	case "thread":
		return Thread, nil
	default:
		return 0, &rdma.Error{Op: rdma.OpOpenDevice, Kind: rdma.ErrInvalid,
			What: fmt.Sprintf("WEFT_RDMA_IO is %q", v), Hint: "set it to direct or thread, or unset it"}
	}
}
