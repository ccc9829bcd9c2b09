package rdma

import "strings"

// Opcode is what a SendWR asks for.
type Opcode uint8

// Operations. WriteImm moves data like Write and then consumes a receive of the
// peer, whose completion brings Imm. FetchAdd and CompareSwap work on 8 aligned bytes in the
// order of the peer's processor, and put the old value into the segment.
const (
	Send Opcode = iota
	SendImm
	Write
	WriteImm
	Read
	FetchAdd
	CompareSwap
)

var opcodes = [...]string{"send", "send with immediate", "RDMA write", "RDMA write with immediate", "RDMA read", "fetch and add", "compare and swap"}

func (o Opcode) String() string { return name(opcodes[:], int(o), "opcode") }

// Result reports operations that write to memory of this process.
func (o Opcode) Result() bool { return o == Read || o == FetchAdd || o == CompareSwap }

// Atomic reports FetchAdd and CompareSwap.
func (o Opcode) Atomic() bool { return o == FetchAdd || o == CompareSwap }

// HasImm reports operations that bring Imm to the peer.
func (o Opcode) HasImm() bool { return o == SendImm || o == WriteImm }

// TakesReceive reports operations that consume a receive of the peer.
func (o Opcode) TakesReceive() bool { return o == Send || o == SendImm || o == WriteImm }

// Remote reports operations that name memory of the peer.
func (o Opcode) Remote() bool { return o >= Write }

// Flags change how a SendWR is done.
type Flags uint8

// Flags of send work requests.
const (
	Signaled  Flags = 1 << iota // complete also on success
	Fence                       // start after all READs and atomics before it have their result
	Solicited                   // wake a peer that armed its CQ for solicited completions only
)

// SendWR is a work request for a send queue. The zero value sends zero bytes.
type SendWR struct {
	ID    uint64 // comes back in WC.ID
	Op    Opcode
	Flags Flags

	// SGL is the data, or where a result goes: exactly 8 bytes for an atomic. It may be empty.
	SGL []SGE

	// Inline, if not nil, is data in any memory, which is copied before Post returns; SGL
	// is empty then. For Send and Write, with and without immediate, up to QPCaps.MaxInline.
	Inline []byte

	// RemoteAddr and RKey are for operations on memory of the peer. The address of an atomic that is not a
	// multiple of 8 is refused, by Post or by the peer.
	RemoteAddr uint64
	RKey       uint32
	Imm        uint32 // a number; the provider takes care of the byte order

	Add     uint64 // FetchAdd: the summand
	Compare uint64 // CompareSwap: what must be there
	Swap    uint64 // CompareSwap: what is written then
}

// RecvWR is a work request for a receive queue: room for one message.
type RecvWR struct {
	ID  uint64
	SGL []SGE
}

// WC is a work completion.
type WC struct {
	ID     uint64
	Status Status
	QPN    uint32
	Vendor uint32 // the device's own code of an error

	// Only on success:
	Op    WCOp
	Imm   uint32 // if HasImm
	Bytes uint32 // of receives, READs and atomics
	Flags WCFlags
}

// WCFlags say more of a completion.
type WCFlags uint8

// HasImm says that WC.Imm is set.
const HasImm WCFlags = 1

// WCOp is what completed.
type WCOp uint8

// Operations of completions.
const (
	WCSend         WCOp = iota // Send, SendImm
	WCWrite                    // Write, WriteImm
	WCRead                     // Read
	WCFetchAdd                 // FetchAdd
	WCSwap                     // CompareSwap
	WCRecv                     // a receive took a Send or SendImm
	WCRecvWriteImm             // a receive was consumed by a WriteImm
)

var wcOps = [...]string{"send", "RDMA write", "RDMA read", "fetch and add", "compare and swap", "receive", "receive of RDMA write"}

func (o WCOp) String() string { return name(wcOps[:], int(o), "operation") }

// WC is the operation that the completion of o reports.
func (o Opcode) WC() WCOp {
	return [...]WCOp{WCSend, WCSend, WCWrite, WCWrite, WCRead, WCFetchAdd, WCSwap}[o]
}

// Status is how a work request ended; the numbers are those of verbs. As an
// error it is what an *Error of a completion wraps.
type Status uint8

// Statuses of completions.
const (
	StatusSuccess              Status = 0
	StatusLocalLength          Status = 1
	StatusLocalOperation       Status = 2
	StatusLocalProtection      Status = 4
	StatusFlushed              Status = 5
	StatusMWBind               Status = 6
	StatusBadResponse          Status = 7
	StatusLocalAccess          Status = 8
	StatusRemoteInvalidRequest Status = 9
	StatusRemoteAccess         Status = 10
	StatusRemoteOperation      Status = 11
	StatusRetryExceeded        Status = 12
	StatusRNRRetryExceeded     Status = 13
	StatusRemoteAborted        Status = 16
	StatusFatal                Status = 19
	StatusResponseTimeout      Status = 20
	StatusGeneral              Status = 21
)

// String is the name in verbs, without its IBV_WC_.
func (s Status) String() string { return name(statusNames[:], int(s), "status") }

var statusNames = [...]string{"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR",
	"MW_BIND_ERR", "BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR",
	"RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR", "INV_EECN_ERR", "INV_EEC_STATE_ERR",
	"FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR", "TM_ERR", "TM_RNDV_INCOMPLETE"}

// Error makes a Status an error that errors.Is finds. It is the same text, as fmt prefers it.
func (s Status) Error() string { return s.String() }

// Err is nil on success and an *Error otherwise, for what completed on device.
func (w *WC) Err(device string) error {
	if w.Status == StatusSuccess {
		return nil
	}
	e := &Error{Op: OpComplete, Device: device, QPN: w.QPN, Kind: w.Status, Vendor: w.Vendor}
	return Explain(e, Facts{})
}

func (f Flags) String() string {
	var parts []string
	for i, s := range [...]string{"signaled", "fence", "solicited"} {
		if f&(1<<i) != 0 {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ", ")
}
