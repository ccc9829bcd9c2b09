package rdma

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// Facts are what a provider knows beyond the errno, to explain an error. Each may be
// left out; a text that needs a missing one is not chosen, or says "?".
type Facts struct {
	Library string   // what dlopen said
	Feature string   // what the library is too old for
	Wanted  string   // the device, symbol or value that was asked for
	Known   []string // those that exist
	Bytes   int64    // to register
	Memlock int64    // limit in bytes, -1 without limit, 0 not known
	Pinned  int64    // by this process already
	Sysfs   bool     // the kernel shows devices
	NetDev  string   // the interface behind the port
	State   PortState
	LID     uint16
	Link    LinkLayer
	Asked   int64 // a number that was asked for
	Max     int64 // and its limit
}

// A condition turns one way of failing into words. The first that matches is taken.
type condition struct {
	ops   []Op            // any if nil
	errno []syscall.Errno // any if nil
	kind  error           // of the error before; any if nil
	when  func(f *Facts) bool

	sets error // the Kind, if the error has none
	what string
	fix  string
}

const (
	fixMemlock = "run ulimit -l unlimited; to keep it: '* - memlock unlimited' in /etc/security/limits.conf, LimitMEMLOCK=infinity " +
		"in the unit of a batch system, docker --ulimit memlock=-1"
	fixSoftRoCE = "check lspci | grep -i -e mellanox -e infiniband; without hardware: rdma link add rxe0 type rxe netdev eth0"
)

func finiteMemlock(f *Facts) bool { return f.Memlock > 0 }

