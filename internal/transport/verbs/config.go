package verbs

import (
	"fmt"
	"time"

	"github.com/weft-hpc/weft/internal/arena"
	"github.com/weft-hpc/weft/internal/transport"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/rdma"
)

// Link carries the few messages that connect two ranks, and tells of dead
// processes: in practice a TCP transport. FD is readable whenever its Poll may have
// something to do that its Arm did not report; it can be watched with epoll.
type Link interface {
	transport.Transport
	FD() int
}

// Config says who a rank is and which devices it uses.
type Config struct {
	Rank, Size int
	// Job names the job; ranks of two jobs refuse each other.
	Job      string
	Provider rdma.Provider
	// Device is "device" or "device:port", or several with commas between them: rails.
	// Empty leaves the choice to rdma.ChoosePort.
	Device string
	// NUMA is the node that this rank runs on, -1 if not known.
	NUMA int
	// GID narrows the choice of addresses.
	GID rdma.GIDWish
	// Control is the out-of-band channel. It belongs to the transport once Open has
	// returned without an error, and is closed by Close.
	Control Link
	// ArenaBytes is the size of an arena that the transport makes; 0 for none.
	ArenaBytes int64
	// Arena is an arena of somebody else's to use instead, whose memory stays mapped until
	// Close has returned.
	Arena *arena.Arena
	// Read lets receivers of large messages in arena memory fetch them by RDMA READ.
	Read bool
	// Notice takes one line about what the user should know: less memory than wanted, a port
	// that went down. Any goroutine may call it; it must not call the transport. May be nil.
	Notice func(line string)
	// Host names the host of a rank, for messages. May be nil.
	Host func(rank int) string

	tune func(*tuning) // for tests
}

// tuning holds the numbers that fit a device. Sizes are in bytes.
type tuning struct {
	segment   int // of a receive: prefix, header and payload of a frame
	receives  int // at the start
	maxRecvs  int // that receives may grow to, as peers connect
	exposures int // buffers that peers may write to at once
	sends     int // registered send buffers of segment bytes each
	sq        int // work requests of one queue pair
	cq        int // completions
	window    int // receives that one peer may use at once, at most
	minWindow int // and at least
	inline    int // asked for
	chunk     int // of one RDMA write
	split     int // from here on all rails carry a payload
	register  int // from here on memory of the Go heap is registered, for one operation
	interval  int // sends without a completion in a row

	timeout    time.Duration // until a packet is sent again
	retries    int
	rnrTimer   time.Duration
	rnrRetries int
	reads      int // RDMA READs in flight

	attempts   int           // to connect
	keepAlive  time.Duration // an idle connection is tried this often
	drain      time.Duration // how long a broken connection may take to let go of memory
	nap        time.Duration // the longest Wait
	clockEvery uint          // polls, a power of two; then the clock is looked at
}

// defaultTuning fits the device behind the first rail.
func defaultTuning(soft bool, size int) tuning {
	u := tuning{
		segment: 16 << 10, receives: 512, maxRecvs: 512 + 8*size, exposures: 64, sends: 128, sq: 127, window: 64, minWindow: 4,
		inline: 128, chunk: 1 << 20, split: 1 << 20, register: 256 << 10, interval: 16,
		timeout: time.Second, retries: 7, rnrTimer: 640 * time.Microsecond, rnrRetries: rdma.RetryForever, reads: 16,
		attempts: 4, keepAlive: 5 * time.Second, drain: 5 * time.Second, nap: 250 * time.Millisecond, clockEvery: 256,
	}
	if soft {
		// The kernel answers when it gets the processor: on a machine that has none to spare, 67 ms, as is usual
		// elsewhere, repeat packets that were not lost. Seven times this is below two seconds.
		u.timeout, u.retries, u.rnrRetries, u.keepAlive = 250*time.Millisecond, 6, 6, time.Second
		// A packet costs much more than a copy there, and a rendezvous costs five of them.
		u.segment, u.receives, u.sends = 64<<10+prefixSize+wire.MaxSize, 160, 48
		u.maxRecvs = u.receives + 8*size
	}
	return u
}

// fit lowers the numbers to what a device can do.
func (u *tuning) fit(l *rdma.Limits, port *rdma.Port, size int) {
	u.segment = int(min(int64(u.segment), port.MaxMessage))
	u.sq = min(u.sq, l.MaxQPWRs)
	u.receives = min(u.receives, l.MaxSRQWRs)
	u.maxRecvs = min(max(u.maxRecvs, u.receives), l.MaxSRQWRs)
	if u.cq == 0 {
		u.cq = u.maxRecvs + 4096 + 4*size
	}
	u.cq = min(u.cq, l.MaxCQEs)
	u.retries = min(u.retries, l.MaxRetries)
	u.reads = min(u.reads, l.MaxReads)
	if !l.RNRForever {
		u.rnrRetries = min(u.rnrRetries, 6)
	}
	if l.MaxInline > 0 {
		u.inline = min(u.inline, l.MaxInline)
	}
	u.exposures = min(u.exposures, u.receives/2, maxExposures)
}

func (c *Config) check() error {
	switch {
	case c.Size < 1 || c.Rank < 0 || c.Rank >= c.Size:
		return fmt.Errorf("verbs: rank %d of %d ranks", c.Rank, c.Size)
	case c.Provider == nil:
		return fmt.Errorf("verbs: no RDMA provider")
	case c.Control == nil:
		return fmt.Errorf("verbs: no channel to connect ranks over")
	case c.Arena != nil && c.ArenaBytes > 0:
		return fmt.Errorf("verbs: an arena of %d bytes was asked for, and another one given", c.ArenaBytes)
	}
	return nil
}

// soft says that a device is emulated by the kernel.
func soft(info *rdma.DeviceInfo) bool { return info.Driver == "rdma_rxe" }
