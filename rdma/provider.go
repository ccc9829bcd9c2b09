package rdma

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Provider reaches the devices of one kind.
type Provider interface {
	// Name is the name it is registered under.
	Name() string

	// Devices lists the devices, also those without an active port. None is
	// an error: ErrNoDevice where the system was asked and has none,
	// ErrUnsupported where it cannot have any (no library, no kernel
	// support), and any other where it could not be found out.
	Devices() ([]DeviceInfo, error)

	// Open opens the device of that name. An unknown name is ErrNoDevice and
	// names the nearest known one.
	Open(name string) (Device, error)
}

var registry struct {
	sync.Mutex
	providers map[string]Provider
}

// Register makes a provider known under its name. Packages of providers do
// it when they are imported. A second provider of one name is a mistake in the
// program and panics.
func Register(p Provider) {
	registry.Lock()
	defer registry.Unlock()
	if registry.providers == nil {
		registry.providers = make(map[string]Provider)
	}
	if _, ok := registry.providers[p.Name()]; ok {
		panic(fmt.Sprintf("rdma: two providers are named %q", p.Name()))
	}
	registry.providers[p.Name()] = p
}

// Providers returns the names of the registered providers, sorted.
func Providers() []string {
	registry.Lock()
	defer registry.Unlock()
	var names []string
	for name := range registry.providers {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Lookup returns the provider of that name, or ErrNoProvider.
func Lookup(name string) (Provider, error) {
	registry.Lock()
	p, ok := registry.providers[name]
	registry.Unlock()
	if ok {
		return p, nil
	}
	known := strings.Join(Providers(), ", ")
	if known == "" {
		known = "none"
	}
	return nil, &Error{
		Op: OpOpenDevice, Kind: ErrNoProvider,
		What: fmt.Sprintf("this program has no RDMA provider %q (it has: %s)", name, known),
		Hint: `import _ "github.com/weft-hpc/weft/cgo/ibverbs" and build with CGO_ENABLED=1`,
	}
}

// DeviceInfo is what is known of a device before it is opened.
type DeviceInfo struct {
	Name     string // mlx5_0, rxe0
	Provider string // of this package's registry
	Driver   string // kernel driver: mlx5_core, rdma_rxe; empty if not known
	Path     string // the file that opens it; empty if there is none
	Firmware string // its version; empty if not known
	NodeGUID uint64
	NUMANode int // -1 if not known
	IWARP    bool
	Ports    int // 0 if not known before it is opened
}

// Device is an opened device. Its methods may be called from any goroutine.
type Device interface {
	Info() DeviceInfo
	Limits() Limits

	// Ports are numbered from 1 to Limits().Ports. QueryPort asks the device now.
	QueryPort(port int) (Port, error)

	// GIDTable returns all entries of a port's table that are not empty,
	// and those that could not be read, with their Err.
	GIDTable(port int) ([]GIDEntry, error)

	// PKeyTable returns the table of a port's partition keys. The index in the slice is
	// the index in the table; 0 is an empty entry.
	PKeyTable(port int) ([]uint16, error)

	AllocPD() (PD, error)
	CreateCompChannel() (CompChannel, error)

	// CreateCQ makes a queue for at least size completions; CQ.Cap tells how
	// many. channel is nil for a CQ that is only polled.
	CreateCQ(size int, channel CompChannel) (CQ, error)

	// EventFD is readable when NextEvent has something. It belongs to the
	// device: do not read from it or close it.
	EventFD() int

	// NextEvent takes the next asynchronous event, and never waits: false
	// means that there is none now. After DeviceFatal there is no other.
	NextEvent() (Event, bool, error)

	// Resources counts what is open on this device, by this handle.
	Resources() Resources

	// Close gives the device back. With anything open on it, it is refused
	// with ErrBusy.
	Close() error
}

// Resources counts objects that are not closed.
type Resources struct{ PDs, MRs, Channels, CQs, SRQs, QPs int }

// String lists what is not zero.
func (r Resources) String() string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{r.QPs, "queue pairs"}, {r.SRQs, "shared receive queues"}, {r.MRs, "memory regions"}, {r.CQs, "completion queues"},
		{r.Channels, "completion channels"}, {r.PDs, "protection domains"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	if parts == nil {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

// Limits are what a device can do at most. They do not change while it is open.
type Limits struct {
	Ports      int
	MaxQPs     int
	MaxQPWRs   int // work requests of one queue
	MaxSGEs    int // segments of one work request
	MaxInline  int // bytes; 0 if not known; a QP may be granted less
	MaxCQs     int
	MaxCQEs    int // completions of one CQ
	MaxSRQs    int
	MaxSRQWRs  int
	MaxMRs     int
	MaxMRBytes int64 // of one region
	MaxReads   int   // RDMA READs and atomics in flight on one QP
	Atomics    bool

	// MaxRetries is the highest RTSAttr.Retries that ends. 7 on hardware; 6
	// on soft-RoCE, which takes 7 for "for ever".
	MaxRetries int

	// RNRForever says that RTSAttr.RNRRetries may be RetryForever. On soft-RoCE it may
	// not: a peer that never posts would keep the kernel busy.
	RNRForever bool

	// Solicited says that Arm for solicited completions only is quiet about others. Where
	// it is false, that is the same as to arm for all.
	Solicited bool

	// Inspects says that the device finds mistakes that others let pass: a region
	// that is closed while posted work needs it is ErrBusy, a slot of a send queue
	// is not free before a completion was polled, a CQ that overran takes its QPs along.
	Inspects bool
}