var table = []condition{
	// Finding and opening devices.
	{ops: []Op{OpListDevices}, when: func(f *Facts) bool { return f.Library != "" }, sets: ErrUnsupported,
		what: "libibverbs.so.1 cannot be loaded: {library}",
		fix:  "apt-get install libibverbs1 ibverbs-providers, or dnf install libibverbs"},
	{when: func(f *Facts) bool { return f.Feature != "" }, sets: ErrUnsupported,
		what: "libibverbs is too old for {feature}: it has no {wanted}",
		fix:  "upgrade rdma-core"},
	{ops: []Op{OpListDevices}, errno: []syscall.Errno{syscall.ENOSYS}, sets: ErrUnsupported,
		what: "the kernel has no RDMA support loaded (no /sys/class/infiniband_verbs)",
		fix:  "modprobe ib_uverbs and the driver of the card; in a container, mount /sys and /dev/infiniband"},
	{ops: []Op{OpListDevices}, when: func(f *Facts) bool { return f.Sysfs }, sets: ErrPermission,
		what: "the kernel has devices ({known}) but libibverbs shows none",
		fix:  "apt-get install ibverbs-providers; in a container, docker run --device=/dev/infiniband"},
	{ops: []Op{OpListDevices}, sets: ErrNoDevice,
		what: "there is no RDMA device", fix: fixSoftRoCE},
	{ops: []Op{OpOpenDevice}, kind: ErrNoDevice, when: func(f *Facts) bool { return len(f.Known) > 0 },
		what: "there is no device {wanted}{nearest}; there is: {known}", fix: "weft info lists the devices"},
	{ops: []Op{OpOpenDevice}, kind: ErrNoDevice,
		what: "there is no device {wanted}, nor any other", fix: fixSoftRoCE},
	{ops: []Op{OpOpenDevice}, errno: []syscall.Errno{syscall.EACCES, syscall.EPERM}, sets: ErrPermission,
		what: "no permission to open {wanted}", fix: "ls -l /dev/infiniband; give your group access with a udev rule, or chmod 666 {wanted}"},

	// Ports and addresses.
	{kind: ErrPortDown, when: func(f *Facts) bool { return f.Link != LinkEthernet && f.State >= PortInit && f.LID == 0 },
		what: "port state is {state} and it has no LID: no subnet manager has configured it", fix: "start opensm on one host of the fabric"},
	{kind: ErrPortDown, when: func(f *Facts) bool { return f.Link == LinkEthernet && f.NetDev != "" },
		what: "port state is {state}", fix: "ip link set {netdev} up"},
	{kind: ErrPortDown, what: "port state is {state}", fix: "check the cable with ibstat, and the switch"},
	{kind: ErrNoGID, when: func(f *Facts) bool { return f.Wanted != "" },
		what: "GID index {wanted} is empty or unusable; the table has: {known}", fix: "show_gids or weft info lists the table"},
	{kind: ErrNoGID, when: func(f *Facts) bool { return f.NetDev != "" },
		what: "no address that peers can route to; the table has: {known}", fix: "ip addr add ADDRESS/PREFIX dev {netdev}"},
	{kind: ErrNoGID, what: "no address that peers can route to; the table has: {known}",
		fix: "give the network interface of the port an IPv4 address"},
	{kind: ErrNoPKey, what: "partition key {wanted} is not in the port's table ({known})", fix: "ask the administrator of the fabric to add the host to the partition"},

	// Memory and objects.
	{ops: []Op{OpRegisterMemory}, errno: []syscall.Errno{syscall.EPERM}, sets: ErrMemlock,
		what: "cannot lock {bytes}: the limit of locked memory is 0", fix: fixMemlock},
	{ops: []Op{OpRegisterMemory}, errno: []syscall.Errno{syscall.ENOMEM}, when: finiteMemlock, sets: ErrMemlock,
		what: "cannot lock {bytes}: the limit of locked memory is {memlock}, {pinned} are in use", fix: fixMemlock},
	{ops: []Op{OpCreateCQ, OpCreateQP, OpCreateSRQ}, errno: []syscall.Errno{syscall.ENOMEM}, when: finiteMemlock, sets: ErrMemlock,
		what: "cannot lock memory for the queue: the limit of locked memory is {memlock}", fix: fixMemlock},
	{ops: []Op{OpRegisterMemory}, errno: []syscall.Errno{syscall.ENOMEM}, sets: ErrResources,
		what: "cannot register {bytes}: device or kernel are out of memory regions or maps (locked memory is not limited)",
		fix:  "rdma resource shows what is in use; sysctl -w vm.max_map_count=262144; check the rdma and memory cgroups"},
	{ops: []Op{OpRegisterMemory}, errno: []syscall.Errno{syscall.EFAULT}, sets: ErrInvalid,
		what: "the {bytes} are not mapped, or mapped read-only", fix: "register memory that is mapped for reading and writing until the region is closed"},
	{ops: []Op{OpRegisterMemory}, errno: []syscall.Errno{syscall.EOPNOTSUPP}, sets: ErrUnsupported,
		what: "the driver cannot register this kind of memory", fix: "register ordinary memory"},
	{ops: []Op{OpCreateCQ}, errno: []syscall.Errno{syscall.EINVAL}, when: func(f *Facts) bool { return f.Asked > f.Max }, sets: ErrInvalid,
		what: "{asked} completions are more than the device's {max}", fix: "use more CQs, or fewer work requests for each QP"},
	{ops: []Op{OpCreateQP, OpCreateSRQ}, errno: []syscall.Errno{syscall.EINVAL}, sets: ErrInvalid,
		what: "the queue sizes, segments or inline bytes asked for are more than the device has ({wanted})", fix: "compare with Limits, or weft info"},
	{ops: []Op{OpAllocPD, OpCreateCQ, OpCreateChannel, OpCreateSRQ, OpCreateQP}, errno: []syscall.Errno{syscall.ENOMEM, syscall.ENOSPC}, sets: ErrResources,
		what: "device or kernel are out of such objects or of memory", fix: "rdma resource shows what is in use; check the rdma cgroup"},

	// Connecting.
	{ops: []Op{OpModifyInit}, errno: []syscall.Errno{syscall.EINVAL}, sets: ErrInvalid,
		what: "the device does not take {wanted}", fix: "weft info lists the ports; their partition keys are in /sys/class/infiniband/DEVICE/ports/PORT/pkeys"},
	{ops: []Op{OpModifyRTR}, errno: []syscall.Errno{syscall.ETIMEDOUT}, sets: ErrUnreachable,
		what: "the peer's link address cannot be resolved: it does not answer ARP or neighbour discovery",
		fix:  "ping the peer from {netdev}; are both ends in one network, and on the same rail?"},
	{ops: []Op{OpModifyRTR}, errno: []syscall.Errno{syscall.ENETUNREACH, syscall.EHOSTUNREACH}, sets: ErrUnreachable,
		what: "no route from this port's GID to the peer's", fix: "ip route get PEER; or choose another GID, weft info lists them"},
	{ops: []Op{OpModifyRTR}, errno: []syscall.Errno{syscall.ENODEV}, sets: ErrUnreachable,
		what: "the network interface of the GID is gone", fix: "read the GID table again: rdma link; ip addr"},
	{ops: []Op{OpModifyRTR}, errno: []syscall.Errno{syscall.EINVAL}, sets: ErrInvalid,
		what: "the device does not take the peer's address: MTU, GID family or RoCE version differ", fix: "compare weft info of both hosts"},

	// Working.
	{ops: []Op{OpPostRecv}, errno: []syscall.Errno{syscall.ENOMEM}, sets: ErrQueueFull,
		what: "the queue of {max} work requests is full", fix: "poll completions of receives first, or make the queue larger"},
	{ops: []Op{OpPostSend}, errno: []syscall.Errno{syscall.ENOMEM}, sets: ErrQueueFull,
		what: "the queue of {max} work requests is full", fix: "poll completions first; some sends must be Signaled to free their slots"},
	{errno: []syscall.Errno{syscall.EMFILE}, sets: ErrResources,
		what: "this process has as many files open as it may", fix: "raise the limit: ulimit -n 4096"},
	{errno: []syscall.Errno{syscall.EBUSY}, sets: ErrBusy,
		what: "the device says that it is still in use", fix: "close what uses it first: rdma resource shows what is open"},
	{errno: []syscall.Errno{syscall.EIO}, sets: ErrDeviceFatal,
		what: "the device was lost or reset", fix: "see dmesg, then start the job again"},

	// Completions.
	{kind: StatusLocalLength, what: "the message is longer than the receive that took it, or than the device can send",
		fix: "both ends must agree on sizes and MTU: do all run one version?"},
	{kind: StatusLocalOperation, what: "the device did not take the work request", fix: "see dmesg"},
	{kind: StatusLocalProtection, what: "a segment is not in registered memory, or was given free before the operation completed",
		fix: "keep the memory registered until the completion was polled"},
	{kind: StatusLocalAccess, what: "a segment's memory does not allow the access", fix: "register it with rdma.LocalWrite"},
	{kind: StatusFlushed, what: "cancelled: the queue pair had failed before", fix: "the first error of the queue pair has the cause"},
	{kind: StatusRemoteInvalidRequest, what: "the peer refused the request: its receive is too short, its MTU differs, or it allows no such operation",
		fix: "compare MTU, Access and MaxReads of both ends"},
	{kind: StatusRemoteAccess, what: "the peer's memory is not registered any more, or does not allow the access",
		fix: "the peer must keep it registered until the operation is over"},
	{kind: StatusRemoteOperation, what: "the peer could not do the operation: its receive's memory is not registered (on soft-RoCE also: its receive is too short)", fix: "see the peer's log"},
	{kind: StatusRetryExceeded, what: "the peer did not answer: its process has ended, its queue pair failed, or the network is broken",
		fix: "see the peer's log; if it lives, test the link with ib_write_bw and the same GIDs, and let UDP port 4791 pass"},
	{kind: StatusRNRRetryExceeded, what: "the peer posted no receive in time", fix: "is the peer's process stopped or swapping?"},
	{kind: StatusFatal, what: "the device failed", fix: "see dmesg and the version of the firmware"},
}

