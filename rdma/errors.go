package rdma

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// Op is what failed.
type Op string

// The operations of a provider.
const (
	OpListDevices      Op = "list devices"
	OpOpenDevice       Op = "open device"
	OpCloseDevice      Op = "close device"
	OpQueryPort        Op = "query port"
	OpQueryGIDs        Op = "read GID table"
	OpQueryPKeys       Op = "read partition key table"
	OpChoosePort       Op = "choose port"
	OpChooseGID        Op = "choose GID"
	OpChoosePKey       Op = "choose partition key"
	OpAllocPD          Op = "allocate PD"
	OpClosePD          Op = "close PD"
	OpRegisterMemory   Op = "register memory"
	OpDeregisterMemory Op = "deregister memory"
	OpCreateChannel    Op = "create completion channel"
	OpCloseChannel     Op = "close completion channel"
	OpReadChannel      Op = "read completion channel"
	OpCreateCQ         Op = "create CQ"
	OpCloseCQ          Op = "close CQ"
	OpPoll             Op = "poll CQ"
	OpArm              Op = "arm CQ"
	OpCreateSRQ        Op = "create SRQ"
	OpModifySRQ        Op = "modify SRQ"
	OpCloseSRQ         Op = "close SRQ"
	OpCreateQP         Op = "create QP"
	OpModifyInit       Op = "modify QP to INIT"
	OpModifyRTR        Op = "modify QP to RTR"
	OpModifyRTS        Op = "modify QP to RTS"
	OpModifyError      Op = "modify QP to ERROR"
	OpModifyReset      Op = "modify QP to RESET"
	OpQueryQP          Op = "query QP"
	OpCloseQP          Op = "close QP"
	OpPostSend         Op = "post send"
	OpPostRecv         Op = "post receive"
	OpComplete         Op = "complete work request"
	OpReadEvent        Op = "read event"
)

// What went wrong, for errors.Is. The errno, if there is one, also matches, and
// for completions the Status.
var (
	ErrNoProvider  = errors.New("no such provider")
	ErrNoDevice    = errors.New("no such device")
	ErrUnsupported = errors.New("not supported")
	ErrPermission  = errors.New("not permitted")
	ErrPortDown    = errors.New("port not active")
	ErrNoGID       = errors.New("no usable GID")
	ErrNoPKey      = errors.New("no usable partition key")
	ErrMemlock     = errors.New("limit of locked memory reached")
	ErrResources   = errors.New("out of resources")
	ErrUnreachable = errors.New("peer not reachable")
	ErrInvalid     = errors.New("invalid argument")
	ErrState       = errors.New("not allowed in this state")
	ErrBusy        = errors.New("still in use")
	ErrClosed      = errors.New("closed")
	ErrQueueFull   = errors.New("queue full")
	ErrCQOverrun   = errors.New("completion queue overrun")
	ErrDeviceFatal = errors.New("device lost")
)

// Error is any error of this package and of its providers.
type Error struct {
	Op     Op
	Device string // empty: none in particular
	Port   int    // 0: none
	QPN    uint32 // 0: none
	Peer   string // GID, host or rank of the other end, as the reporter knows it
	What   string // the cause, with how much and of what
	Hint   string // what to do about it: one command where that is enough
	Kind   error  // one of the sentinels above, or a Status
	Errno  syscall.Errno
	Vendor uint32 // of completions
}

// Error is one line: where, what, code, and what to do.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rdma: %s", e.Op)
	if e.Device != "" {
		fmt.Fprintf(&b, " on %s", e.Device)
		if e.Port != 0 {
			fmt.Fprintf(&b, ":%d", e.Port)
		}
	}
	if e.QPN != 0 {
		fmt.Fprintf(&b, " qp 0x%06x", e.QPN)
	}
	if e.Peer != "" {
		fmt.Fprintf(&b, " to %s", e.Peer)
	}
	what := e.What
	if what == "" && e.Kind != nil {
		what = e.Kind.Error()
	}
	fmt.Fprintf(&b, ": %s", what)
	if code := e.code(); code != "" {
		fmt.Fprintf(&b, " (%s)", code)
	}
	if e.Hint != "" {
		fmt.Fprintf(&b, "; %s", e.Hint)
	}
	return b.String()
}

func (e *Error) code() string {
	var parts []string
	if s, ok := e.Kind.(Status); ok {
		parts = append(parts, s.String())
		if e.Vendor != 0 {
			parts = append(parts, fmt.Sprintf("vendor 0x%x", e.Vendor))
		}
	}
	if e.Errno != 0 {
		parts = append(parts, errnoName(e.Errno))
	}
	return strings.Join(parts, ", ")
}

// Unwrap makes errors.Is match the kind and the errno.
func (e *Error) Unwrap() []error {
	var all []error
	if e.Kind != nil {
		all = append(all, e.Kind)
	}
	if e.Errno != 0 {
		all = append(all, e.Errno)
	}
	return all
}

// Locate fills in where an *Error happened, where it does not say so already. It
// returns err.
func Locate(err error, device string, port int, qpn uint32) error {
	if e, ok := errors.AsType[*Error](err); ok {
		if e.Device == "" {
			e.Device = device
		}
		if e.Port == 0 {
			e.Port = port
		}
		if e.QPN == 0 {
			e.QPN = qpn
		}
	}
	return err
}

func invalid(op Op, what, hint string) error {
	return &Error{Op: op, Kind: ErrInvalid, What: what, Hint: hint, Errno: syscall.EINVAL}
}

var errnoNames = map[syscall.Errno]string{
	syscall.EPERM: "EPERM", syscall.ENOENT: "ENOENT", syscall.EINTR: "EINTR", syscall.EIO: "EIO", syscall.EAGAIN: "EAGAIN",
	syscall.ENOMEM: "ENOMEM", syscall.EACCES: "EACCES", syscall.EFAULT: "EFAULT", syscall.EBUSY: "EBUSY", syscall.ENODEV: "ENODEV",
	syscall.EINVAL: "EINVAL", syscall.EMFILE: "EMFILE", syscall.ENOSPC: "ENOSPC", syscall.ENOSYS: "ENOSYS",
	syscall.EOPNOTSUPP: "EOPNOTSUPP", syscall.EPROTONOSUPPORT: "EPROTONOSUPPORT", syscall.ENETUNREACH: "ENETUNREACH",
	syscall.EHOSTUNREACH: "EHOSTUNREACH", syscall.ETIMEDOUT: "ETIMEDOUT", syscall.ENXIO: "ENXIO", syscall.EADDRNOTAVAIL: "EADDRNOTAVAIL",
}

func errnoName(e syscall.Errno) string {
	if s, ok := errnoNames[e]; ok {
		return s
	}
	return fmt.Sprintf("errno %d: %v", int(e), e)
}
