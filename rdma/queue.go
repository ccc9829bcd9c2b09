package rdma

// CQ is a completion queue.
type CQ interface {
	// Poll moves up to len(wc) completions to wc, oldest first, and returns
	// their number. It never waits. ErrCQOverrun: the queue has lost some and
	// is dead. One goroutine at a time.
	Poll(wc []WC) (int, error)

	// Arm asks for one notification on the channel at the next completion that
	// enters the queue; with solicitedOnly at the next one that is of a message sent with
	// Solicited or, on most devices, of an error (see Limits.Solicited). What is in the queue
	// already does not count: poll after Arm, before waiting. Arming again
	// before the notification is harmless.
	Arm(solicitedOnly bool) error

	Cap() int

	// Close is refused with ErrBusy while a QP uses the queue. Notifications
	// of it that nobody took are dropped, and not waited for.
	Close() error
}

// CompChannel collects the notifications of armed CQs. It may be shared by any
// number of CQs of one device. Next must be called by one goroutine at a time.
type CompChannel interface {
	// FD is readable when Next would return true; it is non-blocking and level-triggered,
	// for poll and epoll. Do not read from it or close it.
	FD() int

	// Next takes one notification and returns its CQ. It never waits: false
	// means that there is none. The CQ is not armed any more. There is no
	// acknowledgement: the provider does it.
	Next() (CQ, bool, error)

	// Close is refused with ErrBusy while a CQ uses the channel.
	Close() error
}

// SRQOptions describe a shared receive queue.
type SRQOptions struct {
	MaxWRs  int
	MaxSGEs int
}

// SRQ is a receive queue for any number of QPs of one PD.
type SRQ interface {
	// PostRecv posts in order and returns how many were taken; with an error
	// the rest was not.
	PostRecv(wrs []RecvWR) (int, error)

	// SetLimit asks for one SRQLimitReached as soon as fewer than n receives are posted.
	// 0 takes it back. It is over after the event: set it again after the refill.
	SetLimit(n int) error

	MaxWRs() int // granted

	// Close is refused with ErrBusy while a QP uses the queue.
	Close() error
}

// QPCaps are the sizes of a QP's queues.
type QPCaps struct {
	MaxSendWRs  int
	MaxRecvWRs  int // 0 with an SRQ
	MaxSendSGEs int
	MaxRecvSGEs int
	MaxInline   int
}

// QPOptions describe a queue pair.
type QPOptions struct {
	SendCQ, RecvCQ CQ // may be the same
	SRQ            SRQ
	Caps           QPCaps // asked for; QP.Caps tells what was granted, which is at least that, but see there
}

// QP is a queue pair of a reliable connection.
//
//	          Init             ReadyToReceive         ReadyToSend
//	RESET ------------> INIT ------------------> RTR ---------------> RTS
//	  ^                                                                |
//	  |  Reset from any state       Fail from any state but RESET, or the first error
//	  +-------------------------------- ERROR <------------------------+
//
// Receives may be posted from INIT on, and are taken from RTR on. Sends may be
// posted from RTS on. In ERROR both may be posted and complete as flushed. In
// RESET nothing may be posted. What a state does not allow is ErrState.
type QP interface {
	// Num is the number that the peer needs, 24 bits.
	Num() uint32

	// Caps are the sizes granted. MaxInline may be less than was asked for.
	Caps() QPCaps

	Init(attr InitAttr) error
	ReadyToReceive(attr RTRAttr) error // may resolve the peer's address: takes up to seconds
	ReadyToSend(attr RTSAttr) error

	// Fail puts the QP into the error state. Everything posted completes, with
	// StatusFlushed what was not done. To drain, then post one signaled send
	// and, without an SRQ, one receive, and poll until both have completed; a
	// full queue has a slot for them when completions were polled. Receives of
	// an SRQ are not flushed: they stay for the other QPs.
	Fail() error

	// Reset forgets everything posted, without completions, and returns to RESET.
	// Completions that were not polled may be lost, or still come: drain first.
	Reset() error

	// State asks the device.
	State() (QPState, error)

	// PostSend and PostRecv post in order and return how many were taken; with
	// an error the rest was not, and those before are under way. A full
	// queue is ErrQueueFull. PostRecv on a QP with an SRQ is ErrInvalid.
	PostSend(wrs []SendWR) (int, error)
	PostRecv(wrs []RecvWR) (int, error)

	// Close destroys the QP. Completions that were not polled may be lost, or
	// still come under its number: drain first.
	Close() error
}

// QPState is a state of a QP; the numbers are those of verbs.
type QPState uint8

// States of a QP.
const (
	StateReset QPState = 0
	StateInit  QPState = 1
	StateRTR   QPState = 2
	StateRTS   QPState = 3
	StateError QPState = 6
)

var qpStates = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERROR"}

func (s QPState) String() string { return name(qpStates[:], int(s), "state") }