// Explain fills in what e's What, Hint and Kind lack, from the table of known errors
// and from f. What is there stays. It returns e. An errno that no known error has is told as it is.
func Explain(e *Error, f Facts) *Error {
	for i := range table {
		c := &table[i]
		if !c.matches(e, &f) {
			continue
		}
		if e.Kind == nil {
			e.Kind = c.sets
		}
		if e.What == "" {
			e.What = f.fill(c.what)
			e.Hint = firstOf(e.Hint, f.fill(c.fix))
		}
		return e
	}
	if e.What != "" {
		return e
	}
	switch {
	case e.Op == OpComplete:
		e.What, e.Hint = "the device or its driver failed", firstOf(e.Hint, "see dmesg and the version of the firmware")
	case e.Kind == nil && e.Errno != 0:
		e.What, e.Hint = e.Errno.Error(), firstOf(e.Hint, "see dmesg")
	}
	return e
}

func (c *condition) matches(e *Error, f *Facts) bool {
	return (c.ops == nil || slices.Contains(c.ops, e.Op)) &&
		(c.errno == nil || slices.Contains(c.errno, e.Errno)) &&
		(c.kind == nil || c.kind == e.Kind) &&
		// An error with a kind is explained by that, or by a condition that agrees with it.
		(c.kind != nil || e.Kind == nil || c.sets == e.Kind) &&
		(c.when == nil || c.when(f))
}

func (f *Facts) fill(text string) string {
	or := func(s string) string { return firstOf(s, "?") }
	nearest := ""
	if n := Nearest(f.Wanted, f.Known); n != "" {
		nearest = fmt.Sprintf(" (did you mean %s?)", n)
	}
	netdev := f.NetDev
	if netdev == "" {
		netdev = "its network interface"
	}
	return strings.NewReplacer(
		"{library}", or(f.Library), "{feature}", or(f.Feature), "{wanted}", or(f.Wanted),
		"{known}", or(strings.Join(f.Known, ", ")), "{nearest}", nearest,
		"{bytes}", sizeOf(f.Bytes), "{memlock}", sizeOf(f.Memlock), "{pinned}", sizeOf(f.Pinned),
		"{netdev}", netdev, "{state}", f.State.String(),
		"{asked}", fmt.Sprint(f.Asked), "{max}", fmt.Sprint(f.Max),
	).Replace(text)
}

// sizeOf writes a number of bytes as people read it.
func sizeOf(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.4g GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.4g MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.4g KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
